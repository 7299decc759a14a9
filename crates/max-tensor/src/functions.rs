//! The ops as functions of tensors: what `max::graph::ops` has for graphs, under the same names.
//!
//! Outside any region a function has run when it returns; in a region, or in a graph under construction, it is recorded
//! there.

use max_core::kernel::Normalization;
use max_core::quantization::Storage;
use max_core::{
    DType, DeviceRef, Dim, Location, QuantizationConfig, QuantizationEncoding, Result, Shape, TensorType,
    scalar_table,
};
use max_graph::graph::located;
use max_graph::ops::broadcast::Target;
use max_graph::ops::conv::ConvOptions;
use max_graph::ops::conv_transpose::ConvTransposeOptions;
use max_graph::ops::conv3d::Conv3dOptions;
use max_graph::ops::flash_attention::MaskVariant;
use max_graph::ops::index::Limit;
use max_graph::ops::pool::{Padding, Pair};
use max_graph::ops::reduce::Axes;
use max_graph::ops::resample::InterpolationMode;
use max_graph::ops::slice::Indices;
use max_graph::{Operand, Operands, Value, ops};

use crate::scope::{call, call_one};
use crate::tensor::Tensor;

macro_rules! elementwise {
    ($($(#[$table_doc:meta])* $table:ident<$L:ident: $bound:ident> -> $out:ty {
        $(#[doc = $doc:literal] $variant:ident = $function:ident($($x:ident),+) $($name:literal)? => $body:expr;)*
    })*) => {
        functions! {
            $($(#[doc = $doc] $function($($x: Operand),+);)*)*
        }
    };
}

/// One line per function: its operands are converted, its location is the caller's.
macro_rules! functions {
    ($($(#[$doc:meta])* $function:ident($($x:ident: $type:ty),+);)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $function($($x: impl Into<$type>),+) -> Result<Tensor> {
            let location = Location::caller();
            $(let $x: $type = $x.into();)+
            located(stringify!($function), location, || call_one(|| ops::$function($($x),+)))
        }
    )*};
}

scalar_table!(elementwise);

functions! {
    /// See [`ops::all()`].
    all(x: Operand, axis: Axes);
    /// See [`ops::any()`].
    any(x: Operand, axis: Axes);
    /// See [`ops::argmax()`].
    argmax(x: Operand, axis: Axes);
    /// See [`ops::argmin()`].
    argmin(x: Operand, axis: Axes);
    /// See [`ops::argsort()`].
    argsort(x: Operand, ascending: bool);
    /// See [`ops::as_interleaved_complex()`].
    as_interleaved_complex(x: Operand);
    /// See [`ops::avg_pool2d()`].
    avg_pool2d(input: Operand, kernel_size: Shape, stride: Pair, dilation: Pair, padding: Padding, ceil_mode: bool, count_boundary: bool);
    /// See [`ops::band_part()`].
    band_part(x: Operand, num_lower: Option<i64>, num_upper: Option<i64>, exclude: bool);
    /// See [`ops::broadcast_to()`].
    broadcast_to(x: Operand, shape: Target);
    /// See [`ops::cast()`].
    cast(x: Operand, dtype: DType);
    /// See [`ops::clamp()`].
    clamp(x: Operand, lower_bound: Option<Operand>, upper_bound: Option<Operand>);
    /// See [`ops::complex_mul()`].
    complex_mul(lhs: Operand, rhs: Operand);
    /// See [`ops::concat()`].
    concat(values: Operands, axis: i64);
    /// See [`ops::conv2d()`].
    conv2d(x: Operand, filter: Operand, bias: Option<Operand>, options: ConvOptions);
    /// See [`ops::conv2d_transpose()`].
    conv2d_transpose(x: Operand, filter: Operand, bias: Option<Operand>, options: ConvTransposeOptions);
    /// See [`ops::conv3d()`].
    conv3d(x: Operand, filter: Operand, bias: Option<Operand>, options: Conv3dOptions);
    /// See [`ops::cumsum()`].
    cumsum(x: Operand, axis: i64, exclusive: bool, reverse: bool);
    /// See [`ops::dequantize()`].
    dequantize(encoding: QuantizationEncoding, quantized: Operand);
    /// See [`ops::flash_attention()`].
    flash_attention(
        q: Operand, k: Operand, v: Operand, mask: MaskVariant, scale: f64, window: i64, valid_length: Option<Operand>
    );
    /// See [`ops::flatten()`].
    flatten(x: Operand, start_dim: i64, end_dim: i64);
    /// See [`ops::fold()`].
    fold(input: Operand, output_size: Shape, kernel_size: Shape, stride: Pair, dilation: Pair, padding: Pair);
    /// See [`ops::gather()`].
    gather(input: Operand, indices: Operand, axis: i64);
    /// See [`ops::gather_nd()`].
    gather_nd(input: Operand, indices: Operand, batch_dims: i64);
    /// See [`ops::group_norm()`].
    group_norm(input: Operand, gamma: Operand, beta: Operand, num_groups: i64, epsilon: f64);
    /// See [`ops::grouped_matmul()`].
    grouped_matmul(a: Operand, b: Operand, starts: Operand, ids: Operand);
    /// See [`ops::grouped_scaled_matmul()`].
    #[expect(clippy::too_many_arguments, reason = "two operands with their scales, and the groups")]
    grouped_scaled_matmul(
        a: Operand, b: Operand, a_scales: Operand, b_scales: Operand, starts: Operand, ids: Operand, block: Vec<i64>,
        out_type: DType
    );
    /// See [`ops::hann_window()`].
    hann_window(window_length: i64, device: DeviceRef, periodic: bool, dtype: DType);
    /// See [`ops::irfft()`].
    irfft(
        input_tensor: Operand, n: Option<i64>, axis: i64, normalization: Normalization, input_is_complex: bool,
        buffer_size_mb: i64
    );
    /// See [`ops::layer_norm()`].
    layer_norm(input: Operand, gamma: Operand, beta: Operand, epsilon: f64);
    /// See [`ops::logsoftmax()`].
    logsoftmax(x: Operand, axis: i64);
    /// See [`ops::masked_scatter()`].
    masked_scatter(input: Operand, mask: Operand, updates: Operand, out_dim: Dim);
    /// See [`ops::matmul()`].
    matmul(lhs: Operand, rhs: Operand);
    /// See [`ops::max_pool2d()`].
    max_pool2d(input: Operand, kernel_size: Shape, stride: Pair, dilation: Pair, padding: Padding, ceil_mode: bool);
    /// See [`ops::mean()`].
    mean(x: Operand, axis: Axes);
    /// See [`ops::nonzero()`].
    nonzero(x: Operand, out_dim: Dim);
    /// See [`ops::non_maximum_suppression()`].
    non_maximum_suppression(
        boxes: Operand, scores: Operand, max_output_boxes_per_class: Operand, iou_threshold: Operand,
        score_threshold: Operand, out_dim: Dim
    );
    /// See [`ops::outer()`].
    outer(lhs: Operand, rhs: Operand);
    /// See [`ops::pad()`].
    pad(input: Operand, paddings: Vec<i64>, mode: String, value: Operand);
    /// See [`ops::permute()`].
    permute(x: Operand, dims: Vec<i64>);
    /// See [`ops::prod()`].
    prod(x: Operand, axis: Axes);
    /// See [`ops::quantize_static_float8()`].
    quantize_static_float8(x: Operand, scale: Operand, is_factor: bool, out_type: DType);
    /// See [`ops::random_gaussian()`]; [`crate::random`] has the seeds.
    random_gaussian(like: TensorType, mean: Operand, std: Operand, seed: Option<Operand>);
    /// See [`ops::random_uniform()`]; [`crate::random`] has the seeds.
    random_uniform(like: TensorType, low: Operand, high: Operand, seed: Option<Operand>);
    /// See [`ops::qmatmul()`].
    qmatmul(encoding: QuantizationEncoding, config: Option<QuantizationConfig>, lhs: Operand, rhs: Operands);
    /// See [`ops::quantized_matmul()`].
    quantized_matmul(lhs: Operand, codes: Operand, storage: Storage, scales: Option<Operand>, starts: Option<Operand>, ids: Option<Operand>);
    /// See [`ops::ragged_flash_attention()`].
    ragged_flash_attention(
        q: Operand, k: Operand, v: Operand, row_offsets: Operand, mask: MaskVariant, scale: f64, window: i64
    );
    /// See [`ops::range()`].
    range(start: Limit, stop: Limit, step: Limit, out_dim: Option<Dim>, dtype: Option<DType>, device: Option<DeviceRef>);
    /// See [`ops::reduce_max()`].
    reduce_max(x: Operand, axis: Axes);
    /// See [`ops::reduce_min()`].
    reduce_min(x: Operand, axis: Axes);
    /// See [`ops::repeat_interleave()`].
    repeat_interleave(x: Operand, repeats: Operand, axis: Option<i64>, out_dim: Option<Dim>);
    /// See [`ops::reshape()`].
    reshape(x: Operand, shape: Shape);
    /// See [`ops::resize()`].
    resize(input: Operand, shape: Shape, interpolation: InterpolationMode);
    /// See [`ops::resize_bicubic()`].
    resize_bicubic(input: Operand, size: Shape);
    /// See [`ops::resize_linear()`].
    resize_linear(input: Operand, size: Shape, coordinate_transform_mode: i64, antialias: bool);
    /// See [`ops::resize_nearest()`].
    resize_nearest(input: Operand, size: Shape, coordinate_transform_mode: i64, round_mode: i64);
    /// See [`ops::rms_norm()`].
    rms_norm(input: Operand, weight: Operand, epsilon: f64, weight_offset: f64, multiply_before_cast: bool);
    /// See [`ops::scaled_matmul()`].
    scaled_matmul(
        a: Operand, b: Operand, a_scales: Operand, b_scales: Operand, block: Vec<i64>, out_type: DType
    );
    /// See [`ops::scatter()`].
    scatter(input: Operand, updates: Operand, indices: Operand, axis: i64);
    /// See [`ops::scatter_add()`].
    scatter_add(input: Operand, updates: Operand, indices: Operand, axis: i64);
    /// See [`ops::scatter_max()`].
    scatter_max(input: Operand, updates: Operand, indices: Operand, axis: i64);
    /// See [`ops::scatter_min()`].
    scatter_min(input: Operand, updates: Operand, indices: Operand, axis: i64);
    /// See [`ops::scatter_mul()`].
    scatter_mul(input: Operand, updates: Operand, indices: Operand, axis: i64);
    /// See [`ops::scatter_nd()`].
    scatter_nd(input: Operand, updates: Operand, indices: Operand);
    /// See [`ops::scatter_nd_add()`].
    scatter_nd_add(input: Operand, updates: Operand, indices: Operand);
    /// See [`ops::scatter_nd_max()`].
    scatter_nd_max(input: Operand, updates: Operand, indices: Operand);
    /// See [`ops::scatter_nd_min()`].
    scatter_nd_min(input: Operand, updates: Operand, indices: Operand);
    /// See [`ops::scatter_nd_mul()`].
    scatter_nd_mul(input: Operand, updates: Operand, indices: Operand);
    /// See [`ops::roi_align()`].
    #[expect(clippy::too_many_arguments, reason = "as many are documented")]
    roi_align(
        input: Operand, rois: Operand, output_height: i64, output_width: i64, spatial_scale: f64, sampling_ratio: f64,
        aligned: bool, mode: String
    );
    /// See [`ops::sgmv()`].
    sgmv(input: Operand, lora: Operand, ids: Operand, row_offsets: Operand, bias: Option<Operand>);
    /// See [`ops::sgmv_lora()`].
    sgmv_lora(
        input: Operand, lora_a: Operand, lora_b: Operand, ids: Operand, ranks: Operand, row_offsets: Operand,
        bias: Option<Operand>
    );
    /// See [`ops::slice_tensor()`].
    slice_tensor(x: Operand, indices: Indices);
    /// See [`ops::softmax()`].
    softmax(x: Operand, axis: i64);
    /// See [`ops::squeeze()`].
    squeeze(x: Operand, axis: i64);
    /// See [`ops::stack()`].
    stack(values: Operands, axis: i64);
    /// See [`ops::stdev()`].
    stdev(x: Operand, axis: Axes);
    /// See [`ops::sum()`].
    sum(x: Operand, axis: Axes);
    /// See [`ops::swish_glu()`].
    swish_glu(a: Operand, b0: Operand, b1: Operand);
    /// See [`ops::tile()`].
    tile(x: Operand, repeats: Shape);
    /// See [`ops::topk_fused_sampling()`].
    topk_fused_sampling(
        logits: Operand, top_k: Operand, temperature: Operand, max_k: Option<Operand>, top_p: Operand, seed: Operand
    );
    /// See [`ops::transfer_to()`].
    transfer_to(x: Operand, device: DeviceRef);
    /// See [`ops::transpose()`].
    transpose(x: Operand, axis_1: i64, axis_2: i64);
    /// See [`ops::unsqueeze()`].
    unsqueeze(x: Operand, axis: i64);
    /// See [`ops::var()`].
    var(x: Operand, axis: Axes);
    /// See [`ops::where_()`].
    where_(condition: Operand, x: Operand, y: Operand);
}

/// See [`ops::bottom_k()`].
#[track_caller]
pub fn bottom_k(x: impl Into<Operand>, k: i64, axis: i64) -> Result<Vec<Tensor>> {
    let (location, x) = (Location::caller(), x.into());
    located("bottom_k", location, || call(|| many(ops::bottom_k(x, k, axis)?)))
}

/// See [`ops::chunk()`].
#[track_caller]
pub fn chunk(x: impl Into<Operand>, chunks: i64, axis: i64) -> Result<Vec<Tensor>> {
    let (location, x) = (Location::caller(), x.into());
    located("chunk", location, || call(|| many(ops::chunk(x, chunks, axis)?)))
}

/// See [`ops::float8_e4m3fnuz()`].
#[track_caller]
pub fn float8_e4m3fnuz(weight: impl Into<Operand>, scales: impl Into<Operand>) -> Result<Vec<Tensor>> {
    let (location, weight, scales) = (Location::caller(), weight.into(), scales.into());
    located("float8_e4m3fnuz", location, || call(|| many(ops::float8_e4m3fnuz(weight, scales)?)))
}

/// See [`ops::merge_ragged_tensors()`].
#[track_caller]
pub fn merge_ragged_tensors(
    a: impl Into<Operand>,
    a_row_offsets: impl Into<Operand>,
    b: impl Into<Operand>,
    b_row_offsets: impl Into<Operand>,
) -> Result<Vec<Tensor>> {
    let (location, a, a_row_offsets) = (Location::caller(), a.into(), a_row_offsets.into());
    let (b, b_row_offsets) = (b.into(), b_row_offsets.into());
    located("merge_ragged_tensors", location, || {
        call(|| many(ops::merge_ragged_tensors(a, a_row_offsets, b, b_row_offsets)?))
    })
}

/// See [`ops::moe_create_indices()`].
#[track_caller]
pub fn moe_create_indices(topk_ids: impl Into<Operand>, num_local_experts: i64) -> Result<Vec<Tensor>> {
    let (location, topk_ids) = (Location::caller(), topk_ids.into());
    located("moe_create_indices", location, || {
        call(|| many(ops::moe_create_indices(topk_ids, num_local_experts)?))
    })
}

/// See [`ops::quantize_dynamic_float8()`].
#[track_caller]
pub fn quantize_dynamic_float8(
    x: impl Into<Operand>,
    group: i64,
    scale_ub: f64,
    multiple: i64,
    out_type: DType,
    scales_type: DType,
) -> Result<Vec<Tensor>> {
    let (location, x) = (Location::caller(), x.into());
    located("quantize_dynamic_float8", location, || {
        call(|| many(ops::quantize_dynamic_float8(x, group, scale_ub, multiple, out_type, scales_type)?))
    })
}

/// See [`ops::split()`].
#[track_caller]
pub fn split(x: impl Into<Operand>, sizes: impl Into<Shape>, axis: i64) -> Result<Vec<Tensor>> {
    let (location, x, sizes) = (Location::caller(), x.into(), sizes.into());
    located("split", location, || call(|| many(ops::split(x, sizes, axis)?)))
}

/// See [`ops::top_k()`].
#[track_caller]
pub fn top_k(x: impl Into<Operand>, k: i64, axis: i64) -> Result<Vec<Tensor>> {
    let (location, x) = (Location::caller(), x.into());
    located("top_k", location, || call(|| many(ops::top_k(x, k, axis)?)))
}

fn many(values: Vec<max_graph::TensorValue>) -> Result<Vec<Value>> {
    Ok(values.into_iter().map(Value::from).collect())
}
