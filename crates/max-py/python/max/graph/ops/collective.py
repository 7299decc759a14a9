"""Collectives: ops on the tensors of several devices, with a result on each.

All of them take signal buffers: buffers of the graph, one on each device that takes part. Devices wait for each other
without them here, so they may have any size, and stay as they are.

>>> from max.dtype import DType
>>> from max.graph import BufferType, DeviceRef, Graph, TensorType, ops
>>> devices = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
>>> tensors = [TensorType(DType.float32, ["rows", 8], device) for device in devices]
>>> signals = [BufferType(DType.uint8, [1], device) for device in devices]
>>> with Graph("total", input_types=[*tensors, *signals]) as graph:
...     x, s = [v.tensor for v in graph.inputs[:2]], [v.buffer for v in graph.inputs[2:]]
...     graph.output(*ops.allreduce.sum(x, s))
>>> [str(value.device) for value in graph.output_types]
['gpu:0', 'gpu:1']
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call_many

if TYPE_CHECKING:
    from max.graph.value import BufferValue


def allgather(
    inputs: Iterable[TensorValueLike], signal_buffers: Iterable[BufferValue], axis: int = 0
) -> list[TensorValue]:
    """The tensors of all devices, joined along an axis, on every device.

    Args:
        inputs: A tensor on each device. Their sizes may differ along the axis only.
        signal_buffers: A buffer on each device, in the same order.
        axis: The axis along which they are joined.

    Raises:
        ValueError: If tensors and signal buffers do not match, a device takes part twice, or dtypes or shapes differ.
        IndexError: If the axis is out of range.
    """
    return call_many("allgather", list(inputs), list(signal_buffers), axis)


def distributed_broadcast(input: TensorValueLike, signal_buffers: Iterable[BufferValue]) -> list[TensorValue]:
    """A tensor on every device of the signal buffers, copied from the one that has it.

    Args:
        input: The tensor, on one of the devices.
        signal_buffers: A buffer on each device that is to have the tensor.

    Raises:
        ValueError: If there are no signal buffers, none is on the device of the tensor, or a device takes part twice.
    """
    return call_many("distributed_broadcast", input, list(signal_buffers))


def distributed_scatter(
    input_chunks: Iterable[TensorValueLike], signal_buffers: Iterable[BufferValue]
) -> list[TensorValue]:
    """Chunks of data that one device has, one for each device or group of neighbouring devices.

    With as many chunks as devices, each device gets the chunk of its position. With fewer, `n` devices in a row share a
    chunk, where `n` is the number of devices divided by that of chunks, rounded up.

    Args:
        input_chunks: Tensors of one dtype, all on one of the devices. Their shapes may differ.
        signal_buffers: A buffer on each device that is to have a chunk.

    Raises:
        ValueError: If there are no chunks, more chunks than devices, chunks on several devices or of several dtypes, no
            signal buffer on the device of the chunks, or a device that takes part twice.
    """
    return call_many("distributed_scatter", list(input_chunks), list(signal_buffers))
