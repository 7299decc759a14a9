"""Shared memory: DLPack in both directions, and files mapped into buffers."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType

from helpers import REFUSED, address


def arange(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("take", [Buffer.from_numpy, Buffer.from_dlpack])
def test_import_without_a_copy(take) -> None:
    array = arange(2, 3)
    buffer = take(array)
    assert address(buffer) == address(array)
    array[1, 1] = -5
    assert buffer[1, 1].item() == -5
    buffer[0, 0] = 42
    assert array[0, 0] == 42


@pytest.mark.parametrize("give", [np.from_dlpack, Buffer.to_numpy])
def test_export_without_a_copy(give) -> None:
    buffer = Buffer.from_numpy(arange(2, 3)).copy()
    array = give(buffer)
    assert np.shares_memory(array, give(buffer))
    buffer[1, 2] = -1
    assert array[1, 2] == -1


def test_export_of_a_view() -> None:
    view = Buffer.from_numpy(arange(4, 5))[1:3, ::2]
    np.testing.assert_array_equal(np.from_dlpack(view), arange(4, 5)[1:3, ::2])
    backwards = Buffer.from_numpy(arange(4, 5))[::-1]
    np.testing.assert_array_equal(backwards.to_numpy(), arange(4, 5)[::-1])


def test_from_another_buffer() -> None:
    buffer = Buffer.from_numpy(arange(4)).copy()
    assert address(Buffer.from_dlpack(buffer)) == address(buffer)


def test_protocol() -> None:
    buffer = Buffer.from_numpy(arange(4))
    assert tuple(buffer.__dlpack_device__()) == (1, 0)
    for _ in range(3):  # a capsule that nobody consumes must neither leak nor crash
        buffer.__dlpack__()
    gc.collect()
    np.testing.assert_array_equal(buffer.to_numpy(), arange(4))


def test_capsules() -> None:
    buffer = Buffer.from_numpy(arange(4))
    for capsule in (buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))):
        assert address(Buffer.from_dlpack(capsule)) == address(buffer)
        with pytest.raises(ValueError, match="already consumed"):
            Buffer.from_dlpack(capsule)


def test_copy_argument() -> None:
    array = arange(4)
    copied = Buffer.from_dlpack(array, copy=True)
    array[0] = 9
    assert copied[0].item() == 0
    assert address(Buffer.from_dlpack(array, copy=False)) == address(array)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 5)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_round_trip(shape: tuple, dtype: str) -> None:
    array = np.ones(shape, dtype=dtype)
    back = np.from_dlpack(Buffer.from_dlpack(array))
    assert back.shape == shape and back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "index", [(slice(None), slice(None, None, 2)), slice(None, None, -1), (slice(None), 1)], ids=str
)
def test_non_contiguous_sources(index) -> None:
    """from_dlpack refuses them; from_numpy copies."""
    array = arange(4, 6)[index]
    with pytest.raises((*REFUSED, BufferError), match="contiguous"):
        Buffer.from_dlpack(array)
    buffer = Buffer.from_numpy(array)
    assert buffer.is_contiguous
    np.testing.assert_array_equal(buffer.to_numpy(), array)
    buffer[(0,) * array.ndim] = 99
    assert 99 not in array


@pytest.mark.parametrize("take", [Buffer.from_numpy, Buffer.from_dlpack])
def test_read_only_stays_read_only(take) -> None:
    array = arange(4)
    array.flags.writeable = False
    try:
        buffer = take(array)
    except BufferError:
        pytest.skip("this NumPy does not export read-only arrays")
    for target in (buffer, buffer[1:], buffer.view(DType.uint32)):
        with pytest.raises(REFUSED):
            target[0] = 1
    with pytest.raises(REFUSED):
        buffer.inplace_copy_from(Buffer.zeros([4], dtype=DType.float32))
    assert buffer.to_numpy().flags.writeable is False
    np.testing.assert_array_equal(array, arange(4))
    copied = buffer.copy()
    copied[0] = 5
    assert copied[0].item() == 5


@pytest.mark.parametrize("source", [object(), [1.0, 2.0], "text", None])
def test_sources_without_dlpack(source) -> None:
    with pytest.raises((*REFUSED, AttributeError)):
        Buffer.from_dlpack(source)


def test_the_source_lives_as_long_as_the_buffer() -> None:
    array = arange(100_000)
    references = sys.getrefcount(array)
    buffer = Buffer.from_dlpack(array)
    view = buffer[10:20]
    assert sys.getrefcount(array) > references
    del buffer
    gc.collect()
    np.testing.assert_array_equal(view.to_numpy(), np.arange(10, 20))
    del view
    gc.collect()
    assert sys.getrefcount(array) == references


def test_the_buffer_lives_as_long_as_the_array() -> None:
    buffer = Buffer.from_numpy(arange(1000)).copy()
    array = np.from_dlpack(buffer)[5:10]
    del buffer
    gc.collect()
    [Buffer.zeros([1000], dtype=DType.float32) for _ in range(50)]
    np.testing.assert_array_equal(array, np.arange(5, 10))


class TestMmap:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "data.bin"
        arange(6).tofile(path)
        return path

    @pytest.mark.parametrize("mode", ["r", "r+", "c", "copyonwrite", "readonly", "readwrite"])
    @pytest.mark.parametrize("as_text", [True, False])
    def test_reading(self, path: Path, mode: str, as_text: bool) -> None:
        buffer = Buffer.mmap(str(path) if as_text else path, DType.float32, [2, 3], mode=mode)
        assert buffer.dtype == DType.float32 and buffer.device == CPU()
        np.testing.assert_array_equal(buffer.to_numpy(), arange(2, 3))

    def test_read_and_write(self, path: Path) -> None:
        Buffer.mmap(path, DType.float32, [6], mode="r+")[2] = 9
        gc.collect()
        np.testing.assert_array_equal(np.fromfile(path, dtype=np.float32), [0, 1, 9, 3, 4, 5])

    @pytest.mark.parametrize("kwargs", [{}, *({"mode": mode} for mode in ("c", "copyonwrite", "r", "readonly"))])
    def test_copy_on_write(self, path: Path, kwargs: dict) -> None:
        path.chmod(0o444)
        buffer = Buffer.mmap(path, DType.float32, 6, **kwargs)
        buffer[2] = 9
        buffer.to_numpy()[3] = 8
        assert [buffer[2].item(), buffer[3].item()] == [9, 8]
        del buffer
        gc.collect()
        np.testing.assert_array_equal(np.fromfile(path, dtype=np.float32), arange(6))

    @pytest.mark.parametrize("first", range(6))
    def test_offset_in_bytes(self, path: Path, first: int) -> None:
        buffer = Buffer.mmap(path, DType.float32, [6 - first], offset=4 * first)
        np.testing.assert_array_equal(buffer.to_numpy(), arange(6)[first:])

    @pytest.mark.parametrize(
        "shape, offset", [([7], 0), ([2, 4], 0), ([6], 4), ([1], 24), ([1], 10**9), ([2**62], 0), ([1], -4)]
    )
    def test_a_file_that_is_too_short(self, path: Path, shape: list, offset: int) -> None:
        with pytest.raises(ValueError):
            Buffer.mmap(path, DType.float32, shape, offset=offset)

    def test_missing_file_and_bad_mode(self, path: Path) -> None:
        with pytest.raises(OSError):
            Buffer.mmap(path.with_name("none"), DType.float32, [1])
        with pytest.raises(ValueError):
            Buffer.mmap(path, DType.float32, [1], mode="rw")

    def test_file_descriptors_are_refused_and_stay_open(self, path: Path) -> None:
        with path.open("rb") as file:
            with pytest.raises(TypeError):
                Buffer.mmap(file.fileno(), DType.float32, [6])  # type: ignore[arg-type]
            assert len(file.read()) == 24

    def test_views_keep_the_mapping_alive(self, path: Path) -> None:
        view = Buffer.mmap(path, DType.float32, [6])[::-2]
        gc.collect()
        path.unlink()
        np.testing.assert_array_equal(view.to_numpy(), arange(6)[::-2])
