//! Optimized graphs keep their meaning: on chosen graphs, and on random ones with the numbers that break wrong rules.

use max_core::scalar::{CompareOp, LogicalOp, NumericOp, RealOp};
use max_core::{Bool, DType, DeviceRef, Dim, Element, ScalarOp, Shape, TensorType, Type, dispatch};
use max_graph::ops::{
    broadcast, cast, concat, constant, permute, rebind, reduce, reshape, select, slice, split,
};
use max_graph::{Body, HostTensor, OpKind, ValueId, interpret, verify};

use super::{OPTIONS, PASSES, Pass, Rewrites, after, graph, optimize, optimized};

/// A random number generator that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

fn tensor(random: &mut Random, dtype: DType, shape: &[usize], special: bool) -> HostTensor {
    const SPECIAL: [f64; 12] =
        [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, 3e38, -7.25];
    let draw = |_| match dtype {
        DType::Bool => random.below(2) as f64,
        _ if special && dtype.is_float() => random.pick(&SPECIAL),
        _ if special => random.pick(&[0.0, 1.0, 2.0, 3.0, -1.0, 2147483647.0]),
        _ => random.below(4001) as f64 / 1000.0 - 2.0,
    };
    let numbers: Vec<f64> = (0..shape.iter().product()).map(draw).collect();
    dispatch!(dtype, T => HostTensor::from_vec(shape, numbers.into_iter().map(T::from_double).collect::<Vec<T>>()).unwrap())
}

/// The largest difference of elements, relative to their size; NaN equals NaN.
fn difference(a: &HostTensor, b: &HostTensor) -> f64 {
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    dispatch!(a.dtype(), T => {
        let (a, b) = (a.elements::<T>().unwrap(), b.elements::<T>().unwrap());
        let pairs = a.iter().zip(b.iter()).map(|(a, b)| (a.to_f64(), b.to_f64()));
        pairs.map(|(a, b)| match () {
            () if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() => 0.0,
            () if a.is_finite() && b.is_finite() => (a - b).abs() / (1.0 + a.abs()) + f64::from(a == b) * 1e-30,
            () => f64::INFINITY,
        }).fold(0.0, f64::max)
    })
}

/// Runs a body as it is and after passes; both must fail alike, or agree within the tolerance.
fn same(original: &Body, passed: &Body, inputs: &[HostTensor], tolerance: f64, what: &str) {
    verify(passed).unwrap();
    let text = || max_graph::text::print(original, max_graph::text::Constants::Full);
    match (interpret(original, inputs, &()), interpret(passed, inputs, &())) {
        (Ok(expected), Ok(actual)) => {
            assert_eq!(expected.len(), actual.len());
            for (expected, actual) in expected.iter().zip(&actual) {
                let difference = difference(expected, actual);
                assert!(difference <= tolerance, "{difference} after {what} of {}", text());
            }
        }
        (Err(expected), Err(actual)) => assert_eq!(expected.kind(), actual.kind()),
        (expected, actual) => panic!("{expected:?} became {actual:?} after {what} of {}", text()),
    }
}

/// Checks each exact pass on its own and all passes together.
fn check(body: &Body, inputs: &[HostTensor], exact: bool) {
    for (name, pass) in PASSES {
        if let Pass::Exact(pass) = pass {
            same(body, &pass(body).unwrap(), inputs, 0.0, name);
        }
    }
    let all = optimized(body);
    same(body, &all, inputs, if exact { 0.0 } else { 2e-3 }, "all passes");
    assert!(body.types_of(&body.block.arguments).eq(all.types_of(&all.block.arguments)));
    let results =
        |body: &Body| body.types_of(body.block.results.as_ref().unwrap()).cloned().collect::<Vec<_>>();
    assert_eq!(results(body), results(&all));
}

/// A graph of ops picked at random among those that fit.
fn random_graph(random: &mut Random, ops: usize, exact: bool) -> Body {
    const CPU: DeviceRef = DeviceRef::CPU;
    let arguments = [
        (DType::Float32, Shape::from(("n", 3))),
        (DType::Float32, Shape::from([3])),
        (DType::Float16, Shape::from(("n", 1))),
        (DType::Int32, Shape::from(("n", 3))),
        (DType::Bool, Shape::from(("n", 3))),
    ];
    let types = arguments.map(|(dtype, shape)| Type::from(TensorType::new(dtype, shape, CPU)));
    let mut body = Body::new("random", types);
    let mut values = body.block.arguments.clone();
    let scalars: Vec<ScalarOp> = ScalarOp::all().collect();
    let exact_scalars: Vec<ScalarOp> =
        [NumericOp::Add, NumericOp::Sub, NumericOp::Mul, NumericOp::Max, NumericOp::Min]
            .map(ScalarOp::from)
            .into_iter()
            .chain(
                [NumericOp::Abs, NumericOp::Negate, NumericOp::Relu, NumericOp::Floor, NumericOp::Round]
                    .map(ScalarOp::from),
            )
            .chain([
                RealOp::Div.into(),
                CompareOp::Equal.into(),
                LogicalOp::LogicalNot.into(),
                LogicalOp::LogicalOr.into(),
            ])
            .collect();
    while body.block.ops.len() < ops {
        let x = random.pick(&values);
        let Some((dtype, shape)) = body.type_of(x).array().map(|(dtype, shape)| (dtype, shape.clone()))
        else {
            continue;
        };
        let rank = shape.rank();
        let axis = random.below(rank.max(1));
        let (kind, count): (OpKind, usize) = match random.below(16) {
            0..7 => {
                let op = random.pick(if exact { &exact_scalars } else { &scalars });
                (op.into(), op.arity())
            }
            7 | 8 => {
                let shape: &[usize] = random.pick(&[&[], &[], &[3], &[1, 3]]);
                (constant::Constant { value: tensor(random, dtype, shape, true), device: CPU }.into(), 0)
            }
            9 => {
                let all =
                    [DType::Float32, DType::Float16, DType::Int32, DType::Int8, DType::Bool, DType::Float64];
                (cast::Cast { dtype: random.pick(&all) }.into(), 1)
            }
            10 => {
                let mut dims: Vec<usize> = (0..rank).collect();
                dims.rotate_left(axis);
                (permute::Permute { dims }.into(), 1)
            }
            11 => {
                let shapes =
                    [Shape::from(("n", 3)), Shape::from([3, 1]), Shape::from((1, "n", 3)), Shape::from([3])];
                (reshape::Reshape { shape: random.pick(&shapes) }.into(), 1)
            }
            12 => (broadcast::BroadcastTo { shape: random.pick(&[("n", 3), ("n", 1)]).into() }.into(), 1),
            13 => match random.below(4) {
                0 => (
                    reduce::Reduce {
                        kind: random.pick(&[reduce::ReduceKind::Max, reduce::ReduceKind::Sum]),
                        axis,
                    }
                    .into(),
                    1,
                ),
                1 => (concat::Concat { axis }.into(), 2),
                2 => (split::Split { sizes: random.pick(&[[1, 2], [2, 1]]).into(), axis }.into(), 1),
                _ => (
                    rebind::Rebind {
                        shape: random.pick(&[("n", 3), ("m", 3)]).into(),
                        message: "".into(),
                        layout: None,
                    }
                    .into(),
                    1,
                ),
            },
            14 => {
                let step = random.pick(&[1, -1]);
                let parts = (0..rank).map(|at| match shape[at].as_static() {
                    Some(size) if step < 0 => (Dim::Static(size - 1), shape[at].clone(), -1),
                    Some(3) => (Dim::Static(1), Dim::Static(2), 1),
                    _ => (Dim::Static(0), shape[at].clone(), 1),
                });
                let (starts, (sizes, steps)): (Vec<_>, (Vec<_>, Vec<_>)) =
                    parts.map(|(a, b, c)| (a, (b, c))).unzip();
                (slice::Slice { starts: starts.into(), sizes: sizes.into(), steps }.into(), 1)
            }
            _ => (select::Where {}.into(), 3),
        };
        let alike: Vec<ValueId> =
            values.iter().copied().filter(|&v| body.type_of(v).array().unwrap().0 == dtype).collect();
        let mut operands = vec![x];
        operands.extend((1..count).map(|_| random.pick(&alike)));
        operands.truncate(count);
        if let OpKind::Where(_) = kind {
            operands[0] = random.pick(&values);
        }
        if count == 2 && random.below(2) == 0 {
            operands.swap(0, 1);
        }
        if let Ok(op) = body.push(kind, operands, None) {
            values.extend(&body.op(op).results);
        }
    }
    let results = (0..4).map(|_| random.pick(&values)).chain(values.last().copied()).collect();
    body.block.results = Some(results);
    body
}

#[test]
fn random_graphs_keep_their_meaning() {
    for seed in 0..2000 {
        let random = &mut Random(seed);
        // Special numbers reveal what is not exact; all ops are also tried on numbers that are robust to rounding.
        let exact = seed % 2 == 0;
        let body = random_graph(random, 24, exact);
        let inputs: Vec<HostTensor> = [
            (DType::Float32, [2, 3].as_slice()),
            (DType::Float32, &[3]),
            (DType::Float16, &[2, 1]),
            (DType::Int32, &[2, 3]),
            (DType::Bool, &[2, 3]),
        ]
        .into_iter()
        .map(|(dtype, shape)| tensor(random, dtype, shape, true))
        .collect();
        if exact {
            check(&body, &inputs, true);
        } else {
            for (name, pass) in PASSES.iter().filter(|(name, _)| *name != "recognize") {
                same(&body, &pass.run(&body, &mut Rewrites::new()).unwrap(), &inputs, 0.0, name);
            }
        }
    }
}

/// Graphs with patterns, with the dtypes and sizes of their inputs.
#[test]
fn patterns_keep_their_meaning() {
    let random = &mut Random(7);
    let f32s = |random: &mut Random, shape: &[usize]| tensor(random, DType::Float32, shape, false);
    let norms = graph(
        "%0: float32[n, 8], %1: float32[8], %2: float32[8]",
        "%4 = reduce(%0) {kind = \"mean\", axis = 1} : float32[n, 1]
         %5 = sub(%0, %4) : float32[n, 8]
         %6 = f32 2.0
         %7 = pow(%5, %6) : float32[n, 8]
         %8 = reduce(%7) {kind = \"mean\", axis = 1} : float32[n, 1]
         %9 = f32 1e-05
         %10 = add(%8, %9) : float32[n, 1]
         %11 = sqrt(%10) : float32[n, 1]
         %12 = div(%5, %11) : float32[n, 8]
         %13 = mul(%1, %12) : float32[n, 8]
         %14 = add(%13, %2) : float32[n, 8]
         %20 = mul(%14, %14) : float32[n, 8]
         %21 = reduce(%20) {kind = \"mean\", axis = 1} : float32[n, 1]
         %22 = add(%21, %9) : float32[n, 1]
         %23 = rsqrt(%22) : float32[n, 1]
         %24 = mul(%14, %23) : float32[n, 8]
         %25 = mul(%24, %1) : float32[n, 8]
         %30 = reduce(%25) {kind = \"max\", axis = 1} : float32[n, 1]
         %31 = sub(%25, %30) : float32[n, 8]
         %32 = exp(%31) : float32[n, 8]
         %33 = reduce(%32) {kind = \"sum\", axis = 1} : float32[n, 1]
         %34 = div(%32, %33) : float32[n, 8]
         return %14, %25, %34",
    );
    let inputs = [f32s(random, &[3, 8]), f32s(random, &[8]), f32s(random, &[8])];
    check(&norms, &inputs, false);
    assert!(after("recognize", &norms).contains("softmax"));

    let attention = graph(
        "%0: float32[b, s, 2, 4], %1: float32[b, s, 2, 4], %2: float32[b, s, 2, 4], %3: bool[s, s]",
        "%10 = permute(%0) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
         %11 = permute(%1) {dims = [0, 2, 3, 1]} : float32[b, 2, 4, s]
         %12 = permute(%2) {dims = [0, 2, 1, 3]} : float32[b, 2, s, 4]
         %14 = matmul(%10, %11) : float32[b, 2, s, s]
         %15 = f32 2.0
         %16 = div(%14, %15) : float32[b, 2, s, s]
         %17 = f32 -inf
         %18 = where(%3, %17, %16) : float32[b, 2, s, s]
         %19 = softmax(%18) {axis = 3, log = false} : float32[b, 2, s, s]
         %20 = matmul(%19, %12) : float32[b, 2, s, 4]
         return %20",
    );
    let heads = [(); 3].map(|()| f32s(random, &[2, 5, 2, 4]));
    let mask =
        HostTensor::from_vec([5, 5], (0..25).map(|i| Bool::from(i % 3 == 1)).collect::<Vec<_>>()).unwrap();
    check(&attention, &[heads.to_vec(), vec![mask]].concat(), false);
    assert!(super::after_all(&attention).contains("attention"));

    // Heads that share keys, repeated in two ways, with one mask per head.
    let shared = graph(
        "%0: float32[b, 4, q, 8], %1: float32[b, 2, k, 8], %2: float32[b, k, 2, 6], %3: float32[b, 4, q, k]",
        "%10 = reshape(%1) {shape = [b, 2, 1, k, 8]} : float32[b, 2, 1, k, 8]
         %11 = broadcast_to(%10) {shape = [b, 2, 2, k, 8]} : float32[b, 2, 2, k, 8]
         %12 = reshape(%11) {shape = [b, 4, k, 8]} : float32[b, 4, k, 8]
         %13 = permute(%12) {dims = [0, 1, 3, 2]} : float32[b, 4, 8, k]
         %14 = matmul(%0, %13) : float32[b, 4, q, k]
         %15 = add(%14, %3) : float32[b, 4, q, k]
         %16 = softmax(%15) {axis = 3, log = false} : float32[b, 4, q, k]
         %20 = reshape(%2) {shape = [b, k, 2, 1, 6]} : float32[b, k, 2, 1, 6]
         %21 = broadcast_to(%20) {shape = [b, k, 2, 2, 6]} : float32[b, k, 2, 2, 6]
         %22 = reshape(%21) {shape = [b, k, 4, 6]} : float32[b, k, 4, 6]
         %23 = permute(%22) {dims = [0, 2, 1, 3]} : float32[b, 4, k, 6]
         %24 = matmul(%16, %23) : float32[b, 4, q, 6]
         return %24",
    );
    let shapes: [&[usize]; 4] = [&[2, 4, 3, 8], &[2, 2, 5, 8], &[2, 5, 2, 6], &[2, 4, 3, 5]];
    check(&shared, &shapes.map(|shape| f32s(random, shape)), false);
    let text = super::after_all(&shared);
    assert!(text.contains("attention") && !text.contains("broadcast_to"), "{text}");

    let groups = graph(
        "%0: float32[b, 6, q, 4], %1: float32[b, 2, s, 4], %2: float32[b, 2, s, 3], %3: float32[6, 1, s]",
        "%10 = reshape(%1) {shape = [b, 2, 1, s, 4]} : float32[b, 2, 1, s, 4]
         %11 = broadcast_to(%10) {shape = [b, 2, 3, s, 4]} : float32[b, 2, 3, s, 4]
         %12 = reshape(%11) {shape = [b, 6, s, 4]} : float32[b, 6, s, 4]
         %13 = reshape(%2) {shape = [b, 2, 1, s, 3]} : float32[b, 2, 1, s, 3]
         %14 = broadcast_to(%13) {shape = [b, 2, 3, s, 3]} : float32[b, 2, 3, s, 3]
         %15 = reshape(%14) {shape = [b, 6, s, 3]} : float32[b, 6, s, 3]
         %16 = permute(%12) {dims = [0, 1, 3, 2]} : float32[b, 6, 4, s]
         %17 = matmul(%0, %16) : float32[b, 6, q, s]
         %18 = add(%17, %3) : float32[b, 6, q, s]
         %19 = softmax(%18) {axis = 3, log = false} : float32[b, 6, q, s]
         %20 = matmul(%19, %15) : float32[b, 6, q, 3]
         return %20",
    );
    let inputs =
        [&[2, 6, 3, 4][..], &[2, 2, 5, 4], &[2, 2, 5, 3], &[6, 1, 5]].map(|shape| f32s(random, shape));
    check(&groups, &inputs, false);
    assert!(super::after_all(&groups).contains(": float32[b, 2, 3, q, 3]"));

    let products = graph(
        "%0: float32[b, n, 2]",
        "%2 = constant() {value = dense(float32[2, 1], [1.0, 2.0]), device = \"cpu:0\"} : float32[2, 1]
         %3 = constant() {value = dense(float32[2, 2], [3.0, 4.0, 5.0, 6.0]), device = \"cpu:0\"} : float32[2, 2]
         %4 = constant() {value = dense(float32[1, 1, 2], [0.5, -0.0]), device = \"cpu:0\"} : float32[1, 1, 2]
         %5 = matmul(%0, %2) : float32[b, n, 1]
         %7 = matmul(%0, %3) : float32[b, n, 2]
         %8 = add(%7, %4) : float32[b, n, 2]
         %9 = softmax(%5) {axis = 1, log = false} : float32[b, n, 1]
         %10 = softmax(%8) {axis = 1, log = false} : float32[b, n, 2]
         return %10, %9",
    );
    check(&products, &[f32s(random, &[2, 3, 2])], true);
    assert_eq!(super::after_all(&products).matches("matmul").count(), 1);
}

/// The ops that a run can observe, in order.
fn observable(body: &Body) -> Vec<String> {
    let ops = body.ops().filter(|op| body.properties(op).must_run());
    ops.map(|op| format!("{} {:?}", op.kind.name(), op.kind.attrs())).collect()
}

#[test]
fn prints_and_checks_survive_in_order() {
    let body = graph(
        "%0: float32[n, 4], %1: int64[], %2: float32[m]",
        "%3 = f32 1.0
         print() {label = \"first\"}
         %4 = mul(%0, %3) : float32[n, 4]
         print(%4) {label = \"second\"}
         %5 = rebind(%4) {shape = [7, 4], message = \"seven\", layout = \"\"} : float32[7, 4]
         print(%3) {label = \"third\"}
         %6 = slice(%2) {starts = [k], sizes = [1], steps = [1]} : float32[1]
         %7 = dynamic_slice(%2, %1) {axis = 0, step = 1, start = true, stop = false, out_dim = `k`} : float32[k]
         print(%3) {label = \"third\"}
         %8 = gather(%2, %1) {axis = 0} : float32[]
         return %3",
    );
    let optimized = optimized(&body);
    assert_eq!(observable(&body).len(), 8);
    assert_eq!(observable(&body), observable(&optimized));
}

#[test]
fn unused_checks_still_fail() {
    let body = graph(
        "%0: float32[n, 4]",
        "%1 = rebind(%0) {shape = [7, 4], message = \"seven\", layout = \"\"} : float32[7, 4]
         %2 = exp(%1) : float32[7, 4]
         return %0",
    );
    let optimized = optimized(&body);
    let run = |rows: usize| {
        interpret(&optimized, &[tensor(&mut Random(1), DType::Float32, &[rows, 4], false)], &())
    };
    assert!(run(7).is_ok());
    assert!(run(6).unwrap_err().message().contains("seven"));
}

#[test]
fn each_pass_is_shown_and_keeps_locations() {
    let ty = TensorType::new(DType::Float32, [2], DeviceRef::CPU);
    let mut body = Body::new("g", [Type::from(ty)]);
    let x = body.block.arguments[0];
    let place = max_core::Location::caller();
    let op = body.push(ScalarOp::from(NumericOp::Relu).into(), vec![x], Some(place.clone())).unwrap();
    body.block.results = Some(body.op(op).results.clone());
    let mut seen = Vec::new();
    let (optimized, _) = optimize(body, OPTIONS, &mut |name, _| seen.push(name.to_string())).unwrap();
    assert!(seen.iter().eq(PASSES.iter().map(|(name, _)| name)));
    assert_eq!(optimized.ops().next().unwrap().location, Some(place));
}

/// Quadratic time in the number of ops would take minutes here.
#[test]
fn long_graphs_are_no_trouble() {
    let ty = Type::from(TensorType::new(DType::Float32, ("n", 3), DeviceRef::CPU));
    let mut body = Body::new("long", [ty]);
    let x = body.block.arguments[0];
    let mut last = x;
    for i in 0..50_000 {
        let (op, operands) = match i % 4 {
            0 => (NumericOp::Add, vec![last, x]),
            1 => (NumericOp::Mul, vec![last, last]),
            2 => (NumericOp::Negate, vec![last]),
            _ => (NumericOp::Max, vec![x, last]),
        };
        let op = body.push(ScalarOp::from(op).into(), operands, None).unwrap();
        last = body.op(op).results[0];
    }
    body.block.results = Some(vec![last]);
    let start = std::time::Instant::now();
    assert_eq!(optimized(&body).block.ops.len(), 50_000);
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
