"""Devices, and the buffers that live on them.

>>> from max import driver
>>> from max.dtype import DType
>>> device = driver.CPU() if driver.accelerator_count() == 0 else driver.Accelerator()
>>> buffer = driver.Buffer.zeros([2, 3], DType.float32, device)
>>> buffer.num_elements
6
"""

from __future__ import annotations

from typing import Any

from max.driver.buffer import Buffer, DLPackArray, Tensor, batch_inplace_copy
from max.driver.device import CPU, Accelerator, Device, DeviceStream
from max.driver.spec import (
    DeviceSpec,
    accelerator_api,
    accelerator_architecture_name,
    accelerator_count,
    devices_exist,
    get_virtual_device_count,
    is_virtual_device_mode,
    load_devices,
    scan_available_devices,
    set_virtual_device_count,
)

__all__ = [
    "CPU",
    "Accelerator",
    "Buffer",
    "DLPackArray",
    "Device",
    "DeviceSpec",
    "DeviceStream",
    "Tensor",
    "accelerator_api",
    "accelerator_architecture_name",
    "accelerator_count",
    "batch_inplace_copy",
    "devices_exist",
    "get_virtual_device_count",
    "is_virtual_device_mode",
    "load_devices",
    "scan_available_devices",
    "set_virtual_device_count",
]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up lazily, like that of the package
        import max

        return max.__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
