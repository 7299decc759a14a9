//! Decoding of quantized weights.

use std::fmt::{self, Display, Formatter};

use super::walk::one;
use super::{Ending, no_ending};
use crate::kernel::{Access, Loop, Map, Role, Slot, Walk};
use crate::{DType, QuantizationEncoding, Result, bail};

/// Decodes rows of blocks: `out[r, ..]` has the elements of the blocks whose bytes are `source[r, ..]`. Bytes and elements of
/// a row are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dequantize<D, M = Slot> {
    /// How the blocks are encoded.
    pub encoding: QuantizationEncoding,
    /// The number of rows.
    pub rows: D,
    /// The bytes of a row, a multiple of the size of a block.
    pub bytes: D,
    /// The elements of a row.
    pub elements: D,
    /// Over `[rows, bytes]`.
    pub source: Access<D, M>,
    /// Over `[rows, elements]`.
    pub out: Access<D, M>,
}

no_ending!(Dequantize);

impl<D, M> Dequantize<D, M> {
    pub(super) fn map<E, N>(&self, to: &mut Map<D, M, E, N>) -> Result<Dequantize<E, N>> {
        Ok(Dequantize {
            encoding: self.encoding,
            rows: to.size(&self.rows)?,
            bytes: to.size(&self.bytes)?,
            elements: to.size(&self.elements)?,
            source: to.access(&self.source)?,
            out: to.access(&self.out)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, see: &mut dyn FnMut(Walk<'a, D, M>)) {
        see(Walk::new(Role::Operand, &self.source, &[one(&self.rows), one(&self.bytes)]));
        see(Walk::new(Role::Result, &self.out, &[one(&self.rows), one(&self.elements)]));
    }
}

impl Dequantize<i64> {
    /// The number of blocks of a row; an error if the sizes or strides are not those of blocks.
    pub fn blocks(&self) -> Result<i64> {
        let format = self.encoding.format()?;
        let (bytes, elements) = (format.bytes as i64, format.elements as i64);
        let blocks = self.bytes / bytes;
        let whole = blocks * bytes == self.bytes && blocks.checked_mul(elements) == Some(self.elements);
        let dense = |access: &Access<i64>| access.strides[1] == 1 || blocks == 0;
        let types = (self.source.dtype, self.out.dtype) == (DType::UInt8, DType::Float32);
        if !whole || !types || !dense(&self.source) || !dense(&self.out) {
            bail!(internal, "invalid blocks: {self:?}");
        }
        Ok(blocks)
    }
}

impl<D: Display> Dequantize<D> {
    pub(super) fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} into {}", self.encoding, self.source, self.out)
    }
}
