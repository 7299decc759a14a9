"""The operators and methods that graph values and tensors have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from max.dtype import as_dtype
from max.graph.shape import ShapeLike, dims

if TYPE_CHECKING:
    from max.dtype import DType

S = TypeVar("S", bound="Operators")


class Operators:
    """Something with the operators of numbers and NumPy arrays. Comparisons are ops too, element by element."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `array + value` to the value
    __contains__ = None
    __hash__ = object.__hash__

    _call: ClassVar[Callable[..., Any]]
    """Runs or records an op with one result."""

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...

    def cast(self: S, dtype: DType) -> S:
        """The elements converted to another dtype; the tensor itself if it already has that dtype."""
        wanted = as_dtype(dtype)
        return self if wanted is self.dtype else self._call("cast", self, wanted)

    def reshape(self: S, shape: ShapeLike) -> S:
        """The same elements in another shape; one dim may be -1 and is then inferred."""
        return self._call("reshape", self, dims(shape))

    def broadcast_to(self: S, shape: ShapeLike) -> S:
        """The tensor repeated to a larger shape: along new leading axes, and along axes of size 1."""
        return self._call("broadcast_to", self, dims(shape))

    def flatten(self: S, start_dim: int = 0, end_dim: int = -1) -> S:
        """The axes from `start_dim` to `end_dim`, both included, merged into one."""
        return self._call("flatten", self, start_dim, end_dim)

    @property
    def T(self: S) -> S:
        """The tensor with its last two axes swapped."""
        return self._call("transpose", self, -1, -2)

    def permute(self: S, dims: list[int]) -> S:
        """The tensor with its axes in another order."""
        return self._call("permute", self, list(dims))

    def argmax(self: S, axis: int = -1) -> S:
        """The indices of the largest elements along an axis, whose size becomes 1."""
        return self._call("argmax", self, axis)

    def max(self: S, axis: int = -1) -> S:
        """The largest elements along an axis, whose size becomes 1."""
        return self._call("reduce_max", self, axis)

    def min(self: S, axis: int = -1) -> S:
        """The smallest elements along an axis, whose size becomes 1."""
        return self._call("reduce_min", self, axis)

    def mean(self: S, axis: int = -1) -> S:
        """The mean along an axis, whose size becomes 1."""
        return self._call("mean", self, axis)

    def var(self: S, axis: int = -1) -> S:
        """The population variance along an axis, whose size becomes 1."""
        return self._call("var", self, axis)

    def stdev(self: S, axis: int = -1) -> S:
        """The population standard deviation along an axis, whose size becomes 1."""
        return self._call("stdev", self, axis)

    def __getitem__(self: S, index: Any) -> S:
        return self._call("slice_tensor", self, index if isinstance(index, tuple) else (index,))

    def __neg__(self: S) -> S:
        return self._call("negate", self)

    def __pos__(self: S) -> S:
        return self

    def __abs__(self: S) -> S:
        return self._call("abs", self)

    def __invert__(self: S) -> S:
        return self._call("logical_not", self)

    def __add__(self: S, rhs: Any) -> S:
        return self._call("add", self, rhs)

    def __radd__(self: S, lhs: Any) -> S:
        return self._call("add", lhs, self)

    def __sub__(self: S, rhs: Any) -> S:
        return self._call("sub", self, rhs)

    def __rsub__(self: S, lhs: Any) -> S:
        return self._call("sub", lhs, self)

    def __mul__(self: S, rhs: Any) -> S:
        return self._call("mul", self, rhs)

    def __rmul__(self: S, lhs: Any) -> S:
        return self._call("mul", lhs, self)

    def __truediv__(self: S, rhs: Any) -> S:
        return self._call("div", self, rhs)

    def __rtruediv__(self: S, lhs: Any) -> S:
        return self._call("div", lhs, self)

    def __floordiv__(self: S, rhs: Any) -> S:
        return self._call("floor_div", self, rhs)

    def __rfloordiv__(self: S, lhs: Any) -> S:
        return self._call("floor_div", lhs, self)

    def __mod__(self: S, rhs: Any) -> S:
        return self._call("mod", self, rhs)

    def __rmod__(self: S, lhs: Any) -> S:
        return self._call("mod", lhs, self)

    def __pow__(self: S, rhs: Any) -> S:
        return self._call("pow", self, rhs)

    def __rpow__(self: S, lhs: Any) -> S:
        return self._call("pow", lhs, self)

    def __matmul__(self: S, rhs: Any) -> S:
        return self._call("matmul", self, rhs)

    def __rmatmul__(self: S, lhs: Any) -> S:
        return self._call("matmul", lhs, self)

    def __and__(self: S, rhs: Any) -> S:
        return self._call("logical_and", self, rhs)

    def __rand__(self: S, lhs: Any) -> S:
        return self._call("logical_and", lhs, self)

    def __or__(self: S, rhs: Any) -> S:
        return self._call("logical_or", self, rhs)

    def __ror__(self: S, lhs: Any) -> S:
        return self._call("logical_or", lhs, self)

    def __xor__(self: S, rhs: Any) -> S:
        return self._call("logical_xor", self, rhs)

    def __rxor__(self: S, lhs: Any) -> S:
        return self._call("logical_xor", lhs, self)

    def __eq__(self: S, rhs: Any) -> S:  # type: ignore[override]
        return self._call("equal", self, rhs)

    def __ne__(self: S, rhs: Any) -> S:  # type: ignore[override]
        return self._call("not_equal", self, rhs)

    def __gt__(self: S, rhs: Any) -> S:
        return self._call("greater", self, rhs)

    def __ge__(self: S, rhs: Any) -> S:
        return self._call("greater_equal", self, rhs)

    def __lt__(self: S, rhs: Any) -> S:
        return self._call("greater", rhs, self)

    def __le__(self: S, rhs: Any) -> S:
        return self._call("greater_equal", rhs, self)
