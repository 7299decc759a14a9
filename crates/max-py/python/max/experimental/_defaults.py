"""The default dtype and device of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from max.driver import CPU, Accelerator, Device, accelerator_count, get_virtual_device_count
from max.dtype import DType, as_dtype
from max.graph.type import DeviceRef, TensorType

if TYPE_CHECKING:
    from max.driver import Buffer
    from max.experimental.tensor import Tensor
    from max.graph.value import TensorValue

T = TypeVar("T")

_dtype: ContextVar[DType | None] = ContextVar("max.experimental default dtype", default=None)
_device: ContextVar[Device | None] = ContextVar("max.experimental default device", default=None)


@cache
def _machine_device(virtual_devices: int) -> Device:
    """The first accelerator of this machine with that many virtual devices, or its CPU."""
    return Accelerator() if accelerator_count() else CPU()


def as_device(device: Device | DeviceRef | str) -> Device:
    """The device that a device, a reference or a name stands for."""
    if isinstance(device, Device):
        return device
    if isinstance(device, (DeviceRef, str)):
        return DeviceRef.from_device(device).to_device()
    raise TypeError(f"expected a device, got {type(device).__name__}: {device!r}")


def as_like(like: Any) -> Any:
    """The argument, checked to have a dtype like a tensor."""
    if isinstance(getattr(like, "dtype", None), DType):
        return like
    raise TypeError(f"expected a tensor or the type of one, got {type(like).__name__}: {like!r}")


def defaults(dtype: DType | None = None, device: Device | DeviceRef | None = None) -> tuple[DType, Device]:
    """The dtype and device of a tensor, with the defaults in place of None.

    The default device is an accelerator if there is one, otherwise the CPU; the default dtype is float32 on the CPU and
    bfloat16 on accelerators. `default_device` and `default_dtype` change them.

    >>> from max.driver import CPU
    >>> defaults(device=CPU())
    (float32, Device(type=cpu,id=0))
    """
    place = (_device.get() or _machine_device(get_virtual_device_count())) if device is None else as_device(device)
    if dtype is None:
        return _dtype.get() or (DType.float32 if place.is_host else DType.bfloat16), place
    return as_dtype(dtype), place


@contextmanager
def contextvar_context(var: ContextVar[T], value: T) -> Iterator[T]:
    """A block in which a context variable has a value.

    >>> from contextvars import ContextVar
    >>> depth = ContextVar("depth", default=0)
    >>> with contextvar_context(depth, 1):
    ...     depth.get()
    1
    >>> depth.get()
    0
    """
    token = var.set(value)
    try:
        yield value
    finally:
        var.reset(token)


def default_device(device: Device | DeviceRef) -> AbstractContextManager[Any]:
    """A block in which tensors are created on a device by default.

    >>> from max.driver import CPU
    >>> from max.experimental.tensor import Tensor
    >>> with default_device(CPU()):
    ...     Tensor.ones([2]).device
    Device(type=cpu,id=0)
    """
    return contextvar_context(_device, as_device(device))


def default_dtype(dtype: DType) -> AbstractContextManager[Any]:
    """A block in which tensors are created with a dtype by default.

    >>> from max.experimental.tensor import Tensor
    >>> with default_dtype(DType.float64):
    ...     Tensor.ones([2]).dtype
    float64
    """
    return contextvar_context(_dtype, as_dtype(dtype))


@contextmanager
def defaults_like(like: Tensor | TensorValue | TensorType | Buffer) -> Iterator[None]:
    """A block in which tensors are created with the dtype and on the device of another by default.

    >>> from max.driver import CPU
    >>> from max.experimental.tensor import Tensor
    >>> x = Tensor.ones([2], dtype=DType.int32, device=CPU())
    >>> with defaults_like(x):
    ...     Tensor(3).dtype
    int32
    """
    like = as_like(like)
    with default_dtype(like.dtype), default_device(like.device):
        yield


def driver_tensor_type(t: Buffer) -> TensorType:
    """The type of a tensor with the dtype and shape of a buffer, on its device.

    >>> from max.driver import Buffer
    >>> driver_tensor_type(Buffer(DType.int8, [2, 3]))
    TensorType(dtype=int8, shape=[Dim(2), Dim(3)], device=cpu:0)
    """
    t = as_like(t)
    return TensorType(t.dtype, t.shape, t.device)
