"""The dimensions of graph values: sizes that are known, named, or computed from named ones.

>>> batch = Dim("batch")
>>> print(batch * 2 + batch)
batch * 3
>>> batch - batch
Dim(0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

from max import _core

if TYPE_CHECKING:
    import numpy as np

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim"]

D = TypeVar("D", bound="Dim")

DimLike: TypeAlias = Union[int, str, "Dim", "np.integer[Any]"]
"""What is accepted as a dim: a size, a name or a `Dim`."""


class Dim:
    """The size of an axis: a `StaticDim`, a `SymbolicDim` or an `AlgebraicDim`, whichever fits.

    Arithmetic returns dims in a canonical form, so that equal sizes compare equal. A static dim equals its size, and a
    symbolic one its name.

    >>> Dim(3), Dim("x"), Dim("x") + 1
    (Dim(3), Dim('x'), Dim('x') + Dim(1))
    >>> (Dim("x") + 1) * 2 == Dim("x") * 2 + 2
    True
    >>> Dim("x") == "x" and Dim(3) == 3
    True

    Args:
        value: A size, a name, or a dim, which is returned as it is.

    Raises:
        TypeError: If it is none of these.
        ValueError: If a name is not made of letters, digits and underscores, starting with an ASCII letter or an
            underscore, or a size takes more than 64 bits.
    """

    __slots__ = ("_native",)
    _native: _core.Dim

    def __new__(cls: type[D], value: DimLike) -> D:
        dim = value if isinstance(value, Dim) else wrap(_core.Dim(value))
        if not isinstance(dim, cls):
            raise TypeError(f"{dim!r} is a {type(dim).__name__}, not a {cls.__name__}")
        return dim

    @property
    def parameters(self) -> list[SymbolicDim]:
        """The symbolic dims that it is computed from."""
        return [SymbolicDim(name) for name in self._native.parameters]

    def substitute(self, mapping: Mapping[str, DimLike]) -> Dim:
        """The dim with symbolic dims replaced by others, simultaneously.

        >>> (Dim("a") * 2 + Dim("b")).substitute({"a": 3, "b": Dim("a") * 4})
        (Dim('a') * Dim(4)) + Dim(6)

        Args:
            mapping: The replacement for each name. Other names stay.

        Raises:
            ZeroDivisionError: If a divisor becomes zero.
            ValueError: If a size takes more than 64 bits.
        """
        return wrap(self._native.substitute(dict(mapping)))

    def __add__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.add, self, other)

    def __radd__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.add, other, self)

    def __sub__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.sub, self, other)

    def __rsub__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.sub, other, self)

    def __mul__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.mul, self, other)

    def __rmul__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.mul, other, self)

    def __floordiv__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.floor_div, self, other)

    def __rfloordiv__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.floor_div, other, self)

    def __mod__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.modulo, self, other)

    def __rmod__(self, other: DimLike) -> Dim:
        return _combine(_core.Dim.modulo, other, self)

    def __neg__(self) -> Dim:
        return wrap(self._native.neg())

    def __int__(self) -> int:
        raise TypeError(f"Int conversions only supported for static dims; {self} is only known at run time")

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return repr(self._native)

    def __copy__(self) -> Dim:
        return self  # dims are immutable

    def __deepcopy__(self, memo: object) -> Dim:
        return self


class StaticDim(Dim):
    """A known size. It can be used as an int.

    >>> list(range(StaticDim(3)))
    [0, 1, 2]
    """

    __slots__ = ()
    __match_args__ = ("dim",)

    def __new__(cls, value: int | StaticDim | np.integer[Any]) -> StaticDim:
        if isinstance(value, str):
            raise TypeError(f"a StaticDim is made from an int; got the str {value!r}")
        return super().__new__(cls, value)

    @property
    def dim(self) -> int:
        """The size."""
        return self._native.size  # type: ignore[return-value]

    def __int__(self) -> int:
        return self.dim

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return self.dim == other

    def __lt__(self, other: int | StaticDim) -> bool:
        return self.dim < other

    def __le__(self, other: int | StaticDim) -> bool:
        return self.dim <= other

    def __gt__(self, other: int | StaticDim) -> bool:
        return self.dim > other

    def __ge__(self, other: int | StaticDim) -> bool:
        return self.dim >= other

    def __hash__(self) -> int:
        return hash(self.dim)

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticDim, (self.dim,)


class SymbolicDim(Dim):
    """A size that is only known at run time, by name: the same name is the same size.

    >>> SymbolicDim("batch").name
    'batch'
    """

    __slots__ = ()
    __match_args__ = ("name",)

    @property
    def name(self) -> str:
        """The name."""
        return self._native.name  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        return self.name == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return SymbolicDim, (self.name,)


class AlgebraicDim(Dim):
    """A size computed from symbolic ones.

    >>> isinstance(Dim("batch") * 5, AlgebraicDim)
    True
    >>> isinstance(Dim("batch") * 5 // 5, AlgebraicDim)
    False
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, Dim) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _parse, (str(self),)


_KINDS: dict[str, type[Dim]] = {"static": StaticDim, "symbolic": SymbolicDim, "algebraic": AlgebraicDim}
_LIKE = (Dim, int, str, Integral)  # NumPy's integers are Integral


def _parse(text: str) -> Dim:
    """The dim that prints as the given text."""
    return wrap(_core.Dim.parse(text))


def wrap(native: _core.Dim) -> Dim:
    """The dim for a native one."""
    dim = object.__new__(_KINDS[native.kind])
    dim._native = native
    return dim


def _combine(operation: Callable[[_core.Dim, Any], _core.Dim], lhs: DimLike, rhs: DimLike) -> Dim:
    """The result of an operation, or NotImplemented, so that the other operand gets its turn."""
    if isinstance(lhs, _LIKE) and isinstance(rhs, _LIKE):
        return wrap(operation(Dim(lhs)._native, rhs))
    return NotImplemented  # type: ignore[no-any-return]
