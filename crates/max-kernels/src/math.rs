//! Functions of real numbers in f32, element by element and without branches, so that loops over them are vectorized.
//! `FMA` says whether the machine has fused multiply-add; without it, the two round separately.
//!
//! Polynomials are minimax fits over the reduced range. Errors stay below 2 units in the last place (erf: 4), with
//! infinities, NaN, signed zeros and gradual underflow as in `libm`.

use std::f32::consts::{FRAC_PI_2, LOG2_E, PI};

/// Adding and subtracting it rounds a number of up to 22 bits to the nearest integer; between the two, the low bits
/// hold that integer.
const ROUNDER: f32 = 12_582_912.0;

/// ln 2 in two parts; integers of up to 9 bits times the first are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

#[inline(always)]
fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The polynomial with these coefficients, the constant one first.
#[inline(always)]
fn poly<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    for k in (0..N - 1).rev() {
        sum = mul_add::<FMA>(sum, x, coefficients[k]);
    }
    sum
}

#[inline(always)]
fn select(condition: bool, a: f32, b: f32) -> f32 {
    if condition { a } else { b }
}

/// 2 to an integer power in the range of normal numbers.
#[inline(always)]
fn exp2_whole(power: i32) -> f32 {
    f32::from_bits(((power + 127) << 23) as u32)
}

/// `x = n * ln 2 + r`: n as an integer, and r.
#[inline(always)]
fn reduce_exp<const FMA: bool>(x: f32) -> (i32, f32) {
    let shifted = mul_add::<FMA>(x, LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = mul_add::<FMA>(n, -LN_2[1], mul_add::<FMA>(n, -LN_2[0], x));
    (shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32, r)
}

#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these bounds the results are infinity and zero; NaN passes both.
    let x = select(x > 89.0, 89.0, x);
    let x = select(x < -104.0, -104.0, x);
    let (n, r) = reduce_exp::<FMA>(x);
    let q = poly::<FMA, 5>(r, [0.499_999_93, 0.166_665_15, 0.041_668_456, 0.008_369_419, 0.001_381_314_8]);
    let p = mul_add::<FMA>(q, r * r, r) + 1.0;
    // In two steps, so that subnormal results round only once.
    let half = n >> 1;
    p * exp2_whole(half) * exp2_whole(n.wrapping_sub(half))
}

#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    // tanh x = t / (t + 2) with t = exp 2x - 1; beyond the bound it is 1.
    let y = x.abs();
    let (n, r) = reduce_exp::<FMA>(select(y > 10.0, 20.0, y * 2.0));
    let q = poly::<FMA, 5>(r, [0.5, 0.166_665_38, 0.041_666_266, 0.008_367_247, 0.001_394_760_7]);
    let p = mul_add::<FMA>(q, r * r, r);
    let power = exp2_whole(n);
    let t = mul_add::<FMA>(p, power, power - 1.0);
    // Near zero the quotient would round too often.
    let square = y * y;
    let small = poly::<FMA, 4>(square, [-0.333_333_2, 0.133_322_98, -0.053_714_135, 0.019_379_422]);
    let small = mul_add::<FMA>(small * square, y, y);
    select(y < 0.35, small, t / (t + 2.0)).copysign(x)
}

#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    let small = poly::<FMA, 6>(
        x * x,
        [0.128_379_17, -0.376_125_34, 0.112_819_925, -2.676_813_5e-2, 4.991_194_2e-3, -5.967_617e-4],
    );
    let small = mul_add::<FMA>(small, x, x);
    // 1 - exp of a polynomial; beyond the bound it is 1.
    let t = select(x.abs() > 4.0, 4.0, x.abs());
    let power = poly::<FMA, 7>(
        t,
        [
            -1.128_717_5,
            -0.634_846_7,
            -0.106_777_88,
            2.425_462_2e-2,
            -3.883_964_4e-3,
            3.831_971_3e-4,
            -1.728_534_7e-5,
        ],
    );
    let (n, r) = reduce_exp::<FMA>(power * t);
    let q = poly::<FMA, 4>(r, [0.499_992, 0.166_671_33, 0.041_894_5, 0.008_312_05]);
    let p = mul_add::<FMA>(q, r * r, r) + 1.0;
    let large = 1.0 - p * exp2_whole(n);
    select(x.abs() > 0.927_734_4, large.copysign(x), small)
}

/// ln of `2^n * (1 + f)` for f between -1/3 and 1/3.
#[inline(always)]
fn log_reduced<const FMA: bool>(n: f32, f: f32) -> f32 {
    let p = poly::<FMA, 8>(
        f,
        [
            0.333_332_24,
            -0.249_996_89,
            0.200_100_44,
            -0.166_854_66,
            0.140_109_17,
            -0.121_151_24,
            0.139_624_6,
            -0.131_916_85,
        ],
    );
    let square = f * f;
    let low = mul_add::<FMA>(n, LN_2[1], mul_add::<FMA>(p * f, square, -0.5 * square));
    mul_add::<FMA>(n, LN_2[0], f + low)
}

/// The exponent n, as bits of an f32, for which `x / 2^n` is between 2/3 and 4/3.
#[inline(always)]
fn exponent(x: f32) -> i32 {
    (x.to_bits() as i32).wrapping_sub(0x3f2a_aaab) & !0x7f_ffff
}

/// An exponent in the bits of an f32 as a number.
#[inline(always)]
fn exponent_value(bits: i32) -> f32 {
    (bits >> 23) as f32
}

#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let normal = select(subnormal, x * 8_388_608.0, x);
    let bits = exponent(normal);
    let f = f32::from_bits((normal.to_bits() as i32).wrapping_sub(bits) as u32) - 1.0;
    let n = exponent_value(bits) - select(subnormal, 23.0, 0.0);
    at_the_edges(log_reduced::<FMA>(n, f), x)
}

/// The logarithm of any x, given its value for positive finite x.
#[inline(always)]
fn at_the_edges(log: f32, x: f32) -> f32 {
    let edge = select(x == 0.0, f32::NEG_INFINITY, f32::NAN);
    let log = select(x > 0.0, log, edge);
    select(x == f32::INFINITY, f32::INFINITY, log)
}

#[inline(always)]
pub(crate) fn log1p<const FMA: bool>(x: f32) -> f32 {
    let sum = x + 1.0;
    let bits = exponent(sum);
    // (1 + x) / 2^n - 1 from x itself, which may have bits that the sum has lost. The factor is scaled by four because
    // its own exponent may be too small.
    let factor = f32::from_bits(4f32.to_bits().wrapping_sub(bits as u32));
    let scaled = f32::from_bits(x.to_bits().wrapping_sub(bits as u32));
    let f = scaled + mul_add::<FMA>(0.25, factor, -1.0);
    let log = at_the_edges(log_reduced::<FMA>(exponent_value(bits), f), sum);
    select(x == 0.0, x, log)
}

#[inline(always)]
pub(crate) fn atanh<const FMA: bool>(x: f32) -> f32 {
    let t = x.abs();
    let square = t * t;
    let p = poly::<FMA, 6>(
        square,
        [0.333_333, 0.200_025_88, 0.142_214_87, 0.118_339_61, 0.050_985_47, 0.177_196_55],
    );
    let small = mul_add::<FMA>(p * square, t, t);
    let large = 0.5 * log1p::<FMA>(2.0 * t / (1.0 - t));
    select(t < 0.5, small, large).copysign(x)
}

#[inline(always)]
pub(crate) fn acos<const FMA: bool>(x: f32) -> f32 {
    // asin y for y up to 1/2: of x itself, or of sqrt((1 - |x|) / 2), which is half of acos |x|.
    let t = x.abs();
    let near_zero = t < 0.5;
    let square = select(near_zero, t * t, (1.0 - t) * 0.5);
    let y = select(near_zero, t, square.sqrt());
    let p = poly::<FMA, 5>(square, [0.166_667_54, 0.074_952_42, 0.045_477_104, 0.024_147_572, 0.042_218_62]);
    let asin = mul_add::<FMA>(p * square, y, y);
    let inner = FRAC_PI_2 - (asin.copysign(x) - 7.549_79e-8);
    let outer = select(x < 0.0, PI - (2.0 * asin - 1.509_958e-7), 2.0 * asin);
    select(near_zero, inner, outer)
}

/// The magnitude up to which [`sin`] and [`cos`] are accurate.
pub(crate) const TRIGONOMETRIC_BOUND: f32 = 1e8;

/// `x = n * pi / 2 + r`: the low bits of n, and r. In f64, so that r is accurate enough for x near a multiple of pi /
/// 2.
#[inline(always)]
fn reduce_trigonometric(x: f32) -> (u32, f32) {
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let n = shifted - ROUNDER;
    // The first 25 bits of pi / 2, whose products with n are exact, and the rest.
    let r = x - n * 1.570_796_310_901_641_8 - n * 1.589_325_477_352_819_6e-8;
    (shifted.to_bits() as u32, r as f32)
}

/// sin of `r + quadrant * pi / 2`.
#[inline(always)]
fn sin_in_quadrant<const FMA: bool>(quadrant: u32, r: f32) -> f32 {
    let square = r * r;
    let sin = poly::<FMA, 3>(square, [-0.166_666_54, 0.008_332_132, -0.000_195_108_7]);
    let sin = mul_add::<FMA>(sin * square, r, r);
    let cos = poly::<FMA, 3>(square, [0.041_666_646, -0.001_388_730_6, 2.443_124_2e-5]);
    let cos = mul_add::<FMA>(cos * square, square, mul_add::<FMA>(square, -0.5, 1.0));
    let value = select(quadrant & 1 == 0, sin, cos);
    f32::from_bits(value.to_bits() ^ ((quadrant & 2) << 30))
}

/// For magnitudes up to [`TRIGONOMETRIC_BOUND`].
#[inline(always)]
pub(crate) fn sin<const FMA: bool>(x: f32) -> f32 {
    let (n, r) = reduce_trigonometric(x);
    select(x == 0.0, x, sin_in_quadrant::<FMA>(n, r))
}

/// For magnitudes up to [`TRIGONOMETRIC_BOUND`].
#[inline(always)]
pub(crate) fn cos<const FMA: bool>(x: f32) -> f32 {
    let (n, r) = reduce_trigonometric(x);
    sin_in_quadrant::<FMA>(n.wrapping_add(1), r)
}
