//! A program bound to the sizes of one execution: its facts checked, its kernels with numbers, its arenas.

use max_core::kernel::{Access, Kernel, Map, Slot};
use max_core::{Bindings, Dim, Error, Result, Shape, bail};
use max_graph::host::byte_count;
use max_graph::ops::resample::Resample;
use max_graph::ops::{pool, slice, sort};

use crate::plan::{self, MemoryPlan};
use crate::program::{Claim, Program, SlotInfo, Work};

/// What facts need to know about data.
pub trait Data {
    /// The sizes of a weight.
    fn weight_sizes(&self, weight: usize) -> Result<&[usize]>;

    /// The elements of an integer scalar or vector in a slot that has been computed.
    fn integers(&self, access: &Access<i64>, count: usize) -> Result<Vec<i64>>;
}

/// A segment bound to known sizes.
#[derive(Debug)]
pub struct Bound {
    /// The kernels of the program that its steps launch; `None` for the others.
    pub kernels: Vec<Option<Kernel<i64>>>,
    /// The sizes of each slot that this segment uses.
    pub shapes: Shapes,
    /// Its arenas.
    pub plan: MemoryPlan,
}

/// The sizes of slots, all in one piece of memory: a new size is bound often.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    /// Where those of each slot start and end; `None` for slots that are not used.
    places: Vec<Option<(u32, u32)>>,
    sizes: Vec<usize>,
}

impl Shapes {
    fn new(slots: usize) -> Shapes {
        Shapes { places: vec![None; slots], sizes: Vec::with_capacity(4 * slots) }
    }

    fn learn(&mut self, slot: usize, shape: &Shape, bindings: &Bindings) -> Result<()> {
        if self.places[slot].is_none() {
            let start = self.sizes.len() as u32;
            shape.evaluate_into(bindings, &mut self.sizes)?;
            self.places[slot] = Some((start, self.sizes.len() as u32));
        }
        Ok(())
    }

    /// The sizes of a slot; `None` if it is not used.
    pub fn get(&self, slot: usize) -> Option<&[usize]> {
        let (start, end) = (*self.places.get(slot)?)?;
        Some(&self.sizes[start as usize..end as usize])
    }

    /// The sizes of all slots.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[usize]>> {
        (0..self.places.len()).map(|slot| self.get(slot))
    }
}

impl Program {
    /// Checks the facts of a segment and binds the symbols they determine.
    pub fn learn(&self, segment: usize, bindings: &mut Bindings, data: &dyn Data) -> Result<()> {
        for fact in &self.segments[segment].facts {
            hold(&fact.claim, bindings, data).map_err(|error| self.blame(fact.op, error))?;
        }
        Ok(())
    }

    /// Binds a segment to known sizes.
    pub fn bind(&self, segment: usize, bindings: &Bindings) -> Result<Bound> {
        let mut kernels: Vec<Option<Kernel<i64>>> = vec![None; self.kernels.len()];
        let mut shapes = Shapes::new(self.slots.len());
        for number in self.segments[segment].steps.clone() {
            let step = &self.steps[number];
            let blame = |error| match step.ops.last() {
                Some(&op) => self.blame(op, error),
                None => error,
            };
            let mut bind = || -> Result<()> {
                for slot in step.slots() {
                    shapes.learn(slot.0 as usize, &self.slots[slot.0 as usize].shape, bindings)?;
                }
                let Work::Kernel(launch) = &step.work else { return Ok(()) };
                let (kernel, bound) = (&self.kernels[launch.kernel].1, &mut kernels[launch.kernel]);
                if bound.is_none() {
                    for ending in kernel.endings() {
                        Shape::from(ending.run.shape.as_slice()).evaluate(bindings)?;
                    }
                    *bound = Some(kernel.bind(bindings)?);
                }
                Ok(())
            };
            bind().map_err(blame)?;
        }
        let plan = plan::plan(self, segment, &self.bytes(&shapes)?)?;
        let bound = Bound { kernels, shapes, plan };
        if cfg!(debug_assertions) {
            self.check_plan(segment, &bound)?;
        }
        Ok(bound)
    }

    /// Proves the memory plan of a segment free of overlap.
    pub fn check_plan(&self, segment: usize, bound: &Bound) -> Result<()> {
        plan::check(self, segment, &self.bytes(&bound.shapes)?, &bound.plan)
    }

    /// The bytes of every slot whose sizes are known.
    fn bytes(&self, shapes: &Shapes) -> Result<Vec<usize>> {
        let bytes = |(slot, shape): (&SlotInfo, Option<&[usize]>)| match shape {
            Some(shape) => byte_count(slot.dtype, shape),
            None => Ok(0),
        };
        self.slots.iter().zip(shapes.iter()).map(bytes).collect()
    }

    /// Whether all sizes are known at compile time.
    pub fn is_static(&self) -> bool {
        let known = |shape: &Shape| shape.iter().all(|dim| dim.as_static().is_some());
        self.segments.len() == 1
            && self.slots.iter().all(|slot| known(&slot.shape))
            && self.inputs.iter().all(|ty| ty.array().is_some_and(|(_, shape)| known(shape)))
    }
}

fn hold(claim: &Claim, bindings: &mut Bindings, data: &dyn Data) -> Result<()> {
    match claim {
        Claim::Weight(weight, shape) => {
            let sizes: Vec<i64> = data.weight_sizes(*weight)?.iter().map(|&size| size as i64).collect();
            name_sizes(shape, &sizes, bindings)
        }
        Claim::Rebind { from, to, message } => {
            let sizes = from.evaluate(bindings)?;
            for (dim, &size) in to.iter().zip(&sizes) {
                // A symbol that is not bound yet gets its size from this tensor.
                dim.bind(size as i64, bindings)?;
                let expected = dim.evaluate(bindings)?;
                if expected != size as i64 {
                    let note = if message.is_empty() { "" } else { ": " };
                    bail!(
                        value,
                        "rebind shape check failed{note}{message}: {to} has {dim} = {expected}, got shape {sizes:?}"
                    );
                }
            }
            Ok(())
        }
        Claim::Slice { axis, size, start, count, step } => {
            let [size, start, count] = evaluate([size, start, count], bindings)?;
            slice::check_range(*axis, size, start, count, *step)
        }
        Claim::NotEmpty(size, kind) => kind.check_size(size.evaluate(bindings)?),
        Claim::Window(op, window) => {
            window.iter().try_for_each(|size| pool::check_window(op, size.evaluate(bindings)?))
        }
        Claim::Resampled(size) => Resample::check_size(size.evaluate(bindings)?),
        Claim::Filter { taps: [r, s], filters, groups } => {
            let [r, s, f] = evaluate([r, s, filters], bindings)?;
            if r == 0 || s == 0 || f % *groups as i64 != 0 {
                bail!(
                    value,
                    "conv2d filter of {r} x {s} taps and {f} output channels must have taps, and output channels that \
                     {groups} groups divide"
                );
            }
            Ok(())
        }
        Claim::Count { axis, size, count } => {
            let [size, count] = evaluate([size, count], bindings)?;
            sort::check_count(*axis, size, count)
        }
        Claim::Bounds { axis, size, start, stop, step, first, count } => {
            let size = size.evaluate(bindings)?;
            let read = |access: &Option<Access<Dim>>| -> Result<Option<Dim>> {
                let Some(access) = access else { return Ok(None) };
                let access = bind(access, bindings)?;
                match data.integers(&access, 1)?.first() {
                    Some(&value) => Ok(Some(Dim::Static(value))),
                    None => bail!(internal, "a bound without a value"),
                }
            };
            let (start, stop) = (read(start)?, read(stop)?);
            let (start, found) = slice::extent(start, stop, *step, &Dim::Static(size), *axis)?;
            let [start, found] = evaluate([&start, &found], bindings)?;
            slice::check_range(*axis, size, start, found, *step)?;
            bindings.insert(first.clone(), start);
            name_sizes(&Shape::from([count]), &[found], bindings)
        }
        Claim::Sizes { values, from, to, walks } => {
            let access = bind(values, bindings)?;
            let sizes = data.integers(&access, to.rank())?;
            if let Some(negative) = sizes.iter().find(|&&size| size < 0) {
                bail!(value, "cannot broadcast to the shape {sizes:?}: {negative} is negative");
            }
            let from = from.evaluate(bindings)?;
            let missing = sizes.len() - from.len();
            if from.iter().zip(&sizes[missing..]).any(|(&own, &target)| own != 1 && own as i64 != target) {
                bail!(value, "cannot broadcast shape {from:?} to {sizes:?}");
            }
            for (axis, walk) in walks {
                let whole = from[*axis] as i64 == sizes[missing + axis];
                bindings.insert(walk.clone(), i64::from(whole));
            }
            name_sizes(to, &sizes, bindings)
        }
    }
}

fn bind(access: &Access<Dim>, bindings: &Bindings) -> Result<Access<i64>> {
    access
        .map(&mut Map { size: &mut |dim: &Dim| dim.evaluate(bindings), memory: &mut |slot: &Slot| Ok(*slot) })
}

fn evaluate<const N: usize>(dims: [&Dim; N], bindings: &Bindings) -> Result<[i64; N]> {
    let sizes = dims.into_iter().map(|dim| dim.evaluate(bindings)).collect::<Result<Vec<_>>>()?;
    sizes.try_into().map_err(|_| Error::internal("an array changed its length"))
}

/// Binds the symbols that sizes determine and checks the others.
fn name_sizes(shape: &Shape, sizes: &[i64], bindings: &mut Bindings) -> Result<()> {
    for (dim, &size) in shape.iter().zip(sizes) {
        dim.bind(size, bindings)?;
        let expected = dim.evaluate(bindings)?;
        if expected != size {
            bail!(value, "the symbolic dimension '{dim}' is {expected}, but the result has the size {size}");
        }
    }
    Ok(())
}
