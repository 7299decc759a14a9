"""The types of graph values, and the devices and layouts in them."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from max import _core
from max import dtype as _dtype
from max._native import native
from max.driver import Device
from max.graph.shape import Shape, ShapeLike

if TYPE_CHECKING:
    from max.dtype import DType

__all__ = [
    "BufferType",
    "ConvInputLayout",
    "DeviceKind",
    "DeviceRef",
    "FilterLayout",
    "TensorType",
    "Type",
]

T = TypeVar("T")
A = TypeVar("A", bound="_ArrayType")


class DeviceKind(Enum):
    """A kind of device."""

    CPU = "cpu"
    GPU = "gpu"

    @staticmethod
    def from_string(txt: str) -> DeviceKind:
        """The kind with the given name; raises ValueError if there is none."""
        return DeviceKind(txt)

    def __str__(self) -> str:
        return self.value


class DeviceRef:
    """A graph's reference to a device, whether or not this machine has it.

    Functions that take a device also take its name, such as `"cpu"` or `"gpu:1"`.

    >>> DeviceRef.GPU(1)
    gpu:1
    >>> DeviceRef.CPU().to_device()
    Device(type=cpu,id=0)

    Args:
        device_type: The kind of device.
        id: Its number among those of its kind.
    """

    __slots__ = ("_native", "device_type", "id")
    _native: _core.DeviceRef
    device_type: DeviceKind
    id: int

    def __init__(self, device_type: DeviceKind | str, id: int = 0) -> None:
        kind = DeviceKind(device_type)
        object.__setattr__(self, "_native", _core.DeviceRef(kind.value, id))
        object.__setattr__(self, "device_type", kind)
        object.__setattr__(self, "id", id)

    @staticmethod
    def CPU(id: int = 0) -> DeviceRef:
        """The CPU."""
        return DeviceRef(DeviceKind.CPU, id)

    @staticmethod
    def GPU(id: int = 0) -> DeviceRef:
        """A GPU."""
        return DeviceRef(DeviceKind.GPU, id)

    @staticmethod
    def from_device(device: Device | DeviceRef | str) -> DeviceRef:
        """The reference to a device, or to the one with a name; a `DeviceRef` is returned as it is."""
        if isinstance(device, DeviceRef):
            return device
        if isinstance(device, str):
            return DeviceRef._wrap(_core.DeviceRef.parse(device))
        return DeviceRef._wrap(native(device, _core.Device).ref)

    @staticmethod
    def _wrap(native: _core.DeviceRef) -> DeviceRef:
        return DeviceRef(native.kind, native.id)

    def to_device(self) -> Device:
        """The device of this machine that it refers to; raises an error if there is none."""
        return Device._wrap(_core.Device.from_ref(self._native))

    def is_cpu(self) -> bool:
        """Whether it refers to a CPU."""
        return self.device_type is DeviceKind.CPU

    def is_gpu(self) -> bool:
        """Whether it refers to a GPU."""
        return self.device_type is DeviceKind.GPU

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a DeviceRef is immutable: cannot set {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceRef):
            return NotImplemented
        return self.device_type is other.device_type and self.id == other.id

    def __hash__(self) -> int:
        return hash((self.device_type, self.id))

    def __str__(self) -> str:
        return f"{self.device_type}:{self.id}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceRef, (self.device_type, self.id)


class FilterLayout(Enum):
    """The order of a convolution filter's axes: filter rows R and columns S (and planes Q), channels in C and out F."""

    RSCF = "RSCF"
    QRSCF = "QRSCF"
    FCRS = "FCRS"
    FCQRS = "FCQRS"
    CFRS = "CFRS"


class ConvInputLayout(Enum):
    """The order of a convolution input's axes: batch N, height H, width W, channels C."""

    NHWC = "NHWC"
    NCHW = "NCHW"


class Type(Generic[T]):
    """The type of a graph value: a `TensorType`, a `BufferType`, or that of an opaque value.

    Types with equal parts are equal.
    """

    __slots__ = ("_native",)
    _native: _core.Type

    def __init__(self) -> None:
        raise TypeError("a Type is a TensorType or a BufferType")

    @property
    def _parts(self) -> tuple[Any, ...]:
        """The arguments of its constructor."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, Type) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._native)

    def __repr__(self) -> str:
        return repr(self._native)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts


class _ArrayType(Type[Any]):
    """What tensors and buffers have in common."""

    __slots__ = ("_device", "_dtype", "_shape")
    _dtype: DType
    _shape: Shape
    _device: DeviceRef

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> Shape:
        """The sizes of the axes, as a new list."""
        return Shape(self._shape)

    @property
    def device(self) -> DeviceRef:
        """The device of the elements."""
        return self._device

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self._shape)

    def num_elements(self) -> int:
        """The number of elements.

        Raises:
            RuntimeError: If it is only known at run time.
        """
        sizes = self._shape.static_dims
        if len(sizes) != self.rank:
            raise RuntimeError(f"the number of elements of {self!r} depends on its symbolic dims")
        return math.prod(sizes)

    def cast(self: A, dtype: DType) -> A:
        """The same type with another dtype.

        >>> from max.dtype import DType
        >>> TensorType(DType.float32, ["batch", 3]).cast(DType.bfloat16)
        TensorType(dtype=bfloat16, shape=[Dim('batch'), Dim(3)], device=cpu:0)
        """
        _, *rest = self._parts
        return type(self)(dtype, *rest)

    def to(self: A, device: Device | DeviceRef) -> A:
        """The same type on another device.

        >>> from max.dtype import DType
        >>> TensorType(DType.float32, [3]).to(DeviceRef.GPU(1)).device
        gpu:1
        """
        dtype, shape, _, *rest = self._parts
        return type(self)(dtype, shape, device, *rest)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self._dtype, self._shape, self._device


class TensorType(_ArrayType):
    """The type of a tensor: its dtype, shape and device.

    >>> from max.dtype import DType
    >>> TensorType(DType.float32, ["batch", 3])
    TensorType(dtype=float32, shape=[Dim('batch'), Dim(3)], device=cpu:0)

    Args:
        dtype: The type of the elements.
        shape: The sizes of the axes: ints, names of symbolic dims, or dims.
        device: The device of the tensor; by default the CPU.
        _layout: The order of the axes, if it is the filter of a convolution.

    Raises:
        TypeError: If a static dim is negative.
    """

    __slots__ = ()

    def __init__(
        self,
        dtype: DType,
        shape: ShapeLike,
        device: Device | DeviceRef | None = None,
        _layout: FilterLayout | None = None,
    ) -> None:
        self._dtype, self._shape = _dtype.as_dtype(dtype), Shape(shape)
        self._device = DeviceRef.CPU() if device is None else DeviceRef.from_device(device)
        layout = None if _layout is None else FilterLayout(_layout).value
        self._native = _core.Type.tensor(self._dtype, self._shape, self._device._native, layout)

    @property
    def _layout(self) -> FilterLayout | None:
        return None if self._native.layout is None else FilterLayout(self._native.layout)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return *super()._parts, self._layout

    def as_buffer(self) -> BufferType:
        """The type of a buffer with the same dtype, shape and device."""
        return BufferType(self._dtype, self._shape, self._device)


class BufferType(_ArrayType):
    """The type of a buffer: a tensor that can be changed in place.

    Args:
        dtype: The type of the elements.
        shape: The sizes of the axes: ints, names of symbolic dims, or dims.
        device: The device of the buffer; by default the CPU.
    """

    __slots__ = ()

    def __init__(
        self, dtype: DType, shape: ShapeLike, device: Device | DeviceRef | None = None
    ) -> None:
        self._dtype, self._shape = _dtype.as_dtype(dtype), Shape(shape)
        self._device = DeviceRef.CPU() if device is None else DeviceRef.from_device(device)
        self._native = _core.Type.buffer(self._dtype, self._shape, self._device._native)

    def as_tensor(self) -> TensorType:
        """The type of a tensor with the same dtype, shape and device."""
        return TensorType(self._dtype, self._shape, self._device)


class _OpaqueType(Type[Any]):
    """The type of a value that only custom ops understand.

    Args:
        name: The name of the type.
    """

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._native = _core.Type.opaque(name)

    @property
    def name(self) -> str:
        """The name of the type."""
        return self._native.name

    @property
    def _parts(self) -> tuple[Any, ...]:
        return (self.name,)


_ARRAYS: dict[str, type[_ArrayType]] = {"tensor": TensorType, "buffer": BufferType}


def wrap(native: _core.Type) -> Type[Any]:
    """The type for a native one."""
    if native.kind == "opaque":
        return _OpaqueType(native.name)
    array = object.__new__(_ARRAYS[native.kind])
    array._native = native
    array._dtype = _dtype.wrap(native.dtype)
    array._shape = Shape._wrap(native.shape)
    array._device = DeviceRef._wrap(native.device)
    return array
