//! Ranges and random numbers in compiled graphs: they are the same however they are computed.

use max_core::{DType, DeviceRef, Dim, Result, Shape, TensorType};
use max_driver::Buffer;
use max_engine::InferenceSession;
use max_graph::{Graph, HostTensor, Operand, TensorValue, interpret, ops};

const CPU: DeviceRef = DeviceRef::CPU;

fn execute(graph: &Graph, inputs: &[HostTensor], threads: usize) -> Result<Vec<HostTensor>> {
    let model = InferenceSession::new([]).with_num_threads(threads)?.load(graph)?;
    let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
    let outputs = model.execute(&inputs.iter().map(buffer).collect::<Result<Vec<_>>>()?)?;
    outputs.iter().map(|b| HostTensor::new(b.dtype(), b.shape(), b.host_bytes()?)).collect()
}

fn seed(number: i64) -> HostTensor {
    HostTensor::from_vec([], vec![number]).unwrap()
}

/// Builds a graph of a seed and a symbolic vector, and runs it.
fn run(
    n: usize,
    threads: usize,
    forward: impl FnOnce(&TensorValue) -> Result<Vec<TensorValue>>,
) -> Vec<HostTensor> {
    let types = [TensorType::new(DType::Int64, (), CPU), TensorType::new(DType::Float32, ["n"], CPU)];
    let graph = Graph::build("g", types, |x| forward(&x[0].tensor()?)).unwrap();
    execute(&graph, &[seed(11), HostTensor::from(vec![0f32; n])], threads).unwrap()
}

/// A draw by itself: static, on one thread.
fn alone(draw: fn(Shape, &TensorValue) -> Result<TensorValue>, sizes: [i64; 2]) -> HostTensor {
    run(1, 1, |seed| Ok(vec![draw(sizes.into(), seed)?])).remove(0)
}

fn transposed(x: &HostTensor) -> HostTensor {
    let [rows, cols] = [x.shape()[0], x.shape()[1]];
    let from = x.elements::<f32>().unwrap();
    let to = (0..rows * cols).map(|at| from[at % rows * cols + at / rows]).collect();
    HostTensor::from_vec([cols, rows], to).unwrap()
}

#[test]
fn random_numbers_depend_on_nothing_but_seed_and_place() {
    let draws: [fn(Shape, &TensorValue) -> Result<TensorValue>; 2] = [
        |shape, seed| {
            ops::random_uniform(TensorType::new(DType::Float32, shape, CPU), -1.0, 3.0, Operand::from(seed))
        },
        |shape, seed| {
            ops::random_gaussian(TensorType::new(DType::Float32, shape, CPU), 0.5, 2.0, Operand::from(seed))
        },
    ];
    for draw in draws {
        for sizes in [[3, 5], [70, 130], [300, 400]] {
            let [rows, cols] = sizes;
            let expected = alone(draw, sizes);
            let symbolic = || Shape::from(vec![Dim::from("n"), Dim::Static(cols)]);
            for threads in [1, 3] {
                // Stored next to a transposed reader, reduced, and fused into what follows.
                let results = run(rows as usize, threads, |seed| {
                    let x = draw(symbolic(), seed)?;
                    let turned = ops::mul(ops::transpose(&x, 0, 1)?, 1.0)?;
                    let part = ops::slice_tensor(&x, [1..rows, 1..cols])?;
                    Ok(vec![x.clone(), turned, part, ops::reduce_max(&x, 0)?, ops::add(&x, &x)?])
                });
                assert_eq!(results[0], expected);
                assert_eq!(results[1], transposed(&expected));
                let elements = expected.elements::<f32>().unwrap();
                let row = |row: usize| &elements[row * cols as usize + 1..(row + 1) * cols as usize];
                let part: Vec<f32> = (1..rows as usize).flat_map(row).copied().collect();
                assert_eq!(*results[2].elements::<f32>().unwrap(), part);
                // Never stored: only a transposed copy, only a maximum, only its double.
                let turned = run(rows as usize, threads, |seed| {
                    Ok(vec![ops::transpose(draw(symbolic(), seed)?, 0, 1)?])
                });
                assert_eq!(turned[0], transposed(&expected));
                let most = run(rows as usize, threads, |seed| {
                    Ok(vec![ops::reduce_max(draw(symbolic(), seed)?, 0)?])
                });
                assert_eq!(most[0], results[3]);
                let twice = run(rows as usize, threads, |seed| {
                    let x = draw(symbolic(), seed)?;
                    Ok(vec![ops::add(&x, &x)?])
                });
                assert_eq!(twice[0], results[4]);
            }
        }
    }
}

#[test]
fn a_constant_seed_draws_the_same_bits_as_an_input() {
    let like = || TensorType::new(DType::Float32, [7, 9], CPU);
    let draw = |seed: Operand| ops::random_gaussian(like(), 0.0, 1.0, seed);
    let results = run(1, 1, |seed| Ok(vec![draw(seed.into())?, draw(11i64.into())?, draw(12i64.into())?]));
    assert_eq!(results[0], results[1]);
    assert_ne!(results[0], results[2]);
}

#[test]
fn narrow_random_numbers_are_the_reference_s() {
    for dtype in [DType::BFloat16, DType::Float16, DType::Float8E4M3FN, DType::Float64] {
        let types = [TensorType::new(DType::Int64, (), CPU)];
        let graph = Graph::build("g", types, |x| {
            ops::random_uniform(TensorType::new(dtype, [50, 70], CPU), 1.0, 1.5, Operand::from(&x[0]))
        });
        let graph = graph.unwrap();
        let expected = interpret(&graph.body(), &[seed(5)], &()).unwrap();
        assert_eq!(execute(&graph, &[seed(5)], 2).unwrap(), expected, "{dtype}");
    }
}

/// Ops that need memory get it; sizes that depend on data may come from ranges too.
#[test]
fn positions_go_wherever_data_goes() {
    let types = [TensorType::new(DType::Int64, ["n"], CPU), TensorType::new(DType::Float32, (6000, 4), CPU)];
    let graph = Graph::build("g", types, |x| {
        let [v, table] = [x[0].tensor()?, x[1].tensor()?];
        let n = Dim::from("n");
        let range = ops::range(0i64, n.clone(), 1i64, None, DType::Int64, CPU)?;
        let square = ops::reshape(&ops::range(0i64, n.mul(&n)?, 1i64, None, DType::Int64, CPU)?, (&n, &n))?;
        let last = range.slice(-1i64)?;
        let rows = ops::range(0i64, &last, 2i64, Dim::from("m"), DType::Int64, CPU)?;
        let repeated = ops::broadcast_to(ops::unsqueeze(&range, 0)?, (3, &n))?;
        Ok::<_, max_core::Error>(vec![
            range.clone(),
            ops::matmul(&square, &v)?,
            ops::gather(&table, &rows, 0)?,
            ops::concat([&range, &v, &range], 0)?,
            ops::transpose(&square, 0, 1)?,
            repeated,
            ops::sum(&square, 0)?,
            ops::add(ops::matmul(ops::unsqueeze(&v, 1)?, ops::unsqueeze(&v, 0)?)?, &square)?,
        ])
    });
    let graph = graph.unwrap();
    let table = HostTensor::from_vec([6000, 4], (0..24_000).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    for n in [1, 2, 5, 150] {
        let inputs = [HostTensor::from((0..n).map(|i| i * 3 - 4).collect::<Vec<i64>>()), table.clone()];
        let expected = interpret(&graph.body(), &inputs, &()).unwrap();
        assert_eq!(execute(&graph, &inputs, 2).unwrap(), expected, "{n}");
    }
}

#[test]
fn sizes_without_bound_are_errors() {
    for size in [1i64 << 45, i64::MAX] {
        let graph = Graph::build("g", Vec::<TensorType>::new(), |_| {
            ops::range(0i64, size, 1i64, None, DType::Int64, CPU)
        });
        assert!(graph.and_then(|graph| execute(&graph, &[], 1)).is_err());
    }
    let types = [TensorType::new(DType::Float32, ["n"], CPU)];
    let graph = Graph::build("g", types, |_| ops::range(4i64, Dim::from("n"), 1i64, None, DType::Int64, CPU))
        .unwrap();
    let input = |n| [HostTensor::from(vec![0f32; n])];
    assert_eq!(execute(&graph, &input(6), 1).unwrap()[0], HostTensor::from([4i64, 5]));
    assert!(execute(&graph, &input(3), 1).is_err());
}

/// The axes of a convolution are not in the order in which it is computed.
#[test]
fn positions_are_right_behind_a_convolution() {
    let types = [
        TensorType::new(DType::Float32, (1, 2, "h", 5), CPU),
        TensorType::new(DType::Float32, (3, 2, 1, 1), CPU),
    ];
    let graph = Graph::build("g", types, |x| {
        let options = ops::ConvOptions {
            input_layout: max_core::ConvInputLayout::NCHW,
            filter_layout: max_core::FilterLayout::FCRS,
            ..Default::default()
        };
        let y = ops::conv2d(&x[0], &x[1], None, options)?;
        let positions = ops::range(0i64, y.shape().num_elements()?, 1i64, None, DType::Float32, CPU)?;
        ops::add(&y, ops::reshape(positions, y.shape()))
    });
    let graph = graph.unwrap();
    let filter = HostTensor::from_vec([3, 2, 1, 1], (0..6).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let image =
        HostTensor::from_vec([1, 2, 7, 5], (0..70).map(|i| (i % 9) as f32).collect::<Vec<_>>()).unwrap();
    let inputs = [image, filter];
    assert_eq!(execute(&graph, &inputs, 2).unwrap(), interpret(&graph.body(), &inputs, &()).unwrap());
}
