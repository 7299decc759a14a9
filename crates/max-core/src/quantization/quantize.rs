//! How values become blocks.
//!
//! Where a block has one scale, it follows from the extremes of the block, as GGUF files have it: the bytes are those that
//! the `gguf` package of Python writes. Where each group has a scale of its own, scales and minima are searched for that
//! round the group with the least square error.

use half::f16;

use super::format::{Codes, Format, Plane, Scale, half_power, write};

/// What the scale that spans a group is multiplied by when one is searched for: the smaller it is, the finer are the steps,
/// and the more elements are clipped.
const SPANS: [f32; 18] = [
    1.10, 1.05, 1.025, 1.0, 0.975, 0.95, 0.925, 0.90, 0.875, 0.85, 0.825, 0.80, 0.775, 0.75, 0.725, 0.70,
    0.65, 0.60,
];

/// With a minimum, by how many steps a group is spanned wider, and its minimum is farther from zero.
const WIDER: [f32; 6] = [0.5, 0.0, -0.4, -0.8, -1.2, -1.6];
const LOWER: [f32; 3] = [0.0, -0.45, -0.9];

/// How many sums are computed side by side; a divisor of the size of every group that has a scale of its own.
const LANES: usize = 8;

/// A sum with this number is rounded to a whole one.
const WHOLE: f32 = (1 << 23) as f32;

impl Format {
    /// Encodes values: `blocks` has [`Format::bytes`] for each [`Format::elements`] of `values`. What is too large for a
    /// float16 scale is infinite if the block has only that scale, else as large as can be.
    ///
    /// A block with an element that is NaN or infinite gets NaN as its scale, so that all of it decodes to NaN.
    pub fn quantize(&self, values: &[f32], blocks: &mut [u8]) {
        let mut codes = [0; Format::ELEMENTS];
        for (values, block) in values.chunks_exact(self.elements).zip(blocks.chunks_exact_mut(self.bytes)) {
            block.fill(0);
            let codes = &mut codes[..self.elements];
            if !values.iter().all(|value| value.is_finite()) {
                self.scale.write(block, f32::NAN);
                continue;
            }
            match self.scale {
                Scale::Times { .. } => self.fit(values, block, codes),
                _ => self.span(values, block, codes),
            }
            write(self.planes, block, codes);
        }
    }

    /// The greatest code.
    fn top(&self) -> u8 {
        greatest(self.planes)
    }

    /// Scale, minimum and codes of a block with one scale, from its extremes.
    fn span(&self, values: &[f32], block: &mut [u8], codes: &mut [u8]) {
        let pick = |better: fn(f32, f32) -> bool| {
            values.iter().copied().reduce(|best, x| if better(x, best) { x } else { best }).unwrap_or(0.0)
        };
        let top = f32::from(self.top());
        // The first of those that are farthest from zero.
        let extreme = pick(|x, best| x.abs() > best.abs());
        let mut least = 0.0;
        let scale = match self.codes {
            // From the first code to the last.
            Codes::Above(_) if self.min.is_some() => {
                // The last of equal ones: zeros differ in their signs.
                least = pick(|x, best| x <= best);
                (pick(|x, best| x >= best) - least) / top
            }
            // There is one more number below zero than above: the extreme gets the last one below.
            Codes::Above(offset) => extreme / -f32::from(offset),
            Codes::Signed => extreme.abs() / 127.0,
            Codes::Float4 => power(extreme.abs()),
        };
        self.scale.write(block, scale);
        if let Some(min) = self.min {
            min.write(block, -least);
        }
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for (code, &value) in codes.iter_mut().zip(values) {
            let steps = (value - least) * inverse;
            *code = match self.codes {
                // Subnormal scales have no inverse; all of their codes are zero.
                Codes::Above(_) | Codes::Signed if !steps.is_finite() => 0,
                Codes::Above(offset) => (steps + (f32::from(offset) + 0.5)).min(top) as u8,
                Codes::Signed => steps.round() as i8 as u8,
                Codes::Float4 => float4(value, scale),
            };
        }
    }

    /// Scales, minima and codes of a block whose groups have their own.
    fn fit(&self, values: &[f32], block: &mut [u8], codes: &mut [u8]) {
        let groups = self.groups();
        // All is relative to the largest element, so that no sum overflows.
        let unit = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let mut relative = [0.0; Format::ELEMENTS];
        let relative = &mut relative[..self.elements];
        if unit > 0.0 {
            relative.iter_mut().zip(values).for_each(|(relative, value)| *relative = value / unit);
        }
        let steps = Steps { zero: self.codes.value(0).unsigned_abs() as f32, top: f32::from(self.top()) };
        let mut tried = [0.0; Format::ELEMENTS];
        let (mut scales, mut mins) = ([0.0; Format::GROUPS], [0.0; Format::GROUPS]);
        for (group, values) in relative.chunks_exact(self.group).enumerate() {
            let fit = steps.fit(values, self.min.is_some(), &mut tried[..self.group]);
            (scales[group], mins[group]) = (fit.scale, fit.min);
        }
        let scales = Multiples::new(self.scale, &scales[..groups], unit);
        let mins = self.min.map(|min| Multiples::new(min, &mins[..groups], unit));
        let (mut scale_codes, mut min_codes) = ([0; Format::GROUPS], [0; Format::GROUPS]);
        let all = relative.chunks_exact(self.group).zip(codes.chunks_exact_mut(self.group));
        for (group, (values, codes)) in all.enumerate() {
            // Both are rounded, so that a neighbour may fit better.
            let mut best = (f32::INFINITY, 0, 0);
            let tried = &mut tried[..values.len()];
            for scale in scales.near(group) {
                for min in mins.as_ref().map_or(0..=0, |mins| mins.near(group)) {
                    let least = mins.as_ref().map_or(0.0, |mins| mins.decoded(min));
                    let fit = Fit { scale: scales.decoded(scale), min: least };
                    let error = steps.round(values, fit, tried);
                    if error < best.0 {
                        best = (error, scale, min);
                        codes.iter_mut().zip(&*tried).for_each(|(code, whole)| *code = *whole as u8);
                    }
                }
            }
            scale_codes[group] = scales.code(best.1);
            min_codes[group] = mins.as_ref().map_or(0, |mins| mins.code(best.2));
        }
        scales.write(block, &scale_codes[..groups]);
        if let Some(mins) = mins {
            mins.write(block, &min_codes[..groups]);
        }
    }
}

impl Scale {
    /// Writes the scale of a block, or the float that the scales of its groups are multiples of.
    fn write(self, block: &mut [u8], scale: f32) {
        let mut half = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
        match self {
            Scale::Half(at) | Scale::Times { half: at, .. } => half(at, scale),
            Scale::Negative(at) => half(at, -scale),
            Scale::HalfPower(at) => block[at] = exponent(scale),
        }
    }
}

/// The greatest number whose bits are in planes.
fn greatest(planes: &[Plane]) -> u8 {
    (0xff_u16 >> (8 - planes.iter().map(|plane| plane.bits).sum::<u32>())) as u8
}

/// The scale of float4 codes for a largest magnitude: that and the largest float4 have the same exponent. The least scale is
/// that of all smaller magnitudes.
fn power(largest: f32) -> f32 {
    if largest == 0.0 {
        return half_power(0);
    }
    // The logarithm is rounded to float32, as it is in GGUF files: a number just below a power of two counts as that.
    let log2 = (libm::log2(f64::from(largest)) as f32).floor() as i32;
    half_power((log2 - 2 + 127).clamp(0, 254) as u8)
}

/// The byte for a power of two; see [`half_power`].
fn exponent(power: f32) -> u8 {
    let bits = power.to_bits();
    match bits >> 23 {
        _ if power.is_nan() => 255,
        // Subnormal.
        0 => (bits >> 22) as u8,
        exponent => exponent as u8 + 1,
    }
}

/// The code of the nearest float4; of two, the one nearer to zero, which has no sign.
fn float4(value: f32, scale: f32) -> u8 {
    let number = |code: u8| Codes::Float4.value(code) as f32;
    let above = |code: &u8| value.abs() > scale * ((number(*code) + number(code + 1)) / 2.0);
    let code = (0..7).filter(above).count() as u8;
    if code > 0 && value < 0.0 { code | 8 } else { code }
}

/// The codes of a group: from zero to `top`, where that at `zero` stands for zero.
struct Steps {
    zero: f32,
    top: f32,
}

/// A scale and what is subtracted.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    min: f32,
}

impl Steps {
    /// Rounds values to codes, which are whole numbers; returns the sum of their square errors.
    fn round(&self, values: &[f32], Fit { scale, min }: Fit, codes: &mut [f32]) -> f32 {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        for (code, value) in codes.iter_mut().zip(values) {
            *code = ((value + min) * inverse + self.zero).max(0.0).min(self.top) + WHOLE - WHOLE;
        }
        let mut errors = [0.0; LANES];
        for (codes, values) in codes.chunks_exact(LANES).zip(values.chunks_exact(LANES)) {
            for lane in 0..LANES {
                let difference = scale * (codes[lane] - self.zero) - min - values[lane];
                errors[lane] += difference * difference;
            }
        }
        errors.iter().sum()
    }

    /// The scale and the minimum, if there is one, with the least square error for given codes.
    fn solve(&self, values: &[f32], with_min: bool, codes: &[f32]) -> Fit {
        let mut sums = [[0.0; LANES]; 4];
        for (codes, values) in codes.chunks_exact(LANES).zip(values.chunks_exact(LANES)) {
            for lane in 0..LANES {
                let (number, value) = (codes[lane] - self.zero, values[lane]);
                sums[0][lane] += value;
                sums[1][lane] += number;
                sums[2][lane] += value * number;
                sums[3][lane] += number * number;
            }
        }
        let [x, q, xq, qq] = sums.map(|lanes| lanes.iter().sum::<f32>());
        let count = values.len() as f32;
        let determinant = count * qq - q * q;
        if with_min && determinant > 0.0 {
            let min = (q * xq - qq * x) / determinant;
            // Minima are multiples of a float by numbers that are not negative.
            if min >= 0.0 {
                return Fit { scale: ((count * xq - x * q) / determinant).max(0.0), min };
            }
        }
        Fit { scale: if qq > 0.0 { xq / qq } else { 0.0 }, min: 0.0 }
    }

    /// The scale and the minimum, if there is one, with the least square error that the search finds.
    fn fit(&self, values: &[f32], with_min: bool, codes: &mut [f32]) -> Fit {
        let (least, greatest) = values.iter().fold((0.0, f32::NEG_INFINITY), |(least, greatest), &x| {
            (f32::min(least, x), f32::max(greatest, x))
        });
        let extreme = if greatest > -least { greatest } else { least };
        let span = match with_min {
            true => Fit { scale: (greatest - least) / self.top, min: -least },
            false => Fit { scale: extreme / -self.zero, min: 0.0 },
        };
        let mut best = span;
        let mut smallest = self.round(values, span, codes);
        let mut attempt = |fit: Fit, codes: &mut [f32]| {
            let error = self.round(values, fit, codes);
            if error < smallest {
                (best, smallest) = (fit, error);
            }
        };
        // Rounds with a fit, then with the best one for these codes.
        let mut improve = |fit: Fit| {
            attempt(fit, codes);
            attempt(self.solve(values, with_min, codes), codes);
        };
        if with_min {
            let step = 1.0 / self.top;
            for (wider, lower) in WIDER.iter().flat_map(|wider| LOWER.iter().map(move |lower| (wider, lower)))
            {
                improve(Fit {
                    scale: span.scale * (1.0 + wider * step),
                    min: span.min * (1.0 + lower * step),
                });
            }
        } else {
            SPANS.iter().for_each(|factor| improve(Fit { scale: span.scale * factor, ..span }));
        }
        best
    }
}

/// Numbers as integer multiples of one float16.
struct Multiples {
    scale: Scale,
    planes: &'static [Plane],
    /// The float16, and the number that all others are relative to.
    half: f32,
    unit: f32,
    /// The least and the greatest integer.
    range: [i32; 2],
    numbers: [i32; Format::GROUPS],
}

impl Multiples {
    fn new(scale: Scale, numbers: &[f32], unit: f32) -> Multiples {
        let (planes, codes) = match scale {
            Scale::Times { planes, codes, .. } => (planes, codes),
            _ => (&[][..], Codes::Above(0)),
        };
        let range = match codes {
            Codes::Signed => [-128, 127],
            codes => [codes.value(0), codes.value(greatest(planes))],
        };
        let extreme = numbers.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most });
        let last = if range[0] < 0 { range[0] } else { range[1] };
        let half = away_from_zero(extreme * unit / last as f32);
        let mut multiples = Multiples { scale, planes, half, unit, range, numbers: [0; Format::GROUPS] };
        for (multiple, number) in multiples.numbers.iter_mut().zip(numbers) {
            *multiple = ((number * unit / half).round() as i32).clamp(range[0], range[1]);
        }
        multiples
    }

    /// The integer of a group and its neighbours.
    fn near(&self, group: usize) -> std::ops::RangeInclusive<i32> {
        let [least, greatest] = self.range;
        let number = self.numbers[group];
        (number - 1).max(least)..=(number + 1).min(greatest)
    }

    /// The number that an integer stands for.
    fn decoded(&self, integer: i32) -> f32 {
        if self.half == 0.0 || integer == 0 { 0.0 } else { self.half * integer as f32 / self.unit }
    }

    fn code(&self, integer: i32) -> u8 {
        match self.range[0] {
            // Signed bytes.
            -128 => integer as u8,
            least => (integer - least) as u8,
        }
    }

    fn write(&self, block: &mut [u8], codes: &[u8]) {
        self.scale.write(block, self.half);
        write(self.planes, block, codes);
    }
}

/// The nearest finite float16 that is not nearer to zero.
fn away_from_zero(x: f32) -> f32 {
    let half = f16::from_f32(x.abs());
    let bits = half.to_bits() + u16::from(half.to_f32() < x.abs());
    f16::from_bits(bits.min(f16::MAX.to_bits())).to_f32().copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuantizationEncoding;

    /// Numbers of a normal distribution, the same ones each time.
    fn normal(count: usize) -> Vec<f32> {
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let mut draw = || (-2.0 * libm::log(uniform())).sqrt() * libm::cos(std::f64::consts::TAU * uniform());
        (0..count).map(|_| draw() as f32).collect()
    }

    fn decoded(encoding: QuantizationEncoding, values: &[f32]) -> Vec<f32> {
        encoding.dequantize(&encoding.quantize(values).unwrap()).unwrap()
    }

    /// The root of the mean square error, relative to that of the values.
    fn error(encoding: QuantizationEncoding, values: &[f32]) -> f64 {
        let square = |x: f64| x * x;
        let after = decoded(encoding, values);
        let wrong: f64 = values.iter().zip(after).map(|(a, b)| square(f64::from(*a) - f64::from(b))).sum();
        (wrong / values.iter().map(|x| square(f64::from(*x))).sum::<f64>()).sqrt()
    }

    fn all() -> impl Iterator<Item = (QuantizationEncoding, &'static Format)> {
        QuantizationEncoding::ALL.iter().filter_map(|e| Some((*e, e.blocks()?)))
    }

    #[test]
    fn blocks_are_those_of_gguf() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect()
        };
        let floats = |hex: &str| -> Vec<f32> {
            bytes(hex).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let mut seen = std::collections::BTreeMap::new();
        for line in include_str!("../../../../cases/quantized.txt").lines().filter(|l| !l.starts_with('#')) {
            let [name, before, block, after] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let encoding: QuantizationEncoding = name.parse().unwrap();
            let (block, after) = (bytes(block), floats(after));
            if before != "-" {
                assert_eq!(encoding.quantize(&floats(before)).unwrap(), block, "{line}");
            }
            // The sign of NaN is that of the machine.
            let bits = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
            let decoded = encoding.dequantize(&block).unwrap();
            let [decoded, after] = [decoded, after].map(|all| all.iter().map(bits).collect::<Vec<_>>());
            assert_eq!(decoded, after, "{line}");
            *seen.entry(name).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), all().count());
        assert!(seen.values().all(|&count| count >= 3), "{seen:?}");
    }

    #[test]
    fn errors_are_what_the_bits_allow() {
        let values = normal(256 * 64);
        for (encoding, most) in [
            (QuantizationEncoding::Q2_K, 0.263),
            (QuantizationEncoding::Q3_K, 0.147),
            (QuantizationEncoding::Q4_0, 0.087),
            (QuantizationEncoding::Q4_1, 0.080),
            (QuantizationEncoding::Q4_K, 0.071),
            (QuantizationEncoding::Q5_0, 0.044),
            (QuantizationEncoding::Q5_1, 0.038),
            (QuantizationEncoding::Q5_K, 0.0355),
            (QuantizationEncoding::Q6_K, 0.017),
            (QuantizationEncoding::Q8_0, 0.0056),
            (QuantizationEncoding::MXFP4, 0.118),
        ] {
            for unit in [1.0, 0.02, 1e4] {
                let values: Vec<f32> = values.iter().map(|x| x * unit).collect();
                let error = error(encoding, &values);
                assert!(error < most && error > 0.85 * most, "{encoding} of numbers near {unit}: {error}");
            }
        }
    }

    #[test]
    fn whole_multiples_have_their_codes() {
        for (encoding, format) in all() {
            let top = i32::from(format.top());
            // From the first code to the last, of a minimum if there is one.
            let least = match format.codes {
                Codes::Above(offset) if format.min.is_none() => -i32::from(offset),
                Codes::Above(_) => -top,
                Codes::Signed => -127,
                Codes::Float4 => -12,
            };
            let numbers = match format.codes {
                Codes::Float4 => vec![0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12],
                Codes::Signed => (least..=127).collect(),
                Codes::Above(_) => (least..=least + top).collect::<Vec<i32>>(),
            };
            // Every group has the extremes and some of the others.
            let values: Vec<f32> = (0..512)
                .map(|at| {
                    let number = match at % format.group {
                        0 => least,
                        1 => *numbers.iter().max().unwrap(),
                        other => numbers[(other * 7 + at / format.group) % numbers.len()],
                    };
                    number as f32 * 0.25
                })
                .collect();
            let after = decoded(encoding, &values);
            match format.scale {
                // The scales are rounded.
                Scale::Times { .. } => {
                    let most = 2e-3 * values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                    let near = values.iter().zip(&after).all(|(x, y)| (x - y).abs() < most);
                    assert!(near, "{encoding}: {values:?} became {after:?}");
                }
                _ => assert_eq!(after, values, "{encoding}"),
            }
        }
    }

    #[test]
    fn extremes_are_defined() {
        for (encoding, format) in all() {
            let zeros = vec![0.0; format.elements];
            assert!(decoded(encoding, &zeros).iter().all(|x| *x == 0.0), "{encoding}");
            for x in [1.0, -1.0, 0.37, -250.0] {
                let after = decoded(encoding, &vec![x; format.elements]);
                let near = after.iter().all(|y| (y - x).abs() <= 0.07 * x.abs());
                assert!(near || encoding == QuantizationEncoding::MXFP4, "{encoding} of {x}: {after:?}");
            }
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 2 * format.elements];
                values[format.elements / 2] = bad;
                let after = decoded(encoding, &values);
                let (first, second) = after.split_at(format.elements);
                assert!(first.iter().all(|x| x.is_nan()), "{encoding} with {bad}: {first:?}");
                assert!(second.iter().all(|x| x.is_finite()), "{encoding} after {bad}: {second:?}");
            }
            for unit in [f32::MAX, 1e30, 1e-30, 1e-38, 1e-44] {
                let values: Vec<f32> = normal(format.elements).iter().map(|x| x / 5.0 * unit).collect();
                let after = decoded(encoding, &values);
                let times = matches!(format.scale, Scale::Times { .. });
                if times || encoding == QuantizationEncoding::MXFP4 {
                    assert!(
                        after.iter().all(|x| x.is_finite()),
                        "{encoding} of numbers near {unit}: {after:?}"
                    );
                }
            }
        }
        // The least scale is for all that is smaller.
        let tiny = vec![f32::from_bits(1 << 22); 32];
        assert_eq!(decoded(QuantizationEncoding::MXFP4, &tiny), tiny);
    }

    #[test]
    fn lengths_are_whole_blocks() {
        for (encoding, format) in all() {
            assert_eq!(encoding.quantize(&[]), Ok(vec![]));
            assert_eq!(encoding.dequantize(&[]), Ok(vec![]));
            assert!(encoding.quantize(&vec![0.0; format.elements + 1]).is_err());
            assert!(encoding.dequantize(&vec![0; format.bytes - 1]).is_err());
        }
        let error = QuantizationEncoding::Q4_K.dequantize(&[0; 36]).unwrap_err();
        assert_eq!(error.message(), "a block of q4_k has 144 bytes, of which 36 is not a multiple");
        assert!(QuantizationEncoding::GPTQ.quantize(&[]).is_err());
    }
}
