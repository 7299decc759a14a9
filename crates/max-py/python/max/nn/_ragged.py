"""Functions of tokens in sequences and groups; `max.nn.kernels` has them.

In a ragged tensor, sequences come one after the other. Its row offsets say where each starts and the last one ends:
there is one more than there are sequences, the first is 0 and the last is the number of rows.
"""

from __future__ import annotations

from max.graph.value import TensorValue, TensorValueLike, call, call_many
from max.nn.attention.mask_config import MHAMaskVariant


def flash_attention_gpu(
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    mask_variant: MHAMaskVariant,
    scale: float,
    local_window_size: int = -1,
    valid_length: TensorValue | None = None,
) -> TensorValue:
    """Attention without a cache, on any device: `softmax(q @ k.T * scale) @ v` for each head.

    `k` and `v` may have fewer heads than `q`, which equally many heads of it then share. They may have another number
    of tokens if the mask is `NULL_MASK` and there are no lengths.

    Args:
        q: Queries, `[batch, tokens, heads, depth]`.
        k: Keys, `[batch, tokens, key heads, depth]`.
        v: Values, `[batch, tokens, key heads, width]`.
        mask_variant: Which keys a query sees.
        scale: What scores are multiplied by.
        local_window_size: The size of chunks, or of a sliding window; other masks do not need it.
        valid_length: How many tokens of each sequence count, uint32 `[batch]`. The others give zeros.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType
    >>> query, key = ([TensorType(DType.float32, ["batch", "tokens", heads, 64])] for heads in (8, 2))
    >>> with Graph("attention", input_types=query + key + key) as graph:
    ...     flash_attention_gpu(*graph.inputs, MHAMaskVariant.CAUSAL_MASK, scale=0.125).shape
    [Dim('batch'), Dim('tokens'), Dim(8), Dim(64)]
    """
    mask = MHAMaskVariant(mask_variant).value
    return call("flash_attention", q, k, v, mask, float(scale), local_window_size, valid_length)


def flash_attention_ragged_gpu(
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    input_row_offsets: TensorValue,
    max_seq_len: TensorValue,
    mask_variant: MHAMaskVariant,
    scale: float,
    local_window_size: int = -1,
) -> TensorValue:
    """As `flash_attention_gpu`, of ragged tensors: a token sees only those of its own sequence.

    Args:
        q: Queries, `[tokens, heads, depth]`.
        k: Keys, `[tokens, key heads, depth]`.
        v: Values, `[tokens, key heads, width]`.
        input_row_offsets: Where each sequence starts, and the last one ends: uint32 `[sequences + 1]`.
        max_seq_len: The length of the longest sequence; not needed here.
        mask_variant: Which keys of its sequence a query sees.
        scale: What scores are multiplied by.
        local_window_size: The size of chunks, or of a sliding window; other masks do not need it.
    """
    mask = MHAMaskVariant(mask_variant).value
    return call("ragged_flash_attention", q, k, v, input_row_offsets, mask, float(scale), local_window_size)


def merge_ragged_tensors(
    a: TensorValue, a_row_offsets: TensorValue, b: TensorValue, b_row_offsets: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """Joins each sequence of a ragged tensor with that of another one.

    Args:
        a: Rows, `[rows of a, ...]`.
        a_row_offsets: Where its sequences start, and the last one ends: `[sequences + 1]`.
        b: Rows, `[rows of b, ...]`.
        b_row_offsets: The same for `b`, for as many sequences.

    Returns:
        The merged rows and their offsets.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType
    >>> offsets = TensorType(DType.uint32, ["offsets"])
    >>> types = [TensorType(DType.float32, ["a", 8]), offsets, TensorType(DType.float32, ["b", 8]), offsets]
    >>> with Graph("merge", input_types=types) as graph:
    ...     [value.shape for value in merge_ragged_tensors(*graph.inputs)]
    [[Dim('a') + Dim('b'), Dim(8)], [Dim('offsets')]]
    """
    merged, offsets = call_many("merge_ragged_tensors", a, a_row_offsets, b, b_row_offsets)
    return merged, offsets


def moe_create_indices(
    topk_ids: TensorValue, num_local_experts: int
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue, TensorValue]:
    """Groups tokens by the experts that they were sent to, as `grouped_matmul_ragged` takes them.

    There are as many groups as experts. Those of active experts come first, in ascending order; the others are empty
    and have the id -1. Tokens of an expert that does not exist come last, in no group.

    Args:
        topk_ids: The expert of each token, `[tokens]`.
        num_local_experts: How many experts there are.

    Returns:
        - Which token comes at each place, uint32 `[tokens]`; those of an expert keep their order.
        - Where each group starts, and the last one ends: uint32 `[experts + 1]`.
        - The place of each token, uint32 `[tokens]`.
        - The expert of each group, int32 `[experts]`.
        - The most tokens of an expert and the number of active ones, uint32 `[2]`.
    """
    order, starts, restore, ids, usage = call_many("moe_create_indices", topk_ids, num_local_experts)
    return order, starts, restore, ids, usage


def swish_glu(a: TensorValueLike, b0: TensorValueLike, b1: TensorValueLike) -> TensorValue:
    """`silu(a @ b0.T) * (a @ b1.T)`: a product with one matrix, gated by that with another.

    Args:
        a: Rows, `[rows, k]`.
        b0: The matrix of the gate, `[n, k]`.
        b1: The other matrix, `[n, k]`.
    """
    return call("swish_glu", a, b0, b1)


def sgmv_kernel(
    input: TensorValue,
    lora: TensorValue,
    lora_ids: TensorValue,
    lora_ranks: TensorValue,
    input_row_offsets: TensorValue,
    max_lora_seq_len: int,
    bias: TensorValue | None = None,
) -> TensorValue:
    """The product of each group of rows with the matrix of its adapter (LoRA).

    Rows in no group, and those of a negative id, give zeros.

    Args:
        input: Rows, `[rows, k]`.
        lora: The matrices of all adapters, `[adapters, n, k]`.
        lora_ids: The adapter of each group, `[groups]`.
        lora_ranks: The ranks of the adapters; not needed here, where whole matrices are multiplied.
        input_row_offsets: Where each group starts, and the last one ends: `[groups + 1]`.
        max_lora_seq_len: The most rows of a group; not needed here.
        bias: What is added to rows that have an adapter: `[n]`, or `[adapters, n]`.
    """
    return call("sgmv", input, lora, lora_ids, input_row_offsets, bias)


def sgmv_lora_kernel(
    input: TensorValue,
    lora_a: TensorValue,
    lora_b: TensorValue,
    lora_ids: TensorValue,
    lora_ranks: TensorValue,
    grouped_row_offsets: TensorValue,
    max_lora_seq_len: int,
    bias: TensorValue | None = None,
) -> TensorValue:
    """The product of each group of rows with both matrices of its adapter (LoRA).

    Of the result of the first product only as many columns count as the group's adapter has rank. Rows in no group, and
    those of a negative id, give zeros.

    Args:
        input: Rows, `[rows, k]`.
        lora_a: The first matrices of all adapters, `[adapters, max rank, k]`.
        lora_b: The second ones, `[adapters, n, max rank]`.
        lora_ids: The adapter of each group, `[groups]`.
        lora_ranks: The rank of the adapter of each group, `[groups]`.
        grouped_row_offsets: Where each group starts, and the last one ends: `[groups + 1]`.
        max_lora_seq_len: The most rows of a group; not needed here.
        bias: What is added to rows that have an adapter: `[n]`, or `[adapters, n]`.
    """
    return call("sgmv_lora", input, lora_a, lora_b, lora_ids, lora_ranks, grouped_row_offsets, bias)
