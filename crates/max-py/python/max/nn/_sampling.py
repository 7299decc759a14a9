"""What samplers of tokens need; `max.nn.kernels` has it."""

from __future__ import annotations

from max.graph.value import BufferValue, TensorValue, TensorValueLike, call


def topk_fused_sampling(
    logits: TensorValue,
    top_k: TensorValueLike,
    *,
    temperature: TensorValueLike = 1.0,
    max_k: TensorValueLike | None = None,
    top_p: TensorValueLike = 1.0,
    seed: TensorValueLike = 0,
) -> TensorValue:
    """Draws a token for each row of logits.

    It is one of the `top_k` most likely, and of these one of the first whose probability together reaches `top_p`. What
    is drawn depends only on the row, its parameters and its seed, so that rows with the same ones get the same token in
    any batch. Of equal logits the one with the lower number comes first, and NaN is as unlikely as negative infinity.

    Parameters are numbers or scalars, or have one element for each row.

    Args:
        logits: Floats, `[batch, vocabulary]`.
        top_k: How many tokens to consider; -1, or more than there are, means all.
        temperature: What logits are divided by. Zero gives the most likely token.
        max_k: The largest `top_k` of the batch, which limits it; required if `top_k` is a tensor.
        top_p: The probability that is enough, above 0 and at most 1. One token is always considered.
        seed: What decides the draw.

    Returns:
        The tokens as int64, `[batch, 1]`.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType
    >>> with Graph("sampler", input_types=[TensorType(DType.float32, ["batch", 32000])]) as graph:
    ...     topk_fused_sampling(graph.inputs[0].tensor, 50, temperature=0.7, top_p=0.9, seed=1).shape
    [Dim('batch'), Dim(1)]
    """
    return call("topk_fused_sampling", logits, top_k, temperature, max_k, top_p, seed)


def apply_penalties_to_logits(
    logits_buffer: BufferValue,
    frequency_data: TensorValue,
    frequency_offsets: TensorValue,
    *,
    frequency_penalty: TensorValueLike = 0.0,
    presence_penalty: TensorValueLike = 0.0,
    repetition_penalty: TensorValueLike = 1.0,
) -> None:
    """Lowers the logits of tokens that came before, in place.

    The penalty for repetition comes first, then that for frequency and that for presence. Each is a number or a scalar,
    or has one element for each row.

    Args:
        logits_buffer: Floats, `[batch, vocabulary]`.
        frequency_data: Tokens and how often they came before, `[entries, 2]`; what is not in the vocabulary is skipped.
        frequency_offsets: Where the entries of each row start, and the last ones end: `[batch + 1]`.
        frequency_penalty: What is subtracted for each time that a token came before.
        presence_penalty: What is subtracted if it came before.
        repetition_penalty: What its logit is divided by if it is positive, else multiplied by.
    """
    penalties = (frequency_penalty, presence_penalty, repetition_penalty)
    call("apply_penalties_to_logits", logits_buffer, frequency_data, frequency_offsets, *penalties)


def update_frequency_data(frequency_data: BufferValue, frequency_offsets: TensorValue, tokens: TensorValue) -> None:
    """Counts one more token for each row, in place.

    An entry of the row that has the token counts it, else the first free one, whose token is -1. Nothing changes where
    no entry is free, and for negative tokens.

    Args:
        frequency_data: Tokens and how often they came before, int32 `[entries, 2]`.
        frequency_offsets: Where the entries of each row start, and the last ones end: `[batch + 1]`.
        tokens: The new tokens, `[batch]` or `[batch, 1]`.
    """
    call("update_frequency_data", frequency_data, frequency_offsets, tokens)


def scatter_set_constant(data: BufferValue, indices: TensorValue, fill_val: float) -> None:
    """Sets elements of a buffer to a number.

    Args:
        data: What is changed, such as logits, `[batch, vocabulary]`.
        indices: The position of each element along each axis, `[elements, 2]`. Negative ones count from the end; those
            out of range are an error when the graph runs.
        fill_val: The number.
    """
    call("scatter_set_constant", data, indices, float(fill_val))
