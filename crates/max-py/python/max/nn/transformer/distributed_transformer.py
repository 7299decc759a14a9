"""Blocks of transformers on several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from max.graph import BufferValue, DeviceRef, TensorValue, Value, ops
from max.graph.weight import ShardingStrategy
from max.nn.layer import Module, Shardable
from max.nn.transformer.transformer import _arguments

if TYPE_CHECKING:
    from max.nn.linear import DistributedGemmConfig

__all__ = [
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
