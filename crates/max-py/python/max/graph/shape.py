"""The shapes of graph values: lists of dims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from max import _core
from max.graph import dim as _dim
from max.graph.dim import Dim, DimLike, StaticDim, SymbolicDim

if TYPE_CHECKING:
    from typing import SupportsIndex, TypeGuard

__all__ = ["Shape", "ShapeLike"]

ShapeLike: TypeAlias = Iterable[DimLike]
"""What is accepted as a shape: any iterable of sizes, names and dims."""


class Shape(list[Dim]):
    """The sizes of a value's axes, as a list of dims. As an operand of an op it is a vector of int64.

    >>> shape = Shape(["batch", 3])
    >>> shape
    [Dim('batch'), Dim(3)]
    >>> shape == ["batch", 3], shape == ("batch", 3), shape.rank, shape.static_dims
    (True, True, 2, [3])
    >>> shape[1:]
    [Dim(3)]

    Args:
        dims: Sizes, names or dims.
    """

    __slots__ = ()

    def __init__(self, dims: ShapeLike = ()) -> None:
        if isinstance(dims, str):
            raise TypeError(f"a shape is a list of dims, not the string {dims!r}: write [{dims!r}]")
        if not hasattr(dims, "__iter__"):
            raise TypeError(f"a shape is a list of dims, got {type(dims).__name__}: {dims!r}")
        super().__init__(map(Dim, dims))

    @staticmethod
    def _wrap(dims: Iterable[_core.Dim]) -> Shape:
        return Shape(map(_dim.wrap, dims))

    @property
    def _native(self) -> _core.Shape:
        return _core.Shape(self)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    @property
    def static_dims(self) -> list[int]:
        """The sizes of the static dims; others are omitted."""
        return [dim.dim for dim in self if isinstance(dim, StaticDim)]

    @property
    def parameters(self) -> list[SymbolicDim]:
        """The symbolic dims that its dims are computed from, each once."""
        return list(dict.fromkeys(symbol for dim in self for symbol in dim.parameters))

    @staticmethod
    def is_static(shape: Shape) -> TypeGuard[list[StaticDim]]:
        """Whether all dims of a shape are static."""
        return all(isinstance(dim, StaticDim) for dim in shape)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: SupportsIndex) -> Dim: ...
        @overload
        def __getitem__(self, index: slice) -> Shape: ...

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Shape(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        return super().__eq__(list(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: object) -> bool:
        return super().__ne__(list(other) if isinstance(other, tuple) else other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: ShapeLike) -> Shape:  # type: ignore[override]
        return Shape([*self, *other])

    def __radd__(self, other: ShapeLike) -> Shape:
        return Shape([*other, *self])


def dims(shape: ShapeLike | DimLike, more: tuple[DimLike, ...] = ()) -> Sequence[DimLike]:
    """A shape for native code: lists and tuples as they are, any other iterable as a `Shape`. The dims may also be
    arguments of their own: the first and `more`."""
    if more:
        return (shape, *more)  # type: ignore[arg-type]
    if isinstance(shape, (list, tuple)):
        return shape
    if isinstance(shape, (int, Dim)) or (hasattr(shape, "__index__") and not hasattr(shape, "__iter__")):
        return (shape,)  # type: ignore[arg-type]
    return Shape(shape)  # type: ignore[arg-type]
