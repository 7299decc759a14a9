//! One recipe per kind of op: it picks operands from the values there are, keeps them where the op is well defined, and
//! says how large and how accurate the result is.

use max_core::{DType, DeviceRef, Dim, Number, Result, Shape};
use max_graph::{HostTensor, TensorValue, ops};

use super::generate::{Maker, Node, random_tensor, slack, unit};
use super::{positions, shapes};

/// Adds a value to the graph, or nothing if no operands are suitable.
pub type Recipe = fn(&mut Maker) -> Option<()>;

/// The recipes, and how often each is tried.
pub const RECIPES: &[(usize, Recipe)] = &[
    (6, exact_unary),
    (4, rounding),
    (14, real_unary),
    (18, arithmetic),
    (5, quotient),
    (4, whole_quotient),
    (4, power),
    (5, comparison),
    (2, question),
    (4, logical),
    (4, choice),
    (8, cast),
    (12, reduction),
    (3, deviation),
    (5, softmax),
    (4, layer_norm),
    (3, rms_norm),
    (7, matmul),
    (2, attention),
    (3, conv2d),
    (4, constant),
    (4, positions::range),
    (2, positions::dynamic_range),
    (5, positions::random),
    (3, shapes::sizes),
    (7, shapes::reshape),
    (5, shapes::axes_of_one),
    (7, shapes::permute),
    (9, shapes::slice),
    (4, shapes::dynamic_slice),
    (3, shapes::dynamic_broadcast),
    (6, shapes::concat),
    (4, shapes::split),
    (5, shapes::gather),
    (3, shapes::scatter),
    (4, shapes::broadcast),
    (4, shapes::rebind),
    (1, shapes::transfer),
];

type Unary = fn(&TensorValue) -> Result<TensorValue>;
type Binary = fn(&TensorValue, &TensorValue) -> Result<TensorValue>;

/// `|x| + offset`, which is not zero.
fn away_from_zero(x: &Node, offset: f64) -> Result<TensorValue> {
    let abs = ops::abs(&x.value);
    if x.is_float() { ops::add(abs, offset) } else { ops::add(abs, 1i64) }
}

fn clamped(x: &TensorValue, low: f64, high: f64) -> Result<TensorValue> {
    ops::min(ops::max(x, low), high)
}

/// The error of a result that is rounded to its dtype: zero if everything before was exact and the rounding is that of
/// IEEE 754.
fn rounded(dtype: DType, bound: f64, error: f64) -> f64 {
    match dtype {
        DType::Float32 | DType::Float64 if error == 0.0 => 0.0,
        dtype if dtype.is_float() => error + 2.0 * unit(dtype) * bound,
        _ => 0.0,
    }
}

fn exact_unary(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let f = *m.rng.pick::<Unary>(&[|x| ops::abs(x), |x| ops::negate(x), |x| ops::relu(x)]);
    m.push(f(&x.value), if x.dtype().is_unsigned_integral() { f64::INFINITY } else { x.bound }, x.error)
}

fn rounding(m: &mut Maker) -> Option<()> {
    let x = m.node(Node::is_exact)?;
    let table: [Unary; 4] = [|x| ops::floor(x), |x| ops::ceil(x), |x| ops::round(x), |x| ops::trunc(x)];
    let f = *m.rng.pick(&table);
    m.push(f(&x.value), x.bound.ceil(), 0.0)
}

/// A real function where it is smooth: how to compute it, its Lipschitz constant, and its largest value for operands
/// within a bound.
type Smooth = (fn(&Node) -> Result<TensorValue>, f64, fn(f64) -> f64);

const SMOOTH: &[Smooth] = &[
    (|x| ops::sqrt(away_from_zero(x, 0.125)), 1.5, |b| (b + 0.125).sqrt()),
    (|x| ops::rsqrt(away_from_zero(x, 0.5)), 1.5, |_| 1.5),
    (|x| ops::exp(clamped(&x.value, -5.0, 3.0)), 20.1, |b| b.min(3.0).exp()),
    (|x| ops::log(away_from_zero(x, 1.0)), 1.0, |b| b.ln_1p().max(0.1)),
    (|x| ops::log1p(ops::abs(&x.value)), 1.0, |b| b.ln_1p().max(0.1)),
    (|x| ops::sin(&x.value), 1.0, |_| 1.0),
    (|x| ops::cos(&x.value), 1.0, |_| 1.0),
    (|x| ops::acos(clamped(&x.value, -0.9, 0.9)), 2.3, |_| 2.7),
    (|x| ops::atanh(clamped(&x.value, -0.9, 0.9)), 5.3, |_| 1.5),
    (|x| ops::tanh(&x.value), 1.0, |_| 1.0),
    (|x| ops::erf(&x.value), 1.2, |_| 1.0),
    (|x| ops::sigmoid(&x.value), 0.3, |_| 1.0),
    (|x| ops::silu(&x.value), 1.2, |b| b.max(0.3)),
    (|x| ops::gelu(&x.value), 1.2, |b| b.max(0.3)),
    (|x| ops::gelu_tanh(&x.value), 1.2, |b| b.max(0.3)),
    (|x| ops::gelu_quick(&x.value), 1.2, |b| b.max(0.3)),
];

fn real_unary(m: &mut Maker) -> Option<()> {
    if m.rng.chance(15) {
        return exact_root(m);
    }
    let x = m.node(|x| x.is_float() && x.bound <= 100.0)?;
    let &(f, stretch, bound) = m.rng.pick(SMOOTH);
    let bound = bound(x.bound);
    let error = stretch * x.error + slack(x.dtype(), 0) * bound.max(x.bound).max(1.0);
    m.tame(x.dtype(), bound, error)?;
    m.push(f(&x), bound, error)
}

/// Square roots are correctly rounded, down to zero; those of integers are truncated.
fn exact_root(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.is_exact() && x.dtype() != DType::Bool && x.bound <= 1e6)?;
    let bound = x.bound.sqrt().max(1.0);
    m.push(ops::sqrt(ops::abs(&x.value)), bound, rounded(x.dtype(), bound, 0.0))
}

/// A second operand for a value: another value that broadcasts with it, or a number.
fn partner(m: &mut Maker, x: &Node, wanted: impl Fn(&Node) -> bool) -> Option<Node> {
    let mixed = m.rng.chance(10);
    let meets = |y: &Node| match mixed {
        true => y.dtype().promote(x.dtype()).is_ok(),
        false => y.dtype() == x.dtype(),
    };
    let found = m.node(|y| wanted(y) && meets(y) && x.value.shape().broadcast(y.value.shape()).is_some());
    match found {
        Some(y) if !m.rng.chance(10) => {
            m.shape_fits(&x.value.shape().broadcast(y.value.shape())?)?;
            Some(y)
        }
        _ => scalar(m, x.dtype()),
    }
}

fn scalar(m: &mut Maker, dtype: DType) -> Option<Node> {
    let number = match dtype {
        DType::Bool => Number::Bool(m.rng.chance(50)),
        dtype if dtype.is_float() => Number::Float(m.rng.between(-16, 16) as f64 / 8.0),
        dtype if dtype.is_unsigned_integral() => Number::Int(m.rng.below(7) as i128),
        _ => Number::Int(m.rng.between(-6, 6).into()),
    };
    let value = HostTensor::scalar(number, dtype).and_then(|value| ops::constant(value, None, None)).ok()?;
    let bound = if dtype.is_float() { 2.0 } else { 6.0 };
    Some(Node { value, sizes: vec![], bound, error: 0.0 })
}

/// The dtype of an op on two operands.
fn meeting(x: &Node, y: &Node) -> Option<DType> {
    x.dtype().promote(y.dtype()).ok()
}

fn swapped(m: &mut Maker, x: Node, y: Node) -> (Node, Node) {
    if m.rng.chance(50) { (x, y) } else { (y, x) }
}

/// A function of two operands, the bound and the error of its result, and whether the result is rounded.
type Arithmetic = (Binary, (f64, f64), bool);

fn arithmetic(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let y = partner(m, &x, |_| true)?;
    let (x, y) = swapped(m, x, y);
    let dtype = meeting(&x, &y)?;
    let sum = (x.bound + y.bound, x.error + y.error);
    // Below zero, unsigned integers wrap around.
    let difference = if dtype.is_unsigned_integral() { (f64::INFINITY, 0.0) } else { sum };
    let product = (x.bound * y.bound, x.error * y.bound + y.error * x.bound + x.error * y.error);
    let greater = (x.bound.max(y.bound), x.error.max(y.error));
    let table: [(usize, Arithmetic); 5] = [
        (4, (|x, y| ops::add(x, y), sum, true)),
        (3, (|x, y| ops::sub(x, y), difference, true)),
        (4, (|x, y| ops::mul(x, y), product, true)),
        (1, (|x, y| ops::max(x, y), greater, false)),
        (1, (|x, y| ops::min(x, y), greater, false)),
    ];
    let (f, (bound, error), rounds) = *m.rng.weighted(&table);
    let error = if rounds { rounded(dtype, bound, error) } else { error };
    m.tame(dtype, bound, error)?;
    m.push(f(&x.value, &y.value), bound, error)
}

fn quotient(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.bound < 2f64.powi(53))?;
    let y = partner(m, &x, |y| y.bound < 2f64.powi(53))?;
    let dtype = meeting(&x, &y)?;
    // The quotient of integers is a float64.
    let dtype = if dtype.is_float() { dtype } else { DType::Float64 };
    let bound = 2.0 * x.bound;
    let divisor = rounded(y.dtype(), y.bound + 0.5, y.error);
    let error = rounded(dtype, bound, 2.0 * x.error + 4.0 * x.bound * divisor);
    m.tame(dtype, bound, error)?;
    m.push(ops::div(&x.value, away_from_zero(&y, 0.5)), bound, error)
}

fn whole_quotient(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.is_exact() && !x.dtype().is_half())?;
    let y = partner(m, &x, |y| y.is_exact() && !y.dtype().is_half())?;
    let dtype = meeting(&x, &y)?;
    // Integers may be divided by zero, which gives zero.
    let divisor = if dtype.is_float() { away_from_zero(&y, 0.5) } else { Ok(y.value.clone()) };
    match m.rng.chance(50) {
        true => m.push(ops::floor_div(&x.value, divisor), 2.0 * x.bound + 1.0, 0.0),
        false => m.push(ops::mod_(&x.value, divisor), x.bound.max(y.bound) + 0.5, 0.0),
    }
}

fn power(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.dtype() != DType::Bool)?;
    let dtype = x.dtype();
    if !x.is_float() {
        let exponent = m.rng.between(0, 3);
        return m.push(ops::pow(&x.value, exponent), x.bound.powi(exponent as i32).max(1.0), 0.0);
    }
    let (base, exponent) = match m.rng.below(4) {
        0 => (away_from_zero(&x, 0.125), 0.5),
        1 => (away_from_zero(&x, 0.5), -1.0),
        2 => (Ok(x.value.clone()), 2.0),
        _ => (Ok(x.value.clone()), 3.0),
    };
    let least: f64 = if exponent < 1.0 { 0.5 } else { 0.0 };
    let bound = if exponent < 0.0 { 2.0 } else { (x.bound + least).powf(exponent).max(1.0) };
    let stretch = if exponent < 1.0 { 4.0 } else { exponent * x.bound.powf(exponent - 1.0) };
    let error = stretch * x.error + slack(dtype, 0) * bound;
    m.tame(dtype, bound, error)?;
    m.push(ops::pow(base, exponent), bound, error)
}

fn comparison(m: &mut Maker) -> Option<()> {
    let x = m.node(Node::is_exact)?;
    let y = partner(m, &x, Node::is_exact)?;
    let table: [Binary; 4] = [
        |x, y| ops::equal(x, y),
        |x, y| ops::not_equal(x, y),
        |x, y| ops::greater(x, y),
        |x, y| ops::greater_equal(x, y),
    ];
    let f = *m.rng.pick(&table);
    m.push(f(&x.value, &y.value), 1.0, 0.0)
}

fn question(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let f = *m.rng.pick::<Unary>(&[|x| ops::is_nan(x), |x| ops::is_inf(x)]);
    m.push(f(&x.value), 1.0, 0.0)
}

fn logical(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.dtype() == DType::Bool)?;
    let y = partner(m, &x, |y| y.dtype() == DType::Bool)?;
    let table: [Binary; 4] = [
        |x, y| ops::logical_and(x, y),
        |x, y| ops::logical_or(x, y),
        |x, y| ops::logical_xor(x, y),
        |x, _| ops::logical_not(x),
    ];
    let f = *m.rng.pick(&table);
    m.push(f(&x.value, &y.value), 1.0, 0.0)
}

fn choice(m: &mut Maker) -> Option<()> {
    let condition = m.node(|x| x.dtype() == DType::Bool)?;
    let beside = |y: &Node| condition.value.shape().broadcast(y.value.shape()).is_some();
    let x = m.node(beside)?;
    let y = partner(m, &x, beside)?;
    let shape = condition.value.shape().broadcast(&x.value.shape().broadcast(y.value.shape())?)?;
    m.shape_fits(&shape)?;
    let (x, y) = swapped(m, x, y);
    let value = ops::where_(&condition.value, &x.value, &y.value);
    m.push(value, x.bound.max(y.bound), x.error.max(y.error))
}

fn cast(m: &mut Maker) -> Option<()> {
    let x = m.node(|_| true)?;
    let targets = [
        (6, DType::Float32),
        (2, DType::Float64),
        (2, DType::Float16),
        (2, DType::BFloat16),
        (1, DType::Int8),
        (2, DType::Int32),
        (2, DType::Int64),
        (1, DType::UInt8),
        (1, DType::UInt32),
        (2, DType::Bool),
    ];
    let to = *m.rng.weighted(&targets);
    if !to.is_float() {
        // Truncation needs exactly known operands; integers that do not fit wrap, over the whole range.
        x.is_exact().then_some(())?;
        let fits = x.is_float() || x.bound < 127.0 && !to.is_unsigned_integral();
        return m.push(ops::cast(&x.value, to), if fits { x.bound } else { f64::INFINITY }, 0.0);
    }
    let exact = to == x.dtype() || !x.is_float() && x.bound * unit(to) <= 0.5;
    let error = if exact { x.error } else { rounded(to, x.bound, x.error) };
    m.tame(to, x.bound, error)?;
    m.push(ops::cast(&x.value, to), x.bound, error)
}

/// An axis of a value, counted from either end.
pub fn axis_of(m: &mut Maker, x: &Node) -> Option<(usize, i64)> {
    (x.rank() > 0).then_some(())?;
    let axis = m.rng.below(x.rank());
    Some((axis, if m.rng.chance(50) { axis as i64 } else { axis as i64 - x.rank() as i64 }))
}

fn reduction(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let (at, axis) = axis_of(m, &x)?;
    let (dtype, n) = (x.dtype(), x.sizes[at] as f64);
    let slack = slack(dtype, x.sizes[at]);
    match m.rng.below(8) {
        0 | 1 => {
            let bound = x.bound * n.max(1.0);
            let error = x.error * n + slack * bound;
            m.tame(dtype, bound, error)?;
            m.push(ops::sum(&x.value, axis), bound, error)
        }
        2 => {
            let bound = x.bound.max(1.0).powf(n);
            let error = n * bound * x.error + slack * bound * 4.0;
            m.tame(dtype, bound, error)?;
            m.push(ops::prod(&x.value, axis), bound, error)
        }
        3 => {
            // Sums of integers are computed in float64 and truncated.
            (x.is_float() || x.bound * n < 2f64.powi(53)).then_some(())?;
            let error = x.error + slack * x.bound;
            m.tame(dtype, x.bound, error)?;
            m.push(ops::mean(&x.value, axis), x.bound, error)
        }
        4 => m.push(ops::reduce_max(&x.value, axis), x.bound, x.error),
        5 => m.push(ops::reduce_min(&x.value, axis), x.bound, x.error),
        kind => {
            x.is_exact().then_some(())?;
            let value = if kind == 6 { ops::argmax(&x.value, axis) } else { ops::argmin(&x.value, axis) };
            m.push(value, n.max(1.0), 0.0)
        }
    }
}

fn deviation(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0 && x.is_float() && x.bound <= 50.0)?;
    let (at, axis) = axis_of(m, &x)?;
    let bound = x.bound * x.bound;
    let error = 4.0 * x.bound * x.error + 4.0 * slack(x.dtype(), x.sizes[at]) * bound;
    m.tame(x.dtype(), bound, error)?;
    match m.rng.chance(50) {
        true => m.push(ops::var(&x.value, axis), bound, error),
        // Near zero the derivative of the square root is unbounded.
        false => m.push(ops::stdev(&x.value, axis), x.bound, error.sqrt()),
    }
}

fn softmax(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0 && x.is_float())?;
    let (at, axis) = axis_of(m, &x)?;
    let slack = slack(x.dtype(), x.sizes[at]);
    let log = m.rng.chance(40);
    let bound = if log { 2.0 * x.bound + (x.sizes[at].max(1) as f64).ln() + 1.0 } else { 1.0 };
    let error = 2.0 * x.error + 2.0 * slack * (bound + x.bound * f64::from(u8::from(!x.is_exact())));
    m.tame(x.dtype(), bound, error)?;
    let value = if log { ops::logsoftmax(&x.value, axis) } else { ops::softmax(&x.value, axis) };
    m.push(value, bound, error)
}

/// A parameter of a norm: a value with the last dim, or a constant if its size is static.
fn parameter(m: &mut Maker, x: &Node) -> Option<Node> {
    let last = x.value.shape().last()?.clone();
    let wanted = Shape::from([&last]);
    let found = m.node(|y| y.dtype() == x.dtype() && *y.value.shape() == wanted);
    if found.is_some() && m.rng.chance(50) {
        return found;
    }
    let sizes = vec![*x.sizes.last()?];
    let value = random_tensor(&mut m.rng, x.dtype(), sizes.clone(), false);
    let value = ops::constant(value, None, None).ok()?;
    let value = if *value.shape() == wanted { value } else { ops::rebind(&value, wanted, "").ok()? };
    Some(Node { value, sizes, bound: 2.0, error: 0.0 })
}

fn layer_norm(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0 && x.is_float() && x.bound <= 100.0)?;
    let (gamma, beta) = (parameter(m, &x)?, parameter(m, &x)?);
    let n = *x.sizes.last()?;
    let epsilon = *m.rng.pick(&[1e-5, 1e-3, 0.1, 1.0]);
    let root = (n.max(1) as f64).sqrt();
    let bound = root * gamma.bound + beta.bound;
    // Two rounding errors of the mean are amplified like the operand itself.
    let wide = if x.dtype() == DType::Float64 { DType::Float64 } else { DType::Float32 };
    let moved = x.error + slack(wide, n) * x.bound;
    let error = 3.0 * moved / f64::sqrt(epsilon) * gamma.bound
        + gamma.error * root
        + beta.error
        + slack(x.dtype(), n) * bound;
    m.tame(x.dtype(), bound, error)?;
    m.push(ops::layer_norm(&x.value, &gamma.value, &beta.value, epsilon), bound, error)
}

/// The RMS norm as models write it, op by op.
fn rms_norm(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0 && x.is_float() && x.bound <= 30.0)?;
    let weight = parameter(m, &x)?;
    let n = *x.sizes.last()?;
    let scale = (n.max(1) as f64).sqrt();
    let bound = scale * weight.bound;
    let error = weight.bound * (4.0 * x.error * 4.0 + 8.0 * slack(x.dtype(), n) * (bound + x.bound));
    m.tame(x.dtype(), bound, error)?;
    let square = ops::mean(ops::mul(&x.value, &x.value), -1);
    let root = ops::rsqrt(ops::add(square, 0.0625));
    m.push(ops::mul(ops::mul(&x.value, root), &weight.value), bound, error)
}

fn matmul(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| x.rank() > 0)?;
    let inner = x.value.shape().last()?.clone();
    let k = *x.sizes.last()?;
    let fits = |y: &Node| {
        let shape = y.value.shape();
        y.dtype() == x.dtype() && y.rank() > 0 && shape[shape.rank().saturating_sub(2)] == inner
    };
    let found = m.node(fits);
    let y = match found {
        Some(y) if m.rng.chance(60) => y,
        // A weight: a matrix that is part of the graph.
        _ => {
            let n = *m.rng.pick(&[1, 2, 5, 16, 33, 64]);
            let weight = random_tensor(&mut m.rng, x.dtype(), vec![k, n], false);
            let weight = ops::constant(weight, None, None).ok()?;
            let value = ops::rebind(weight, Shape::from(vec![inner, Dim::from(n)]), "").ok()?;
            Node { value, sizes: vec![k, n], bound: if x.is_float() { 2.0 } else { 6.0 }, error: 0.0 }
        }
    };
    let sizes = product_sizes(&x.sizes, &y.sizes)?;
    m.fits(&sizes)?;
    (sizes.iter().product::<usize>() * k <= 1_500_000).then_some(())?;
    let (bound, error) = product_error(&x, &y, k);
    m.tame(x.dtype(), bound, error)?;
    m.push(ops::matmul(&x.value, &y.value), bound, error)
}

/// The sizes of a matmul, overestimated where the axes of vectors are dropped.
fn product_sizes(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    let (rows, columns) = (x.len() > 1, y.len() > 1);
    let mut sizes: Vec<usize> = Vec::new();
    let (left, right) = (&x[..x.len().saturating_sub(2)], &y[..y.len().saturating_sub(2)]);
    for at in 0..left.len().max(right.len()) {
        let size = |s: &[usize]| s.len().checked_sub(at + 1).map_or(1, |i| s[i]);
        sizes.push(size(left).max(size(right)));
    }
    sizes.extend(rows.then(|| x[x.len() - 2]));
    sizes.extend(columns.then(|| y[y.len() - 1]));
    Some(sizes)
}

/// The bound and the error of dot products of length `k`.
fn product_error(x: &Node, y: &Node, k: usize) -> (f64, f64) {
    let terms = k.max(1) as f64;
    let bound = terms * x.bound * y.bound;
    let error = terms * (x.error * y.bound + y.error * x.bound) + slack(x.dtype(), k) * bound;
    (bound, error)
}

/// The scores of a value with itself, as attention computes them.
fn attention(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| (2..=4).contains(&x.rank()) && x.is_float() && x.bound <= 4.0)?;
    let &[.., rows, width] = x.sizes.as_slice() else { return None };
    let sizes = product_sizes(&x.sizes, &[width, rows])?;
    m.fits(&sizes)?;
    (sizes.iter().product::<usize>() * width <= 1_000_000).then_some(())?;
    let scale = 1.0 / width.max(1) as f64;
    let (bound, error) = product_error(&x, &x, width);
    let error = 2.0 * error * scale + 8.0 * slack(x.dtype(), rows);
    let result = x.bound * error + x.error * 2.0 + slack(x.dtype(), rows) * x.bound;
    m.tame(x.dtype(), bound, result * rows.max(1) as f64)?;
    let scores = ops::mul(ops::matmul(&x.value, x.value.T().ok()?).ok()?, scale);
    let weights = ops::softmax(scores, -1).ok()?;
    m.push(ops::matmul(weights, &x.value), x.bound, result * rows.max(1) as f64)
}

fn conv2d(m: &mut Maker) -> Option<()> {
    let x = m.node(|x| (2..=4).contains(&x.rank()) && x.is_float() && x.elements() <= 4_000)?;
    let mut value = x.value.clone();
    while value.rank() < 4 {
        value = ops::unsqueeze(&value, m.rng.below(value.rank() + 1) as i64).ok()?;
    }
    let channels_first = m.rng.chance(30);
    let channels =
        value.shape()[if channels_first { 1 } else { 3 }].as_static().filter(|c| (1..40).contains(c))?;
    let (r, s, f) = (m.rng.below(3) + 1, m.rng.below(3) + 1, m.rng.below(5) + 1);
    let c = channels as usize;
    let (sizes, input_layout, filter_layout) = match channels_first {
        true => (vec![f, c, r, s], "NCHW", "FCRS"),
        false => (vec![r, s, c, f], "NHWC", "RSCF"),
    };
    let mut draw = |low: i64, high: i64| m.rng.between(low, high);
    let options = ops::ConvOptions {
        stride: [draw(1, 2), draw(1, 2)],
        dilation: [draw(1, 2), draw(1, 2)],
        padding: [draw(0, 2), draw(0, 2), draw(0, 2), draw(0, 2)],
        groups: 1,
        input_layout: input_layout.parse().ok()?,
        filter_layout: filter_layout.parse().ok()?,
    };
    let filter = random_tensor(&mut m.rng, x.dtype(), sizes, false);
    let filter = ops::constant(filter, None, None).ok()?;
    let weights = Node { value: filter, sizes: vec![], bound: 2.0, error: 0.0 };
    let (bound, error) = product_error(&x, &weights, r * s * c);
    m.tame(x.dtype(), bound, error)?;
    (x.elements() * 9 * r * s * f <= 1_500_000).then_some(())?;
    m.push(ops::conv2d(&value, &weights.value, None, options), bound, error)
}

fn constant(m: &mut Maker) -> Option<()> {
    let dtype = m.node(|_| true)?.dtype();
    if m.rng.chance(20) {
        let x = scalar(m, dtype)?;
        return m.push(ops::transfer_to(&x.value, DeviceRef::CPU), x.bound, 0.0);
    }
    let shape = m.palette.shape(&mut m.rng);
    let sizes = shape.evaluate(&m.palette.bindings).ok()?;
    let value = ops::constant(random_tensor(&mut m.rng, dtype, sizes, false), None, None).ok()?;
    // Constants have static dims; rebinding them to the inputs' symbols lets them combine with the inputs.
    let value = if *value.shape() == shape { Ok(value) } else { ops::rebind(&value, shape, "") };
    m.push(value, if dtype.is_float() { 2.0 } else { 6.0 }, 0.0)
}
