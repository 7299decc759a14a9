//! GGUF: metadata, descriptions of tensors, and their data, aligned. Little-endian, versions 2 and 3.

mod read;
mod value;
mod write;

use max_core::{DType, QuantizationEncoding};

pub(crate) use read::read;
pub(crate) use write::plan;

/// How a file starts.
const MAGIC: [u8; 4] = *b"GGUF";

/// The metadata that says to multiples of how many bytes data is aligned, and how many if there is none.
const ALIGNMENT: (&str, usize) = ("general.alignment", 32);

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Elements(DType),
    Blocks(QuantizationEncoding),
}

/// The numbers of the types of tensors. Those that are missing here have no name in max-rs.
const KINDS: &[(u32, Kind)] = &[
    (0, Kind::Elements(DType::Float32)),
    (1, Kind::Elements(DType::Float16)),
    (2, Kind::Blocks(QuantizationEncoding::Q4_0)),
    (3, Kind::Blocks(QuantizationEncoding::Q4_1)),
    (6, Kind::Blocks(QuantizationEncoding::Q5_0)),
    (7, Kind::Blocks(QuantizationEncoding::Q5_1)),
    (8, Kind::Blocks(QuantizationEncoding::Q8_0)),
    (10, Kind::Blocks(QuantizationEncoding::Q2_K)),
    (11, Kind::Blocks(QuantizationEncoding::Q3_K)),
    (12, Kind::Blocks(QuantizationEncoding::Q4_K)),
    (13, Kind::Blocks(QuantizationEncoding::Q5_K)),
    (14, Kind::Blocks(QuantizationEncoding::Q6_K)),
    (24, Kind::Elements(DType::Int8)),
    (25, Kind::Elements(DType::Int16)),
    (26, Kind::Elements(DType::Int32)),
    (27, Kind::Elements(DType::Int64)),
    (28, Kind::Elements(DType::Float64)),
    (30, Kind::Elements(DType::BFloat16)),
    (39, Kind::Blocks(QuantizationEncoding::MXFP4)),
];
