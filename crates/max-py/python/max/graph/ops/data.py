"""Ops without tensor operands: constants, external constants, shapes as data, ranges and windows."""

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
        dtype: The type of the elements; by default that of an array. Required for numbers and lists.
        device: The device of the constant; by default the CPU for an array. Required for numbers and lists.

    Raises:
        TypeError: If a number or a list is given without a dtype or a device.
        ValueError: If the dtype cannot hold the value, or differs from that of the array.
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
    """Evenly spaced numbers: `start`, `start + step` and so on, up to but not including `stop`.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, ops
    >>> with Graph("numbers") as graph:
    ...     ops.range(0, 10, 3, dtype=DType.int32, device=DeviceRef.CPU()).shape
    [Dim(4)]

    Args:
        start: The first number: a number, a dim or a scalar tensor.
        stop: The end, which is not included. It must not lie before the start, as seen in the direction of the step.
        step: The distance between numbers, which must not be zero.
        out_dim: The dim of the result, checked at run time. Required if one of the three is a tensor.
        dtype: The type of the numbers.
        device: The device of the result.

    Raises:
        ValueError: If the step is zero or leads away from the stop, there are too many numbers, the dtype cannot
            represent them, or `out_dim` is missing.
    """
    return call("range", start, stop, step, out_dim, dtype, device)


def hann_window(
    window_length: int, device: DeviceRef, periodic: bool = True, dtype: DType = DType.float32
) -> TensorValue:
    """The Hann window: `(1 - cos(2 * pi * n / (N - 1))) / 2` at each position `n` of a window of length `N`.

    Args:
        window_length: The number of weights.
        device: The device of the window.
        periodic: Whether to take the window of length `N + 1` without its last weight, as signal transforms expect.
        dtype: The type of the weights, which must be a float.

    Raises:
        ValueError: If the length is negative.
        TypeError: If the length is not an integer.
    """
    return call("hann_window", window_length, device, periodic, dtype)
