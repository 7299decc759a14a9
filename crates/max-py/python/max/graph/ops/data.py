"""Ops that start from no tensor: constants, constants that come later, shapes as data, ranges and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.graph.shape import ShapeLike, dims
from max.graph.value import TensorValue, TensorValueLike, call

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from max.driver import Buffer, Device
    from max.graph.dim import DimLike
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
        dtype: The type of the elements; of an array by default its own. Numbers and lists need it.
        device: Where the constant is; of an array by default the CPU. Numbers and lists need it.

    Raises:
        TypeError: If a number or a list comes without a dtype or without a device.
        ValueError: If the dtype cannot hold the value, or is not that of the array.
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


def range(
    start: TensorValueLike,
    stop: TensorValueLike,
    step: TensorValueLike = 1,
    out_dim: DimLike | None = None,
    *,
    dtype: DType,
    device: Device | DeviceRef,
) -> TensorValue:
    """The numbers from `start` in steps of `step` up to `stop`, which is not one of them.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, ops
    >>> with Graph("numbers") as graph:
    ...     ops.range(0, 10, 3, dtype=DType.int32, device=DeviceRef.CPU()).shape
    [Dim(4)]

    Args:
        start: The first number: a number, a dim or a scalar tensor.
        stop: Where the numbers end; from the start it lies in the direction of the step, or it is the start.
        step: The distance between neighbours, which is not zero.
        out_dim: The dim of the result, checked at run time. It is needed where one of the three is a tensor.
        dtype: The type of the numbers.
        device: Where they are.

    Raises:
        ValueError: If the step is zero or leads away from the stop, there are too many numbers, the dtype does not
            hold them, or `out_dim` is missing.
    """
    return call("range", start, stop, step, out_dim, dtype, device)


def hann_window(
    window_length: int, device: DeviceRef, periodic: bool = True, dtype: DType = DType.float32
) -> TensorValue:
    """The Hann window: `(1 - cos(2 * pi * n / (N - 1))) / 2` for each position `n` of the length `N`.

    Args:
        window_length: How many weights there are.
        device: Where the window is.
        periodic: Whether it is the window of one more weight without its last, as transforms of signals want it.
        dtype: The type of the weights, a float.

    Raises:
        ValueError: If the length is negative.
        TypeError: If the length is not an integer.
    """
    return call("hann_window", window_length, device, periodic, dtype)
