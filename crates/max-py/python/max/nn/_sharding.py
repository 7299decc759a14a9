"""Layers on several devices: their parts, and what collectives need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from max.dtype import DType
from max.graph import BufferType, BufferValue, DeviceRef, TensorValue, Weight, ops
from max.nn.layer import LayerList, Module

if TYPE_CHECKING:
    from max.graph import Dim
    from max.graph.weight import ShardingStrategy
    from max.nn.layer import Shardable

M = TypeVar("M", bound=Module)


def strategy_of(layer: Shardable) -> ShardingStrategy:
    """The strategy of a layer, which must have one."""
    strategy = layer.sharding_strategy
    if strategy is None:
        raise ValueError(f"a {type(layer).__name__} layer can only be sharded once it has a sharding_strategy")
    return strategy


def unsupported(kind: str, expected: str, strategy: ShardingStrategy) -> ValueError:
    """The error about a strategy that a layer cannot follow."""
    return ValueError(f"a {kind} layer is sharded {expected}; got {strategy}")


def block_columns(name: str, size: Dim, block: int, strategy: ShardingStrategy) -> None:
    """Checks that devices get whole blocks of a weight, and as many as each other."""
    blocks, rest = divmod(int(size), block)
    if rest or blocks % strategy.num_devices:
        raise ValueError(
            f"a {name} with blocks of {block} along an axis of {size} cannot be cut between blocks for "
            f"{strategy.num_devices} devices"
        )


def parts(layer: Module, devices: Sequence[DeviceRef], kind: type[M]) -> list[M]:
    """The parts of a layer for devices: copies of it, of a kind, whose weights and modules are their own parts."""
    attributes = {name: value for name, value in vars(layer).items() if not name.startswith("__")}
    divided = {name: value for name, value in attributes.items() if isinstance(value, (Weight, Module))}
    shards = {name: _shards(value, devices) for name, value in divided.items()}
    layers = []
    for index, device in enumerate(devices):
        part = object.__new__(kind)
        for name, value in attributes.items():
            setattr(part, name, shards[name][index] if name in shards else value)
        if "device" in attributes:
            part.device = device  # type: ignore[attr-defined]
        layers.append(part)
    return layers


def _shards(value: Any, devices: Sequence[DeviceRef]) -> Sequence[Any]:
    """The shards of a weight, a layer or the layers of a list."""
    if isinstance(value, LayerList):
        return [LayerList(layers) for layers in zip(*(_shards(layer, devices) for layer in value))]
    return value.shard(devices)  # type: ignore[no-any-return]


def on_devices(x: Any, devices: Sequence[DeviceRef]) -> list[TensorValue]:
    """A tensor on each device: those that are given, or copies of one."""
    if not isinstance(x, (list, tuple)):
        value = TensorValue(x)
        return [value.to(device) for device in devices]
    if len(x) != len(devices):
        raise ValueError(f"expected an input on each of {len(devices)} devices; got {len(x)}")
    return [TensorValue(value).to(device) for value, device in zip(x, devices)]


def signals(devices: Sequence[DeviceRef], given: Iterable[BufferValue] | None) -> list[BufferValue]:
    """The signal buffers of collectives: those that are given, or new ones."""
    if given is not None:
        return list(given)
    return [ops.buffer_create(BufferType(DType.uint8, [1], device)) for device in devices]
