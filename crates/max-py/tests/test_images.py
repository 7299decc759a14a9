"""Pooling and resizing through the public API: PyTorch's results, shapes, dtypes, refusals and failures at run time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType, ops

from helpers import CPU, REFUSED, shapes_of, tensor

sys.path.insert(0, str(Path(__file__).resolve().parent / "goldens"))
import images  # noqa: E402

GOLDENS = images.load()
image = tensor("float32", 2, 8, 9, 3)


def run(session, forward, *arrays: np.ndarray, types=None) -> np.ndarray:
    types = types or [TensorType(DType.from_numpy(a.dtype), a.shape, CPU) for a in arrays]
    with Graph("images", input_types=types) as graph:
        graph.output(forward(*(value.tensor for value in graph.inputs)))
    (result,) = session.load(graph).execute(*arrays)
    return result.to_numpy()


def refused(forward, *types, kind=REFUSED, match=None) -> str:
    with pytest.raises(kind, match=match) as caught:
        shapes_of(forward, *types)
    return str(caught.value)


class TestPyTorch:
    @pytest.mark.parametrize(
        "name, case",
        images.keys(),
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_results(self, session, name: str, case: dict) -> None:
        x, want = images.image(*case["size"]), GOLDENS[name]
        if "to" in case:
            size = (*x.shape[:2], *case["to"])
            resize = {
                "nearest": lambda x: ops.resize_nearest(x, size, 2, 2),
                "nearest-exact": lambda x: ops.resize_nearest(x, size, 0, 1),
                "bilinear": lambda x: ops.resize(x, size),
                "bilinear-corners": lambda x: ops.resize_linear(x, size, 1),
                "bilinear-antialias": lambda x: ops.resize_linear(x, size, 0, True),
                "bicubic": lambda x: ops.resize(x, size, ops.InterpolationMode.BICUBIC),
            }[case["mode"]]
            got = run(session, resize, x)
        else:
            move = (
                case["kernel"],
                case["stride"],
                case.get("dilation", 1),
                case["padding"],
                case["ceil"],
            )
            last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            if name.startswith("max"):
                got = run(session, lambda x: ops.max_pool2d(x, *move), last)
            else:
                got = run(session, lambda x: ops.avg_pool2d(x, *move, case["counted"]), last)
            got = got.transpose(0, 3, 1, 2)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)

    def test_planes(self, session) -> None:
        """Channels first, as PyTorch has them: the same results without a copy in between."""
        for name, case in images.keys()[:6]:
            x, want = images.image(*case["size"]), GOLDENS[name]
            move = (case["kernel"], case["stride"], 1, case["padding"], case["ceil"])

            def forward(x):
                rows = ops.permute(x, [0, 2, 3, 1])
                pooled = ops.max_pool2d(rows, *move) if name[0] == "m" else ops.avg_pool2d(rows, *move, case["counted"])
                return ops.permute(pooled, [0, 3, 1, 2])

            np.testing.assert_allclose(run(session, forward, x), want, rtol=2e-5, atol=2e-6)


class TestPooling:
    @pytest.mark.parametrize("op", [ops.max_pool2d, ops.avg_pool2d])
    def test_shapes(self, op) -> None:
        assert shapes_of(lambda x: op(x, (2, 3)), image) == [2, 7, 7, 3]
        assert shapes_of(lambda x: op(x, (2, 2), stride=2), image) == [2, 4, 4, 3]
        assert shapes_of(lambda x: op(x, (2, 2), stride=2, ceil_mode=True), image) == [
            2,
            4,
            5,
            3,
        ]
        assert shapes_of(lambda x: op(x, (2, 2), stride=(3, 4), padding=(1, 0)), image) == [2, 3, 2, 3]
        assert shapes_of(lambda x: op(x, (3, 3), dilation=2), image) == [2, 4, 5, 3]
        assert shapes_of(lambda x: op(x, (2, 2), padding=(0, 1, 1, 1)), image) == [
            2,
            8,
            10,
            3,
        ]
        symbols = tensor("float32", "n", "h", "w", "c")
        assert [str(d) for d in shapes_of(lambda x: op(x, (3, 3), 2, 1, 1), symbols)][0] == "n"

    @pytest.mark.parametrize("op", [ops.max_pool2d, ops.avg_pool2d])
    @pytest.mark.parametrize(
        "args, words",
        [
            (((9, 2),), "does not fit"),
            (((0, 2),), "kernel_size must be at least 1"),
            (((2, -1),), "kernel_size must be at least 1"),
            (((2,),), "kernel_size must be a height and a width"),
            (((2, 2), 0), "stride must be from 1"),
            (((2, 2), (1, 2, 3)), "expected an int or two"),
            (((2, 2), 1, 0), "dilation must be from 1"),
            (((2, 2), 1, 1, -1), "padding must be from 0"),
            (((2, 2), 2**62), "stride must be from 1"),
            (((2, 2), 1, 2**62), "dilation must be from 1"),
            (((2, 2), 1, 1, 2**62), "padding must be from 0"),
            (((2**62, 2),), "does not fit"),
            ((("k", 2), 1, 1, 0, True), "needs a kernel_size of numbers"),
        ],
    )
    def test_refusals(self, op, args, words: str) -> None:
        message = refused(lambda x: op(x, *args), image, kind=ValueError)
        assert words in message and op.__name__ in message

    def test_refused_types(self) -> None:
        refused(
            lambda x: ops.max_pool2d(x, (2, 2)),
            tensor("float32", 8, 9, 3),
            kind=ValueError,
            match="rank 4",
        )
        refused(
            lambda x: ops.avg_pool2d(x, (2, 2)),
            tensor("bool", 1, 8, 9, 3),
            kind=TypeError,
            match="bool",
        )
        refused(
            lambda x: ops.avg_pool2d(x, (2, 2), 2**31 - 1, 2**31 - 1),
            image,
            kind=ValueError,
            match="does not fit",
        )

    def test_symbolic_sizes(self, session) -> None:
        types = [tensor("float32", "n", "h", "w", 3)]
        with Graph("pool", input_types=types) as graph:
            graph.output(ops.max_pool2d(graph.inputs[0].tensor, (3, 3), 2, 1, 1, True))
        model = session.load(graph)
        for shape in [(1, 5, 6, 3), (2, 1, 9, 3), (0, 4, 4, 3), (1, 8, 8, 3)]:
            x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            (got,) = model.execute(x)
            want = run(session, lambda x: ops.max_pool2d(x, (3, 3), 2, 1, 1, True), x)
            np.testing.assert_array_equal(got.to_numpy(), want)

    def test_a_window_that_does_not_fit_fails_at_run_time(self, session) -> None:
        with Graph("pool", input_types=[tensor("float32", 1, "h", 9, 3)]) as graph:
            graph.output(ops.avg_pool2d(graph.inputs[0].tensor, (5, 2)))
        model = session.load(graph)
        assert model.execute(np.ones((1, 5, 9, 3), np.float32))[0].shape[1] == 1
        with pytest.raises(REFUSED):
            model.execute(np.ones((1, 2, 9, 3), np.float32))

    def test_global_mean_of_symbolic_sizes(self, session) -> None:
        with Graph("pool", input_types=[tensor("float32", "n", "h", "w", 5)]) as graph:
            x = graph.inputs[0].tensor
            graph.output(ops.avg_pool2d(x, (x.shape[1], x.shape[2])))
        model = session.load(graph)
        for shape in [(2, 7, 7, 5), (1, 130, 3, 5), (1, 1, 1, 5)]:
            x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
            np.testing.assert_allclose(
                model.execute(x)[0].to_numpy(),
                x.mean(axis=(1, 2), keepdims=True),
                rtol=1e-5,
                atol=1e-6,
            )
        with pytest.raises(ValueError, match="kernel_size must be at least 1"):
            model.execute(np.ones((1, 0, 3, 5), np.float32))

    def test_large_windows_are_accurate(self, session) -> None:
        x = np.random.default_rng(3).uniform(0, 1, (1, 700, 900, 2)).astype(np.float32)
        got = run(session, lambda x: ops.avg_pool2d(x, (700, 900)), x)
        np.testing.assert_allclose(got, x.astype(np.float64).mean(axis=(1, 2), keepdims=True), rtol=3e-7)

    def test_padding_never_wins(self, session) -> None:
        got = run(
            session,
            lambda x: ops.max_pool2d(x, (3, 3), 1, 1, 1),
            np.full((1, 2, 2, 1), -5, np.float32),
        )
        assert (got == -5).all()
        least = run(
            session,
            lambda x: ops.max_pool2d(x, (2, 2), 1, 1, 2),
            np.full((1, 1, 1, 1), -5, np.int8),
        )
        assert least.min() == -128 and least.max() == -5
        nothing = run(
            session,
            lambda x: ops.max_pool2d(x, (2, 2), 1, 1, 2),
            np.full((1, 1, 1, 1), -5, np.float32),
        )
        assert nothing[0, 0, 0, 0] == -np.inf

    def test_nan_wins(self, session) -> None:
        x = np.zeros((1, 4, 4, 9), np.float32)
        x[0, 0, 0, 0] = np.nan
        got = run(session, lambda x: ops.max_pool2d(x, (2, 2)), x)
        assert np.isnan(got).sum() == 1 and np.isnan(got[0, 0, 0, 0])

    def test_integers(self, session) -> None:
        x = -np.arange(36, dtype=np.int32).reshape(1, 6, 6, 1)
        got = run(session, lambda x: ops.avg_pool2d(x, (2, 2), 2), x)
        assert got.ravel().tolist() == [-3, -5, -7, -15, -17, -19, -27, -29, -31]
        full = run(
            session,
            lambda x: ops.avg_pool2d(x, (3, 3)),
            np.full((1, 3, 3, 20), 255, np.uint8),
        )
        assert (full == 255).all()

    def test_what_follows_is_part_of_the_kernel(self, session) -> None:
        with Graph("pool", input_types=[image]) as graph:
            x = graph.inputs[0].tensor
            graph.output(ops.relu(ops.max_pool2d(x, (2, 2), 2) * 2 - 1))
        summaries = session.load(graph).kernel_summaries
        assert len(summaries) == 1


class TestResizing:
    def test_shapes(self) -> None:
        x = tensor("float32", "n", 3, "h", 5)
        assert shapes_of(lambda x: ops.resize(x, ("n", 3, 9, 11)), x) == ["n", 3, 9, 11]
        assert shapes_of(lambda x: ops.resize(x, ("n", 3, "h", 5)), x) == [
            "n",
            3,
            "h",
            5,
        ]
        assert shapes_of(lambda x: ops.resize_linear(x, (9,)), tensor("float32", 4)) == [9]
        assert shapes_of(lambda x: ops.resize_nearest(x, (2, 2)), tensor("bool", 4, 4)) == [2, 2]

    @pytest.mark.parametrize(
        "forward, words",
        [
            (lambda x: ops.resize(x, (9, 11)), "shape must have 4 elements"),
            (lambda x: ops.resize_bicubic(x, (9, 11)), "size must have 4 elements"),
            (lambda x: ops.resize_linear(x, (9, 11)), "size must have the same rank"),
            (lambda x: ops.resize_nearest(x, (9, 11)), "size must have the same rank"),
            (
                lambda x: ops.resize_linear(x, (2, 8, 9, 3), 4),
                "coordinate_transform_mode must be 0-3, got 4",
            ),
            (
                lambda x: ops.resize_nearest(x, (2, 8, 9, 3), -1),
                "coordinate_transform_mode must be 0-3, got -1",
            ),
            (
                lambda x: ops.resize_nearest(x, (2, 8, 9, 3), 0, 4),
                "round_mode must be 0-3, got 4",
            ),
            (lambda x: ops.resize(x, (2, 8, 9, -3)), "-3"),
            (lambda x: ops.resize(x, (2, 8, 9, 3), "cubic"), "cubic"),
        ],
    )
    def test_refusals(self, forward, words: str) -> None:
        kind = TypeError if words == "-3" else ValueError  # a negative size is no type
        assert words in refused(forward, image, kind=kind)

    def test_refused_types(self) -> None:
        rank3 = tensor("float32", 3, 4, 5)
        refused(
            lambda x: ops.resize(x, (3, 9, 11)),
            rank3,
            kind=ValueError,
            match="must have rank 4",
        )
        refused(
            lambda x: ops.resize_bicubic(x, (3, 9, 11)),
            rank3,
            kind=ValueError,
            match="rank-4",
        )
        refused(
            lambda x: ops.resize_linear(x, (3, 4, 6)),
            tensor("bool", 3, 4, 5),
            kind=TypeError,
            match="bool",
        )
        refused(
            lambda x: ops.resize_linear(x, (3, 4, 6)),
            tensor("float32", 3, 4, 0),
            kind=ValueError,
            match="0 elements",
        )

    def test_an_axis_without_elements_fails_at_run_time(self, session) -> None:
        with Graph("resize", input_types=[tensor("float32", 1, 1, "h", 4)]) as graph:
            graph.output(ops.resize(graph.inputs[0].tensor, (1, 1, 3, 6)))
        model = session.load(graph)
        assert model.execute(np.ones((1, 1, 2, 4), np.float32))[0].to_numpy().tolist() == [[[[1.0] * 6] * 3]]
        with pytest.raises(ValueError, match="0 elements cannot be resized"):
            model.execute(np.ones((1, 1, 0, 4), np.float32))

    def test_a_result_of_absurd_size_is_refused(self, session) -> None:
        with pytest.raises((ValueError, MemoryError)):
            run(
                session,
                lambda x: ops.resize_nearest(x, (2**62,)),
                np.ones(3, np.float32),
            )

    def test_modes(self) -> None:
        mode = ops.InterpolationMode
        assert [m.value for m in mode] == ["nearest", "bilinear", "bicubic"]
        assert str(mode.BICUBIC) == "bicubic" and mode("nearest") is mode.NEAREST

    def test_integers_are_truncated(self, session) -> None:
        x = -np.array([1, 2, 4, 8, 16], np.int32).reshape(1, 1, 1, 5)
        got = run(session, lambda x: ops.resize_linear(x, (1, 1, 1, 8)), x)
        assert got.ravel().tolist() == [-1, -1, -2, -3, -5, -7, -12, -16]
        sharp = np.array([0, 255, 0, 255, 255, 0], np.uint8).reshape(1, 1, 1, 6)
        got = run(session, lambda x: ops.resize_bicubic(x, (1, 1, 1, 13)), sharp)
        assert got.min() == 0 and got.max() == 255  # what is beyond saturates

    @pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
    def test_equal_integers_stay(self, session, dtype) -> None:
        for size in [(1, 2, 7, 9), (1, 2, 3, 29), (1, 2, 31, 3)]:
            for resize in [
                ops.resize_bicubic,
                ops.resize_linear,
                lambda x, s: ops.resize_linear(x, s, 0, True),
            ]:
                got = run(
                    session,
                    lambda x: resize(x, size),
                    np.full((1, 2, 11, 13), 77, dtype),
                )
                assert (got == 77).all()

    def test_an_infinite_neighbour_without_weight_does_not_count(self, session) -> None:
        x = np.array([[1, np.inf, 3]], np.float32)
        got = run(session, lambda x: ops.resize_linear(x, (1, 5), 1), x)
        assert got.tolist() == [[1, np.inf, np.inf, np.inf, 3]]


def eager(array: np.ndarray) -> Tensor:
    return Tensor(storage=Buffer.from_numpy(array))


class TestTensors:
    def test_pooling(self) -> None:
        x = np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3)
        got = F.max_pool2d(eager(x), (2, 2), 2)
        assert np.from_dlpack(got).tolist() == x[:, 1::2, 1::2].tolist()
        for kernel in [
            (2, 2),
            (3, 3),
            (4, 4),
        ]:  # windows are no sizes that models are generalized for
            got = F.avg_pool2d(eager(x), kernel, 1, 1, 0, True)
            want = x[:, : kernel[0], : kernel[1]].mean(axis=(1, 2))
            np.testing.assert_allclose(np.from_dlpack(got)[:, 0, 0], want, rtol=1e-6)

    def test_resizing(self) -> None:
        x = eager(np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4))
        for height in (3, 6, 9):
            assert np.from_dlpack(F.resize(x, (1, 1, height, 8))).shape == (
                1,
                1,
                height,
                8,
            )
        nearest = F.resize_nearest(x, (1, 1, 6, 8))
        want = np.from_dlpack(x).repeat(2, axis=2).repeat(2, axis=3)
        assert np.from_dlpack(nearest).tolist() == want.tolist()
        assert F.resize(x, (1, 1, 6, 8), ops.InterpolationMode.NEAREST).shape == nearest.shape
        assert F.resize_bicubic(x, (1, 1, 6, 8)).shape == F.resize_linear(x, (1, 1, 6, 8)).shape == nearest.shape


def test_the_number_of_threads_changes_nothing() -> None:
    x = np.random.default_rng(5).standard_normal((2, 40, 41, 6)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        session = InferenceSession(num_threads=threads)
        pooled = run(session, lambda x: ops.avg_pool2d(x, (5, 5), 2, 1, 2), x)
        resized = run(session, lambda x: ops.resize_linear(x, (2, 90, 17, 6), 0, True), x)
        results.append((pooled.tobytes(), resized.tobytes()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("size", [2**40, 2**60])
def test_a_table_that_does_not_fit_in_memory_is_refused(size: int) -> None:
    with pytest.raises((MemoryError, ValueError)):
        F.resize_nearest(Tensor(np.ones(3, np.float32)), (size,)).to_numpy()
    with pytest.raises((MemoryError, ValueError)):
        F.resize_linear(Tensor(np.ones(3, np.float32)), (size,)).to_numpy()


@pytest.mark.parametrize("op", [ops.avg_pool2d, ops.max_pool2d])
@pytest.mark.parametrize("size", [2**45, 2**60])
def test_more_windows_than_fit_in_memory_are_refused(session, op, size: int) -> None:
    with Graph("long", input_types=[tensor("float32", 1, 1, 1, 1)]) as graph:
        graph.output(op(ops.broadcast_to(graph.inputs[0].tensor, [1, size, 1, 1]), (2, 1)))
    with pytest.raises((MemoryError, ValueError)):
        session.load(graph).execute(np.ones((1, 1, 1, 1), np.float32))
