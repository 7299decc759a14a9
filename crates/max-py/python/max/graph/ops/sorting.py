"""Ops that sort: the largest and smallest elements, positions in sorted order, and where a tensor is not zero.

Equal elements keep their order, whether the smallest or the largest come first. NaN counts as the largest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call, call_many

if TYPE_CHECKING:
    from max.graph.dim import DimLike


def top_k(input: TensorValueLike, k: int, axis: int = -1) -> tuple[TensorValue, TensorValue]:
    """The `k` largest elements along an axis, the largest first, and their positions as int64.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("best", input_types=[TensorType(DType.float32, ["n", 100])]) as graph:
    ...     values, indices = ops.top_k(graph.inputs[0], 5)
    ...     values.shape, indices.dtype
    ([Dim('n'), Dim(5)], int64)

    Args:
        input: The tensor.
        k: How many elements to select; at most the size of the axis.
        axis: The axis to select along; a negative one counts from the last.
    """
    values, indices = call_many("top_k", input, k, axis)
    return values, indices


def bottom_k(input: TensorValueLike, k: int, axis: int = -1) -> tuple[TensorValue, TensorValue]:
    """The `k` smallest elements along an axis, the smallest first, and their positions as int64.

    Args:
        input: The tensor.
        k: How many elements to select; at most the size of the axis.
        axis: The axis to select along; a negative one counts from the last.
    """
    values, indices = call_many("bottom_k", input, k, axis)
    return values, indices


def argsort(x: TensorValueLike, ascending: bool = True) -> TensorValue:
    """The positions of the elements of a vector in sorted order, as int64.

    Args:
        x: A tensor of rank 1.
        ascending: Whether the smallest element comes first; otherwise the largest does.
    """
    return call("argsort", x, ascending)


def nonzero(x: TensorValueLike, out_dim: DimLike) -> TensorValue:
    """The positions of the elements that are not zero, in row-major order, as int64 `[out_dim, rank]`.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("found", input_types=[TensorType(DType.bool, ["rows", "columns"])]) as graph:
    ...     ops.nonzero(graph.inputs[0], "found").shape
    [Dim('found'), Dim(2)]

    Args:
        x: A tensor of rank 1 or more.
        out_dim: The dim for the number of these elements, which is known when the graph runs. It may be a new name; a
            dim that is known already must have that size.
    """
    return call("nonzero", x, out_dim)
