"""Ops that move elements: shapes, axes, parts, and devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from max.graph._operators import Operators
from max.graph.shape import ShapeLike, dims
from max.graph.value import TensorValue, TensorValueLike, call, call_many

if TYPE_CHECKING:
    from max.driver import Device
    from max.graph.dim import DimLike
    from max.graph.type import DeviceRef, FilterLayout


def reshape(x: TensorValueLike, shape: ShapeLike) -> TensorValue:
    """The same elements, in the same order, in another shape.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("rows", input_types=[TensorType(DType.float32, ["n", 6])]) as graph:
    ...     ops.reshape(graph.inputs[0], [-1, 2]).shape
    [Dim('n') * Dim(3), Dim(2)]

    Args:
        x: The tensor.
        shape: The new shape; one dim may be -1 and is then inferred.
    """
    return call("reshape", x, dims(shape))


def flatten(x: TensorValueLike, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
    """The axes from `start_dim` to `end_dim`, both included, merged into one."""
    return call("flatten", x, start_dim, end_dim)


def squeeze(x: TensorValueLike, axis: int) -> TensorValue:
    """The tensor without an axis of size 1."""
    return call("squeeze", x, axis)


def unsqueeze(x: TensorValueLike, axis: int) -> TensorValue:
    """The tensor with a new axis of size 1, at a position in the new shape."""
    return call("unsqueeze", x, axis)


def rebind(
    x: TensorValueLike, shape: ShapeLike, message: str = "", layout: FilterLayout | None = None
) -> TensorValue:
    """The tensor with different dims, whose sizes are checked to be the same at run time.

    Use it to assert what cannot be proven, such as that two symbolic dims are equal.

    Args:
        x: The tensor.
        shape: The new dims.
        message: Shown if the check fails.
        layout: The order of the axes, if it is the filter of a convolution.
    """
    if layout is None:
        return call("rebind", x, dims(shape), message)
    return call("rebind_filter", x, dims(shape), message, layout.value)


def broadcast_to(
    x: TensorValueLike, shape: TensorValue | ShapeLike, out_dims: ShapeLike | None = None
) -> TensorValue:
    """The tensor repeated to a larger shape: along new leading axes, and along axes of size 1.

    Args:
        x: The tensor.
        shape: The new shape, or a vector that holds it at run time.
        out_dims: The dims of the result if `shape` is a vector.
    """
    if not isinstance(shape, Operators):
        return call("broadcast_to", x, dims(shape))
    return call("broadcast_to", x, shape if out_dims is None else [shape, dims(out_dims)])


def transpose(x: TensorValueLike, axis_1: int, axis_2: int) -> TensorValue:
    """The tensor with two axes swapped."""
    return call("transpose", x, axis_1, axis_2)


def pad(
    input: TensorValueLike,
    paddings: Iterable[int],
    mode: Literal["constant", "reflect", "edge"] = "constant",
    value: TensorValueLike = 0,
) -> TensorValue:
    """The tensor with more elements before and after it along each axis.

    >>> from max.experimental import functional as F
    >>> from max.experimental.tensor import Tensor
    >>> F.pad(Tensor([1.0, 2.0, 3.0]), [2, 1], mode="reflect").to_numpy()
    array([3., 2., 1., 2., 3., 2.], dtype=float32)

    Args:
        input: The tensor.
        paddings: How many elements to add: before and after the first axis, before and after the second, and so on.
        mode: What they are: `"constant"` for `value`, `"reflect"` for the elements next to the first and the last one,
            mirrored, and `"edge"` (or `"replicate"`) for the first and the last one, repeated.
        value: The number or scalar that a constant padding consists of.

    Raises:
        ValueError: If a padding is negative, if there are not two for each axis, or if there are not enough elements
            to mirror or repeat.
    """
    return call("pad", input, list(paddings), mode, value)


def permute(x: TensorValueLike, dims: Sequence[int]) -> TensorValue:
    """The tensor with its axes in another order: axis `i` of the result is axis `dims[i]` of `x`."""
    return call("permute", x, list(dims))


def concat(original_vals: Iterable[TensorValueLike], axis: int = 0) -> TensorValue:
    """Tensors joined along an axis; their other dims must be equal."""
    return call("concat", list(original_vals), axis)


def stack(values: Iterable[TensorValueLike], axis: int = 0) -> TensorValue:
    """Tensors of the same shape, stacked along a new axis."""
    return call("stack", list(values), axis)


def split(x: TensorValueLike, split_sizes: Sequence[DimLike], axis: int = 0) -> list[TensorValue]:
    """A tensor split along an axis into parts of the given sizes, which must add up to that of the axis."""
    return call_many("split", x, dims(split_sizes), axis)


def chunk(x: TensorValueLike, chunks: int, axis: int = 0) -> list[TensorValue]:
    """A tensor split along an axis into equal parts, whose number must divide its size."""
    return call_many("chunk", x, chunks, axis)


def slice_tensor(x: TensorValueLike, indices: Iterable[Any]) -> TensorValue:
    """The part of a tensor that `x[indices]` selects.

    An index is an int, a slice with any step, an ellipsis, None for a new axis, a scalar tensor, or a pair of a slice
    whose bounds are tensors and the dim of its result. Bounds beyond a static size are errors.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("backwards", input_types=[TensorType(DType.float32, ["n", 4])]) as graph:
    ...     ops.slice_tensor(graph.inputs[0], [slice(None, None, -1), slice(1, 3)]).shape
    [Dim('n'), Dim(2)]
    """
    return call("slice_tensor", x, list(indices))


def gather(input: TensorValueLike, indices: TensorValueLike, axis: int = -1) -> TensorValue:
    """Slices of a tensor along an axis, selected by index; the axes of the indices replace that axis."""
    return call("gather", input, indices, axis)


def transfer_to(x: TensorValueLike, device: Device | DeviceRef) -> TensorValue:
    """The tensor on a device."""
    return call("transfer_to", x, device)


def tile(x: TensorValueLike, repeats: ShapeLike) -> TensorValue:
    """The tensor repeated along each axis.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("twice", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
    ...     ops.tile(graph.inputs[0], [2, 1]).shape
    [Dim('n') * Dim(2), Dim(3)]

    Args:
        x: The tensor.
        repeats: The number of repetitions along each axis, one number per axis.
    """
    return call("tile", x, dims(repeats))


def repeat_interleave(
    x: TensorValueLike, repeats: int, axis: int | None = None, out_dim: DimLike | None = None
) -> TensorValue:
    """The tensor with each element along an axis repeated in place.

    Args:
        x: The tensor.
        repeats: The number of repetitions, the same for all elements.
        axis: The axis; without one, the tensor is flattened first.
        out_dim: The dim of the axis in the result, checked at run time.

    Raises:
        ValueError: If `repeats` is not positive, or the axis is out of range.
    """
    return call("repeat_interleave", x, repeats, axis, out_dim)


def band_part(
    x: TensorValueLike, num_lower: int | None = None, num_upper: int | None = None, exclude: bool = False
) -> TensorValue:
    """The matrices in the last two axes, with zeros outside a band around the diagonal.

    Args:
        x: The tensor.
        num_lower: The number of diagonals below the main one in the band; by default all.
        num_upper: The number of diagonals above the main one in the band; by default all.
        exclude: Whether to zero the band instead.

    Raises:
        ValueError: If the rank is less than 2, or a number of diagonals is out of range.
    """
    return call("band_part", x, num_lower, num_upper, exclude)


def as_interleaved_complex(x: TensorValueLike) -> TensorValue:
    """Adjacent pairs along the last axis as complex numbers: a new last axis holds their two parts."""
    return call("as_interleaved_complex", x)
