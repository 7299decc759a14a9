"""Weights: tensors whose data is supplied when a graph is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max import _core
from max.graph.shape import Shape, ShapeLike
from max.graph.type import DeviceRef
from max.graph.value import TensorValue

if TYPE_CHECKING:
    from max.driver import Device
    from max.dtype import DType
    from max.graph.quantization import QuantizationEncoding

__all__ = ["Weight"]


class Weight(TensorValue):
    """A tensor whose data is looked up by name when a graph is loaded.

    It is created outside any graph, and is added to the current graph when it is used.

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
        sharding_strategy: How to spread the weight over devices; must be None.
    """

    _native: _core.Weight
    align: int | None
    quantization_encoding: QuantizationEncoding | None
    shard_idx: int | None

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: ShapeLike,
        device: Device | DeviceRef | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        align: int | None = None,
        sharding_strategy: Any = None,
    ) -> None:
        if sharding_strategy is not None:
            raise NotImplementedError("weights cannot be spread over several devices yet")
        place = DeviceRef.CPU() if device is None else DeviceRef.from_device(device)
        self._native = _core.Weight(name, dtype, Shape(shape), place._native)
        self.align = align
        self.quantization_encoding = quantization_encoding
        self.shard_idx = None

    @property
    def name(self) -> str:
        """The name by which the data is looked up."""
        return self._native.name

    @name.setter
    def name(self, name: str) -> None:
        ty = self._native.type
        self._native = _core.Weight(name, ty.dtype, ty.shape, ty.device)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.name, self.dtype, self.shape, self.device, self.quantization_encoding, self.align
        return Weight, parts

    @property
    def original_dtype_and_shape(self) -> tuple[DType, Shape]:
        """The dtype and shape that it was created with."""
        return self.dtype, self.shape
