//! Values of weights, as files have them.

use max_core::{DType, HostBytes, QuantizationEncoding, Result, bail};
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

    /// Its sizes; the last one counts bytes if the elements are encoded.
    pub fn shape(&self) -> &[usize] {
        self.data.shape()
    }

    /// The same numbers in another dtype: rounded, or decoded if they are encoded. Encoded ones are uint8 as they are.
    pub fn astype(&self, dtype: DType) -> Result<WeightData> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let bytes = self.data.host_bytes()?;
        let values = match self.quantization_encoding {
            None => HostTensor::new(self.dtype(), self.shape(), bytes)?,
            Some(encoding) => {
                HostTensor::from_vec(decoded_shape(self.shape(), encoding)?, encoding.dequantize(&bytes)?)?
            }
        };
        let values = values.cast(dtype)?;
        Buffer::from_host_bytes(values.bytes().clone(), dtype, values.shape()).map(WeightData::from)
    }

    /// The same numbers in an encoding: quantized, row by row.
    pub fn encode(&self, encoding: QuantizationEncoding) -> Result<WeightData> {
        if self.quantization_encoding == Some(encoding) {
            return Ok(self.clone());
        }
        let values = self.astype(DType::Float32)?;
        let shape = encoded_shape(values.shape(), encoding)?;
        let values = HostTensor::new(DType::Float32, values.shape(), values.data.host_bytes()?)?;
        let blocks = encoding.quantize(&values.elements::<f32>()?)?;
        let data = Buffer::from_host_bytes(HostBytes::from_vec(blocks), DType::UInt8, &shape)?;
        Ok(WeightData { data, quantization_encoding: Some(encoding) })
    }
}

/// The shape of what blocks encode.
pub(crate) fn decoded_shape(shape: &[usize], encoding: QuantizationEncoding) -> Result<Vec<usize>> {
    let block = encoding.block_parameters()?;
    rescaled(shape, block.block_size, block.elements_per_block, encoding)
}

/// The shape of the blocks that encode elements.
pub(crate) fn encoded_shape(shape: &[usize], encoding: QuantizationEncoding) -> Result<Vec<usize>> {
    let block = encoding.block_parameters()?;
    rescaled(shape, block.elements_per_block, block.block_size, encoding)
}

/// A shape whose rows are made of blocks, if a block has another size.
fn rescaled(shape: &[usize], from: usize, to: usize, encoding: QuantizationEncoding) -> Result<Vec<usize>> {
    if let Some((last, outer)) = shape.split_last()
        && last.is_multiple_of(from)
        && let Some(size) = (last / from).checked_mul(to)
    {
        return Ok([outer, &[size]].concat());
    }
    bail!(
        value,
        "the rows of the shape {shape:?} are no multiples of {from}, the size of a block of {encoding}"
    )
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
    }

    #[test]
    fn values_are_encoded_by_rows() {
        let floats = WeightData::from(Buffer::from_slice(&[2f32; 64], &[2, 32]).unwrap());
        let encoded = floats.encode(QuantizationEncoding::Q8_0).unwrap();
        assert_eq!((encoded.dtype(), encoded.shape()), (DType::UInt8, &[2, 34][..]));
        let decoded = encoded.astype(DType::Float32).unwrap();
        assert_eq!((decoded.shape(), decoded.quantization_encoding), (&[2, 32][..], None));
        let another = encoded.encode(QuantizationEncoding::Q4_0).unwrap();
        assert_eq!(another.shape(), [2, 18]);
        assert!(floats.encode(QuantizationEncoding::Q4_K).unwrap_err().message().contains("[2, 32]"));
        assert!(floats.encode(QuantizationEncoding::GPTQ).is_err());
        let scalar = WeightData::from(Buffer::from_slice(&[2f32], &[]).unwrap());
        assert!(scalar.encode(QuantizationEncoding::Q8_0).is_err());
    }
}
