"""Eager tensors: arrays that compute as you write.

>>> from max.driver import CPU
>>> from max.dtype import DType
>>> x = Tensor.ones((2, 3), dtype=DType.float32, device=CPU())
>>> y = Tensor.full((2, 3), 2, dtype=DType.float32, device=CPU())
>>> (x + y).to_numpy()
array([[3., 3., 3.],
       [3., 3., 3.]], dtype=float32)

An op outside any context has run when its call returns. See `max.experimental.realization_context` for how ops share
one program, or wait until somebody reads their results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Union

from max import _core
from max import dtype as _dtype
from max._native import native
from max.driver import CPU, Buffer, Device
from max.dtype import DType, has_numpy
from max.experimental import _indexing
from max.experimental import realization_context as _realization
from max.experimental._defaults import (
    as_like,
    contextvar_context,
    default_device,
    default_dtype,
    defaults,
    defaults_like,
    driver_tensor_type,
)
from max.experimental.realization_context import BARE, Done, EagerRealizationContext
from max.graph import type as _type
from max.graph import value as _value
from max.graph._building import stack
from max.graph._operators import Operators
from max.graph.shape import Shape, ShapeLike, dims
from max.graph.type import DeviceRef, TensorType
from max.graph.value import TensorValue

if TYPE_CHECKING:
    import numpy.typing as npt

    from max.driver import DLPackArray
    from max.graph.dim import Dim, DimLike

__all__ = [
    "ComputeGraph",
    "RealizationState",
    "Tensor",
    "contextvar_context",
    "default_device",
    "default_dtype",
    "defaults",
    "defaults_like",
    "driver_tensor_type",
    "realization_context",
]

Like = Union["Tensor", TensorValue, TensorType]
"""Anything with the dtype, shape and device of a tensor."""

_BARE = BARE._native


def call(op: str, *args: Any) -> Tensor:
    """Runs an op with one result, or records it in the current scope."""
    scopes = stack.get()
    if scopes:
        return _tensor(_core.op(scopes[-1]._native, op, args))
    if _realization._default is None:
        return _core.op(_BARE, op, args)  # type: ignore[no-any-return]
    with _realization.new_context():
        return call(op, *args)


def call_many(op: str, *args: Any) -> list[Tensor]:
    """Runs an op with several results, or records it in the current scope."""
    scopes = stack.get()
    if not scopes and _realization._default is not None:
        with _realization.new_context():
            return call_many(op, *args)
    return [_tensor(part) for part in _core.op(scopes[-1]._native if scopes else _BARE, op, args)]


def _tensor(result: Any) -> Tensor:
    """The result of an op as a tensor: an op without tensors among its operands returns a value in a graph."""
    return result if type(result) is Tensor else wrap(result._native)


def wrap(native: Any) -> Tensor:
    """The tensor for a native tensor or a native graph value."""
    tensor = object.__new__(Tensor)
    tensor._native = native if type(native) is _core.Tensor else _core.Tensor.from_value(native)
    return tensor


class Tensor(Operators):
    """An array of numbers, with the operators of numbers and NumPy arrays.

    A tensor is *real* if its elements are in memory. In a realization context it may be *pending*: it is computed when
    it is read in any way. While a graph is being built it may represent a value of that graph, which has no elements to
    read. Tensors are immutable; `x += 1` makes a new one.

    >>> x = Tensor([[1, 2], [3, 4]])
    >>> (x @ x.T + 1).to_numpy()
    array([[ 6., 12.],
           [12., 26.]], dtype=float32)
    >>> x[:, 0].sum().item()
    4.0

    Args:
        data: Numbers, nested lists of them, an array or a tensor, which is copied; or a graph value, which the tensor
            then represents. All but numbers and lists keep their dtype.
        dtype: The type of the elements. Numbers, tensors and graph values are converted to it; the dtype of an array
            must already match.
        device: The device of the tensor.
        storage: Instead of `data`: a buffer, which is shared.
        state: Instead of `data`: the `state` of a tensor.
        value: Instead of `data`: a value of a graph; the same as `from_graph_value`.
    """

    __slots__ = ("__weakref__", "_native")
    _native: Any
    _call = staticmethod(call)
    __array_priority__ = 1000

    def __init__(
        self,
        data: Any = None,
        *,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
        storage: Buffer | None = None,
        state: RealizationState | None = None,
        value: TensorValue | None = None,
    ) -> None:
        given = [part is not None for part in (data, storage, state, value)]
        if sum(given) != 1:
            raise TypeError("a Tensor is made from data, or from one of storage, state and value")
        if data is not None:
            self._native = _from_data(data, dtype, device)._native
            return
        if dtype is not None or device is not None:
            raise TypeError("only the data of a Tensor is converted to a dtype and device")
        if storage is not None:
            self._native = _core.Tensor.from_buffer(native(storage, _core.Buffer))
        elif state is not None:
            self._native = native(state, _core.Tensor)
        else:
            self._native = _core.Tensor.from_value(native(value, _core.Value))

    # --- creating tensors -----------------------------------------------------------------------------

    @classmethod
    def constant(
        cls,
        value: npt.NDArray[Any] | float | Sequence[Any],
        *,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
    ) -> Tensor:
        """A tensor of numbers: the same as `Tensor(value)`."""
        return cls(value, dtype=dtype, device=device)

    @classmethod
    def from_dlpack(cls, array: DLPackArray) -> Tensor:
        """A tensor that shares the memory of an array of another library, which must not be changed from then on.

        >>> import numpy as np
        >>> Tensor.from_dlpack(np.arange(3)).dtype
        int64
        """
        return cls(storage=Buffer.from_dlpack(array))

    @classmethod
    def from_graph_value(cls, value: TensorValue) -> Tensor:
        """A tensor that represents a value of a graph under construction. It has no elements to read."""
        return cls(value=value)

    @classmethod
    def from_tensor_value(cls, value: TensorValue) -> Tensor:
        """The old name of `from_graph_value`."""
        return cls(value=value)

    @classmethod
    def from_dim(cls, dim: DimLike) -> Tensor:
        """A dim as a tensor: a rank-0 int64 on the CPU. A symbolic dim needs a graph under construction.

        >>> Tensor.from_dim(3).item()
        3
        """
        from max.graph.dim import Dim, StaticDim

        known = Dim(dim)
        if isinstance(known, StaticDim):
            return cls(known.dim, dtype=DType.int64, device=CPU())
        return call("tensor", known)

    @classmethod
    def full(
        cls,
        shape: ShapeLike | DimLike,
        value: float,
        *,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
    ) -> Tensor:
        """A tensor filled with one number.

        >>> Tensor.full([2], 7).to_numpy()
        array([7., 7.], dtype=float32)
        """
        dtype, device = defaults(dtype, device)
        scopes = stack.get()
        if not scopes and _realization._default is not None:
            with _realization.new_context():
                return cls.full(shape, value, dtype=dtype, device=device)
        zeros = type(value) is int and value == 0  # new buffers are zeroed; -0.0 is a float, not an int
        # In a lazy scope it takes no memory until it is read, and device memory is filled by kernels.
        if (scopes and scopes[-1]._lazy) or not (zeros or device.is_host):
            number = _core.Buffer.scalar(value, dtype, device)
            return call("broadcast_to", _core.Tensor.from_buffer(number), dims(shape))
        sizes: Any = dims(shape)
        buffer = _core.Buffer(dtype, sizes, device)
        if not zeros:
            buffer.set(..., value)
        return wrap(_core.Tensor.from_buffer(buffer))

    @classmethod
    def zeros(
        cls,
        shape: ShapeLike | DimLike,
        *more: DimLike,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
    ) -> Tensor:
        """A tensor full of zeros. `Tensor.zeros(2, 3)` is the same as `Tensor.zeros([2, 3])`."""
        return cls.full(dims(shape, more), 0, dtype=dtype, device=device)

    @classmethod
    def ones(
        cls,
        shape: ShapeLike | DimLike,
        *more: DimLike,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
    ) -> Tensor:
        """A tensor full of ones. `Tensor.ones(2, 3)` is the same as `Tensor.ones([2, 3])`."""
        return cls.full(dims(shape, more), 1, dtype=dtype, device=device)

    @classmethod
    def full_like(cls, input: Like | None = None, value: float = 0, **renamed: Like) -> Tensor:
        """A tensor filled with one number, with the dtype, shape and device of another.

        Args:
            input: A tensor, or the type of one; `type` is its old name.
            value: The number.
            **renamed: `type`, and nothing else.
        """
        if set(renamed) - {"type"}:
            raise TypeError(f"full_like() got unexpected keyword arguments: {', '.join(renamed)}")
        like = _like(input, renamed.get("type"))
        return cls.full(like.shape, value, dtype=like.dtype, device=like.device)

    @classmethod
    def zeros_like(cls, input: Like | None = None, *, type: Like | None = None) -> Tensor:
        """A tensor full of zeros, with the dtype, shape and device of another.

        Args:
            input: A tensor, or the type of one.
            type: The old name of `input`.
        """
        return cls.full_like(_like(input, type), 0)

    @classmethod
    def ones_like(cls, input: Like | None = None, *, type: Like | None = None) -> Tensor:
        """A tensor full of ones, with the dtype, shape and device of another.

        Args:
            input: A tensor, or the type of one.
            type: The old name of `input`.
        """
        return cls.full_like(_like(input, type), 1)

    @classmethod
    def arange(
        cls,
        start: float | Dim = 0,
        stop: float | Dim | None = None,
        step: float = 1,
        out_dim: DimLike | None = None,
        *,
        dtype: DType | None = None,
        device: Device | DeviceRef | None = None,
    ) -> Tensor:
        """Evenly spaced numbers: `start`, `start + step` and so on, up to but not including `stop`.

        >>> Tensor.arange(5, dtype=DType.int32).to_numpy()
        array([0, 1, 2, 3, 4], dtype=int32)

        Args:
            start: The first number; if it is the only argument, the numbers start at 0 and this is `stop`.
            stop: The end, which is not included. If the step leads away from it, there are no numbers.
            step: The distance between numbers.
            out_dim: How many there are, if that is only known at run time.
            dtype: The type of the elements.
            device: The device of the tensor.
        """
        if stop is None:
            start, stop = 0, start
        dtype, device = defaults(dtype, device)
        if isinstance(start, Real) and isinstance(stop, Real) and isinstance(step, Real) and (stop - start) * step < 0:
            stop = start  # the step leads away from the stop
        return call("range", start, stop, step, out_dim, dtype, device)

    @classmethod
    def range_like(cls, input: Like) -> Tensor:
        """The numbers 0, 1, 2... along the last axis, with the dtype, shape and device of another tensor.

        >>> Tensor.range_like(Tensor.zeros([2, 3])).to_numpy()
        array([[0., 1., 2.],
               [0., 1., 2.]], dtype=float32)
        """
        input = as_like(input)
        if not input.shape:
            raise ValueError("a tensor of rank zero has no axis for a range")
        row = cls.arange(0, input.shape[-1], dtype=input.dtype, device=input.device)
        return row if len(input.shape) == 1 else row.broadcast_to(input.shape)

    # --- properties -----------------------------------------------------------------------------------

    @property
    def type(self) -> TensorType:
        """The dtype, shape and device, as a type of graphs."""
        return _type.wrap(self._native.type)  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return _dtype.wrap(self._native.dtype)

    @property
    def shape(self) -> Shape:
        """The sizes of the axes."""
        return Shape._wrap(self._native.type.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self._native.rank  # type: ignore[no-any-return]

    @property
    def device(self) -> Device:
        """The device of the tensor."""
        return Device._wrap(self._native.device)

    def num_elements(self) -> int:
        """The number of elements; 1 for rank 0."""
        return math.prod(self._native.shape)

    if TYPE_CHECKING:

        @property
        def size(self) -> int: ...
        def numel(self) -> int: ...

    # --- realization ----------------------------------------------------------------------------------

    @property
    def real(self) -> bool:
        """Whether the elements are in memory."""
        return self._native.state == "real"  # type: ignore[no-any-return]

    @property
    def realize(self) -> Done[Tensor]:
        """Computes the tensor if it is pending: `t.realize` is enough, `await t.realize` gives the tensor, and so does
        `asyncio.run(t.realize)`.

        Raises:
            TypeError: If it represents a value of a graph.
        """
        self._native.realize()
        return Done(self)

    @property
    def storage(self) -> Buffer | None:
        """The memory of a real tensor; None for any other."""
        buffer = self._native.buffer
        return None if buffer is None else Buffer._wrap(buffer)

    @property
    def state(self) -> RealizationState | None:
        """The state of a tensor that is not real; None for a real one."""
        return None if self.real else RealizationState(self)

    @property
    def driver_tensor(self) -> Buffer:
        """The memory of a real tensor, which must not be changed.

        Raises:
            TypeError: If the tensor is not real.
        """
        buffer = self._native.buffer
        if buffer is None:
            raise TypeError(f"a tensor that is not realized has no memory: {self.type}")
        return Buffer._wrap(buffer)

    # --- ops ------------------------------------------------------------------------------------------

    def to(
        self, target: Device | DeviceRef | None = None, *, device: Device | DeviceRef | None = None
    ) -> Tensor:
        """The tensor on a device; the tensor itself if it is already there.

        Args:
            target: The device.
            device: The old name of `target`.
        """
        place = target if device is None else device
        if (target is None) == (device is None):
            raise TypeError("to() takes a device")
        if DeviceRef.from_device(place) == self.type.device:  # type: ignore[arg-type]
            return self
        return call("transfer_to", self, place)

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if type(part) not in _indexing.BASIC:
                return _indexing.select(self, parts)
        return call("slice_tensor", self, parts)

    def transpose(self, dim1: int, dim2: int) -> Tensor:
        """The tensor with two axes swapped."""
        return call("transpose", self, dim1, dim2)

    def squeeze(self, axis: int) -> Tensor:
        """The tensor without an axis of size 1."""
        return call("squeeze", self, axis)

    def unsqueeze(self, axis: int) -> Tensor:
        """The tensor with a new axis of size 1, at a position in the new shape."""
        return call("unsqueeze", self, axis)

    def split(self, split_size_or_sections: int | Sequence[DimLike], axis: int = 0) -> list[Tensor]:
        """The tensor split along an axis.

        >>> [part.to_numpy().tolist() for part in Tensor.arange(5).split(2)]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]

        Args:
            split_size_or_sections: The size of all parts but the last, which may be smaller; or the size of each part.
            axis: The axis.
        """
        sizes: Any = split_size_or_sections
        if isinstance(sizes, Integral):
            sizes = int(sizes)
            if sizes <= 0:
                raise ValueError(f"a tensor is split into parts of a positive size, not of {sizes}")
            if not -self.rank <= axis < self.rank:
                raise IndexError(f"axis {axis} is out of range for a tensor of rank {self.rank}")
            length = int(self.shape[axis])
            sizes = [min(sizes, length - start) for start in range(0, length, sizes)] or [0]
        return call_many("split", self, dims(sizes), axis)

    def clip(self, *, min: Any = None, max: Any = None) -> Tensor:
        """Clamps the elements to the range from `min` to `max`.

        >>> Tensor([-3.0, 0.5, 3.0]).clip(min=0, max=1).to_numpy()
        array([0. , 0.5, 1. ], dtype=float32)
        """
        return call("clamp", self, min, max)

    # --- reading --------------------------------------------------------------------------------------

    def _read(self) -> Buffer:
        """The memory, computed first if the tensor is pending."""
        self._native.realize()
        return Buffer._wrap(self._native.buffer)

    def item(self) -> Any:
        """The only element, as a Python number.

        Raises:
            ValueError: If there are more, or none.
        """
        return self._native.item()

    def to_numpy(self) -> npt.NDArray[Any]:
        """A NumPy array. It shares the memory of a tensor on the CPU, so it must not be changed; a tensor on another
        device is copied.

        Raises:
            ValueError: If NumPy has no such dtype, as for bfloat16 and the floats of at most 8 bits.
        """
        return self._read().to(CPU()).to_numpy()

    def numpy(self) -> npt.NDArray[Any]:
        """PyTorch's name of `to_numpy`."""
        return self.to_numpy()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; for rank 0, the number itself.

        >>> Tensor([[1.0, 2.5]], dtype=DType.bfloat16).tolist()
        [[1.0, 2.5]]
        """
        exact = self if has_numpy(self.dtype) else self.cast(DType.float32)
        return exact.to_numpy().tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self._read().to(CPU()).__array__(dtype, copy)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Shares the memory with another library, which must not change it: see the DLPack protocol."""
        return self._read().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._read().__dlpack_device__()

    def __tensorvalue__(self) -> TensorValue:
        """The value that represents the tensor in the graph under construction."""
        return TensorValue(self)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._native.convert("bool"))

    def __int__(self) -> int:
        return int(self._native.convert("int"))

    def __float__(self) -> float:
        return float(self._native.convert("float"))

    def __complex__(self) -> complex:
        return complex(self._native.convert("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integral():
            raise TypeError(f"only tensors of integers can be used as an index, not {self.dtype}")
        return self._native.convert("int")  # type: ignore[no-any-return]

    def __len__(self) -> int:
        if not self._native.rank:
            raise TypeError("a tensor of rank zero has no length")
        return self._native.shape[0]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __copy__(self) -> Tensor:
        return wrap(self._native)  # tensors are immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        storage = self.storage
        return wrap(self._native) if storage is None else Tensor(storage=storage.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._read(),)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(self._native.convert(f"text in the format {spec!r}"), spec)

    def __repr__(self) -> str:
        return repr(self._native)


_value._SHELLS[_core.Tensor] = Tensor
_core.set_shell(_core.Tensor, Tensor)


def _unpickle(storage: Buffer) -> Tensor:
    return Tensor(storage=storage)


def _like(input: Like | None, type: Like | None) -> Like:
    """Whichever of the two is given."""
    if (input is None) == (type is None):
        raise TypeError("expected a tensor or the type of one")
    return as_like(input if type is None else type)


def _from_data(data: Any, dtype: DType | None, device: Device | DeviceRef | None) -> Tensor:
    """A tensor with its own copy of the data."""
    if isinstance(data, TensorValue):
        data = Tensor.from_graph_value(data)
    if isinstance(data, Tensor):
        kept = data if dtype is None else data.cast(dtype)
        return kept if device is None else kept.to(device)
    kind, place = defaults(dtype, device)
    if isinstance(data, (int, float)) and not hasattr(data, "dtype"):  # as some of NumPy's numbers have
        return wrap(_core.Tensor.from_buffer(_core.Buffer.scalar(data, kind._native, place)))
    if isinstance(data, (list, tuple)):
        import numpy as np

        return _moved(_core.op(_BARE, "constant", ([np.asarray(data)], kind, CPU())), place)
    tensor = Tensor(storage=_copied(data))
    if dtype is not None and kind is not tensor.dtype:
        import numpy as np

        if not isinstance(data, np.generic):  # a NumPy scalar is a number, although it has a dtype
            raise ValueError(f"DType must match: the array is {tensor.dtype!r}, not {kind!r}; use Tensor(array).cast")
        tensor = _core.op(_BARE, "cast", (tensor, kind))
    return _moved(tensor, place)


def _moved(tensor: Tensor, device: Device) -> Tensor:
    """A real tensor on a device."""
    buffer = tensor.driver_tensor
    return tensor if buffer.device == device else Tensor(storage=buffer.to(device))


def _copied(array: Any) -> Buffer:
    """A copy of the elements of an array, or of anything that NumPy converts to one."""
    if isinstance(array, Buffer):
        return array.copy()
    if not hasattr(array, "__array_interface__") and hasattr(array, "__dlpack__"):
        return Buffer.from_dlpack(array, copy=True)
    import numpy as np

    return Buffer.from_numpy(np.array(array, order="C"))


class RealizationState:
    """The state of a tensor that is not real: pending, or a value of a graph. `Tensor(state=...)` makes a tensor of it.

    Args:
        tensor: The tensor.
    """

    __slots__ = ("_native",)
    _native: _core.Tensor

    def __init__(self, tensor: Tensor) -> None:
        self._native = native(tensor, _core.Tensor)

    @property
    def value(self) -> TensorValue | None:
        """The value of a graph that the tensor represents, if any."""
        value = self._native.value
        return None if value is None else _value.wrap(value).tensor

    def __repr__(self) -> str:
        return f"RealizationState({self._native.state}, {self._native.type})"


@contextmanager
def realization_context(ctx: Any) -> Iterator[Any]:
    """A block whose ops go to a context: the same as `with ctx`.

    >>> from max.experimental.realization_context import LazyRealizationContext
    >>> with realization_context(LazyRealizationContext()):
    ...     x = Tensor([1.0]) + 1
    >>> x.real
    False
    """
    with ctx:
        yield ctx


class ComputeGraph:
    """Pending ops: the old name of an `EagerRealizationContext`.

    >>> compute = ComputeGraph()
    >>> with compute.graph:
    ...     x = Tensor([1.0]) + 1
    ...     len(compute.unrealized)
    1

    Args:
        context: Must be None.
        sources: Real tensors to keep, by any key.
        seed: If it is not zero, it becomes the seed of the random numbers of this process.
    """

    graph: EagerRealizationContext
    """The context that collects the ops."""
    sources: dict[Any, Tensor]
    """Real tensors that are kept."""

    def __init__(self, context: Any = None, sources: Any = (), seed: int = 0) -> None:
        if context is not None:
            raise NotImplementedError("tensors have no compiler context to share")
        self.graph = EagerRealizationContext()
        self.sources = dict(sources)
        if seed:
            _realization.set_seed(seed)

    @property
    def unrealized(self) -> list[Tensor]:
        """The pending tensors that somebody holds."""
        return self.graph.finalize_graph()

    def add_source(self, tensor: Tensor) -> None:
        """Keeps a real tensor.

        Raises:
            TypeError: If it is not real.
        """
        if not tensor.real:
            raise TypeError(f"a source is a tensor that is realized; this one is not: {tensor.type}")
        self.sources[id(tensor)] = tensor

    async def evaluate(self, tensor: Tensor) -> None:
        """Computes a tensor, and with it all other pending tensors that somebody holds."""
        self.graph.realize_all()
        await tensor.realize
