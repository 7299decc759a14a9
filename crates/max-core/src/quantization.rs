//! Block quantization formats: how many elements share a block, and the size of a block in bytes.

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
    /// Elements that share a scale.
    pub group_size: u32,
    /// Whether columns were reordered by activation.
    pub desc_act: bool,
    /// Whether quantization is symmetric.
    pub sym: bool,
}

macro_rules! encodings {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $block:expr;)*) => {
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

            /// Elements and bytes of a block, if the encoding has fixed blocks.
            const fn block(self) -> Option<(usize, usize)> {
                match self { $(QuantizationEncoding::$variant => $block),* }
            }
        }
    };
}

encodings! {
    /// 4 bits, 32 elements per block, one half-precision scale.
    Q4_0, "q4_0", Some((32, 2 + 16));
    /// 4 bits, 256 elements per block in 8 groups.
    Q4_K, "q4_k", Some((256, 2 + 2 + 12 + 128));
    /// 5 bits, 256 elements per block in 8 groups.
    Q5_K, "q5_k", Some((256, 2 + 2 + 12 + 32 + 128));
    /// 6 bits, 256 elements per block in 16 groups.
    Q6_K, "q6_k", Some((256, 128 + 64 + 16 + 2));
    /// Group-wise post-training quantization; its groups are in a config, not in blocks.
    GPTQ, "gptq", None;
}

impl QuantizationEncoding {
    /// The structure of a block; an error for GPTQ, which has none.
    pub fn block_parameters(self) -> Result<BlockParameters> {
        match self.block() {
            Some((elements_per_block, block_size)) => Ok(BlockParameters { elements_per_block, block_size }),
            None => bail!(
                value,
                "{} has no fixed block parameters; its group size is in a QuantizationConfig",
                self.name()
            ),
        }
    }

    /// Whether GGUF files use it.
    pub fn is_gguf(self) -> bool {
        self.block().is_some()
    }
}

impl FromStr for QuantizationEncoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = QuantizationEncoding::ALL.iter().copied().find(|e| e.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| Error::value(format!("'{name}' is not a quantization encoding")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes() {
        let sizes: Vec<_> = QuantizationEncoding::ALL.iter().filter_map(|e| e.block()).collect();
        assert_eq!(sizes, [(32, 18), (256, 144), (256, 176), (256, 210)]);
        assert!(QuantizationEncoding::GPTQ.block_parameters().is_err());
        assert_eq!("Q4_K".parse(), Ok(QuantizationEncoding::Q4_K));
    }
}
