"""Tensors of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.experimental import random
from max.experimental.realization_context import lazy, seed, set_seed
from max.experimental.tensor import Tensor, default_device, default_dtype
from max.graph import TensorType


@pytest.fixture(autouse=True)
def on_the_cpu():
    with default_device(CPU()):
        yield


class TestDocumentedExamples:
    def test_uniform(self) -> None:
        tensor1 = random.uniform((2, 3), dtype=DType.float32, device=CPU())
        tensor2 = random.uniform((4, 4), range=(0, 1), dtype=DType.float32, device=CPU())
        assert tensor1.shape == [2, 3] and tensor2.shape == [4, 4]

    def test_gaussian(self) -> None:
        tensor = random.gaussian((2, 3), dtype=DType.float32, device=CPU())
        assert tensor.shape == [2, 3] and tensor.dtype is DType.float32


class TestUniform:
    @pytest.mark.parametrize("low, high", [(0, 1), (-3, 5), (10.5, 10.75)])
    def test_fills_its_range_evenly(self, low: float, high: float) -> None:
        set_seed(3)
        x = random.uniform([100_000], range=(low, high)).to_numpy().astype(np.float64)
        assert low <= x.min() and x.max() < high
        np.testing.assert_allclose(x.mean(), (low + high) / 2, atol=0.01 * (high - low))
        np.testing.assert_allclose(x.std(), (high - low) / 12**0.5, rtol=0.02)
        counts = np.histogram(x, bins=10, range=(low, high))[0]
        assert counts.min() > 9000 and counts.max() < 11000

    @pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (float("nan"), 1)])
    def test_refuses_an_empty_range(self, bounds: tuple) -> None:
        with pytest.raises(ValueError):
            random.uniform([2], range=bounds)

    @pytest.mark.parametrize("bounds", [(), (1,), (0, 1, 2)])
    def test_refuses_other_than_two_bounds(self, bounds: Any) -> None:
        with pytest.raises(ValueError, match=str(len(bounds))):
            random.uniform([2], range=bounds)


class TestGaussian:
    @pytest.mark.parametrize("mean, std", [(0, 1), (5, 0.5), (-100, 20)])
    def test_mean_and_deviation(self, mean: float, std: float) -> None:
        set_seed(4)
        x = random.gaussian([100_000], mean, std).to_numpy().astype(np.float64)
        z = (x - mean) / std
        np.testing.assert_allclose([z.mean(), z.std(), (z**3).mean(), (z**4).mean()], [0, 1, 0, 3], atol=0.1)
        assert np.isfinite(x).all()

    @pytest.mark.parametrize("std", [0, -1, float("nan")])
    def test_refuses_a_deviation_that_is_not_positive(self, std: float) -> None:
        with pytest.raises(ValueError, match="standard deviation"):
            random.gaussian([2], std=std)

    def test_is_also_called_normal(self) -> None:
        set_seed(5)
        first = random.normal([4], 1.0, 2.0).to_numpy()
        set_seed(5)
        np.testing.assert_array_equal(random.gaussian([4], 1.0, 2.0).to_numpy(), first)


@pytest.mark.parametrize("draw", [random.uniform, random.gaussian])
class TestBoth:
    def test_the_same_seed_gives_the_same_numbers(self, draw: Any) -> None:
        set_seed(11)
        first = [draw([5]).to_numpy() for _ in range(3)]
        assert seed() == 11
        set_seed(11)
        again = [draw([5]).to_numpy() for _ in range(3)]
        np.testing.assert_array_equal(first, again)
        set_seed(12)
        assert not np.array_equal(first[0], draw([5]).to_numpy())

    def test_draws_differ(self, draw: Any) -> None:
        assert not np.array_equal(draw([5]).to_numpy(), draw([5]).to_numpy())

    def test_a_scalar_by_default(self, draw: Any) -> None:
        assert draw().shape == [] and isinstance(draw().item(), float)

    @pytest.mark.parametrize("shape", [[0], [2, 0, 3], [1], [7, 3]])
    def test_shapes(self, draw: Any, shape: list) -> None:
        assert draw(shape).to_numpy().shape == tuple(shape)

    @pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16, DType.float64])
    def test_dtypes(self, draw: Any, dtype: DType) -> None:
        x = draw([1000], dtype=dtype)
        assert x.dtype is dtype
        assert np.isfinite(x.cast(DType.float32).to_numpy()).all()
        with default_dtype(dtype):
            assert draw([2]).dtype is dtype

    def test_a_draw_is_the_same_wherever_it_runs(self, draw: Any) -> None:
        set_seed(21)
        bare = draw([50]).to_numpy()
        set_seed(21)
        with lazy():
            pending = draw([50])
            later = draw([50])
        assert not pending.real
        second = later.to_numpy()
        np.testing.assert_array_equal(pending.to_numpy(), bare)
        assert not np.array_equal(second, bare)


class TestLike:
    @pytest.mark.parametrize("draw", [random.uniform_like, random.gaussian_like, random.normal_like])
    def test_takes_the_type_of_a_tensor_or_a_type(self, draw: Any) -> None:
        like = Tensor.zeros([2, 3], dtype=DType.float64)
        for source in (like, like.type, TensorType(DType.float64, [2, 3])):
            x = draw(source)
            assert x.shape == [2, 3] and x.dtype is DType.float64

    def test_parameters(self) -> None:
        x = random.uniform_like(Tensor.zeros([100]), range=(5, 6)).to_numpy()
        assert (x >= 5).all() and (x < 6).all()
        assert abs(random.gaussian_like(Tensor.zeros([100]), 50, 0.1).to_numpy() - 50).max() < 1
        with pytest.raises(ValueError):
            random.uniform_like(Tensor.zeros([1]), range=(1, 0))
        with pytest.raises(ValueError):
            random.normal_like(Tensor.zeros([1]), std=0)


def test_like_refuses_other_objects() -> None:
    for like in (random.uniform_like, random.gaussian_like):
        for other in (3, [2], np.zeros(2)):
            with pytest.raises(TypeError, match="the type of one"):
                like(other)  # type: ignore[arg-type]
