//! Buffers as text, in NumPy's format: aligned columns, as few digits as distinguish the elements, and large arrays
//! shortened to their corners.

use std::fmt;

use max_core::{DType, Element, Number, Result, dispatch};

use super::Buffer;
use crate::Device;

/// Arrays with more elements are shortened.
const THRESHOLD: usize = 1000;
/// How many elements a shortened axis shows at either end.
const EDGE: usize = 3;
/// The most digits after the decimal point.
const PRECISION: usize = 8;
/// The width of a line.
const LINE_WIDTH: usize = 75;

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match text(self) {
            Ok(text) => f.write_str(&text),
            Err(_) => fmt::Debug::fmt(self, f),
        }
    }
}

fn text(buffer: &Buffer) -> Result<String> {
    let host = buffer.to(&Device::cpu())?;
    host.stream().synchronize()?;
    if host.rank() == 0 {
        return dispatch!(host.dtype(), T => Ok(scalar::<T>(host.item()?)));
    }
    if host.num_elements() == 0 {
        return Ok("[]".to_owned());
    }
    let shorten = host.num_elements() > THRESHOLD;
    let axes: Vec<_> =
        host.shape().iter().map(|&size| Shown { size, shorten: shorten && size > 2 * EDGE }).collect();
    let words = dispatch!(host.dtype(), T => {
        words::<T>(&indices(&axes).map(|index| host.host_element(&index)).collect::<Vec<T>>())
    });
    Ok(brackets(&axes, &mut words.into_iter(), 1, LINE_WIDTH))
}

/// Which elements of an axis are shown.
struct Shown {
    size: usize,
    shorten: bool,
}

impl Shown {
    fn count(&self) -> usize {
        if self.shorten { 2 * EDGE } else { self.size }
    }

    /// The index in the axis of the n-th element that is shown.
    fn position(&self, n: usize) -> usize {
        if self.shorten && n >= EDGE { self.size - 2 * EDGE + n } else { n }
    }

    /// Whether an ellipsis precedes the n-th element that is shown.
    fn dots_before(&self, n: usize) -> bool {
        self.shorten && n == EDGE
    }
}

/// The indices of all elements that are shown, in row-major order.
fn indices(axes: &[Shown]) -> impl Iterator<Item = Vec<usize>> {
    (0..axes.iter().map(Shown::count).product()).map(move |mut n: usize| {
        let mut index = vec![0; axes.len()];
        for (position, axis) in index.iter_mut().zip(axes).rev() {
            *position = axis.position(n % axis.count());
            n /= axis.count();
        }
        index
    })
}

/// Arranges words in nested brackets. Lines are indented to their bracket and end before the width, less one column for
/// each bracket that may close there; the maximum rank leaves enough room.
fn brackets(axes: &[Shown], words: &mut impl Iterator<Item = String>, indent: usize, width: usize) -> String {
    let [axis, inner @ ..] = axes else { return words.next().unwrap_or_default() };
    let mut text = String::from("[");
    if inner.is_empty() {
        let mut column = indent;
        let mut put = |text: &mut String, word: &str| {
            if column > indent {
                if column + 1 + word.len() > width - 1 {
                    text.truncate(text.trim_end().len());
                    text.push('\n');
                    text.extend(std::iter::repeat_n(' ', indent));
                    column = indent;
                } else {
                    text.push(' ');
                    column += 1;
                }
            }
            text.push_str(word);
            column += word.len();
        };
        for n in 0..axis.count() {
            if axis.dots_before(n) {
                put(&mut text, "...");
            }
            put(&mut text, &words.next().unwrap_or_default());
        }
    } else {
        let mut separator = "\n".repeat(inner.len());
        separator.extend(std::iter::repeat_n(' ', indent));
        for n in 0..axis.count() {
            if n > 0 {
                text.push_str(&separator);
            }
            if axis.dots_before(n) {
                text.push_str("...");
                text.push_str(&separator);
            }
            text.push_str(&brackets(inner, words, indent + 1, width - 1));
        }
    }
    text.push(']');
    text
}

/// A single number.
fn scalar<T: Element>(value: Number) -> String {
    match value {
        Number::Bool(value) => if value { "True" } else { "False" }.to_owned(),
        Number::Int(value) => value.to_string(),
        Number::Float(value) if !value.is_finite() => not_finite(value).to_owned(),
        Number::Float(value) => {
            let limit = if T::DTYPE == DType::Float64 { 1e16 } else { exponent_limit(T::DTYPE) };
            let decimal = Decimal::shortest::<T>(value);
            if value == 0.0 || (1e-4..limit).contains(&value.abs()) {
                decimal.positional(decimal.behind_point().max(1))
            } else {
                decimal.scientific(decimal.fraction, 2).replace(".e", "e")
            }
        }
    }
}

/// Elements as words of equal width.
fn words<T: Element>(elements: &[T]) -> Vec<String> {
    if T::DTYPE.is_float() {
        return floats::<T>(&elements.iter().map(|element| element.to_f64()).collect::<Vec<_>>());
    }
    let words: Vec<_> = match T::DTYPE {
        DType::Bool => {
            elements.iter().map(|e| if e.to_i128() == 0 { "False" } else { "True" }.to_owned()).collect()
        }
        _ => elements.iter().map(|element| element.to_i128().to_string()).collect(),
    };
    // NumPy leaves room for the longer of the two booleans.
    let least = if T::DTYPE == DType::Bool { "False".len() } else { 0 };
    let width = words.iter().map(String::len).fold(least, usize::max);
    words.into_iter().map(|word| format!("{word:>width$}")).collect()
}

/// Floats, aligned at the decimal point.
fn floats<T: Element>(values: &[f64]) -> Vec<String> {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let decimals: Vec<_> = finite().map(Decimal::shortest::<T>).collect();
    let texts: Vec<_> = if needs_exponent::<T>(finite()) {
        let cut =
            |decimal: &Decimal| fraction_digits(&decimal.scientific(decimal.fraction.min(PRECISION), 2));
        let fraction = decimals.iter().map(cut).max().unwrap_or(0);
        let exponent = decimals.iter().map(|decimal| decimal.exponent.unsigned_abs().max(10).ilog10()).max();
        let exponent = exponent.map_or(0, |log| log as usize + 1);
        decimals.iter().map(|decimal| decimal.scientific(fraction, exponent)).collect()
    } else {
        let cut = |decimal: &Decimal| decimal.positional(decimal.behind_point().min(PRECISION));
        decimals.iter().map(|decimal| cut(decimal).trim_end_matches('0').to_owned()).collect()
    };
    let split = |text: &str| text.split_once('.').map_or((0, 0), |(left, right)| (left.len(), right.len()));
    let left = texts.iter().map(|text| split(text).0).max().unwrap_or(0);
    let right = texts.iter().map(|text| split(text).1).max().unwrap_or(0);
    let other = values.iter().filter(|value| !value.is_finite()).map(|&value| not_finite(value).len()).max();
    let width = (left + 1 + right).max(other.unwrap_or(0));
    let mut texts = texts.into_iter();
    let mut word = |&value: &f64| match value.is_finite().then(|| texts.next()).flatten() {
        Some(text) => format!("{:>width$}", format!("{text}{:1$}", "", right - split(&text).1)),
        None => format!("{:>width$}", not_finite(value)),
    };
    values.iter().map(&mut word).collect()
}

/// Whether finite values are so large, so small or so far apart that they are written in scientific notation.
fn needs_exponent<T: Element>(values: impl Iterator<Item = f64>) -> bool {
    let sizes = values.filter(|&value| value != 0.0).map(f64::abs);
    let (least, most) = sizes.fold((f64::INFINITY, 0f64), |(least, most), v| (least.min(v), most.max(v)));
    // NumPy compares in the array's own type.
    let ratio = || T::from_double(most / least).to_f64();
    most > 0.0 && (most >= exponent_limit(T::DTYPE) || least < T::from_double(1e-4).to_f64() || ratio() > 1e3)
}

/// The value from which scientific notation is used: where a dtype's digits no longer reach the decimal point.
fn exponent_limit(dtype: DType) -> f64 {
    match dtype {
        DType::Float64 => 1e8,
        DType::Float32 => 1e6,
        _ => 1e3,
    }
}

fn not_finite(value: f64) -> &'static str {
    if value.is_nan() {
        "nan"
    } else if value > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

/// The digits between the decimal point and the exponent, without trailing zeros.
fn fraction_digits(scientific: &str) -> usize {
    let fraction = scientific.split_once('.').and_then(|(_, rest)| rest.split_once('e'));
    fraction.map_or(0, |(digits, _)| digits.trim_end_matches('0').len())
}

/// A finite value, and how many digits distinguish it from the other values of its type.
struct Decimal {
    value: f64,
    /// The f64 that is written with the digits of the shortest decimal, for values whose nearest decimal of that length
    /// does not parse back to them. That happens at powers of two, which have a closer neighbour below.
    odd: Option<f64>,
    /// How many digits the shortest decimal has after its first.
    fraction: usize,
    /// The power of ten of the first digit.
    exponent: isize,
}

impl Decimal {
    fn shortest<T: Element>(value: f64) -> Decimal {
        let leads_back =
            |text: &String| text.parse().is_ok_and(|parsed| T::from_double(parsed).to_f64() == value);
        let text = match T::DTYPE {
            DType::Float64 => format!("{value:e}"),
            DType::Float32 => format!("{:e}", value as f32),
            // The standard library does not shorten the narrow types: take the first decimal that parses back, trying
            // ties both ways.
            _ => {
                let up = value * (1.0 + 1e-9);
                let mut texts = (0..PRECISION).flat_map(|p| [format!("{value:.p$e}"), format!("{up:.p$e}")]);
                texts.find(leads_back).unwrap_or_else(|| format!("{value:e}"))
            }
        };
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let fraction = mantissa.bytes().filter(u8::is_ascii_digit).count() - 1;
        let odd = if leads_back(&format!("{value:.fraction$e}")) { None } else { text.parse().ok() };
        Decimal { value, odd, fraction, exponent: exponent.parse().unwrap_or(0) }
    }

    /// The number of digits after the decimal point.
    fn behind_point(&self) -> usize {
        usize::try_from(self.fraction as isize - self.exponent).unwrap_or(0)
    }

    /// Written without an exponent, such as `-12.5` or `3.`.
    fn positional(&self, places: usize) -> String {
        match self.odd {
            Some(short) if places == self.behind_point() => short.to_string(),
            _ => format!("{:.places$}{}", self.value, if places == 0 { "." } else { "" }),
        }
    }

    /// Written with an exponent of at least `exponent_digits` digits, such as `-1.25e+07` or `3.e-01`.
    fn scientific(&self, places: usize, exponent_digits: usize) -> String {
        let text = match self.odd {
            Some(short) if places == self.fraction => format!("{short:e}"),
            _ => format!("{:.places$e}", self.value),
        };
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        let point = if places == 0 { "." } else { "" };
        format!("{mantissa}{point}e{sign}{exponent:0>exponent_digits$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::{Bool, ViewIndex, bf16, f16};

    #[track_caller]
    fn check<T: Element>(elements: &[T], shape: &[usize], expected: &str) {
        assert_eq!(Buffer::from_slice(elements, shape).unwrap().to_string(), expected);
    }

    #[test]
    fn floats_align_at_the_point() {
        check(&[1f32, 0., 3., 0., 5.], &[5], "[1. 0. 3. 0. 5.]");
        check(&[1f32, 0.25, -3.], &[3], "[ 1.    0.25 -3.  ]");
        check(&[0.1f32, 0.2, 0.3], &[3], "[0.1 0.2 0.3]");
        check(&[1. / 3., 2. / 3.], &[2], "[0.33333333 0.66666667]");
        check(&[1f32 / 3.], &[1], "[0.33333334]");
        check(&[-0.0, 1.], &[2], "[-0.  1.]");
        check(&[f64::NAN, 1.5, f64::NEG_INFINITY], &[3], "[ nan  1.5 -inf]");
        check(&[f32::NAN], &[1], "[nan]");
        check(&[52356.562f32, 0.999999999], &[2], "[5.2356562e+04 1.0000000e+00]");
        check(&[0.999999999f64], &[1], "[1.]");
        check(&[f16::from_f32(0.1), f16::from_f32(1. / 3.)], &[2], "[0.1    0.3333]");
        check(&[f16::from_f32(0.015625)], &[1], "[0.01563]");
        check(&[bf16::from_f32(1.), bf16::from_f32(0.1)], &[2], "[1.  0.1]");
    }

    #[test]
    fn exponents_appear_where_they_help() {
        check(&[1e-5f32, 1.], &[2], "[1.e-05 1.e+00]");
        check(&[0.3f32, 1.2345679e-5], &[2], "[3.0000001e-01 1.2345679e-05]");
        check(&[1e100, 1e-300], &[2], "[1.e+100 1.e-300]");
        check(&[1f32, 1001.], &[2], "[1.000e+00 1.001e+03]");
        check(&[1f32, 1000.], &[2], "[   1. 1000.]");
        check(&[99999999., 1e8 - 0.5], &[2], "[99999999.  99999999.5]");
        check(&[999999f32], &[1], "[999999.]");
        check(&[1e6f32], &[1], "[1.e+06]");
        check(&[1e10, f64::INFINITY], &[2], "[1.e+10    inf]");
    }

    #[test]
    fn other_types_align_right() {
        check(&[1i64, -2, 100, 4], &[2, 2], "[[  1  -2]\n [100   4]]");
        check(&[Bool::TRUE, Bool::FALSE], &[2], "[ True False]");
        check(&[Bool::TRUE], &[1], "[ True]");
        check(&[0u64, u64::MAX], &[2], "[                   0 18446744073709551615]");
    }

    #[test]
    fn scalars_stand_alone() {
        check(&[1f32], &[], "1.0");
        check(&[0.1f32], &[], "0.1");
        check(&[1e-5f32], &[], "1e-05");
        check(&[1234567f32], &[], "1.234567e+06");
        check(&[1e15f64], &[], "1000000000000000.0");
        check(&[1e22f64], &[], "1e+22");
        check(&[5.684341886080802e-14f64], &[], "5.684341886080802e-14");
        check(&[f64::NAN], &[], "nan");
        check(&[7i8], &[], "7");
        check(&[Bool::FALSE], &[], "False");
    }

    #[test]
    fn axes_nest_and_large_ones_are_shortened() {
        check(&[1i32, 2, 3, 4, 5, 6, 7, 8], &[2, 2, 2], "[[[1 2]\n  [3 4]]\n\n [[5 6]\n  [7 8]]]");
        check::<f32>(&[], &[2, 0], "[]");
        let many: Vec<i32> = (0..1001).collect();
        check(&many, &[1001], "[   0    1    2 ...  998  999 1000]");
        let rows: Vec<i16> = (0..1400).collect();
        let shortened = [
            "[[   0    1    2 ...  197  198  199]",
            " [ 200  201  202 ...  397  398  399]",
            " [ 400  401  402 ...  597  598  599]",
            " ...",
            " [ 800  801  802 ...  997  998  999]",
            " [1000 1001 1002 ... 1197 1198 1199]",
            " [1200 1201 1202 ... 1397 1398 1399]]",
        ];
        check(&rows, &[7, 200], &shortened.join("\n"));
        let eighths: Vec<f32> = (0..20).map(|i| i as f32 / 8.).collect();
        let wrapped = [
            "[0.    0.125 0.25  0.375 0.5   0.625 0.75  0.875 1.    1.125 1.25  1.375",
            " 1.5   1.625 1.75  1.875 2.    2.125 2.25  2.375]",
        ];
        check(&eighths, &[20], &wrapped.join("\n"));
    }

    #[test]
    fn views_show_what_they_select() {
        let buffer = Buffer::from([0i32, 1, 2, 3, 4]);
        let odd = buffer.index(&[ViewIndex::Slice { start: Some(-2), stop: None, step: -2 }]).unwrap();
        assert_eq!(odd.to_string(), "[3 1]");
    }
}
