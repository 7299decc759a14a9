"""Functions of tokens whose keys and values are in a cache; `max.nn.kernels` has them.

The tokens of sequences come one after the other: `input_row_offsets` says where those of each start, and the last ones
end. A `kv_collection` says how many tokens of each are in the cache, and in which pages. Functions that compute keys
and values store them after those, and attention then sees all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max.graph import Dim, DimLike, TensorValue
from max.graph.quantization import QuantizationConfig, QuantizationEncoding
from max.graph.value import call, call_many
from max.nn.attention.mask_config import MHAMaskVariant

if TYPE_CHECKING:
    import numpy as np

    from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection


def fused_qkv_ragged_matmul(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    wqkv: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    n_heads: int,
    bias: TensorValue | None = None,
) -> TensorValue:
    """The queries of tokens, `[tokens, n_heads * head_dim]`; their keys and values are stored.

    Args:
        kv_params: What the cache is like.
        input: Tokens, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends: uint32 `[sequences + 1]`.
        wqkv: The weights of queries, keys and values, one after the other:
            `[(n_heads + 2 * n_kv_heads) * head_dim, hidden]`.
        kv_collection: The cache.
        layer_idx: The number of the layer, a uint32 scalar.
        n_heads: The number of heads of queries.
        bias: What is added to queries, keys and values.

    >>> from max.dtype import DType
    >>> from max.graph import BufferType, Graph, TensorType
    >>> from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
    >>> params = KVCacheParams(DType.float32, n_kv_heads=2, head_dim=16, page_size=8)
    >>> f32, u32 = DType.float32, DType.uint32
    >>> types = [TensorType(f32, ["tokens", 64]), TensorType(u32, ["offsets"]), TensorType(f32, [128, 64])]
    >>> types += [BufferType(f32, ["pages", 2, 1, 8, 2, 16]), TensorType(u32, ["batch"])]
    >>> types += [TensorType(u32, ["batch", "columns"]), TensorType(u32, ["steps", 2]), TensorType(u32, [])]
    >>> with Graph("project", input_types=types) as graph:
    ...     x, offsets, wqkv, *cache, layer = graph.inputs
    ...     fused_qkv_ragged_matmul(params, x, offsets, wqkv, PagedKVCacheCollection(*cache), layer, n_heads=4).shape
    [Dim('tokens'), Dim(64)]
    """
    _check_tokens(input)
    if input.dtype != wqkv.dtype:
        raise ValueError(f"expected input and wqkv to have one dtype, but got {input.dtype} and {wqkv.dtype}")
    return _stored(call("linear", input, wqkv, bias), n_heads, kv_collection, input_row_offsets, layer_idx)


def fused_qkv_ragged_matmul_quantized(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    wqkv: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    n_heads: int,
    quantization_config: QuantizationConfig,
    perm_idx: TensorValue | None = None,
    bias: TensorValue | None = None,
) -> TensorValue:
    """As `fused_qkv_ragged_matmul`, with weights in the format of GPTQ: see `max.nn.GPTQLinear`.

    Args:
        kv_params: What the cache is like.
        input: Tokens, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        wqkv: The columns of queries, keys and values, one after the other, as uint8.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        n_heads: The number of heads of queries.
        quantization_config: The number of bits and the size of groups.
        perm_idx: The input that each row of the weights belongs to, if they are in another order.
        bias: What is added to queries, keys and values.
    """
    _check_tokens(input)
    config, gptq = list(quantization_config), QuantizationEncoding.GPTQ
    projected = call("quantized_linear", input, wqkv, gptq, config, perm_idx, bias)
    return _stored(projected, n_heads, kv_collection, input_row_offsets, layer_idx)


def fused_qkv_ragged_matmul_scaled_float8(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    wqkv: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    n_heads: int,
    input_scale: TensorValue,
    weight_scale: TensorValue,
    bias: TensorValue | None = None,
) -> TensorValue:
    """As `fused_qkv_ragged_matmul`, of float8 tokens and weights with scales. The queries have the dtype of the cache.

    Args:
        kv_params: What the cache is like.
        input: Tokens in float8, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        wqkv: The weights of queries, keys and values in float8.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        n_heads: The number of heads of queries.
        input_scale: The scale of all tokens, a scalar, or of each of them, `[1, tokens]`.
        weight_scale: The scale of all weights, a scalar, or of each row of them, `[rows, 1]`.
        bias: What is added to queries, keys and values.
    """
    _check_tokens(input)
    if input.dtype != wqkv.dtype or not input.dtype.is_float8():
        raise ValueError(f"expected input and wqkv to have one float8 dtype, but got {input.dtype} and {wqkv.dtype}")
    scales = call("transpose", input_scale, 0, 1) if input_scale.rank == 2 else input_scale
    projected = call("scaled_matmul", input, wqkv, scales, weight_scale, [], kv_params.dtype)
    if bias is not None:
        projected = projected + bias.to(projected.device).cast(projected.dtype)
    return _stored(projected, n_heads, kv_collection, input_row_offsets, layer_idx)


def unfused_qkv_ragged_matmul_gguf_quantized(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    n_heads: int,
    q_weight: TensorValue,
    k_weight: TensorValue,
    v_weight: TensorValue,
    quantization_encoding_q: QuantizationEncoding,
    quantization_encoding_k: QuantizationEncoding,
    quantization_encoding_v: QuantizationEncoding,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
) -> TensorValue:
    """As `fused_qkv_ragged_matmul`, with three weights in encodings of GGUF files.

    Args:
        kv_params: What the cache is like.
        input: Tokens, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        n_heads: The number of heads of queries.
        q_weight: The weights of queries, the blocks of each row as uint8.
        k_weight: The weights of keys.
        v_weight: The weights of values.
        quantization_encoding_q: How the weights of queries are encoded.
        quantization_encoding_k: How those of keys are.
        quantization_encoding_v: How those of values are.
        kv_collection: The cache.
        layer_idx: The number of the layer.
    """
    _check_tokens(input)
    place = _place(kv_collection, input_row_offsets, layer_idx)
    weights = [(k_weight, quantization_encoding_k), (v_weight, quantization_encoding_v)]
    keys_and_values = [call("quantized_linear", input, weight, encoding) for weight, encoding in weights]
    _run("cache_kv", call("concat", keys_and_values, -1), place, 2)
    queries = call("quantized_linear", input, q_weight, quantization_encoding_q)
    if queries.shape[1] != n_heads * kv_params.head_dim:
        raise ValueError(
            f"expected q_weight to have {n_heads} heads of {kv_params.head_dim} rows, but got {queries.shape[1]} rows"
        )
    return queries


def matmul_kv_cache_ragged(
    kv_params: KVCacheParams,
    hidden_states: TensorValue,
    input_row_offsets: TensorValue,
    weight: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
) -> None:
    """Computes and stores the keys and values of tokens.

    Args:
        kv_params: What the cache is like.
        hidden_states: Tokens, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        weight: The weights of keys and then those of values, `[2 * n_kv_heads * head_dim, hidden]`.
        kv_collection: The cache.
        layer_idx: The number of the layer.
    """
    _project(hidden_states, weight, 2, kv_collection, input_row_offsets, layer_idx)


def matmul_k_cache_ragged(
    kv_params: KVCacheParams,
    hidden_states: TensorValue,
    input_row_offsets: TensorValue,
    weight: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
) -> None:
    """Computes and stores the keys of tokens.

    Args:
        kv_params: What the cache is like.
        hidden_states: Tokens, `[tokens, hidden]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        weight: The weights of keys, `[n_kv_heads * head_dim, hidden]`.
        kv_collection: The cache.
        layer_idx: The number of the layer.
    """
    _project(hidden_states, weight, 1, kv_collection, input_row_offsets, layer_idx)


def fused_qk_ragged_rope(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    freqs_cis: TensorValue,
    layer_idx: TensorValue,
    interleaved: bool = True,
    position_ids: TensorValue | None = None,
    mrope_section: list[int] | None = None,
) -> TensorValue:
    """Turns queries by the angles of their positions, and the keys of these tokens, which are stored already, too.

    If the table is for fewer elements than a head has, the last ones are turned.

    Args:
        kv_params: What the cache is like.
        input: Queries, `[tokens, n_heads, head_dim]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        kv_collection: The cache.
        freqs_cis: Cosines and sines, each cosine before its sine, `[positions, head_dim]`: see `RotaryEmbedding`.
        layer_idx: The number of the layer.
        interleaved: Whether pairs are neighbours, rather than an element of the first half and one of the second.
        position_ids: Positions instead of those in the sequences, `[sections, tokens]`.
        mrope_section: How many pairs each section of a head has, or how many elements, if there are several sections.
    """
    place = _place(kv_collection, input_row_offsets, layer_idx)
    if mrope_section is not None and position_ids is None:
        raise ValueError("mrope_section is for position_ids, and there are none")
    return call("cache_rope", input, place, freqs_cis, interleaved, position_ids, list(mrope_section or []))


def rms_norm_key_cache(
    kv_params: KVCacheParams,
    kv_collection: PagedKVCacheCollection,
    gamma: TensorValue,
    epsilon: float | np.floating[Any],
    layer_idx: TensorValue,
    total_seq_len: DimLike,
    input_row_offsets: TensorValue,
    weight_offset: float | np.floating[Any],
    rms_norm_cols: int | None = None,
    multiply_before_cast: bool = True,
    per_head_norm: bool = True,
) -> None:
    """Normalizes the keys of new tokens, which are stored already, by their root mean square.

    Args:
        kv_params: What the cache is like.
        kv_collection: The cache.
        gamma: The scale, `[head_dim]`, or `[n_kv_heads * head_dim]` for all heads of a token together.
        epsilon: A small number that prevents division by zero.
        layer_idx: The number of the layer.
        total_seq_len: The number of new tokens.
        input_row_offsets: Where each sequence starts, and the last one ends.
        weight_offset: What is added to the scale.
        rms_norm_cols: The size of the scale, if it is smaller: then only the first elements are normalized.
        multiply_before_cast: Whether keys are rounded to the dtype of the cache only after they were multiplied.
        per_head_norm: Whether each head is normalized on its own.
    """
    whole = kv_params.head_dim * (1 if per_head_norm else kv_params.n_kv_heads_per_device)
    size = whole if rms_norm_cols is None else rms_norm_cols
    if gamma.rank != 1 or gamma.shape[0] != size:
        hint = "" if rms_norm_cols is not None else "; rms_norm_cols says that fewer are meant"
        raise ValueError(f"expected gamma to have {size} elements, but got shape {gamma.shape}{hint}")
    options = (float(epsilon), Dim(total_seq_len), float(weight_offset), multiply_before_cast, per_head_norm)
    _run("cache_key_norm", _place(kv_collection, input_row_offsets, layer_idx), gamma, *options)


def kv_cache_ragged_radd(
    kv_params: KVCacheParams,
    a: TensorValue,
    kv_collection: PagedKVCacheCollection,
    input_row_offsets: TensorValue,
    batch_offset: TensorValue,
    layer_idx: int,
) -> None:
    """Adds to the keys and values of new tokens, which are stored already: to those of the last sequences.

    Args:
        kv_params: What the cache is like.
        a: What is added to the keys and then to the values of these tokens, `[tokens, 2 * n_kv_heads * head_dim]`.
        kv_collection: The cache.
        input_row_offsets: Where each sequence starts, and the last one ends: of all sequences.
        batch_offset: The first sequence that `a` has tokens of, a scalar.
        layer_idx: The number of the layer.
    """
    _run("cache_add", a, _place(kv_collection, input_row_offsets, layer_idx), batch_offset)


def kv_cache_get_max_seq_len(kv_params: KVCacheParams, kv_collection: PagedKVCacheCollection) -> TensorValue:
    """The most new tokens of a sequence, a uint32 scalar.

    Args:
        kv_params: What the cache is like.
        kv_collection: The cache.
    """
    return kv_collection.max_lengths[0, 0]


def flash_attention_ragged(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    mask_variant: MHAMaskVariant,
    scale: float,
    local_window_size: int = -1,
    sink_weights: TensorValue | None = None,
) -> TensorValue:
    """Attention of queries to the keys and values of their sequences, which are stored already.

    Args:
        kv_params: What the cache is like.
        input: Queries, `[tokens, n_heads, head_dim]` or `[tokens, n_heads * head_dim]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        mask_variant: Which keys of its sequence a query sees.
        scale: What scores are multiplied by.
        local_window_size: The size of chunks, or of a sliding window; other masks do not need it.
        sink_weights: A score of each head, `[n_heads]`, that takes its share of the weight without a value.
    """
    mask, place = MHAMaskVariant(mask_variant).value, _place(kv_collection, input_row_offsets, layer_idx)
    return call("cached_attention", input, place, mask, float(scale), local_window_size, sink_weights)


def cross_attention_ragged(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    mask_variant: MHAMaskVariant,
    kv_input_row_offsets: TensorValue,
    q_max_seq_len: TensorValue,
    scale: float,
    local_window_size: int = -1,
) -> TensorValue:
    """Attention of queries to the keys and values of other sequences, as many as there are sequences of queries.

    A query of a sequence without keys gives zeros.

    Args:
        kv_params: What the cache is like.
        input: Queries, `[tokens, n_heads, head_dim]` or `[tokens, n_heads * head_dim]`.
        input_row_offsets: Where the queries of each sequence start, and the last ones end.
        kv_collection: The cache, in which the keys and values are.
        layer_idx: The number of the layer.
        mask_variant: Which keys a query sees.
        kv_input_row_offsets: Where the new keys of each sequence started, and the last ones ended.
        q_max_seq_len: The most queries of a sequence; not needed here.
        scale: What scores are multiplied by.
        local_window_size: The size of chunks, or of a sliding window; other masks do not need it.
    """
    mask, place = MHAMaskVariant(mask_variant).value, _place(kv_collection, input_row_offsets, layer_idx)
    arguments = (float(scale), local_window_size, None, kv_input_row_offsets)
    return call("cached_attention", input, place, mask, *arguments)


def flare_mla_decode_ragged(
    kv_params: KVCacheParams,
    input: TensorValue,
    input_row_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    mask_variant: MHAMaskVariant,
    scale: float,
    qk_rope_dim: int = 64,
) -> TensorValue:
    """Attention of queries to the latent vectors of their sequences (MLA): the keys of a cache of one head.

    Args:
        kv_params: What the cache is like.
        input: Queries, `[tokens, n_heads, head_dim]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        mask_variant: Which tokens of its sequence a query sees.
        scale: What scores are multiplied by.
        qk_rope_dim: How many elements of a latent vector, the last ones, are no part of the value.

    Returns:
        Sums of latent vectors, `[tokens, n_heads, head_dim - qk_rope_dim]`.
    """
    mask, place = MHAMaskVariant(mask_variant).value, _place(kv_collection, input_row_offsets, layer_idx)
    return call("latent_attention", input, place, mask, float(scale), qk_rope_dim)


def flare_mla_prefill_plan(
    kv_params: KVCacheParams,
    input_row_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    buffer_size: int,
    max_chunks: int = 16,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Divides the tokens of all sequences, those in the cache and new ones, into chunks.

    Args:
        kv_params: What the cache is like.
        input_row_offsets: Where each sequence starts, and the last one ends.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        buffer_size: The number of tokens of a chunk.
        max_chunks: The number of chunks; the last ones may be empty.

    Returns:
        - Where the tokens of each sequence start in a chunk, and the last ones end: uint32 `[chunks, sequences + 1]`.
        - Which token of its sequence is the first one there: uint32 `[chunks, sequences]`.
        - The number of tokens of each chunk: int32 `[chunks]`.
    """
    place = _place(kv_collection, input_row_offsets, layer_idx)
    offsets, firsts, lengths = call_many("latent_plan", place, buffer_size, max_chunks)
    return offsets, firsts, lengths


def flare_mla_decompress_k_cache(
    kv_params: KVCacheParams,
    buffer_row_offsets_1d: TensorValue,
    cache_offsets_1d: TensorValue,
    buffer_length: TensorValue,
    weight: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    buffer_size: int,
) -> TensorValue:
    """The latent vectors of the tokens of a chunk times weights, `[buffer_size, rows]`; zeros after the last token.

    Args:
        kv_params: What the cache is like.
        buffer_row_offsets_1d: Where each sequence starts in the chunk, and the last one ends: a row of the plan's.
        cache_offsets_1d: Which token of its sequence is the first one there: a row of the plan's.
        buffer_length: The number of tokens of the chunk; not needed here.
        weight: The weights, `[rows, columns]`, for as many elements of a latent vector, the first ones.
        kv_collection: The cache.
        layer_idx: The number of the layer.
        buffer_size: The number of tokens that a chunk can have.
    """
    chunk = _chunk(kv_collection, buffer_row_offsets_1d, cache_offsets_1d, layer_idx)
    return call("latent_keys", chunk, weight, buffer_size)


def flare_mla_prefill_ragged(
    kv_params: KVCacheParams,
    input: TensorValue,
    k: TensorValue,
    v: TensorValue,
    input_row_offsets: TensorValue,
    buffer_row_offsets: TensorValue,
    cache_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    layer_idx: TensorValue,
    mask_variant: MHAMaskVariant,
    scale: float,
    qk_rope_dim: int = 64,
    prev_output: TensorValue | None = None,
    prev_softmax_info: TensorValue | None = None,
) -> tuple[TensorValue, TensorValue]:
    """Attention of queries to the tokens of a chunk, which continues that to the chunk before.

    Args:
        kv_params: What the cache is like.
        input: Queries, `[tokens, n_heads, depth]`.
        k: The keys of the chunk without the elements that all heads share:
            `[buffer_size, n_heads, depth - qk_rope_dim]`.
        v: The values of the chunk, `[buffer_size, n_heads, width]`.
        input_row_offsets: Where the queries of each sequence start, and the last ones end.
        buffer_row_offsets: Where each sequence starts in the chunk, and the last one ends.
        cache_offsets: Which token of its sequence is the first one there.
        kv_collection: The cache, whose latent vectors end with what all heads share.
        layer_idx: The number of the layer.
        mask_variant: `CAUSAL_MASK` or `NULL_MASK`.
        scale: What scores are multiplied by.
        qk_rope_dim: How many elements all heads share.
        prev_output: The first result of the chunk before.
        prev_softmax_info: The second result of the chunk before.

    Returns:
        - The attention to all chunks up to this one, `[tokens, n_heads, width]`.
        - The largest score and the sum of weights behind it, `[tokens, n_heads, 2]`.
    """
    mask, place = MHAMaskVariant(mask_variant).value, _place(kv_collection, input_row_offsets, layer_idx)
    chunk = _chunk(kv_collection, buffer_row_offsets, cache_offsets, layer_idx)
    arguments = (mask, float(scale), qk_rope_dim, prev_output, prev_softmax_info)
    output, info = call_many("latent_prefill", input, k, v, place, chunk, *arguments)
    return output, info


def sgmv_qkv_lora_kernel(
    input: TensorValue,
    lora_a: TensorValue,
    lora_b: TensorValue,
    lora_ids: TensorValue,
    lora_ranks: TensorValue,
    input_row_offsets: TensorValue,
    lora_grouped_offsets: TensorValue,
    kv_collection: PagedKVCacheCollection,
    kv_params: KVCacheParams,
    layer_idx: TensorValue,
    max_lora_seq_len: int,
    max_rank: int,
    q_dim: int,
    kv_dim: int,
    bias: TensorValue | None = None,
) -> TensorValue:
    """What adapters (LoRA) add to queries, `[tokens, q_dim]`; what they add to keys and values is added in the cache.

    Args:
        input: Tokens, `[tokens, hidden]`.
        lora_a: The first matrices of all adapters, for queries, keys and values: `[adapters, 3 * max_rank, hidden]`.
        lora_b: The second ones, one after the other: `[adapters, q_dim + 2 * kv_dim, max_rank]`.
        lora_ids: The adapter of each group, `[groups]`.
        lora_ranks: The rank of the adapter of each group, `[groups]`.
        input_row_offsets: Where each sequence starts, and the last one ends.
        lora_grouped_offsets: Where each group of tokens starts, and the last one ends: `[groups + 1]`.
        kv_collection: The cache, in which the keys and values of these tokens are already.
        kv_params: What the cache is like.
        layer_idx: The number of the layer.
        max_lora_seq_len: The most tokens of a group; not needed here.
        max_rank: The largest rank.
        q_dim: The number of elements of queries.
        kv_dim: The number of elements of keys, and of values.
        bias: What is added for tokens that have an adapter: `[q_dim + 2 * kv_dim]`, or one for each adapter.
    """
    place = _place(kv_collection, input_row_offsets, layer_idx)
    added, rows = [], 0
    for number, size in enumerate((q_dim, kv_dim, kv_dim)):
        a = lora_a[:, number * max_rank : (number + 1) * max_rank, :]
        b, own = lora_b[:, rows : rows + size, :], None if bias is None else bias[..., rows : rows + size]
        added.append(call("sgmv_lora", input, a, b, lora_ids, lora_ranks, lora_grouped_offsets, own))
        rows += size
    _run("cache_add", call("concat", added[1:], -1), place, 0)
    return added[0]


def _place(kv_collection: PagedKVCacheCollection, row_offsets: TensorValue, layer_idx: Any) -> list[Any]:
    """A layer of a cache with its tables, as the native functions take it."""
    cache = kv_collection
    return [cache.kv_blocks, row_offsets, cache.cache_lengths, cache.lookup_table, layer_idx]


def _chunk(
    kv_collection: PagedKVCacheCollection, offsets: TensorValue, firsts: TensorValue, layer_idx: Any
) -> list[Any]:
    """A chunk of a cache as a place: its tokens follow those before the first ones."""
    return [kv_collection.kv_blocks, offsets, firsts, kv_collection.lookup_table, layer_idx]


def _run(op: str, *args: Any) -> None:
    """Records an op without results."""
    call_many(op, *args)


def _stored(
    projected: TensorValue,
    n_heads: int,
    kv_collection: PagedKVCacheCollection,
    row_offsets: TensorValue,
    layer_idx: Any,
) -> TensorValue:
    """The queries of projected tokens, whose keys and values are stored."""
    return call("cache_qkv", projected, _place(kv_collection, row_offsets, layer_idx), n_heads)


def _project(
    x: TensorValue,
    weight: TensorValue,
    parts: int,
    kv_collection: PagedKVCacheCollection,
    row_offsets: TensorValue,
    layer_idx: Any,
) -> None:
    _check_tokens(x)
    if x.dtype != weight.dtype:
        raise ValueError(f"expected hidden_states and weight to have one dtype, but got {x.dtype} and {weight.dtype}")
    _run("cache_kv", call("linear", x, weight), _place(kv_collection, row_offsets, layer_idx), parts)


def _check_tokens(x: TensorValue) -> None:
    if x.rank != 2:
        raise ValueError(f"expected tokens of rank 2, `[tokens, hidden]`, but got shape {x.shape}")
