//! Weights that mean nothing, for measuring how fast a model of some shape is.

use std::collections::HashMap;

use max_core::{DType, Result, ViewIndex, bail};
use max_driver::{Buffer, Device};
use max_engine::WeightsRegistry;
use max_nn::Module;
use max_nn::state::Rules;
use max_weights::WeightData;

use super::graph::Decoder;

/// The numbers that are drawn; weights repeat them. Every block format divides them evenly.
const DRAWN: usize = 1 << 16;

/// Small numbers for all weights of a decoder, made where they are needed.
pub fn values(decoder: &Decoder, device: &Device) -> Result<WeightsRegistry> {
    let mut state = HashMap::new();
    for (name, weight) in decoder.raw_state_dict() {
        let ty = weight.tensor_type();
        let Some(shape) = ty.shape.as_static() else { bail!(internal, "a weight of the shape {}", ty.shape) };
        let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        let drawn = WeightData::from(Buffer::from_slice(&draw(), &[DRAWN])?);
        let drawn = match weight.quantization_encoding {
            Some(encoding) => drawn.encode(encoding)?,
            None => drawn.astype(ty.dtype)?,
        };
        let data = repeated(&drawn.data, ty.dtype, &sizes, device)?;
        state.insert(name, WeightData { data, quantization_encoding: weight.quantization_encoding });
    }
    decoder.load_state_dict(&state, Rules::default())
}

/// Numbers between -1/32 and 1/32.
fn draw() -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) / 32.0
    };
    (0..DRAWN).map(next).collect()
}

/// A tensor of repeated bytes on a device.
fn repeated(pattern: &Buffer, dtype: DType, sizes: &[usize], device: &Device) -> Result<Buffer> {
    let count = sizes.iter().try_fold(dtype.size_in_bytes(), |count, &size| count.checked_mul(size));
    let Some(count) = count else { bail!(memory, "a weight of the shape {sizes:?} is too large") };
    let all = Buffer::uninit_pooled(DType::UInt8, &[count], device)?;
    let part = |buffer: &Buffer, start: usize, stop: usize| {
        buffer.index(&[ViewIndex::Slice { start: Some(start as i64), stop: Some(stop as i64), step: 1 }])
    };
    let bytes = pattern.view(DType::UInt8, Some(&[pattern.num_bytes()]))?;
    let mut done = bytes.num_bytes().min(count);
    part(&all, 0, done)?.copy_from(&part(&bytes, 0, done)?)?;
    // What is there is copied behind it, twice as much each time.
    while done < count {
        let more = done.min(count - done);
        part(&all, done, done + more)?.copy_from(&part(&all, 0, more)?)?;
        done += more;
    }
    all.view(dtype, Some(sizes))
}
