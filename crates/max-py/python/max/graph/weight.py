"""Weights: tensors whose data is supplied when a graph is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max import _core
from max.graph.graph import Graph
from max.graph.shape import Shape, ShapeLike
from max.graph.type import DeviceRef, TensorType
from max.graph.value import TensorValue, call

if TYPE_CHECKING:
    from max.driver import Device
    from max.dtype import DType
    from max.graph.quantization import QuantizationEncoding

__all__ = ["ShardingStrategy", "Weight"]

_OF_MODULES = ("tensor_parallel", "expert_parallel")
"""Strategies that modules translate to others for their weights."""


@dataclass(frozen=True)
class ShardingStrategy:
    """How a weight is spread over devices.

    >>> from max.dtype import DType
    >>> weight = Weight("weight", DType.float32, [6, 8], sharding_strategy=ShardingStrategy.rowwise(2))
    >>> [shard.shape for shard in weight.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])]
    [[Dim(3), Dim(8)], [Dim(3), Dim(8)]]

    Where sizes do not divide evenly, the first devices have more.

    Attributes:
        num_devices: The number of devices.
        shard: What a device has: a function from a weight and the number of the device to a value. If it takes a third
            argument, that is the number of devices.
    """

    num_devices: int
    shard: Callable[..., TensorValue]

    def __post_init__(self) -> None:
        if not self.num_devices >= 1:
            raise ValueError(f"a weight is sharded over at least one device; got num_devices={self.num_devices}")

    @staticmethod
    def rowwise(num_devices: int) -> ShardingStrategy:
        """Each device has some of the rows: of the elements along axis 0."""
        return ShardingStrategy(num_devices, _Part("rowwise"))

    @staticmethod
    def columnwise(num_devices: int) -> ShardingStrategy:
        """Each device has some of the columns: of the elements along axis 1."""
        return ShardingStrategy(num_devices, _Part("columnwise"))

    @staticmethod
    def replicate(num_devices: int) -> ShardingStrategy:
        """Each device has all of it."""
        return ShardingStrategy(num_devices, _Part("replicate"))

    @staticmethod
    def stacked_qkv(num_devices: int, num_heads: int, head_dim: int) -> ShardingStrategy:
        """Each device has the rows of some heads, in each of three stacked parts: queries, keys and values.

        Args:
            num_devices: The number of devices.
            num_heads: The number of heads in each part.
            head_dim: The rows of a head.
        """
        return ShardingStrategy(num_devices, _Part("stacked_qkv", (num_heads, head_dim)))

    @staticmethod
    def head_aware_columnwise(num_devices: int, num_heads: int, head_dim: int) -> ShardingStrategy:
        """Each device has the columns of some heads.

        Args:
            num_devices: The number of devices.
            num_heads: The number of heads.
            head_dim: The columns of a head.
        """
        return ShardingStrategy(num_devices, _Part("head_aware_columnwise", (num_heads, head_dim)))

    @staticmethod
    def tensor_parallel(num_devices: int) -> ShardingStrategy:
        """For modules: each device has a part of every weight, as the module decides."""
        return ShardingStrategy(num_devices, _Part("tensor_parallel"))

    @staticmethod
    def expert_parallel(num_devices: int) -> ShardingStrategy:
        """For modules: each device has some of the experts."""
        return ShardingStrategy(num_devices, _Part("expert_parallel"))

    def _is(self, kind: str) -> bool:
        return isinstance(self.shard, _Part) and self.shard.kind == kind

    @property
    def is_rowwise(self) -> bool:
        """Whether each device has some of the rows."""
        return self._is("rowwise")

    @property
    def is_colwise(self) -> bool:
        """Whether each device has some of the columns."""
        return self._is("columnwise")

    @property
    def is_replicate(self) -> bool:
        """Whether each device has all of it."""
        return self._is("replicate")

    @property
    def is_stacked_qkv(self) -> bool:
        """Whether each device has some heads of stacked queries, keys and values."""
        return self._is("stacked_qkv")

    @property
    def is_head_aware_colwise(self) -> bool:
        """Whether each device has the columns of some heads."""
        return self._is("head_aware_columnwise")

    @property
    def is_tensor_parallel(self) -> bool:
        """Whether a module decides what each device has of its weights."""
        return self._is("tensor_parallel")

    @property
    def is_expert_parallel(self) -> bool:
        """Whether each device has some of a module's experts."""
        return self._is("expert_parallel")

    def _value(self, weight: Weight, index: int) -> TensorValue:
        """What a device has, in the current graph."""
        count = (self.num_devices,) if _takes(self.shard, 3) else ()
        return self.shard(weight, index, *count)


@dataclass(frozen=True)
class _Part:
    """A strategy by name, with its sizes."""

    kind: str
    sizes: tuple[int, ...] = ()

    def __call__(self, weight: TensorValue, index: int, num_devices: int) -> TensorValue:
        if self.kind in _OF_MODULES:
            raise NotImplementedError(
                f"{self.kind} is a strategy of modules, which give each of their weights another one"
            )
        return call("shard", weight, [self.kind, num_devices, *self.sizes], index)


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with this number of arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function without a signature that Python can read
        return True
    return True


class Weight(TensorValue):
    """A tensor whose data is looked up by name when a graph is loaded.

    It is created outside any graph, and is added to the current graph when it is used. Its attributes can be changed
    until then.

    >>> import numpy as np
    >>> from max.dtype import DType
    >>> from max.engine import InferenceSession
    >>> from max.graph import Graph, TensorType
    >>> scale = Weight("scale", DType.float32, [2])
    >>> with Graph("scaled", input_types=[TensorType(DType.float32, ["n", 2])]) as graph:
    ...     graph.output(graph.inputs[0] * scale)
    >>> weights = {"scale": np.array([2, 3], dtype=np.float32)}
    >>> model = InferenceSession().load(graph, weights_registry=weights)
    >>> model(np.ones((1, 2), dtype=np.float32))[0].to_numpy()
    array([[2., 3.]], dtype=float32)

    Args:
        name: The name by which the data is looked up; no two weights of a graph may share it.
        dtype: The type of the elements.
        shape: The sizes of the axes.
        device: The device on which the weight is used; by default the CPU.
        quantization_encoding: How the elements are encoded, if they are.
        align: The alignment of the data, in bytes, if it is not that of the dtype.
        sharding_strategy: How to spread the weight over devices.
    """

    _native: _core.Weight
    align: int | None
    quantization_encoding: QuantizationEncoding | None
    shard_idx: int | None
    _strategy: ShardingStrategy | None
    _data: Any = None
    """What a module has loaded for it."""

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: ShapeLike,
        device: Device | DeviceRef | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        align: int | None = None,
        sharding_strategy: ShardingStrategy | None = None,
    ) -> None:
        place = DeviceRef.CPU() if device is None else DeviceRef.from_device(device)
        self._native = _core.Weight(name, dtype, Shape(shape), place._native)
        self.align = align
        self.quantization_encoding = quantization_encoding
        self.shard_idx = None
        self.sharding_strategy = sharding_strategy

    @property
    def name(self) -> str:
        """The name by which the data is looked up."""
        return self._native.name

    @name.setter
    def name(self, name: str) -> None:
        if name != self.name:
            self._native = _core.Weight(name, self.dtype, self.shape, self.device._native)

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return super().dtype

    @dtype.setter
    def dtype(self, dtype: DType) -> None:
        self._native = _core.Weight(self.name, dtype, self.shape, self.device._native)
        self._data = None

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return super().shape

    @shape.setter
    def shape(self, shape: ShapeLike) -> None:
        self._native = _core.Weight(self.name, self.dtype, Shape(shape), self.device._native)
        self._data = None

    @property
    def original_dtype_and_shape(self) -> tuple[DType, Shape]:
        """The dtype and shape of its data."""
        return self.dtype, self.shape

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is spread over devices."""
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy | None) -> None:
        if not (strategy is None or isinstance(strategy, ShardingStrategy)):
            raise TypeError(f"sharding_strategy is a ShardingStrategy; got a {type(strategy).__name__}")
        self._strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[Weight]:
        """The parts of the weight that devices have, which can be used like weights.

        What is loaded is the whole weight.

        Args:
            devices: As many devices as the strategy is for.

        Raises:
            ValueError: If there is no strategy, it is for another number of devices, or this is a shard itself.
        """
        if self.shard_idx is not None:
            raise ValueError(f"Weight {self.name} was already sharded: it cannot be sharded further")
        if self._strategy is None:
            raise ValueError(f"Weight {self.name} cannot be sharded because no sharding strategy was provided.")
        places = [DeviceRef.from_device(device) for device in devices]
        if len(places) != self._strategy.num_devices:
            raise ValueError(
                f"Weight {self.name} is sharded over {self._strategy.num_devices} devices, but {len(places)} were given"
            )
        return [_Shard(self, self._strategy, index, place) for index, place in enumerate(places)]

    def __reduce__(self) -> tuple[Any, ...]:
        encoding, strategy = self.quantization_encoding, self._strategy
        parts = self.name, self.dtype, self.shape, self.device, encoding, self.align, strategy
        return Weight, parts, None if self._data is None else {"_data": self._data}

    def __repr__(self) -> str:
        encoding = self.quantization_encoding
        last = "" if encoding is None else f", {encoding}"
        return f"Weight({self.name}, {self.dtype!s}, {self.shape}, {self.device}{last})"


class _Shard(Weight):
    """The part of a weight that one of several devices has: a function of the whole weight, wherever it is used."""

    def __init__(self, whole: Weight, strategy: ShardingStrategy, index: int, device: DeviceRef) -> None:
        self._whole, self._by, self._place = whole, strategy, device
        self.sharding_strategy = strategy
        self._index = self.shard_idx = index
        self.align = whole.align
        self.quantization_encoding = whole.quantization_encoding
        self._known: tuple[_core.Weight, TensorType] | None = None
        _ = self.type  # what is wrong with the strategy is reported at once

    @property
    def _native(self) -> _core.Value:  # type: ignore[override]
        return self._value()._native  # type: ignore[no-any-return]

    def _value(self) -> TensorValue:
        return self._by._value(self._whole, self._index).to(self._place)

    @property
    def type(self) -> TensorType:
        """The type, which is known without a graph."""
        whole = self._whole._native
        if self._known is None or self._known[0] is not whole:
            with Graph("shard"):
                self._known = whole, self._value().type
        return self._known[1]

    @property  # type: ignore[misc]
    def name(self) -> str:
        """The name of the whole weight and the number of the shard."""
        return f"{self._whole.name}[{self._index}]"

    @property  # type: ignore[misc]
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.type.dtype

    @property  # type: ignore[misc]
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.type.rank

    @property
    def device(self) -> DeviceRef:
        """The device that has it."""
        return self._place

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shard, (self._whole, self._by, self._index, self._place)
