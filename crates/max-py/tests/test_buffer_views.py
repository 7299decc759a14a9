"""NumPy-style indexing of buffers: strided views that share storage, and item assignment."""

import gc

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType

from helpers import REFUSED

s = slice
INDICES = [
    0,
    -1,
    s(None),
    s(1, 3),
    s(1, None),
    s(None, -1),
    s(None, None, 2),
    s(None, None, -1),
    s(3, 0, -2),
    s(-3, -1),
    s(2, 2),
    s(1, 100),
    s(-100, 2),
    ...,
    None,
    (0, 1),
    (-1, -2, -3),
    (s(None), 2),
    (s(None), s(1, 4), 0),
    (s(None, None, -1), s(None, None, -2)),
    (..., 0),
    (0, ...),
    (..., s(None, None, -1)),
    (1, ..., 2),
    (None, 0),
    (s(1, 3), None, ..., s(2)),
    (0, s(4, None, -3), 1),
    (),
]


@pytest.fixture
def array() -> np.ndarray:
    return np.arange(4 * 5 * 3, dtype=np.int32).reshape(4, 5, 3)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reads_like_numpy(array: np.ndarray, index) -> None:
    view, expected = Buffer.from_numpy(array)[index], array[index]
    assert tuple(view.shape) == expected.shape
    assert view.num_elements == expected.size
    np.testing.assert_array_equal(view.to_numpy(), expected)
    np.testing.assert_array_equal(view.contiguous().to_numpy(), expected)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_views_share_storage(array: np.ndarray, index) -> None:
    """A write through the base shows in the view."""
    buffer = Buffer.from_numpy(array.copy())
    view, expected = buffer[index], array.copy()
    for position in np.ndindex(array.shape):
        buffer[position] = int(array[position]) * 2 + 1
        expected[position] = array[position] * 2 + 1
    np.testing.assert_array_equal(view.to_numpy(), expected[index])


def test_views_of_views(array: np.ndarray) -> None:
    view = Buffer.from_numpy(array)[::-1][1:, ::2][..., -1]
    np.testing.assert_array_equal(view.to_numpy(), array[::-1][1:, ::2][..., -1])


def test_views_outlive_their_base(array: np.ndarray) -> None:
    expected = array[::-1, 1:].copy()
    base = Buffer.from_numpy(array.copy()).copy()
    view = base[::-1, 1:]
    del base
    gc.collect()
    [Buffer.zeros([4, 5, 3], dtype=DType.int32) for _ in range(20)]
    np.testing.assert_array_equal(view.to_numpy(), expected)


@pytest.mark.parametrize(
    "index, contiguous",
    [
        (s(None), True),
        (s(1, 3), True),
        (0, True),
        ((s(None), 0), False),
        (s(None, None, 2), False),
        (s(None, None, -1), False),
        ((..., s(0, 2)), False),
    ],
    ids=str,
)
def test_contiguity(array: np.ndarray, index, contiguous: bool) -> None:
    assert Buffer.from_numpy(array)[index].is_contiguous is contiguous


@pytest.mark.parametrize("index", [(4, ...), (-5, ...), (0, 5, s(None)), (0, 0, -4)], ids=str)
def test_out_of_range_is_an_index_error(array: np.ndarray, index) -> None:
    buffer = Buffer.from_numpy(array)
    with pytest.raises(IndexError):
        buffer[index]
    with pytest.raises(IndexError):
        buffer[index] = 1


def test_too_many_indices_are_a_value_error(array: np.ndarray) -> None:
    buffer = Buffer.from_numpy(array)
    with pytest.raises(ValueError, match="too many indices"):
        buffer[0, 0, 0, 0]
    with pytest.raises(ValueError, match="too many indices"):
        buffer[0, 0, 0, 0] = 1


@pytest.mark.parametrize("index", [(), 0, (0,), (1, 2), (100, 100)], ids=str)
def test_too_few_indices_for_an_item_are_a_value_error(array: np.ndarray, index) -> None:
    buffer = Buffer.from_numpy(array.copy())
    given = len(index) if isinstance(index, tuple) else 1
    with pytest.raises(ValueError, match=rf"an item of .*\(4, 5, 3\).* has 3 indices, not {given}"):
        buffer[index] = 1
    np.testing.assert_array_equal(buffer.to_numpy(), array)


def test_many_items_are_set_by_a_slice_an_ellipsis_or_an_array(array: np.ndarray) -> None:
    buffer, expected = Buffer.from_numpy(array.copy()), array.copy()
    buffer[0, ...] = expected[0, ...] = 7
    buffer[1, :2] = expected[1, :2] = 8
    buffer[2] = expected[2] = np.full((5, 3), 9, np.int32)
    np.testing.assert_array_equal(buffer.to_numpy(), expected)


@pytest.mark.parametrize("index", [s(None, None, 0), "a", 1.5, (..., ...)], ids=str)
def test_nonsense_indices(array: np.ndarray, index) -> None:
    with pytest.raises(REFUSED):
        Buffer.from_numpy(array)[index]


@pytest.mark.parametrize("index", [(0, 0, 0), (3, 4, 2), (-1, -1, -1), (2, -5, 1)], ids=str)
def test_item_assignment(array: np.ndarray, index) -> None:
    buffer, expected = Buffer.from_numpy(array.copy()), array.copy()
    buffer[index] = 77
    expected[index] = 77
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
    assert buffer[index].item() == 77


def test_assignment_through_a_view(array: np.ndarray) -> None:
    buffer, expected = Buffer.from_numpy(array.copy()), array.copy()
    buffer[::-1, 1::2][0, 1, 2] = 55
    expected[::-1, 1::2][0, 1, 2] = 55
    np.testing.assert_array_equal(buffer.to_numpy(), expected)


@pytest.mark.parametrize(
    "dtype, value",
    [("bool", True), ("float16", 1.5), ("float64", 0.1), ("uint8", 255), ("int64", -(2**63)), ("float32", 2)],
)
def test_assignment_of_each_kind(dtype: str, value) -> None:
    buffer = Buffer.zeros([2], dtype=getattr(DType, dtype))
    buffer[1] = value
    assert [buffer[0].item(), buffer[1].item()] == [0, value]


def test_assignment_to_bfloat16_and_rank_zero() -> None:
    buffer = Buffer.zeros([2], dtype=DType.bfloat16)
    buffer[0] = 1.5
    assert buffer[0].item() == 1.5
    scalar = Buffer.scalar(1, dtype=DType.int32)
    scalar[()] = 9
    assert scalar.item() == 9


def test_a_scalar_takes_the_index_zero() -> None:
    scalar = Buffer.scalar(5, dtype=DType.int32)
    scalar[0] = 8
    assert scalar.item() == scalar[0].item() == 8
    assert scalar[0].rank == 0
    for index in (1, -1, (0, 0), s(None)):
        with pytest.raises(ValueError):
            scalar[index]
        with pytest.raises(ValueError):
            scalar[index] = 1
