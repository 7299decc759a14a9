"""Indexed access: gather_nd, scatters, masked_scatter, fold, and vectors of repeats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import DeviceRef, Dim, Graph, TensorType, ops

from helpers import evaluate, tensor

FOLDS = json.loads((Path(__file__).parent / "data" / "fold.json").read_text())
COMBINED = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


def shape_of(build, *types: TensorType) -> list:
    with Graph("shapes", input_types=types) as graph:
        shape = build(*graph.inputs).shape
    return [int(dim) if str(dim).isdigit() else str(dim) for dim in shape]


def refused(error: type, match: str, build, *types: TensorType) -> None:
    with pytest.raises(error, match=match):
        with Graph("refused", input_types=types) as graph:
            build(*graph.inputs)


F53 = np.arange(15, dtype=np.float32).reshape(5, 3)


class TestTypes:
    def test_gather_nd(self) -> None:
        documented = tensor("bfloat16", "a", "b", "c", "d", "e"), tensor("int32", "a", "f", 3)
        assert shape_of(lambda x, i: ops.gather_nd(x, i, batch_dims=1), *documented) == ["a", "f", "e"]
        x = tensor("float32", 5, 3)
        assert shape_of(ops.gather_nd, x, tensor("int32", 4, 0)) == [4, 5, 3]
        assert shape_of(ops.gather_nd, x, tensor("int32", 4, 2)) == [4]
        assert shape_of(ops.gather_nd, x, tensor("uint8", 2)) == []
        refused(ValueError, "Not enough dims in the input", ops.gather_nd, x, tensor("int32", 4, 3))
        refused(ValueError, "at least one axis", ops.gather_nd, x, tensor("int32"))
        refused(ValueError, "must be static", ops.gather_nd, x, tensor("int32", 4, "k"))
        refused(ValueError, "must be integral", ops.gather_nd, x, tensor("float32", 4, 1))
        batched = lambda n: lambda v, i: ops.gather_nd(v, i, n)  # noqa: E731
        refused(ValueError, "must match up to batch_dims=1", batched(1), x, tensor("int32", 4, 1))
        refused(ValueError, "must be non-negative", batched(-1), x, tensor("int32", 5, 1))
        refused(ValueError, "Not enough dims in the indices", batched(2), x, tensor("int32", 5, 0))
        refused(ValueError, "Not enough dims", batched(3), x, tensor("int32", 5, 1))
        refused(ValueError, "Not enough dims", batched(2**62), x, tensor("int32", 5, 1))

    @pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul"])
    def test_scatter(self, name: str) -> None:
        along = lambda axis: lambda x, u, i: getattr(ops, name)(x, u, i, axis)  # noqa: E731
        x, i = tensor("float32", 5, 3), tensor("int64", 2, 3)
        assert shape_of(along(0), x, tensor("float32", 2, 3), i) == [5, 3]
        assert shape_of(along(0), x, tensor("float32", 2, 2), tensor("int64", 2, 2)) == [5, 3]
        symbols = tensor("float32", "a", "b"), tensor("float32", "c", "d"), tensor("int64", "c", "d")
        assert shape_of(along(0), *symbols) == ["a", "b"]
        refused(ValueError, "larger than the input", along(0), x, tensor("float32", 2, 4), tensor("int64", 2, 4))
        refused(ValueError, "the same shape", along(0), x, tensor("float32", 2, 3), tensor("int64", 2, 2))
        refused(ValueError, "the rank of the input", along(0), x, tensor("float32", 2), tensor("int64", 2))
        refused(ValueError, "must match", along(0), x, tensor("float64", 2, 3), i)
        refused(ValueError, "must be integral", along(0), x, tensor("float32", 2, 3), tensor("float32", 2, 3))
        refused(ValueError, "axis 2", along(2), x, tensor("float32", 2, 3), i)
        refused(ValueError, "axis -3", along(-3), x, tensor("float32", 2, 3), i)
        refused(ValueError, "axis -1", along(-1), tensor("float32"), tensor("float32"), tensor("int64"))

    @pytest.mark.parametrize(
        "name", ["scatter_nd", "scatter_nd_add", "scatter_nd_max", "scatter_nd_min", "scatter_nd_mul"]
    )
    def test_scatter_nd(self, name: str) -> None:
        op, x = getattr(ops, name), tensor("float32", 5, 3)
        assert shape_of(op, x, tensor("float32", 4, 3), tensor("int64", 4, 1)) == [5, 3]
        assert shape_of(op, x, tensor("float32", 4, 6), tensor("int32", 4, 6, 2)) == [5, 3]
        assert shape_of(op, x, tensor("float32", 4, 5, 3), tensor("int64", 4, 0)) == [5, 3]
        assert shape_of(op, x, tensor("float32", "m", 3), tensor("int64", "n", 1)) == [5, 3]
        refused(ValueError, "Not enough dims", op, x, tensor("float32", 4), tensor("int64", 4, 3))
        refused(ValueError, r"must have the shape \[4, 3\]", op, x, tensor("float32", 4, 2), tensor("int64", 4, 1))
        refused(ValueError, r"must have the shape \[4, 3\]", op, x, tensor("float32", 4), tensor("int64", 4, 1))
        refused(ValueError, "must be static", op, x, tensor("float32", 4), tensor("int64", 4, "k"))
        refused(ValueError, "at least one axis", op, x, tensor("float32"), tensor("int64"))
        refused(ValueError, "must match", op, x, tensor("int32", 4, 3), tensor("int64", 4, 1))

    def test_devices(self) -> None:
        far = TensorType(DType.int64, [2, 3], DeviceRef.GPU(0))
        refused(ValueError, "same device", ops.scatter, tensor("float32", 5, 3), tensor("float32", 2, 3), far)
        refused(ValueError, "same device", ops.gather_nd, tensor("float32", 5, 3, 1, 1), far)

    def test_fold(self) -> None:
        fold = lambda *sizes, **more: lambda x: ops.fold(x, *sizes, **more)  # noqa: E731
        small = fold((4, 5), (2, 2))
        assert shape_of(small, tensor("float32", 2, 12, 12)) == [2, 3, 4, 5]
        assert shape_of(small, tensor("float32", "n", Dim("c") * 4, "l")) == ["n", "c", 4, 5]
        assert shape_of(fold(("h", "w"), (2, 2)), tensor("float32", "n", Dim("c") * 4, "l"))[2:] == ["h", "w"]
        refused(
            ValueError, r"\(11\) must match the calculated number of blocks \(12\)", small, tensor("float32", 2, 12, 11)
        )
        refused(ValueError, r"\(11\) must be a multiple", small, tensor("float32", 2, 11, 12))
        refused(ValueError, "rank 3", small, tensor("float32", 12, 12))
        x = tensor("float32", 2, 12, 12)
        refused(ValueError, "stride must be at least 1; got 0", fold((4, 5), (2, 2), stride=0), x)
        refused(ValueError, "dilation must be at least 1", fold((4, 5), (2, 2), dilation=(1, 0)), x)
        refused(ValueError, "padding must be at least 0", fold((4, 5), (2, 2), padding=-1), x)
        refused(ValueError, "two positive sizes", fold((4, 0), (2, 2)), x)
        refused(ValueError, "two positive sizes", fold((4, 5, 6), (2, 2)), x)
        refused(ValueError, "does not fit", fold((1, 1), (4, 4)), tensor("float32", 2, 16, 1))
        refused(ValueError, "", fold((4, 5), (2, 2), padding=2**62), x)
        refused(ValueError, "", fold((4, 5), (2**62, 2**62)), x)
        refused(ValueError, "int or two", fold((4, 5), (2, 2), stride=(1, 1, 1)), x)


class TestRuns:
    def test_duplicates(self, session) -> None:
        updates, places = np.array([1, 2, 3, 4], np.float32), np.array([1, 1, -1, 1])
        x = np.zeros(3, np.float32)
        (y,) = evaluate(session, lambda x, u, i: ops.scatter(x, u, i), x, updates, places)
        np.testing.assert_array_equal(y, [0, 4, 3])
        (y,) = evaluate(session, lambda x, u, i: ops.scatter_add(x, u, i), x, updates, places)
        np.testing.assert_array_equal(y, [0, 7, 3])

    @pytest.mark.parametrize("kind", COMBINED)
    @pytest.mark.parametrize("axis", [0, 1])
    def test_like_numpy(self, session, kind: str, axis: int) -> None:
        rng = np.random.default_rng(3)
        x, updates = rng.standard_normal((40, 30)), rng.standard_normal((40, 30))
        places = rng.integers(-30, 30, (40, 30))
        expected = x.copy()
        at = [*np.indices(places.shape)]
        at[axis] = places
        COMBINED[kind].at(expected, tuple(at), updates)
        (y,) = evaluate(session, lambda *v: getattr(ops, f"scatter_{kind}")(*v, axis), x, updates, places)
        np.testing.assert_array_equal(y, expected)

    def test_bits_do_not_depend_on_threads(self) -> None:
        rng = np.random.default_rng(4)
        x, updates = rng.standard_normal((500, 64), np.float32), rng.standard_normal((9000, 64), np.float32)
        rows, flat = rng.integers(0, 500, (9000, 1)), rng.integers(0, 64, (9000, 64))
        results = set()
        for threads in (1, 2, 8):
            session = InferenceSession(devices=[CPU()], num_threads=threads)
            (a,) = evaluate(session, ops.scatter_nd_add, x, updates, rows)
            (b,) = evaluate(session, ops.scatter_add, updates, updates, flat)
            (c,) = evaluate(
                session, lambda *v: ops.scatter_add(*v, 0), x[:, 0].copy(), updates[:, 0].copy(), rows[:, 0].copy()
            )
            results.add(a.tobytes() + b.tobytes() + c.tobytes())
        assert len(results) == 1

    @pytest.mark.parametrize(
        "dtype, index",
        [("int64", 5), ("int64", -6), ("int64", -(2**63)), ("uint64", 2**64 - 1), ("int8", 5), ("uint8", 255)],
    )
    def test_out_of_range(self, session, dtype: str, index: int) -> None:
        bad = np.array([[0], [index]], dtype)
        with pytest.raises(IndexError, match=f"index {index} is out of range for axis 0 with size 5"):
            evaluate(session, ops.gather_nd, F53, bad)
        with pytest.raises(IndexError, match=f"index {index} is out of range for axis 0 with size 5"):
            evaluate(session, ops.scatter_nd_add, F53, F53[:2], bad)
        whole = np.broadcast_to(bad, (2, 3)).copy()
        with pytest.raises(IndexError, match=f"index {index} is out of range for axis 0 with size 5"):
            evaluate(session, lambda *v: ops.scatter(*v, axis=0), F53, F53[:2], whole)

    def test_second_axis_is_named(self, session) -> None:
        with pytest.raises(IndexError, match="index 3 is out of range for axis 1 with size 3"):
            evaluate(session, ops.gather_nd, F53, np.array([[4, 3]]))

    def test_empty(self, session) -> None:
        none = np.zeros((0, 3), np.float32)
        (y,) = evaluate(session, lambda *v: ops.scatter(*v, 0), F53, none, np.zeros((0, 3), np.int64))
        np.testing.assert_array_equal(y, F53)
        with pytest.raises(IndexError, match="axis 0 with size 0"):
            evaluate(session, lambda *v: ops.scatter(*v, 0), none, F53[:1], np.zeros((1, 3), np.int64))
        with pytest.raises(IndexError, match="axis 0 with size 0"):
            evaluate(session, ops.scatter_nd, none, F53[:1], np.zeros((1, 1), np.int64))
        with pytest.raises(IndexError, match="index 7 is out of range"):
            evaluate(
                session, ops.scatter_nd, np.zeros((5, 0), np.float32), np.zeros((1, 0), np.float32), np.array([[7]])
            )

    def test_sizes_that_differ_at_run_time(self, session) -> None:
        with Graph(
            "parts", input_types=[tensor("float32", "n", 3), tensor("float32", "m", 3), tensor("int64", "k", 3)]
        ) as graph:
            graph.output(ops.scatter(*graph.inputs, 1))
        model = session.load(graph)
        (y,) = model.execute(F53, -F53[:2], np.tile([2, 0, 1], (2, 1)))
        np.testing.assert_array_equal(y.to_numpy()[:2], -F53[:2][:, [1, 2, 0]])
        np.testing.assert_array_equal(y.to_numpy()[2:], F53[2:])
        with pytest.raises(ValueError, match="scatter indices and updates"):
            model.execute(F53, F53[:2], np.zeros((3, 3), np.int64))
        with pytest.raises(ValueError):
            model.execute(F53[:1], F53[:2], np.zeros((2, 3), np.int64))

    def test_the_input_can_be_used_again(self, session) -> None:
        def both(x, u, i):
            doubled = x * 2
            return ops.scatter_add(doubled, u, i, 0) - doubled

        (y,) = evaluate(session, both, F53, F53, np.zeros((5, 3), np.int64))
        np.testing.assert_array_equal(y[0], F53.sum(axis=0))
        np.testing.assert_array_equal(y[1:], 0)

    def test_the_input_may_be_the_updates(self, session) -> None:
        places = np.tile([[4], [3], [2], [1], [0]], (1, 3))
        (y,) = evaluate(session, lambda x, i: ops.scatter(x, x, i, 0), F53, places)
        np.testing.assert_array_equal(y, F53[::-1])


class TestMaskedScatter:
    MASK = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]], bool)

    def test_more_updates_than_needed(self, session) -> None:
        updates = -np.arange(1, 8, dtype=np.float32)
        (y,) = evaluate(session, lambda x, m, u: ops.masked_scatter(x, m, u, "k"), F53, self.MASK, updates)
        expected = F53.copy()
        expected[self.MASK] = updates[:4]
        np.testing.assert_array_equal(y, expected)

    def test_none_and_all(self, session) -> None:
        for mask in (np.zeros((5, 3), bool), np.ones((5, 3), bool)):
            (y,) = evaluate(session, lambda x, m, u: ops.masked_scatter(x, m, u, "k"), F53, mask, -F53)
            np.testing.assert_array_equal(y, np.where(mask, -F53, F53))
        (y,) = evaluate(
            session, lambda x, m, u: ops.masked_scatter(x, m, u, 0), F53, np.zeros(3, bool), np.zeros(0, np.float32)
        )
        np.testing.assert_array_equal(y, F53)

    def test_failures(self, session) -> None:
        with pytest.raises(ValueError, match="out of range for axis 0 with size 3"):
            evaluate(session, lambda x, m, u: ops.masked_scatter(x, m, u, "k"), F53, self.MASK, F53[0])
        with pytest.raises(ValueError, match="5"):
            evaluate(session, lambda x, m, u: ops.masked_scatter(x, m, u, 5), F53, self.MASK, F53)
        scatter = lambda x, m, u: ops.masked_scatter(x, m, u, "k")  # noqa: E731
        x = tensor("float32", 5, 3)
        refused(ValueError, "boolean", scatter, x, tensor("int32", 5, 3), x)
        refused(ValueError, "must match", scatter, x, tensor("bool", 5, 3), tensor("float64", 7))
        refused(ValueError, "does not fit", scatter, x, tensor("bool", 2, 5, 3), x)
        refused(ValueError, "broadcast", scatter, x, tensor("bool", 4, 3), x)
        too_few = lambda x, m, u: ops.masked_scatter(x, m, u, 9)  # noqa: E731
        refused(ValueError, "3 updates for 9", too_few, x, tensor("bool", 5, 3), tensor("float32", 3))


class TestRepeats:
    @pytest.mark.parametrize("repeats", [[2, 0, 1, 3, 0], [0, 0, 0, 0, 0], [0, 0, 5, 0, 0], [1, 1, 1, 1, 1]])
    def test_vectors(self, session, repeats: list[int]) -> None:
        (y,) = evaluate(session, lambda x, r: ops.repeat_interleave(x, r, 0, "k"), F53, np.array(repeats))
        np.testing.assert_array_equal(y, np.repeat(F53, repeats, 0))

    def test_known_vectors_need_no_out_dim(self, session) -> None:
        repeats = np.array([2, 0, 1, 3, 0])
        assert shape_of(lambda x: ops.repeat_interleave(x, repeats, 0), tensor("float32", 5, 3)) == [6, 3]
        (y,) = evaluate(session, lambda x: ops.repeat_interleave(x, repeats, 0), F53)
        np.testing.assert_array_equal(y, np.repeat(F53, repeats, 0))
        refused(ValueError, "negative", lambda x: ops.repeat_interleave(x, -repeats, 0), tensor("float32", 5, 3))

    def test_failures(self, session) -> None:
        repeat = lambda dim=None: lambda x, r: ops.repeat_interleave(x, r, 0, dim)  # noqa: E731
        x = tensor("float32", 5, 3)
        refused(ValueError, "out_dim must be provided", repeat(), x, tensor("int64", 5))
        refused(ValueError, "must be integers", repeat("k"), x, tensor("float32", 5))
        refused(ValueError, "one for each of the 5", repeat("k"), x, tensor("int64", 4))
        refused(ValueError, "one for each of the 5", repeat("k"), x, tensor("int64", 5, 1))
        with pytest.raises(ValueError, match="negative"):
            evaluate(session, repeat("k"), F53, np.array([1, 2, -1, 4, 0]))
        with pytest.raises(ValueError, match="6"):
            evaluate(session, repeat(7), F53, np.array([2, 0, 1, 3, 0]))
        with pytest.raises((ValueError, IndexError)):
            evaluate(session, repeat(0), F53, np.array([2**62, 2**62, 2**62, 2**62, 0]))


class TestFold:
    @pytest.mark.parametrize("case", FOLDS, ids=lambda case: str(case["options"]))
    def test_like_pytorch(self, session, case: dict) -> None:
        blocks = np.array(case["blocks"], np.float32).reshape(case["shape"])
        options = {name: tuple(size) if isinstance(size, list) else size for name, size in case["options"].items()}
        (y,) = evaluate(session, lambda x: ops.fold(x, **options), blocks)
        np.testing.assert_allclose(y, np.array(case["image"], np.float32).reshape(y.shape), rtol=1e-6)

    def test_sizes_are_checked_at_run_time(self, session) -> None:
        with Graph("fold", input_types=[tensor("float32", "n", "c", "l")]) as graph:
            graph.output(ops.fold(graph.inputs[0], (4, 5), (2, 2)))
        model = session.load(graph)
        (y,) = model.execute(np.ones((2, 8, 12), np.float32))
        assert y.shape == (2, 2, 4, 5) and y.to_numpy().sum() == 2 * 8 * 12
        with pytest.raises(ValueError, match="number of blocks"):
            model.execute(np.ones((2, 8, 11), np.float32))
        with pytest.raises(ValueError, match="multiple of the kernel size"):
            model.execute(np.ones((2, 7, 12), np.float32))


class TestEager:
    def test_every_function(self) -> None:
        x, updates = Tensor.constant(F53), Tensor.constant(-F53[:2])
        places = Tensor.constant(np.array([[1, 0, 4], [1, 2, 3]]))
        rows = Tensor.constant(np.array([[1], [1]]))
        for kind, combine in {"": None, **{f"_{kind}": ufunc for kind, ufunc in COMBINED.items()}}.items():
            expected, slices = F53.copy(), F53.copy()
            if combine is None:
                for i, j in np.ndindex(2, 3):
                    expected[[[1, 0, 4], [1, 2, 3]][i][j], j] = -F53[i, j]
                slices[1] = -F53[1]
            else:
                combine.at(expected, (np.array([[1, 0, 4], [1, 2, 3]]), np.indices((2, 3))[1]), -F53[:2])
                combine.at(slices, [1, 1], -F53[:2])
            got = getattr(F, f"scatter{kind}")(x, updates, places, axis=0)
            np.testing.assert_array_equal(got.to_numpy(), expected)
            got = getattr(F, f"scatter_nd{kind}")(x, updates, rows)
            np.testing.assert_array_equal(got.to_numpy(), slices)
        np.testing.assert_array_equal(F.gather_nd(x, rows).to_numpy(), F53[[1, 1]])
        mask = Tensor.constant(TestMaskedScatter.MASK)
        assert F.masked_scatter(x, mask, updates, 4).to_numpy()[4, 2] == -3
        repeated = F.repeat_interleave(x, Tensor.constant(np.array([1, 0, 2, 0, 0])), axis=0, out_dim=3)
        np.testing.assert_array_equal(repeated.to_numpy(), F53[[0, 2, 2]])
        assert F.fold(Tensor.ones([1, 4, 4]), (3, 3), (2, 2)).to_numpy()[0, 0, 1, 1] == 4

    def test_chains(self) -> None:
        x, places = Tensor.constant(F53), Tensor.constant(np.zeros((5, 3), np.int64))
        with F.lazy():
            y = x * 2
            z = F.scatter_add(y, x, places, axis=0)
            z = F.scatter(z, x, places + 1, axis=0) + y
        expected = 2 * F53
        expected[0] += F53.sum(axis=0)
        expected[1] = F53[4]
        np.testing.assert_array_equal(z.to_numpy(), expected + 2 * F53)

    def test_failures_name_the_op(self) -> None:
        x = Tensor.constant(F53)
        with pytest.raises(IndexError, match="index 9 is out of range for axis 0 with size 5"):
            F.scatter_nd(x, Tensor.ones([1, 3]), Tensor.constant(np.array([[9]]))).to_numpy()


def test_many_indices_without_coordinates_take_no_time() -> None:
    nowhere = Tensor(np.zeros((2**40, 0), np.int64))
    assert F.gather_nd(Tensor(np.ones((2, 0), np.float32)), nowhere).shape == (2**40, 2, 0)
    nothing = Tensor(np.zeros((2**40, 0), np.float32))
    assert F.scatter_nd_add(Tensor(np.zeros(0, np.float32)), nothing, nowhere).shape == (0,)
