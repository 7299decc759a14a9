"""Transformers on several devices, and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from max.dtype import DType
from max.graph import BufferValue, DeviceRef, TensorValue, TensorValueLike, Value, ops
from max.graph.weight import ShardingStrategy
from max.nn.layer import LayerList, Module, Shardable
from max.nn.transformer.transformer import ReturnLogits, _arguments, _collection, _returned, _scaled_logits

if TYPE_CHECKING:
    from max.nn.embedding import VocabParallelEmbedding
    from max.nn.kv_cache import FetchPagedKVCacheCollection, KVCacheParams
    from max.nn.linear import ColumnParallelLinear, DistributedGemmConfig
    from max.nn.rotary_embedding import RotaryEmbedding

__all__ = [
    "DistributedTransformer",
    "DistributedTransformerBlock",
    "ShardableCallable",
    "distribute_value",
    "forward_sharded_layers",
    "take",
]


@runtime_checkable
class ShardableCallable(Shardable, Protocol):
    """A layer that can be spread over devices."""

    def __call__(self, x: TensorValue) -> TensorValue:
        """What the layer computes."""


class DistributedTransformerBlock(Module):
    """Attention and an MLP, each of which is added to its normalized input, on several devices.

    Norms are replicated. Each device has a part of the MLP, whose results add up to that of the whole; the attention
    does the same by itself.

    Args:
        attention: What is called with the normalized inputs, the signal buffers and all other arguments of the block,
            and returns as many results.
        mlp: What is called with the normalized results of that.
        attention_norm: What normalizes the inputs of the attention.
        mlp_norm: What normalizes the inputs of the MLP.
        devices: The devices.
        distributed_gemm_config: Has no effect: the compiler decides how ops are fused.
    """

    def __init__(
        self,
        attention: Callable[..., Sequence[TensorValue]],
        mlp: ShardableCallable,
        attention_norm: ShardableCallable,
        mlp_norm: ShardableCallable,
        devices: list[DeviceRef],
        distributed_gemm_config: DistributedGemmConfig | None = None,
    ) -> None:
        self.devices = list(devices)
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = attention_norm
        self.post_attention_layernorm = mlp_norm
        self.distributed_gemm_config = distributed_gemm_config
        self.mlp_shards = self._shards(mlp, ShardingStrategy.tensor_parallel)
        self.input_layernorm_shards = self._shards(attention_norm, ShardingStrategy.replicate)
        self.post_attention_layernorm_shards = self._shards(mlp_norm, ShardingStrategy.replicate)

    def _shards(self, layer: Any, strategy: Callable[[int], ShardingStrategy]) -> list[Any]:
        layer.sharding_strategy = strategy(len(self.devices))
        return list(layer.shard(self.devices))

    def __call__(self, *args: Any, **kwargs: Any) -> list[TensorValue]:
        """Runs the block: `block(layer_idx, xs, signal_buffers, ...)`, or without the number of the layer.

        Args:
            *args: The number of the layer, if the attention takes one; the inputs `xs` and the `signal_buffers`, lists
                with one for each device; further arguments of the attention.
            **kwargs: Keyword arguments of the attention, or some of these.
        """
        head, xs, rest = _arguments(args, kwargs, "xs", lambda value: not isinstance(value, (list, tuple)))
        signals: list[BufferValue]
        signals, *more = [kwargs.pop("signal_buffers"), *rest] if "signal_buffers" in kwargs else rest
        normed = forward_sharded_layers(self.input_layernorm_shards, xs)
        xs = _sums(xs, self.self_attn(*head, normed, signals, *more, **kwargs))
        normed = forward_sharded_layers(self.post_attention_layernorm_shards, xs)
        return _sums(xs, ops.allreduce.sum(forward_sharded_layers(self.mlp_shards, normed), signals))


class DistributedTransformer(Module):
    """A `Transformer` on several devices, each of which has some of the heads and some of the other weights.

    Args:
        dim: The size of a token.
        n_heads: The number of heads of queries.
        layers: The blocks.
        norm: What normalizes the results of the last block.
        output: What gives logits.
        embedding: The embedding of tokens.
        kv_params: What the cache is like, for as many devices.
        kv_collection_constructor: What makes a collection of inputs of the graph.
        devices: The devices.
        rope: What turns queries and keys.
        return_logits: Which tokens have logits.
        use_subgraphs: Has no effect: equal layers share their kernels anyway.
        subgraph_layer_groups: Has no effect.
        logits_scaling: What logits are divided by.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        layers: list[DistributedTransformerBlock],
        norm: ShardableCallable,
        output: ColumnParallelLinear,
        embedding: VocabParallelEmbedding,
        kv_params: KVCacheParams,
        kv_collection_constructor: FetchPagedKVCacheCollection,
        devices: list[DeviceRef],
        rope: RotaryEmbedding,
        return_logits: ReturnLogits = ReturnLogits.LAST_TOKEN,
        use_subgraphs: bool = False,
        subgraph_layer_groups: list[list[int]] | None = None,
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
        self.devices = list(devices)
        self.rope = rope
        self.return_logits = ReturnLogits(return_logits)
        self.use_subgraphs = use_subgraphs
        self.subgraph_layer_groups = subgraph_layer_groups
        self.logits_scaling = logits_scaling
        norm.sharding_strategy = ShardingStrategy.replicate(len(self.devices))  # type: ignore[misc]
        self.norm_shards = list(norm.shard(self.devices))

    def __call__(
        self,
        tokens: TensorValueLike,
        signal_buffers: list[BufferValue],
        kv_cache_inputs_per_dev: Sequence[Any],
        return_n_logits: TensorValue,
        input_row_offsets: TensorValue,
    ) -> tuple[TensorValue, ...]:
        """The logits after tokens: see `Transformer`.

        Args:
            tokens: The numbers of tokens of all sequences, one sequence after the other.
            signal_buffers: A buffer on each device, for collectives.
            kv_cache_inputs_per_dev: The inputs of the cache, or a collection of them, for each device.
            return_n_logits: For `ReturnLogits.VARIABLE`, how many tokens of each sequence have logits.
            input_row_offsets: Where each sequence starts, and the last one ends.
        """
        xs = self.embed_tokens(tokens, signal_buffers)
        caches = [_collection(given, self.kv_collection_constructor) for given in kv_cache_inputs_per_dev]
        tables = distribute_value(self.rope.freqs_cis, self.devices)
        offsets = distribute_value(input_row_offsets, self.devices)
        for number, layer in enumerate(self.layers):
            index = ops.constant(number, DType.uint32, DeviceRef.CPU())
            xs = layer(index, xs, signal_buffers, caches, tables, offsets)
        normed = forward_sharded_layers(self.norm_shards, xs)

        def logits(rows: TensorValue) -> TensorValue:
            # The norm is of each token on its own, so rows of a normalized tensor are normalized rows.
            own = self.lm_head(distribute_value(rows, self.devices), signal_buffers)
            return _scaled_logits(own[0], self.logits_scaling)

        return _returned(normed[0], logits, self.return_logits, return_n_logits, offsets[0])


def _sums(xs: Sequence[TensorValue], ys: Sequence[TensorValue]) -> list[TensorValue]:
    return [x + y for x, y in zip(xs, ys, strict=True)]


def distribute_value(v: TensorValue, devices: list[DeviceRef]) -> list[TensorValue]:
    """A tensor on each of several devices.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType
    >>> with Graph("copies", input_types=[TensorType(DType.float32, [2])]) as graph:
    ...     [copy.device for copy in distribute_value(graph.inputs[0], [DeviceRef.GPU(0), DeviceRef.GPU(1)])]
    [gpu:0, gpu:1]
    """
    return [v.to(device) for device in devices]


def forward_sharded_layers(
    layers: Sequence[Callable[[TensorValue], TensorValue]], xs: Sequence[TensorValue]
) -> list[TensorValue]:
    """Calls each layer with its own input.

    Args:
        layers: The layers.
        xs: The inputs, one for each layer.

    Raises:
        AssertionError: If there are more of one than of the other.
    """
    if len(layers) != len(xs):
        raise AssertionError(f"Number of layers ({len(layers)}) must match number of inputs ({len(xs)})")
    return [layer(x) for layer, x in zip(layers, xs, strict=True)]


def take(it: Iterable[Value[Any]], n: int) -> list[Value[Any]]:
    """The next items of an iterable, or as many of them as there are.

    >>> items = iter("abc")
    >>> take(items, 2), take(items, 2)
    (['a', 'b'], ['c'])

    Args:
        it: The iterable.
        n: How many.
    """
    return list(islice(it, n))
