//! Types, literals, casts and numbers as CUDA C++.

use max_core::kernel::{Literal, Reduction};
use max_core::scalar::source::register_type;
use max_core::{DType, Element, dispatch};

use crate::loops::register;

/// The type of elements in memory.
pub(in crate::cuda) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "boolean",
        DType::Float16 => "f16",
        DType::BFloat16 => "bf16",
        small if small.is_small_float() => small.name().rsplit('_').next().unwrap_or_default(),
        native => register_type(native),
    }
}

/// A literal in register form.
pub(in crate::cuda) fn literal_text(literal: Literal) -> String {
    let of = register_type(literal.dtype);
    let bytes = literal.bits.to_le_bytes();
    match literal.dtype {
        DType::Bool => (literal.bits & 0xff != 0).to_string(),
        DType::Float64 => match f64::from_bits(literal.bits) {
            value if value.is_finite() => format!("{value:?}"),
            _ => format!("__longlong_as_double({:#x}ll)", literal.bits),
        },
        dtype if dtype.is_float() => match literal.to_f64() as f32 {
            value if value.is_finite() => format!("{value:?}f"),
            value => format!("__int_as_float({:#x})", value.to_bits()),
        },
        dtype if dtype.is_signed_integral() => {
            let value =
                dispatch!(dtype, T => bytemuck::pod_read_unaligned::<T>(&bytes[..size_of::<T>()]).to_i128());
            match value as i64 {
                i64::MIN => format!("({of})0x8000000000000000ull"),
                value => format!("({of}){value}ll"),
            }
        }
        dtype => {
            let value =
                dispatch!(dtype, T => bytemuck::pod_read_unaligned::<T>(&bytes[..size_of::<T>()]).to_i128());
            format!("({of}){value}ull")
        }
    }
}

pub(in crate::cuda) fn cast_text(from: DType, to: DType, value: &str) -> String {
    if register(to) != to {
        return format!("lane::Rounded<{}>::of({value})", memory_type(to));
    }
    if register(from) == to {
        return value.to_string();
    }
    format!("lane::Cast<{}>::of({value})", register_type(to))
}

/// The type that combines the elements of a reduction.
pub(super) fn combiner(kind: Reduction) -> &'static str {
    match kind {
        Reduction::Sum => "lane::Sum",
        Reduction::Prod => "lane::Prod",
        Reduction::Max => "lane::Max",
        Reduction::Min => "lane::Min",
        Reduction::ArgMax => "lane::ArgMax",
        Reduction::ArgMin => "lane::ArgMin",
    }
}

/// The factor and the shift that replace a division of numbers below 2^31.
pub(super) fn divisor(size: i64) -> u64 {
    let shift = 64 - (size.max(1) as u64 - 1).leading_zeros();
    let factor = (1u128 << (31 + shift)).div_ceil(size.max(1) as u128) as u64;
    factor | u64::from(31 + shift) << 32
}
