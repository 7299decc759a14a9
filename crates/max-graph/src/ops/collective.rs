//! Collectives: ops on tensors of several devices, with a result on each.
//!
//! The functions take signal buffers, one per device, with which other implementations of this API let devices wait for
//! each other. Nothing is written to them here; they say which devices take part.

use max_core::scalar::NumericOp;
use max_core::shape::resolve_axis;
use max_core::{Collective, DType, DeviceRef, Dim, Error, Result, ScalarOp, Shape, TensorType, Type, bail};

use crate::attr::{Attr, AttrType, op_struct};
use crate::graph::record;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::{Operand, Operands};
use crate::ops::concat::Concat;
use crate::ops::split::Split;
use crate::ops::transfer::transfer_to;
use crate::ops::{all_tensors, axis_dim};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{BufferValue, TensorValue, Value};

op_struct! {
    /// What devices compute together, along an axis if there is one: the tensor of each device, in their order, or of one
    /// of them for a broadcast, becomes a tensor on each.
    Collect = "collective" { kind: Collective, axis: usize, devices: Vec<DeviceRef> }
}

impl AttrType for Collective {
    fn to_attr(&self) -> Attr {
        Attr::Str(self.name().into())
    }

    fn from_attr(attr: Attr) -> Option<Self> {
        let name = String::from_attr(attr)?;
        Collective::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

op_fns! {
    /// Joins the tensors of all devices along an axis, and gives every device the result. Along that axis their sizes may
    /// differ.
    pub fn allgather(inputs: Operands, signal_buffers: Vec<BufferValue>, axis: i64 = 0) -> Vec<TensorValue> {
        let inputs = signalled(inputs, &signal_buffers)?;
        let Some(first) = inputs.first() else { return Ok(vec![]) };
        let rank = first.rank();
        let axis = resolve_axis(axis, rank)
            .ok_or_else(|| Error::index(format!("Invalid axis {axis} for a tensor of rank {rank}")))?;
        collect(Collective::AllGather, axis, &inputs, &signal_buffers)
    }

    /// Adds the tensors of all devices, and gives every device the sum.
    pub fn allreduce_sum(inputs: Operands, signal_buffers: Vec<BufferValue>) -> Vec<TensorValue> as "allreduce.sum" {
        collect(Collective::AllReduceSum, 0, &signalled(inputs, &signal_buffers)?, &signal_buffers)
    }

    /// Adds the tensors of all devices, and gives every device its part of the sum along an axis. If the parts cannot be
    /// equal, the first ones are larger by one.
    pub fn reducescatter_sum(
        inputs: Operands, signal_buffers: Vec<BufferValue>, axis: i64 = 0,
    ) -> Vec<TensorValue> as "reducescatter.sum" {
        let inputs = signalled(inputs, &signal_buffers)?;
        let axis = inputs.first().map_or(Ok(0), |first| first.shape().axis(axis))?;
        collect(Collective::ReduceScatterSum, axis, &inputs, &signal_buffers)
    }

    /// Gives every device of the signal buffers a copy of a tensor that one of them has.
    pub fn distributed_broadcast(input: Operand, signal_buffers: Vec<BufferValue>) -> Vec<TensorValue> {
        collect(Collective::Broadcast, 0, &[input.tensor()?], &signal_buffers)
    }

    /// Gives the devices of the signal buffers one chunk each, of chunks that one of the devices has. With fewer chunks than
    /// devices, neighbours share a chunk: all but the last chunk go to equally many devices.
    pub fn distributed_scatter(input_chunks: Operands, signal_buffers: Vec<BufferValue>) -> Vec<TensorValue> {
        let (chunks, devices) = (tensors_of(input_chunks)?, devices_of(&signal_buffers));
        let Some(first) = chunks.first() else { bail!(value, "there must be at least one input chunk") };
        distinct(&devices)?;
        if chunks.len() > devices.len() {
            bail!(value, "there are {} input chunks, but signal buffers on {} devices", chunks.len(), devices.len());
        }
        for chunk in &chunks {
            if chunk.device() != first.device() {
                bail!(
                    value, "all input chunks must be on the same device; got {} and {}", first.device(), chunk.device(),
                );
            }
            if chunk.dtype() != first.dtype() {
                bail!(value, "all input chunks must have the same dtype; got {} and {}", first.dtype(), chunk.dtype());
            }
        }
        takes_part(first.device(), &devices)?;
        let sharing = devices.len().div_ceil(chunks.len());
        let mut results = Vec::with_capacity(devices.len());
        for (rank, &device) in devices.iter().enumerate() {
            results.push(transfer_to(&chunks[(rank / sharing).min(chunks.len() - 1)], device)?);
        }
        Ok(results)
    }
}

fn tensors_of(operands: Operands) -> Result<Vec<TensorValue>> {
    operands.into_values()?.iter().map(Value::tensor).collect()
}

fn devices_of(signal_buffers: &[BufferValue]) -> Vec<DeviceRef> {
    signal_buffers.iter().map(|buffer| buffer.buffer_type().device).collect()
}

/// The inputs as tensors, each with a signal buffer on its device.
fn signalled(inputs: Operands, signal_buffers: &[BufferValue]) -> Result<Vec<TensorValue>> {
    let inputs = tensors_of(inputs)?;
    if inputs.len() != signal_buffers.len() {
        bail!(
            value,
            "expected number of inputs ({}) and number of signal buffers ({}) to match",
            inputs.len(),
            signal_buffers.len()
        );
    }
    distinct(&inputs.iter().map(TensorValue::device).collect::<Vec<_>>())?;
    for (number, (input, signal)) in inputs.iter().zip(devices_of(signal_buffers)).enumerate() {
        if input.device() != signal {
            bail!(value, "input {number} is on {}, but its signal buffer is on {signal}", input.device());
        }
    }
    Ok(inputs)
}

fn collect(
    kind: Collective,
    axis: usize,
    inputs: &[TensorValue],
    signal_buffers: &[BufferValue],
) -> Result<Vec<TensorValue>> {
    let inputs: Vec<Value> = inputs.iter().map(Value::from).collect();
    let devices = devices_of(signal_buffers);
    record(Collect { kind, axis, devices }, &inputs)?.iter().map(Value::tensor).collect()
}

/// The most devices of a collective, so that a small input cannot make a graph huge.
const MAX_DEVICES: usize = 1024;

/// Checks that each device is there only once.
fn distinct(devices: &[DeviceRef]) -> Result<()> {
    if devices.len() > MAX_DEVICES {
        bail!(value, "at most {MAX_DEVICES} devices can work together; got {}", devices.len());
    }
    match devices.iter().enumerate().find(|(at, device)| devices[..*at].contains(device)) {
        Some((_, twice)) => bail!(value, "each device must take part only once; {twice} does so repeatedly"),
        None => Ok(()),
    }
}

fn takes_part(device: DeviceRef, devices: &[DeviceRef]) -> Result<()> {
    if !devices.contains(&device) {
        let names = devices.iter().map(DeviceRef::to_string).collect::<Vec<_>>().join(", ");
        bail!(
            value,
            "the input is on {device}, which is not among the devices of the signal buffers: {names}"
        );
    }
    Ok(())
}

impl Collect {
    /// The size of the part of each device, if a dim is cut into one per device.
    pub fn parts(&self, dim: &Dim) -> Result<Vec<Dim>> {
        let count = self.devices.len() as i64;
        (1..=count).map(|rank| dim.add(&Dim::Static(count - rank))?.floor_div(&Dim::Static(count))).collect()
    }

    /// The shape of the result of each device.
    fn shapes(&self, tensors: &[&TensorType]) -> Result<Vec<Shape>> {
        let first = tensors[0];
        let everywhere = |shape: Shape| vec![shape; self.devices.len()];
        match self.kind {
            Collective::AllGather => {
                let here: Vec<Type> = tensors.iter().map(|t| t.to(first.device).into()).collect();
                let concat = Concat { axis: self.axis };
                match &concat.infer(&here.iter().collect::<Vec<_>>())?[..] {
                    [Type::Tensor(whole)] => Ok(everywhere(whole.shape.clone())),
                    _ => bail!(internal, "a concat is not one tensor"),
                }
            }
            Collective::AllReduceSum => Ok(everywhere(first.shape.clone())),
            Collective::ReduceScatterSum => {
                let part = |size: Dim| {
                    let mut dims = first.shape.to_vec();
                    dims[self.axis] = size;
                    Shape::from(dims)
                };
                Ok(self.parts(axis_dim(first, self.axis)?)?.into_iter().map(part).collect())
            }
            Collective::Broadcast => Ok(everywhere(first.shape.clone())),
        }
    }
}

impl Operation for Collect {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let (tensors, devices) = (all_tensors(operands)?, &self.devices);
        if devices.is_empty() {
            bail!(value, "there must be at least one device with a signal buffer");
        }
        distinct(devices)?;
        let expected = if self.kind == Collective::Broadcast { 1 } else { devices.len() };
        if tensors.len() != expected {
            bail!(value, "expected {expected} inputs for {} devices, got {}", devices.len(), tensors.len());
        }
        let first = tensors[0];
        for (tensor, &device) in tensors.iter().zip(devices) {
            if self.kind == Collective::Broadcast {
                takes_part(tensor.device, devices)?;
            } else if tensor.device != device {
                bail!(value, "the input of {device} is on {}", tensor.device);
            }
            if tensor.dtype != first.dtype {
                bail!(value, "all inputs must have the same dtype; got {} and {}", first.dtype, tensor.dtype);
            }
            if self.kind.sums() && tensor.shape != first.shape {
                bail!(value, "all inputs must have the same shape; got {} and {}", first.shape, tensor.shape);
            }
        }
        let results = self.shapes(&tensors)?.into_iter().zip(devices);
        Ok(results.map(|(shape, &device)| TensorType::new(first.dtype, shape, device).into()).collect())
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Whole,
            // GPUs may add in another order.
            folding: if self.kind.sums() { signature.rounded() } else { Folding::Exactly },
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let everywhere = |tensor: HostTensor| vec![tensor; self.devices.len()];
        match self.kind {
            Collective::AllGather => Ok(everywhere(only(Concat { axis: self.axis }.eval(operands, run)?)?)),
            Collective::AllReduceSum => Ok(everywhere(sum(operands, run)?)),
            Collective::ReduceScatterSum => {
                let sum = sum(operands, run)?;
                let sizes = self.parts(&Dim::Static(sum.shape()[self.axis] as i64))?.into();
                Split { sizes, axis: self.axis }.eval(&[sum], run)
            }
            Collective::Broadcast => Ok(everywhere(operands[0].clone())),
        }
    }
}

fn only(results: Vec<HostTensor>) -> Result<HostTensor> {
    results.into_iter().next().ok_or_else(|| Error::internal("an op that should have a result has none"))
}

/// The sum of tensors in their order. Narrow floats are rounded once, at the end.
fn sum(tensors: &[HostTensor], run: &Run) -> Result<HostTensor> {
    let dtype = tensors[0].dtype();
    let wide = if dtype.is_float() && dtype.size_in_bytes() < 4 { DType::Float32 } else { dtype };
    let add = ScalarOp::from(NumericOp::Add);
    let mut wider = tensors.iter().map(|tensor| tensor.cast(wide));
    let first = wider.next().ok_or_else(|| Error::internal("a sum of no tensors"))?;
    wider.try_fold(first?, |sum, tensor| only(add.eval(&[sum, tensor?], run)?))?.cast(dtype)
}

#[cfg(test)]
mod tests {
    use crate::text;

    fn error(op: &str, arguments: &str) -> String {
        let text = format!("graph \"g\"({arguments}) {{ {op} return }}");
        text::parse(&text).unwrap_err().to_string()
    }

    /// What the functions check is checked again in graphs that were read.
    #[test]
    fn graphs_that_cannot_be_built_cannot_be_read() {
        let two = "%0: int32[4, 6]@gpu:0, %1: int32[4, 6]@gpu:1";
        let of = |operands: &str, kind: &str, axis: usize, devices: &str| {
            let attributes = format!("{{kind = \"{kind}\", axis = {axis}, devices = \"{devices}\"}}");
            error(
                &format!(
                    "%2, %3 = collective({operands}) {attributes} : int32[4, 6]@gpu:0, int32[4, 6]@gpu:1"
                ),
                two,
            )
        };
        let message = of("%0, %1", "allreduce_sum", 0, "gpu:1,gpu:0");
        assert!(message.contains("the input of gpu:1 is on gpu:0"), "{message}");
        let message = of("%0", "allreduce_sum", 0, "gpu:0,gpu:1");
        assert!(message.contains("expected 2 inputs for 2 devices, got 1"), "{message}");
        let message = of("%0, %1", "broadcast", 0, "gpu:0,gpu:1");
        assert!(message.contains("expected 1 inputs"), "{message}");
        let message = of("%0, %1", "reducescatter_sum", 2, "gpu:0,gpu:1");
        assert!(message.contains("axis 2"), "{message}");
        let message = of("%0, %1", "allgather", 7, "gpu:0,gpu:1");
        assert!(message.contains("axis 7"), "{message}");
        let message = of("%0, %1", "allreduce_sum", 0, "gpu:0,gpu:0");
        assert!(message.contains("gpu:0 does so repeatedly"), "{message}");
        let many: Vec<_> = (0..2000).map(|id| format!("gpu:{id}")).collect();
        let message = of("%0", "broadcast", 0, &many.join(","));
        assert!(message.contains("at most 1024 devices"), "{message}");
        for (kind, devices) in [("allreduce", "gpu:0,gpu:1"), ("broadcast", ""), ("broadcast", "gpu:0,tpu:1")]
        {
            let message = of("%0", kind, 0, devices);
            assert!(message.contains("has the wrong type"), "{kind} {devices}: {message}");
        }
    }
}
