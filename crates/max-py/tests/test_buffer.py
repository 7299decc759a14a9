"""Buffers: construction, properties, copies, reinterpretation and printing."""

import gc

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Buffer, DeviceStream
from max.dtype import DType

from helpers import REFUSED, address


def arange(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def test_tensor_is_the_old_name() -> None:
    assert driver.Tensor is Buffer


@pytest.mark.parametrize(
    "make",
    [
        lambda: Buffer(DType.float32, [2, 3]),
        lambda: Buffer(DType.float32, (2, 3), CPU()),
        lambda: Buffer(shape=[2, 3], dtype=DType.float32),
        lambda: Buffer(shape=(2, 3), dtype=DType.float32, device=CPU(), pinned=False),
        lambda: Buffer(DType.float32, [2, 3], stream=DeviceStream(CPU())),
        lambda: Buffer(arange(2, 3), CPU()),
        lambda: Buffer(shape=arange(2, 3), device=CPU()),
        lambda: Buffer.zeros([2, 3], dtype=DType.float32),
        lambda: Buffer.zeros((2, 3), dtype=DType.float32, device=CPU()),
        lambda: Buffer.from_numpy(arange(2, 3)),
        lambda: Buffer.from_dlpack(arange(2, 3)),
    ],
)
def test_construction_and_properties(make) -> None:
    buffer = make()
    assert buffer.dtype == DType.float32
    assert tuple(buffer.shape) == (2, 3)
    assert buffer.rank == 2
    assert buffer.num_elements == 6
    assert buffer.element_size == 4
    assert buffer.is_contiguous is True
    assert buffer.is_host is True
    assert buffer.pinned is False
    assert buffer.device == CPU()
    assert buffer.to_numpy().shape == (2, 3)


def test_from_an_array_keeps_its_values() -> None:
    np.testing.assert_array_equal(Buffer(arange(2, 3), CPU()).to_numpy(), arange(2, 3))


@pytest.mark.parametrize("shape, count", [([], 1), ([0], 0), ([3, 0, 2], 0), ([1], 1), ([7, 1, 5], 35)])
def test_rank_zero_and_empty(shape: list, count: int) -> None:
    buffer = Buffer.zeros(shape, dtype=DType.int64)
    assert (buffer.rank, buffer.num_elements) == (len(shape), count)
    array = buffer.to_numpy()
    assert array.shape == tuple(shape) and array.dtype == np.int64
    assert not array.any()


@pytest.mark.parametrize(
    "name", "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
def test_every_numpy_dtype(name: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    buffer = Buffer.from_numpy(array)
    assert buffer.dtype == getattr(DType, name)
    assert buffer.element_size == array.itemsize
    back = buffer.to_numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert not Buffer.zeros([2], dtype=getattr(DType, name)).to_numpy().any()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_dtypes_without_numpy(name: str) -> None:
    buffer = Buffer.zeros([2, 3], dtype=getattr(DType, name))
    assert buffer.element_size == getattr(DType, name).size_in_bytes
    with pytest.raises(ValueError):
        buffer.to_numpy()


@pytest.mark.parametrize("shape", [[-1], [2, -3], [2**62, 8], [2**40, 2**40], [2**64]])
def test_impossible_shapes(shape: list) -> None:
    with pytest.raises((ValueError, OverflowError, MemoryError)):
        Buffer(DType.float32, shape)


@pytest.mark.parametrize("array", [np.array([1.0], dtype=">f4"), np.array([1], dtype=">i8"), np.array(["a", None])])
def test_big_endian_and_object_arrays(array: np.ndarray) -> None:
    with pytest.raises((ValueError, TypeError)):
        Buffer.from_numpy(array)


@pytest.mark.parametrize(
    "value, dtype, kind",
    [
        (3, DType.int32, int),
        (-4, DType.int8, int),
        (2**63 + 1, DType.uint64, int),
        (1.5, DType.float32, float),
        (1.5, DType.float16, float),
        (1.5, DType.bfloat16, float),
        (0.1, DType.float64, float),
        (True, DType.bool, bool),
    ],
)
def test_scalar_and_item(value, dtype: DType, kind: type) -> None:
    buffer = Buffer.scalar(value, dtype=dtype)
    assert (buffer.rank, buffer.num_elements, buffer.dtype) == (0, 1, dtype)
    assert buffer.item() == value
    assert type(buffer.item()) is kind


def test_item_needs_one_element() -> None:
    assert Buffer.from_numpy(np.array([[7]])).item() == 7
    with pytest.raises(REFUSED, match="calling `item` on a tensor with 2 items but expected only 1"):
        Buffer.zeros([2], dtype=DType.float32).item()
    with pytest.raises(REFUSED, match="0 items"):
        Buffer.zeros([0], dtype=DType.float32).item()


def test_printing() -> None:
    assert repr(Buffer.zeros([2, 3], dtype=DType.float32)) == "max.driver.Buffer(DType.float32, (2, 3), cpu[0])"
    assert repr(Buffer.zeros([3], dtype=DType.int8)) == "max.driver.Buffer(DType.int8, (3,), cpu[0])"
    assert repr(Buffer.scalar(1, dtype=DType.int8)) == "max.driver.Buffer(DType.int8, (), cpu[0])"
    for array in (arange(3), arange(2, 3), np.array([True, False]), np.array(2.5)):
        assert str(array) in str(Buffer.from_numpy(array))
    assert "1.5" in str(Buffer.scalar(1.5, dtype=DType.bfloat16))


@pytest.mark.parametrize("shape", [[1], [3], [64], [1000], [3, 5, 7]])
@pytest.mark.parametrize("dtype", [DType.int8, DType.float32, DType.float64])
def test_allocations_are_aligned(shape: list, dtype: DType) -> None:
    for buffer in (Buffer(dtype, shape), Buffer.zeros(shape, dtype=dtype), Buffer.zeros(shape, dtype=dtype).copy()):
        assert address(buffer) % 64 == 0


@pytest.mark.parametrize(
    "copy",
    [
        lambda b: b.copy(),
        lambda b: b.copy(device=CPU()),
        lambda b: b.copy(CPU()),
        lambda b: b.copy(stream=DeviceStream(CPU())),
        lambda b: b.contiguous(),
    ],
)
def test_copies_are_deep(copy) -> None:
    source = Buffer.from_numpy(arange(2, 3))
    other = copy(source)
    np.testing.assert_array_equal(other.to_numpy(), arange(2, 3))
    other[0, 0] = 99
    assert source[0, 0].item() == 0
    assert other[0, 0].item() == 99


def test_contiguous_of_a_strided_view() -> None:
    view = Buffer.from_numpy(arange(4, 5))[::-2, 1::2]
    copied = view.contiguous()
    assert copied.is_contiguous and not view.is_contiguous
    np.testing.assert_array_equal(copied.to_numpy(), arange(4, 5)[::-2, 1::2])
    np.testing.assert_array_equal(view.copy().to_numpy(), arange(4, 5)[::-2, 1::2])


def test_to_the_same_device_does_not_copy() -> None:
    buffer = Buffer.from_numpy(arange(3))
    assert address(buffer.to(CPU())) == address(buffer)
    moved = buffer.to(CPU().default_stream)
    assert moved.device == CPU()
    np.testing.assert_array_equal(moved.to_numpy(), arange(3))


def test_inplace_copy_from() -> None:
    target, source = Buffer.zeros([2, 3], dtype=DType.float32), Buffer.from_numpy(arange(2, 3))
    before = address(target)
    assert target.inplace_copy_from(source) is None
    np.testing.assert_array_equal(target.to_numpy(), arange(2, 3))
    assert address(target) == before
    with pytest.raises(REFUSED):
        target.inplace_copy_from(Buffer.zeros([2, 2], dtype=DType.float32))
    with pytest.raises(REFUSED):
        target.inplace_copy_from(Buffer.zeros([2, 3], dtype=DType.float64))


def test_view_reinterprets_shared_memory() -> None:
    buffer = Buffer.from_numpy(arange(2, 3))
    as_bytes = buffer.view(DType.uint8)
    assert tuple(as_bytes.shape) == (2, 12)
    np.testing.assert_array_equal(as_bytes.to_numpy(), arange(2, 3).view(np.uint8))
    assert tuple(buffer.view(DType.int32).shape) == (2, 3)
    assert tuple(buffer.view(DType.float32, [3, 2]).shape) == (3, 2)
    assert tuple(buffer.view(DType.float64, shape=[3]).shape) == (3,)
    buffer[1, 2] = 1.0
    assert buffer.view(DType.uint32, [6])[5].item() == 0x3F800000


@pytest.mark.parametrize("dtype, shape", [(DType.float64, None), (DType.float32, [7]), (DType.uint8, [23])])
def test_view_that_does_not_fit(dtype: DType, shape) -> None:
    with pytest.raises(ValueError):
        Buffer.from_numpy(arange(2, 3)).view(dtype, shape)


def test_bfloat16_through_views() -> None:
    bits = np.array([0x3FC0, 0xC000], dtype=np.uint16)  # 1.5, -2
    buffer = Buffer.from_numpy(bits).view(DType.bfloat16)
    assert buffer.dtype == DType.bfloat16
    assert [buffer[i].item() for i in range(2)] == [1.5, -2.0]


def test_views_keep_the_memory_alive() -> None:
    view = Buffer.from_numpy(arange(1000)).view(DType.uint32)[10:20]
    gc.collect()
    [np.full(1000, 7.0, dtype=np.float32) for _ in range(50)]
    np.testing.assert_array_equal(view.to_numpy(), arange(1000).view(np.uint32)[10:20])


def test_to_a_list_of_devices() -> None:
    buffer, cpu = Buffer.from_numpy(arange(2, 3)), CPU()
    for devices in ([cpu, cpu], (cpu,), []):
        moved = buffer.to(devices)
        assert isinstance(moved, list) and [other is buffer for other in moved] == [True] * len(devices)
    assert address(buffer.to([DeviceStream(cpu)])[0]) == address(buffer)
    for bad in (3, [3], None):
        with pytest.raises(TypeError, match="Device"):
            buffer.to(bad)


def test_from_dlpack_returns_a_buffer_itself() -> None:
    buffer = Buffer.from_numpy(arange(2, 3))
    for source in (buffer, buffer[:, ::2]):
        assert Buffer.from_dlpack(source) is Buffer.from_dlpack(source, copy=False) is source
        copied = Buffer.from_dlpack(source, copy=True)
        assert copied is not source and address(copied) != address(source)
        np.testing.assert_array_equal(copied.to_numpy(), source.to_numpy())


def test_copying_a_buffer_onto_itself() -> None:
    buffer = Buffer.from_numpy(arange(2, 3))
    column = buffer[:, 0]
    for same in (buffer, column):
        same.inplace_copy_from(same)
    column.inplace_copy_from(buffer[:, 0])
    with pytest.raises(ValueError):
        column.inplace_copy_from(buffer[:, 1])
    np.testing.assert_array_equal(buffer.to_numpy(), arange(2, 3))


def test_truth_of_a_buffer() -> None:
    assert bool(Buffer.scalar(1, DType.int8)) and not Buffer.zeros([1, 1], DType.float32)
    for shape, count in (([2, 3], 6), ([0], 0)):
        with pytest.raises(ValueError, match=f"truth value of a buffer with {count} elements is ambiguous") as caught:
            bool(Buffer.zeros(shape, DType.float32))
        assert "item" not in str(caught.value)
