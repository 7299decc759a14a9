"""Functions that models are made of and that `max.graph.ops` lacks: attention with a cache and without, products of
float8 tensors and of groups of rows, and what samplers need.

A scaled float8 tensor stands for its elements times scales in another tensor. Weights are `[n, k]`, with scales
`[1, 1]`, `[n, 1]` or one for each block. The scales of inputs are transposed: `[1, 1]`, `[1, tokens]` or
`[blocks, tokens]`.
"""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, ops
from max.graph.quantization import QuantizationEncoding
from max.graph.value import call, call_many
from max.nn._cached import (
    cross_attention_ragged,
    flare_mla_decode_ragged,
    flare_mla_decompress_k_cache,
    flare_mla_prefill_plan,
    flare_mla_prefill_ragged,
    flash_attention_ragged,
    fused_qk_ragged_rope,
    fused_qkv_ragged_matmul,
    fused_qkv_ragged_matmul_quantized,
    fused_qkv_ragged_matmul_scaled_float8,
    kv_cache_get_max_seq_len,
    kv_cache_ragged_radd,
    matmul_k_cache_ragged,
    matmul_kv_cache_ragged,
    rms_norm_key_cache,
    sgmv_qkv_lora_kernel,
    unfused_qkv_ragged_matmul_gguf_quantized,
)
from max.nn._ragged import (
    flash_attention_gpu,
    flash_attention_ragged_gpu,
    merge_ragged_tensors,
    moe_create_indices,
    sgmv_kernel,
    sgmv_lora_kernel,
    swish_glu,
)
from max.nn._sampling import (
    apply_penalties_to_logits,
    scatter_set_constant,
    topk_fused_sampling,
    update_frequency_data,
)
from max.nn.attention.mask_config import MHAMaskVariant
from max.nn.float8_config import Float8InputScaleSpec, Float8WeightScaleSpec

__all__ = [
    "MHAMaskVariant",
    "apply_penalties_to_logits",
    "convert_weights_to_fp8_fnuz_if_needed",
    "cross_attention_ragged",
    "dynamic_scaled_matmul",
    "flare_mla_decode_ragged",
    "flare_mla_decompress_k_cache",
    "flare_mla_prefill_plan",
    "flare_mla_prefill_ragged",
    "flash_attention_gpu",
    "flash_attention_ragged",
    "flash_attention_ragged_gpu",
    "fused_qk_ragged_rope",
    "fused_qkv_ragged_matmul",
    "fused_qkv_ragged_matmul_quantized",
    "fused_qkv_ragged_matmul_scaled_float8",
    "grouped_dynamic_scaled_fp8_matmul",
    "grouped_matmul_ragged",
    "grouped_qmatmul",
    "kv_cache_get_max_seq_len",
    "kv_cache_ragged_radd",
    "matmul_k_cache_ragged",
    "matmul_kv_cache_ragged",
    "matmul_static_scaled_float8",
    "merge_ragged_tensors",
    "moe_create_indices",
    "needs_fp8_fnuz_conversion",
    "normalize_e4m3fn_to_e4m3fnuz",
    "quantize_dynamic_scaled_float8",
    "quantize_static_scaled_float8",
    "rms_norm_key_cache",
    "scatter_set_constant",
    "sgmv_kernel",
    "sgmv_lora_kernel",
    "sgmv_qkv_lora_kernel",
    "swish_glu",
    "topk_fused_sampling",
    "unfused_qkv_ragged_matmul_gguf_quantized",
    "update_frequency_data",
]

_E4M3 = (DType.float8_e4m3fn, DType.float8_e4m3fnuz)


def matmul_static_scaled_float8(
    input: TensorValue, weight: TensorValue, input_scale: TensorValue, weight_scale: TensorValue
) -> TensorValue:
    """The product of a float8 input and float8 weights that have one scale each, in bfloat16.

    The scales may be on another device, such as the CPU.

    Args:
        input: Tokens, `[tokens, k]`.
        weight: Weights, `[n, k]`.
        input_scale: What the elements of the input are multiplied by: a scalar, or a vector of one element.
        weight_scale: The same for the weights.

    >>> from max.graph import Graph, TensorType
    >>> f8, scale = DType.float8_e4m3fn, TensorType(DType.float32, [])
    >>> types = [TensorType(f8, ["tokens", 64]), TensorType(f8, [32, 64]), scale, scale]
    >>> with Graph("product", input_types=types) as graph:
    ...     matmul_static_scaled_float8(*graph.inputs).shape
    [Dim('tokens'), Dim(32)]
    """
    for name, scale in [("input_scale", input_scale), ("weight_scale", weight_scale)]:
        _check_single(name, scale)
    for name, operand in [("input", input), ("weight", weight)]:
        _check_rank(name, operand, 2)
    for name, operand in [("input", input), ("weight", weight)]:
        if operand.dtype not in _E4M3:
            raise ValueError(f"expected {name} dtype to be float8_e4m3fn or float8_e4m3fnuz, but got {operand.dtype}")
    if input.dtype != weight.dtype:
        raise ValueError(f"expected input and weight to have one dtype, but got {input.dtype} and {weight.dtype}")
    return call("scaled_matmul", input, weight, input_scale, weight_scale, [], DType.bfloat16)


def dynamic_scaled_matmul(
    a: TensorValue,
    b: TensorValue,
    a_scales: TensorValue,
    b_scales: TensorValue,
    input_scale_spec: Float8InputScaleSpec,
    weight_scale_spec: Float8WeightScaleSpec,
    out_type: DType = DType.bfloat16,
) -> TensorValue:
    """The product of tokens and weights, both with scales.

    Scales are of whole tensors, of tokens (`COLWISE`) and output channels (`ROWWISE`), or of blocks, in any combination
    of the two specs. `b` may have a last block that is smaller along either axis.

    Args:
        a: Tokens, `[tokens, k]`.
        b: Weights, `[n, k]`.
        a_scales: `[1, 1]`, `[1, tokens]` or `[blocks along k, tokens]`; more columns of the last do not count.
        b_scales: `[1, 1]`, `[n, 1]` or `[blocks along n, blocks along k]`.
        input_scale_spec: How the tokens are scaled.
        weight_scale_spec: How the weights are scaled.
        out_type: The dtype of the result, a float.
    """
    if any(operand.rank != 2 for operand in (a, b, a_scales, b_scales)):
        raise ValueError("All arguments must be rank 2 tensors")
    if a.dtype != b.dtype or a_scales.dtype != b_scales.dtype:
        raise TypeError(
            f"a and b dtypes {a.dtype}, {b.dtype} must match, as do a and b scales dtypes {a_scales.dtype}, "
            f"{b_scales.dtype}"
        )
    _check_depth(a, b)
    block = _check_scales(a_scales, b_scales, input_scale_spec, weight_scale_spec)
    return call("scaled_matmul", a, b, ops.transpose(a_scales, 0, 1), b_scales, block, out_type)


def grouped_dynamic_scaled_fp8_matmul(
    hidden_states: TensorValue,
    weight: TensorValue,
    a_scales: TensorValue,
    b_scales: TensorValue,
    expert_start_indices: TensorValue,
    expert_ids: TensorValue,
    expert_usage_stats_host: TensorValue,
    input_scale_spec: Float8InputScaleSpec,
    weight_scale_spec: Float8WeightScaleSpec,
    out_type: DType = DType.bfloat16,
) -> TensorValue:
    """As `grouped_matmul_ragged`, with scales of the tokens and of each expert's weights.

    Args:
        hidden_states: Tokens, `[tokens, k]`, those of an expert one after the other.
        weight: The weights of all experts, `[experts, n, k]`.
        a_scales: As in `dynamic_scaled_matmul`.
        b_scales: As in `dynamic_scaled_matmul`, with a first axis of experts.
        expert_start_indices: Where the tokens of each group start, and the last ones end: `[groups + 1]`.
        expert_ids: The expert of each group, `[groups]`.
        expert_usage_stats_host: The most tokens of an expert and the number of active ones; not needed here.
        input_scale_spec: How the tokens are scaled.
        weight_scale_spec: How the weights are scaled.
        out_type: The dtype of the result, a float.
    """
    _check_experts(hidden_states, weight)
    if hidden_states.dtype != weight.dtype or a_scales.dtype != b_scales.dtype:
        raise TypeError(
            f"hidden_states and weight dtypes {hidden_states.dtype}, {weight.dtype} must match, as do their scales "
            f"dtypes {a_scales.dtype}, {b_scales.dtype}"
        )
    if a_scales.rank != 2 or b_scales.rank != 3:
        raise ValueError(f"expected scales of rank 2 and 3, but got {a_scales.rank} and {b_scales.rank}")
    block = _check_scales(a_scales, b_scales, input_scale_spec, weight_scale_spec)
    a_scales = ops.transpose(a_scales, 0, 1)
    groups = (expert_start_indices, expert_ids)
    return call("grouped_scaled_matmul", hidden_states, weight, a_scales, b_scales, *groups, block, out_type)


def grouped_matmul_ragged(
    hidden_states: TensorValue,
    weight: TensorValue,
    expert_start_indices: TensorValue,
    expert_ids: TensorValue,
    expert_usage_stats_host: TensorValue,
) -> TensorValue:
    """The product of each group of tokens and the weights of its expert.

    Tokens from `expert_start_indices[i]` to `expert_start_indices[i + 1]` are multiplied by the weights of expert
    `expert_ids[i]`; other tokens, and those of a negative id, give zeros.

    Args:
        hidden_states: Tokens, `[tokens, k]`, those of an expert one after the other.
        weight: The weights of all experts, `[experts, n, k]`.
        expert_start_indices: Where the tokens of each group start, and the last ones end: `[groups + 1]`.
        expert_ids: The expert of each group, `[groups]`.
        expert_usage_stats_host: The most tokens of an expert and the number of active ones; not needed here.

    >>> from max.graph import Graph, TensorType
    >>> types = [TensorType(DType.float32, ["tokens", 8]), TensorType(DType.float32, [4, 6, 8])]
    >>> types += [TensorType(DType.uint32, [5]), TensorType(DType.int32, [4]), TensorType(DType.uint32, [2])]
    >>> with Graph("experts", input_types=types) as graph:
    ...     grouped_matmul_ragged(*graph.inputs).shape
    [Dim('tokens'), Dim(6)]
    """
    _check_experts(hidden_states, weight)
    return call("grouped_matmul", hidden_states, weight, expert_start_indices, expert_ids)


def grouped_qmatmul(
    encoding: QuantizationEncoding,
    hidden_states: TensorValue,
    weight: TensorValue,
    expert_start_indices: TensorValue,
    expert_ids: TensorValue,
) -> TensorValue:
    """As `grouped_matmul_ragged`, with quantized weights: blocks of an encoding of GGUF files.

    Args:
        encoding: How the weights are encoded.
        hidden_states: Tokens, `[tokens, k]`, those of an expert one after the other.
        weight: The weights of all experts as uint8, `[experts, n, bytes]`.
        expert_start_indices: Where the tokens of each group start, and the last ones end: `[groups + 1]`.
        expert_ids: The expert of each group, `[groups]`.

    >>> from max.graph import Graph, TensorType
    >>> types = [TensorType(DType.float32, ["tokens", 64]), TensorType(DType.uint8, [4, 6, 36])]
    >>> types += [TensorType(DType.uint32, [5]), TensorType(DType.int32, [4])]
    >>> with Graph("experts", input_types=types) as graph:
    ...     grouped_qmatmul(QuantizationEncoding.Q4_0, *graph.inputs).shape
    [Dim('tokens'), Dim(6)]
    """
    storage = encoding.name
    return call("quantized_matmul", hidden_states, weight, storage, None, expert_start_indices, expert_ids)


def quantize_static_scaled_float8(
    x: TensorValue, scale: TensorValue, scale_is_inverted: bool = True, out_type: DType = DType.float8_e4m3fn
) -> TensorValue:
    """Quantizes floats to float8 with a given scale; what is too large becomes the largest finite number.

    Args:
        x: A matrix of floats.
        scale: One number: what the result is to be multiplied by, so that elements are divided by it.
        scale_is_inverted: If False, elements are multiplied by the scale instead.
        out_type: A float8 dtype.
    """
    _check_single("scale", scale)
    _check_rank("input", x, 2)
    return call("quantize_static_float8", x, scale, not scale_is_inverted, out_type)


def quantize_dynamic_scaled_float8(
    input: TensorValue,
    input_scale_spec: Float8InputScaleSpec,
    weight_scale_spec: Float8WeightScaleSpec,
    scale_ub: float = 1200.0,
    group_size_or_per_token: int = -1,
    out_type: DType = DType.float8_e4m3fn,
    scales_type: DType = DType.bfloat16,
) -> tuple[TensorValue, TensorValue]:
    """Quantizes tokens to float8, with scales that make the largest magnitude of each group the largest finite number.

    Groups are the blocks of the spec if it has blocks; else they have `group_size_or_per_token` elements. The scales
    are `[groups, tokens]`. Those of blocks have more columns, up to a multiple of 16 bytes.

    Args:
        input: Tokens, `[tokens, k]`.
        input_scale_spec: How the tokens are scaled.
        weight_scale_spec: How the weights that they will be multiplied by are scaled; not needed here.
        scale_ub: The largest magnitude that a scale is for: larger elements become the largest finite number.
        group_size_or_per_token: The number of elements of a token that share a scale, or -1 for all of them.
        out_type: The dtype of the tokens, a float8 with four bits of exponent.
        scales_type: The dtype of the scales.

    Returns:
        The quantized tokens and their scales.
    """
    if input.rank != 2:
        raise ValueError("input must be rank 2 tensor")
    if out_type not in _E4M3:
        raise ValueError(f"out_type must be float8_e4m3fn or float8_e4m3fnuz; got {out_type}")
    group, multiple = group_size_or_per_token, 1
    if input_scale_spec.is_block and input_scale_spec.block_size is not None:
        rows, group = input_scale_spec.block_size
        if rows != 1:
            raise ValueError(f"blocks of inputs have one token, but got {input_scale_spec.block_size}")
        multiple = max(1, 16 // scales_type.size_in_bytes)
    arguments = (group, float(scale_ub), multiple, out_type, scales_type)
    quantized, scales = call_many("quantize_dynamic_float8", input, *arguments)
    return quantized, scales


def needs_fp8_fnuz_conversion() -> bool:
    """Whether devices need float8_e4m3fnuz in place of float8_e4m3fn: some of AMD do, none that are supported here."""
    return False


def normalize_e4m3fn_to_e4m3fnuz(weight: TensorValue, weight_scale: TensorValue) -> tuple[TensorValue, TensorValue]:
    """Converts float8_e4m3fn weights to float8_e4m3fnuz, whose numbers are half as large, and doubles their scales.

    Args:
        weight: Weights in float8_e4m3fn.
        weight_scale: Their scales.
    """
    converted, scales = call_many("float8_e4m3fnuz", weight, weight_scale)
    return converted, scales


def convert_weights_to_fp8_fnuz_if_needed(
    weight: TensorValue, weight_scale: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """Weights and scales as the devices need them: see `needs_fp8_fnuz_conversion`.

    Args:
        weight: Weights in float8_e4m3fn.
        weight_scale: Their scales.
    """
    if needs_fp8_fnuz_conversion():
        return normalize_e4m3fn_to_e4m3fnuz(weight, weight_scale)
    return weight, weight_scale


def _check_single(name: str, scale: TensorValue) -> None:
    if scale.rank > 1 or any(dim != 1 for dim in scale.shape):
        raise ValueError(f"expected {name} to be a scalar, but got shape of {scale.shape}")


def _check_rank(name: str, operand: TensorValue, rank: int) -> None:
    if operand.rank != rank:
        raise ValueError(f"expected {name} rank to be {rank}, but got {operand.rank}")


def _check_depth(a: TensorValue, b: TensorValue) -> None:
    try:
        different = int(a.shape[1]) != int(b.shape[1])
    except TypeError:  # A symbolic dim is checked when the graph runs.
        return
    if different:
        raise ValueError(
            f"The second dimension of b must match the second dimension of a; got shapes {b.shape} and {a.shape}"
        )


def _check_experts(hidden_states: TensorValue, weight: TensorValue) -> None:
    for name, operand, rank in [("weight", weight, 3), ("hidden_states", hidden_states, 2)]:
        if operand.rank != rank:
            raise ValueError(f"expected {name} of rank {rank} but got {operand.rank}")
    k = hidden_states.shape[1]
    try:
        different = int(k) != int(weight.shape[2])
    except TypeError:
        return
    if different:
        raise ValueError(f"expected weight is of shape [num_experts, *, {k}] but got {weight.shape}")


def _check_scales(
    a_scales: TensorValue, b_scales: TensorValue, inputs: Float8InputScaleSpec, weights: Float8WeightScaleSpec
) -> list[int]:
    """The rows and columns of blocks of the weights, if there are blocks; checks the scales against the specs."""
    rows, columns = b_scales.shape[-2:]
    if inputs.is_rowwise or weights.is_colwise:
        raise ValueError(
            "unsupported FP8 scaling granularity: inputs have scales of tokens (colwise) and weights of output "
            "channels (rowwise), or of blocks or tensors; "
            f"got {inputs.granularity.value} and {weights.granularity.value}"
        )
    if not inputs.is_block and a_scales.shape[0] != 1:
        raise ValueError(f"only per-token scaling is supported for a; got scales of shape {a_scales.shape}")
    if not weights.is_block and columns != 1:
        raise ValueError(f"only channel-wise scaling is supported for b; got scales of shape {b_scales.shape}")
    if weights.is_tensor and rows != 1:
        raise ValueError(f"weights that are scaled as a whole have one scale; got shape {b_scales.shape}")
    if not (inputs.is_block or weights.is_block):
        return []
    block = weights.block_size if weights.is_block else None
    if inputs.is_block and inputs.block_size is not None:
        tokens, depth = inputs.block_size
        if tokens != 1 or (block is not None and block[1] != depth):
            raise ValueError(f"blocks of one token and {depth} elements do not fit those of the weights, {block}")
        block = block or (1, depth)
    return list(block) if block is not None else []
