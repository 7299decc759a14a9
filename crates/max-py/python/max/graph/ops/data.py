"""Ops that start from no tensor: constants, constants that come later, and shapes as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max.graph.shape import ShapeLike, dims
from max.graph.value import TensorValue, call

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from max.driver import Buffer, Device
    from max.dtype import DType
    from max.graph.type import DeviceRef, TensorType


def constant(
    value: npt.NDArray[Any] | Buffer | float | np.number[Any] | list[Any] | tuple[Any, ...],
    dtype: DType | None = None,
    device: Device | DeviceRef | None = None,
) -> TensorValue:
    """Data that is part of the graph.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, ops
    >>> with Graph("data") as graph:
    ...     ops.constant([[1, 2], [3, 4]], DType.float32, DeviceRef.CPU())
    TensorValue(dtype=float32, shape=[Dim(2), Dim(2)], device=cpu:0)

    Args:
        value: A number, an array, or nested lists of numbers.
        dtype: The type of the elements; of an array by default its own. A number needs it.
        device: Where the constant is; by default the CPU. A number needs it.

    Raises:
        ValueError: If the dtype cannot hold the value, or a number comes without a dtype and a device.
    """
    if isinstance(value, (list, tuple)):
        import numpy as np

        return call("constant", [np.asarray(value)], dtype, device)
    return call("constant", value, dtype, device)


def constant_external(name: str, type: TensorType) -> TensorValue:
    """A constant whose data is looked up by name when the graph is loaded.

    Args:
        name: The name; the same name with the same type is the same constant.
        type: The type.
    """
    return call("constant_external", name, type)


def shape_to_tensor(shape: ShapeLike) -> TensorValue:
    """The sizes of a shape, as a vector of int64."""
    return call("shape_to_tensor", dims(shape))
