"""The values of a graph: what its inputs are, what ops take, and what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Union

from max import _core
from max import dtype as _dtype
from max.graph import type as _type
from max.graph._building import current_native
from max.graph.shape import Shape, ShapeLike, dims
from max.graph.type import BufferType, DeviceRef, TensorType, Type

if TYPE_CHECKING:
    import numpy as np

    from max.driver import Buffer, Device
    from max.dtype import DType
    from max.graph.dim import Dim

__all__ = ["BufferValue", "HasTensorValue", "TensorValue", "TensorValueLike", "Value"]

T = TypeVar("T", bound=Type[Any])


class HasTensorValue(Protocol):
    """An object that ops take as a tensor because it knows one."""

    def __tensorvalue__(self) -> TensorValue:
        """The tensor to use in its place."""
        ...


TensorValueLike: TypeAlias = Union[
    "Value[TensorType]",
    "TensorValue",
    Shape,
    "Dim",
    HasTensorValue,
    int,
    float,
    "np.integer[Any]",
    "np.floating[Any]",
    "np.ndarray[Any, Any]",
    "Buffer",
]
"""What ops take as a tensor. Numbers, arrays and buffers take the dtype of the tensors beside them."""


class Value(Generic[T]):
    """A value that exists while a graph runs: an input, or the result of an op.

    It has a type, but no data yet. Values are not made by hand: inputs come from `Graph.inputs`, others from ops.
    """

    __slots__ = ("__weakref__", "_native")
    _native: Any

    def __init__(self) -> None:
        raise TypeError("a Value comes from a graph's inputs or from an op")

    @property
    def type(self) -> T:
        """The type."""
        return _type.wrap(self._native.type)  # type: ignore[return-value]

    @property
    def tensor(self) -> TensorValue:
        """This value, which must be a tensor."""
        if isinstance(self, TensorValue):
            return self
        raise TypeError(f"Value is not a TensorValue: {self!r}")

    @property
    def buffer(self) -> BufferValue:
        """This value, which must be a buffer."""
        if isinstance(self, BufferValue):
            return self
        raise TypeError(f"Value is not a BufferValue: {self!r}")

    @property
    def opaque(self) -> _OpaqueValue:
        """This value, which must be opaque."""
        if isinstance(self, _OpaqueValue):
            return self
        raise TypeError(f"Value is not an _OpaqueValue: {self!r}")

    def __repr__(self) -> str:
        return repr(self._native)


class _ArrayValue(Value[T]):
    """What tensors and buffers have in common."""

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return _dtype.wrap(self._native.type.dtype)

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return Shape._wrap(self._native.type.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self._native.type.shape)

    @property
    def device(self) -> DeviceRef:
        """Where the elements are."""
        return DeviceRef._wrap(self._native.type.device)


class TensorValue(_ArrayValue[TensorType]):
    """A tensor that exists while a graph runs.

    It has the operators of numbers and of NumPy arrays, with numbers and arrays on either side, and the methods
    below; all other ops are in `max.graph.ops`. Comparisons are ops too, so two values are the same only by `is`.

    >>> from max.dtype import DType
    >>> from max.graph import Graph
    >>> with Graph("demo", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
    ...     x = graph.inputs[0].tensor
    ...     (x.T @ x / 2)[0, ::-1].type
    TensorType(dtype=float32, shape=[Dim(3)], device=cpu:0)

    Args:
        value: Anything ops take as a tensor, such as a value, a shape, a number or an array.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `array + value` to the value
    __iter__ = None
    __contains__ = None
    __hash__ = object.__hash__

    def __init__(self, value: TensorValueLike) -> None:
        self._native = _core.op(current_native(), "tensor", value)

    def cast(self, dtype: DType) -> TensorValue:
        """The elements converted to another dtype; the tensor itself if it has it."""
        return self if dtype is self.dtype else call("cast", self, dtype)

    def to(self, device: Device | DeviceRef) -> TensorValue:
        """The tensor on a device; itself if it is there."""
        return self if DeviceRef.from_device(device) == self.device else call("transfer_to", self, device)

    def print(self, label: str = "debug_tensor") -> None:
        """Writes the elements to standard output whenever the graph runs."""
        _core.op(current_native(), "print", self, label)

    def reshape(self, shape: ShapeLike) -> TensorValue:
        """The same elements in another shape; one dim may be -1 and is then worked out."""
        return call("reshape", self, dims(shape))

    def rebind(self, shape: ShapeLike, message: str = "") -> TensorValue:
        """The tensor with other dims of the same sizes, which is checked at run time.

        Args:
            shape: The dims.
            message: Shown if the check fails.
        """
        return call("rebind", self, dims(shape), message)

    def broadcast_to(self, shape: ShapeLike) -> TensorValue:
        """The tensor repeated to a larger shape: along new leading axes, and along axes of size 1."""
        return call("broadcast_to", self, dims(shape))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
        """The axes from `start_dim` to `end_dim`, both included, merged into one."""
        return call("flatten", self, start_dim, end_dim)

    def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
        """The tensor with two axes swapped."""
        return call("transpose", self, dim_1, dim_2)

    @property
    def T(self) -> TensorValue:
        """The tensor with its last two axes swapped."""
        return call("transpose", self, -1, -2)

    def permute(self, dims: list[int]) -> TensorValue:
        """The tensor with its axes in another order."""
        return call("permute", self, list(dims))

    def argmax(self, axis: int = -1) -> TensorValue:
        """Where the greatest elements are along an axis, whose size becomes 1."""
        return call("argmax", self, axis)

    def max(self, axis: int = -1) -> TensorValue:
        """The greatest elements along an axis, whose size becomes 1."""
        return call("reduce_max", self, axis)

    def min(self, axis: int = -1) -> TensorValue:
        """The least elements along an axis, whose size becomes 1."""
        return call("reduce_min", self, axis)

    def mean(self, axis: int = -1) -> TensorValue:
        """The mean along an axis, whose size becomes 1."""
        return call("mean", self, axis)

    def var(self, axis: int = -1) -> TensorValue:
        """The population variance along an axis, whose size becomes 1."""
        return call("var", self, axis)

    def stdev(self, axis: int = -1) -> TensorValue:
        """The population standard deviation along an axis, whose size becomes 1."""
        return call("stdev", self, axis)

    def __getitem__(self, index: Any) -> TensorValue:
        return call("slice_tensor", self, index if isinstance(index, tuple) else (index,))

    def __neg__(self) -> TensorValue:
        return call("negate", self)

    def __abs__(self) -> TensorValue:
        return call("abs", self)

    def __invert__(self) -> TensorValue:
        return call("logical_not", self)

    def __add__(self, rhs: TensorValueLike) -> TensorValue:
        return call("add", self, rhs)

    def __radd__(self, lhs: TensorValueLike) -> TensorValue:
        return call("add", lhs, self)

    def __sub__(self, rhs: TensorValueLike) -> TensorValue:
        return call("sub", self, rhs)

    def __rsub__(self, lhs: TensorValueLike) -> TensorValue:
        return call("sub", lhs, self)

    def __mul__(self, rhs: TensorValueLike) -> TensorValue:
        return call("mul", self, rhs)

    def __rmul__(self, lhs: TensorValueLike) -> TensorValue:
        return call("mul", lhs, self)

    def __truediv__(self, rhs: TensorValueLike) -> TensorValue:
        return call("div", self, rhs)

    def __rtruediv__(self, lhs: TensorValueLike) -> TensorValue:
        return call("div", lhs, self)

    def __floordiv__(self, rhs: TensorValueLike) -> TensorValue:
        return call("floor_div", self, rhs)

    def __rfloordiv__(self, lhs: TensorValueLike) -> TensorValue:
        return call("floor_div", lhs, self)

    def __mod__(self, rhs: TensorValueLike) -> TensorValue:
        return call("mod", self, rhs)

    def __rmod__(self, lhs: TensorValueLike) -> TensorValue:
        return call("mod", lhs, self)

    def __pow__(self, rhs: TensorValueLike) -> TensorValue:
        return call("pow", self, rhs)

    def __rpow__(self, lhs: TensorValueLike) -> TensorValue:
        return call("pow", lhs, self)

    def __matmul__(self, rhs: TensorValueLike) -> TensorValue:
        return call("matmul", self, rhs)

    def __rmatmul__(self, lhs: TensorValueLike) -> TensorValue:
        return call("matmul", lhs, self)

    def __and__(self, rhs: TensorValueLike) -> TensorValue:
        return call("logical_and", self, rhs)

    def __rand__(self, lhs: TensorValueLike) -> TensorValue:
        return call("logical_and", lhs, self)

    def __or__(self, rhs: TensorValueLike) -> TensorValue:
        return call("logical_or", self, rhs)

    def __ror__(self, lhs: TensorValueLike) -> TensorValue:
        return call("logical_or", lhs, self)

    def __xor__(self, rhs: TensorValueLike) -> TensorValue:
        return call("logical_xor", self, rhs)

    def __rxor__(self, lhs: TensorValueLike) -> TensorValue:
        return call("logical_xor", lhs, self)

    def __eq__(self, rhs: TensorValueLike) -> TensorValue:  # type: ignore[override]
        return call("equal", self, rhs)

    def __ne__(self, rhs: TensorValueLike) -> TensorValue:  # type: ignore[override]
        return call("not_equal", self, rhs)

    def __gt__(self, rhs: TensorValueLike) -> TensorValue:
        return call("greater", self, rhs)

    def __ge__(self, rhs: TensorValueLike) -> TensorValue:
        return call("greater_equal", self, rhs)

    def __lt__(self, rhs: TensorValueLike) -> TensorValue:
        return call("greater", rhs, self)

    def __le__(self, rhs: TensorValueLike) -> TensorValue:
        return call("greater_equal", rhs, self)


class BufferValue(_ArrayValue[BufferType]):
    """A tensor that exists while a graph runs and can be changed in place.

    Args:
        value: A value that is a buffer.
    """

    __slots__ = ()

    def __init__(self, value: Value[Any]) -> None:
        self._native = value.buffer._native


class _OpaqueValue(Value[Any]):
    """A value that only custom ops look into."""

    __slots__ = ()


_KINDS: dict[str, type[Value[Any]]] = {"tensor": TensorValue, "buffer": BufferValue, "opaque": _OpaqueValue}


def wrap(native: _core.Value) -> Value[Any]:
    """The value for a native one."""
    value = object.__new__(_KINDS[native.type.kind])
    value._native = native
    return value


def call(op: str, *args: Any) -> TensorValue:
    """Records an op that gives one tensor."""
    return _tensor(_core.op(current_native(), op, *args))


def call_many(op: str, *args: Any) -> list[TensorValue]:
    """Records an op that gives several tensors."""
    return [_tensor(native) for native in _core.op(current_native(), op, *args)]


def _tensor(native: _core.Value) -> TensorValue:
    value = object.__new__(TensorValue)
    value._native = native
    return value
