//! Host graphs moved to a GPU, and how their results are compared.

use std::io::Write;

use max_core::{DType, DeviceRef, Element, Error, Result, TensorType, Type, dispatch};
use max_driver::{Buffer, Device};
use max_engine::Model;
use max_graph::attr::Attr;
use max_graph::ops::transfer::TransferTo;
use max_graph::{Body, HostTensor, OpKind, ValueId};

/// The first GPU. If there is none, a line on standard error says why, even where the output of tests is captured.
pub fn gpu() -> Option<Device> {
    match Device::accelerator(None) {
        Ok(device) => Some(device),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", why.message());
            None
        }
    }
}

/// The same graph with its inputs, constants and ops on another device. What an op always puts on the host (the sizes
/// of a tensor) is transferred where another op needs it elsewhere.
pub fn moved(body: &Body, device: DeviceRef) -> Result<Body> {
    let mut new = Body::new(body.name.clone(), []);
    let mut values: Vec<Option<ValueId>> = vec![None; body.num_values()];
    for &argument in &body.block.arguments {
        let ty = match body.type_of(argument) {
            Type::Tensor(ty) => TensorType { device, ..ty.clone() }.into(),
            other => other.clone(),
        };
        values[argument.0 as usize] = Some(new.add_argument(ty));
    }
    let missing = || Error::internal("an op reads a value that is not there");
    for op in body.ops() {
        let attrs = op.kind.attrs().into_iter().map(|(name, attr)| match name.as_str() {
            "device" => (name, Attr::Str(device.to_string())),
            _ => (name, attr),
        });
        let kind = OpKind::from_attrs(op.kind.name(), attrs.collect())?;
        let operands = op.operands.iter().map(|id| values[id.0 as usize].ok_or_else(missing));
        let mut operands = operands.collect::<Result<Vec<_>>>()?;
        let pushed = match new.push(kind.clone(), operands.clone(), op.location.clone()) {
            Ok(pushed) => pushed,
            Err(_) => {
                for operand in &mut operands {
                    if new.type_of(*operand).device() != Some(device) {
                        let transfer = new.push(TransferTo { device }.into(), vec![*operand], None)?;
                        *operand = new.op(transfer).results[0];
                    }
                }
                new.push(kind, operands, op.location.clone())?
            }
        };
        for (old, &new) in op.results.iter().zip(&new.op(pushed).results) {
            values[old.0 as usize] = Some(new);
        }
    }
    let results = body.block.results.iter().flatten().map(|id| values[id.0 as usize].ok_or_else(missing));
    new.block.results = Some(results.collect::<Result<_>>()?);
    Ok(new)
}

/// Runs a model on host inputs, each copied to where the model wants it, and copies the results back to the host.
pub fn execute(model: &Model, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let buffers = inputs.iter().zip(model.input_metadata()).map(|(input, spec)| {
        let buffer = Buffer::from_host_bytes(input.bytes().clone(), input.dtype(), input.shape())?;
        buffer.to(&Device::from_ref(spec.device)?)
    });
    let tensor = |result: &Buffer| {
        let host = result.to(&Device::cpu())?;
        HostTensor::new(host.dtype(), host.shape(), host.host_bytes()?)
    };
    let results = model.execute(&buffers.collect::<Result<Vec<_>>>()?)?;
    // Errors that kernels detect while they run are only known once they have finished.
    model.devices().iter().try_for_each(Device::synchronize)?;
    results.iter().map(tensor).collect()
}

/// Whether the GPU can no longer be used in this process, as after some failures. A failure that is merely reported
/// late does not count, so it is asked twice.
pub fn is_gone(device: &Device) -> Option<Error> {
    let _reported = device.synchronize();
    device.synchronize().err()
}

/// Ops that only move elements.
const MOVES: &[&str] = &[
    "broadcast_to",
    "concat",
    "constant",
    "dynamic_slice",
    "gather",
    "gather_nd",
    "permute",
    "rebind",
    "reshape",
    "shape_to_tensor",
    "slice",
    "split",
    "transfer_to",
    "where",
];

/// How far two correct results may be apart: relative to the element, and to the largest one.
#[derive(Clone, Copy)]
pub struct Tolerance(f64, f64);

impl Tolerance {
    pub const NONE: Tolerance = Tolerance(0.0, 0.0);

    /// The tolerance for several ops on narrow floats: some results are rounded after every op, others once.
    #[allow(dead_code, reason = "only some tests compare such results")]
    pub const NARROW: Tolerance = Tolerance(0.05, 0.05);

    /// The tolerance for a graph with one op: moved elements are unchanged, computed ones are a few roundings off.
    pub fn of(body: &Body, dtype: DType) -> Tolerance {
        match dtype {
            _ if body.ops().all(|op| MOVES.contains(&op.kind.name())) => Tolerance::NONE,
            DType::Float64 => Tolerance(1e-13, 1e-13),
            // One plus the error function of a negative number cancels.
            DType::Float32 if body.ops().any(|op| op.kind.name() == "gelu") => Tolerance(1e-3, 1e-5),
            DType::Float32 => Tolerance(1e-5, 1e-5),
            DType::Float16 => Tolerance(3e-3, 5e-4),
            DType::BFloat16 => Tolerance(0.02, 4e-3),
            dtype if dtype.is_float() => Tolerance(0.13, 0.02),
            _ => Tolerance::NONE,
        }
    }
}

/// Where a result differs from the expected one, in words.
pub fn difference(
    expected: &HostTensor,
    got: &HostTensor,
    Tolerance(own, common): Tolerance,
) -> Option<String> {
    if (expected.dtype(), expected.shape()) != (got.dtype(), got.shape()) {
        let show = |t: &HostTensor| format!("{} {:?}", t.dtype(), t.shape());
        return Some(format!("expected {}, got {}", show(expected), show(got)));
    }
    dispatch!(expected.dtype(), T => {
        let (expected, got) = (expected.elements::<T>().unwrap(), got.elements::<T>().unwrap());
        let largest = expected.iter().map(|e| e.to_f64().abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
        let same = |a: T, b: T| {
            let (x, y) = (a.to_f64(), b.to_f64());
            a == b || x.is_nan() && y.is_nan() || x.is_finite() && (x - y).abs() <= own * x.abs() + common * largest
        };
        let wrong: Vec<usize> = (0..expected.len()).filter(|&at| !same(expected[at], got[at])).collect();
        let &first = wrong.first()?;
        let (a, b) = (expected[first].to_f64(), got[first].to_f64());
        Some(format!("element {first}: expected {a:e}, got {b:e} ({} of {} differ)", wrong.len(), expected.len()))
    })
}

/// Whether a graph has an op that only the host computes.
pub fn is_for_the_host(body: &Body) -> bool {
    body.ops().any(|op| ["irfft", "non_maximum_suppression"].contains(&op.kind.name()))
}
