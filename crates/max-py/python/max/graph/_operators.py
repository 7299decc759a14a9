"""The operators and methods that graph values and tensors have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, Union

from max.dtype import as_dtype
from max.graph import _ufuncs
from max.graph.dim import Dim, StaticDim
from max.graph.shape import Shape, ShapeLike, dims

if TYPE_CHECKING:
    from max.dtype import DType
    from max.graph.dim import DimLike

S = TypeVar("S", bound="Operators")

Axes: TypeAlias = Union[int, Sequence[int], None]
"""The axes of a reduction: one, several, or None for all of them."""


def over(axis: Axes, keepdims: bool) -> Any:
    """The axes of a reduction for native code."""
    return axis if keepdims else (axis, "dropped")


class Operators:
    """Something with the operators of numbers and NumPy arrays. Comparisons are ops too, element by element."""

    __slots__ = ()
    __contains__ = None
    __hash__ = object.__hash__

    _call: ClassVar[Callable[..., Any]]
    """Runs or records an op with one result."""

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...
        @property
        def shape(self) -> Shape: ...
        @property
        def rank(self) -> int: ...

    @property
    def ndim(self) -> int:
        """NumPy's name of `rank`."""
        return self.rank

    @property
    def size(self) -> int | Dim:
        """The number of elements; a `Dim` if it depends on symbolic dims."""
        shape = self.shape
        if Shape.is_static(shape):
            return math.prod(dim.dim for dim in shape)
        return math.prod(shape, start=StaticDim(1))

    def numel(self) -> int | Dim:
        """PyTorch's name of `size`."""
        return self.size

    def cast(self: S, dtype: DType) -> S:
        """The elements converted to another dtype; the tensor itself if it already has that dtype."""
        wanted = as_dtype(dtype)
        return self if wanted is self.dtype else self._call("cast", self, wanted)

    def reshape(self: S, shape: ShapeLike | DimLike, *more: DimLike) -> S:
        """The same elements in another shape; one dim may be -1 and is then inferred.

        `x.reshape(3, 2)` is the same as `x.reshape([3, 2])`.
        """
        return self._call("reshape", self, dims(shape, more))

    def broadcast_to(self: S, shape: ShapeLike | DimLike, *more: DimLike) -> S:
        """The tensor repeated to a larger shape: along new leading axes, and along axes of size 1."""
        return self._call("broadcast_to", self, dims(shape, more))

    def flatten(self: S, start_dim: int = 0, end_dim: int = -1) -> S:
        """The axes from `start_dim` to `end_dim`, both included, merged into one."""
        return self._call("flatten", self, start_dim, end_dim)

    @property
    def T(self: S) -> S:
        """The tensor with its last two axes swapped."""
        return self._call("transpose", self, -1, -2)

    @property
    def mT(self: S) -> S:
        """NumPy's and PyTorch's name of `T`, for matrices in the last two axes."""
        return self.T

    def permute(self: S, dims: Sequence[int] | int, *more: int) -> S:
        """The tensor with its axes in another order. `x.permute(1, 0)` is the same as `x.permute([1, 0])`."""
        order = [dims, *more] if more or not hasattr(dims, "__iter__") else dims
        return self._call("permute", self, list(order))  # type: ignore[arg-type]

    def argmax(self: S, axis: int | None = -1, *, keepdims: bool = True) -> S:
        """The indices of the largest elements along an axis, whose size becomes 1; `keepdims=False` drops it.

        Along all axes (None), it is the index in row-major order.
        """
        return self._call("argmax", self, over(axis, keepdims))

    def max(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The largest elements along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops the
        axes."""
        return self._call("reduce_max", self, over(axis, keepdims))

    def min(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The smallest elements along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops the
        axes."""
        return self._call("reduce_min", self, over(axis, keepdims))

    def sum(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The sum along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops the axes."""
        return self._call("sum", self, over(axis, keepdims))

    def prod(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The product along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops the axes."""
        return self._call("prod", self, over(axis, keepdims))

    def mean(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The mean along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops the axes."""
        return self._call("mean", self, over(axis, keepdims))

    def var(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The population variance along an axis, several or all (None), whose sizes become 1. `keepdims=False` drops
        the axes."""
        return self._call("var", self, over(axis, keepdims))

    def stdev(self: S, axis: Axes = -1, *, keepdims: bool = True) -> S:
        """The population standard deviation along an axis, several or all (None), whose sizes become 1.
        `keepdims=False` drops the axes."""
        return self._call("stdev", self, over(axis, keepdims))

    def all(self: S, axis: Axes = None, *, keepdims: bool = False) -> S:
        """Whether all elements are true (not zero). As in NumPy and unlike other reductions, it is over all axes and
        drops them, unless `axis` and `keepdims` say otherwise."""
        return self._call("all", self, over(axis, keepdims))

    def any(self: S, axis: Axes = None, *, keepdims: bool = False) -> S:
        """Whether any element is true (not zero). As in NumPy and unlike other reductions, it is over all axes and
        drops them, unless `axis` and `keepdims` say otherwise."""
        return self._call("any", self, over(axis, keepdims))

    def __getitem__(self: S, index: Any) -> S:
        return self._call("slice_tensor", self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "tensors are immutable, so their items cannot be assigned: make a new one with where(mask, value, x), or "
            "with scatter_nd(x, values, indices) for positions"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Runs NumPy's elementwise functions as ops."""
        return _ufuncs.run(self._call, ufunc, method, inputs, options)

    def __neg__(self: S) -> S:
        return self._call("negate", self)

    def __pos__(self: S) -> S:
        return self

    def __abs__(self: S) -> S:
        return self._call("abs", self)

    def __round__(self: S, ndigits: int | None = None) -> S:
        if ndigits:
            raise TypeError(f"a tensor is rounded to whole numbers: write round(x * 10**{ndigits}) / 10**{ndigits}")
        return self._call("round", self)

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

    def __divmod__(self: S, rhs: Any) -> tuple[S, S]:
        return self // rhs, self % rhs

    def __rdivmod__(self: S, lhs: Any) -> tuple[S, S]:
        return lhs // self, lhs % self

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
        return self._call("equal", self, rhs) if rhs is not None else False  # type: ignore[return-value]

    def __ne__(self: S, rhs: Any) -> S:  # type: ignore[override]
        return self._call("not_equal", self, rhs) if rhs is not None else True  # type: ignore[return-value]

    def __gt__(self: S, rhs: Any) -> S:
        return self._call("greater", self, rhs)

    def __ge__(self: S, rhs: Any) -> S:
        return self._call("greater_equal", self, rhs)

    def __lt__(self: S, rhs: Any) -> S:
        return self._call("greater", rhs, self)

    def __le__(self: S, rhs: Any) -> S:
        return self._call("greater_equal", rhs, self)
