"""Branches: `ops.cond`, its results, captures, effects and errors."""

import numpy as np
import pytest
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops

from helpers import CPU, REFUSED, build, evaluate, tensor
from regions import FALSE, FLAG, FLOAT, INT, MISMATCH, TRUE, VECTOR, X, buffer, const, real, scalar


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
