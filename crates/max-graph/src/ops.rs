//! The ops: one file each, with the type rule, the reference implementation and the functions that record them.

pub mod attention;
pub mod broadcast;
pub mod buffer;
pub mod cached;
pub mod cast;
pub mod clamp;
pub mod collective;
pub mod complex;
pub mod concat;
pub mod constant;
pub mod control;
pub mod conv;
pub mod conv3d;
pub mod conv_transpose;
pub mod cumsum;
pub mod custom;
pub mod dequantize;
pub mod elementwise;
pub mod experts;
pub mod fence;
pub mod flash_attention;
pub mod float8;
pub mod fold;
pub mod gather;
pub mod group_norm;
pub mod index;
pub mod irfft;
pub mod latent;
pub mod layer;
pub mod layer_norm;
pub mod lora;
pub mod masked_scatter;
pub mod matmul;
pub mod moe;
pub mod pad;
pub mod paged;
pub mod permute;
pub mod pool;
pub mod print;
pub mod qmatmul;
pub mod ragged;
pub mod random;
pub mod rebind;
pub mod reduce;
pub mod repeat;
pub mod resample;
pub mod reshape;
pub mod rms_norm;
pub mod roi_align;
pub mod rope;
pub mod sampling;
pub mod scatter;
pub mod select;
pub mod shard;
pub mod slice;
pub mod softmax;
pub mod sort;
pub mod split;
pub mod suppress;
pub mod swish_glu;
pub mod transfer;
pub mod window;

pub use broadcast::broadcast_to;
pub use buffer::{buffer_create, buffer_load, buffer_store, buffer_store_slice};
pub use cached::{
    CacheLayer, cache_add, cache_key_norm, cache_kv, cache_qkv, cache_rope, cached_attention,
    cached_self_attention,
};
pub use cast::cast;
pub use clamp::clamp;
pub use collective::{
    allgather, allreduce_sum, distributed_broadcast, distributed_scatter, reducescatter_sum,
};
pub use complex::{as_interleaved_complex, complex_mul};
pub use concat::{concat, stack};
pub use constant::{constant, constant_external, shape_to_tensor, tensor};
pub use control::{call, cond, while_loop};
pub use conv::{ConvOptions, conv2d};
pub use conv_transpose::{ConvTransposeOptions, conv2d_transpose};
pub use conv3d::{Conv3dOptions, conv3d};
pub use cumsum::cumsum;
pub use custom::{custom, inplace_custom};
pub use dequantize::dequantize;
pub use elementwise::*;
pub use experts::moe_create_indices;
pub use fence::fence;
pub use flash_attention::{MaskVariant, flash_attention, ragged_flash_attention};
pub use float8::{
    float8_e4m3fnuz, grouped_matmul, grouped_scaled_matmul, quantize_dynamic_float8, quantize_static_float8,
    scaled_matmul,
};
pub use fold::fold;
pub use gather::{gather, gather_nd};
pub use group_norm::group_norm;
pub use index::range;
pub use irfft::irfft;
pub use latent::{latent_attention, latent_keys, latent_plan, latent_prefill};
pub use layer::{
    activate, affine_group_norm, affine_layer_norm, convolution, embedding, float8_linear, gated, linear,
    quantized_linear,
};
pub use layer_norm::layer_norm;
pub use lora::{sgmv, sgmv_lora};
pub use masked_scatter::masked_scatter;
pub use matmul::{matmul, outer};
pub use moe::mixture;
pub use pad::pad;
pub use paged::{paged_attention, paged_store, ragged_lengths, ragged_positions};
pub use permute::{permute, transpose};
pub use pool::{avg_pool2d, max_pool2d};
pub use print::print;
pub use qmatmul::{qmatmul, quantized_matmul};
pub use ragged::merge_ragged_tensors;
pub use random::{random_gaussian, random_set_seed, random_uniform, seed_type};
pub use rebind::{rebind, rebind_filter};
pub use reduce::{Axes, all, any, argmax, argmin, mean, prod, reduce_max, reduce_min, stdev, sum, var};
pub use repeat::{repeat_interleave, tile};
pub use resample::{InterpolationMode, resize, resize_bicubic, resize_linear, resize_nearest};
pub use reshape::{flatten, reshape, squeeze, unsqueeze};
pub use rms_norm::rms_norm;
pub use roi_align::roi_align;
pub use rope::{Positions, RopeScaling, rope, rope_rows, rope_table};
pub use sampling::{
    apply_penalties_to_logits, scatter_set_constant, topk_fused_sampling, update_frequency_data,
};
pub use scatter::{
    scatter, scatter_add, scatter_max, scatter_min, scatter_mul, scatter_nd, scatter_nd_add, scatter_nd_max,
    scatter_nd_min, scatter_nd_mul,
};
pub use select::where_;
pub use shard::{Sharding, ShardingStrategy, shard};
pub use slice::slice_tensor;
pub use softmax::{logsoftmax, softmax};
pub use sort::{argsort, bottom_k, nonzero, top_k};
pub use split::{chunk, split};
pub use suppress::non_maximum_suppression;
pub use swish_glu::swish_glu;
pub use transfer::transfer_to;
pub use window::{band_part, hann_window};

use max_core::{Dim, Error, Result, TensorType, Type, bail};

use crate::registry::OpFunction;

/// All op functions, for the registry.
pub(crate) fn functions() -> impl Iterator<Item = &'static OpFunction> {
    let all = [
        broadcast::OP_FUNCTIONS,
        buffer::OP_FUNCTIONS,
        cached::OP_FUNCTIONS,
        cast::OP_FUNCTIONS,
        clamp::OP_FUNCTIONS,
        collective::OP_FUNCTIONS,
        complex::OP_FUNCTIONS,
        concat::OP_FUNCTIONS,
        constant::OP_FUNCTIONS,
        control::OP_FUNCTIONS,
        conv::OP_FUNCTIONS,
        conv3d::OP_FUNCTIONS,
        conv_transpose::OP_FUNCTIONS,
        cumsum::OP_FUNCTIONS,
        custom::OP_FUNCTIONS,
        dequantize::OP_FUNCTIONS,
        elementwise::OP_FUNCTIONS,
        experts::OP_FUNCTIONS,
        fence::OP_FUNCTIONS,
        flash_attention::OP_FUNCTIONS,
        float8::OP_FUNCTIONS,
        fold::OP_FUNCTIONS,
        gather::OP_FUNCTIONS,
        group_norm::OP_FUNCTIONS,
        index::OP_FUNCTIONS,
        irfft::OP_FUNCTIONS,
        latent::OP_FUNCTIONS,
        layer::OP_FUNCTIONS,
        layer_norm::OP_FUNCTIONS,
        lora::OP_FUNCTIONS,
        masked_scatter::OP_FUNCTIONS,
        matmul::OP_FUNCTIONS,
        moe::OP_FUNCTIONS,
        pad::OP_FUNCTIONS,
        paged::OP_FUNCTIONS,
        permute::OP_FUNCTIONS,
        pool::OP_FUNCTIONS,
        print::OP_FUNCTIONS,
        qmatmul::OP_FUNCTIONS,
        ragged::OP_FUNCTIONS,
        random::OP_FUNCTIONS,
        rebind::OP_FUNCTIONS,
        reduce::OP_FUNCTIONS,
        repeat::OP_FUNCTIONS,
        resample::OP_FUNCTIONS,
        reshape::OP_FUNCTIONS,
        rms_norm::OP_FUNCTIONS,
        scatter::OP_FUNCTIONS,
        roi_align::OP_FUNCTIONS,
        rope::OP_FUNCTIONS,
        sampling::OP_FUNCTIONS,
        select::OP_FUNCTIONS,
        shard::OP_FUNCTIONS,
        slice::OP_FUNCTIONS,
        softmax::OP_FUNCTIONS,
        sort::OP_FUNCTIONS,
        split::OP_FUNCTIONS,
        suppress::OP_FUNCTIONS,
        swish_glu::OP_FUNCTIONS,
        transfer::OP_FUNCTIONS,
        window::OP_FUNCTIONS,
    ];
    all.into_iter().flatten()
}

/// The operands as tensors.
pub(crate) fn all_tensors<'a>(operands: &[&'a Type]) -> Result<Vec<&'a TensorType>> {
    let tensors = operands.iter().map(|ty| match ty {
        Type::Tensor(tensor) => Ok(tensor),
        other => Err(Error::type_(format!("expected a tensor, got {other}"))),
    });
    tensors.collect()
}

/// The operands as tensors, exactly as many as the op takes.
pub(crate) fn tensors<'a, const N: usize>(operands: &[&'a Type]) -> Result<[&'a TensorType; N]> {
    counted_tensors(operands, N)?
        .try_into()
        .map_err(|_| Error::internal("the number of operands changed after it was checked"))
}

/// The operands as tensors; there must be exactly `count`.
pub(crate) fn counted_tensors<'a>(operands: &[&'a Type], count: usize) -> Result<Vec<&'a TensorType>> {
    if operands.len() != count {
        bail!(value, "expected {count} operands, got {}", operands.len());
    }
    all_tensors(operands)
}

/// The dim of an axis, which may be out of range in a graph that was parsed or decoded.
pub(crate) fn axis_dim(tensor: &TensorType, axis: usize) -> Result<&Dim> {
    let rank = tensor.shape.rank();
    tensor
        .shape
        .get(axis)
        .ok_or_else(|| Error::value(format!("Invalid axis {axis} for a tensor of rank {rank}")))
}

/// Checks that operands have the same dtype and the same device.
pub(crate) fn check_alike(tensors: &[&TensorType]) -> Result<()> {
    let Some((first, rest)) = tensors.split_first() else { return Ok(()) };
    for other in rest {
        if other.dtype != first.dtype {
            bail!(value, "operands must have the same dtype; got {} and {}", first.dtype, other.dtype);
        }
        if other.device != first.device {
            bail!(
                value,
                "Input values must be on the same device; got {} and {}",
                first.device,
                other.device
            );
        }
    }
    Ok(())
}
