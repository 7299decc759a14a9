"""Captured graphs: capture, replay, verify and release, with the documented keys and errors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import Model
from max.graph import ops

from helpers import CPU, address, build, tensor

X = np.array([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)


@pytest.fixture
def affine(session) -> Model:
    """x * y + 1 with a symbolic batch."""
    types = [tensor("float32", "batch", 3), tensor("float32", "batch", 3)]
    return session.load(build(lambda x, y: x * y + 1, types))


def test_capture_executes(affine) -> None:
    outputs = affine.capture(1, X, 2 * X)
    assert isinstance(outputs, list) and all(isinstance(out, Buffer) for out in outputs)
    np.testing.assert_array_equal(outputs[0].to_numpy(), X * 2 * X + 1)


def test_replay_writes_the_same_outputs(affine) -> None:
    x, y = X.copy(), X.copy()
    (out,) = affine.capture(7, x, y)
    where = address(out)
    x += 10
    assert affine.replay(7, x, y) is None
    np.testing.assert_array_equal(out.to_numpy(), (X + 10) * X + 1)
    y[:] = 0.5
    affine.replay(7, x, y)
    np.testing.assert_array_equal(out.to_numpy(), (X + 10) * np.float32(0.5) + 1)
    assert address(out) == where


@pytest.mark.parametrize(
    "convert",
    [np.copy, Buffer.from_numpy, np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::2], Buffer.from_dlpack],
)
def test_replay_on_other_arrays(affine, convert) -> None:
    (out,) = affine.capture(0, X, X)
    affine.replay(0, convert(X + 1), convert(X - 1))
    np.testing.assert_array_equal(out.to_numpy(), (X + 1) * (X - 1) + 1)


def test_numbers_are_inputs(session) -> None:
    model = session.load(build(lambda k: k + 1, [tensor("int32")]))
    (out,) = model.capture(3, 4)
    assert out.item() == 5
    model.replay(3, 9)
    assert out.item() == 10


def test_replay_on_its_own_outputs(session) -> None:
    """A replay does not overwrite what it has yet to read, although the rows are read in another order."""
    x = np.arange(120_000, dtype=np.float32).reshape(400, 300)
    model = session.load(build(lambda v: v[::-1] + 1, [tensor("float32", 400, 300)]))
    (out,) = model.capture(1, x)
    expected = x[::-1] + 1
    for _ in range(3):
        model.replay(1, out)
        expected = expected[::-1] + 1
        np.testing.assert_array_equal(out.to_numpy(), expected)


def test_temporaries_and_constants(session) -> None:
    """More than one kernel: matmuls, a reduction, a constant."""
    data = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)

    def forward(x):
        w = ops.constant(data, DType.float32, CPU)
        return ops.softmax(ops.tanh(x @ w) @ w.T)

    model = session.load(build(forward, [tensor("float32", "n", 6)]))
    rng = np.random.default_rng(5)
    first = rng.normal(size=(5, 6)).astype(np.float32)
    (out,) = model.capture(1, first)
    for _ in range(4):
        x = rng.normal(size=(5, 6)).astype(np.float32)
        model.replay(1, x)
        assert out.to_numpy().tobytes() == model.execute(x)[0].to_numpy().tobytes()


def test_executions_leave_captures_alone(affine) -> None:
    (out,) = affine.capture(1, X, X)
    kept = out.to_numpy().copy()
    for k in range(10):
        affine.execute(X + k, X)
    np.testing.assert_array_equal(out.to_numpy(), kept)


def test_two_keys(affine) -> None:
    (small,) = affine.capture(1, X, X)
    large_x = np.ones((9, 3), dtype=np.float32)
    (large,) = affine.capture(2**64 - 1, large_x, large_x)
    affine.replay(1, X + 1, X)
    np.testing.assert_array_equal(large.to_numpy(), large_x + 1)
    np.testing.assert_array_equal(small.to_numpy(), (X + 1) * X + 1)
    affine.replay(2**64 - 1, 3 * large_x, large_x)
    np.testing.assert_array_equal(large.to_numpy(), 3 * large_x + 1)


def test_captures_belong_to_one_model(session, affine) -> None:
    affine.capture(5, X, X)
    other = session.load(build(ops.relu, [tensor("float32", 2, 3)]))
    with pytest.raises(RuntimeError):
        other.replay(5, X)


def test_capturing_again_replaces(affine) -> None:
    (before,) = affine.capture(1, X, X)
    kept = before.to_numpy().copy()
    large = np.ones((4, 3), dtype=np.float32)
    (after,) = affine.capture(1, large, large)
    affine.replay(1, 2 * large, large)
    np.testing.assert_array_equal(after.to_numpy(), 2 * large + 1)
    np.testing.assert_array_equal(before.to_numpy(), kept)
    with pytest.raises(RuntimeError):
        affine.replay(1, X, X)


def test_release(affine) -> None:
    (out,) = affine.capture(1, X, X)
    affine.capture(2, X, X)
    assert affine.release_captured_graph(1) is None
    for call in (lambda: affine.replay(1, X, X), lambda: affine.debug_verify_replay(1, X, X)):
        with pytest.raises(RuntimeError, match="captured"):
            call()
    with pytest.raises(RuntimeError, match="captured"):
        affine.release_captured_graph(1)
    affine.replay(2, X, X)
    np.testing.assert_array_equal(out.to_numpy(), X * X + 1)


def test_outputs_outlive_the_model(session) -> None:
    model = session.load(build(lambda v: v + 1, [tensor("float32", 2, 3)]))
    array = np.from_dlpack(model.capture(1, X)[0])
    del model
    np.testing.assert_array_equal(array, X + 1)


def test_verify(affine) -> None:
    (out,) = affine.capture(1, X, X)
    kept = out.to_numpy().copy()
    assert affine.debug_verify_replay(1, X + 1, X) is None
    np.testing.assert_array_equal(out.to_numpy(), kept)
    large = np.ones((8, 3), dtype=np.float32)
    with pytest.raises(RuntimeError, match="does not match"):
        affine.debug_verify_replay(1, large, large)


class TestErrors:
    METHODS = ["capture", "replay", "debug_verify_replay"]

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("key", [True, False, 1.0, "1", None, np.float32(1), [1], X])
    def test_keys_that_are_not_integers(self, affine, method: str, key) -> None:
        with pytest.raises(TypeError, match="graph_key"):
            getattr(affine, method)(key, X, X)
        with pytest.raises(TypeError, match="graph_key"):
            getattr(affine, method)(key)
        with pytest.raises(TypeError, match="graph_key"):
            affine.release_captured_graph(key)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("key", [-1, 2**64, -(2**63), 10**40, np.int64(-1)])
    def test_keys_out_of_range(self, affine, method: str, key) -> None:
        with pytest.raises(ValueError, match="graph_key"):
            getattr(affine, method)(key, X, X)
        with pytest.raises(ValueError, match="graph_key"):
            getattr(affine, method)(key)
        with pytest.raises(ValueError, match="graph_key"):
            affine.release_captured_graph(key)

    @pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, np.int64(3), np.uint8(200)])
    def test_keys(self, affine, key) -> None:
        affine.capture(key, X, X)
        affine.replay(int(key), X, X)
        affine.debug_verify_replay(key, X, X)
        affine.release_captured_graph(key)

    @pytest.mark.parametrize("method", METHODS)
    def test_no_inputs(self, affine, method: str) -> None:
        with pytest.raises(ValueError, match="input"):
            getattr(affine, method)(1)
        affine.capture(1, X, X)
        with pytest.raises(ValueError, match="input"):
            getattr(affine, method)(1)

    @pytest.mark.parametrize("method", ["replay", "debug_verify_replay"])
    def test_nothing_captured(self, affine, method: str) -> None:
        affine.capture(1, X, X)
        with pytest.raises(RuntimeError, match="2"):
            getattr(affine, method)(2, X, X)

    @pytest.mark.parametrize("method", METHODS)
    def test_wrong_inputs(self, affine, method: str) -> None:
        affine.capture(1, X, X)
        for bad in ((X,), (X, X, X), (X, X.astype(np.float64))):
            with pytest.raises(ValueError):
                getattr(affine, method)(1, *bad)
        for bad in ("text", None):
            with pytest.raises(TypeError):
                getattr(affine, method)(1, X, bad)

    def test_wrong_shapes(self, affine) -> None:
        (out,) = affine.capture(1, X, X)
        kept = out.to_numpy().copy()
        other = np.ones((3, 3), dtype=np.float32)
        with pytest.raises(RuntimeError, match=r"2, 3.*3, 3"):
            affine.replay(1, other, other)
        np.testing.assert_array_equal(out.to_numpy(), kept)
        affine.replay(1, X, X)

    def test_a_failed_capture_keeps_the_previous_one(self, affine) -> None:
        (out,) = affine.capture(1, X, X)
        with pytest.raises(ValueError):
            affine.capture(1, X, X[:1])
        affine.replay(1, X + 1, X)
        np.testing.assert_array_equal(out.to_numpy(), (X + 1) * X + 1)


def test_many_threads(affine) -> None:
    """Replays of the same key wait for each other; those of different keys do not interfere."""
    outputs = {key: affine.capture(key, X, X)[0] for key in range(4)}

    def work(key: int) -> bool:
        for k in range(50):
            affine.replay(key, X + k, X)
            if not np.array_equal(outputs[key].to_numpy(), (X + k) * X + 1):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, outputs))
