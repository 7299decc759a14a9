//! What a user of the graph API meets: shapes that are inferred, errors that explain, locations, scopes.

use max_core::{DType, DeviceRef, Dim, Error, ErrorKind, Result, Shape, TensorType};
use max_graph::ops::slice::Index;
use max_graph::{Graph, HostTensor, Operands, TensorValue, Value, Weight, interpret, ops};

const CPU: DeviceRef = DeviceRef::CPU;

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::Float32, shape, CPU)
}

fn t(dtype: DType, shape: impl Into<Shape>) -> TensorType {
    TensorType::new(dtype, shape, CPU)
}

/// The types a function of inputs gives, or its error.
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
fn convolutions_have_symbolic_sizes() {
    let types = [f32s((1, "h", "w", 4)), f32s((3, 3, 4, 8))];
    let options = ops::ConvOptions { padding: [1; 4], stride: [2, 1], ..Default::default() };
    let y = build(&types, |x| ops::conv2d(&x[0], &x[1], None, options)).unwrap();
    assert_eq!(y, ["float32[1, (h + 1) // 2, w, 8]"]);
}

#[test]
fn errors_name_shapes_ops_and_places() {
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
        (
            error(&[f32s((2, 3))], |x| {
                x[0].broadcast_to((1i64 << 40, 2, 3))
                    .and_then(|y| ops::stack(vec![y; 1 << 10], 0))
                    .and_then(|y| y.broadcast_to((1i64 << 40, 1024, 1i64 << 40, 2, 3)))
            }),
            ErrorKind::Value,
            "overflow",
        ),
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
        (error(&[f32s([3])], |_| ops::constant(1.0, None, None)), ErrorKind::Value, "Literal constants must"),
    ];
    for (error, kind, phrase) in cases {
        assert_eq!((error.kind(), error.to_string().contains(phrase)), (kind, true), "{phrase}: {error}");
    }
}

#[test]
fn numbers_and_sizes_go_where_tensors_are() {
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
fn scopes_end_in_any_order() {
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
    let lonely = weight.value().unwrap_err().to_string();
    assert!(lonely.contains("no parent graph") && lonely.contains("No graph found"), "{lonely}");
    assert_eq!(format!("{weight:?}"), "Weight(w, DType.float32, [Dim(3)], cpu:0)");
}

fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    interpret(&graph.body(), inputs, &())
}

fn zeros(shape: &[usize]) -> HostTensor {
    HostTensor::from_vec(shape, vec![0f32; shape.iter().product()]).unwrap()
}

#[test]
fn sizes_are_checked_when_a_graph_runs() {
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
fn slices_beyond_a_symbolic_size_fail_when_they_run() {
    let graph = Graph::build("g", [f32s(["a"])], |x| x[0].tensor()?.slice(1..5)).unwrap();
    assert_eq!(run(&graph, &[zeros(&[5])]).unwrap()[0].shape(), [4]);
    assert!(run(&graph, &[zeros(&[4])]).unwrap_err().to_string().contains("out of range for axis 0"));
}

#[test]
fn allocations_that_cannot_be_made_are_errors() {
    let graph = Graph::build("g", [f32s([1])], |x| x[0].tensor()?.broadcast_to([1i64 << 50])).unwrap();
    assert_eq!(run(&graph, &[zeros(&[1])]).unwrap_err().kind(), ErrorKind::Memory);
}
