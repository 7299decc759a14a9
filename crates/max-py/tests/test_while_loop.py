"""Loops: `ops.while_loop`, its results, captures, effects and errors."""

import subprocess
import sys

import numpy as np
import pytest
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops

from helpers import CPU, REFUSED, build, evaluate, tensor
from regions import FALSE, FLAG, INT, MISMATCH, TRUE, VECTOR, X, buffer, const, real, scalar

ENDLESS = """
import os, signal, threading
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, ops

signal.signal(signal.SIGINT, signal.default_int_handler)
with Graph("endless") as graph:
    start = ops.constant(0, DType.int64, DeviceRef.CPU())
    graph.output(*ops.while_loop(start, lambda i: i >= 0, lambda i: (i + 1) % 1000))
model = InferenceSession(devices=[CPU()]).load(graph)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    model.execute()
except KeyboardInterrupt:
    print("interrupted")
"""


class TestWhileLoop:
    def test_the_documented_example_with_one_value(self, session) -> None:
        def forward():
            result = ops.while_loop(const(0), lambda x: x < 10, lambda x: x + 1)
            assert isinstance(result, list) and [v.type for v in result] == [INT]
            assert isinstance(result[0], TensorValue)
            return result

        assert session.load(build(forward, [])).execute()[0].item() == 10

    def test_the_documented_example_with_two_values(self, session) -> None:
        def forward():
            return ops.while_loop(
                (const(0), const(5)),
                lambda x, y: ops.logical_and(x < 10, y < 15),
                lambda x, y: [x + 1, y + 1],
            )

        assert [out.item() for out in session.load(build(forward, [])).execute()] == [10, 15]

    def test_keywords_and_iterables(self, session) -> None:
        def forward(i):
            return ops.while_loop(
                initial_values=(v for v in [i, i + 1]), predicate=lambda a, b: a < 4, body=lambda a, b: (b, a + 2)
            )

        assert [out.item() for out in evaluate(session, forward, scalar(0))] == [4, 5]

    def test_no_iterations(self, session) -> None:
        def forward(i, x):
            return ops.while_loop([i, x], lambda i, x: i < 0, lambda i, x: [i + 1, x * 0])

        count, out = evaluate(session, forward, scalar(3), X)
        assert count.item() == 3
        np.testing.assert_array_equal(out, X)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
    def test_counts(self, session, count: int) -> None:
        def forward(n, x):
            return ops.while_loop([const(0), x], lambda i, x: i < n, lambda i, x: [i + 1, x * 2 + 1])

        steps, out = evaluate(session, forward, scalar(count), X)
        want = X.copy()
        for _ in range(count):
            want = want * 2 + 1
        assert steps.item() == count
        np.testing.assert_array_equal(out, want)

    def test_one_model_runs_for_different_counts(self, session) -> None:
        def forward(n):
            return ops.while_loop([n, const(0)], lambda i, s: i > 0, lambda i, s: [i - 1, s + i])[1]

        model = session.load(build(forward, [INT]))
        for n in (5, 0, 100, 1, 7):
            assert model.execute(scalar(n))[0].item() == n * (n + 1) // 2

    def test_values_that_change_places(self, session) -> None:
        """Each iteration reads the values of the one before, not those just computed."""

        def forward(x, y):
            return ops.while_loop([const(0), x, y], lambda i, a, b: i < 5, lambda i, a, b: [i + 1, b, a])

        _, a, b = evaluate(session, forward, X, X + 10)
        np.testing.assert_array_equal([a, b], [X + 10, X])

    def test_fibonacci(self, session) -> None:
        def forward(n):
            zero, one = (const(k, DType.int64) for k in (0, 1))
            return ops.while_loop([n, zero, one], lambda n, a, b: n > 0, lambda n, a, b: [n - 1, b, a + b])[1]

        model = session.load(build(forward, [tensor("int64")]))
        assert [model.execute(scalar(n, "int64"))[0].item() for n in (0, 1, 2, 10, 90)] == [
            0,
            1,
            1,
            55,
            2880067194370816120,
        ]

    def test_a_value_that_does_not_change(self, session) -> None:
        def forward(x):
            return ops.while_loop([const(0), x], lambda i, x: i < 3, lambda i, x: [i + 1, x])

        np.testing.assert_array_equal(evaluate(session, forward, X)[1], X)

    def test_a_body_that_returns_the_same_value_twice(self, session) -> None:
        def forward(x, y):
            return ops.while_loop([const(0), x, y], lambda i, a, b: i < 2, lambda i, a, b: [i + 1, a + b, a + b])

        _, a, b = evaluate(session, forward, X, X * 10)
        np.testing.assert_array_equal([a, b], [X * 22, X * 22])

    def test_one_value_started_twice(self, session) -> None:
        """Two loop values that start as one do not share memory; the first value is kept."""

        def forward(x):
            results = ops.while_loop([const(0), x, x], lambda i, a, b: i < 3, lambda i, a, b: [i + 1, a + 1, b * 2])
            return [*results[1:], x]

        a, b, x = evaluate(session, forward, X)
        np.testing.assert_array_equal([a, b, x], [X + 3, X * 8, X])

    def test_captures_and_weights(self, session) -> None:
        weight = Weight("w", DType.float32, [3, 3], CPU)

        def forward(x, n):
            shift = ops.exp(x)
            _, y = ops.while_loop(
                [const(0), x],
                lambda i, y: i < n,
                lambda i, y: [i + 1, (y.reshape([1, 3]) @ weight).reshape([3]) + shift],
            )
            return [y, shift]

        w = np.array([[0.5, 0.1, 0], [0, 0.25, 1], [-1, 0, 0.5]], dtype=np.float32)
        model = session.load(build(forward, [VECTOR, INT]), weights_registry={"w": w})
        y, shift = model.execute(X, scalar(4))
        want = X.astype(np.float64)
        for _ in range(4):
            want = want @ w + np.exp(X.astype(np.float64))
        np.testing.assert_allclose(y.to_numpy(), want, rtol=1e-5)
        np.testing.assert_allclose(shift.to_numpy(), np.exp(X), rtol=1e-6)

    def test_a_capture_that_is_also_carried(self, session) -> None:
        """The captured value stays what it was while the carried one changes."""

        def forward(x):
            return ops.while_loop(x, lambda y: y[0] < 10, lambda y: y + x)

        np.testing.assert_array_equal(evaluate(session, forward, X)[0], X * 10)

    def test_a_weight_as_start(self, session) -> None:
        graph = build(
            lambda: ops.while_loop(Weight("w", DType.float32, [], CPU), lambda x: x < 10, lambda x: x * 2), []
        )
        assert session.load(graph, weights_registry={"w": scalar(3, "float32")}).execute()[0].item() == 12

    def test_a_weight_first_used_in_the_body(self, session) -> None:
        weight = Weight("w", DType.float32, [3], CPU)

        def forward(x):
            (y,) = ops.while_loop(x, lambda y: y[0] < 5, lambda y: y + weight)
            return y * weight

        model = session.load(build(forward, [VECTOR]), weights_registry={"w": np.array([2, 1, 0], dtype=np.float32)})
        np.testing.assert_array_equal(model.execute(X)[0].to_numpy(), [10, 0, 0])

    def test_nested_loops(self, session) -> None:
        def forward(n):
            def outer(i, total):
                def inner(j, total):
                    return [j + 1, total + i * j]

                _, total = ops.while_loop([const(0), total], lambda j, t: j < i, inner)
                return [i + 1, total]

            return ops.while_loop([const(0), const(0)], lambda i, t: i < n, outer)

        model = session.load(build(forward, [INT]))
        for n in (0, 1, 2, 6):
            outputs = model.execute(scalar(n))
            assert [out.item() for out in outputs] == [n, sum(i * j for i in range(n) for j in range(i))]

    def test_cond_in_a_loop(self, session) -> None:
        """The Collatz steps of a number."""

        def forward(n):
            def body(n, steps):
                even = n % 2 == 0
                (n,) = ops.cond(even, [n.type], lambda: n // 2, lambda: n * 3 + 1)
                return [n, steps + 1]

            return ops.while_loop([n, const(0)], lambda n, steps: n > 1, body)[1]

        model = session.load(build(forward, [tensor("int64")]))
        assert [model.execute(scalar(n, "int64"))[0].item() for n in (1, 2, 3, 7, 27)] == [0, 1, 7, 16, 111]

    def test_a_loop_in_a_branch(self, session) -> None:
        def forward(pred, x, n):
            def then_fn():
                return ops.while_loop([n, x], lambda i, y: i > 0, lambda i, y: [i - 1, y * 2])[1]

            return ops.cond(pred, [VECTOR], then_fn, lambda: x)

        model = session.load(build(forward, [FLAG, VECTOR, INT]))
        np.testing.assert_array_equal(model.execute(TRUE, X, scalar(5))[0].to_numpy(), X * 32)
        np.testing.assert_array_equal(model.execute(FALSE, X, scalar(5))[0].to_numpy(), X)

    def test_loops_one_after_another(self, session) -> None:
        def forward(x):
            (y,) = ops.while_loop(x, lambda v: v[0] < 100, lambda v: v * 3)
            (z,) = ops.while_loop(y, lambda v: v[0] > 10, lambda v: v - 7)
            return [x, y, z]

        y = X * 243
        z = y.copy()
        while z[0] > 10:
            z -= 7
        np.testing.assert_array_equal(evaluate(session, forward, X), [X, y, z])

    def test_matrices(self, session) -> None:
        rng = np.random.default_rng(1)
        a = rng.normal(size=(20, 20)).astype(np.float32) / 5

        def forward(a):
            return ops.while_loop([const(0), a], lambda i, p: i < 4, lambda i, p: [i + 1, p @ a])[1]

        np.testing.assert_allclose(
            evaluate(session, forward, a)[0], np.linalg.matrix_power(a.astype(np.float64), 5), rtol=1e-4, atol=1e-6
        )

    def test_values_read_in_another_order_than_written(self, session) -> None:
        """A step whose result is its own input reversed and transposed."""
        x = np.arange(49, dtype=np.float32).reshape(7, 7)

        def forward(x):
            return ops.while_loop([const(0), x], lambda i, v: i < 3, lambda i, v: [i + 1, v[::-1].T + v])[1]

        want = x
        for _ in range(3):
            want = want[::-1].T + want
        np.testing.assert_array_equal(evaluate(session, forward, x)[0], want)

    def test_symbolic_dims(self, session) -> None:
        kind = tensor("float32", "n", "m")

        def forward(x):
            return ops.while_loop([const(0), x], lambda i, v: i < 3, lambda i, v: [i + 1, v + ops.sum(v, 1)])[1]

        model = session.load(build(forward, [kind]))
        for shape in ((1, 1), (2, 3), (0, 4), (4, 0), (33, 65)):
            x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
            want = x.astype(np.float64)
            for _ in range(3):
                want = want + want.sum(1, keepdims=True)
            out = model.execute(x)[0].to_numpy()
            assert out.shape == shape
            np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-3 * (1 + np.abs(want).max(initial=0)))

    @pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 0, 2), (1, 1)])
    def test_small_and_empty_values(self, session, shape: tuple) -> None:
        x = np.ones(shape, dtype=np.float32)

        def forward(x):
            return ops.while_loop([const(0), x], lambda i, v: i < 3, lambda i, v: [i + 1, v * 2])

        count, out = evaluate(session, forward, x)
        assert count.item() == 3 and out.shape == shape
        np.testing.assert_array_equal(out, x * 8)

    def test_nan_is_carried_and_ends_a_comparison(self, session) -> None:
        def forward(x):
            ended = ops.while_loop(x, lambda v: v < 10, lambda v: v + 1)
            carried = ops.while_loop([const(0), x], lambda i, v: i < 3, lambda i, v: [i + 1, v * 2])
            return [*ended, carried[1]]

        outputs = evaluate(session, forward, scalar(np.nan, "float32"))
        assert all(np.isnan(out) for out in outputs)
        outputs = evaluate(session, forward, scalar(np.inf, "float32"))
        assert all(np.isposinf(out) for out in outputs)

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint64", "float16", "float64"])
    def test_dtypes(self, session, dtype: str) -> None:
        x = np.array([0, 1, 1, 0], dtype=dtype)

        def forward(x):
            return ops.while_loop([const(0), x], lambda i, v: i < 5, lambda i, v: [i + 1, v[::-1]])[1]

        x[1] = 0
        (out,) = evaluate(session, forward, x)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, x[::-1])

    def test_100_000_iterations(self, session) -> None:
        def forward(n):
            i, total = (const(0, DType.int64) for _ in range(2))
            return ops.while_loop([i, total], lambda i, t: i < n, lambda i, t: [i + 1, t + i * i])

        n = 100_000
        count, total = session.load(build(forward, [tensor("int64")])).execute(scalar(n, "int64"))
        assert (count.item(), total.item()) == (n, sum(i * i for i in range(n)))

    def test_100_000_iterations_on_a_vector(self, session) -> None:
        def forward(x):
            step = lambda i, v: [i + 1, (v * 5 + i) % 1009]  # noqa: E731
            return ops.while_loop([const(0), x], lambda i, v: i < 100_000, step)[1]

        x = np.arange(5, dtype=np.int32)
        want = x.copy()
        for i in range(100_000):
            want = (want * 5 + i) % 1009
        np.testing.assert_array_equal(evaluate(session, forward, x)[0], want)

    def test_a_captured_buffer_is_read(self, session) -> None:
        def forward(b):
            return ops.while_loop(real(0), lambda v: v < b[2], lambda v: v + b[0])

        array = np.array([2, 0, 7], dtype=np.float32)
        model = session.load(build(forward, [buffer("float32", 3)]))
        assert model.execute(array)[0].item() == 8
        np.testing.assert_array_equal(array, [2, 0, 7])

    def test_a_captured_buffer_is_changed(self, session) -> None:
        """Each iteration sees the stores of those before it, and so does what follows the loop."""

        def forward(b, n):
            before = b[...]

            def body(i):
                b[...] = b[...] * 2
                b[0] = b[2] + 1
                return i + 1

            (i,) = ops.while_loop(const(0), lambda i: i < n, body)
            return [before, i, b[...]]

        model = session.load(build(forward, [buffer("float32", 3), INT]))
        for count in (0, 1, 4):
            array, want = X.copy(), X.copy()
            for _ in range(count):
                want *= 2
                want[0] = want[2] + 1
            before, i, after = model.execute(array, scalar(count))
            assert i.item() == count
            np.testing.assert_array_equal([before.to_numpy(), after.to_numpy(), array], [X, want, want])

    def test_a_buffer_that_the_predicate_reads_and_the_body_changes(self, session) -> None:
        def forward(b):
            def body(i):
                b[0] = b[0] + 2
                return i + 1

            return ops.while_loop(const(0), lambda i: b[0] < 7, body)

        array = np.zeros(3, dtype=np.float32)
        (count,) = session.load(build(forward, [buffer("float32", 3)])).execute(array)
        assert count.item() == 4
        np.testing.assert_array_equal(array, [8, 0, 0])

    def test_rows_of_a_buffer_filled_by_a_loop(self, session) -> None:
        """The loop counter is the index of the row; a branch chooses what goes there."""

        def forward(b, x):
            def body(i):
                (row,) = ops.cond(i % 2 == 0, [VECTOR], lambda: x * 10, lambda: -x)
                b[i] = row
                return i + 1

            return ops.while_loop(const(0, DType.int64), lambda i: i < 5, body)

        array = np.zeros((6, 3), dtype=np.float32)
        session.load(build(forward, [buffer("float32", 6, 3), VECTOR])).execute(array, X)
        np.testing.assert_array_equal(array, [X * 10, -X, X * 10, -X, X * 10, np.zeros(3)])

    def test_memory_does_not_grow_with_the_iterations(self, session) -> None:
        resource = pytest.importorskip("resource")

        def forward(x):
            return ops.while_loop([const(0), x], lambda i, v: i < 2000, lambda i, v: [i + 1, v[::-1] * 0.5 + x])[1]

        x = np.ones(1 << 18, dtype=np.float32)
        model = session.load(build(forward, [tensor("float32", 1 << 18)]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (out,) = model.execute(x)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        np.testing.assert_array_equal(out.to_numpy(), np.full(1 << 18, 2))
        assert grown < 200_000, "kilobytes on Linux; all values together would be 2 GB"

    @pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on Unix")
    def test_ctrl_c_ends_a_loop_without_end(self) -> None:
        done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


class TestWhileLoopErrors:
    @pytest.mark.parametrize("initial", [[], (), iter([])])
    def test_no_values(self, initial) -> None:
        with Graph("g"):
            with pytest.raises(ValueError, match="at least one"):
                ops.while_loop(initial, lambda: const(True, DType.bool), lambda: None)

    def test_buffers_are_not_carried(self) -> None:
        with Graph("g", input_types=[buffer("int32"), INT]) as graph:
            b, i = graph.inputs
            for initial in (b, [b], [i, b], (b, i)):
                with pytest.raises(NotImplementedError, match="not supported in while loops"):
                    ops.while_loop(initial, lambda *v: const(True, DType.bool), lambda *v: v)

    @pytest.mark.parametrize("initial", [None, object(), "text", [None], {"a": 1}])
    def test_values_that_are_not_values(self, initial) -> None:
        with Graph("g"):
            with pytest.raises((TypeError, ValueError)):
                ops.while_loop(initial, lambda x: x < 10, lambda x: x + 1)

    @pytest.mark.parametrize(
        "predicate",
        [
            lambda x: x,
            lambda x: ops.cast(x, DType.float32),
            lambda x: (x < 10).reshape([1]),
            lambda x: ops.broadcast_to(x < 10, [3]),
        ],
    )
    def test_predicates_that_are_not_bool_scalars(self, predicate) -> None:
        with Graph("g"):
            with pytest.raises((ValueError, TypeError), match="bool"):
                ops.while_loop(const(0), predicate, lambda x: x + 1)

    @pytest.mark.parametrize("result", [None, "true", [], object()])
    def test_predicates_that_return_something_else(self, result) -> None:
        with Graph("g"):
            with pytest.raises((ValueError, TypeError)):
                ops.while_loop(const(0), lambda x: result, lambda x: x + 1)

    def test_the_predicate_must_be_on_the_cpu(self) -> None:
        with Graph("g", input_types=[TensorType(DType.int32, [], DeviceRef.GPU())]) as graph:
            with pytest.raises(ValueError, match="must reside on CPU"):
                ops.while_loop(graph.inputs[0], lambda x: x < 3, lambda x: x + 1)

    @pytest.mark.parametrize(
        "body",
        [
            lambda x, y: None,
            lambda x, y: x,
            lambda x, y: [x],
            lambda x, y: [x, y, y],
            lambda x, y: [y, x],
            lambda x, y: [ops.cast(x, DType.int64), y],
            lambda x, y: [x.reshape([1]), y],
            lambda x, y: [x, ops.concat([y, y])],
            lambda x, y: [x, y[:2]],
        ],
    )
    def test_bodies_with_results_of_other_types(self, body) -> None:
        with Graph("g"):
            with pytest.raises((TypeError, ValueError), match=MISMATCH):
                ops.while_loop([const(0), real([1, 2, 3])], lambda x, y: x < 10, body)

    def test_a_value_that_grows(self) -> None:
        with Graph("g", input_types=[tensor("float32", "n")]) as graph:
            with pytest.raises((TypeError, ValueError), match=MISMATCH):
                ops.while_loop(graph.inputs[0], lambda x: x[0] < 10, lambda x: ops.concat([x, x]))

    def test_functions_of_another_number_of_values(self) -> None:
        true = lambda *_: const(True, DType.bool)  # noqa: E731
        with Graph("g"):
            for predicate, body in ((lambda: None, lambda x: x), (true, lambda: None), (None, lambda x: x)):
                with pytest.raises(TypeError):
                    ops.while_loop(const(0), predicate, body)

    def test_no_graph(self) -> None:
        with Graph("g", input_types=[INT]) as graph:
            pass
        with pytest.raises(LookupError, match="No graph found"):
            ops.while_loop(graph.inputs[0], lambda x: x < 3, lambda x: x + 1)

    @pytest.mark.parametrize("which", ["the value of the body", "the argument of the body", "the argument of the test"])
    def test_inner_values_do_not_leave_the_loop(self, which: str) -> None:
        with pytest.raises(REFUSED):
            with Graph("g", input_types=[INT]) as graph:
                kept = {}

                def predicate(x):
                    kept["the argument of the test"] = x
                    return x < 10

                def body(x):
                    kept["the argument of the body"] = x
                    kept["the value of the body"] = x + 1
                    return kept["the value of the body"]

                ops.while_loop(graph.inputs[0], predicate, body)
                graph.output(kept[which] + 1)

    def test_an_exception_in_the_body_leaves_the_graph_usable(self, session) -> None:
        def forward(x):
            def fails(v):
                v + 1  # noqa: B018
                raise ZeroDivisionError("in the body")

            for predicate, body in ((lambda v: v[0] < 3, fails), (fails, lambda v: v)):
                with pytest.raises(ZeroDivisionError, match="in the body"):
                    ops.while_loop(x, predicate, body)
            return ops.while_loop(x, lambda v: v[0] < 3, lambda v: v + 1)[0] * 2

        np.testing.assert_array_equal(evaluate(session, forward, X)[0], (X + 2) * 2)
