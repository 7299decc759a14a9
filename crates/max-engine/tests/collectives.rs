//! Collectives on virtual devices give the interpreter's results, and sharded computations those of one device.
//!
//! All tests of this process use virtual devices: what the number of an accelerator means is decided once.

use max_core::{BufferType, DType, DeviceRef, Dim, Result, Shape, TensorType, Type, bf16};
use max_driver::{Buffer, Device, set_virtual_device_count};
use max_engine::{AssertLevel, InferenceSession, WeightsRegistry};
use max_graph::interpret::interpret;
use max_graph::{BufferValue, Graph, HostTensor, TensorValue, ops};

/// A session on virtual devices. Other tests of this process may have asked for more.
fn session() -> InferenceSession {
    set_virtual_device_count(8).unwrap();
    InferenceSession::new((0..8).map(|id| Device::accelerator(Some(id)).unwrap()))
}

fn gpu(id: usize) -> DeviceRef {
    DeviceRef::gpu(id as u32)
}

fn signal(id: usize) -> Type {
    BufferType::new(DType::UInt8, [1], gpu(id)).into()
}

/// A graph from one tensor per device, with signal buffers.
fn build(
    types: &[TensorType],
    devices: usize,
    op: impl Fn(&[TensorValue], Vec<BufferValue>) -> Result<Vec<TensorValue>>,
) -> Result<Graph> {
    let inputs = types.iter().cloned().map(Type::from).chain((0..devices).map(signal));
    let graph = Graph::new("collective", inputs)?;
    let _scope = graph.enter();
    let inputs = graph.inputs();
    let (tensors, signals) = inputs.split_at(types.len());
    let tensors = tensors.iter().map(|value| value.tensor()).collect::<Result<Vec<_>>>()?;
    let signals = signals.iter().map(|value| value.buffer()).collect::<Result<Vec<_>>>()?;
    graph.output(op(&tensors, signals)?)?;
    Ok(graph)
}

/// Elements that are small integers, exact in every dtype.
fn elements(dtype: DType, shape: &[usize], seed: usize) -> HostTensor {
    elements_below(11, dtype, shape, seed)
}

fn elements_below(limit: usize, dtype: DType, shape: &[usize], seed: usize) -> HostTensor {
    let count = shape.iter().product::<usize>();
    let numbers = (0..count).map(|i| ((i * 7 + seed * 13) % limit) as f32).collect::<Vec<_>>();
    HostTensor::from_vec(shape, numbers).unwrap().cast(dtype).unwrap()
}

fn buffer(tensor: &HostTensor, device: DeviceRef) -> Buffer {
    let host = Buffer::from_host_bytes(tensor.bytes().clone(), tensor.dtype(), tensor.shape()).unwrap();
    host.to(&Device::from_ref(device).unwrap()).unwrap()
}

/// Runs a graph on its devices, and compares bit by bit with the interpreter.
fn check(session: &InferenceSession, graph: &Graph, inputs: &[HostTensor], context: &str) {
    let body = graph.body();
    let expected = interpret(&body, inputs, &()).unwrap();
    let devices = body.block.arguments.iter().map(|&value| body.type_of(value).device().unwrap());
    let buffers: Vec<Buffer> = inputs.iter().zip(devices).map(|(x, device)| buffer(x, device)).collect();
    let model = session.load(graph).unwrap();
    for _ in 0..2 {
        let outputs = model.execute(&buffers).unwrap();
        assert_eq!(outputs.len(), expected.len());
        for ((output, expected), spec) in outputs.iter().zip(&expected).zip(model.output_metadata()) {
            assert_eq!(
                (output.shape(), output.device().device_ref()),
                (expected.shape(), spec.device),
                "{context}"
            );
            let bytes = output.to(&Device::cpu()).unwrap().host_bytes().unwrap();
            assert!(*bytes == **expected.bytes(), "{context}: {output} instead of {expected:?}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    AllGather(i64),
    AllReduce,
    ReduceScatter(i64),
    Broadcast,
    Scatter,
}

impl Op {
    fn record(self, x: &[TensorValue], signals: Vec<BufferValue>) -> Result<Vec<TensorValue>> {
        match self {
            Op::AllGather(axis) => ops::allgather(x.to_vec(), signals, axis),
            Op::AllReduce => ops::allreduce_sum(x.to_vec(), signals),
            Op::ReduceScatter(axis) => ops::reducescatter_sum(x.to_vec(), signals, axis),
            Op::Broadcast => ops::distributed_broadcast(&x[0], signals),
            Op::Scatter => ops::distributed_scatter(x.to_vec(), signals),
        }
    }

    /// How many tensors it takes on how many devices, and where each is.
    fn inputs(self, devices: usize) -> Vec<DeviceRef> {
        match self {
            Op::Broadcast => vec![gpu(devices - 1)],
            Op::Scatter => vec![gpu(devices / 2); devices.div_ceil(2)],
            _ => (0..devices).map(gpu).collect(),
        }
    }
}

#[test]
fn every_collective_matches_the_interpreter() {
    let session = session();
    let ops = [
        Op::AllGather(0),
        Op::AllGather(-1),
        Op::AllReduce,
        Op::ReduceScatter(0),
        Op::ReduceScatter(-1),
        Op::Broadcast,
        Op::Scatter,
    ];
    for op in ops {
        for devices in 1..=5 {
            for dtype in [DType::Float32, DType::BFloat16, DType::Int16, DType::UInt64, DType::Bool] {
                for (given, sizes) in [([3, 4], [3, 4]), ([0, 2], [0, 2]), ([7, 0], [7, 0]), ([7, 5], [7, 5])]
                {
                    let shapes = [Shape::from(given.map(Dim::Static)), Shape::from(["n", "m"])];
                    for shape in shapes {
                        let places = op.inputs(devices);
                        let types: Vec<_> =
                            places.iter().map(|&d| TensorType::new(dtype, shape.clone(), d)).collect();
                        let graph = build(&types, devices, |x, signals| {
                            // The results of kernels, not only inputs, and readers on each device.
                            let x = x.iter().map(|x| ops::add(x, x)).collect::<Result<Vec<_>>>()?;
                            let results = op.record(&x, signals)?;
                            let mut after = results.iter().map(ops::relu).collect::<Result<Vec<_>>>()?;
                            after.extend(results);
                            Ok(after)
                        });
                        let inputs = (0..places.len()).map(|rank| elements(dtype, &sizes, rank));
                        let signals = (0..devices).map(|_| elements(DType::UInt8, &[1], 0));
                        let inputs: Vec<_> = inputs.chain(signals).collect();
                        let context = format!("{op:?} of {devices} devices, {dtype} {shape} {sizes:?}");
                        check(&session, &graph.unwrap(), &inputs, &context);
                    }
                }
            }
        }
    }
}

/// Operands that are views, constants, weights, positions and sizes: some of them move without a transfer.
#[test]
fn operands_of_every_origin() {
    let session = session();
    let x = TensorType::new(DType::Float32, ("n", 6), gpu(0));
    for devices in 1..=3 {
        let types: Vec<_> = (0..devices).map(|rank| x.to(gpu(rank))).collect();
        for op in [Op::AllGather(0), Op::AllReduce, Op::ReduceScatter(1), Op::Broadcast] {
            let graph = build(&types, devices, |x, signals| {
                let sources: Vec<TensorValue> = x
                    .iter()
                    .enumerate()
                    .map(|(rank, x)| match rank {
                        0 => ops::permute(ops::slice_tensor(x, (0..3, 1..5))?, vec![1, 0]),
                        1 => ops::broadcast_to(
                            ops::constant(2.5, DType::Float32, gpu(1))?,
                            Shape::from([4, 3]),
                        ),
                        _ => {
                            let row = ops::range(0, 3, 1, None, DType::Float32, gpu(rank))?;
                            ops::broadcast_to(row, Shape::from([4, 3]))
                        }
                    })
                    .collect::<Result<_>>()?;
                op.record(&sources, signals)
            });
            let inputs = (0..devices).map(|rank| elements(DType::Float32, &[3, 6], rank));
            let signals = (0..devices).map(|_| elements(DType::UInt8, &[1], 0));
            let inputs: Vec<_> = inputs.chain(signals).collect();
            check(&session, &graph.unwrap(), &inputs, &format!("{op:?} of {devices} devices"));
        }
    }
}

/// Sums are rounded once, in the order of the devices, and are the same everywhere.
#[test]
fn narrow_sums_are_the_same_everywhere() {
    let session = session();
    for devices in [2, 3, 4, 8] {
        let ty = TensorType::new(DType::BFloat16, ["n"], gpu(0));
        let types: Vec<_> = (0..devices).map(|rank| ty.to(gpu(rank))).collect();
        let graph = build(&types, devices, |x, signals| {
            let x = x.iter().map(|x| ops::mul(x, x)).collect::<Result<Vec<_>>>()?;
            ops::allreduce_sum(x, signals)
        })
        .unwrap();
        let parts: Vec<Vec<bf16>> = (0..devices)
            .map(|rank| (0..100).map(|i| bf16::from_f32(0.37 * (i + rank * 17) as f32)).collect())
            .collect();
        let inputs: Vec<Buffer> = parts
            .iter()
            .enumerate()
            .map(|(rank, part)| Buffer::from(part.clone()).to(&Device::from_ref(gpu(rank)).unwrap()).unwrap())
            .chain(
                (0..devices)
                    .map(|rank| Buffer::from([0u8]).to(&Device::from_ref(gpu(rank)).unwrap()).unwrap()),
            )
            .collect();
        let outputs = session.load(&graph).unwrap().execute(&inputs).unwrap();
        let square = |x: &bf16| bf16::from_f32(x.to_f32() * x.to_f32()).to_f32();
        let expected: Vec<bf16> = (0..100)
            .map(|i| bf16::from_f32(parts.iter().map(|part| square(&part[i])).fold(0.0, |a, b| a + b)))
            .collect();
        for output in &outputs {
            assert_eq!(output.to_vec::<bf16>().unwrap(), expected, "{devices} devices");
        }
    }
}

/// The columns of the left and the rows of the right operand are divided among devices, and the products added.
#[test]
fn a_sharded_matmul_is_that_of_one_device() {
    let session = session();
    let (m, k, n) = (5, 24, 7);
    for dtype in [DType::Float32, DType::BFloat16, DType::Int32] {
        let [x, w] = [[m, k], [k, n]].map(|shape| elements_below(4, dtype, &shape, shape[0]));
        let weights = WeightsRegistry::from([(
            "w".to_string(),
            Buffer::from_host_bytes(w.bytes().clone(), dtype, &[k, n]).unwrap(),
        )]);
        let run = |devices: usize| {
            let ty = TensorType::new(dtype, ("m", k), gpu(0));
            let graph = build(&[ty], devices, |x, signals| {
                let everywhere = ops::distributed_broadcast(&x[0], signals.clone())?;
                let part = k / devices;
                let products = everywhere.iter().enumerate().map(|(rank, x)| {
                    let w = ops::constant_external(
                        "w".to_string(),
                        TensorType::new(dtype, (k, n), DeviceRef::CPU),
                    )?;
                    let (from, to) = ((rank * part) as i64, ((rank + 1) * part) as i64);
                    let w = ops::transfer_to(ops::slice_tensor(w, from..to)?, gpu(rank))?;
                    ops::matmul(ops::slice_tensor(x, (.., from..to))?, w)
                });
                ops::allreduce_sum(products.collect::<Result<Vec<_>>>()?, signals)
            });
            let model = session.load_with(&graph.unwrap(), &weights).unwrap();
            let signals = (0..devices).map(|rank| buffer(&elements(DType::UInt8, &[1], 0), gpu(rank)));
            let inputs: Vec<_> = std::iter::once(buffer(&x, gpu(0))).chain(signals).collect();
            let outputs = model.execute(&inputs).unwrap();
            outputs
                .iter()
                .map(|output| output.to(&Device::cpu()).unwrap().host_bytes().unwrap().to_vec())
                .collect::<Vec<_>>()
        };
        let whole = run(1).remove(0);
        for devices in [2, 4] {
            // All sums are exact here, in bfloat16 too, so their order does not matter.
            assert_eq!(run(devices), vec![whole.clone(); devices], "{dtype} on {devices} devices");
        }
    }
}

/// Memory is that of the devices: a model has an arena on each, and says so.
#[test]
fn every_device_has_memory_of_its_own() {
    let session = session();
    let ty = TensorType::new(DType::Float32, [1000], gpu(0));
    let graph = build(&[ty.clone(), ty.to(gpu(1))], 2, |x, signals| {
        let sums = ops::allreduce_sum([ops::exp(&x[0])?, ops::exp(&x[1])?], signals)?;
        sums.iter()
            .map(|sum| {
                ops::matmul(
                    ops::reshape(sum, Shape::from([10, 100]))?,
                    ops::reshape(sum, Shape::from([100, 10]))?,
                )
            })
            .collect()
    })
    .unwrap();
    let model = session.load(&graph).unwrap();
    let x = elements(DType::Float32, &[1000], 0);
    let signals = [0, 1].map(|rank| buffer(&elements(DType::UInt8, &[1], 0), gpu(rank)));
    let inputs: Vec<_> = [0, 1].map(|rank| buffer(&x, gpu(rank))).into_iter().chain(signals).collect();
    let report = model.memory_report(&inputs).unwrap();
    let used: Vec<_> = report.peak_bytes_by_device.iter().filter(|(_, bytes)| *bytes >= 4000).collect();
    assert_eq!(used.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [gpu(0), gpu(1)], "{report:?}");
    let error = model.capture(1, &inputs).unwrap_err();
    assert!(error.message().contains("transfers values between devices"), "{error}");
    let error = model
        .execute(&[inputs[1].clone(), inputs[1].clone(), inputs[2].clone(), inputs[3].clone()])
        .unwrap_err();
    assert!(error.message().contains("input0 must be on gpu:0, got gpu:1"), "{error}");
}

/// An ordinary model on a virtual device: weights, constants, captures and checks of values work as on a GPU.
#[test]
fn models_run_on_a_virtual_device() {
    let session = session();
    session.set_mojo_assert_level(AssertLevel::Safe);
    let ty = TensorType::new(DType::Float32, ("n", 8), gpu(1));
    let graph = Graph::build("model", [ty], |x| {
        let w = ops::constant_external("w".to_string(), TensorType::new(DType::Float32, (8, 8), gpu(1)))?;
        let y = ops::matmul(&x[0], w)?;
        ops::softmax(ops::add(y, ops::constant(0.5, DType::Float32, gpu(1))?)?, -1)
    })
    .unwrap();
    let w = elements(DType::Float32, &[8, 8], 3);
    let x = elements(DType::Float32, &[4, 8], 4);
    let expected = {
        let body = max_graph::text::parse(&graph.to_string().replace("gpu:1", "cpu:0").replace("@cpu:0", ""))
            .unwrap();
        let weights = WeightsRegistry::from([("w".to_string(), buffer(&w, DeviceRef::CPU))]);
        let graph = Graph::from_body(body);
        session.load_with(&graph, &weights).unwrap().execute(&[buffer(&x, DeviceRef::CPU)]).unwrap().remove(0)
    };
    // Weights may be anywhere.
    for place in [DeviceRef::CPU, gpu(0), gpu(1)] {
        let weights = WeightsRegistry::from([("w".to_string(), buffer(&w, place))]);
        let model = session.load_with(&graph, &weights).unwrap();
        let input = buffer(&x, gpu(1));
        let output = model.execute(std::slice::from_ref(&input)).unwrap().remove(0);
        assert_eq!(output.device().device_ref(), gpu(1));
        assert_eq!(output.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        let captured = model.capture(7, std::slice::from_ref(&input)).unwrap().remove(0);
        model.replay(7, std::slice::from_ref(&input)).unwrap();
        assert_eq!(captured.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    }
}
