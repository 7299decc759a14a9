"""Which devices exist, and the specifications by which they are requested."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from max import _core
from max.driver.device import CPU, Accelerator, Device


class DeviceSpec(NamedTuple):
    """The specification of a device, which may or may not exist.

    >>> DeviceSpec.accelerator(1)
    DeviceSpec(id=1, device_type='gpu')
    """

    id: int
    """The number of the device; -1 for the first one."""
    device_type: Literal["cpu", "gpu"] = "cpu"
    """The kind of device."""

    @staticmethod
    def cpu(id: int = -1) -> DeviceSpec:
        """The specification of the CPU."""
        return DeviceSpec(id, "cpu")

    @staticmethod
    def accelerator(id: int = 0) -> DeviceSpec:
        """The specification of an accelerator."""
        return DeviceSpec(id, "gpu")


def accelerator_count() -> int:
    """The number of accelerators of this machine, or of virtual devices."""
    return _core.accelerator_count()


def accelerator_api() -> str:
    """The API that programs the accelerators of this machine; "virtual" for virtual devices."""
    return _core.accelerator_api()


def accelerator_architecture_name() -> str:
    """The architecture of the first accelerator; raises RuntimeError if there is none, or if it is virtual."""
    return _core.accelerator_architecture_name()


def devices_exist(devices: Iterable[DeviceSpec]) -> bool:
    """Whether this machine has all the specified devices."""
    count = accelerator_count()
    return all(
        spec.device_type == "cpu" or (spec.device_type == "gpu" and max(spec.id, 0) < count) for spec in devices
    )


def load_devices(device_specs: Iterable[DeviceSpec]) -> list[Device]:
    """The specified devices, in order; raises an error if one does not exist."""
    return [_load(spec) for spec in device_specs]


def _load(spec: DeviceSpec) -> Device:
    if spec.device_type not in ("cpu", "gpu"):
        raise ValueError(f"the type of a device is 'cpu' or 'gpu', not {spec.device_type!r}")
    return CPU(spec.id) if spec.device_type == "cpu" else Accelerator(spec.id)


def scan_available_devices() -> list[DeviceSpec]:
    """The specifications of all accelerators, or of the CPU if there are none."""
    return [DeviceSpec.accelerator(id) for id in range(accelerator_count())] or [DeviceSpec.cpu()]


def set_virtual_device_count(count: int) -> None:
    """Makes accelerators virtual devices: they answer as `gpu:0` to `gpu:count - 1`, and run on the host.

    Each has memory of its own, so that programs for several GPUs can be tested on any machine. The count may change at any
    time. With 0, accelerators are the machine's GPUs, as they are at first; but a process uses either GPUs or virtual
    devices, whichever it opens first.

    Args:
        count: The number of virtual devices.

    Raises:
        ValueError: If the count is negative or too large.
        RuntimeError: If a GPU has been opened already.
    """
    _core.set_virtual_device_count(count)


def get_virtual_device_count() -> int:
    """The number of virtual devices; 0 if accelerators are the machine's GPUs."""
    return _core.get_virtual_device_count()


def is_virtual_device_mode() -> bool:
    """Whether accelerators are virtual devices."""
    return get_virtual_device_count() > 0
