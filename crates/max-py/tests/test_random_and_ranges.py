"""Ranges and random numbers: what the table of cases cannot express."""

from __future__ import annotations

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import random
from max.graph import DeviceRef, Dim, Graph, TensorType, ops

from helpers import CPU, build, evaluate, shapes_of, tensor, to_array


def draw(session, seed: int, forward) -> list[np.ndarray]:
    def body():
        ops.random.set_seed(seed)
        return forward()

    return evaluate(session, body)


class TestRange:
    def test_the_size_is_inferred(self) -> None:
        assert shapes_of(lambda: ops.range(0, 10, 3, dtype=DType.int32, device=CPU)) == [Dim(4)]
        assert shapes_of(lambda: ops.range(0, 10, 3, "n", dtype=DType.int32, device=CPU)) == [Dim("n")]

    def test_dims(self, session) -> None:
        def forward(x):
            n = x.shape[0]
            return ops.range(1, n + 1, dtype=DType.float32, device=CPU) * x

        x = np.array([2, 3, 4], dtype=np.float32)
        (actual,) = evaluate(session, forward, x, types=[tensor("float32", "n")])
        np.testing.assert_array_equal(actual, [2, 6, 12])

    def test_tensors(self, session) -> None:
        types = [tensor("float64")] * 3
        forward = lambda a, b, c: ops.range(a, b, c, "m", dtype=DType.float64, device=CPU)  # noqa: E731
        (actual,) = evaluate(session, forward, *(np.array(x) for x in (0.5, 2.0, 0.5)), types=types)
        np.testing.assert_array_equal(actual, [0.5, 1.0, 1.5])
        for wrong in [(0.0, 1.0, 0.0), (0.0, 1.0, -1.0)]:
            with pytest.raises(ValueError):
                evaluate(session, forward, *(np.array(x) for x in wrong), types=types)

    @pytest.mark.parametrize("limits", [(0, 3, 0), (0, 3, -1), (3, 0), (0, float("nan")), (0, 2**200 // 2**80)])
    def test_nonsense_is_refused(self, limits) -> None:
        with pytest.raises(ValueError, match="range"):
            shapes_of(lambda: ops.range(*limits, dtype=DType.float32, device=CPU))

    def test_tensors_are_scalars_on_the_cpu(self) -> None:
        between = lambda n: ops.range(0, n, 1, "n", dtype=DType.int64, device=DeviceRef.GPU())  # noqa: E731
        assert shapes_of(between, tensor("int64")) == [Dim("n")]
        with pytest.raises(ValueError, match="scalar"):
            shapes_of(between, tensor("int64", 1))
        with pytest.raises(ValueError, match="Range input values must be on CPU"):
            shapes_of(between, tensor("int64").to(DeviceRef.GPU()))

    def test_tensors_need_out_dim(self) -> None:
        with pytest.raises(ValueError, match="out_dim"):
            shapes_of(lambda n: ops.range(0, n, dtype=DType.int64, device=CPU), tensor("int64"))


class TestRandom:
    def test_a_seed_is_needed(self) -> None:
        like = TensorType(DType.float32, [2], CPU)
        for function in (ops.random.uniform, ops.random.gaussian):
            with Graph("unseeded"), pytest.raises(RuntimeError, match="No seed set"):
                function(like)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
    def test_moments(self, session, dtype: str) -> None:
        like = TensorType(getattr(DType, dtype), [100, 1000], CPU)
        uniform, normal = draw(
            session, 3, lambda: [ops.random.uniform(like, (-1, 3)), ops.random.gaussian(like, mean=2, std=0.5)]
        )
        uniform, normal = uniform.astype(np.float64), normal.astype(np.float64)
        assert uniform.min() >= -1 and uniform.max() < 3
        assert abs(uniform.mean() - 1) < 0.02 and abs(uniform.var() - 16 / 12) < 0.02
        assert abs(normal.mean() - 2) < 0.01 and abs(normal.std() - 0.5) < 0.01

    def test_draws_differ_and_repeat(self, session) -> None:
        like = TensorType(DType.float32, [64], CPU)
        twice = lambda: [ops.random.normal(like), ops.random.normal(like)]  # noqa: E731
        first, second = draw(session, 7, twice)
        again, _ = draw(session, 7, twice)
        other, _ = draw(session, 8, twice)
        np.testing.assert_array_equal(first, again)
        assert not np.any(first == second) and not np.any(first == other)

    def test_threads_and_layouts_do_not_matter(self) -> None:
        like = TensorType(DType.float32, [300, 200], CPU)

        def forward():
            ops.random.set_seed(1)
            x = ops.random.uniform(like)
            return [x, ops.transpose(x, 0, 1) + 0]

        results = []
        for threads in (1, 2):
            model = InferenceSession(num_threads=threads).load(build(forward, []))
            results.append([to_array(output) for output in model.execute()])
        for plain, turned in results:
            np.testing.assert_array_equal(plain.T, turned)
        np.testing.assert_array_equal(results[0][0], results[1][0])

    @pytest.mark.parametrize("seed_type", [ops.random.SeedType(CPU), tensor("uint64"), tensor("int64", 1)], ids=repr)
    def test_the_seed_may_be_an_input(self, session, seed_type: TensorType) -> None:
        def forward(seed):
            ops.random.set_seed(seed)
            return ops.random.uniform(TensorType(DType.float64, [5], CPU))

        model = session.load(build(forward, [seed_type]))

        def run(seed: int) -> np.ndarray:
            array = np.full([int(dim) for dim in seed_type.shape], seed, dtype=seed_type.dtype.to_numpy())
            return model.execute(Buffer.from_numpy(array))[0].to_numpy()

        np.testing.assert_array_equal(run(5), run(5))
        assert not np.any(run(5) == run(6))
        (constant,) = draw(session, 5, lambda: ops.random.uniform(TensorType(DType.float64, [5], CPU)))
        np.testing.assert_array_equal(run(5), constant)

    def test_seeds_have_64_bits(self, session) -> None:
        like = TensorType(DType.float64, [5], CPU)
        numbers = [draw(session, seed, lambda: ops.random.uniform(like))[0] for seed in (0, 2**63, 2**64 - 1)]
        assert len({tuple(drawn) for drawn in numbers}) == 3
        for seed in (-1, 2**64, 0.5, np.int64(-1)):
            with Graph("seeds"), pytest.raises(ValueError, match="a seed is a whole number from 0 to 2"):
                ops.random.set_seed(seed)
            with pytest.raises(ValueError, match="a seed is a whole number from 0 to 2"):
                random.set_seed(seed)

    def test_nonsense_is_refused(self) -> None:
        like = TensorType(DType.float32, [2], CPU)
        with Graph("nonsense"):
            ops.random.set_seed()
            with pytest.raises(ValueError, match="range"):
                ops.random.uniform(like, (1, 1))
            with pytest.raises(ValueError, match="std"):
                ops.random.gaussian(like, std=0)
            with pytest.raises(ValueError, match="float"):
                ops.random.uniform(TensorType(DType.int32, [2], CPU))
            with pytest.raises(ValueError, match="seed"):
                ops.random.set_seed(0.5)


class TestComposites:
    @pytest.mark.parametrize(
        "forward, match",
        [
            (lambda x: ops.tile(x, [2]), "Input rank and number of elements in repeats must match"),
            (lambda x: ops.tile(x, [0, 1]), "positive"),
            (lambda x: ops.repeat_interleave(x, 0), "positive"),
            (lambda x: ops.repeat_interleave(x, 2, 2), "axis"),
            (lambda x: ops.band_part(x, 4), "out of bounds for dimension size"),
            (lambda x: ops.band_part(x, None, 6), "out of bounds for dimension size"),
            (lambda x: ops.as_interleaved_complex(x.T[:, :3]), "even"),
            (lambda x: ops.complex_mul(x, x), "size 2"),
            (lambda x: ops.group_norm(x, x[0], x[0], 4, 1e-5), "groups"),
            (lambda x: ops.group_norm(x, x[:, 0], x[:, 0], 2, 1e-5), "channels"),
            (lambda x: ops.hann_window(-1, CPU), "negative"),
        ],
    )
    def test_nonsense_is_refused(self, forward, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            shapes_of(lambda x: forward(x.tensor), tensor("float32", 4, 6))

    def test_the_length_of_a_window_is_an_integer(self) -> None:
        with pytest.raises(TypeError):
            shapes_of(lambda: ops.hann_window(2.5, CPU))
