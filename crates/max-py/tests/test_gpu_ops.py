"""Ops that are no loops on a GPU, through tensors: sizes that depend on data, indices out of range, long lines."""

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor, default_device, default_dtype

from helpers import accelerator

DEVICE = accelerator()


@pytest.fixture(autouse=True)
def float32():
    """Tensors default to float32 on the GPU."""
    with default_device(DEVICE), default_dtype(DType.float32):
        yield


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def indices(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-limit, limit, shape)


@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (300_001,), (30, 70), (3, 4, 5)])
def test_nonzero_has_as_many_rows_as_there_are(shape) -> None:
    x = np.maximum(normal(*shape), 0)
    found = F.nonzero(Tensor(x), "found")
    assert found.device == DEVICE
    np.testing.assert_array_equal(found.to_numpy(), np.argwhere(x))


def test_masks_and_lists_select() -> None:
    x = normal(40, 30)
    t = Tensor(x)
    np.testing.assert_array_equal(t[t > 0].to_numpy(), x[x > 0])
    np.testing.assert_array_equal(t[[3, -1, 3]].to_numpy(), x[[3, -1, 3]])
    np.testing.assert_array_equal(t[[1, 2], [3, -4]].to_numpy(), x[[1, 2], [3, -4]])
    np.testing.assert_array_equal(t[:, t[0] > 0].to_numpy(), x[:, x[0] > 0])


@pytest.mark.parametrize("size", [1, 2, 1000, 2048, 2049, 70_000, 1_000_003])
def test_sorts_of_any_length(size) -> None:
    x = normal(size)
    x[::7] = x[0]
    np.testing.assert_array_equal(F.argsort(Tensor(x)).to_numpy(), np.argsort(x, kind="stable"))
    backwards = np.argsort(-x, kind="stable")
    np.testing.assert_array_equal(F.argsort(Tensor(x), ascending=False).to_numpy(), backwards)


@pytest.mark.parametrize("shape, k", [((4, 32_000), 50), ((64, 1000), 1), ((1, 300_000), 100), ((3, 5000), 5000)])
def test_the_largest_are_selected(shape, k) -> None:
    x = normal(*shape)
    values, places = F.top_k(Tensor(x), k)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places.to_numpy(), expected)
    np.testing.assert_array_equal(values.to_numpy(), np.take_along_axis(x, expected, -1))


@pytest.mark.parametrize("size, count", [(1, 1), (10, 100_000), (100_000, 100_000), (1000, 1)])
def test_scatters_with_the_same_targets_have_the_same_bits(size, count) -> None:
    x, updates, where = normal(size), normal(count, seed=2), indices(size, count)
    expected = x.copy()
    for at, update in zip(where, updates, strict=True):
        expected[at] += update
    for _ in range(3):
        result = F.scatter_add(Tensor(x), Tensor(updates), Tensor(where, dtype=DType.int64), 0)
        np.testing.assert_array_equal(result.to_numpy(), expected)
    expected = x.copy()
    for at, update in zip(where, updates, strict=True):
        expected[at] = update
    result = F.scatter(Tensor(x), Tensor(updates), Tensor(where, dtype=DType.int64), 0)
    np.testing.assert_array_equal(result.to_numpy(), expected)


@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**62)])
def test_indices_out_of_range_are_named(bad) -> None:
    x = Tensor(normal(5, 3))
    where = Tensor(np.array([[0], [bad]]), dtype=DType.int64)
    calls = [
        lambda: F.gather_nd(x, where),
        lambda: F.scatter_nd(x, Tensor(normal(2, 3)), where),
        lambda: F.scatter_add(x, Tensor(normal(2, 1)), where, 0),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=f"index {bad} is out of range for axis 0 with size 5"):
            call()
            DEVICE.synchronize()
    # The device goes on.
    np.testing.assert_array_equal(F.relu(Tensor([-1.0, 2.0])).to_numpy(), [0, 2])


@pytest.mark.parametrize("size", [2**12, 2**22 + 5])
def test_long_running_sums(size) -> None:
    x = normal(size)
    np.testing.assert_allclose(F.cumsum(Tensor(x), 0).to_numpy(), np.cumsum(x, dtype=np.float64), rtol=1e-5, atol=1e-3)


def test_what_only_the_cpu_has_says_so() -> None:
    with pytest.raises(NotImplementedError, match="irfft is not implemented on a GPU"):
        F.irfft(Tensor(normal(4, 5))).to_numpy()
    boxes, scores = Tensor(normal(1, 3, 4)), Tensor(normal(1, 1, 3))
    with pytest.raises(NotImplementedError, match="non_maximum_suppression is not implemented on a GPU"):
        F.non_maximum_suppression(boxes, scores, 2, 0.5, 0.0).to_numpy()
    assert F.irfft(Tensor(normal(4, 5)).to(CPU())).shape == (4, 8)


def test_images() -> None:
    x = normal(2, 9, 12, 8)
    t, host = Tensor(x), Tensor(x, device=CPU())
    for op in (
        lambda t: F.max_pool2d(t, (3, 3), 2, padding=1),
        lambda t: F.avg_pool2d(t, (2, 3), ceil_mode=True),
        lambda t: F.resize_linear(t, (2, 5, 20, 8)),
        lambda t: F.pad(t, [0, 0, 1, 2, 2, 1, 0, 0], mode="reflect"),
        lambda t: F.conv2d_transpose(t, Tensor(normal(3, 3, 4, 8), device=t.device), stride=(2, 2)),
        lambda t: F.fold(t.reshape(2, 72, 12), (4, 5), (2, 2)),
    ):
        np.testing.assert_allclose(op(t).to_numpy(), op(host).to_numpy(), rtol=1e-4, atol=1e-4)
