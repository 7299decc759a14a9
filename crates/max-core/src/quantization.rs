//! How the elements of quantized weights are encoded.
//!
//! An encoding with blocks is one declaration, a [`Format`]; how blocks are read and written, and the products on them,
//! follow from it.

mod activations;
mod format;
mod formats;
mod quantize;
mod storage;

pub use activations::{ACTIVATIONS, activation_scale, round_activations};
pub use format::{Codes, Format, Plane, Scale, half_power};
pub use storage::Storage;

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::{Error, Result, bail};

/// The structure of a quantization block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockParameters {
    /// The number of elements in a block.
    pub elements_per_block: usize,
    /// The size of an encoded block in bytes.
    pub block_size: usize,
}

/// Parameters of a quantization method that determine how weights are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuantizationConfig {
    /// The method, such as `gptq`.
    pub quant_method: String,
    /// Bits per element.
    pub bits: u32,
    /// Elements that share a scale; -1 if all of a row do.
    pub group_size: i64,
    /// Whether columns were reordered by activation.
    pub desc_act: bool,
    /// Whether quantization is symmetric.
    pub sym: bool,
}

macro_rules! encodings {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $format:expr;)*) => {
        /// How the elements of a weight are encoded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the documented names")]
        pub enum QuantizationEncoding { $($(#[$doc])* $variant,)* }

        impl QuantizationEncoding {
            /// Every encoding.
            pub const ALL: &'static [QuantizationEncoding] = &[$(QuantizationEncoding::$variant),*];

            /// The lowercase name.
            pub const fn name(self) -> &'static str {
                match self { $(QuantizationEncoding::$variant => $name),* }
            }

            /// The format of its blocks, if the encoding has blocks of its own.
            pub const fn blocks(self) -> Option<&'static Format> {
                match self { $(QuantizationEncoding::$variant => $format),* }
            }
        }
    };
}

encodings! {
    /// 2 bits, 256 elements per block in 16 groups.
    Q2_K, "q2_k", Some(&formats::Q2_K);
    /// 3 bits, 256 elements per block in 16 groups.
    Q3_K, "q3_k", Some(&formats::Q3_K);
    /// 4 bits, 32 elements per block, one half-precision scale.
    Q4_0, "q4_0", Some(&formats::Q4_0);
    /// 4 bits, 32 elements per block, a half-precision scale and minimum.
    Q4_1, "q4_1", Some(&formats::Q4_1);
    /// 4 bits, 256 elements per block in 8 groups.
    Q4_K, "q4_k", Some(&formats::Q4_K);
    /// 5 bits, 32 elements per block, one half-precision scale.
    Q5_0, "q5_0", Some(&formats::Q5_0);
    /// 5 bits, 32 elements per block, a half-precision scale and minimum.
    Q5_1, "q5_1", Some(&formats::Q5_1);
    /// 5 bits, 256 elements per block in 8 groups.
    Q5_K, "q5_k", Some(&formats::Q5_K);
    /// 6 bits, 256 elements per block in 16 groups.
    Q6_K, "q6_k", Some(&formats::Q6_K);
    /// 8 bits, 32 elements per block, one half-precision scale.
    Q8_0, "q8_0", Some(&formats::Q8_0);
    /// Floats of 4 bits, 32 elements per block, one power of two as their scale.
    MXFP4, "mxfp4", Some(&formats::MXFP4);
    /// Group-wise post-training quantization; its groups are in a config, not in blocks.
    GPTQ, "gptq", None;
}

impl QuantizationEncoding {
    /// The format of its blocks; an error for GPTQ, which has none.
    pub fn format(self) -> Result<&'static Format> {
        match self.blocks() {
            Some(format) => Ok(format),
            None => bail!(
                value,
                "{} has no fixed block parameters; its group size is in a QuantizationConfig",
                self.name()
            ),
        }
    }

    /// The structure of a block; an error for GPTQ, which has none.
    pub fn block_parameters(self) -> Result<BlockParameters> {
        self.format().map(|f| BlockParameters { elements_per_block: f.elements, block_size: f.bytes })
    }

    /// Whether GGUF files use it.
    pub fn is_gguf(self) -> bool {
        self.blocks().is_some()
    }

    /// Encodes values, whose number must be a multiple of [`Format::elements`]; see [`Format::quantize`].
    pub fn quantize(self, values: &[f32]) -> Result<Vec<u8>> {
        let format = self.format()?;
        let count = self.whole(values.len(), format.elements, "elements")?;
        let mut blocks = zeros(count, format.bytes)?;
        format.quantize(values, &mut blocks);
        Ok(blocks)
    }

    /// Decodes blocks, whose bytes must be a multiple of [`Format::bytes`]; see [`Format::dequantize`].
    pub fn dequantize(self, blocks: &[u8]) -> Result<Vec<f32>> {
        let format = self.format()?;
        let count = self.whole(blocks.len(), format.bytes, "bytes")?;
        let mut values = zeros(count, format.elements)?;
        format.dequantize(blocks, &mut values);
        Ok(values)
    }

    /// The number of blocks; an error if there is not a whole number of them.
    fn whole(self, len: usize, block: usize, what: &str) -> Result<usize> {
        if !len.is_multiple_of(block) {
            bail!(value, "a block of {self} has {block} {what}, of which {len} is not a multiple");
        }
        Ok(len / block)
    }
}

/// Zeros for a number of blocks.
fn zeros<T: Clone + Default>(count: usize, block: usize) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let len = count.checked_mul(block).filter(|&len| all.try_reserve_exact(len).is_ok());
    let Some(len) = len else { bail!(memory, "there is no memory for {count} blocks of {block} elements") };
    all.resize(len, T::default());
    Ok(all)
}

impl Display for QuantizationEncoding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for QuantizationEncoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = QuantizationEncoding::ALL.iter().copied().find(|e| e.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| {
            let names: Vec<_> = QuantizationEncoding::ALL.iter().map(|e| e.name()).collect();
            Error::value(format!("'{name}' is not a quantization encoding; they are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes() {
        let sizes = |e: &QuantizationEncoding| e.blocks().map(|f| (e.name(), f.elements, f.bytes));
        let sizes: Vec<_> = QuantizationEncoding::ALL.iter().filter_map(sizes).collect();
        assert_eq!(
            sizes,
            [
                ("q2_k", 256, 84),
                ("q3_k", 256, 110),
                ("q4_0", 32, 18),
                ("q4_1", 32, 20),
                ("q4_k", 256, 144),
                ("q5_0", 32, 22),
                ("q5_1", 32, 24),
                ("q5_k", 256, 176),
                ("q6_k", 256, 210),
                ("q8_0", 32, 34),
                ("mxfp4", 32, 17),
            ]
        );
        assert!(QuantizationEncoding::GPTQ.block_parameters().is_err());
        assert_eq!("Q4_K".parse(), Ok(QuantizationEncoding::Q4_K));
        assert!("q9".parse::<QuantizationEncoding>().is_err());
    }
}
