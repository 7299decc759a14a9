//! Types in hand-written sources: such a source uses `IN`, `SUM_OF_IN` and `OUT_OF`, and their definitions for a dtype
//! are put before it. Narrow floats are summed in float, and integers in unsigned integers, which wrap.

use std::fmt::Write;

use max_core::DType;
use max_core::small_float::{self, Format, Special};
use max_driver::cuda::Source;

/// The type of elements of a dtype in memory, and how they are converted to the type of sums and back.
struct ElementFormat {
    memory: &'static str,
    load: String,
    store: String,
}

fn element_format(dtype: DType) -> ElementFormat {
    if let Some(format) = small_float::format(dtype) {
        let small = format!("Small<{}>", arguments(&format));
        let (load, store) = (format!("{small}::widen(x)"), format!("{small}::narrow(x)"));
        return ElementFormat { memory: "unsigned char", load, store };
    }
    let (memory, load, store) = match dtype {
        DType::Float64 => ("double", "x", "x"),
        DType::Float32 => ("float", "x", "x"),
        DType::Float16 => ("unsigned short", "from_f16(x)", "to_f16(x)"),
        DType::BFloat16 => ("unsigned short", "from_bf16(x)", "to_bf16(x)"),
        DType::Bool => ("unsigned char", "x != 0", "x"),
        DType::Int8 => ("signed char", "x", "x"),
        DType::Int16 => ("short", "x", "x"),
        DType::Int32 => ("int", "x", "x"),
        DType::Int64 => ("long long", "x", "x"),
        DType::UInt16 => ("unsigned short", "x", "x"),
        DType::UInt32 => ("unsigned int", "x", "x"),
        DType::UInt64 => ("unsigned long long", "x", "x"),
        _ => ("unsigned char", "x", "x"),
    };
    ElementFormat { memory, load: load.into(), store: store.into() }
}

/// The conversions of small floats.
pub(super) const SMALL_FLOATS: &str = include_str!("small_float.cuh");

/// The arguments that `Small` takes for a format.
pub(super) fn arguments(format: &Format) -> String {
    let Format { bits, fraction, bias, max, special } = *format;
    let special = match special {
        Special::Infinity => "INFINITE",
        Special::Nan => "WITH_NAN",
        Special::NanForNegativeZero => "NAN_FOR_NEGATIVE_ZERO",
        Special::Nothing => "FINITE",
        Special::Scale => "SCALE",
    };
    format!("{bits}, {fraction}, {bias}, {max}, {}, {special}", format.overflow())
}

/// The type of elements of a dtype in memory.
pub(super) fn element_type(dtype: DType) -> &'static str {
    element_format(dtype).memory
}

/// The type that a dtype is summed in.
fn sum_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Float64 => "double",
        _ if dtype.is_float() => "float",
        DType::Int64 | DType::UInt64 => "unsigned long long",
        _ => "unsigned int",
    }
}

/// A function from its text, with definitions of the dtypes and words that it uses. `SUM` is the type that the first
/// dtype is summed in, and `STEP(x, y, sum)` multiplies and adds.
pub(super) fn typed(name: &str, dtypes: &[(&str, DType)], words: &[(&str, &str)], text: &str) -> Source {
    let mut code = String::from(CONVERSIONS);
    if dtypes.iter().any(|(_, dtype)| dtype.is_small_float()) {
        code.push_str(SMALL_FLOATS);
    }
    let first = dtypes.first().map_or(DType::Float32, |(_, dtype)| *dtype);
    let step = match first {
        DType::Float64 => "fma(x, y, sum)",
        DType::Bool => "((x) & (y)) | (sum)",
        _ if first.is_float() => "fmaf(x, y, sum)",
        _ => "(x) * (y) + (sum)",
    };
    // Writing to a string cannot fail.
    let _ = writeln!(code, "#define NAME {name}\ntypedef {} SUM;", sum_type(first));
    let _ = writeln!(code, "#define STEP(x, y, sum) ({step})");
    for (word, dtype) in dtypes {
        let ElementFormat { memory, load, store } = element_format(*dtype);
        let _ = writeln!(code, "typedef {memory} {word};");
        let _ = writeln!(
            code,
            "__device__ __forceinline__ SUM SUM_OF_{word}({word} x) {{ return (SUM)({load}); }}"
        );
        let _ = writeln!(
            code,
            "__device__ __forceinline__ {word} {word}_OF(SUM x) {{ return ({word})({store}); }}"
        );
    }
    for (word, meaning) in words {
        let _ = writeln!(code, "#define {word} {meaning}");
    }
    code.push_str(text);
    Source { name: name.to_string(), prelude: "".into(), code }
}

/// Conversions between narrow floats and float32, which round to nearest, ties to even.
pub(super) const CONVERSIONS: &str = r#"
__device__ __forceinline__ float from_f16(unsigned short x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ unsigned short to_f16(float x) {
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float from_bf16(unsigned short x) { return __uint_as_float((unsigned int)x << 16); }
__device__ __forceinline__ unsigned short to_bf16(float x) {
    const unsigned int bits = __float_as_uint(x);
    if (x != x) return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
"#;
