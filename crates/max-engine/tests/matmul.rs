//! Matmuls of every small shape give the interpreter's results, and a row's bits depend neither on other rows nor on
//! the number of threads.
//!
//! By default some of the shapes are run. `cargo test --release -p max-engine --test matmul -- --ignored` runs all of
//! them in every dtype, which takes minutes.

use max_core::{DType, DeviceRef, Element, Result, TensorType, bf16, dispatch, f16};
use max_driver::Buffer;
use max_engine::{InferenceSession, Model, WeightsRegistry};
use max_graph::{Graph, HostTensor, Value, Weight, interpret, ops};

/// The sizes of rows, depth and columns.
const SIZES: std::ops::RangeInclusive<usize> = 0..=40;

const DTYPES: [DType; 12] = [
    DType::Float32,
    DType::Float64,
    DType::BFloat16,
    DType::Float16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
];

fn session(threads: usize) -> InferenceSession {
    InferenceSession::new([]).with_num_threads(threads).unwrap()
}

/// `x @ y` for any sizes, where operands may be transposed.
fn matmul_graph(dtype: DType, [left, right]: [bool; 2]) -> Graph {
    let ty = |names: [&str; 2], turned: bool| {
        let [a, b] = names;
        TensorType::new(dtype, if turned { [b, a] } else { [a, b] }, DeviceRef::CPU)
    };
    let types = [ty(["m", "k"], left), ty(["k", "n"], right)];
    let graph = Graph::build("matmul", types, |x| {
        let turn = |x: &Value, turned| if turned { ops::transpose(x, 0, 1) } else { x.tensor() };
        ops::matmul(turn(&x[0], left)?, turn(&x[1], right)?)
    });
    graph.unwrap()
}

/// Small pseudo-random numbers, the same for the same seed.
fn tensor(dtype: DType, shape: [usize; 2], seed: usize) -> HostTensor {
    let draw = |i: usize| ((i + seed) * 7919 % 251) as f64 / 16.0 - 8.0;
    let count = shape[0] * shape[1];
    dispatch!(dtype, T => HostTensor::from_vec(shape, (0..count).map(|i| T::from_double(draw(i))).collect::<Vec<T>>()))
        .unwrap()
}

fn execute(model: &Model, inputs: &[HostTensor]) -> Result<HostTensor> {
    let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let outputs = model.execute(&inputs.iter().map(buffer).collect::<Result<Vec<_>>>()?)?;
    HostTensor::new(outputs[0].dtype(), outputs[0].shape(), outputs[0].host_bytes()?)
}

/// Whether results are as close as sums of that many terms of up to 64 can be; integers must be equal.
fn agree(result: &HostTensor, expected: &HostTensor, depth: usize) -> bool {
    let (sum, result_unit) = (64.0 * depth as f64, f64::EPSILON);
    let [sums, results] = match expected.dtype() {
        DType::Float64 => [sum * 1e-15, result_unit],
        DType::Float32 => [sum * 1e-6, result_unit],
        DType::Float16 => [sum * 1e-6, 1e-3],
        DType::BFloat16 => [sum * 1e-6, 8e-3],
        _ => [0.0, 0.0],
    };
    let near = |x: f64, y: f64| x == y || (x - y).abs() <= sums + results * y.abs();
    result.shape() == expected.shape()
        && dispatch!(expected.dtype(), T => {
            let (result, expected) = (result.elements::<T>().unwrap(), expected.elements::<T>().unwrap());
            result.iter().zip(expected.iter()).all(|(x, y)| x == y || near(x.to_f64(), y.to_f64()))
        })
}

/// Runs all the given shapes, with either operand transposed or not.
fn sweep(dtype: DType, wanted: impl Fn([usize; 3]) -> bool) {
    for turned in [[false, false], [true, false], [false, true], [true, true]] {
        let graph = matmul_graph(dtype, turned);
        let model = session(2).load(&graph).unwrap();
        let shapes = SIZES.flat_map(|m| SIZES.flat_map(move |k| SIZES.map(move |n| [m, k, n])));
        for shape in shapes.filter(|&shape| wanted(shape)) {
            let [m, k, n] = shape;
            let [left, right] = [[m, k], [k, n]];
            let place = |shape: [usize; 2], turned: bool| if turned { [shape[1], shape[0]] } else { shape };
            let inputs =
                [tensor(dtype, place(left, turned[0]), 0), tensor(dtype, place(right, turned[1]), 100)];
            let expected = interpret(&graph.body(), &inputs, &()).unwrap();
            let result = execute(&model, &inputs).unwrap();
            assert!(
                agree(&result, &expected[0], k),
                "{dtype} {shape:?} {turned:?}: {result:?}, {expected:?}"
            );
        }
    }
}

#[test]
fn a_part_of_all_small_shapes() {
    for (number, dtype) in DTYPES.into_iter().enumerate() {
        sweep(dtype, |[m, k, n]| (m * 1681 + k * 41 + n) % 151 == number);
    }
}

#[test]
#[ignore = "takes minutes"]
fn all_small_shapes() {
    std::thread::scope(|scope| {
        for dtypes in [&DTYPES[..6], &DTYPES[6..]] {
            scope.spawn(|| dtypes.iter().for_each(|&dtype| sweep(dtype, |_| true)));
        }
    });
}

/// A row of a matmul has the same bits alone and among other rows, on any number of threads, and whether or not the
/// right operand is a constant.
#[test]
fn rows_do_not_know_each_other() {
    for (dtype, (depth, columns)) in
        DTYPES.into_iter().flat_map(|dtype| [(dtype, (600, 140)), (dtype, (1300, 100))])
    {
        for turned in [false, true] {
            let weights = tensor(dtype, if turned { [columns, depth] } else { [depth, columns] }, 7);
            let constant =
                Graph::build("constant", [TensorType::new(dtype, ("m", depth), DeviceRef::CPU)], |x| {
                    let weights = ops::constant(weights.clone(), None, DeviceRef::CPU)?;
                    ops::matmul(&x[0], if turned { ops::transpose(weights, 0, 1)? } else { weights })
                });
            let graphs = [matmul_graph(dtype, [false, turned]), constant.unwrap()];
            let x = tensor(dtype, [200, depth], 0);
            let row = depth * dtype.size_in_bytes();
            let rows = |from: usize, count: usize| {
                HostTensor::new(dtype, [count, depth], x.bytes().slice(from * row, count * row).unwrap())
                    .unwrap()
            };
            let model = session(1).load(&graphs[0]).unwrap();
            let all = execute(&model, &[x.clone(), weights.clone()]).unwrap();
            let line = columns * dtype.size_in_bytes();
            for threads in [1, 2, 3] {
                for (graph, inputs) in graphs.iter().zip([2, 1]) {
                    let model = session(threads).load(graph).unwrap();
                    for (from, count) in [(0, 200), (17, 1), (3, 2), (5, 16), (0, 17), (100, 43), (11, 150)] {
                        let operands = [rows(from, count), weights.clone()];
                        let result = execute(&model, &operands[..inputs]).unwrap();
                        let expected = &all.bytes()[from * line..(from + count) * line];
                        assert!(**result.bytes() == *expected, "{dtype} {turned} {threads} {from} {count}");
                    }
                }
            }
        }
    }
}

/// The projections of a layer with weights are one kernel, with the bits of separate ones, and each weight is packed once.
#[test]
fn products_with_weights_are_one_kernel_without_copies() {
    const DEPTH: usize = 96;
    const WIDTHS: [usize; 3] = [64, 32, 32];
    for (dtype, turned) in [DType::Float32, DType::BFloat16].into_iter().flat_map(|d| [(d, false), (d, true)])
    {
        let mut registry = WeightsRegistry::new();
        for (at, width) in WIDTHS.into_iter().enumerate() {
            let shape = if turned { [width, DEPTH] } else { [DEPTH, width] };
            for (name, value) in
                [("weight", tensor(dtype, shape, at)), ("bias", tensor(dtype, [1, width], at + 9))]
            {
                let buffer = Buffer::from_host_bytes(value.bytes().clone(), dtype, value.shape()).unwrap();
                registry.insert(format!("{at}.{name}"), buffer);
            }
        }
        let load = |numbers: &[usize]| {
            let graph = Graph::new("g", [TensorType::new(dtype, ("m", DEPTH), DeviceRef::CPU)]).unwrap();
            let scope = graph.enter();
            let weight =
                |name: String, [a, b]: [usize; 2]| Weight::new(name, dtype, [a, b], DeviceRef::CPU)?.value();
            let product = |&at: &usize| {
                let shape = if turned { [WIDTHS[at], DEPTH] } else { [DEPTH, WIDTHS[at]] };
                let right = weight(format!("{at}.weight"), shape)?;
                let right = if turned { ops::transpose(right, 0, 1)? } else { right };
                let product = ops::matmul(graph.inputs()[0].tensor()?, right)?;
                ops::add(product, weight(format!("{at}.bias"), [1, WIDTHS[at]])?)
            };
            graph.output(numbers.iter().map(product).collect::<Result<Vec<_>>>().unwrap()).unwrap();
            drop(scope);
            session(2).load_with(&graph, &registry).unwrap()
        };
        let (together, apart) = (load(&[0, 1, 2]), [0, 1, 2].map(|at| load(&[at])));
        assert_eq!(together.kernel_summaries().len(), 1, "{:?}", together.kernel_summaries());
        for rows in [1, 5, 64] {
            let x = tensor(dtype, [rows, DEPTH], 3);
            let x = Buffer::from_host_bytes(x.bytes().clone(), dtype, x.shape()).unwrap();
            let results = together.execute(std::slice::from_ref(&x)).unwrap();
            for (result, alone) in results.iter().zip(&apart) {
                let expected = alone.execute(std::slice::from_ref(&x)).unwrap();
                let same = *result.host_bytes().unwrap() == *expected[0].host_bytes().unwrap();
                assert!(same && result.shape() == expected[0].shape(), "{dtype} {turned} {rows}");
            }
            let packed = |model: &Model| model.memory_report(std::slice::from_ref(&x)).unwrap().packed_bytes;
            assert_eq!(packed(&together), apart.iter().map(packed).sum::<usize>());
            if rows == 64 {
                let count = DEPTH * WIDTHS.iter().sum::<usize>();
                assert_eq!(
                    packed(&together),
                    count * dtype.size_in_bytes(),
                    "each weight once, without padding"
                );
            }
        }
    }
}

/// Matmuls in bf16 and f16 accumulate in a wider type: results are as accurate as their dtype allows.
#[test]
fn narrow_floats_are_summed_wide() {
    fn check<T: Element>(depth: usize, unit: f64) {
        let model = session(2).load(&matmul_graph(T::DTYPE, [false, true])).unwrap();
        for rows in [1, 3, 40] {
            let (x, y) = (tensor(T::DTYPE, [rows, depth], 1), tensor(T::DTYPE, [40, depth], 5));
            let result = execute(&model, &[x.clone(), y.clone()]).unwrap();
            let (x, y) = (x.elements::<T>().unwrap(), y.elements::<T>().unwrap());
            for (at, got) in result.elements::<T>().unwrap().iter().enumerate() {
                let terms =
                    (0..depth).map(|p| x[at / 40 * depth + p].to_f64() * y[at % 40 * depth + p].to_f64());
                let exact: f64 = terms.clone().sum();
                let magnitude: f64 = terms.map(f64::abs).sum();
                let error = (got.to_f64() - exact).abs();
                assert!(
                    error <= unit * exact.abs() + 1e-6 * magnitude,
                    "{exact} {got:?}",
                    got = got.to_f64()
                );
            }
        }
    }
    check::<bf16>(4096, 4e-3);
    check::<f16>(1024, 5e-4);
}

/// A bf16 weight that is cast to f32 for a matmul takes no step and no memory in f32, and gives the bits of one in f32.
#[test]
fn weights_are_widened_by_the_matmul() {
    const SHAPE: [usize; 2] = [48, 96];
    let narrow = tensor(DType::BFloat16, SHAPE, 4);
    let wide = narrow.elements::<bf16>().unwrap().iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    let wide = HostTensor::from_vec(SHAPE, wide).unwrap();
    let load = |weight: &HostTensor| {
        let buffer = Buffer::from_host_bytes(weight.bytes().clone(), weight.dtype(), weight.shape()).unwrap();
        let registry = WeightsRegistry::from([("w".into(), buffer)]);
        let input = TensorType::new(DType::Float32, ("n", SHAPE[1] as i64), DeviceRef::CPU);
        let graph = Graph::build("widened", [input], |x| {
            let weight = Weight::new("w", weight.dtype(), SHAPE.to_vec(), DeviceRef::CPU)?.value()?;
            ops::matmul(&x[0], ops::transpose(ops::cast(weight, DType::Float32), 0, 1))
        });
        session(2).load_with(&graph.unwrap(), &registry).unwrap()
    };
    let (narrow, wide) = (load(&narrow), load(&wide));
    assert_eq!(narrow.kernel_summaries().len(), 1, "{:?}", narrow.kernel_summaries());
    for rows in [1, 7, 64] {
        let x = tensor(DType::Float32, [rows, SHAPE[1]], 3);
        let x = [Buffer::from_host_bytes(x.bytes().clone(), x.dtype(), x.shape()).unwrap()];
        let [one, other] = [&narrow, &wide].map(|model| model.execute(&x).unwrap().remove(0));
        assert_eq!(*one.host_bytes().unwrap(), *other.host_bytes().unwrap(), "{rows} rows");
    }
    let report = |model: &Model| {
        let x =
            [Buffer::from(vec![0f32; 64 * SHAPE[1]]).view(DType::Float32, Some(&[64, SHAPE[1]])).unwrap()];
        model.memory_report(&x).unwrap().packed_bytes
    };
    assert_eq!(2 * report(&narrow), report(&wide));
}
