"""Devices and the streams of work on them."""

from __future__ import annotations

from typing import Any

from max import _core
from max._native import native


class Device:
    """A device that holds buffers and runs models, created by `CPU` or `Accelerator`.

    Two objects for the same device are equal.

    >>> Device.cpu() == CPU()
    True
    >>> print(CPU())
    Device(type=cpu,id=0)
    """

    __slots__ = ("_native",)
    _native: _core.Device

    def __init__(self) -> None:
        raise TypeError("a Device is created by CPU() or Accelerator()")

    @staticmethod
    def _wrap(native: _core.Device) -> Device:
        device: Device = object.__new__(CPU if native.label == "cpu" else Accelerator)
        device._native = native
        return device

    @staticmethod
    def cpu(id: int = -1) -> Device:
        """The CPU of this machine."""
        return CPU(id)

    @property
    def id(self) -> int:
        """The number of the device among those with its label, counted from 0; the CPU is always 0."""
        return self._native.id

    @property
    def label(self) -> str:
        """`"cpu"` for the host, `"gpu"` for accelerators."""
        return self._native.label

    @property
    def api(self) -> str:
        """The API that programs the device, such as `"cpu"` or `"cuda"`."""
        return self._native.api

    @property
    def architecture_name(self) -> str:
        """The architecture of an accelerator, such as `"sm_90"`; raises RuntimeError for the CPU."""
        return self._native.architecture_name

    @property
    def model_name(self) -> str:
        """The vendor's name for the device."""
        return self._native.model_name

    @property
    def max_single_alloc_size(self) -> int:
        """The most bytes that one buffer on the device may have."""
        return self._native.max_single_alloc_size

    @property
    def is_host(self) -> bool:
        """Whether this is the CPU."""
        return self._native.is_host

    @property
    def is_host_unified(self) -> bool:
        """Whether the device uses the host's memory."""
        return self._native.is_host_unified

    @property
    def is_compatible(self) -> bool:
        """Whether models can run on the device."""
        return self._native.is_compatible

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics about the device's use, by name."""
        return self._native.stats

    @property
    def default_stream(self) -> DeviceStream:
        """The stream on which work runs unless another is chosen."""
        return DeviceStream._wrap(self._native.default_stream())

    @property
    def default_queue(self) -> DeviceStream:
        """The newer name of `default_stream`."""
        return self.default_stream

    def can_access(self, other: Device) -> bool:
        """Whether this device can access the memory of another without a copy."""
        return self._native.can_access(native(named(other), _core.Device))

    def synchronize(self) -> None:
        """Waits until all work on the device is done."""
        self._native.synchronize()

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._native)

    def __str__(self) -> str:
        return str(self._native)

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id,)


def named(device: Any) -> Any:
    """The device with a name such as `"cpu"` or `"gpu:0"`; any other object as it is."""
    return Device._wrap(_core.Device.from_ref(_core.DeviceRef.parse(device))) if isinstance(device, str) else device


class CPU(Device):
    """The CPU of this machine.

    >>> CPU().id
    0

    Args:
        id: Has no effect: there is one CPU, whose id is 0.
    """

    __slots__ = ()

    def __init__(self, id: int = -1) -> None:
        self._native = _core.Device.cpu()


class Accelerator(Device):
    """A GPU.

    Args:
        id: The number of the accelerator; if negative, the first one.

    Raises:
        RuntimeError: If there is no such accelerator.
    """

    __slots__ = ()

    def __init__(self, id: int = -1) -> None:
        self._native = _core.Device.accelerator(None if id < 0 else id)


class DeviceStream:
    """A queue of work on a device, which runs in the order of submission.

    Streams of one device may run concurrently; `wait_for` makes one wait for another.

    >>> stream = DeviceStream(CPU())
    >>> stream.wait_for(CPU().default_stream)

    Args:
        device: The device to run on.
    """

    __slots__ = ("_native",)
    _native: _core.Stream

    def __init__(self, device: Device) -> None:
        self._native = _core.Stream(native(named(device), _core.Device))

    @staticmethod
    def _wrap(native: _core.Stream) -> DeviceStream:
        stream = object.__new__(DeviceStream)
        stream._native = native
        return stream

    @property
    def device(self) -> Device:
        """The device it runs on."""
        return Device._wrap(self._native.device)

    def synchronize(self) -> None:
        """Waits until all work on the stream is done."""
        self._native.synchronize()

    def wait_for(
        self, stream: DeviceStream | Device | None = None, device: Device | None = None
    ) -> None:
        """Makes later work on this stream wait until the work already submitted to another is done.

        Args:
            stream: The other stream; for a device, its default stream.
            device: Instead of `stream`: a device.
        """
        other = named(device if stream is None else stream)
        if isinstance(other, Device):
            other = other.default_stream
        self._native.wait_for(native(other, _core.Stream))

    def __eq__(self, other: object) -> bool:
        return self._native == other._native if isinstance(other, DeviceStream) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return f"DeviceStream({self.device})"
