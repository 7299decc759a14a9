//! Slices: NumPy's basic indexing on graph values, with symbolic sizes and bounds known only at run time.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};

use max_core::{Dim, Error, Result, Shape, Strided, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::gather::gather;
use crate::ops::reshape::reshape_value;
use crate::ops::{all_tensors, axis_dim, tensors};
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// Along each axis: a start, the number of elements, and the step between them.
    Slice = "slice" { starts: Shape, sizes: Shape, steps: Vec<i64> }
}

op_struct! {
    /// A slice of one axis between scalars known at run time; the dim names how many elements that is. The start
    /// and the stop are operands if they are given; else the slice extends to the end of the axis.
    DynamicSlice = "dynamic_slice" { axis: usize, step: i64, start: bool, stop: bool, out_dim: Dim }
}

/// One end of a slice.
#[derive(Clone)]
pub enum Bound {
    /// The end of the axis: where the step comes from for a start, where it leads for a stop.
    Natural,
    /// A position; a negative number counts from the end.
    Dim(Dim),
    /// A scalar known at run time.
    Tensor(TensorValue),
}

/// One position of an index expression.
#[derive(Clone)]
pub enum Index {
    /// Picks an element and drops the axis.
    At(Dim),
    /// Picks an element by a scalar known at run time and drops the axis.
    Tensor(TensorValue),
    /// Keeps part of the axis.
    Slice {
        /// Where it starts.
        start: Bound,
        /// Where it stops, exclusive.
        stop: Bound,
        /// The distance between kept elements.
        step: i64,
        /// The size of the result, where the bounds are tensors.
        out_dim: Option<Dim>,
    },
    /// Inserts an axis of size one.
    NewAxis,
    /// Stands for all axes that have no other index.
    Ellipsis,
}

impl Index {
    fn slice(start: Option<i64>, stop: Option<i64>) -> Index {
        let bound = |b: Option<i64>| b.map_or(Bound::Natural, |b| Bound::Dim(Dim::Static(b)));
        Index::Slice { start: bound(start), stop: bound(stop), step: 1, out_dim: None }
    }
}

macro_rules! index_from {
    ($($type:ty: $x:ident => $index:expr;)*) => {$(
        impl From<$type> for Index {
            fn from($x: $type) -> Index {
                $index
            }
        }

        impl From<$type> for Indices {
            fn from(index: $type) -> Indices {
                Indices(vec![index.into()])
            }
        }
    )*};
}

index_from! {
    i64: i => Index::At(Dim::Static(i));
    Range<i64>: r => Index::slice(Some(r.start), Some(r.end));
    RangeInclusive<i64>: r => Index::slice(Some(*r.start()), Some(r.end().saturating_add(1)).filter(|&end| end != 0));
    RangeFrom<i64>: r => Index::slice(Some(r.start), None);
    RangeTo<i64>: r => Index::slice(None, Some(r.end));
    RangeFull: _r => Index::slice(None, None);
    &TensorValue: t => Index::Tensor(t.clone());
}

/// An index expression.
#[derive(Clone)]
pub struct Indices(pub(crate) Vec<Index>);

impl<I: Into<Index>> From<Vec<I>> for Indices {
    fn from(indices: Vec<I>) -> Indices {
        Indices(indices.into_iter().map(Into::into).collect())
    }
}

impl<I: Into<Index>, const N: usize> From<[I; N]> for Indices {
    fn from(indices: [I; N]) -> Indices {
        Indices(indices.into_iter().map(Into::into).collect())
    }
}

macro_rules! indices_from_tuples {
    ($(($($I:ident $i:ident),+))*) => {$(
        impl<$($I: Into<Index>),+> From<($($I,)+)> for Indices {
            fn from(($($i,)+): ($($I,)+)) -> Indices {
                Indices(vec![$($i.into()),+])
            }
        }
    )*};
}
indices_from_tuples!((A a, B b) (A a, B b, C c) (A a, B b, C c, D d) (A a, B b, C c, D d, E e));

op_fns! {
    /// The subtensor that an index expression selects. Bounds are not clamped: a slice beyond the axis is an error.
    pub fn slice_tensor(x: Operand, indices: Indices) -> TensorValue {
        select(x.tensor()?, indices)
    }
}

/// The part of a tensor between two positions along an axis; without one, from its start or to its end.
pub(crate) fn part(
    x: &TensorValue,
    axis: usize,
    start: Option<Dim>,
    stop: Option<Dim>,
) -> Result<TensorValue> {
    let [start, stop] = [start, stop].map(|bound| bound.map_or(Bound::Natural, Bound::Dim));
    let whole = (0..axis).map(|_| Index::from(..));
    let part = Index::Slice { start, stop, step: 1, out_dim: None };
    slice_tensor(x, whole.chain([part]).collect::<Vec<_>>())
}

fn select(x: TensorValue, Indices(indices): Indices) -> Result<TensorValue> {
    let indices = expand(indices, x.shape())?;
    let (mut starts, mut sizes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    // The selections made at run time, and what happens to each axis.
    let (mut dynamic, mut layout) = (Vec::new(), Vec::new());
    for index in indices {
        let axis = starts.len();
        let (start, size, step, keep) = match index {
            Index::NewAxis => {
                layout.push(Keep::New);
                continue;
            }
            Index::Ellipsis => continue,
            Index::At(at) => (position(&at, &x.shape()[axis], axis)?, Dim::Static(1), 1, Keep::Drop),
            Index::Tensor(at) => {
                dynamic.push(Dynamic::At(axis, at));
                (Dim::Static(0), x.shape()[axis].clone(), 1, Keep::Gone)
            }
            Index::Slice { start, stop, step, out_dim } => {
                if matches!((&start, &stop), (Bound::Tensor(_), _) | (_, Bound::Tensor(_))) {
                    let Some(out_dim) = out_dim else {
                        bail!(
                            value,
                            "a slice between tensors needs the dim of its result: x[(slice(start, stop), dim)]"
                        );
                    };
                    dynamic.push(Dynamic::Slice { axis, start, stop, step, out_dim: out_dim.clone() });
                    (Dim::Static(0), x.shape()[axis].clone(), 1, Keep::Axis(Some(out_dim)))
                } else {
                    let (start, size) = range(&start, &stop, step, &x.shape()[axis], axis)?;
                    (start, size, step, Keep::Axis(out_dim))
                }
            }
        };
        layout.push(keep);
        starts.push(start);
        sizes.push(size);
        steps.push(step);
    }
    let (starts, sizes) = (Shape::from(starts), Shape::from(sizes));
    let whole =
        sizes == *x.shape() && starts.iter().all(|s| *s == Dim::Static(0)) && steps.iter().all(|&s| s == 1);
    let mut y = if whole { x } else { record_one(Slice { starts, sizes, steps }, [&x])? };
    // From the last axis to the first, so that dropped axes do not renumber those still to come.
    for item in dynamic.into_iter().rev() {
        y = item.apply(&y)?;
    }
    finish(&y, &layout)
}

/// What happens to an axis.
enum Keep {
    New,
    Drop,
    /// It has already been dropped, by a gather.
    Gone,
    /// It is kept, with this dim if one is given.
    Axis(Option<Dim>),
}

enum Dynamic {
    At(usize, TensorValue),
    Slice { axis: usize, start: Bound, stop: Bound, step: i64, out_dim: Dim },
}

impl Dynamic {
    fn apply(self, y: &TensorValue) -> Result<TensorValue> {
        match self {
            Dynamic::At(axis, at) => {
                if at.rank() != 0 {
                    bail!(value, "an index tensor must be a scalar; got shape {}", at.shape());
                }
                gather(y, at, axis as i64)
            }
            Dynamic::Slice { axis, start, stop, step, out_dim } => {
                let [start, stop] = [scalar(start)?, scalar(stop)?];
                let op = DynamicSlice { axis, step, start: start.is_some(), stop: stop.is_some(), out_dim };
                record_one(op, [y].into_iter().chain(&start).chain(&stop))
            }
        }
    }
}

/// A bound as a tensor; `None` for the end of the axis.
pub(crate) fn scalar(bound: Bound) -> Result<Option<TensorValue>> {
    match bound {
        Bound::Natural => Ok(None),
        Bound::Dim(dim) => Operand::from(dim).tensor().map(Some),
        Bound::Tensor(tensor) => Ok(Some(tensor)),
    }
}

/// Drops and inserts axes, and replaces computed dims by given ones.
fn finish(y: &TensorValue, layout: &[Keep]) -> Result<TensorValue> {
    let mut given = y.shape().to_vec();
    let mut axis = 0;
    let mut dims = Vec::new();
    for keep in layout {
        match keep {
            Keep::New => dims.push(Dim::Static(1)),
            Keep::Gone => {}
            Keep::Drop => axis += 1,
            Keep::Axis(dim) => {
                if let Some(dim) = dim {
                    given[axis] = dim.clone();
                }
                dims.push(given[axis].clone());
                axis += 1;
            }
        }
    }
    let given = Shape::from(given);
    let y = if given == *y.shape() { y.clone() } else { crate::ops::rebind(y, given, "slice size")? };
    reshape_value(&y, dims.into())
}

/// Replaces the ellipsis, explicit or implied at the end, by full slices.
pub(crate) fn expand(indices: Vec<Index>, shape: &Shape) -> Result<Vec<Index>> {
    let used = indices.iter().filter(|i| !matches!(i, Index::NewAxis | Index::Ellipsis)).count();
    let Some(missing) = shape.rank().checked_sub(used) else {
        bail!(value, "Too many indices: {used} for a tensor of rank {} and shape {shape}", shape.rank());
    };
    let mut ellipses = 0;
    let mut full = Vec::new();
    for index in indices {
        if let Index::Ellipsis = index {
            ellipses += 1;
            full.extend((0..missing).map(|_| Index::from(..)));
        } else {
            full.push(index);
        }
    }
    match ellipses {
        0 => full.extend((0..missing).map(|_| Index::from(..))),
        1 => {}
        _ => bail!(value, "an index expression has at most one ellipsis"),
    }
    Ok(full)
}

/// The position that an index picks, checked if the size is known.
pub(crate) fn position(at: &Dim, size: &Dim, axis: usize) -> Result<Dim> {
    match (at, size) {
        (Dim::Static(i), Dim::Static(n)) if *i < -n || i >= n => {
            bail!(index, "index {i} is out of range for axis {axis} with size {n}")
        }
        (Dim::Static(i), _) if *i < 0 => size.add(at),
        _ => Ok(at.clone()),
    }
}

/// The first position and the number of positions of a slice.
pub(crate) fn range(start: &Bound, stop: &Bound, step: i64, size: &Dim, axis: usize) -> Result<(Dim, Dim)> {
    let dim = |bound: &Bound| match bound {
        Bound::Dim(dim) => Some(dim.clone()),
        _ => None,
    };
    extent(dim(start), dim(stop), step, size, axis)
}

/// The first position and the number of positions between bounds; a missing bound is the end of the axis. Negative
/// numbers count from the end; bounds are checked as far as sizes are known, and never clamped.
pub fn extent(
    start: Option<Dim>,
    stop: Option<Dim>,
    step: i64,
    size: &Dim,
    axis: usize,
) -> Result<(Dim, Dim)> {
    if step == 0 {
        bail!(value, "slice step cannot be zero");
    }
    let (down, one) = (step < 0, Dim::Static(1));
    let step_size =
        Dim::Static(step.checked_abs().ok_or_else(|| Error::value("slice step exceeds 64 bits"))?);
    let ends = if down { (size.sub(&one)?, Dim::Static(-1)) } else { (Dim::Static(0), size.clone()) };
    let resolve = |bound: Option<Dim>, natural: Dim| match bound {
        Some(Dim::Static(b)) if b < 0 => size.add(&Dim::Static(b)),
        Some(dim) => Ok(dim),
        None => Ok(natural),
    };
    let (from, to) = (resolve(start.clone(), ends.0)?, resolve(stop.clone(), ends.1)?);
    if let Dim::Static(n) = size {
        let allowed = if down { -1..=n - 1 } else { 0..=*n };
        for (bound, given) in [(&from, &start), (&to, &stop)] {
            if bound.as_static().is_some_and(|b| !allowed.contains(&b)) {
                let given = given.as_ref().unwrap_or(bound);
                bail!(
                    value,
                    "slice bound {given} is out of range for axis {axis} with size {n}; slices are not clamped"
                );
            }
        }
    }
    let distance = if down { from.sub(&to)? } else { to.sub(&from)? };
    if distance.as_static().is_some_and(|d| d < 0) {
        bail!(value, "slice of axis {axis} with size {size} starts at {from}, after its stop {to}");
    }
    // The quotient rounded up, without overflow for any distance.
    let count = distance.sub(&one)?.floor_div(&step_size)?.add(&one)?;
    Ok((from, count))
}

/// Checks that all positions of a slice are within the axis.
pub fn check_range(axis: usize, size: i64, start: i64, count: i64, step: i64) -> Result<()> {
    if count < 0 {
        bail!(
            value,
            "a slice of axis {axis} with size {size} starts at {start}, after its stop; slices are not clamped"
        );
    }
    let last = (count - 1).checked_mul(step).and_then(|reach| start.checked_add(reach));
    if count > 0 && (!(0..size).contains(&start) || last.is_none_or(|last| !(0..size).contains(&last))) {
        bail!(
            value,
            "{count} elements from {start} in steps of {step} are out of range for axis {axis} with size {size}"
        );
    }
    Ok(())
}

/// The elements that a slice of an axis selects, checked against its size.
pub(crate) fn cut(layout: &mut Strided, axis: usize, start: i64, count: i64, step: i64) -> Result<()> {
    check_range(axis, layout.shape[axis] as i64, start, count, step)?;
    if count > 0 {
        layout.offset += start as usize * layout.strides[axis] as usize;
    }
    if count > 1 {
        layout.strides[axis] *= step as isize;
    }
    layout.shape[axis] = count as usize;
    Ok(())
}

impl Slice {
    /// Whether it is known to stay within a shape.
    fn is_within(&self, shape: &Shape) -> bool {
        (0..shape.rank()).all(|axis| {
            let (start, size, step) = (&self.starts[axis], &self.sizes[axis], self.steps[axis]);
            let whole = *start == Dim::Static(0) && *size == shape[axis] && step == 1;
            let inside = || {
                let (start, size, len) = (start.as_static()?, size.as_static()?, shape[axis].as_static()?);
                Some(check_range(axis, len, start, size, step).is_ok())
            };
            whole || inside().unwrap_or(false)
        })
    }
}

impl Operation for Slice {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        if [self.starts.rank(), self.sizes.rank(), self.steps.len()] != [x.shape.rank(); 3] {
            bail!(value, "slice needs a start, a size and a step for each of the {} axes", x.shape.rank());
        }
        self.starts.iter().try_for_each(Dim::validate)?;
        if self.steps.contains(&0) {
            bail!(value, "slice step cannot be zero");
        }
        Ok(vec![x.with_shape(&self.sizes).into()])
    }

    fn properties(&self, signature: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: !signature.shape(0).is_some_and(|shape| self.is_within(shape)),
            form: Form::Part,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], run: &Run) -> Result<Vec<HostTensor>> {
        let mut layout = Strided::contiguous(operands[0].shape());
        for (axis, &step) in self.steps.iter().enumerate() {
            let (start, size) =
                (self.starts[axis].evaluate(run.bindings)?, self.sizes[axis].evaluate(run.bindings)?);
            cut(&mut layout, axis, start, size, step)?;
        }
        Ok(vec![operands[0].gathered(&layout)?])
    }
}

impl Operation for DynamicSlice {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let tensors = all_tensors(operands)?;
        let given = usize::from(self.start) + usize::from(self.stop);
        let Some((x, bounds)) = tensors.split_first().filter(|(_, bounds)| bounds.len() == given) else {
            bail!(value, "a slice takes a tensor and {given} bounds; got {} operands", tensors.len());
        };
        for bound in bounds {
            if bound.shape.rank() != 0 || !bound.dtype.is_integral() {
                bail!(value, "slice bounds must be scalar integers; got {bound}");
            }
        }
        axis_dim(x, self.axis)?;
        if self.step == 0 {
            bail!(value, "slice step cannot be zero");
        }
        let mut dims = x.shape.to_vec();
        dims[self.axis] = self.out_dim.clone();
        Ok(vec![x.with_shape(dims).into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: true,
            form: Form::Part,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let mut bounds = operands[1..].iter();
        let mut bound = |given: bool| match if given { bounds.next() } else { None } {
            Some(tensor) => tensor.to_integers().map(|i| i.first().copied().map(Dim::Static)),
            None => Ok(None),
        };
        let (start, stop) = (bound(self.start)?, bound(self.stop)?);
        let mut layout = Strided::contiguous(operands[0].shape());
        let size = Dim::from(layout.shape[self.axis]);
        let (start, count) = extent(start, stop, self.step, &size, self.axis)?;
        let known = |dim: Dim| {
            dim.as_static()
                .ok_or_else(|| Error::internal("a slice of static sizes has a dim that is not static"))
        };
        cut(&mut layout, self.axis, known(start)?, known(count)?, self.step)?;
        Ok(vec![operands[0].gathered(&layout)?])
    }
}
