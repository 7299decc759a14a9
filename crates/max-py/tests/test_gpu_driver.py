"""Devices, streams and buffers on a GPU."""

import copy
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer, Device, DeviceSpec, DeviceStream
from max.dtype import DType

from helpers import accelerator

GPU = accelerator()

MIB = 1 << 20


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def on_gpu(array: np.ndarray) -> Buffer:
    return Buffer.from_numpy(array).to(GPU)


def on_host(buffer: Buffer) -> np.ndarray:
    return buffer.to(CPU()).to_numpy()


class TestDevices:
    def test_properties(self) -> None:
        assert isinstance(GPU, Accelerator) and isinstance(GPU, Device)
        assert (GPU.label, GPU.api, GPU.id, GPU.is_host) == ("gpu", "cuda", 0, False)
        assert GPU.architecture_name.startswith("sm_") and GPU.architecture_name == driver.accelerator_architecture_name()
        assert driver.accelerator_api() == "cuda"
        assert GPU.is_compatible is True and GPU.is_host_unified is False
        assert GPU.model_name
        assert str(GPU) == repr(GPU) == "Device(type=gpu,id=0)"
        assert Accelerator() == Accelerator(0) == Accelerator(id=0) != CPU()
        assert hash(Accelerator()) == hash(GPU)
        assert pickle.loads(pickle.dumps(GPU)) == GPU

    def test_discovery(self) -> None:
        count = driver.accelerator_count()
        assert count >= 1
        specs = driver.scan_available_devices()
        assert specs == [DeviceSpec.accelerator(id) for id in range(count)]
        assert driver.devices_exist(specs) and not driver.devices_exist([DeviceSpec.accelerator(count)])
        assert driver.load_devices([*specs, DeviceSpec.cpu()]) == [*map(Accelerator, range(count)), CPU()]
        assert driver.load_devices([DeviceSpec.accelerator(-1)]) == [GPU]

    def test_a_missing_gpu_is_explained(self) -> None:
        with pytest.raises(RuntimeError, match="gpu:4000.*this machine has"):
            Accelerator(4000)

    def test_access(self) -> None:
        assert GPU.can_access(GPU) is True
        assert GPU.can_access(CPU()) is False and CPU().can_access(GPU) is False

    def test_stats(self) -> None:
        buffer = Buffer(DType.uint8, [64 * MIB], GPU)
        stats = GPU.stats
        assert stats["bytes_in_use"] >= buffer.num_elements
        assert 0 < stats["free_memory"] <= stats["total_memory"]
        assert stats["bytes_pooled"] >= 0
        assert GPU.max_single_alloc_size == stats["total_memory"]
        for name in ("gpu_utilization", "memory_utilization"):
            assert 0 <= stats.get(name, 0) <= 100
        assert stats.get("power_usage", 1) > 0 and stats.get("temperature", 1) > 0
        GPU.synchronize()


class TestBuffers:
    def test_new_buffers(self) -> None:
        for buffer in (
            Buffer(DType.float32, [2, 3], GPU),
            Buffer(shape=[2, 3], dtype=DType.float32, device=GPU),
            Buffer(DType.float32, [2, 3], stream=GPU.default_stream),
            Buffer.zeros([2, 3], DType.float32, GPU),
        ):
            assert buffer.device == GPU and not buffer.is_host and not buffer.pinned
            assert repr(buffer) == "max.driver.Buffer(DType.float32, (2, 3), gpu[0])"
            np.testing.assert_array_equal(on_host(buffer), np.zeros((2, 3), np.float32))
        np.testing.assert_array_equal(on_host(Buffer(arange(3), GPU)), arange(3))
        scalar = Buffer.scalar(1.5, DType.bfloat16, GPU)
        assert scalar.device == GPU and scalar.item() == 1.5

    @pytest.mark.parametrize("dtype", [d for d in DType if d.name != "_unknown"])
    def test_every_dtype(self, dtype: DType) -> None:
        buffer = Buffer.zeros([5], dtype, GPU)
        buffer[1:4:2] = 1
        # One dtype has no zero: its smallest number stands for it.
        zero = Buffer.zeros([1], dtype)[0].item()
        assert [x.item() for x in buffer] == [zero, 1, zero, 1, zero]
        assert zero < 1e-38

    def test_no_numpy_array_of_device_memory(self) -> None:
        buffer = on_gpu(arange(2))
        with pytest.raises(ValueError, match="not in host memory"):
            buffer.to_numpy()
        with pytest.raises(ValueError, match="not in host memory"):
            np.asarray(buffer)

    def test_copies(self) -> None:
        buffer = on_gpu(arange(4, 5))
        assert buffer.to(GPU) is buffer
        for other in (buffer.copy(), buffer.copy(device=GPU), buffer.copy(stream=DeviceStream(GPU)), copy.deepcopy(buffer)):
            other[:] = 7
            assert other.device == GPU
        np.testing.assert_array_equal(on_host(buffer), arange(4, 5))
        host = buffer.copy(CPU())
        assert host.is_host
        np.testing.assert_array_equal(host.to_numpy(), arange(4, 5))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(buffer)).to_numpy(), arange(4, 5))
        buffer.inplace_copy_from(Buffer.from_numpy(-arange(20)))
        np.testing.assert_array_equal(on_host(buffer), -arange(4, 5))
        target = Buffer(DType.float32, [4, 5])
        driver.batch_inplace_copy([target], [buffer])
        np.testing.assert_array_equal(target.to_numpy(), -arange(4, 5))

    def test_views(self) -> None:
        array, buffer = arange(6, 8), on_gpu(arange(6, 8))
        for index in (np.s_[1], np.s_[::2, 1:5], np.s_[::-1, ::-3], np.s_[..., None, 2], np.s_[4:2], np.s_[2:, -1]):
            np.testing.assert_array_equal(on_host(buffer[index]), array[index])
            np.testing.assert_array_equal(on_host(buffer[index].contiguous()), array[index])
        buffer[1:3, ::2] = np.full((2, 4), 9, np.float32)
        array[1:3, ::2] = 9
        buffer[::-5, 1] = on_gpu(arange(2))
        array[::-5, 1] = arange(2)
        buffer[0, 0] = -1
        array[0, 0] = -1
        np.testing.assert_array_equal(on_host(buffer), array)
        assert buffer[0, 0].item() == -1
        assert str(buffer) == str(Buffer.from_numpy(array))
        assert on_host(buffer.view(DType.uint8)).tobytes() == array.tobytes()

    def test_allocation_still_works_after_running_out_of_memory(self) -> None:
        total = GPU.stats["total_memory"]
        for _ in range(2):
            with pytest.raises(MemoryError, match=f"{2 * total} more bytes.*free"):
                Buffer(DType.uint8, [2 * total], GPU)
            np.testing.assert_array_equal(on_host(on_gpu(arange(1000))), arange(1000))

    def test_threads(self) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for round in range(20):
                    array = np.full(10_000 + round, number, np.int64)
                    np.testing.assert_array_equal(on_host(on_gpu(array)[::-2]), array[::-2])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures


class TestStreams:
    def test_streams(self) -> None:
        first, second = DeviceStream(GPU), DeviceStream(GPU)
        assert first != second and first == first and GPU.default_stream == GPU.default_queue
        assert first.device == GPU
        first.wait_for(second)
        first.wait_for(GPU)
        first.wait_for(device=GPU)
        first.synchronize()

    def test_buffers_follow_their_stream(self) -> None:
        stream = DeviceStream(GPU)
        big = Buffer(DType.int32, [32 * MIB], stream=stream)
        assert big.stream == stream
        for value in range(1, 5):
            big[:] = value
        moved = big.to(GPU.default_stream)
        assert moved.stream == GPU.default_stream and moved._native.data_ptr == big._native.data_ptr
        assert moved[-1].item() == 4
        taken = big.copy(stream=GPU.default_stream)
        big[:] = 0
        assert taken[12345].item() == 4
        host = Buffer.from_numpy(arange(5)).to(stream)
        assert host.device == GPU and host.stream == stream
        np.testing.assert_array_equal(on_host(host), arange(5))


class TestPinned:
    def test_pinned_memory_is_host_memory(self) -> None:
        for buffer in (
            Buffer(DType.float32, [4, 5], GPU, pinned=True),
            Buffer(DType.float32, [4, 5], stream=GPU.default_stream, pinned=True),
            Buffer(DType.float32, [4, 5], CPU(), pinned=True),
        ):
            assert buffer.pinned and buffer.is_host and buffer.device == CPU()
            array = buffer.to_numpy()
            assert not array.any()
            array[:] = arange(4, 5)
            there = buffer.to(GPU)
            assert there.device == GPU and not there.pinned
            np.testing.assert_array_equal(on_host(there), arange(4, 5))

    def test_copies_in_flight(self) -> None:
        pinned = Buffer(DType.int32, [16 * MIB], GPU, pinned=True)
        there = Buffer(DType.int32, [16 * MIB], GPU)
        for value in range(1, 4):
            there[:] = value
            pinned.inplace_copy_from(there)
            assert pinned[-1].item() == value and pinned.to_numpy()[-1] == value
            pinned[:] = -value
            there.inplace_copy_from(pinned)
            pinned[:] = 0
            assert there[-1].item() == -value
        there.inplace_copy_from(pinned)
        del pinned
        gc.collect()
        assert there[-1].item() == 0


class Producer:
    """Acts as another library that exports one of our buffers, and records the arguments of the calls."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer, self.asked = buffer, {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked = asked
        return self.buffer.__dlpack__(**asked)


class OldProducer(Producer):
    """A producer older than version 1 of the protocol."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked = {"stream": stream}
        return self.buffer.__dlpack__(stream=stream)


class TestProtocol:
    @pytest.mark.parametrize("kind", [Producer, OldProducer])
    def test_import_on_our_stream(self, kind: type[Producer]) -> None:
        producer = kind(on_gpu(arange(2, 3)))
        buffer = Buffer.from_dlpack(producer)
        assert producer.asked["stream"] == GPU.default_stream._native.handle
        assert buffer.device == GPU and buffer._native.data_ptr == producer.buffer._native.data_ptr
        buffer[0, :] = 5
        np.testing.assert_array_equal(on_host(producer.buffer)[0], [5] * 3)
        np.testing.assert_array_equal(on_host(Buffer.from_dlpack(producer, copy=True))[0], [5] * 3)

    def test_host_arrays_have_no_stream(self) -> None:
        producer = Producer(Buffer.from_numpy(arange(3)))
        np.testing.assert_array_equal(Buffer.from_dlpack(producer).to_numpy(), arange(3))
        assert "stream" not in producer.asked

    def test_streams_of_consumers(self) -> None:
        buffer, ours = on_gpu(arange(3)), DeviceStream(GPU)
        for stream in (None, -1, 1, 2, ours._native.handle):
            assert '"dltensor"' in repr(buffer.__dlpack__(stream=stream))
        for stream in (0, -2):
            with pytest.raises(ValueError, match="is not a DLPack stream"):
                buffer.__dlpack__(stream=stream)
        assert '"dltensor_versioned"' in repr(buffer.__dlpack__(max_version=(1, 1)))

    def test_to_the_host(self) -> None:
        class Wants(Producer):
            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

            def __dlpack__(self, **asked: Any) -> Any:
                return self.buffer.__dlpack__(dl_device=(1, 0), **asked)

        buffer = on_gpu(arange(3))
        np.testing.assert_array_equal(Buffer.from_dlpack(Wants(buffer)).to_numpy(), arange(3))
        with pytest.raises(BufferError):
            buffer.__dlpack__(dl_device=(1, 0), copy=False)
        with pytest.raises(BufferError):
            buffer.__dlpack__(dl_device=(10, 0))
        assert Buffer.from_dlpack(Producer(Buffer(DType.float32, [0, 3], GPU))).shape == (0, 3)

    def test_memory_outlives_either_side(self) -> None:
        buffer = Buffer.from_dlpack(Producer(on_gpu(arange(MIB))))
        gc.collect()
        others = [Buffer(DType.float32, [MIB], GPU) for _ in range(4)]
        np.testing.assert_array_equal(on_host(buffer), arange(MIB))
        del others
