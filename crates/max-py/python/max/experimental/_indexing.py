"""Indexing of tensors with lists, arrays, tensors and masks, as in NumPy.

Ints, slices, None and an ellipsis are one op, `slice_tensor`. Everything else becomes arrays of positions, each along
one axis, and these select with `gather`, or several together with `gather_nd`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any

from max.dtype import DType

if TYPE_CHECKING:
    import numpy.typing as npt

    from max.experimental.tensor import Tensor

BASIC = frozenset({int, slice, NoneType, EllipsisType})
"""The types of indices that need nothing else."""


@dataclass(frozen=True)
class Picks:
    """Positions along an axis, or a mask over one or more axes."""

    array: npt.NDArray[Any] | Tensor
    mask: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes of the positions or the mask."""
        return tuple(map(int, self.array.shape))


def select(x: Tensor, parts: tuple[Any, ...]) -> Tensor:
    """What an index expression selects.

    Raises:
        IndexError: If a position is out of range, a mask has another shape than the axes it is for, or there are too
            many indices.
    """
    if x._native.state == "value":  # of a graph: it has no elements to look at
        return x._call("slice_tensor", x, parts)
    items = [_item(part) for part in parts]
    if not any(isinstance(item, Picks) for item in items):
        return x._call("slice_tensor", x, tuple(items))
    # An int beside positions is a position too, in the same place: these places are together unless something else is
    # between them, even an ellipsis that stands for nothing.
    chosen = [at for at, item in enumerate(items) if not _is_kept(item) and item is not Ellipsis]
    together = chosen[-1] - chosen[0] == len(chosen) - 1
    x, items = _without_masks(x, _expanded(x, items))
    plain = tuple(slice(None) if isinstance(item, Picks) else item for item in items)
    if not all(isinstance(item, slice) and item == slice(None) for item in plain):
        x = x._call("slice_tensor", x, plain)
    picks, first, axis = [], None, 0
    for item in items:
        if not _is_kept(item) and first is None:
            first = axis
        if isinstance(item, Picks):
            picks.append((item, axis))
        axis += _is_kept(item) or isinstance(item, Picks)  # slices drop the axes of ints and scalars
    return _gathered(x, picks, first if together and first is not None else 0)


def _item(part: Any) -> Any:
    """An index: positions and masks as `Picks`, all others as `slice_tensor` takes them."""
    if type(part) in BASIC:
        return part
    import numpy as np

    from max.experimental.tensor import Tensor

    if isinstance(part, (bool, np.bool_)):
        raise TypeError(f"a single bool is not an index of a tensor: {part!r}")
    if isinstance(part, Tensor):
        integral, mask = part.dtype.is_integral(), part.dtype.name == "bool"
        if not part.rank and integral:
            return part
    elif isinstance(part, (list, tuple, np.ndarray)) and not _is_bounded(part):
        listed = not isinstance(part, np.ndarray)
        part = np.asarray(part)
        if listed and not part.size:
            part = part.astype(np.int64)  # as in NumPy, an empty list has no floats
        integral, mask = part.dtype.kind in "iu", part.dtype.kind == "b"
        if not part.ndim and integral:
            return int(part)
    else:
        return part
    if not integral and not mask:
        raise IndexError(f"an array of indices has integers or bools, not {part.dtype.name}")
    if not part.ndim:
        raise TypeError("a single bool is not an index of a tensor")
    return Picks(part, mask)


def _is_kept(item: Any) -> bool:
    """Whether an index keeps its axis or makes a new one."""
    return item is None or isinstance(item, slice) or _is_bounded(item)


def _is_bounded(item: Any) -> bool:
    """Whether an index is a slice with the dim of its result."""
    return isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], slice)


def _expanded(x: Tensor, items: list[Any]) -> list[Any]:
    """The indices of all axes: the ellipsis, explicit or implied at the end, replaced by full slices."""

    def taken(item: Any) -> int:
        return len(item.shape) if isinstance(item, Picks) and item.mask else item is not None and item is not Ellipsis

    missing = x.rank - sum(map(taken, items))
    if missing < 0:
        raise IndexError(f"too many indices: {x.rank - missing} for a tensor of rank {x.rank} and shape {x.shape}")
    dots = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index expression has at most one ellipsis")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * missing, *items[at + 1 :]]


def _without_masks(x: Tensor, items: list[Any]) -> tuple[Tensor, list[Any]]:
    """The tensor with the axes under each mask merged into one, and the positions along it that the mask selects."""
    import numpy as np

    sizes = [int(size) for size in x.shape]
    merged: list[int] = []
    for at, item in enumerate(items):
        if item is None:
            continue
        if not (isinstance(item, Picks) and item.mask):
            merged.append(sizes.pop(0))
            continue
        under, sizes = sizes[: len(item.shape)], sizes[len(item.shape) :]
        if tuple(under) != item.shape:
            whole = [int(size) for size in x.shape]
            raise IndexError(
                f"a mask of shape {list(item.shape)} does not fit the axes it is used for, which have the sizes {under} "
                f"in a tensor of shape {whole}"
            )
        if isinstance(item.array, np.ndarray) or item.array.device.is_host:
            found: Any = np.flatnonzero(item.array)
        else:
            found = x._call("nonzero", item.array.flatten(), "selected").flatten()
        items[at] = Picks(found, mask=False)
        merged.append(math.prod(under))
    return (x if len(merged) == x.rank else x.reshape(merged)), items


def _gathered(x: Tensor, picks: list[tuple[Picks, int]], position: int) -> Tensor:
    """The elements at positions along axes. The positions broadcast together, and their axes are put at `position`."""
    taken = [axis for _, axis in picks]
    if len(picks) == 1:
        (axis,) = taken
        indices = _placed(picks[0][0].array, x)
        rank = indices.ndim
        x = x._call("gather", x, indices, axis)
    else:
        axis, indices = 0, _together([item.array for item, _ in picks], x)
        rank = indices.ndim - 1
        x = x.permute([*taken, *(other for other in range(x.rank) if other not in taken)])
        x = x._call("gather_nd", x, indices)
    if axis == position:
        return x
    order = [at for at in range(x.rank) if not axis <= at < axis + rank]
    order[position:position] = range(axis, axis + rank)
    return x.permute(order)


def _together(arrays: list[Any], x: Tensor) -> Any:
    """The positions along several axes, which broadcast together, as vectors along a new last axis."""
    import numpy as np

    try:
        shape = np.broadcast_shapes(*(tuple(map(int, array.shape)) for array in arrays))
    except ValueError:
        shapes = ", ".join(str([int(size) for size in array.shape]) for array in arrays)
        raise IndexError(f"indices of the shapes {shapes} do not broadcast together") from None
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np.stack([np.broadcast_to(array, shape).astype(np.int64) for array in arrays], axis=-1)
    tensors = [type(x)(array) if isinstance(array, np.ndarray) else array for array in arrays]
    return x._call("stack", [_placed(one, x).cast(DType.int64).broadcast_to(shape) for one in tensors], -1)


def _placed(array: Any, x: Tensor) -> Any:
    """Positions where the tensor is; arrays follow it anyway."""
    return array.to(x.device) if isinstance(array, type(x)) else array
