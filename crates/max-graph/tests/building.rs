//! The graph API as users see it: inferred shapes, error messages, locations, scopes.

use max_core::{DType, DeviceRef, Dim, Error, ErrorKind, Result, Shape, TensorType};
use max_graph::ops::slice::{Bound, Index};
use max_graph::{Graph, HostTensor, Operands, TensorValue, Value, Weight, interpret, ops};

const CPU: DeviceRef = DeviceRef::CPU;

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, CPU)
}

fn t(dtype: DType, shape: impl Into<Shape>) -> TensorType {
    TensorType::new(dtype, shape, CPU)
}

/// The output types of a function of the inputs, or its error.
fn build<O: Into<Operands>>(
    types: &[TensorType],
    forward: impl FnOnce(&[TensorValue]) -> O,
) -> Result<Vec<String>> {
    let graph = Graph::build("test", types.to_vec(), |values| {
        forward(&values.iter().map(|v| v.tensor().unwrap()).collect::<Vec<_>>())
    })?;
    Ok(graph.output_types()?.iter().map(|ty| ty.to_string()).collect())
}

fn error<O: Into<Operands>>(types: &[TensorType], forward: impl FnOnce(&[TensorValue]) -> O) -> Error {
    build(types, forward).expect_err("this should not build")
}

#[test]
fn shapes_are_inferred() {
    let a3 = f32s(("a", 3));
    let one = |forward: &dyn Fn(&TensorValue) -> Result<TensorValue>| {
        build(std::slice::from_ref(&a3), |x| forward(&x[0])).unwrap().remove(0)
    };
    assert_eq!(one(&|x| x.reshape((3, -1))), "float32[3, a]");
    assert_eq!(one(&|x| x.flatten(0, -1)), "float32[a * 3]");
    assert_eq!(one(&|x| x.T()), "float32[3, a]");
    assert_eq!(one(&|x| x.argmax(0)), "int64[1, 3]");
    assert_eq!(one(&|x| ops::equal(x, 1)), "bool[a, 3]");
    assert_eq!(one(&|x| ops::concat([x, x], 0)), "float32[a * 2, 3]");
    assert_eq!(one(&|x| ops::stack([x, x], -1)), "float32[a, 3, 2]");
    assert_eq!(one(&|x| x.slice((1.., 0))), "float32[a + -1]");
    assert_eq!(one(&|x| x.slice(1..5)), "float32[4, 3]");
    assert_eq!(one(&|x| x.slice((Index::NewAxis, Index::Ellipsis, -1))), "float32[1, a]");
    assert_eq!(one(&|x| x.broadcast_to((2, "a", 3))), "float32[2, a, 3]");
    assert_eq!(one(&|x| ops::matmul(x, x.T()?)), "float32[a, a]");
    assert_eq!(one(&|x| ops::tensor(x.shape())), "int64[2]");
    assert_eq!(one(&|x| ops::div(ops::argmax(x, 0), 2)), "float64[1, 3]");
}

#[test]
fn reductions_take_several_axes() {
    let x = f32s(("a", 3, "b"));
    let one = |forward: &dyn Fn(&TensorValue) -> Result<TensorValue>| {
        build(std::slice::from_ref(&x), |x| forward(&x[0])).unwrap().remove(0)
    };
    let all = ops::Axes::all;
    assert_eq!(one(&|x| ops::sum(x, [0, 1])), "float32[1, 1, b]");
    assert_eq!(one(&|x| x.sum(all())), "float32[1, 1, 1]");
    assert_eq!(one(&|x| x.mean(all().dropped())), "float32[]");
    assert_eq!(one(&|x| x.max(ops::Axes::from([-1, 0]).dropped())), "float32[3]");
    assert_eq!(one(&|x| ops::argmax(x, all())), "int64[1, 1, 1]");
    assert_eq!(one(&|x| ops::any(x, ops::Axes::from(-1).dropped())), "bool[a, 3]");
    assert_eq!(one(&|x| ops::prod(x, Vec::new())), "float32[a, 3, b]");
    let twice = error(std::slice::from_ref(&x), |x| ops::sum(&x[0], [1, -2]));
    assert!(twice.to_string().contains("Invalid axis: 1 is given twice in [1, -2]"), "{twice}");
    let index = error(std::slice::from_ref(&x), |x| ops::argmin(&x[0], [0, 1]));
    assert!(index.to_string().contains("takes one axis, or None for all of them"), "{index}");
    let huge = error(&[f32s((1i64 << 40, 1i64 << 40))], |x| ops::sum(&x[0], ops::Axes::all()));
    assert_eq!(huge.kind(), ErrorKind::Value);
}

#[test]
fn any_and_all_of_nothing() {
    let empty = HostTensor::new(DType::Float32, [0, 3], max_core::HostBytes::new(Vec::new())).unwrap();
    let graph = Graph::build("g", [f32s((0, 3))], |x| {
        let axes = || ops::Axes::all().dropped();
        Ok(vec![ops::any(&x[0], axes())?, ops::all(&x[0], axes())?])
    });
    let results = interpret(&graph.unwrap().body(), &[empty], &()).unwrap();
    assert_eq!([results[0].bytes(), results[1].bytes()].map(|bytes| bytes.to_vec()), [[0], [1]]);
}

#[test]
fn convolutions_have_symbolic_sizes() {
    let types = [f32s((1, "h", "w", 4)), f32s((3, 3, 4, 8))];
    let options = ops::ConvOptions { padding: [1; 4], stride: [2, 1], ..Default::default() };
    let y = build(&types, |x| ops::conv2d(&x[0], &x[1], None, options)).unwrap();
    assert_eq!(y, ["float32[1, (h + 1) // 2, w, 8]"]);
}

#[test]
fn errors_name_shapes_ops_and_locations() {
    let mismatch = error(&[f32s(("a", 3)), f32s(("b", 3))], |x| &x[0] + &x[1]);
    let text = mismatch.to_string();
    for part in
        ["neither equivalent nor broadcastable", "[a, 3]", "[b, 3]", "in add(", "rebind", "building.rs:"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let cases: [(Error, ErrorKind, &str); 12] = [
        (error(&[t(DType::Int32, [3]), f32s([3])], |x| &x[0] + &x[1]), ErrorKind::Value, "Unsafe cast"),
        (error(&[t(DType::UInt8, [3])], |x| &x[0] + 300), ErrorKind::Value, "Unsafe cast"),
        (error(&[f32s([3])], |x| &x[0] & &x[0]), ErrorKind::Value, "Inputs must be bools"),
        (error(&[f32s([3])], |x| ops::sum(&x[0], 1)), ErrorKind::Value, "Invalid axis"),
        (error(&[f32s([3])], |x| ops::transpose(&x[0], 0, 1)), ErrorKind::Index, "out of range"),
        (
            error(&[f32s((2, 3))], |x| x[0].reshape((4, -1))),
            ErrorKind::Value,
            "number of elements must match",
        ),
        (error(&[f32s((2, 3))], |x| x[0].slice(0..3)), ErrorKind::Value, "not clamped"),
        (error(&[f32s((2, 3))], |x| x[0].matmul(&x[0])), ErrorKind::Value, "must match"),
        (error(&[f32s([i64::MAX, 2])], |x| ops::flatten(&x[0], 0, -1)), ErrorKind::Value, "overflow"),
        (
            error(&[f32s(["a"])], |x| ops::rebind(&x[0], ("a", 1), "")),
            ErrorKind::Value,
            "Wrong rank for rebind",
        ),
        (
            error(&[f32s([3]), TensorType::new(DType::Float32, [3], DeviceRef::gpu(0))], |x| &x[0] + &x[1]),
            ErrorKind::Value,
            "same device",
        ),
        (error(&[f32s([3])], |_| ops::constant(1.0, None, None)), ErrorKind::Type, "Literal constants must"),
    ];
    for (error, kind, phrase) in cases {
        assert_eq!((error.kind(), error.to_string().contains(phrase)), (kind, true), "{phrase}: {error}");
    }
}

#[test]
fn rebind_is_advised_only_for_symbolic_dims() {
    let advised = |error: Error, phrase: &str| {
        assert!(error.message().contains(phrase), "{error}");
        error.message().contains("rebind")
    };
    let (known, symbolic) = ([f32s([6]), f32s([8])], [f32s(["a"]), f32s([8])]);
    let add = |types: &[TensorType]| error(types, |x| &x[0] + &x[1]);
    assert!(!advised(add(&known), "neither equivalent nor broadcastable"));
    assert!(advised(add(&symbolic), "neither equivalent nor broadcastable"));
    let beside = [f32s(("a", 6)), f32s((1, 8))];
    assert!(!advised(add(&beside), "neither equivalent nor broadcastable"), "a is not the reason");
    let reshape = |types: &[TensorType]| error(types, |x| x[0].reshape([8]));
    assert!(!advised(reshape(&known), "number of elements must match"));
    assert!(advised(reshape(&symbolic), "number of elements must match"));
    let matmul = |a: &str, b: i32| error(&[f32s((2, a)), f32s((b, 2))], |x| x[0].matmul(&x[1]));
    assert!(advised(matmul("a", 8), "must match"));
    assert!(!advised(error(&[f32s((2, 3))], |x| x[0].matmul(&x[0])), "must match"));
    let split = |types: &[TensorType]| error(types, |x| ops::split(&x[0], [2, 3], 0));
    assert!(!advised(split(&known), "Split sizes must sum to dimension value"));
    assert!(advised(split(&symbolic), "Split sizes must sum to dimension value"));
}

/// Types do not allocate: ops on huge sizes build as long as nothing has to count the elements.
#[test]
fn sizes_may_exceed_all_memory() {
    let (most, huge) = (i64::MAX, 1i64 << 62);
    let one = |shape: &[i64], forward: &dyn Fn(&TensorValue) -> Result<TensorValue>| {
        build(&[f32s(shape.to_vec())], |x| forward(&x[0])).unwrap().remove(0)
    };
    assert_eq!(one(&[most, most], &|x| x + x), format!("float32[{most}, {most}]"));
    assert_eq!(one(&[1], &|x| x.broadcast_to((huge, huge))), format!("float32[{huge}, {huge}]"));
    assert_eq!(one(&[most, most], &|x| ops::unsqueeze(x, 1)), format!("float32[{most}, 1, {most}]"));
    assert_eq!(one(&[most, 1, most], &|x| ops::squeeze(x, 1)), format!("float32[{most}, {most}]"));
    assert_eq!(one(&[huge, 8], &|x| x.reshape((8, -1))), format!("float32[8, {huge}]"));
    assert_eq!(one(&[huge, huge], &|x| ops::matmul(x, x)), format!("float32[{huge}, {huge}]"));
    assert_eq!(one(&[most], &|x| x.slice(1..)), format!("float32[{}]", most - 1));
    let halves = Index::Slice { start: Bound::Natural, stop: Bound::Natural, step: 2, out_dim: None };
    assert_eq!(one(&[most], &|x| x.slice(vec![halves.clone()])), format!("float32[{huge}]"));
    let padded = ops::ConvOptions { padding: [1; 4], ..Default::default() };
    let conv = build(&[f32s([1, most, 5, 4]), f32s([3, 3, 4, 8])], |x| {
        ops::conv2d(&x[0], &x[1], None, padded.clone())
    });
    assert_eq!(conv.unwrap(), [format!("float32[1, {most}, 5, 8]")]);
    for too_many in [
        error(&[f32s([huge, 8])], |x| x[0].reshape([-1])),
        error(&[f32s([huge, 8])], |x| x[0].reshape((huge / 4, 32))),
        error(&[f32s([most])], |x| ops::concat([&x[0], &x[0]], 0)),
    ] {
        assert_eq!((too_many.kind(), too_many.message().contains("64 bits")), (ErrorKind::Value, true));
    }
}

#[test]
fn numbers_and_sizes_go_to_the_device_of_tensors() {
    let far = TensorType::new(DType::Int64, ["a"], DeviceRef::gpu(0));
    let size = Dim::from("a");
    let one = |forward: &dyn Fn(&TensorValue) -> Result<TensorValue>| {
        build(std::slice::from_ref(&far), |x| forward(&x[0])).unwrap().remove(0)
    };
    assert_eq!(one(&|x| x + 1), "int64[a]@gpu:0");
    assert_eq!(one(&|x| ops::mul(x, size.clone())), "int64[a]@gpu:0");
    assert_eq!(one(&|x| ops::max(size.clone(), x)), "int64[a]@gpu:0");
    assert_eq!(one(&|_| ops::add(size.clone(), 1)), "int64[]");
}

#[test]
fn values_belong_to_the_graph_that_is_being_built() {
    let outside = ops::relu(1.0).unwrap_err();
    assert_eq!((outside.kind(), outside.message().contains("No graph found")), (ErrorKind::Lookup, true));
    let mut stolen: Option<Value> = None;
    Graph::build("first", [f32s([3])], |x| {
        stolen = Some(x[0].clone());
        ops::relu(&x[0])
    })
    .unwrap();
    let foreign = error(&[f32s([3])], |x| &x[0] + stolen.as_ref().unwrap());
    assert!(foreign.message().contains("'first'") && foreign.message().contains("'test'"), "{foreign}");
    let unfinished = Graph::new("g", [f32s([3])]).unwrap();
    assert!(max_graph::verify(&unfinished.body()).unwrap_err().message().contains("no output"));
}

#[test]
fn scopes_may_end_in_any_order() {
    let [a, b] = ["a", "b"].map(|name| Graph::new(name, [f32s([3])]).unwrap());
    let (scope_a, scope_b) = (a.enter(), b.enter());
    drop(scope_a);
    assert_eq!(Graph::current().unwrap(), b);
    drop(scope_b);
    assert!(Graph::current().is_err());
}

#[test]
fn weak_members_of_a_list_follow_the_first_tensor() {
    let array = HostTensor::from([[1f64, 2.0, 3.0]]);
    let types =
        build(&[f32s(("a", 3))], |x| ops::concat(vec![array.into(), max_graph::Operand::from(&x[0])], 0));
    assert_eq!(types.unwrap(), ["float32[a + 1, 3]"]);
}

#[test]
fn external_constants_keep_their_layout() {
    let filter = TensorType { layout: Some(max_core::FilterLayout::RSCF), ..f32s((3, 3, 4, 8)) };
    let types = build(&[], |_| {
        ops::constant_external("w", filter.clone())?;
        ops::constant_external("w", filter.clone())
    });
    assert_eq!(types.unwrap(), ["float32[3, 3, 4, 8]#RSCF"]);
}

#[test]
fn a_failed_expression_carries_its_first_error() {
    let error = error(&[f32s((2, 3))], |x| ops::relu((x[0].matmul(&x[0]) + &x[0]) * &x[0]));
    assert!(error.to_string().contains("matmul"), "{error}");
}

#[test]
fn weights_are_shared_by_identity() {
    let weight = Weight::new("w", DType::Float32, [3], CPU).unwrap();
    let twin = Weight::new("w", DType::Float32, [3], CPU).unwrap();
    let graph = Graph::build("g", [f32s([3])], |x| ops::add(&x[0] + &weight, &weight)).unwrap();
    assert_eq!(graph.to_string().matches("constant_external").count(), 1);
    let clash = error(&[f32s([3])], |x| ops::add(&x[0] + &weight, &twin));
    assert!(clash.message().contains("already exists"), "{clash}");
    for lonely in [weight.value().unwrap_err(), ops::add(1, &weight).unwrap_err()] {
        assert_eq!((lonely.kind(), lonely.message().contains("no parent graph")), (ErrorKind::Value, true));
    }
    assert_eq!(format!("{weight:?}"), "Weight(w, DType.float32, [Dim(3)], cpu:0)");
}

fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    interpret(&graph.body(), inputs, &())
}

fn zeros(shape: &[usize]) -> HostTensor {
    HostTensor::from_vec(shape, vec![0f32; shape.iter().product()]).unwrap()
}

/// Runs a function of inputs on zeros of given sizes.
fn run_on<O: Into<Operands>>(
    types: &[TensorType],
    sizes: &[&[usize]],
    forward: impl FnOnce(&[Value]) -> O,
) -> Result<Vec<Vec<usize>>> {
    let inputs: Vec<_> = sizes.iter().map(|&sizes| zeros(sizes)).collect();
    let results = run(&Graph::build("g", types.to_vec(), forward).unwrap(), &inputs)?;
    Ok(results.iter().map(|result| result.shape().to_vec()).collect())
}

#[test]
fn what_cannot_be_proven_is_checked_at_run_time() {
    let grouped = ops::ConvOptions { groups: 2, ..Default::default() };
    let conv = |channels: usize| {
        run_on(&[f32s((1, 5, 5, "c")), f32s((3, 3, 4, 8))], &[&[1, 5, 5, channels], &[3, 3, 4, 8]], |x| {
            ops::conv2d(&x[0], &x[1], None, grouped.clone())
        })
    };
    assert_eq!(conv(8).unwrap(), [[1, 3, 3, 8]]);
    let error = conv(4).unwrap_err().to_string();
    assert!(
        error.contains("conv2d input channels must be the filter's") && error.contains("[1, 5, 5, 4]"),
        "{error}"
    );
    let wrong = build(&[f32s((1, 5, 5, 3)), f32s((3, 3, 4, 8))], |x| {
        ops::conv2d(&x[0], &x[1], None, ops::ConvOptions::default())
    });
    assert!(wrong.unwrap_err().message().contains("input channels 3"));

    let split = |size: usize| {
        run_on(&[f32s(["n"]), f32s(["b"])], &[&[size], &[2]], |x| ops::split(&x[0], ("b", 3), 0))
    };
    assert_eq!(split(5).unwrap(), [[2], [3]]);
    assert!(split(6).unwrap_err().message().contains("Split sizes must sum to dimension value"));
    let named = run_on(&[f32s([10])], &[&[10]], |x| ops::split(&x[0], ("rest", 3), 0));
    assert_eq!(named.unwrap(), [[7], [3]], "a new symbol is the size that is left");
    assert!(build(&[f32s(["n"])], |x| ops::split(&x[0], ("n", 3), 0)).is_err(), "n + 3 is never n");

    for reduce in [ops::reduce_max, ops::reduce_min, ops::argmax, ops::argmin] {
        for rows in [f32s((2, 0)), f32s((2, "n"))] {
            let error = run_on(&[rows], &[&[2, 0]], |x| reduce(x[0].clone(), -1i64)).unwrap_err();
            assert!(error.message().contains("of an axis of size 0 is not defined"), "{error}");
        }
    }
    let slice = run_on(&[f32s(["n"])], &[&[0]], |x| x[0].tensor()?.slice(1..)).unwrap_err();
    assert!(slice.message().contains("starts at 1, after its stop"), "{slice}");
}

#[test]
fn outer_takes_vectors() {
    assert_eq!(build(&[f32s([3]), f32s(["n"])], |x| ops::outer(&x[0], &x[1])).unwrap(), ["float32[3, n]"]);
    let matrix = error(&[f32s((3, 2)), f32s([4])], |x| ops::outer(&x[0], &x[1]));
    assert!(matrix.message().contains("outer expected 1d-tensors"), "{matrix}");
}

#[test]
fn ranges_between_tensors_take_scalars_on_the_host() {
    let range = |limit: TensorType, device: DeviceRef| {
        build(&[limit], |x| ops::range(0i64, &x[0], 1i64, Dim::from("n"), None, device))
    };
    let far = TensorType::new(DType::Int32, (), DeviceRef::gpu(0));
    assert_eq!(range(t(DType::Int32, ()), DeviceRef::gpu(0)).unwrap(), ["int32[n]@gpu:0"]);
    assert!(range(far, DeviceRef::gpu(0)).unwrap_err().message().contains("must be on CPU"));
    assert!(range(t(DType::Int32, [1]), CPU).unwrap_err().message().contains("scalars"));
}

#[test]
fn sizes_are_checked_at_run_time() {
    let graph = Graph::build("g", [f32s(("a", "a")), f32s([Dim::from("a").mul(&2.into()).unwrap()])], |x| {
        let y = ops::rebind(&x[0], ("a", 4), "four columns")?;
        ops::sum(y, 0)
    })
    .unwrap();
    assert_eq!(run(&graph, &[zeros(&[4, 4]), zeros(&[8])]).unwrap()[0].shape(), [1, 4]);
    let failures = [
        (run(&graph, &[zeros(&[3, 4]), zeros(&[8])]), "symbolic dimension"),
        (run(&graph, &[zeros(&[4, 4]), zeros(&[7])]), "symbolic dimension"),
        (run(&graph, &[zeros(&[3, 3]), zeros(&[6])]), "rebind shape check failed: four columns"),
        (run(&graph, &[zeros(&[3]), zeros(&[6])]), "rank"),
        (run(&graph, &[zeros(&[4, 4])]), "2 inputs"),
    ];
    for (result, phrase) in failures {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
    let rebound = run(&graph, &[zeros(&[3, 3]), zeros(&[6])]).unwrap_err();
    assert!(rebound.location().is_some_and(|l| l.file.ends_with("building.rs")), "{rebound}");
}

#[test]
fn slices_beyond_a_symbolic_size_fail_at_run_time() {
    let graph = Graph::build("g", [f32s(["a"])], |x| x[0].tensor()?.slice(1..5)).unwrap();
    assert_eq!(run(&graph, &[zeros(&[5])]).unwrap()[0].shape(), [4]);
    assert!(run(&graph, &[zeros(&[4])]).unwrap_err().to_string().contains("out of range for axis 0"));
}

#[test]
fn allocations_that_cannot_be_made_are_errors() {
    let graph = Graph::build("g", [f32s([1])], |x| x[0].tensor()?.broadcast_to([1i64 << 50])).unwrap();
    assert_eq!(run(&graph, &[zeros(&[1])]).unwrap_err().kind(), ErrorKind::Memory);
}
