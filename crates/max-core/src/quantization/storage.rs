//! How the rows of quantized matrices are stored.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::{Codes, Format, QuantizationEncoding};
use crate::{DType, Error, Result, bail};

/// How each row of a quantized matrix is stored: in blocks, or as codes whose scales are in another tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Blocks one after the other, each with its scales.
    Blocks(QuantizationEncoding),
    /// Integers of 4 or 8 bits above half of their range, the first in the lowest bits; a float16 for each group of this
    /// many elements is in another tensor, as two bytes.
    Integers {
        /// The number of bits of a code.
        bits: u32,
        /// The number of elements that share a scale.
        group: usize,
    },
    /// Floats of 4 bits, the first in the lower half of a byte; the biased exponent of each 32 is a byte of another tensor.
    Float4,
    /// Floats; those of up to 8 bits may have float32 scales in another tensor.
    Floats {
        /// Their type.
        dtype: DType,
        /// The number of elements that share a scale, or zero if there are no scales.
        group: usize,
    },
}

impl Storage {
    /// Activations and the scales of weights are for at least this many elements: depths are a multiple of it.
    pub const GROUP: usize = 32;

    /// The format of the blocks, if it has any.
    pub fn blocks(self) -> Option<&'static Format> {
        match self {
            Storage::Blocks(encoding) => encoding.blocks(),
            _ => None,
        }
    }

    /// Whether products multiply integers, and not floats.
    pub fn is_integers(self) -> bool {
        !matches!(self, Storage::Floats { .. })
    }

    /// The dtype of the tensor of codes.
    pub fn dtype(self) -> DType {
        match self {
            Storage::Floats { dtype, .. } => dtype,
            _ => DType::UInt8,
        }
    }

    /// The dtype of the tensor of scales, if there is one.
    pub fn scales_dtype(self) -> Option<DType> {
        match self {
            Storage::Blocks(_) | Storage::Floats { group: 0, .. } => None,
            Storage::Integers { .. } | Storage::Float4 => Some(DType::UInt8),
            Storage::Floats { .. } => Some(DType::Float32),
        }
    }

    /// The number of elements of a row that has this many codes in its tensor, or an error that says what is wrong.
    pub fn elements(self, codes: usize) -> Result<usize> {
        let times = |factor: usize| {
            codes
                .checked_mul(factor)
                .ok_or_else(|| Error::value(format!("a row of {codes} bytes is too long")))
        };
        let elements = match self {
            Storage::Blocks(encoding) => {
                let format = encoding.format()?;
                if !codes.is_multiple_of(format.bytes) {
                    bail!(
                        value,
                        "a row of {codes} bytes is no whole number of {} blocks of {} bytes",
                        encoding.name(),
                        format.bytes
                    );
                }
                times(format.elements)? / format.bytes
            }
            Storage::Integers { bits, .. } => times(8)? / bits as usize,
            Storage::Float4 => times(2)?,
            Storage::Floats { .. } => codes,
        };
        let unit = if matches!(self, Storage::Floats { group: 0, .. }) { 1 } else { Storage::GROUP };
        let group = match self {
            Storage::Integers { group, .. } => group,
            Storage::Floats { group, .. } if group > 0 => group,
            _ => unit,
        };
        if group == 0 || !elements.is_multiple_of(group) || !group.is_multiple_of(unit) {
            bail!(value, "rows of {elements} elements cannot be stored as {self}");
        }
        Ok(elements)
    }

    /// The number of elements in a row of the tensor of scales, for a row of this many elements.
    pub fn scales(self, elements: usize) -> usize {
        match self {
            Storage::Blocks(_) | Storage::Floats { group: 0, .. } => 0,
            Storage::Integers { group, .. } => 2 * (elements / group),
            Storage::Float4 => elements / 32,
            Storage::Floats { group, .. } => elements / group,
        }
    }

    /// Decodes a row: `values` has its elements, `codes` and `scales` its bytes in their tensors.
    pub fn dequantize(self, codes: &[u8], scales: &[u8], values: &mut [f32]) -> Result<()> {
        let integers = |codes_are: Codes, bits: u32, at: usize| {
            let (bit, mask) = (at * bits as usize % 8, 0xff_u8 >> (8 - bits));
            codes_are.value(codes[at * bits as usize / 8] >> bit & mask) as f32
        };
        match self {
            Storage::Blocks(encoding) => encoding.format()?.dequantize(codes, values),
            Storage::Integers { bits, group } => {
                for (at, value) in values.iter_mut().enumerate() {
                    let scale = [0, 1].map(|byte| scales[at / group * 2 + byte]);
                    let scale = half::f16::from_le_bytes(scale).to_f32();
                    *value = scale * integers(Codes::Above(1 << (bits - 1)), bits, at);
                }
            }
            Storage::Float4 => {
                for (at, value) in values.iter_mut().enumerate() {
                    *value = super::half_power(scales[at / 32]) * integers(Codes::Float4, 4, at);
                }
            }
            Storage::Floats { dtype, group } => {
                crate::dispatch!(dtype, T => {
                    let size = size_of::<T>();
                    for (value, code) in values.iter_mut().zip(codes.chunks_exact(size)) {
                        let element = bytemuck::pod_read_unaligned::<T>(code);
                        *value = crate::Element::to_f64(element) as f32;
                    }
                });
                if group > 0 {
                    for (values, scale) in values.chunks_mut(group).zip(scales.chunks_exact(4)) {
                        let scale = bytemuck::pod_read_unaligned::<f32>(scale);
                        values.iter_mut().for_each(|value| *value *= scale);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Display for Storage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Blocks(encoding) => f.write_str(encoding.name()),
            Storage::Integers { bits, group } => write!(f, "int{bits}/{group}"),
            Storage::Float4 => f.write_str("float4/32"),
            Storage::Floats { dtype, group: 0 } => write!(f, "{dtype}"),
            Storage::Floats { dtype, group } => write!(f, "{dtype}/{group}"),
        }
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Storage> {
        let (name, group) = match text.split_once('/') {
            Some((name, group)) => (name, group.parse::<usize>().ok().filter(|&group| group > 0)),
            None => (text, Some(0)),
        };
        let integers = |bits| Some(Storage::Integers { bits, group: group.filter(|&group| group > 0)? });
        let storage = match (name, group) {
            ("int4", _) => integers(4),
            ("int8", _) => integers(8),
            ("float4", Some(32)) => Some(Storage::Float4),
            (_, Some(group)) => match (name.parse::<DType>(), name.parse::<QuantizationEncoding>()) {
                (Ok(dtype), _) if dtype.is_float() && dtype != DType::Float64 => {
                    Some(Storage::Floats { dtype, group })
                }
                (_, Ok(encoding)) if group == 0 && encoding.blocks().is_some() => {
                    Some(Storage::Blocks(encoding))
                }
                _ => None,
            },
            _ => None,
        };
        storage.ok_or_else(|| Error::value(format!("'{text}' is not how quantized rows are stored")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in
            ["q4_k", "int4/128", "int8/32", "float4/32", "float8_e4m3fn", "float8_e4m3fn/128", "bfloat16"]
        {
            assert_eq!(text.parse::<Storage>().unwrap().to_string(), text);
        }
        for text in ["gptq", "int4", "int4/0", "float4", "q4_0/32", "int32", "float64", "x", "float4/x"] {
            assert!(text.parse::<Storage>().is_err(), "{text}");
        }
    }

    #[test]
    fn rows_are_whole_groups() {
        let elements = |text: &str, codes| text.parse::<Storage>().unwrap().elements(codes).ok();
        assert_eq!(elements("q4_0", 36), Some(64));
        assert_eq!(elements("q4_0", 35), None);
        assert_eq!(elements("int4/128", 64), Some(128));
        assert_eq!(elements("int4/128", 32), None);
        assert_eq!(elements("int4/48", 48), None);
        assert_eq!(elements("float4/32", 16), Some(32));
        assert_eq!(elements("float4/32", 24), None);
        assert_eq!(elements("bfloat16", 7), Some(7));
        assert_eq!(elements("float8_e4m3fn/128", 256), Some(256));
        assert_eq!("int4/128".parse::<Storage>().unwrap().scales(256), 4);
    }
}
