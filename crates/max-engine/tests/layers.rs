//! A decoder layer, op by op: it compiles to few kernels, and gives the interpreter's results for all sizes.

use max_core::{DType, DeviceRef, Dim, Result, Shape, TensorType};
use max_driver::Buffer;
use max_engine::InferenceSession;
use max_graph::{Graph, HostTensor, TensorValue, Value, interpret, ops};

const WIDTH: usize = 24;
/// The number of query heads, and how many of them share one head of keys and values.
const HEADS: usize = 6;
const SHARE: usize = 3;
const DEPTH: usize = WIDTH / HEADS;

fn data(shape: &[usize], seed: usize) -> HostTensor {
    let number = |i: usize| ((i * 7919 + seed * 104_729 + 13) % 6007) as f32 / 6007.0 - 0.5;
    HostTensor::from_vec(shape, (0..shape.iter().product()).map(number).collect::<Vec<_>>()).unwrap()
}

fn constant(shape: &[usize], seed: usize) -> Result<TensorValue> {
    ops::constant(data(shape, seed), None, None)
}

/// The matmul with a weight, plus a bias.
fn linear(x: &TensorValue, from: usize, to: usize, seed: usize) -> Result<TensorValue> {
    ops::add(ops::matmul(x, ops::transpose(constant(&[to, from], seed)?, 0, 1)), constant(&[to], seed + 1)?)
}

fn layer(x: &TensorValue, mask: &TensorValue) -> Result<TensorValue> {
    let [batch, length] = [Dim::from("b"), Dim::from("s")];
    let cut = |x: TensorValue, heads: usize| {
        let shape = [batch.clone(), length.clone(), Dim::from(heads as i64), Dim::from(DEPTH as i64)];
        ops::permute(ops::reshape(x, Shape::from(shape.to_vec())), vec![0, 2, 1, 3])
    };
    let h = ops::layer_norm(x, constant(&[WIDTH], 1)?, constant(&[WIDTH], 2)?, 1e-5)?;
    let shared = WIDTH / SHARE;
    let query = cut(linear(&h, WIDTH, WIDTH, 3)?, HEADS)?;
    let repeated = |seed: usize| {
        let heads = cut(linear(&h, WIDTH, shared, seed)?, HEADS / SHARE)?;
        ops::repeat_interleave(heads, SHARE as i64, Some(1), None)
    };
    let (key, value) = (repeated(5)?, repeated(7)?);
    let scores = ops::mul(ops::matmul(query, ops::transpose(key, -1, -2)), 0.5);
    let mixed = ops::matmul(ops::softmax(ops::add(scores, mask), -1), value);
    let shape = Shape::from(vec![batch.clone(), length.clone(), Dim::from(WIDTH as i64)]);
    let mixed = ops::reshape(ops::permute(mixed, vec![0, 2, 1, 3]), shape)?;
    let x = ops::add(x, linear(&mixed, WIDTH, WIDTH, 9)?)?;
    let h = ops::layer_norm(&x, constant(&[WIDTH], 11)?, constant(&[WIDTH], 12)?, 1e-5)?;
    let gate = ops::silu(linear(&h, WIDTH, 40, 13)?);
    let gated = ops::mul(gate, linear(&h, WIDTH, 40, 15)?)?;
    ops::add(&x, linear(&gated, 40, WIDTH, 17)?)
}

#[test]
fn a_layer_is_a_kernel_for_each_step() {
    let ty = |shape: Shape| TensorType::new(DType::Float32, shape, DeviceRef::CPU);
    let inputs = [ty(Shape::from(("b", "s", WIDTH as i64))), ty(Shape::from(("b", 1, "s", "s")))];
    let graph = Graph::new("layer", inputs).unwrap();
    let scope = graph.enter();
    let values = graph.inputs().iter().map(Value::tensor).collect::<Result<Vec<_>>>().unwrap();
    graph.output(layer(&values[0], &values[1]).unwrap()).unwrap();
    drop(scope);
    for threads in [1, 2] {
        let model = InferenceSession::new([]).with_num_threads(threads).unwrap().load(&graph).unwrap();
        // Norm, qkv, attention, out with residual, norm, gate, up times gate, down with residual.
        assert_eq!(model.kernel_summaries().len(), 8, "{:?}", model.kernel_summaries());
        for (batch, length) in [(1, 1), (2, 5), (3, 17), (0, 4), (2, 0)] {
            let given = [data(&[batch, length, WIDTH], 19), data(&[batch, 1, length, length], 20)];
            let expected = interpret(&graph.body(), &given, &()).unwrap();
            let buffer = |v: &HostTensor| Buffer::from_host_bytes(v.bytes().clone(), v.dtype(), v.shape());
            let buffers = given.iter().map(buffer).collect::<Result<Vec<_>>>().unwrap();
            let got = model.execute(&buffers).unwrap()[0].to_vec::<f32>().unwrap();
            let expected = expected[0].elements::<f32>().unwrap();
            assert_eq!(expected.len(), got.len());
            let far = expected.iter().zip(&got).find(|(a, b)| (**a - **b).abs() > 1e-4);
            assert_eq!(far, None, "{batch} x {length} on {threads} threads");
        }
    }
}
