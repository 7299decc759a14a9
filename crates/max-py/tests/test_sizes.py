"""Sizes that exceed all memory, and sizes that are only known at run time."""

from __future__ import annotations

import numpy as np
import pytest
from max.experimental import functional as F
from max.experimental.realization_context import lazy
from max.experimental.tensor import Tensor
from max.graph import Dim, ops

from helpers import build, evaluate, shapes_of, tensor

MOST, HUGE = 2**63 - 1, 2**62


class TestSizesAreNotMemory:
    @pytest.mark.parametrize(
        "forward, shape, expected",
        [
            (ops.relu, [MOST, MOST], [MOST, MOST]),
            (lambda x: x + x, [MOST, MOST], [MOST, MOST]),
            (lambda x: ops.broadcast_to(x, [HUGE, HUGE]), [1], [HUGE, HUGE]),
            (lambda x: x @ x, [HUGE, HUGE], [HUGE, HUGE]),
            (lambda x: ops.sum(x), [HUGE, HUGE], [HUGE, 1]),
            (lambda x: ops.unsqueeze(x, 1), [MOST, MOST], [MOST, 1, MOST]),
            (lambda x: ops.squeeze(x, 1), [MOST, 1, MOST], [MOST, MOST]),
            (lambda x: x.reshape([8, HUGE]), [HUGE, 8], [8, HUGE]),
            (lambda x: x.reshape([8, -1]), [HUGE, 8], [8, HUGE]),
            (lambda x: x[::2], [MOST], [HUGE]),
            (lambda x: x[1:], [MOST, "n"], [MOST - 1, "n"]),
            (lambda x: ops.stack([x, x]), [MOST], [2, MOST]),
            (lambda x: ops.split(x, [1, MOST - 1])[1], [MOST, MOST], [MOST - 1, MOST]),
        ],
    )
    def test_ops_build(self, session, forward, shape: list, expected: list) -> None:
        type_ = tensor("float32", *shape)
        assert shapes_of(forward, type_) == [Dim(size) for size in expected]
        with pytest.raises(ValueError):  # when it is loaded, or when it runs
            session.load(build(forward, [type_])).execute(np.zeros([2] * len(shape), np.float32))

    @pytest.mark.parametrize(
        "forward",
        [
            lambda x: ops.flatten(x),
            lambda x: x.reshape([-1]),
            lambda x: x.reshape([HUGE // 4, 32]),
            lambda x: ops.concat([x, x]),
            lambda x: ops.tile(x, [2, 1]),
        ],
    )
    def test_dims_have_64_bits(self, forward) -> None:
        with pytest.raises(ValueError, match="64 bits"):
            shapes_of(forward, tensor("float32", HUGE, 8))

    def test_values_that_are_too_large_fail_at_run_time(self, session) -> None:
        model = session.load(build(lambda x: ops.broadcast_to(x, [HUGE, HUGE]), [tensor("float32", 1)]))
        with pytest.raises(ValueError, match=r"shape \[4611686018427387904, 4611686018427387904\]"):
            model.execute(np.zeros(1, np.float32))

    def test_unused_values_may_be_of_any_size(self, session) -> None:
        def forward(x):
            ops.broadcast_to(x, [HUGE, HUGE]) @ ops.broadcast_to(x, [HUGE, HUGE])
            return x + 1

        (out,) = evaluate(session, forward, np.zeros(1, np.float32))
        assert out == [1]

    def test_tensors(self) -> None:
        for make in (lambda: Tensor.ones([HUGE, 4]), lambda: F.broadcast_to(Tensor(1.0), [HUGE, 4])):
            with pytest.raises(ValueError, match=str(HUGE)):
                make()
        with lazy():
            x = F.broadcast_to(Tensor(1.0), [HUGE, 4])
            assert x.shape == [HUGE, 4]
            reversed_ = F.broadcast_to(Tensor(1.0), [MOST])[::-1]
            assert reversed_.shape == [MOST]
        with pytest.raises(ValueError, match=str(HUGE)):
            x.to_numpy()
        with pytest.raises(ValueError, match=str(MOST)):
            reversed_.to_numpy()


class TestEmptyAxes:
    REDUCTIONS = [ops.max, ops.min, ops.argmax, ops.argmin]

    @pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.__name__)
    @pytest.mark.parametrize("size", [0, "n"])
    def test_fail_at_run_time(self, session, op, size: int | str) -> None:
        type_ = tensor("float32", 2, size)
        assert shapes_of(op, type_) == [Dim(2), Dim(1)]
        model = session.load(build(op, [type_]))
        with pytest.raises(ValueError, match=f"{op.__name__} of an axis of size 0 is not defined"):
            model.execute(np.zeros((2, 0), np.float32))

    def test_of_constants(self, session) -> None:
        model = session.load(build(lambda: ops.max(ops.constant(np.zeros((2, 0), np.float32))), []))
        with pytest.raises(ValueError, match="max of an axis of size 0 is not defined"):
            model.execute()

    @pytest.mark.parametrize("op", [F.max, F.min, F.argmax, F.argmin], ids=lambda op: op.__name__)
    def test_of_tensors(self, op) -> None:
        empty = Tensor(np.zeros((2, 0), np.float32))
        with pytest.raises(ValueError, match=f"{op.__name__} of an axis of size 0 is not defined"):
            op(empty)
        assert op(empty, axis=0).shape == [1, 0]

    def test_other_reductions_are_defined(self, session) -> None:
        forward = lambda x: [ops.sum(x), ops.mean(x)]  # noqa: E731
        total, mean = evaluate(session, forward, np.zeros((2, 0), np.float32))
        assert np.all(total == 0) and np.all(np.isnan(mean))


class TestSizesOfARun:
    @pytest.mark.parametrize(
        "image, kernel, groups",
        [(["c"], [2], 1), (["c"], ["d"], 1), ([2], ["d"], 1), (["c"], [1], 2), (["c"], ["d"], 2)],
    )
    def test_channels(self, session, image: list, kernel: list, groups: int) -> None:
        types = [tensor("float32", 1, 5, 5, *image), tensor("float32", 3, 3, *kernel, 4)]
        model = session.load(build(lambda x, w: ops.conv2d(x, w, groups=groups), types))
        x, w = np.ones((1, 5, 5, 2), np.float32), np.ones((3, 3, 2 // groups, 4), np.float32)
        (out,) = model.execute(x, w)
        np.testing.assert_array_equal(out.to_numpy(), np.full((1, 3, 3, 4), 9 * 2 / groups))
        wrong = (np.ones((1, 5, 5, 4), np.float32), w) if image == ["c"] else (x, np.ones((3, 3, 3, 4), np.float32))
        with pytest.raises(ValueError, match="conv2d input channels must be the filter"):
            model.execute(*wrong)

    def test_channels_that_are_known_to_differ(self) -> None:
        n = Dim("n")
        for channels in ([3, 4], [n, n + 1], [n * 2, n * 2 + 2]):
            types = [tensor("float32", 1, 5, 5, channels[0]), tensor("float32", 3, 3, channels[1], 4)]
            with pytest.raises(ValueError, match="input channels"):
                shapes_of(ops.conv2d, *types)

    def test_split(self, session) -> None:
        types = [tensor("float32", "n"), tensor("float32", "b")]
        model = session.load(build(lambda x, y: ops.split(x, [y.shape[0], 3]), types))
        x, y = np.arange(5, dtype=np.float32), np.zeros(2, np.float32)
        first, second = model.execute(x, y)
        np.testing.assert_array_equal(first.to_numpy(), [0, 1])
        np.testing.assert_array_equal(second.to_numpy(), [2, 3, 4])
        with pytest.raises(ValueError, match="Split sizes must sum to dimension value"):
            model.execute(x, np.zeros(3, np.float32))

    def test_a_split_names_what_is_left(self, session) -> None:
        first, second = evaluate(session, lambda x: ops.split(x, ["rest", 3]), np.arange(10, dtype=np.float32))
        assert len(first) == 7 and list(second) == [7, 8, 9]

    @pytest.mark.parametrize("size, parts", [(10, [4, 5]), ("n", ["n", 3]), ("n", [2, 3])])
    def test_split_sizes_that_cannot_sum(self, size: int | str, parts: list) -> None:
        with pytest.raises(ValueError, match="Split sizes must sum to dimension value"):
            shapes_of(lambda x: ops.split(x, parts), tensor("float32", size))

    def test_a_slice_that_starts_after_the_end(self, session) -> None:
        model = session.load(build(lambda x: x[1:], [tensor("float32", "n")]))
        with pytest.raises(ValueError, match="axis 0 with size 0 starts at 1, after its stop"):
            model.execute(np.zeros(0, np.float32))
