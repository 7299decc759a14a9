"""Transformers on one device, and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, TensorValueLike, Value, ops
from max.nn.layer import Layer, LayerList, Module

if TYPE_CHECKING:
    from max.nn.embedding import Embedding, EmbeddingV1
    from max.nn.kv_cache import FetchPagedKVCacheCollection, KVCacheParams, PagedKVCacheCollection
    from max.nn.linear import Linear, LinearV1
    from max.nn.rotary_embedding import RotaryEmbedding

__all__ = ["ReturnLogits", "Transformer", "TransformerBlock"]


class ReturnLogits(str, Enum):
    """The tokens whose logits a model returns."""

    LAST_TOKEN = "last_token"
    """The last of each sequence."""
    VARIABLE = "variable"
    """The last ones of each sequence, as many as an input says."""
    ALL = "all"
    """All of them."""


class TransformerBlock(Module):
    """Attention and an MLP, each of which is added to its normalized input.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> block = TransformerBlock(ops.relu, ops.silu, ops.softmax, ops.softmax)
    >>> with Graph("block", input_types=[TensorType(DType.float32, ["n", 4])]) as graph:
    ...     block(graph.inputs[0]).shape
    [Dim('n'), Dim(4)]

    The names of the parts in a state dict are `self_attn`, `mlp`, `input_layernorm` and `post_attention_layernorm`.

    Args:
        attention: What is called with the normalized input and all other arguments of the block.
        mlp: What is called with the normalized result of that.
        attention_norm: What normalizes the input of the attention.
        mlp_norm: What normalizes the input of the MLP.
        residual_multiplier: What the results of attention and MLP are multiplied by before they are added.
    """

    def __init__(
        self,
        attention: Callable[..., TensorValue],
        mlp: Callable[[TensorValue], TensorValue],
        attention_norm: Callable[[TensorValue], TensorValue],
        mlp_norm: Callable[[TensorValue], TensorValue],
        residual_multiplier: float = 1.0,
    ) -> None:
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = attention_norm
        self.post_attention_layernorm = mlp_norm
        self.residual_multiplier = residual_multiplier

    def __call__(self, *args: Any, **kwargs: Any) -> TensorValue:
        """Runs the block.

        An attention with a cache is called as `block(layer_idx, x, kv_collection, freqs_cis, input_row_offsets)`, one
        without as `block(x)`; both pass on whatever else there is.

        Args:
            *args: The number of the layer, a scalar, if the attention takes one; the input `x`; further arguments.
            **kwargs: Keyword arguments of the attention, or some of these.
        """
        head, x, rest = _arguments(args, kwargs, "x", _is_scalar)
        x = x + self._scaled(self.self_attn(*head, self.input_layernorm(x), *rest, **kwargs))
        result: TensorValue = x + self._scaled(self.mlp(self.post_attention_layernorm(x)))
        return result

    def _scaled(self, x: TensorValue) -> TensorValue:
        return x if self.residual_multiplier == 1.0 else x * self.residual_multiplier


class Transformer(Module):
    """A decoder: an embedding of tokens, blocks with attention to a cache, a norm, and a layer that gives logits.

    The names of the parts in a state dict are `embed_tokens`, `layers`, `norm` and `lm_head`. A layer of logits may
    share its weight with the embedding: `output.set_shared_weight("weight", embedding.weight)`.

    Args:
        dim: The size of a token.
        n_heads: The number of heads of queries.
        layers: The blocks, which are called as `TransformerBlock` with an attention that has a cache.
        norm: What normalizes the results of the last block.
        output: What gives logits.
        embedding: The embedding of tokens.
        kv_params: What the cache is like.
        kv_collection_constructor: What makes a collection of inputs of the graph.
        rope: What turns queries and keys.
        return_logits: Which tokens have logits.
        embedding_multiplier: What embeddings are multiplied by.
        logits_scaling: What logits are divided by.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        layers: list[Any],
        norm: Layer,
        output: LinearV1 | Linear,
        embedding: EmbeddingV1 | Embedding,
        kv_params: KVCacheParams,
        kv_collection_constructor: FetchPagedKVCacheCollection,
        rope: RotaryEmbedding,
        return_logits: ReturnLogits = ReturnLogits.LAST_TOKEN,
        embedding_multiplier: float = 1.0,
        logits_scaling: float = 1.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.n_heads = n_heads
        self.layers = LayerList(layers)
        self.norm = norm
        self.lm_head = output
        self.embed_tokens = embedding
        self.kv_params = kv_params
        self.kv_collection_constructor = kv_collection_constructor
        self.rope = rope
        self.return_logits = ReturnLogits(return_logits)
        self.embedding_multiplier = embedding_multiplier
        self.logits_scaling = logits_scaling

    def __call__(
        self,
        tokens: TensorValueLike,
        kv_cache_inputs: Sequence[Value[Any]] | PagedKVCacheCollection,
        return_n_logits: TensorValue,
        input_row_offsets: TensorValue,
    ) -> tuple[TensorValue, ...]:
        """The logits after tokens, in float32; their keys and values are stored in the cache.

        Args:
            tokens: The numbers of tokens of all sequences, one sequence after the other: `[tokens]`.
            kv_cache_inputs: The pages, lengths, tables and longest lengths of the cache, or a collection of them.
            return_n_logits: For `ReturnLogits.VARIABLE`, how many tokens of each sequence have logits: int64 `[1]`.
            input_row_offsets: Where each sequence starts, and the last one ends: uint32 `[sequences + 1]`.

        Returns:
            The logits after the last token of each sequence, `[sequences, vocabulary]`. For `ALL`, also those after all
            tokens and the row offsets; for `VARIABLE`, also those after the last ones and the row offsets of these.
        """
        x = self.embed_tokens(tokens)
        if self.embedding_multiplier != 1.0:
            x = x * self.embedding_multiplier
        cache, table = _collection(kv_cache_inputs, self.kv_collection_constructor), self.rope.freqs_cis
        for number, layer in enumerate(self.layers):
            index = ops.constant(number, DType.uint32, DeviceRef.CPU())
            x = layer(index, x, cache, table, input_row_offsets)

        def logits(rows: TensorValue) -> TensorValue:
            return _scaled_logits(self.lm_head(self.norm(rows)), self.logits_scaling)  # type: ignore[operator]

        return _returned(x, logits, self.return_logits, return_n_logits, input_row_offsets)


def _collection(given: Any, constructor: Callable[..., Any]) -> Any:
    """A collection, or one that is made of the inputs of a graph."""
    return given if hasattr(given, "kv_blocks") else constructor(*given)


def _scaled_logits(x: TensorValue, divisor: float) -> TensorValue:
    x = x.cast(DType.float32)
    return x if divisor == 1.0 else x / divisor


def _returned(
    x: TensorValue,
    logits: Callable[[TensorValue], TensorValue],
    kind: ReturnLogits,
    count: TensorValue,
    row_offsets: TensorValue,
) -> tuple[TensorValue, ...]:
    """The logits that a model returns, of the results of its last block."""
    ends = row_offsets[1:].cast(DType.int64)
    last = logits(ops.gather(x, ends - 1, 0))
    if kind is ReturnLogits.LAST_TOKEN:
        return (last,)
    if kind is ReturnLogits.ALL:
        return last, logits(x), row_offsets
    count = ops.reshape(count, []).cast(DType.int64)
    host = DeviceRef.CPU()
    back = ops.range(count.to(host), 0, -1, out_dim="return_n_logits_range", dtype=DType.int64, device=host)
    rows = ops.reshape(ops.unsqueeze(ends, 1) - back.to(x.device), [-1])
    starts = ops.range(0, row_offsets.shape[0], 1, dtype=DType.int64, device=x.device) * count.to(x.device)
    return last, logits(ops.gather(x, rows, 0)), starts


def _is_scalar(value: Any) -> bool:
    return getattr(value, "rank", 0) == 0


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str, is_layer_idx: Callable[[Any], bool]
) -> tuple[list[Any], Any, tuple[Any, ...]]:
    """What comes before the input of a block, the input, and what comes after it."""
    head, rest = [], args
    if "layer_idx" in kwargs:
        head = [kwargs.pop("layer_idx")]
    elif rest and is_layer_idx(rest[0]):
        head, rest = [rest[0]], rest[1:]
    if name in kwargs:
        return head, kwargs.pop(name), rest
    if not rest:
        raise TypeError(f"a transformer block takes an input '{name}'")
    return head, rest[0], rest[1:]
