"""top_k, bottom_k, argsort and nonzero, in graphs and on tensors."""

from __future__ import annotations

import numpy as np
import pytest
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import Dim, Graph, TensorType, ops

from helpers import CPU, evaluate

NAN, INF = float("nan"), float("inf")
SPECIAL = np.array([0.0, NAN, -1.0, INF, -0.0, NAN, -INF, -1.0, 5.0], np.float32)


def run(session, forward, *arrays: np.ndarray, dims: list | None = None) -> list[np.ndarray]:
    shapes = [array.shape for array in arrays] if dims is None else dims
    types = [TensorType(DType.from_numpy(array.dtype), shape, CPU) for array, shape in zip(arrays, shapes)]
    return evaluate(session, forward, *arrays, types=types)


def test_nan_is_the_largest_number_and_equal_elements_keep_their_order(session) -> None:
    (ascending,) = run(session, lambda x: ops.argsort(x), SPECIAL)
    assert ascending.tolist() == [6, 2, 7, 0, 4, 8, 3, 1, 5]
    (descending,) = run(session, lambda x: ops.argsort(x, ascending=False), SPECIAL)
    assert descending.tolist() == [1, 5, 3, 8, 0, 4, 2, 7, 6]
    values, indices = run(session, lambda x: ops.top_k(x, 4), SPECIAL)
    assert indices.tolist() == [1, 5, 3, 8]
    assert np.array_equal(values, [NAN, NAN, INF, 5.0], equal_nan=True)
    values, indices = run(session, lambda x: ops.bottom_k(x, 5), SPECIAL)
    assert indices.tolist() == [6, 2, 7, 0, 4]
    # Both zeros are returned as they are.
    assert np.signbit(values).tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 63, 64, 65, 1000, 1025, 20_000, 140_000])
@pytest.mark.parametrize("pattern", ["random", "equal", "sorted", "reversed", "two", "outlier"])
def test_any_pattern_of_any_size(session, size: int, pattern: str) -> None:
    rng = np.random.default_rng(size)
    x = {
        "random": rng.standard_normal(size),
        "equal": np.full(size, 3.0),
        "sorted": np.arange(size),
        "reversed": np.arange(size)[::-1],
        "two": rng.integers(0, 2, size),
        "outlier": np.where(np.arange(size) == size // 2, 1e30, 1.0),
    }[pattern].astype(np.float32)
    ks = sorted({1, min(5, size), min(40, size), size})

    def build(x):
        return [ops.argsort(x), ops.argsort(x, False), *(part for k in ks for part in ops.top_k(x, k))]

    up, down, *best = run(session, build, x)
    stable_down = size - 1 - np.argsort(x[::-1], kind="stable")[::-1]
    assert np.array_equal(up, np.argsort(x, kind="stable"))
    assert np.array_equal(down, stable_down)
    for k, values, indices in zip(ks, best[::2], best[1::2]):
        assert np.array_equal(indices, stable_down[:k])
        assert np.array_equal(values, x[stable_down[:k]])


def test_k_may_be_anything_up_to_the_size(session) -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    values, indices = run(session, lambda x: ops.top_k(x, 0, axis=0), x)
    assert values.shape == indices.shape == (0, 4)
    values, _ = run(session, lambda x: ops.bottom_k(x, 3, axis=-2), x)
    assert np.array_equal(values, x)


def test_a_view_is_sorted_where_it_is(session) -> None:
    x = np.random.default_rng(0).integers(0, 50, (6, 40)).astype(np.int16)
    values, indices = run(session, lambda x: ops.top_k(x.T[5:30:2], 3, axis=0), x)
    view = x.T[5:30:2]
    places = view.shape[0] - 1 - np.argsort(view[::-1], axis=0, kind="stable")[::-1][:3]
    assert np.array_equal(indices, places)
    assert np.array_equal(values, np.take_along_axis(view, places, 0))


def test_only_what_is_used_is_computed(session) -> None:
    x = np.array([3, 1, 2], np.int64)
    assert run(session, lambda x: ops.top_k(x, 2)[0], x)[0].tolist() == [3, 2]
    assert run(session, lambda x: ops.top_k(x, 2)[1], x)[0].tolist() == [0, 2]


def test_types_and_errors_of_graphs() -> None:
    types = [TensorType(DType.float32, ["n", 4], CPU), TensorType(DType.float32, [], CPU)]
    with Graph("errors", input_types=types) as graph:
        x, scalar = (value.tensor for value in graph.inputs)
        values, indices = ops.top_k(x, 5, axis=0)
        assert values.shape == indices.shape == [5, 4]
        assert (values.dtype, indices.dtype) == (DType.float32, DType.int64)
        with pytest.raises(ValueError, match=r"k \(5\) cannot be larger than dimension size along axis"):
            ops.top_k(x, 5)
        with pytest.raises(ValueError, match=r"k \(9\) cannot be larger than dimension size along axis"):
            ops.bottom_k(x, 9, axis=1)
        for k in (-1, -(2**62)):
            with pytest.raises(ValueError, match=r"k \(-\d+\) must not be negative"):
                ops.top_k(x, k, axis=0)
        with pytest.raises(ValueError, match="axis 2"):
            ops.top_k(x, 1, axis=2)
        with pytest.raises(ValueError, match="axis -1"):
            ops.top_k(scalar, 1)
        with pytest.raises(TypeError):
            ops.top_k(x, 2.5)
        for bad in (x, scalar):
            with pytest.raises(ValueError, match="argsort only implemented for input tensors of rank 1"):
                ops.argsort(bad)
        with pytest.raises(ValueError, match="Scalar inputs not supported"):
            ops.nonzero(scalar, "m")
        for bad in (-3, "not a name"):
            with pytest.raises((ValueError, TypeError)):
                ops.nonzero(x, bad)
        assert ops.nonzero(x, "m").shape == ["m", 2]
        assert ops.nonzero(x, Dim("n") + 1).shape == [Dim("n") + 1, 2]


def test_k_is_checked_when_a_symbolic_size_is_known(session) -> None:
    with Graph("late", input_types=[TensorType(DType.float32, ["n"], CPU)]) as graph:
        graph.output(ops.top_k(graph.inputs[0].tensor, 3)[0])
    model = session.load(graph)
    assert model.execute(np.array([1, 5, 2, 4], np.float32))[0].to_numpy().tolist() == [5, 4, 2]
    with pytest.raises(ValueError, match=r"k \(3\) cannot be larger than dimension size along axis 0, which is 2"):
        model.execute(np.array([1, 5], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.uint64, np.bool_])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 0, 3), (300, 400)])
def test_nonzero(session, dtype: type, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(0, 3, shape).astype(dtype)
    (found,) = run(session, lambda x: ops.nonzero(x, "found"), x)
    assert found.dtype == np.int64
    assert np.array_equal(found, np.argwhere(x))
    names = [["a", "b", "c"][: len(shape)]]
    (found,) = run(session, lambda x: ops.nonzero(x, "found"), x, dims=names)
    assert np.array_equal(found, np.argwhere(x))


def test_nonzero_of_special_numbers(session) -> None:
    (found,) = run(session, lambda x: ops.nonzero(x, "found"), SPECIAL)
    assert found[:, 0].tolist() == [1, 2, 3, 5, 6, 7, 8]
    for x in (np.zeros((3, 4), np.bool_), np.zeros((0, 4), np.float32), np.zeros((4, 0), np.int32)):
        assert run(session, lambda x: ops.nonzero(x, "found"), x)[0].shape == (0, 2)
    assert run(session, lambda x: ops.nonzero(x, "found"), np.ones((2, 2), np.bool_))[0].shape == (4, 2)


def test_nonzero_into_a_known_dim(session) -> None:
    x = np.array([[0, 1, 2], [3, 0, 0]], np.int32)
    assert run(session, lambda x: ops.nonzero(x, 3), x)[0].tolist() == [[0, 1], [0, 2], [1, 0]]
    with pytest.raises(ValueError, match=r"(?s)2.*3"):
        run(session, lambda x: ops.nonzero(x, 2), x)
    # The number must be that of the rows of another input.
    (sums,) = run(
        session,
        lambda x, y: ops.nonzero(x, "n") + y,
        x,
        np.ones((3, 2), np.int64),
        dims=[[2, 3], ["n", 2]],
    )
    assert sums.tolist() == [[1, 2], [1, 3], [2, 1]]
    with pytest.raises(ValueError, match=r"(?s)4.*3"):
        run(session, lambda x, y: ops.nonzero(x, "n") + y, x, np.ones((4, 2), np.int64), dims=[[2, 3], ["n", 2]])


def test_nonzero_rows_are_gathered(session) -> None:
    rng = np.random.default_rng(5)
    x, mask = rng.standard_normal((50, 3)).astype(np.float32), rng.integers(0, 2, 50).astype(np.bool_)

    def build(x, mask):
        rows = ops.nonzero(mask, "kept").reshape(["kept"])
        return ops.gather(x, rows, axis=0) * 2

    (kept,) = run(session, build, x, mask, dims=[["n", 3], ["n"]])
    assert np.array_equal(kept, x[mask] * 2)


def test_eager() -> None:
    x = Tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    values, indices = F.top_k(x, 2)
    assert values.to_numpy().tolist() == [[3, 2], [5, 4]]
    assert indices.to_numpy().tolist() == [[0, 2], [1, 2]]
    values, _ = F.bottom_k(x, k=1, axis=0)
    assert values.to_numpy().tolist() == [[0, 1, 2]]
    assert F.argsort(x[0]).to_numpy().tolist() == [1, 2, 0]
    assert F.argsort(x[0], ascending=False).to_numpy().tolist() == [0, 2, 1]
    found = F.nonzero(x, "found")
    assert [int(size) for size in found.shape] == [5, 2]
    assert found.to_numpy().tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2]]
    # The same name may stand for another number the next time.
    assert F.nonzero(Tensor([0.0, 1.0]), "found").to_numpy().tolist() == [[1]]
    with pytest.raises(ValueError, match=r"k \(4\) cannot be larger"):
        F.top_k(x, 4)


def test_eager_calls_with_many_sizes() -> None:
    rng = np.random.default_rng(3)
    for size in range(1, 40):
        x = rng.integers(-5, 5, size).astype(np.float32)
        k = 1 + size // 2
        values, indices = F.top_k(Tensor(x), k)
        order = size - 1 - np.argsort(x[::-1], kind="stable")[::-1][:k]
        assert np.array_equal(indices.to_numpy(), order)
        assert np.array_equal(values.to_numpy(), x[order])
        assert np.array_equal(F.nonzero(Tensor(x), "m").to_numpy(), np.argwhere(x))
