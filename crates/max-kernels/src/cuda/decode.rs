//! Block formats as CUDA source: functions that read a block, from the declaration of its format.

use std::fmt::Write;

use max_core::quantization::{Codes, Format, Plane, Scale};

/// The functions of a format, to be put after [`super::text::CONVERSIONS`]; sizes are `ELEMENTS`, `BYTES` and `GROUP`.
///
/// - `unsigned int code_at(const unsigned char *block, unsigned int i)`: the code of an element.
/// - `int number_of(unsigned int code)`: what it stands for.
/// - `float scale_at(const unsigned char *block, unsigned int group)`, and `min_at` with the same parameters.
/// - `float decoded(unsigned int code, float scale, float min)`: the element, with the bits that the host computes.
pub(super) fn text(format: &Format) -> String {
    let Format { elements, bytes, group, .. } = format;
    let mut code = String::from(HALVES);
    let mut function = |head: &str, body: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(code, "__device__ __forceinline__ {head} {{ return {body}; }}");
    };
    const BLOCK: &str = "const unsigned char *block";
    function(&format!("unsigned int code_at({BLOCK}, unsigned int i)"), &number(format.planes));
    function("int number_of(unsigned int code)", &value(format.codes, "code"));
    let scale = |scale: Option<Scale>| scale.map_or("0.0f".to_owned(), scale_text);
    function(&format!("float scale_at({BLOCK}, unsigned int i)"), &scale(Some(format.scale)));
    function(&format!("float min_at({BLOCK}, unsigned int i)"), &scale(format.min));
    let element = match format.min {
        Some(_) => "__fsub_rn(__fmul_rn(scale, (float)number_of(code)), min)",
        None => "__fmul_rn(scale, (float)number_of(code))",
    };
    function("float decoded(unsigned int code, float scale, float min)", element);
    format!("constexpr unsigned int ELEMENTS = {elements}, BYTES = {bytes}, GROUP = {group};\n{code}")
}

/// The float16 at an address of any alignment, and half of a power of two; see `half_power` of the formats.
const HALVES: &str = "\
__device__ __forceinline__ float half_at(const unsigned char *at) { return from_f16((unsigned short)(at[0] | at[1] << 8)); }
__device__ __forceinline__ float half_power(unsigned int exponent) {
    const unsigned int bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23;
    return __uint_as_float(exponent == 255 ? 0x7fc00000u : bits);
}
";

/// The bits of the number `i` in planes of `block`.
fn number(planes: &[Plane]) -> String {
    let (mut parts, mut up) = (Vec::with_capacity(planes.len()), 0);
    for plane in planes {
        let Plane { at, bits, run, first, per, apart } = *plane;
        let byte = format!("{at} + i % {run} + i / {run} / {per} * {run} + i / {run} * {apart}");
        let shift = format!("{first} + i / {run} % {per} * {bits}");
        parts.push(format!("((unsigned int)block[{byte}] >> ({shift}) & {}u) << {up}", plane.mask()));
        up += bits;
    }
    parts.join(" | ")
}

/// The number that a code stands for.
fn value(codes: Codes, code: &str) -> String {
    match codes {
        Codes::Above(offset) => format!("(int)({code}) - {offset}"),
        Codes::Signed => format!("(int)(signed char)({code})"),
        Codes::Float4 => {
            // Four bits for each magnitude.
            let table = (0..8).fold(0u32, |table, code| table | (codes.value(code) as u32) << (4 * code));
            let magnitude = format!("(int)({table:#x}u >> (4 * (({code}) & 7)) & 15)");
            format!("({code}) & 8 ? -{magnitude} : {magnitude}")
        }
    }
}

/// The scale of the group `i`.
fn scale_text(scale: Scale) -> String {
    match scale {
        Scale::Half(at) => format!("half_at(block + {at})"),
        Scale::Negative(at) => format!("-half_at(block + {at})"),
        Scale::HalfPower(at) => format!("half_power(block[{at}])"),
        Scale::Times { half, planes, codes } => {
            format!("__fmul_rn(half_at(block + {half}), (float)({}))", value(codes, &number(planes)))
        }
    }
}
