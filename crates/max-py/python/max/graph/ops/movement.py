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


def gather_nd(input: TensorValueLike, indices: TensorValueLike, batch_dims: int = 0) -> TensorValue:
    """Slices of a tensor selected by vectors of indices, along several axes at once.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, TensorType, ops
    >>> x = TensorType(DType.bfloat16, ["a", "b", "c", "d", "e"], DeviceRef.CPU())
    >>> at = TensorType(DType.int32, ["a", "f", 3], DeviceRef.CPU())
    >>> with Graph("pick", input_types=[x, at]) as graph:
    ...     ops.gather_nd(*graph.inputs, batch_dims=1).shape
    [Dim('a'), Dim('f'), Dim('e')]

    Args:
        input: The tensor.
        indices: The vectors, in its last axis, whose size must be static: positions along the axes of `input` that follow
            the batch axes. Negative ones count from the end.
        batch_dims: The number of leading axes that both have in common.

    Raises:
        ValueError: If the shapes do not fit.
        IndexError: At run time, if an index is out of range.
    """
    return call("gather_nd", input, indices, batch_dims)


def scatter(
    input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
) -> TensorValue:
    """A tensor with some elements replaced along an axis.

    Element `[i, j, ...]` of the updates goes to the position along the axis that the indices have at `[i, j, ...]`, and to
    `i, j, ...` along the other axes. Of several updates of an element, the last one in this order stays.

    Args:
        input: The tensor.
        updates: The new elements. Along the other axes they may cover only the beginning of `input`.
        indices: Where they go, in the shape of `updates`; negative ones count from the end.
        axis: The axis.

    Raises:
        ValueError: If the dtypes or shapes do not fit.
        IndexError: At run time, if an index is out of range.
    """
    return call("scatter", input, updates, indices, axis)


def scatter_add(
    input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
) -> TensorValue:
    """A tensor with updates added to elements along an axis; see `scatter`. Updates are added in order, so that results do not vary."""
    return call("scatter_add", input, updates, indices, axis)


def scatter_max(
    input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
) -> TensorValue:
    """A tensor with updates compared with elements, of which the greater stays along an axis; see `scatter`. NaN wins."""
    return call("scatter_max", input, updates, indices, axis)


def scatter_min(
    input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
) -> TensorValue:
    """A tensor with updates compared with elements, of which the lesser stays along an axis; see `scatter`. NaN wins."""
    return call("scatter_min", input, updates, indices, axis)


def scatter_mul(
    input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
) -> TensorValue:
    """A tensor with updates multiplied with elements along an axis; see `scatter`. Updates are multiplied in order, so that results do not vary."""
    return call("scatter_mul", input, updates, indices, axis)


def scatter_nd(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """A tensor with some slices replaced. Of several updates of an element, the last one stays.

    Args:
        input: The tensor.
        updates: The slices: their shape is that of `indices` without its last axis, and then that of a slice.
        indices: Vectors, in the last axis, whose size must be static: positions along as many of the first axes of `input`.
            Negative ones count from the end.

    Raises:
        ValueError: If the dtypes or shapes do not fit.
        IndexError: At run time, if an index is out of range.
    """
    return call("scatter_nd", input, updates, indices)


def scatter_nd_add(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """A tensor with slices of updates added to elements; see `scatter_nd`. Updates are added in order, so that results do not vary."""
    return call("scatter_nd_add", input, updates, indices)


def scatter_nd_max(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """A tensor with slices of updates compared with elements, of which the greater stays; see `scatter_nd`. NaN wins."""
    return call("scatter_nd_max", input, updates, indices)


def scatter_nd_min(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """A tensor with slices of updates compared with elements, of which the lesser stays; see `scatter_nd`. NaN wins."""
    return call("scatter_nd_min", input, updates, indices)


def scatter_nd_mul(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """A tensor with slices of updates multiplied with elements; see `scatter_nd`. Updates are multiplied in order, so that results do not vary."""
    return call("scatter_nd_mul", input, updates, indices)


def masked_scatter(
    input: TensorValueLike, mask: TensorValueLike, updates: TensorValueLike, out_dim: DimLike
) -> TensorValue:
    """A tensor with updates, in row-major order, written where a mask is true.

    Args:
        input: The tensor.
        mask: Where to write: a bool tensor that broadcasts to the shape of `input`.
        updates: What to write: a tensor of any shape, with at least as many elements as are written.
        out_dim: The number of elements that are written: bound at run time if it is a new name, else checked.

    Raises:
        ValueError: If the dtypes or shapes do not fit or, at run time, if there are too few updates.
    """
    return call("masked_scatter", input, mask, updates, out_dim)


def fold(
    input: TensorValueLike,
    output_size: tuple[DimLike, DimLike],
    kernel_size: tuple[DimLike, DimLike],
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> TensorValue:
    """Sliding blocks summed into the images that they are parts of: what several blocks have in common is added up.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, TensorType, ops
    >>> blocks = TensorType(DType.float32, ["n", 12, 12], DeviceRef.CPU())
    >>> with Graph("images", input_types=[blocks]) as graph:
    ...     ops.fold(graph.inputs[0], (4, 5), (2, 2)).shape
    [Dim('n'), Dim(3), Dim(4), Dim(5)]

    Args:
        input: The blocks, in the shape `[n, channels * kernel height * kernel width, number of blocks]`.
        output_size: Height and width of the images.
        kernel_size: Height and width of a block.
        stride: The distance between neighbouring blocks.
        dilation: The distance between neighbouring elements of a block.
        padding: How far blocks extend beyond the image on each side.

    Raises:
        ValueError: If the number of blocks or of channels does not fit.
    """

    def pair(sizes: Any) -> Any:
        return sizes if isinstance(sizes, int) else list(sizes)

    return call(
        "fold", input, dims(output_size), dims(kernel_size), pair(stride), pair(dilation), pair(padding)
    )


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
    x: TensorValueLike, repeats: int | TensorValue, axis: int | None = None, out_dim: DimLike | None = None
) -> TensorValue:
    """The tensor with each element along an axis repeated in place.

    Args:
        x: The tensor.
        repeats: The number of repetitions, the same for all elements, or a vector with one for each.
        axis: The axis; without one, the tensor is flattened first.
        out_dim: The dim of the axis in the result, bound or checked at run time. It must be given if `repeats` is a tensor.

    Raises:
        ValueError: If `repeats` is a number that is not positive, or the axis is out of range.
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
