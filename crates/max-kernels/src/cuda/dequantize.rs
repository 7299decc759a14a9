//! Decoding of quantized weights on a GPU: a thread has four neighbouring elements.

use max_core::Result;
use max_core::kernel::Dequantize;
use max_core::quantization::Format;
use max_core::{DType, QuantizationEncoding};
use max_driver::cuda::Source;

use super::matmul::row_major;
use super::text::typed;
use super::{Address, Call, Param, Plan, PlannedLaunch, decode};

/// The threads of a block, and the elements of each.
const THREADS: u64 = 256;
const EACH: u64 = 4;

impl Plan {
    /// Adds the decoding of blocks.
    pub(super) fn dequantize(&mut self, k: &Dequantize<i64>) -> Result<()> {
        let blocks = k.blocks()?;
        row_major(&[k.rows, k.bytes])?;
        let (_, elements) = row_major(&[k.rows, k.elements])?;
        if k.rows == 0 || blocks == 0 {
            return Ok(());
        }
        let mut params: Vec<Param> =
            [&k.source, &k.out].map(|access| Param::Address(Address::of(access))).to_vec();
        params.extend([k.rows, blocks, k.source.strides[0], k.out.strides[0]].map(Param::Number));
        self.launches.push(PlannedLaunch::Function(Call {
            source: source(k.encoding, k.encoding.format()?),
            grid: [(elements as u64).div_ceil(THREADS * EACH).clamp(1, 1 << 30) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: 0,
            params,
        }));
        Ok(())
    }
}

/// The function for an encoding.
fn source(encoding: QuantizationEncoding, format: &Format) -> Source {
    let text = [&decode::text(format), include_str!("dequantize/dequantize.cu")].concat();
    typed(&format!("dequantize_{encoding}"), &[("OUT", DType::Float32)], &[], &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc;

    #[test]
    fn functions_compile() {
        let formats = QuantizationEncoding::ALL.iter().filter_map(|e| Some((*e, e.blocks()?)));
        let sources: Vec<Source> = formats
            .map(|(encoding, format)| {
                // The elements of a thread share a scale.
                assert!((format.group as u64).is_multiple_of(EACH));
                source(encoding, format)
            })
            .collect();
        nvrtc::check(&sources);
    }
}
