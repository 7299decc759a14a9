"""Buffers: memory that a graph reads and changes, in the order in which its ops are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from max import _core
from max.graph import value as _value
from max.graph._building import current_native
from max.graph.type import BufferType
from max.graph.value import BufferValue, TensorValue, TensorValueLike, call

if TYPE_CHECKING:
    from types import EllipsisType

    from max.graph.dim import DimLike


def buffer_create(type: BufferType, init_value: TensorValueLike | None = None) -> BufferValue:
    """A new buffer, which lives while the graph runs.

    Args:
        type: Its type.
        init_value: What it holds at first: a tensor of its type, or a number. Zeros, if it is left out.
    """
    return _value.wrap(call("buffer_create", type, init_value)._native).buffer


def buffer_load(x: BufferValue) -> TensorValue:
    """The contents of a buffer at this point, as a tensor that later changes of the buffer do not affect.

    Nothing is copied if all uses of the tensor come before the next change.
    """
    return call("buffer_load", x)


def buffer_store(destination: BufferValue, source: TensorValueLike) -> None:
    """Replaces the contents of a buffer.

    Args:
        destination: The buffer.
        source: A tensor of the same dtype, shape and device, or a number.
    """
    _core.op(current_native(), "buffer_store", (destination, source))


def buffer_store_slice(
    destination: BufferValue,
    source: TensorValueLike,
    indices: Sequence[TensorValue | int | slice | tuple[slice, DimLike] | EllipsisType],
) -> None:
    """Replaces part of a buffer. Only that part is written.

    Args:
        destination: The buffer.
        source: A tensor with the dtype and device of the buffer and the shape of the slice, or a number.
        indices: Which part, as in `tensor[indices]`. A scalar tensor as an index, or as a bound of a slice, is read when
            the graph runs.
    """
    _core.op(current_native(), "buffer_store_slice", (destination, source, tuple(indices)))
