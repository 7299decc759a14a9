"""The values of a graph: its inputs, and the operands and results of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Union

from max import _core
from max import dtype as _dtype
from max.graph import type as _type
from max.graph._building import current_native, stack
from max.graph._operators import Operators
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
    """An object that ops accept as a tensor."""

    def __tensorvalue__(self) -> TensorValue:
        """The tensor that it stands for."""
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
"""What ops accept as a tensor. Numbers, arrays and buffers take the dtype of the tensors they are combined with."""


_READING = frozenset({"item", "numpy", "to_numpy", "tolist"})
"""Methods of tensors that graph values cannot have."""

_SHELLS: dict[Any, Any] = {}
"""The class for the results of ops, by their native class."""


def call(op: str, *args: Any) -> TensorValue:
    """Runs or records an op with one result, in the innermost scope; raises LookupError if there is none."""
    scopes = stack.get()
    return _core.op(scopes[-1]._native if scopes else None, op, args)  # type: ignore[no-any-return]


def call_many(op: str, *args: Any) -> list[TensorValue]:
    """Runs or records an op with several results."""
    return _core.op(current_native(), op, args)  # type: ignore[no-any-return]


def wrap_result(native: Any) -> TensorValue:
    """The object for the native result of an op: a graph value or a tensor."""
    result: TensorValue = object.__new__(_SHELLS[type(native)])
    result._native = native
    return result


class Value(Generic[T]):
    """A value that exists while a graph runs: an input, or the result of an op.

    It has a type, but no data yet. Values cannot be created directly: they come from `Graph.inputs` and from ops.
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
        """The device of the elements."""
        return DeviceRef._wrap(self._native.type.device)


class TensorValue(Operators, _ArrayValue[TensorType]):
    """A tensor that exists while a graph runs.

    It has the operators of numbers and NumPy arrays, with numbers and arrays on either side, and the methods below; all
    other ops are in `max.graph.ops`. Comparisons are ops too, so use `is` to test whether two values are the same.

    >>> from max.dtype import DType
    >>> from max.graph import Graph
    >>> with Graph("demo", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
    ...     x = graph.inputs[0].tensor
    ...     (x.T @ x / 2)[0, ::-1].type
    TensorType(dtype=float32, shape=[Dim(3)], device=cpu:0)

    Args:
        value: Anything that ops accept as a tensor, such as a value, a shape, a number or an array.
    """

    __slots__ = ()
    __iter__ = None
    _call = staticmethod(call)

    def __init__(self, value: TensorValueLike) -> None:
        native = _core.op(current_native(), "tensor", (value,))._native
        self._native = getattr(native, "value", native)  # for a tensor, the value that represents it in the graph
        if self._native is None:
            raise TypeError(f"no graph is being built here, so {type(value).__name__} has no value in one")

    def __getattr__(self, name: str) -> Any:
        if name in _READING:
            raise AttributeError(f"a value of a graph has no elements to read with {name} before the graph runs")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("a value of a graph has no elements to make an array of before the graph runs")

    def to(self, device: Device | DeviceRef) -> TensorValue:
        """The tensor on a device; the tensor itself if it is already there."""
        return self if DeviceRef.from_device(device) == self.device else call("transfer_to", self, device)

    def print(self, label: str = "debug_tensor") -> None:
        """Prints the elements whenever the graph runs."""
        _core.op(current_native(), "print", (self, label))

    def rebind(self, shape: ShapeLike, message: str = "") -> TensorValue:
        """The tensor with different dims, whose sizes are checked to be the same at run time.

        Args:
            shape: The dims.
            message: Shown if the check fails.
        """
        return call("rebind", self, dims(shape), message)

    def transpose(self, dim_1: int, dim_2: int) -> TensorValue:
        """The tensor with two axes swapped."""
        return call("transpose", self, dim_1, dim_2)


class BufferValue(_ArrayValue[BufferType]):
    """A tensor that exists while a graph runs and can be changed in place.

    Args:
        value: A value that is a buffer.
    """

    __slots__ = ()

    def __init__(self, value: Value[Any]) -> None:
        if not isinstance(value, Value):
            raise TypeError(f"a BufferValue is made from a value of a graph; got {type(value).__name__}")
        self._native = value.buffer._native

    def __getitem__(self, index: Any) -> TensorValue:
        """The contents at this point, or part of them."""
        loaded = call("buffer_load", self)
        return loaded if index is Ellipsis else loaded[index]

    def __setitem__(self, index: Any, source: TensorValueLike) -> None:
        """Replaces the contents, or part of them."""
        if index is Ellipsis:
            _core.op(current_native(), "buffer_store", (self, source))
        else:
            indices = index if isinstance(index, tuple) else (index,)
            _core.op(current_native(), "buffer_store_slice", (self, source, indices))

    def print(self, label: str = "debug_buffer") -> None:
        """Prints the contents at this point, whenever the graph runs."""
        call("buffer_load", self).print(label)


class _OpaqueValue(Value[Any]):
    """A value that only custom ops understand."""

    __slots__ = ()


_KINDS: dict[str, type[Value[Any]]] = {"tensor": TensorValue, "buffer": BufferValue, "opaque": _OpaqueValue}


def wrap(native: _core.Value) -> Value[Any]:
    """The value for a native one."""
    value = object.__new__(_KINDS[native.type.kind])
    value._native = native
    return value


_SHELLS[_core.Value] = TensorValue
_core.set_shell(_core.Value, TensorValue)
