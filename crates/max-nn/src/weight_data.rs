//! Values of weights, as files have them.

use max_core::{DType, QuantizationEncoding, Result, bail};
use max_driver::Buffer;
use max_graph::HostTensor;

/// The value of a weight.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// Its elements, or the bytes of its blocks if they are encoded.
    pub data: Buffer,
    /// How its elements are encoded, if they are.
    pub quantization_encoding: Option<QuantizationEncoding>,
}

impl WeightData {
    /// The type of its elements; uint8 if they are encoded.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        self.data.shape()
    }

    /// The same numbers in another dtype: rounded, or decoded if they are encoded.
    pub fn astype(&self, dtype: DType) -> Result<WeightData> {
        if self.quantization_encoding.is_none() && self.dtype() == dtype {
            return Ok(self.clone());
        }
        let bytes = self.data.host_bytes()?;
        let values = match self.quantization_encoding {
            None => HostTensor::new(self.dtype(), self.shape(), bytes)?,
            Some(encoding) => {
                let values = encoding.dequantize(&bytes)?;
                let block = encoding.block_parameters()?;
                let Some((last, outer)) = self.shape().split_last() else {
                    bail!(value, "an encoded weight has at least one axis");
                };
                let elements = last / block.block_size * block.elements_per_block;
                HostTensor::from_vec([outer, &[elements]].concat(), values)?
            }
        };
        let values = values.cast(dtype)?;
        let data = Buffer::from_host_bytes(values.bytes().clone(), dtype, values.shape())?;
        Ok(WeightData { data, quantization_encoding: None })
    }
}

impl From<Buffer> for WeightData {
    fn from(data: Buffer) -> WeightData {
        WeightData { data, quantization_encoding: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_or_decoded() {
        let floats = WeightData::from(Buffer::from_slice(&[1.5f32, -2.0, 0.1, 3.0], &[2, 2]).unwrap());
        let halves = floats.astype(DType::BFloat16).unwrap();
        assert_eq!((halves.dtype(), halves.shape()), (DType::BFloat16, &[2, 2][..]));
        let back = halves.astype(DType::Float32).unwrap();
        assert_eq!(back.data.to_vec::<f32>().unwrap(), [1.5, -2.0, 0.100_097_656, 3.0]);
        let encoding = QuantizationEncoding::Q8_0;
        let blocks = encoding.quantize(&[2.0; 64]).unwrap();
        let data = Buffer::from_slice(&blocks, &[2, 34]).unwrap();
        let encoded = WeightData { data, quantization_encoding: Some(encoding) };
        let decoded = encoded.astype(DType::Float32).unwrap();
        assert_eq!(decoded.shape(), [2, 32]);
        assert!(decoded.quantization_encoding.is_none());
    }
}
