"""Embedding tables: vectors of tokens, by number.

>>> from max.dtype import DType
>>> from max.graph import DeviceRef, Graph, TensorType
>>> table = Embedding(100, 8, DType.float32, DeviceRef.CPU())
>>> with Graph("lookup", input_types=[TensorType(DType.int64, ["batch", 7])]) as graph:
...     table(graph.inputs[0].tensor).shape
[Dim('batch'), Dim(7), Dim(8)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, TensorValueLike, Weight, ops
from max.graph.quantization import QuantizationEncoding
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._sharding import on_devices, signals
from max.nn.layer import Layer, Module
from max.nn.linear import encoded_columns

if TYPE_CHECKING:
    from max.graph import BufferValue

__all__ = ["Embedding", "EmbeddingV1", "EmbeddingV2", "VocabParallelEmbedding"]


class Embedding(Module):
    """A table with a vector for each token.

    The table is on the CPU, and moves to the device of the layer. That of an encoding is uint8, with the blocks of
    `hidden_dim` elements in each row; rows are decoded when they are looked up.

    Args:
        vocab_size: The number of tokens.
        hidden_dim: The size of each vector.
        dtype: The dtype of the vectors; those of an encoding are float32 if this is no float.
        device: Where the layer runs.
        quantization_encoding: How the table is encoded, if it is.
        name: The name of the weight; by default `weight`.
    """

    device: DeviceRef
    """Where the layer runs."""
    weight: Weight
    """The table, `[vocab_size, hidden_dim]`."""

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        dtype: DType,
        device: DeviceRef,
        quantization_encoding: QuantizationEncoding | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.device = device
        self.dtype = _dtype(dtype, quantization_encoding)
        self.weight = _table(vocab_size, hidden_dim, dtype, quantization_encoding, name)

    def __call__(self, indices: TensorValueLike) -> TensorValue:
        """The vectors of the tokens, each in place of its number."""
        return call("embedding", indices, self.weight, self.device, self.weight.quantization_encoding, self.dtype)


EmbeddingV2 = Embedding


@dataclass
class EmbeddingV1(Layer):
    """As `Embedding`, with a table that is given. Use `Embedding` instead.

    Attributes:
        weights: The table, `[vocab, dim]`.
        device: Where the layer runs.
    """

    weights: TensorValueLike
    device: DeviceRef

    def __call__(self, indices: TensorValueLike) -> TensorValue:
        """The vectors of the tokens, each in place of its number."""
        encoding = getattr(self.weights, "quantization_encoding", None)
        return call("embedding", indices, self.weights, self.device, encoding)


class VocabParallelEmbedding(Module):
    """An embedding table whose tokens are divided among devices.

    Each device looks up those that it has, and all get the sum.

    Args:
        vocab_size: The number of tokens.
        hidden_dim: The size of each vector.
        dtype: The dtype of the vectors; those of an encoding are float32 if this is no float.
        devices: The devices.
        quantization_encoding: How the table is encoded, if it is.
        name: The name of the weight; by default `weight`.
    """

    weight: Weight
    """The table, `[vocab_size, hidden_dim]`."""

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        dtype: DType,
        devices: list[DeviceRef],
        quantization_encoding: QuantizationEncoding | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if not devices:
            raise ValueError("a VocabParallelEmbedding layer needs at least one device")
        self.devices = list(devices)
        self.dtype = _dtype(dtype, quantization_encoding)
        self.weight = _table(vocab_size, hidden_dim, dtype, quantization_encoding, name)
        self.weight.sharding_strategy = ShardingStrategy.rowwise(len(self.devices))

    def __call__(
        self, indices: TensorValueLike | Sequence[TensorValue], signal_buffers: Iterable[BufferValue] | None = None
    ) -> list[TensorValue]:
        """The vectors of the tokens, on each device.

        Args:
            indices: The numbers of tokens on each device, or one tensor of them that is copied to the devices.
            signal_buffers: A buffer on each device, if the graph has them.
        """
        numbers = on_devices(indices, self.devices)
        encoding = self.weight.quantization_encoding
        if len(numbers) == 1:
            return [call("embedding", numbers[0], self.weight, self.devices[0], encoding, self.dtype)]
        rows, start = [], 0
        for shard, at in zip(self.weight.shard(self.devices), numbers):
            size = int(shard.shape[0])
            rows.append(self._rows(shard, at, start, size))
            start += size
        return ops.allreduce.sum(rows, signals(self.devices, signal_buffers))

    def _rows(self, table: Weight, indices: TensorValue, start: int, size: int) -> TensorValue:
        """The vectors of the tokens that a device has, and zeros for the others."""
        encoding, device = self.weight.quantization_encoding, table.device
        if size == 0:  # There is no row to read in place of the others.
            shape = [*indices.shape, self._hidden_dim()]
            return ops.broadcast_to(ops.constant(0, self.dtype, device), shape)
        own = indices - start
        here = ops.logical_and(own >= 0, own < size)
        rows = call("embedding", ops.where(here, own, 0), table, device, encoding, self.dtype)
        return ops.where(ops.unsqueeze(here, -1), rows, 0)

    def _hidden_dim(self) -> int:
        columns, encoding = int(self.weight.shape[1]), self.weight.quantization_encoding
        return columns if encoding is None else columns // encoding.block_size * encoding.elements_per_block


def _table(
    vocab_size: int, hidden_dim: int, dtype: DType, encoding: QuantizationEncoding | None, name: str | None
) -> Weight:
    columns, stored = hidden_dim, dtype
    if encoding is not None:
        columns, stored = encoded_columns(encoding, hidden_dim), DType.uint8
    return Weight(name or "weight", stored, [vocab_size, columns], DeviceRef.CPU(), encoding)


def _dtype(dtype: DType, encoding: QuantizationEncoding | None) -> DType:
    return DType.float32 if encoding is not None and not dtype.is_float() else dtype
