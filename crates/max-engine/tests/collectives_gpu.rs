//! Collectives through NCCL, on as many GPUs as the machine has.

use std::io::Write;
use std::sync::Once;

use max_core::{BufferType, Collective, DType, DeviceRef, Result, TensorType, Type};
use max_driver::{Buffer, Device, accelerator_count, cuda};
use max_engine::InferenceSession;
use max_graph::{BufferValue, Graph, TensorValue, ops};

/// The GPUs. If there are none, or no NCCL, one line on standard error says why, even where the output of tests is
/// captured.
fn gpus() -> Vec<Device> {
    static SAID: Once = Once::new();
    let found = (0..accelerator_count().max(1)).map(|id| Device::accelerator(Some(id as u32)));
    let found = found.collect::<Result<Vec<_>>>().and_then(|gpus| cuda::require_collectives().map(|()| gpus));
    found.unwrap_or_else(|why| {
        SAID.call_once(|| {
            let _ = writeln!(std::io::stderr(), "skipped: no collectives of GPUs: {}", why.message());
        });
        vec![]
    })
}

type Record = fn(Vec<TensorValue>, Vec<BufferValue>) -> Result<Vec<TensorValue>>;

/// Runs one collective on a tensor per GPU, and returns its results.
fn run(gpus: &[Device], dtype: DType, tensors: &[Buffer], record: Record) -> Vec<Buffer> {
    let types =
        tensors.iter().map(|x| Type::from(TensorType::new(dtype, ("n", x.shape()[1] as i64), x.device())));
    let signals = gpus.iter().map(|gpu| Type::from(BufferType::new(DType::UInt8, [1], gpu)));
    let graph = Graph::new("collective", types.chain(signals)).unwrap();
    {
        let _scope = graph.enter();
        let inputs = graph.inputs();
        let (x, signals) = inputs.split_at(tensors.len());
        let x = x.iter().map(|x| ops::add(x, x)).collect::<Result<Vec<_>>>().unwrap();
        let signals = signals.iter().map(|value| value.buffer()).collect::<Result<Vec<_>>>().unwrap();
        graph.output(record(x, signals).unwrap()).unwrap();
    }
    let model = InferenceSession::new(gpus.to_vec()).load(&graph).unwrap();
    let kinds: Vec<_> = model.kernel_summaries().iter().map(|kernel| kernel.kind).collect();
    assert!(kinds.contains(&"collective"), "{kinds:?}");
    let signals = gpus.iter().map(|gpu| Buffer::new(DType::UInt8, &[1], gpu).unwrap());
    let inputs: Vec<_> = tensors.iter().cloned().chain(signals).collect();
    let first = model.execute(&inputs).unwrap();
    let again = model.execute(&inputs).unwrap();
    for (first, again) in first.iter().zip(&again) {
        assert_eq!(bytes(first), bytes(again), "the same inputs give the same bits");
    }
    first
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    buffer.to(&Device::cpu()).unwrap().host_bytes().unwrap().to_vec()
}

/// Rows of small integers on each GPU.
fn tensors(gpus: &[Device], rows: usize) -> (Vec<Vec<f32>>, Vec<Buffer>) {
    let columns = 2 * gpus.len();
    let data: Vec<Vec<f32>> = (0..gpus.len())
        .map(|rank| (0..rows * columns).map(|i| ((i * 7 + rank * 5) % 13) as f32).collect())
        .collect();
    let buffers = data
        .iter()
        .zip(gpus)
        .map(|(data, gpu)| Buffer::from_slice(data, &[rows, columns]).unwrap().to(gpu).unwrap());
    let buffers = buffers.collect();
    (data, buffers)
}

#[test]
fn collectives_by_nccl() {
    let gpus = gpus();
    if gpus.is_empty() {
        return;
    }
    let (count, rows) = (gpus.len(), 6 * gpus.len());
    let columns = 2 * count;
    for rows in [rows, 0] {
        let (data, buffers) = tensors(&gpus, rows);
        let sum: Vec<f32> = (0..rows * columns).map(|i| data.iter().map(|x| 2.0 * x[i]).sum()).collect();
        let floats =
            |outputs: Vec<Buffer>| outputs.iter().map(|x| x.to_vec::<f32>().unwrap()).collect::<Vec<_>>();
        let reduced = run(&gpus, DType::Float32, &buffers, |x, s| ops::allreduce_sum(x, s));
        for (output, gpu) in reduced.iter().zip(&gpus) {
            assert_eq!(output.device(), gpu);
        }
        assert_eq!(floats(reduced), vec![sum.clone(); count]);
        let joined: Vec<f32> = data.iter().flatten().map(|x| 2.0 * x).collect();
        let gathered = run(&gpus, DType::Float32, &buffers, |x, s| ops::allgather(x, s, 0));
        assert_eq!(floats(gathered), vec![joined; count]);
        let beside =
            |row: usize| data.iter().flat_map(move |x| x[row * columns..][..columns].iter().map(|x| 2.0 * x));
        let gathered = run(&gpus, DType::Float32, &buffers, |x, s| ops::allgather(x, s, -1));
        assert_eq!(floats(gathered), vec![(0..rows).flat_map(beside).collect::<Vec<_>>(); count]);
        let part =
            |rank: usize| (0..rows).flat_map(move |row| [0, 1].map(|at| row * columns + rank * 2 + at));
        let scattered = run(&gpus, DType::Float32, &buffers, |x, s| ops::reducescatter_sum(x, s, 1));
        for (rank, output) in floats(scattered).iter().enumerate() {
            assert_eq!(*output, part(rank).map(|i| sum[i]).collect::<Vec<_>>());
        }
        let root: Vec<f32> = data[0].iter().map(|x| 2.0 * x).collect();
        let spread = run(&gpus, DType::Float32, &buffers[..1], |x, s| ops::distributed_broadcast(&x[0], s));
        assert_eq!(floats(spread), vec![root; count]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let gpus = gpus();
    let Some(gpu) = gpus.first() else { return };
    let [x, y] = [4, 5].map(|size| Buffer::new(DType::Float32, &[size], gpu).unwrap());
    let refused = |kind, from: &[&Buffer], to: &[&Buffer]| {
        let own = |buffers: &[&Buffer]| buffers.iter().map(|&b| b.clone()).collect::<Vec<_>>();
        cuda::collective(kind, &own(from), &own(to)).unwrap_err();
    };
    refused(Collective::AllReduceSum, &[&x], &[&y]);
    refused(Collective::AllReduceSum, &[&x, &x], &[&x, &x]);
    refused(Collective::Broadcast, &[&Buffer::from([1f32; 4])], &[&x]);
    let narrow = Buffer::new(DType::Int16, &[4], gpu).unwrap();
    refused(Collective::AllReduceSum, &[&narrow], &[&narrow]);
    assert_eq!(DeviceRef::from(gpu), DeviceRef::gpu(0));
}
