//! What a file of weights contains, whatever its format.

use max_core::{DType, QuantizationEncoding, Result, Strided, bail};
use max_driver::Buffer;
use max_graph::HostTensor;
use max_graph::host::byte_count;

use crate::source::Source;
use crate::{Metadata, WeightData};

/// The most axes that a tensor can have, as in a buffer.
pub(crate) const MOST_AXES: usize = 64;

/// The tensors of a file in its order, and what it says about itself.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) metadata: Metadata,
}

/// A tensor in a file. All of its elements lie inside the file.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// The type of its elements; uint8 if they are encoded.
    pub(crate) dtype: DType,
    /// Its sizes; the last one counts bytes if its elements are encoded.
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Option<QuantizationEncoding>,
    /// The bytes of its elements without gaps.
    pub(crate) bytes: usize,
    /// The first byte of its elements, or of the storage that contains them.
    pub(crate) start: usize,
    /// How its elements are selected from a storage of some bytes, if they are not simply all there are.
    pub(crate) view: Option<(usize, Strided)>,
}

impl Tensor {
    /// A tensor whose elements lie one after the other.
    pub(crate) fn new(dtype: DType, shape: Vec<usize>, start: usize) -> Result<Tensor> {
        let bytes = byte_count(dtype, &shape)?;
        Ok(Tensor { dtype, shape, encoding: None, bytes, start, view: None })
    }

    /// Its value; nothing is copied unless its elements have gaps or are not aligned.
    pub(crate) fn value(&self, source: &Source) -> Result<WeightData> {
        let data = match &self.view {
            None => source.elements(self.start, self.dtype, &self.shape, self.bytes)?,
            Some((bytes, layout)) => {
                let elements = [bytes / self.dtype.size_in_bytes()];
                let storage = source.elements(self.start, self.dtype, &elements, *bytes)?;
                let storage = HostTensor::new(self.dtype, elements, storage.host_bytes()?)?;
                let bytes = storage.gathered(layout)?.bytes().clone();
                Buffer::from_host_bytes(bytes, self.dtype, &self.shape)?
            }
        };
        Ok(WeightData { data, quantization_encoding: self.encoding })
    }
}

/// The sizes of a shape in a file.
pub(crate) fn sizes(name: &str, shape: &[u64]) -> Result<Vec<usize>> {
    if shape.len() > MOST_AXES {
        bail!(value, "tensor '{name}' has {} axes, more than {MOST_AXES}", shape.len());
    }
    let sizes = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
    let Some(sizes) = sizes else { bail!(value, "the shape {shape:?} of tensor '{name}' is too large") };
    Ok(sizes)
}
