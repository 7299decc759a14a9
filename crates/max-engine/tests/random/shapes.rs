//! Recipes for ops that move elements, most of them without changing any.

use max_core::{DType, DeviceRef, Dim, Shape};
use max_graph::ops::broadcast::Target;
use max_graph::ops::slice::{Bound, Index};
use max_graph::{HostTensor, TensorValue, ops};

use super::generate::{Maker, Node, slack};
use super::recipes::axis_of;

/// Adds a value with the elements of another.
fn moved(m: &mut Maker, x: &Node, value: max_core::Result<TensorValue>) -> Option<()> {
    m.push(value, x.bound, x.error)
}

/// The sizes of a value as data.
pub fn sizes(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let bound = x.sizes.iter().max().map_or(1.0, |&n| n as f64);
    match m.rng.chance(50) {
        true => m.push(ops::shape_to_tensor(x.value.shape()), bound, 0.0),
        false => {
            let dim = m.rng.pick(x.value.shape()).clone();
            m.push(ops::tensor(dim), bound, 0.0)
        }
    }
}

pub fn reshape(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let dims = x.value.shape().to_vec();
    if m.rng.chance(40) {
        let start = m.rng.below(x.rank().max(1));
        let end = start + m.rng.below(x.rank().max(1) - start);
        return moved(m, &x, ops::flatten(&x.value, start as i64, end as i64));
    }
    let shape: Vec<Dim> = match m.rng.below(4) {
        // Neighbours merged, ones between them.
        0 => vec![Dim::Static(-1), Dim::Static(1)],
        1 if dims.len() > 1 => [&[Dim::Static(-1)], &dims[2..]].concat(),
        // An axis in two.
        2 => {
            let (at, _) = axis_of(m, &x)?;
            let factor = *m.rng.pick(&[1i64, 2, 4, 8, 16]);
            (dims[at].as_static()? % factor == 0).then_some(())?;
            let part = Dim::Static(dims[at].as_static()? / factor);
            [&dims[..at], &[part, Dim::Static(factor)], &dims[at + 1..]].concat()
        }
        // The same dims in another order: a reshape that is not a transpose.
        _ => dims.into_iter().rev().collect(),
    };
    moved(m, &x, ops::reshape(&x.value, shape))
}

pub fn axes_of_one(m: &mut Maker) -> Option<()> {
    let squeeze = m.rng.chance(50);
    let x = m.node(|x| if squeeze { x.value.shape().contains(&Dim::Static(1)) } else { x.rank() < 5 })?;
    if !squeeze {
        let rank = x.rank() as i64;
        let axis = m.rng.between(-rank - 1, rank);
        return moved(m, &x, ops::unsqueeze(&x.value, axis));
    }
    let ones: Vec<usize> = (0..x.rank()).filter(|&at| x.value.shape()[at] == Dim::Static(1)).collect();
    let axis = *m.rng.pick(&ones) as i64;
    moved(m, &x, ops::squeeze(&x.value, axis))
}

pub fn permute(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 1)?;
    if m.rng.chance(40) {
        let (_, a) = axis_of(m, &x)?;
        let (_, b) = axis_of(m, &x)?;
        return moved(m, &x, ops::transpose(&x.value, a, b));
    }
    let mut order: Vec<i64> = (0..x.rank() as i64).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, m.rng.below(at + 1));
    }
    moved(m, &x, ops::permute(&x.value, order))
}

/// Part of an axis with elements, or all of it.
fn range(m: &mut Maker, dim: &Dim, size: i64) -> Index {
    if size == 0 || m.rng.chance(20) {
        let step = if m.rng.chance(30) { -1 } else { 1 };
        return Index::Slice { start: Bound::Natural, stop: Bound::Natural, step, out_dim: None };
    }
    let first = m.rng.between(0, size - 1);
    let last = m.rng.between(first, size - 1);
    let step = *m.rng.weighted(&[(5, 1), (2, 2), (2, 3), (1, 7)]);
    let backward = m.rng.chance(35);
    // From the start or, as negative numbers, from the end.
    let mut position = |at: i64| Bound::Dim(Dim::Static(if m.rng.chance(40) { at - size } else { at }));
    let (start, stop) = match backward {
        false if last == size - 1 => (position(first), Bound::Natural),
        false => (position(first), position(last + 1)),
        true if first == 0 => (position(last), Bound::Natural),
        true => (position(last), position(first - 1)),
    };
    let step = if backward { -step } else { step };
    // All but the last, expressed with the dim itself.
    match dim.sub(&Dim::Static(1)) {
        Ok(shorter) if dim.as_static().is_none() && !backward && m.rng.chance(30) => {
            Index::Slice { start: Bound::Natural, stop: Bound::Dim(shorter), step, out_dim: None }
        }
        _ => Index::Slice { start, stop, step, out_dim: None },
    }
}

pub fn slice(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let mut indices = Vec::new();
    let used = m.rng.below(x.rank()) + 1;
    if m.rng.chance(15) {
        indices.push(Index::Ellipsis);
    }
    let from = if indices.is_empty() { 0 } else { x.rank() - used };
    for at in from..from + used {
        let size = x.sizes[at] as i64;
        if m.rng.chance(10) {
            indices.push(Index::NewAxis);
        }
        let index = match size {
            1.. if m.rng.chance(15) => Index::At(Dim::Static(m.rng.between(-size, size - 1))),
            1.. if m.rng.chance(5) => Index::Tensor(
                ops::constant(m.rng.between(-size, size - 1), DType::Int64, DeviceRef::CPU).ok()?,
            ),
            _ => range(m, &x.value.shape()[at], size),
        };
        indices.push(index);
    }
    moved(m, &x, ops::slice_tensor(&x.value, indices))
}

/// A scalar that is only known at run time, if there is a symbol to compute it from.
pub fn scalar(m: &mut Maker, number: i64) -> Option<TensorValue> {
    let symbolic = |x: &Node| x.value.shape().iter().any(|dim| dim.as_static().is_none());
    let Some(x) = m.node(symbolic).filter(|_| m.rng.chance(60)) else {
        return ops::constant(number, DType::Int64, DeviceRef::CPU).ok();
    };
    let at = x.value.shape().iter().position(|dim| dim.as_static().is_none())?;
    ops::add(ops::tensor(x.value.shape()[at].clone()).ok()?, number - x.sizes[at] as i64).ok()
}

/// A slice between scalars that are only known at run time.
pub fn dynamic_slice(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let at = m.rng.below(x.rank());
    let size = x.sizes[at] as i64;
    let step = if m.rng.chance(30) { *m.rng.pick(&[-3, -2, -1, 2]) } else { 1 };
    let [low, high] = [m.rng.between(0, size), m.rng.between(0, size)];
    let [start, stop] = if (step > 0) == (low < high) { [low, high] } else { [high, low] };
    // Backwards from the last element at most, because such slices are not clamped.
    let start = if step < 0 { start.min(size - 1).max(0) } else { start };
    let open_start = m.rng.chance(30);
    let open_stop = !open_start && m.rng.chance(30);
    let first = match open_start {
        true if step > 0 => 0,
        true => size - 1,
        false => start,
    };
    let end = match open_stop {
        true if step > 0 => size,
        true => -1,
        false => stop,
    };
    let length = if step > 0 { (end - first + step - 1) / step } else { (first - end - step - 1) / -step };
    let out_dim = Some(m.symbol(length.max(0) as usize));
    let start = if open_start { Bound::Natural } else { Bound::Tensor(scalar(m, start)?) };
    let stop = if open_stop { Bound::Natural } else { Bound::Tensor(scalar(m, stop)?) };
    let all = || Index::Slice { start: Bound::Natural, stop: Bound::Natural, step: 1, out_dim: None };
    let mut indices: Vec<Index> = (0..at).map(|_| all()).collect();
    indices.push(Index::Slice { start, stop, step, out_dim });
    moved(m, &x, ops::slice_tensor(&x.value, indices))
}

/// A broadcast to sizes that are only known at run time.
pub fn dynamic_broadcast(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let ahead = m.rng.below(2);
    let repeated = |m: &mut Maker, size: usize| if size == 1 { m.rng.below(5) } else { size };
    let own: Vec<usize> = x.sizes.iter().map(|&size| repeated(m, size)).collect();
    let sizes: Vec<usize> = (0..ahead).map(|_| m.rng.below(4)).chain(own).collect();
    m.fits(&sizes)?;
    let dims: Shape = sizes.iter().map(|&size| m.symbol(size)).collect();
    let scalars = sizes.iter().map(|&size| scalar(m, size as i64)).collect::<Option<Vec<_>>>()?;
    let vector = match scalars.is_empty() {
        true => ops::constant(HostTensor::from_vec([0], Vec::<i64>::new()).ok()?, None, None).ok()?,
        false => ops::stack(scalars.iter().collect::<Vec<_>>(), 0).ok()?,
    };
    moved(m, &x, ops::broadcast_to(&x.value, Target::Sizes((&vector).into(), dims)))
}

pub fn concat(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let (at, axis) = axis_of(m, &x)?;
    let stack = m.rng.chance(30);
    let mut parts = vec![x.clone()];
    for _ in 0..m.rng.below(3) {
        let beside = |y: &Node| {
            let others = |n: &Node| {
                n.value
                    .shape()
                    .iter()
                    .enumerate()
                    .filter(|&(i, _)| stack || i != at)
                    .map(|(_, d)| d.clone())
                    .collect::<Shape>()
            };
            y.dtype() == x.dtype() && y.rank() == x.rank() && others(y) == others(&x)
        };
        parts.extend(m.node(beside));
    }
    m.fits(&[parts.iter().map(Node::elements).sum()])?;
    let bound = parts.iter().map(|p| p.bound).fold(0.0, f64::max);
    let error = parts.iter().map(|p| p.error).fold(0.0, f64::max);
    let values: Vec<&TensorValue> = parts.iter().map(|p| &p.value).collect();
    m.push(if stack { ops::stack(values, axis) } else { ops::concat(values, axis) }, bound, error)
}

pub fn split(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let (at, axis) = axis_of(m, &x)?;
    let dim = x.value.shape()[at].clone();
    let parts = if m.rng.chance(40) {
        ops::chunk(&x.value, m.rng.between(1, 4), axis)
    } else {
        let first = m.rng.between(0, x.sizes[at] as i64);
        let rest = dim.sub(&Dim::Static(first)).ok()?;
        ops::split(&x.value, Shape::from(vec![Dim::Static(first), rest]), axis)
    };
    for part in parts.ok()? {
        moved(m, &x, Ok(part));
    }
    Some(())
}

pub fn gather(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let (at, axis) = axis_of(m, &x)?;
    let size = x.sizes[at] as i64;
    (size > 0).then_some(())?;
    let found = m.node(|i| i.dtype().is_integral() && i.rank() < 3);
    let (indices, sizes) = match found {
        // Computed indices, brought into range.
        Some(i) if m.rng.chance(60) => (ops::mod_(&i.value, size), i.sizes),
        _ => {
            let sizes: Vec<usize> = (0..m.rng.below(3)).map(|_| m.rng.below(6)).collect();
            // Now and then an index that is out of range at run time.
            let over = i64::from(m.rng.chance(1));
            let count: usize = sizes.iter().product();
            let picks: Vec<i64> = (0..count).map(|_| m.rng.between(-size - over, size - 1 + over)).collect();
            let picks = HostTensor::from_vec(sizes.clone(), picks).and_then(|p| match m.rng.chance(50) {
                true => p.cast(DType::Int32),
                false => Ok(p),
            });
            (ops::constant(picks.ok()?, None, None), sizes)
        }
    };
    m.fits(&[x.elements() / x.sizes[at], sizes.iter().product()])?;
    moved(m, &x, ops::gather(&x.value, indices, axis))
}

pub fn scatter(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let (at, axis) = axis_of(m, &x)?;
    let updates = m.node(|u| u.dtype() == x.dtype() && u.value.shape() == x.value.shape())?;
    let dim = x.value.shape()[at].clone();
    // Some places several times, others never, and the same ones along all other axes.
    let step = m.rng.between(0, 4);
    let places = ops::range(0, dim.clone(), 1, None, DType::Int64, None);
    let places = ops::mod_(ops::mul(places, step), dim.clone());
    let mut column = vec![Dim::Static(1); x.rank()];
    column[at] = dim;
    let places = ops::broadcast_to(ops::reshape(places, column), x.value.shape());
    let picks = x.sizes[at] as f64;
    match m.rng.below(3) {
        0 => {
            let y = ops::scatter(&x.value, &updates.value, places, axis);
            m.push(y, x.bound.max(updates.bound), x.error.max(updates.error))
        }
        1 => {
            let y = ops::scatter_max(&x.value, &updates.value, places, axis);
            m.push(y, x.bound.max(updates.bound), x.error.max(updates.error))
        }
        _ => {
            let bound = x.bound + picks * updates.bound;
            let error = x.error + picks * updates.error + slack(x.dtype(), x.sizes[at]) * picks * bound;
            m.push(ops::scatter_add(&x.value, &updates.value, places, axis), bound, error)
        }
    }
}

pub fn broadcast(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let y = m.node(|y| y.value.shape().broadcast(x.value.shape()).is_some_and(|s| s == *y.value.shape()));
    let shape = match y {
        Some(y) if m.rng.chance(60) && y.value.shape() != x.value.shape() => y.value.shape().clone(),
        // New leading axes, and repeated axes of size 1.
        _ => {
            let ahead = m.palette.shape(&mut m.rng).iter().take(1).cloned().collect::<Vec<_>>();
            let repeated = Dim::Static(m.rng.between(1, 4));
            let own = x
                .value
                .shape()
                .iter()
                .map(|d| if *d == Dim::Static(1) { repeated.clone() } else { d.clone() });
            ahead.into_iter().chain(own).collect()
        }
    };
    m.shape_fits(&shape)?;
    moved(m, &x, ops::broadcast_to(&x.value, shape))
}

pub fn rebind(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let mut dims = x.value.shape().to_vec();
    let (at, _) = axis_of(m, &x)?;
    match m.rng.below(100) {
        0..35 => dims[at] = m.symbol(x.sizes[at]),
        35..70 => dims[at] = Dim::from(x.sizes[at]),
        70..72 => dims[at] = Dim::from(x.sizes[at] + 1),
        _ => {}
    }
    moved(m, &x, ops::rebind(&x.value, dims, "as expected"))
}

pub fn transfer(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    moved(m, &x, ops::transfer_to(&x.value, DeviceRef::CPU))
}
