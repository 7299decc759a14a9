"""Reductions over the tensors of several devices, with the result on each; see `max.graph.ops.collective`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call_many

if TYPE_CHECKING:
    from max.graph.value import BufferValue

__all__ = ["sum"]


def sum(inputs: Iterable[TensorValueLike], signal_buffers: Iterable[BufferValue]) -> list[TensorValue]:
    """The sum of the tensors of all devices, on every device.

    Args:
        inputs: A tensor on each device, all of one dtype and shape.
        signal_buffers: A buffer on each device, in the same order.

    Raises:
        ValueError: If tensors and signal buffers do not match, a device takes part twice, or dtypes or shapes differ.
    """
    return call_many("allreduce.sum", list(inputs), list(signal_buffers))
