"""Devices, device specs and streams."""

import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer, Device, DeviceSpec, DeviceStream
from max.dtype import DType

from helpers import REFUSED

without_gpu = pytest.mark.skipif(driver.accelerator_count() > 0, reason="an accelerator is present")


def test_cpu_properties() -> None:
    cpu = CPU()
    assert isinstance(cpu, Device)
    assert cpu.label == "cpu"
    assert cpu.api == "cpu"
    assert cpu.id == 0
    assert cpu.is_host is True
    assert cpu.is_compatible is True
    assert isinstance(cpu.stats, dict)
    assert isinstance(cpu.can_access(cpu), bool)
    assert cpu.synchronize() is None


def test_most_bytes_of_one_buffer() -> None:
    most = CPU().max_single_alloc_size
    assert isinstance(most, int)
    assert most == CPU().stats.get("total_memory", most) > 1 << 20


def test_version() -> None:
    import max

    assert driver.__version__ == max.__version__ and driver.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="has no attribute 'versions'"):
        driver.versions  # noqa: B018


def test_cpu_has_no_architecture_name() -> None:
    with pytest.raises(REFUSED):
        CPU().architecture_name  # noqa: B018


def test_all_cpus_are_the_same() -> None:
    assert CPU() == CPU() == CPU(id=0) == Device.cpu()
    assert CPU(id=-1).id == 0


def test_device_printing() -> None:
    assert str(CPU()) == repr(CPU()) == "Device(type=cpu,id=0)"


@without_gpu
def test_no_accelerator_here() -> None:
    assert driver.accelerator_count() == 0
    for make in (Accelerator, lambda: Accelerator(id=0), lambda: Accelerator(id=7)):
        with pytest.raises(REFUSED) as caught:
            make()
        assert "gpu" in str(caught.value).lower() or "accelerator" in str(caught.value).lower()


@without_gpu
def test_why_there_is_no_accelerator() -> None:
    with pytest.raises(RuntimeError) as caught:
        Accelerator(3)
    reason = str(caught.value)
    assert "gpu:3" in reason and "CPU" in reason
    if "could not be loaded" in reason:
        assert "libcuda.so.1" in reason and "install the NVIDIA driver" in reason
    assert driver.accelerator_api() == "cpu"
    with pytest.raises(RuntimeError):
        driver.accelerator_architecture_name()
    assert not driver.devices_exist([DeviceSpec.accelerator()])


@without_gpu
def test_pinned_memory_without_an_accelerator_is_ordinary() -> None:
    buffer = Buffer(DType.float32, [2], pinned=True)
    assert buffer.pinned is False and buffer.is_host
    assert buffer.to_numpy().tolist() == [0, 0]


def test_device_spec() -> None:
    assert (DeviceSpec(id=0).id, DeviceSpec(id=0).device_type) == (0, "cpu")
    assert (DeviceSpec(3, "gpu").id, DeviceSpec(3, device_type="gpu").device_type) == (3, "gpu")
    assert (DeviceSpec.cpu().id, DeviceSpec.cpu().device_type) == (-1, "cpu")
    assert (DeviceSpec.accelerator().id, DeviceSpec.accelerator().device_type) == (0, "gpu")
    assert DeviceSpec.accelerator(id=2).id == 2
    assert DeviceSpec.cpu() == DeviceSpec.cpu() != DeviceSpec.accelerator()


def test_devices_exist() -> None:
    assert driver.devices_exist([DeviceSpec.cpu()]) is True
    assert driver.devices_exist([DeviceSpec.cpu(), DeviceSpec.accelerator(99)]) is False


def test_load_devices() -> None:
    assert driver.load_devices([DeviceSpec.cpu(), DeviceSpec.cpu(0)]) == [CPU(), CPU()]
    assert driver.load_devices([]) == []
    with pytest.raises(REFUSED):
        driver.load_devices([DeviceSpec.accelerator(99)])


@without_gpu
def test_scan_falls_back_to_the_cpu() -> None:
    (spec,) = driver.scan_available_devices()
    assert spec.device_type == "cpu"
    assert driver.load_devices([spec]) == [CPU()]


def test_streams_on_the_cpu() -> None:
    cpu = CPU()
    default = cpu.default_stream
    assert isinstance(default, DeviceStream)
    assert isinstance(cpu.default_queue, DeviceStream)
    other = DeviceStream(cpu)
    assert default.device == other.device == cpu
    assert other.wait_for(default) is None
    assert other.wait_for(cpu) is None
    assert other.synchronize() is None


def test_buffers_know_their_stream() -> None:
    stream = DeviceStream(CPU())
    buffer = Buffer(dtype=DType.float32, shape=[2], stream=stream)
    assert isinstance(buffer.stream, DeviceStream)
    assert buffer.stream.device == buffer.device == CPU()
    assert isinstance(Buffer(DType.float32, [2]).stream, DeviceStream)
