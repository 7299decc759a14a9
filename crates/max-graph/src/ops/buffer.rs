//! Buffers: memory that a graph reads and writes, in the order in which its ops do so.

use max_core::kernel::put_start;
use max_core::{
    BufferType, DType, DeviceRef, Dim, Error, HostBytes, Result, Shape, Strided, TensorType, Type, bail,
};

use crate::attr::op_struct;
use crate::graph::{Graph, record};
use crate::host::{HostTensor, byte_count};
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::reshape::reshape_value;
use crate::ops::slice::{Bound, Index, Indices, check_range, cut, expand, position, range, scalar};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::{BufferValue, TensorValue};

op_struct! {
    /// A new buffer, with undefined contents.
    BufferCreate = "buffer_create" { dtype: DType, shape: Shape, device: DeviceRef }
}

op_struct! {
    /// The contents of a buffer at this point.
    BufferLoad = "buffer_load" {}
}

op_struct! {
    /// Replaces the contents of a buffer by a tensor.
    BufferStore = "buffer_store" {}
}

op_struct! {
    /// Replaces part of a buffer by a tensor of the same rank. Along each axis the part starts at `starts` and has one
    /// element every `steps`. Along `axes` it starts where further operands say, and along `stops` it ends where operands
    /// after those say; all of these are int64 scalars.
    BufferStoreSlice = "buffer_store_slice" { starts: Shape, steps: Vec<i64>, axes: Vec<usize>, stops: Vec<usize> }
}

op_fns! {
    /// A new buffer that lives as long as the execution, filled with a tensor or a number, or with zeros.
    pub fn buffer_create(type_: BufferType, init_value: Option<Operand>) -> BufferValue {
        let BufferType { dtype, shape, device } = type_.clone();
        let created = record(BufferCreate { dtype, shape, device }, &[])?;
        let Some(created) = created.first() else { bail!(internal, "a buffer was not created") };
        let buffer = created.buffer()?;
        store(&buffer, init_value.unwrap_or_else(|| Operand::from(0i64)))?;
        Ok(buffer)
    }

    /// The contents of a buffer at this point, as a tensor.
    pub fn buffer_load(x: BufferValue) -> TensorValue {
        load(&x)
    }

    /// Replaces the contents of a buffer by those of a tensor.
    pub fn buffer_store(destination: BufferValue, source: Operand) -> () {
        store(&destination, source)
    }

    /// Replaces the part of a buffer that an index expression selects by a tensor.
    pub fn buffer_store_slice(destination: BufferValue, source: Operand, indices: Indices) -> () {
        store_slice(&destination, source, indices)
    }
}

fn load(buffer: &BufferValue) -> Result<TensorValue> {
    match &record(BufferLoad {}, &[buffer.value().clone()])?[..] {
        [loaded] => loaded.tensor(),
        _ => bail!(internal, "a load without a result"),
    }
}

/// A tensor to be stored, or a number to fill with.
fn to_store(buffer: &BufferValue, source: Operand, shape: &Shape) -> Result<TensorValue> {
    let number = source.as_number().is_some();
    // Only the dtype and the device matter here.
    let tensor = match number {
        true => source.weak(buffer.dtype(), buffer.device())?,
        false => source.tensor()?,
    };
    if tensor.dtype() != buffer.dtype() {
        bail!(
            value,
            "a {} buffer holds no {} tensor; insert an explicit cast",
            buffer.dtype(),
            tensor.dtype()
        );
    }
    if tensor.device() != buffer.device() {
        bail!(
            value,
            "Input values must be on the same device; got a buffer on {} and a tensor on {}",
            buffer.device(),
            tensor.device()
        );
    }
    if number { crate::ops::broadcast_to(&tensor, shape.clone()) } else { Ok(tensor) }
}

/// Whether two dims may turn out to have the same size.
fn may_be_equal(a: &Dim, b: &Dim) -> bool {
    a == b || a.as_static().is_none() || b.as_static().is_none()
}

fn store(buffer: &BufferValue, source: Operand) -> Result<()> {
    let mut source = to_store(buffer, source, buffer.shape())?;
    let (from, to) = (source.shape(), buffer.shape());
    // What cannot be proven wrong is checked when the graph runs.
    if from != to && from.rank() == to.rank() && from.iter().zip(to.iter()).all(|(a, b)| may_be_equal(a, b)) {
        source = crate::ops::rebind(&source, to.clone(), "the shape of a buffer")?;
    }
    record(BufferStore {}, &[buffer.value().clone(), source.into()])?;
    Ok(())
}

fn store_slice(buffer: &BufferValue, source: Operand, Indices(indices): Indices) -> Result<()> {
    Graph::current()?;
    let indices = expand(indices, buffer.shape())?;
    let (mut starts, mut steps, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut axes, mut stops, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for index in indices {
        let axis = starts.len();
        let size = buffer.shape().get(axis).cloned().unwrap_or(Dim::Static(0));
        let (start, count, step) = match index {
            Index::NewAxis => bail!(value, "a tensor cannot be stored to a new axis of a buffer"),
            Index::Ellipsis => continue,
            Index::At(at) => (position(&at, &size, axis)?, Some(Dim::Static(1)), 1),
            Index::Tensor(at) => {
                axes.push(axis);
                from.push(at);
                (Dim::Static(0), Some(Dim::Static(1)), 1)
            }
            Index::Slice { start, stop, step, out_dim } => {
                kept.push(axis);
                if matches!((&start, &stop), (Bound::Tensor(_), _) | (_, Bound::Tensor(_))) {
                    if step < 1 {
                        bail!(
                            value,
                            "a slice between tensors that is stored to needs a positive step; got {step}"
                        );
                    }
                    axes.push(axis);
                    from.push(scalar(start)?.map_or_else(|| Operand::from(Dim::Static(0)).tensor(), Ok)?);
                    stops.push(axis);
                    to.push(scalar(stop)?.map_or_else(|| Operand::from(size).tensor(), Ok)?);
                    (Dim::Static(0), out_dim, step)
                } else {
                    let (start, count) = range(&start, &stop, step, &size, axis)?;
                    (start, Some(out_dim.unwrap_or(count)), step)
                }
            }
        };
        starts.push(start);
        steps.push(step);
        sizes.push(count);
    }
    let known: Option<Vec<Dim>> = kept.iter().map(|&axis| sizes[axis].clone()).collect();
    let mut source = to_store(buffer, source, &known.unwrap_or_default().into())?;
    if source.rank() != kept.len() {
        bail!(
            value,
            "a tensor of shape {} cannot be stored to a slice of rank {} of a buffer of shape {}",
            source.shape(),
            kept.len(),
            buffer.shape()
        );
    }
    let mut dims = vec![Dim::Static(1); starts.len()];
    for (&axis, dim) in kept.iter().zip(source.shape().iter()) {
        dims[axis] = sizes[axis].clone().unwrap_or_else(|| dim.clone());
        if !may_be_equal(&dims[axis], dim) {
            bail!(
                value,
                "expected source to have shape {} for this slice of a buffer of shape {}; got {}",
                Shape::from(
                    kept.iter().map(|&axis| sizes[axis].clone().unwrap_or(dim.clone())).collect::<Vec<_>>()
                ),
                buffer.shape(),
                source.shape()
            );
        }
    }
    let expected: Shape = kept.iter().map(|&axis| dims[axis].clone()).collect();
    if *source.shape() != expected {
        source = crate::ops::rebind(&source, expected, "the shape of a slice of a buffer")?;
    }
    let source = reshape_value(&source, dims.into())?;
    let mut operands = vec![buffer.value().clone(), source.into()];
    for bound in from.into_iter().chain(to) {
        if bound.rank() != 0 || !bound.dtype().is_integral() {
            bail!(value, "an index tensor must be a scalar of integers; got {}", bound.tensor_type());
        }
        operands.push(bound.cast(DType::Int64)?.into());
    }
    record(BufferStoreSlice { starts: starts.into(), steps, axes, stops }, &operands)?;
    Ok(())
}

/// What an op on buffers may do.
fn effects(reads: bool, writes: bool) -> Properties {
    Properties {
        effects: Effects { reads, writes, observable: false },
        checks: false,
        form: Form::Whole,
        folding: Folding::Never,
        heavy: false,
        rounds_operands: false,
    }
}

fn buffer<'a>(operands: &[&'a Type], count: usize) -> Result<&'a BufferType> {
    match operands {
        [Type::Buffer(buffer), ..] if operands.len() == count => Ok(buffer),
        [Type::Buffer(_), ..] => bail!(value, "expected {count} operands, got {}", operands.len()),
        _ => bail!(type_, "the first operand must be a buffer"),
    }
}

impl Operation for BufferCreate {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        if !operands.is_empty() {
            bail!(value, "expected no operands, got {}", operands.len());
        }
        Ok(vec![BufferType::new(self.dtype, &self.shape, self.device).into()])
    }

    /// Every buffer that is created is another one.
    fn properties(&self, _: Signature) -> Properties {
        effects(false, true)
    }

    fn eval(&self, _: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let shape = run.sizes(&self.shape)?;
        let mut bytes = Vec::new();
        let count = byte_count(self.dtype, &shape)?;
        max_core::memory::try_reserve(&mut bytes, count, "a buffer")?;
        bytes.resize(count, 0u8);
        Ok(vec![HostTensor::new(self.dtype, shape, HostBytes::from_vec(bytes))?])
    }
}

impl Operation for BufferLoad {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        Ok(vec![buffer(operands, 1)?.as_tensor().into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        effects(true, false)
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![operands[0].clone()])
    }
}

impl Operation for BufferStore {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let buffer = buffer(operands, 2)?;
        match operands[1] {
            Type::Tensor(source) if TensorType { layout: None, ..source.clone() } == buffer.as_tensor() => {
                Ok(vec![])
            }
            source => bail!(
                value,
                "a buffer of type {} cannot hold {source}: dtype, shape and device must be equal",
                operands[0]
            ),
        }
    }

    fn properties(&self, _: Signature) -> Properties {
        effects(false, true)
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        Ok(vec![operands[1].clone()])
    }
}

impl Operation for BufferStoreSlice {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let buffer = buffer(operands, 2 + self.axes.len() + self.stops.len())?;
        let (Type::Tensor(source), rank) = (operands[1], buffer.shape.rank()) else {
            bail!(type_, "expected a tensor, got {}", operands[1]);
        };
        if [self.starts.rank(), self.steps.len(), source.shape.rank()] != [rank; 3] {
            bail!(value, "storing to a slice needs a start, a step and a size for each of the {rank} axes");
        }
        if (source.dtype, source.device) != (buffer.dtype, buffer.device) {
            bail!(value, "a slice of {} cannot hold {source}: dtype and device must be equal", operands[0]);
        }
        self.starts.iter().try_for_each(Dim::validate)?;
        let in_order = |axes: &[usize]| axes.windows(2).all(|pair| pair[0] < pair[1]);
        let known = self.stops.iter().all(|axis| self.axes.contains(axis));
        if !known
            || !in_order(&self.axes)
            || !in_order(&self.stops)
            || self.axes.iter().any(|&axis| axis >= rank || self.steps[axis] < 1)
        {
            bail!(
                value,
                "axes with bounds in memory must be in order, below {rank}, and with positive steps"
            );
        }
        for bound in &operands[2..] {
            match bound {
                Type::Tensor(bound) if bound.shape.rank() == 0 && bound.dtype == DType::Int64 => {}
                other => bail!(value, "slice bounds must be scalars of type int64; got {other}"),
            }
        }
        for axis in 0..rank {
            if self.steps[axis] == 0 {
                bail!(value, "slice step cannot be zero");
            }
            let sizes = (
                buffer.shape[axis].as_static(),
                self.starts[axis].as_static(),
                source.shape[axis].as_static(),
            );
            if let (Some(size), Some(start), Some(count)) = sizes
                && !self.axes.contains(&axis)
            {
                check_range(axis, size, start, count, self.steps[axis])?;
            }
        }
        Ok(vec![])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties { checks: true, ..effects(false, true) }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let (buffer, source) = (&operands[0], &operands[1]);
        let mut layout = Strided::contiguous(buffer.shape());
        for (axis, &step) in self.steps.iter().enumerate() {
            let (size, count) = (buffer.shape()[axis] as i64, source.shape()[axis] as i64);
            let start = match self.axes.iter().position(|&own| own == axis) {
                None => self.starts[axis].evaluate(run.bindings)?,
                Some(at) => {
                    let read = |operand: usize| match operands[operand].to_integers()?.first() {
                        Some(&bound) => Ok(bound),
                        None => Err(Error::internal("a bound without a value")),
                    };
                    let stop = self.stops.iter().position(|&own| own == axis);
                    let stop = stop.map(|at| read(2 + self.axes.len() + at)).transpose()?;
                    put_start(axis, size, count, step, read(2 + at)?, stop)?
                }
            };
            cut(&mut layout, axis, start, count, step)?;
        }
        let width = buffer.dtype().size_in_bytes();
        let mut bytes = buffer.bytes().to_vec();
        for (at, element) in layout.positions().zip(source.bytes().chunks_exact(width)) {
            bytes[at * width..][..width].copy_from_slice(element);
        }
        Ok(vec![HostTensor::new(buffer.dtype(), buffer.shape(), HostBytes::from_vec(bytes))?])
    }
}
