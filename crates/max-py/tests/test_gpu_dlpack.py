"""Buffers and PyTorch tensors on a GPU share memory without copies, and work on it is done in the right order."""

import gc

import numpy as np
import pytest
from max.driver import CPU, Buffer, DeviceStream
from max.dtype import DType

from helpers import accelerator, pytorch

GPU = accelerator()

torch = pytorch()
if not torch.cuda.is_available():
    pytest.skip("this PyTorch has no GPU support", allow_module_level=True)

MIB = 1 << 20


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def on_gpu(array: np.ndarray) -> Buffer:
    return Buffer.from_numpy(array).to(GPU)


def on_host(buffer: Buffer) -> np.ndarray:
    return buffer.to(CPU()).to_numpy()


def test_from_torch() -> None:
    tensor = torch.arange(20, dtype=torch.float32, device="cuda").reshape(4, 5)
    buffer = Buffer.from_dlpack(tensor)
    assert buffer.device == GPU and buffer._native.data_ptr == tensor.data_ptr()
    np.testing.assert_array_equal(on_host(buffer), arange(4, 5))
    buffer[1, :] = -3
    GPU.synchronize()
    assert tensor[1].tolist() == [-3] * 5
    with pytest.raises(ValueError, match="contiguous"):
        Buffer.from_dlpack(tensor.T)
    assert Buffer.from_dlpack(tensor.requires_grad_()).device == GPU
    copied = Buffer.from_dlpack(tensor, copy=True)
    assert copied._native.data_ptr != tensor.data_ptr()


def test_to_torch() -> None:
    buffer = on_gpu(arange(4, 5))
    assert tuple(buffer.__dlpack_device__()) == (2, 0)
    tensor = torch.from_dlpack(buffer)
    assert tensor.is_cuda and tensor.data_ptr() == buffer._native.data_ptr
    assert torch.equal(tensor.cpu(), torch.arange(20.0).reshape(4, 5))
    view = torch.from_dlpack(buffer[::2, 1:4])
    assert view.tolist() == arange(4, 5)[::2, 1:4].tolist()
    tensor.fill_(2)
    torch.cuda.synchronize()
    assert buffer[3, 4].item() == 2
    half = torch.from_dlpack(Buffer.scalar(1.5, DType.bfloat16, GPU))
    assert half.dtype == torch.bfloat16 and half.item() == 1.5


def test_memory_outlives_either_side() -> None:
    tensor = torch.from_dlpack(on_gpu(arange(MIB)))
    gc.collect()
    others = [on_gpu(np.zeros(MIB, np.float32)) for _ in range(4)]
    assert torch.equal(tensor.cpu(), torch.arange(float(MIB)))
    del others, tensor
    buffer = Buffer.from_dlpack(torch.arange(float(MIB), device="cuda"))
    gc.collect()
    junk = [torch.zeros(MIB, device="cuda") for _ in range(4)]
    np.testing.assert_array_equal(on_host(buffer), arange(MIB))
    del junk


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_work_of_torch_comes_first(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        for value in range(1, 6):
            tensor = torch.zeros(64 * MIB, device="cuda")
            for _ in range(value):
                tensor += 1
            buffer = Buffer.from_dlpack(tensor)
            assert buffer[-1].item() == value
            # The memory must not be returned before our copy of it is done.
            taken = buffer.copy()
            del tensor, buffer
            torch.full((64 * MIB,), -1.0, device="cuda")
            assert taken[-1].item() == value


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_our_work_comes_first(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    ours = DeviceStream(GPU)
    with torch.cuda.stream(stream):
        for value in range(1, 6):
            buffer = Buffer(DType.float32, [64 * MIB], stream=ours)
            for step in range(value + 1):
                buffer[:] = float(step)
            tensor = torch.from_dlpack(buffer)
            total = tensor[-1] + tensor[0]
            del buffer, tensor
            Buffer(DType.float32, [64 * MIB], stream=ours)[:] = -1.0
            assert total.item() == 2 * value


def test_torch_works_on_our_streams() -> None:
    # A stream that is never destroyed, because PyTorch caches memory per stream.
    with torch.cuda.stream(torch.cuda.ExternalStream(GPU.default_stream._native.handle)):
        buffer = on_gpu(arange(3))
        tensor = torch.from_dlpack(buffer)
        tensor += 1
        assert [x.item() for x in buffer] == [1, 2, 3]


def test_to_the_host_and_pinned() -> None:
    buffer = on_gpu(arange(3))
    assert torch.from_dlpack(buffer.__dlpack__(dl_device=(1, 0))).tolist() == [0, 1, 2]
    pinned = torch.arange(float(MIB)).pin_memory()
    there = Buffer.from_dlpack(pinned).to(GPU)
    pinned.zero_()
    np.testing.assert_array_equal(on_host(there), arange(MIB))


def test_empty() -> None:
    assert torch.from_dlpack(Buffer(DType.float32, [0, 3], GPU)).shape == (0, 3)
    assert Buffer.from_dlpack(torch.empty(2, 0, device="cuda")).shape == (2, 0)
