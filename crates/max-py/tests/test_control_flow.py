"""Branches and loops: `ops.cond` and `ops.while_loop`, their results, captures, effects and errors."""

import contextlib
import io
import subprocess
import sys

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, Weight, ops

from helpers import CPU, REFUSED, build, evaluate, tensor

TRUE, FALSE = np.array(True), np.array(False)
X = np.array([1, -2, 3], dtype=np.float32)
FLAG, INT, FLOAT, VECTOR = tensor("bool"), tensor("int32"), tensor("float32"), tensor("float32", 3)
MISMATCH = "Results don't match expected types"


def const(value, dtype: DType = DType.int32) -> TensorValue:
    return ops.constant(value, dtype, CPU)


def real(value) -> TensorValue:
    return const(value, DType.float32)


def scalar(value, dtype: str = "int32") -> np.ndarray:
    return np.array(value, dtype=dtype)


def buffer(dtype: str, *dims) -> BufferType:
    return tensor(dtype, *dims).as_buffer()


def lines_of(model, *arrays) -> list[str]:
    """What an execution prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        model.execute(*arrays)
    return out.getvalue().splitlines()


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


class TestCond:
    def test_the_documented_example(self, session) -> None:
        def forward(pred):
            return ops.cond(pred, [INT], lambda: const(1), lambda: const(0))

        model = session.load(build(forward, [FLAG]))
        assert [model.execute(flag)[0].item() for flag in (TRUE, FALSE, TRUE)] == [1, 0, 1]

    def test_returns_a_list_of_tensors(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            (pred,) = graph.inputs
            result = ops.cond(pred, [INT], lambda: const(1), lambda: const(0))
            assert isinstance(result, list) and len(result) == 1
            assert isinstance(result[0], TensorValue) and result[0].type == INT
            assert ops.cond(pred, None, lambda: None, lambda: None) == []
            assert ops.cond(pred, [], lambda: None, lambda: []) == []

    def test_keywords(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            (out,) = ops.cond(pred=graph.inputs[0], out_types=[INT], then_fn=lambda: const(1), else_fn=lambda: const(0))
            assert out.type == INT

    def test_several_outputs_of_several_types(self, session) -> None:
        """Branches may return any iterable, and so may `out_types` be."""

        def forward(pred, x):
            types = (kind for kind in (VECTOR, INT, tensor("bool", 3)))
            return ops.cond(pred, types, lambda: (x + 1, const(7), x > 0), lambda: iter([x * 2, const(8), x < 0]))

        model = session.load(build(forward, [FLAG, VECTOR]))
        for flag, want in ((TRUE, [X + 1, 7, X > 0]), (FALSE, [X * 2, 8, X < 0])):
            for out, expected in zip(model.execute(flag, X), want):
                np.testing.assert_array_equal(out.to_numpy(), expected)

    def test_branches_may_return_outer_values(self, session) -> None:
        def forward(pred, x, y):
            return ops.cond(pred, [VECTOR, VECTOR], lambda: [x, y], lambda: [y, y])

        model = session.load(build(forward, [FLAG, VECTOR, VECTOR]))
        for flag, first in ((TRUE, X), (FALSE, X + 5)):
            outputs = [out.to_numpy() for out in model.execute(flag, X, X + 5)]
            np.testing.assert_array_equal(outputs, [first, X + 5])

    def test_the_same_value_twice(self, session) -> None:
        def forward(pred, x):
            first, second = ops.cond(pred, [VECTOR, VECTOR], lambda: [x, x], lambda: [x + 1] * 2)
            return [first * 2, second * 3, first]

        model = session.load(build(forward, [FLAG, VECTOR]))
        for flag, base in ((TRUE, X), (FALSE, X + 1)):
            outputs = [out.to_numpy() for out in model.execute(flag, X)]
            np.testing.assert_array_equal(outputs, [base * 2, base * 3, base])

    def test_captures(self, session) -> None:
        """Inputs, constants, results and weights from outside are all visible in both branches."""

        def forward(pred, x):
            computed = ops.exp(x)
            table = real([10, 20, 30])
            weight = Weight("w", DType.float32, [3], CPU)
            (out,) = ops.cond(pred, [VECTOR], lambda: computed * weight + table, lambda: x * weight - computed)
            return [out, computed]

        w = np.array([2, 3, 4], dtype=np.float32)
        model = session.load(build(forward, [FLAG, VECTOR]), weights_registry={"w": w})
        for flag, want in ((TRUE, np.exp(X) * w + [10, 20, 30]), (FALSE, X * w - np.exp(X))):
            out, computed = model.execute(flag, X)
            np.testing.assert_allclose(out.to_numpy(), want, rtol=1e-5)
            np.testing.assert_allclose(computed.to_numpy(), np.exp(X), rtol=1e-6)

    def test_a_weight_first_used_in_a_branch(self, session) -> None:
        """It belongs to the graph: the other branch and the code after the branches see it too."""
        weight = Weight("w", DType.float32, [3], CPU)

        def forward(pred, x):
            (out,) = ops.cond(pred, [VECTOR], lambda: x * weight, lambda: x - weight)
            return out + weight

        model = session.load(build(forward, [FLAG, VECTOR]), weights_registry={"w": 2 * X})
        np.testing.assert_array_equal(model.execute(TRUE, X)[0].to_numpy(), X * 2 * X + 2 * X)
        np.testing.assert_array_equal(model.execute(FALSE, X)[0].to_numpy(), X)

    @pytest.mark.parametrize("outer", [True, False])
    @pytest.mark.parametrize("inner", [True, False])
    def test_nested(self, session, outer: bool, inner: bool) -> None:
        def forward(p, q, x):
            def then_fn():
                y = x + 1
                return ops.cond(q, [VECTOR], lambda: y * 10, lambda: y - x)

            def else_fn():
                (y,) = ops.cond(q, [VECTOR], lambda: x, lambda: -x)
                return y * y

            return ops.cond(p, [VECTOR], then_fn, else_fn)

        (out,) = evaluate(session, forward, scalar(outer, "bool"), scalar(inner, "bool"), X)
        want = ((X + 1) * 10 if inner else np.ones(3)) if outer else X * X
        np.testing.assert_array_equal(out, want)

    def test_a_branch_that_depends_on_the_result_of_another(self, session) -> None:
        def forward(x):
            (y,) = ops.cond(ops.sum(x).reshape([]) > 0, [VECTOR], lambda: x - 10, lambda: x + 10)
            (z,) = ops.cond(y[0] > 0, [VECTOR], lambda: y * 2, lambda: y * 3)
            return [y, z]

        model = session.load(build(forward, [VECTOR]))
        for x in (X, -X):
            y = x - 10 if x.sum() > 0 else x + 10
            z = y * 2 if y[0] > 0 else y * 3
            outputs = [out.to_numpy() for out in model.execute(x)]
            np.testing.assert_array_equal(outputs, [y, z])

    @pytest.mark.parametrize(
        "predicate, want",
        [
            (lambda x: x[0] > 0, True),
            (lambda x: ops.max(x)[0] < 0, False),
            (lambda x: ~(x[0] > 0), False),
            (lambda x: ops.logical_and(x[0] > 0, x[1] > 0), False),
            (lambda x: (x > 0).reshape([3])[2], True),
            (lambda x: const(True, DType.bool), True),
            (lambda x: const(np.array(False), DType.bool), False),
            (lambda x: ops.is_nan(x[0]), False),
        ],
    )
    def test_predicates(self, session, predicate, want: bool) -> None:
        def forward(x):
            return ops.cond(predicate(x), [INT], lambda: const(1), lambda: const(0))

        assert evaluate(session, forward, X)[0].item() == want

    def test_a_weight_as_predicate(self, session) -> None:
        graph = build(lambda: ops.cond(Weight("p", DType.bool, [], CPU), [INT], lambda: const(1), lambda: const(0)), [])
        for flag, want in ((TRUE, 1), (FALSE, 0)):
            assert session.load(graph, weights_registry={"p": flag}).execute()[0].item() == want

    def test_symbolic_dims(self, session) -> None:
        kind = tensor("float32", "n")
        model = session.load(build(lambda p, x: ops.cond(p, [kind], lambda: x[::-1], lambda: x + 1), [FLAG, kind]))
        for size in (0, 1, 2, 7, 300):
            x = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(model.execute(TRUE, x)[0].to_numpy(), x[::-1])
            np.testing.assert_array_equal(model.execute(FALSE, x)[0].to_numpy(), x + 1)

    def test_a_size_that_depends_on_the_branch(self, session) -> None:
        """A dim that is new in `out_types` is refused, or it takes the size of the branch that ran."""

        def forward(pred, x):
            (y,) = ops.cond(
                pred, [tensor("float32", "m")], lambda: x.rebind(["m"]), lambda: ops.concat([x, x]).rebind(["m"])
            )
            return [y + 1, ops.sum(y)]

        try:
            model = session.load(build(forward, [FLAG, tensor("float32", "n")]))
        except REFUSED as error:
            assert "'m'" in str(error) or "m]" in str(error), "the dim is named"
            return
        for flag, x in ((TRUE, X), (FALSE, np.concatenate([X, X]))):
            y, total = model.execute(flag, X)
            np.testing.assert_array_equal(y.to_numpy(), x + 1)
            assert total.item() == x.sum()

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
    @pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (3, 2)])
    def test_dtypes_and_shapes(self, session, dtype: str, shape: tuple) -> None:
        x, y = np.zeros(shape, dtype=dtype), np.ones(shape, dtype=dtype)

        def forward(pred, a, b):
            return ops.cond(pred, [a.type], lambda: a, lambda: b)

        for flag, want in ((TRUE, x), (FALSE, y)):
            (out,) = evaluate(session, forward, flag, x, y)
            assert out.dtype == want.dtype and out.shape == shape
            np.testing.assert_array_equal(out, want)

    def test_nan_and_signed_zero_pass_through(self, session) -> None:
        x = np.array([np.nan, -0.0, np.inf], dtype=np.float32)
        (out,) = evaluate(session, lambda p, v: ops.cond(p, [v.type], lambda: v, lambda: -v), TRUE, x)
        assert out.tobytes() == x.tobytes()

    def test_matmul_in_a_branch(self, session) -> None:
        rng = np.random.default_rng(0)
        a, b = (rng.normal(size=(17, 17)).astype(np.float32) for _ in range(2))
        kind = tensor("float32", 17, 17)
        model = session.load(
            build(lambda p, a, b: ops.cond(p, [kind], lambda: a @ b, lambda: ops.softmax(a)), [FLAG, kind, kind])
        )
        np.testing.assert_allclose(model.execute(TRUE, a, b)[0].to_numpy(), a @ b, rtol=1e-4, atol=1e-4)
        e = np.exp(a - a.max(-1, keepdims=True))
        np.testing.assert_allclose(model.execute(FALSE, a, b)[0].to_numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)

    def test_an_error_in_the_branch_that_is_not_taken_does_not_happen(self, session) -> None:
        """A check that would fail is part of its branch."""

        def forward(pred, x):
            return ops.cond(pred, [VECTOR], lambda: x.rebind([3]), lambda: real([0, 0, 0]))

        model = session.load(build(forward, [FLAG, tensor("float32", "n")]))
        four = np.ones(4, dtype=np.float32)
        np.testing.assert_array_equal(model.execute(FALSE, four)[0].to_numpy(), np.zeros(3))
        with pytest.raises(REFUSED, match="rebind|shape"):
            model.execute(TRUE, four)
        np.testing.assert_array_equal(model.execute(TRUE, X)[0].to_numpy(), X)


class TestCondOnBuffers:
    def test_mutation_in_branches(self, session) -> None:
        def forward(pred, b):
            def then_fn():
                ops.buffer_store(b, ops.buffer_load(b) * 2)

            def else_fn():
                b[0] = real(9)

            before = b[...]
            assert ops.cond(pred, None, then_fn, else_fn) == []
            return [before, b[...]]

        model = session.load(build(forward, [FLAG, buffer("float32", 3)]))
        for flag, want in ((TRUE, X * 2), (FALSE, [9, -2, 3])):
            array = X.copy()
            before, after = model.execute(flag, array)
            np.testing.assert_array_equal(before.to_numpy(), X)
            np.testing.assert_array_equal(after.to_numpy(), want)
            np.testing.assert_array_equal(array, want)

    def test_mutation_in_one_branch_only(self, session) -> None:
        def forward(pred, b):
            (total,) = ops.cond(pred, [FLOAT], lambda: (b.__setitem__(..., -b[...]), b[0])[1], lambda: b[2])
            return [total, b[...] + 1]

        model = session.load(build(forward, [FLAG, buffer("float32", 3)]))
        for flag, state, total in ((TRUE, -X, -1), (FALSE, X, 3)):
            array = X.copy()
            outputs = model.execute(flag, array)
            assert outputs[0].item() == total
            np.testing.assert_array_equal(outputs[1].to_numpy(), state + 1)
            np.testing.assert_array_equal(array, state)

    def test_stores_before_inside_and_after(self, session) -> None:
        def forward(pred, b):
            b[...] = b[...] + 1
            ops.cond(pred, None, lambda: b.__setitem__(..., b[...] * 10), lambda: None)
            b[...] = b[...] + 2

        model = session.load(build(lambda p, b: forward(p, b) or [], [FLAG, buffer("float32", 3)]))
        for flag, want in ((TRUE, (X + 1) * 10 + 2), (FALSE, X + 3)):
            array = X.copy()
            assert model.execute(flag, array) == []
            np.testing.assert_array_equal(array, want)

    def test_each_branch_writes_another_buffer(self, session) -> None:
        def forward(pred, a, b):
            ops.cond(pred, None, lambda: a.__setitem__(..., b[...] * 2), lambda: b.__setitem__(slice(1, None), a[:2]))
            return []

        model = session.load(build(forward, [FLAG, buffer("float32", 3), buffer("float32", 3)]))
        for flag in (TRUE, FALSE):
            a, b = X.copy(), X + 10
            model.execute(flag, a, b)
            want_a, want_b = (2 * (X + 10), X + 10) if flag else (X, [11, 1, -2])
            np.testing.assert_array_equal(a, want_a)
            np.testing.assert_array_equal(b, want_b)

    def test_nested_mutation(self, session) -> None:
        def forward(p, q, b):
            def store(value):
                return lambda: b.__setitem__(..., b[...] + value)

            ops.cond(p, None, lambda: ops.cond(q, None, store(1), store(2)) and None, store(3))
            return b[...]

        model = session.load(build(forward, [FLAG, FLAG, buffer("float32", 3)]))
        for p, q, add in ((TRUE, TRUE, 1), (TRUE, FALSE, 2), (FALSE, TRUE, 3), (FALSE, FALSE, 3)):
            array = X.copy()
            np.testing.assert_array_equal(model.execute(p, q, array)[0].to_numpy(), X + add)
            np.testing.assert_array_equal(array, X + add)


class TestCondErrors:
    @pytest.mark.parametrize(
        "types, then_fn, else_fn",
        [
            (None, lambda: const(1), lambda: None),
            (None, lambda: None, lambda: const(1)),
            ([], lambda: [const(1)], lambda: None),
            ([INT], lambda: None, lambda: const(1)),
            ([INT], lambda: const(1), lambda: None),
            ([INT], lambda: [const(1), const(2)], lambda: const(1)),
            ([INT], lambda: const(1), lambda: [const(1), const(2)]),
            ([INT, INT], lambda: const(1), lambda: [const(1), const(2)]),
            ([INT], lambda: real(1), lambda: const(1)),
            ([INT], lambda: const(1), lambda: real(1)),
            ([INT], lambda: const([1, 2]), lambda: const(1)),
            ([INT], lambda: const(1), lambda: const([1])),
            ([VECTOR], lambda: real([1, 2]), lambda: real([1, 2, 3])),
            ([INT, FLOAT], lambda: [real(1), const(1)], lambda: [const(1), real(1)]),
            ([tensor("int32", "n")], lambda: const([1, 2]), lambda: const([1, 2])),
            ([TensorType(DType.int32, [], DeviceRef.GPU())], lambda: const(1), lambda: const(1)),
        ],
    )
    def test_results_of_other_types(self, types, then_fn, else_fn) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            with pytest.raises((TypeError, ValueError), match=MISMATCH):
                ops.cond(graph.inputs[0], types, then_fn, else_fn)

    def test_the_message_names_both_types(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            with pytest.raises((TypeError, ValueError), match=MISMATCH) as caught:
                ops.cond(graph.inputs[0], [VECTOR], lambda: const([4, 5]), lambda: real([1, 2, 3]))
        message = str(caught.value)
        assert "int32" in message and "float32" in message and "2" in message and "3" in message

    def test_dims_of_another_name(self) -> None:
        with Graph("g", input_types=[FLAG, tensor("float32", "n")]) as graph:
            pred, x = graph.inputs
            with pytest.raises((TypeError, ValueError), match=MISMATCH):
                ops.cond(pred, [tensor("float32", "m")], lambda: x, lambda: x + 1)

    @pytest.mark.parametrize(
        "kind",
        [INT, FLOAT, tensor("uint8"), tensor("bool", 1), tensor("bool", 3), tensor("bool", "n"), tensor("bool", 1, 1)],
    )
    def test_predicates_that_are_not_bool_scalars(self, kind) -> None:
        with Graph("g", input_types=[kind]) as graph:
            with pytest.raises((ValueError, TypeError), match="bool"):
                ops.cond(graph.inputs[0], [INT], lambda: const(1), lambda: const(0))

    @pytest.mark.parametrize("pred", [None, "true", [True], 1, object()])
    def test_predicates_that_are_not_values(self, pred) -> None:
        with Graph("g"):
            with pytest.raises((ValueError, TypeError)):
                ops.cond(pred, [INT], lambda: const(1), lambda: const(0))

    def test_a_buffer_is_not_a_predicate(self) -> None:
        with Graph("g", input_types=[buffer("bool")]) as graph:
            with pytest.raises((ValueError, TypeError)):
                ops.cond(graph.inputs[0], None, lambda: None, lambda: None)

    def test_the_predicate_must_be_on_the_cpu(self) -> None:
        with Graph("g", input_types=[TensorType(DType.bool, [], DeviceRef.GPU())]) as graph:
            with pytest.raises(ValueError, match="must reside on CPU") as caught:
                ops.cond(graph.inputs[0], None, lambda: None, lambda: None)
        assert "gpu:0" in str(caught.value)

    def test_buffers_are_not_results(self) -> None:
        kind = buffer("int32")
        with Graph("g", input_types=[FLAG, kind]) as graph:
            pred, b = graph.inputs
            with pytest.raises(REFUSED):
                ops.cond(pred, [kind], lambda: b, lambda: b)

    @pytest.mark.parametrize("types", [INT, 3, [3], ["int32"]])
    def test_bad_out_types(self, types) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            with pytest.raises((TypeError, ValueError)):
                ops.cond(graph.inputs[0], types, lambda: const(1), lambda: const(1))

    def test_branches_that_cannot_be_called(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            for then_fn, else_fn in ((None, lambda: None), (lambda: None, None), (lambda x: None, lambda: None)):
                with pytest.raises(TypeError):
                    ops.cond(graph.inputs[0], None, then_fn, else_fn)

    def test_no_graph(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            pass
        with pytest.raises(LookupError, match="No graph found"):
            ops.cond(graph.inputs[0], None, lambda: None, lambda: None)

    def test_an_exception_in_a_branch_leaves_the_graph_usable(self, session) -> None:
        for position in (0, 1):

            def forward(pred, x):
                def fails():
                    x + 1  # noqa: B018
                    raise ZeroDivisionError("in the branch")

                branches = [lambda: x, lambda: x]
                branches[position] = fails
                with pytest.raises(ZeroDivisionError, match="in the branch"):
                    ops.cond(pred, [VECTOR], *branches)
                (y,) = ops.cond(pred, [VECTOR], lambda: x + 1, lambda: x - 1)
                return y * 2

            np.testing.assert_array_equal(evaluate(session, forward, TRUE, X)[0], (X + 1) * 2)

    def test_outputs_are_not_set_in_a_branch(self) -> None:
        with Graph("g", input_types=[FLAG]) as graph:
            with pytest.raises(REFUSED):
                ops.cond(graph.inputs[0], None, lambda: graph.output(const(1)), lambda: None)

    def test_inner_values_do_not_leave_their_region(self) -> None:
        """Using one after its branch is refused, at the latest when the graph is finished."""
        with pytest.raises(REFUSED):
            with Graph("g", input_types=[FLAG, VECTOR]) as graph:
                pred, x = graph.inputs
                kept = []

                def then_fn():
                    kept.append(x + 1)
                    return kept[0]

                ops.cond(pred, [VECTOR], then_fn, lambda: x)
                graph.output(kept[0] * 2)

    def test_inner_values_are_not_seen_in_the_other_branch(self) -> None:
        with pytest.raises(REFUSED):
            with Graph("g", input_types=[FLAG, VECTOR]) as graph:
                pred, x = graph.inputs
                kept = []

                def then_fn():
                    kept.append(x + 1)
                    return kept[0]

                graph.output(*ops.cond(pred, [VECTOR], then_fn, lambda: kept[0]))


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


class TestPrograms:
    def test_newton_iteration(self, session) -> None:
        """Square roots of a vector, until no element moves by more than the tolerance."""

        def forward(a, tolerance):
            def predicate(i, x, step):
                return ops.logical_and(step > tolerance, i < 50)

            def body(i, x, step):
                y = (x + a / x) / 2
                return [i + 1, y, ops.max(ops.abs(y - x)).reshape([])]

            start = const(np.inf, DType.float64)
            return ops.while_loop(
                [const(0), ops.broadcast_to(const(1, DType.float64), a.shape), start], predicate, body
            )

        model = session.load(build(forward, [tensor("float64", "n"), tensor("float64")]))
        for a in (np.array([2.0]), np.array([2.0, 9.0, 1e-3, 12345.6789])):
            x, step, count = np.ones_like(a), np.inf, 0
            while step > 1e-10 and count < 50:
                y = (x + a / x) / 2
                x, step, count = y, np.abs(y - x).max(), count + 1
            iterations, roots, last = model.execute(a, scalar(1e-10, "float64"))
            assert iterations.item() == count and last.item() == step
            np.testing.assert_array_equal(roots.to_numpy(), x)
            np.testing.assert_allclose(roots.to_numpy(), np.sqrt(a), rtol=1e-12)

    def test_rnn(self, session) -> None:
        """h = tanh(x[t] Wx + h Wh + b) for every time step of a batch of sequences."""
        rng = np.random.default_rng(3)
        steps, batch, size, hidden = 23, 4, 5, 8
        x = rng.normal(size=(steps, batch, size)).astype(np.float32)
        weights = {
            "wx": rng.normal(size=(size, hidden)).astype(np.float32) / 3,
            "wh": rng.normal(size=(hidden, hidden)).astype(np.float32) / 3,
            "b": rng.normal(size=hidden).astype(np.float32) / 3,
        }

        def forward(x):
            wx, wh, b = (Weight(name, DType.float32, w.shape, CPU) for name, w in weights.items())

            def body(t, h, total):
                now = ops.gather(x, t.reshape([1]), axis=0).reshape([batch, size])
                h = ops.tanh(now @ wx + h @ wh + b)
                return [t + 1, h, total + h]

            zeros = real(np.zeros((batch, hidden), dtype=np.float32))
            _, h, total = ops.while_loop(
                [const(0, DType.int64), zeros, zeros], lambda t, h, total: t < x.shape[0], body
            )
            return [h, total]

        model = session.load(build(forward, [tensor("float32", "steps", batch, size)]), weights_registry=weights)
        for length in (0, 1, steps):
            h = total = np.zeros((batch, hidden))
            for t in range(length):
                h = np.tanh(x[t] @ weights["wx"] + h @ weights["wh"] + weights["b"])
                total = total + h
            got_h, got_total = model.execute(x[:length])
            np.testing.assert_allclose(got_h.to_numpy(), h, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(got_total.to_numpy(), total, rtol=1e-4, atol=1e-4)

    def test_beam_search(self, session) -> None:
        """The best sequences of a chain of tokens: each step extends every beam by every token and keeps the best."""
        beams, vocabulary, steps = 3, 7, 6
        rng = np.random.default_rng(4)
        logits = rng.normal(size=(vocabulary, vocabulary)).astype(np.float32)
        start = rng.normal(size=vocabulary).astype(np.float32)

        def best(scores, count):
            """The values and indices of the largest of a vector, one after another."""
            values, indices = [], []
            places = ops.range(0, beams * vocabulary, 1, out_dim=beams * vocabulary, dtype=DType.int64, device=CPU)
            for _ in range(count):
                index = ops.argmax(scores)
                values.append(ops.max(scores))
                indices.append(index)
                scores = ops.where(places == index, -np.inf, scores)
            return ops.concat(values), ops.concat(indices)

        def forward(start, table):
            def body(t, scores, sequences):
                last = ops.gather(sequences, (t - 1).reshape([1]), axis=1).reshape([beams])
                options = scores.reshape([beams, 1]) + ops.gather(table, last, axis=0)
                scores, chosen = best(options.reshape([beams * vocabulary]), beams)
                beam, token = chosen // vocabulary, chosen % vocabulary
                kept = ops.gather(sequences, beam, axis=0)
                columns = ops.range(0, steps, 1, out_dim=steps, dtype=DType.int64, device=CPU).reshape([1, steps])
                return [t + 1, scores, ops.where(columns == t, token.reshape([beams, 1]), kept)]

            # All beams but the first start without a chance: they are equal otherwise.
            nothing = real(np.full((beams - 1) * vocabulary, -np.inf, dtype=np.float32))
            scores, first = best(ops.concat([start, nothing]), beams)
            sequences = ops.concat(
                [first.reshape([beams, 1]), const(np.zeros((beams, steps - 1), dtype=np.int64), DType.int64)], axis=1
            )
            return ops.while_loop([const(1, DType.int64), scores, sequences], lambda t, s, q: t < steps, body)

        _, scores, sequences = evaluate(session, forward, start, logits)

        order = np.argsort(-start, kind="stable")[:beams]
        want = [(start[token], [int(token)]) for token in order]
        for _ in range(steps - 1):
            options = [(s + logits[q[-1], k], [*q, k]) for s, q in want for k in range(vocabulary)]
            want = sorted(options, key=lambda option: -option[0])[:beams]
        np.testing.assert_array_equal(sequences, [q for _, q in want])
        np.testing.assert_allclose(scores, [s for s, _ in want], rtol=1e-5)

    def test_a_bisection_with_branches(self, session) -> None:
        """The root of cos(x) - x, where a branch chooses the half."""

        def forward(low, high):
            def body(low, high):
                middle = (low + high) / 2
                value = ops.cos(middle) - middle
                return ops.cond(value > 0, [low.type, low.type], lambda: [middle, high], lambda: [low, middle])

            return ops.while_loop([low, high], lambda low, high: high - low > 1e-9, body)

        low, high = evaluate(session, forward, scalar(0, "float64"), scalar(1, "float64"))
        assert low <= 0.7390851332151607 <= high and high - low <= 1e-9


class TestPrints:
    """Prints appear when they run and in the order of the program."""

    def test_in_branches(self, session) -> None:
        with Graph("g", input_types=[FLAG, VECTOR]) as graph:
            pred, x = graph.inputs
            ops.print("before")

            def then_fn():
                ops.print("then")
                ops.print(x, label="x")
                return x + 1

            def else_fn():
                ops.print("else")
                return x

            (y,) = ops.cond(pred, [VECTOR], then_fn, else_fn)
            ops.print("after")
            graph.output(y)
        model = session.load(graph)
        lines = lines_of(model, TRUE, X)
        assert [lines[0], lines[1], lines[-1]] == ["before", "then", "after"]
        assert len(lines) == 4 and "x" in lines[2] and "-2" in lines[2]
        assert lines_of(model, FALSE, X) == ["before", "else", "after"]

    def test_in_branches_without_results(self, session) -> None:
        """A branch that only prints is not removed."""
        with Graph("g", input_types=[FLAG]) as graph:
            ops.cond(graph.inputs[0], None, lambda: ops.print("yes"), lambda: ops.print("no"))
            graph.output()
        model = session.load(graph)
        assert [lines_of(model, flag) for flag in (TRUE, FALSE)] == [["yes"], ["no"]]

    def test_in_loops(self, session) -> None:
        with Graph("g", input_types=[INT]) as graph:

            def predicate(i):
                ops.print("test")
                return i < graph.inputs[0]

            def body(i):
                ops.print("body")
                ops.print(i, label="i")
                return i + 1

            ops.print("before")
            (i,) = ops.while_loop(const(0), predicate, body)
            ops.print("after")
            graph.output(i)
        model = session.load(graph)
        for count in (0, 1, 3):
            lines = lines_of(model, scalar(count))
            words = [line for line in lines if not line.startswith("i =")]
            assert words == ["before", *["test", "body"] * count, "test", "after"]
            numbers = [line for line in lines if line.startswith("i =")]
            assert len(numbers) == count and all(str(k) in line for k, line in enumerate(numbers))

    def test_a_loop_whose_result_is_not_used_still_prints(self, session) -> None:
        with Graph("g") as graph:

            def body(i):
                ops.print("turn")
                return i + 1

            ops.while_loop(const(0), lambda i: i < 2, body)
            graph.output()
        assert lines_of(session.load(graph)) == ["turn", "turn"]

    def test_nested(self, session) -> None:
        with Graph("g") as graph:

            def body(i):
                ops.cond(i % 2 == 0, None, lambda: ops.print("even"), lambda: ops.print("odd"))

                def inner(j):
                    ops.print("inner")
                    return j + 1

                ops.while_loop(const(0), lambda j: j < i, inner)
                return i + 1

            graph.output(*ops.while_loop(const(0), lambda i: i < 3, body))
        assert lines_of(session.load(graph)) == ["even", "odd", "inner", "even", "inner", "inner"]

    def test_between_stores(self, session) -> None:
        """A print of what a buffer holds shows what it held there."""
        with Graph("g", input_types=[FLAG, buffer("int32", 1)]) as graph:
            pred, b = graph.inputs

            def store(number):
                b[...] = const([number])
                ops.print(b[...], label="b")

            ops.print(b[...], label="b")
            store(111)
            ops.cond(pred, None, lambda: store(222), lambda: store(333))
            ops.print(b[...], label="b")
            graph.output()
        model = session.load(graph)
        for flag, numbers in ((TRUE, (777, 111, 222, 222)), (FALSE, (777, 111, 333, 333))):
            lines = lines_of(model, flag, Buffer.from_numpy(np.array([777], dtype=np.int32)))
            assert len(lines) == 4
            assert all(str(number) in line for number, line in zip(numbers, lines))

    def test_large_tensors_are_shortened(self, session) -> None:
        """The first and last elements are enough to recognize a tensor."""
        with Graph("g") as graph:
            ops.print(const(np.arange(10_000, 20_000, dtype=np.int32)), label="long")
            ops.print(real(np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)), label="wide")
            graph.output()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            session.load(graph).execute()
        text = out.getvalue()
        assert len(text) < 5000
        assert all(part in text for part in ("10000", "19999", "...", "999999", "long", "wide"))
