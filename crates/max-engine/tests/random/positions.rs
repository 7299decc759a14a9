//! Recipes for ops that compute values from positions: ranges and random numbers.

use max_core::{DType, DeviceRef, Dim, TensorType};
use max_graph::ops::index::Limit;
use max_graph::{Operand, ops};

use super::generate::{Maker, slack, unit};
use super::shapes::scalar;

/// As many numbers as a value may have elements, in some shape.
pub fn range(m: &mut Maker) -> Option<()> {
    let dtype = *m.rng.pick(&[DType::Int64, DType::Int64, DType::Int32, DType::Float32, DType::Float64]);
    let shape = m.palette.shape(&mut m.rng);
    m.shape_fits(&shape)?;
    let count = shape.num_elements().ok()?;
    let start = m.rng.between(-3, 3);
    let step = *m.rng.pick(&[1, 1, 2, -1, -3]);
    let stop = count.mul(&Dim::Static(step)).and_then(|reach| reach.add(&Dim::Static(start)));
    let size = count.evaluate(&m.palette.bindings).ok()? as f64;
    let x = ops::range(start, stop.ok()?, step, None, dtype, DeviceRef::CPU).ok()?;
    m.push(ops::reshape(&x, shape), 3.0 + size * step.abs() as f64, 0.0)
}

/// A range between scalars that are only known at run time.
pub fn dynamic_range(m: &mut Maker) -> Option<()> {
    let (size, start) = (m.rng.between(0, 40), m.rng.between(-3, 3));
    let step: i64 = *m.rng.pick(&[1, 2, -1, -3]);
    // The stop may lie anywhere within one step after the last number.
    let beyond = if size > 0 { m.rng.between(0, step.abs() - 1) * step.signum() } else { 0 };
    let stop = scalar(m, start + size * step - beyond)?;
    let begin = if m.rng.chance(50) { Limit::from(&scalar(m, start)?) } else { start.into() };
    let dim = m.symbol(size as usize);
    let dtype = *m.rng.pick(&[DType::Int64, DType::Float64]);
    let x = ops::range(begin, &stop, step, dim, dtype, DeviceRef::CPU);
    m.push(x, 3.0 + (size * step.abs()) as f64, 0.0)
}

/// Random numbers, whose seed may only be known at run time.
pub fn random(m: &mut Maker) -> Option<()> {
    let dtypes = [(6, DType::Float32), (2, DType::Float64), (1, DType::Float16), (1, DType::BFloat16)];
    let dtype = *m.rng.weighted(&dtypes);
    let shape = m.palette.shape(&mut m.rng);
    m.shape_fits(&shape)?;
    let like = TensorType::new(dtype, shape, DeviceRef::CPU);
    let number = m.rng.between(-1000, 1000);
    let seed = Operand::from(&scalar(m, number)?);
    let low = m.rng.between(-16, 15) as f64 / 8.0;
    if !dtype.is_half() && m.rng.chance(60) {
        let high = m.rng.between((low * 8.0) as i64 + 1, 16) as f64 / 8.0;
        // Each step rounds as IEEE 754 specifies.
        return m.push(ops::random_uniform(like, low, high, seed), 2.0, 0.0);
    }
    let bound = 2.0 + 9.0;
    let error = slack(dtype, 0).max(unit(dtype)) * bound;
    m.push(ops::random_gaussian(like, low, 1.0, seed), bound, error)
}
