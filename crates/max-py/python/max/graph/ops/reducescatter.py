"""Reductions over the tensors of several devices, with a part of the result on each; see `max.graph.ops.collective`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call_many

if TYPE_CHECKING:
    from max.graph.value import BufferValue

__all__ = ["sum"]


def sum(
    inputs: Iterable[TensorValueLike], signal_buffers: Iterable[BufferValue], axis: int = 0
) -> list[TensorValue]:
    """The sum of the tensors of all devices, cut along an axis into a part for each device.

    If the number of devices does not divide the axis, the parts of the first devices are larger by one.

    Args:
        inputs: A tensor on each device, all of one dtype and shape.
        signal_buffers: A buffer on each device, in the same order.
        axis: The axis along which the sum is cut.

    Raises:
        ValueError: If tensors and signal buffers do not match, a device takes part twice, dtypes or shapes differ, or the
            axis is out of range.
    """
    return call_many("reducescatter.sum", list(inputs), list(signal_buffers), axis)
