"""Subgraphs: parts of a graph that are defined once and called many times."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, Weight, ops

from helpers import CPU, REFUSED, build, tensor

X = np.array([1, -2, 3], dtype=np.float32)
VECTOR, FLAG, INT = tensor("float32", 3), tensor("bool"), tensor("int32")


def buffer(dtype: str, *dims) -> BufferType:
    return tensor(dtype, *dims).as_buffer()


def weight(name: str, *dims) -> Weight:
    return Weight(name, DType.float32, list(dims), CPU)


def scaled(x):
    """A layer with one weight, `w`."""
    return x * weight("w", 3) + 1


def run(session, graph: Graph, *arrays, **options) -> list[np.ndarray]:
    return [out.to_numpy() for out in session.load(graph, **options).execute(*arrays)]


class TestDefinition:
    def test_with_forward(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", forward=lambda x: x * 2 + 1, input_types=[VECTOR])
            assert Graph.current is graph
            assert isinstance(part, Graph) and part.name == "part"
            assert [v.type for v in part.inputs] == [VECTOR]
            assert part.output_types == [VECTOR]
            graph.output(*ops.call(part, graph.inputs[0]))
        np.testing.assert_array_equal(run(session, graph, X)[0], X * 2 + 1)

    def test_without_forward(self, session) -> None:
        with Graph("main", input_types=[VECTOR, VECTOR]) as graph:
            part = graph.add_subgraph("part", input_types=[VECTOR, VECTOR])
            assert Graph.current is graph
            with part:
                assert Graph.current is part
                x, y = part.inputs
                part.output(x + y, x - y)
            assert Graph.current is graph
            assert part.output_types == [VECTOR, VECTOR]
            graph.output(*ops.call(part, *graph.inputs))
        added, subtracted = run(session, graph, X, X * 3)
        np.testing.assert_array_equal([added, subtracted], [X * 4, X * -2])

    def test_positional_arguments(self, session) -> None:
        graph = build(lambda x: ops.call(Graph.current.add_subgraph("part", lambda v: (v, -v), [VECTOR]), x), [VECTOR])
        np.testing.assert_array_equal(run(session, graph, X), [X, -X])

    def test_inputs_are_only_those_asked_for(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", input_types=(kind for kind in (VECTOR, INT, buffer("int8", 2))))
            assert [v.type for v in part.inputs] == [VECTOR, INT, buffer("int8", 2)]

    def test_defined_outside_the_with_block(self, session) -> None:
        graph = Graph("main", input_types=[VECTOR])
        part = graph.add_subgraph("part", lambda v: v + 5, [VECTOR])
        with graph:
            graph.output(*ops.call(part, graph.inputs[0]))
        np.testing.assert_array_equal(run(session, graph, X)[0], X + 5)

    def test_one_that_is_never_called(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            graph.add_subgraph("unused", lambda v: v * weight("not needed", 3), [VECTOR])
            graph.output(graph.inputs[0] + 1)
        np.testing.assert_array_equal(run(session, graph, X)[0], X + 1)

    def test_an_exception_in_forward_leaves_the_graph_usable(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:

            def fails(v):
                v + 1  # noqa: B018
                raise ZeroDivisionError("in the subgraph")

            with pytest.raises(ZeroDivisionError, match="in the subgraph"):
                graph.add_subgraph("broken", fails, [VECTOR])
            assert Graph.current is graph
            part = graph.add_subgraph("part", lambda v: v * 2, [VECTOR])
            graph.output(*ops.call(part, graph.inputs[0]))
        np.testing.assert_array_equal(run(session, graph, X)[0], X * 2)

    def test_two_of_one_name(self, session) -> None:
        """Either the second is refused, or each is called as what it is."""
        with Graph("main", input_types=[VECTOR]) as graph:
            first = graph.add_subgraph("part", lambda v: v + 1, [VECTOR])
            try:
                second = graph.add_subgraph("part", lambda v: v * 2, [VECTOR])
            except ValueError as error:
                assert "part" in str(error)
                return
            graph.output(*ops.call(first, graph.inputs[0]), *ops.call(second, graph.inputs[0]))
        np.testing.assert_array_equal(run(session, graph, X), [X + 1, X * 2])

    def test_the_text_contains_it(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("inner_part", lambda v: v * 2 + 1, [VECTOR])
            graph.output(*ops.call(part, graph.inputs[0]))
        assert "inner_part" in str(graph) and "inner_part" in str(part)


class TestCall:
    def test_returns_a_list(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            (x,) = graph.inputs
            for forward, count in ((lambda v: v, 1), (lambda v: [v, v + 1], 2), (lambda v: None, 0)):
                part = graph.add_subgraph(f"part{count}", forward, [VECTOR])
                result = ops.call(part, x)
                assert isinstance(result, list) and len(result) == count
                assert all(isinstance(value, TensorValue) and value.type == VECTOR for value in result)

    def test_results_of_several_types(self, session) -> None:
        def forward(x, n):
            return [ops.sum(x), n + 1, x > 0, x]

        with Graph("main", input_types=[VECTOR, INT]) as graph:
            part = graph.add_subgraph("part", forward, [VECTOR, INT])
            graph.output(*ops.call(part, *graph.inputs))
        assert graph.output_types == [tensor("float32", 1), INT, tensor("bool", 3), VECTOR]
        total, n, positive, x = run(session, graph, X, np.array(4, dtype=np.int32))
        assert (total.item(), n.item()) == (2, 5)
        np.testing.assert_array_equal(positive, X > 0)
        np.testing.assert_array_equal(x, X)

    def test_many_calls(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", lambda x, k: (x * 3 + k) % 1009, [VECTOR, VECTOR])
            (y,) = graph.inputs
            for k in range(100):
                (y,) = ops.call(part, y, graph.inputs[0] + k)
            graph.output(y)
        want = X
        for k in range(100):
            want = (want * 3 + (X + k)) % 1009
        np.testing.assert_array_equal(run(session, graph, X)[0], want)

    def test_one_value_for_all_arguments(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            (x,) = graph.inputs
            part = graph.add_subgraph("part", lambda a, b, c: [a + b * c, c], [VECTOR] * 3)
            graph.output(*ops.call(part, x, x, x), x)
        np.testing.assert_array_equal(run(session, graph, X), [X + X * X, X, X])

    def test_calls_do_not_disturb_one_another(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            (x,) = graph.inputs
            part = graph.add_subgraph("part", lambda v: ops.exp(v) * 2, [VECTOR])
            first, second, third = (ops.call(part, x * k)[0] for k in (0.1, 0.2, 0.3))
            graph.output(third, first, second, first + second)
        outputs = run(session, graph, X)
        a, b, c = (np.exp(X * np.float32(k)) * 2 for k in (0.1, 0.2, 0.3))
        np.testing.assert_allclose(outputs, [c, a, b, a + b], rtol=1e-5)

    def test_a_weight_as_argument(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", lambda v, w: v * w, [VECTOR, VECTOR])
            graph.output(*ops.call(part, graph.inputs[0], weight("w", 3)))
        np.testing.assert_array_equal(run(session, graph, X, weights_registry={"w": X + 1})[0], X * (X + 1))

    def test_symbolic_dims(self, session) -> None:
        kind = tensor("float32", "n", 3)
        with Graph("main", input_types=[kind]) as graph:
            part = graph.add_subgraph("part", lambda v: [v + 1, ops.concat([v, v]), v.reshape([-1])], [kind])
            one, two, flat = ops.call(part, graph.inputs[0])
            assert one.shape == ["n", 3]
            graph.output(*ops.call(part, one), two, flat)
        model = session.load(graph)
        for n in (0, 1, 2, 9):
            x = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
            outputs = [out.to_numpy() for out in model.execute(x)]
            y = x + 1
            for out, want in zip(
                outputs, [y + 1, np.concatenate([y, y]), y.ravel(), np.concatenate([x, x]), x.ravel()]
            ):
                np.testing.assert_array_equal(out, want)

    def test_subgraphs_that_call_subgraphs(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            inner = graph.add_subgraph("inner", lambda v: v * 2 + 1, [VECTOR])
            outer = graph.add_subgraph("outer", lambda v: ops.call(inner, ops.call(inner, v)[0]), [VECTOR])
            (y,) = ops.call(outer, graph.inputs[0])
            graph.output(y, *ops.call(inner, y))
        y = (X * 2 + 1) * 2 + 1
        np.testing.assert_array_equal(run(session, graph, X), [y, y * 2 + 1])

    def test_a_subgraph_with_a_subgraph_of_its_own(self, session) -> None:
        def forward(v):
            part = Graph.current.add_subgraph("inner", lambda x: x - 1, [VECTOR])
            return ops.call(part, v)

        with Graph("main", input_types=[VECTOR]) as graph:
            outer = graph.add_subgraph("outer", forward, [VECTOR])
            (y,) = ops.call(outer, graph.inputs[0])
            graph.output(*ops.call(outer, y))
        np.testing.assert_array_equal(run(session, graph, X)[0], X - 2)

    def test_branches_and_loops_inside(self, session) -> None:
        def forward(n, v):
            (v,) = ops.cond(v[0] > 0, [VECTOR], lambda: v, lambda: -v)
            return ops.while_loop([n, v], lambda i, x: i > 0, lambda i, x: [i - 1, x * 2])[1]

        with Graph("main", input_types=[INT, VECTOR]) as graph:
            part = graph.add_subgraph("part", forward, [INT, VECTOR])
            n, x = graph.inputs
            (y,) = ops.call(part, n, x)
            graph.output(y, *ops.call(part, n + 1, -y))
        y, z = run(session, graph, np.array(3, dtype=np.int32), X)
        np.testing.assert_array_equal([y, z], [X * 8, X * 8 * 16])

    def test_calls_in_branches_and_loops(self, session) -> None:
        with Graph("main", input_types=[INT, VECTOR]) as graph:
            n, x = graph.inputs
            part = graph.add_subgraph("part", lambda v: v * 2, [VECTOR])
            (y,) = ops.cond(n > 2, [VECTOR], lambda: ops.call(part, x), lambda: x)
            graph.output(ops.while_loop([n, y], lambda i, v: i > 0, lambda i, v: [i - 1, *ops.call(part, v)])[1])
        model = session.load(graph)
        for n in (0, 1, 3):
            (out,) = model.execute(np.array(n, dtype=np.int32), X)
            np.testing.assert_array_equal(out.to_numpy(), X * 2 ** (n + (n > 2)))

    def test_prints_appear_in_program_order(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:

            def forward(v):
                ops.print("inside")
                return v + 1

            part = graph.add_subgraph("part", forward, [VECTOR])
            ops.print("first")
            (y,) = ops.call(part, graph.inputs[0])
            ops.print("second")
            ops.call(part, y)
            ops.print("third")
            graph.output(y)
        model = session.load(graph)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            model.execute(X)
        assert out.getvalue().splitlines() == ["first", "inside", "second", "inside", "third"]


class TestWeights:
    def test_a_prefix_for_each_call(self, session) -> None:
        """Each call has its own weights: the prefix is put before their names as it is."""
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            (y,) = graph.inputs
            for prefix in ("layers.0.", "layers.1.", "last_", ""):
                (y,) = ops.call(layer, y, prefix=prefix)
            graph.output(y)
        names = ["layers.0.w", "layers.1.w", "last_w", "w"]
        registry = {name: X + k for k, name in enumerate(names)}
        want = X
        for name in names:
            want = want * registry[name] + 1
        np.testing.assert_array_equal(run(session, graph, X, weights_registry=registry)[0], want)

    def test_calls_with_one_prefix_share_the_weights(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="a.")
            graph.output(*ops.call(layer, y, prefix="a."))
        want = (X * 2 * X + 1) * 2 * X + 1
        np.testing.assert_array_equal(run(session, graph, X, weights_registry={"a.w": 2 * X})[0], want)

    def test_several_weights(self, session) -> None:
        def forward(x):
            return x.reshape([1, 3]) @ weight("attention.q", 3, 3) + weight("bias", 3)

        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", forward, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="0.")
            graph.output(*ops.call(layer, y.reshape([3]), prefix="1."))
        rng = np.random.default_rng(0)
        shapes = {"attention.q": (3, 3), "bias": (3,)}
        registry = {
            f"{k}.{name}": rng.integers(-4, 5, size=shape).astype(np.float32)
            for k in range(2)
            for name, shape in shapes.items()
        }
        want = X
        for k in range(2):
            want = want @ registry[f"{k}.attention.q"] + registry[f"{k}.bias"]
        np.testing.assert_array_equal(run(session, graph, X, weights_registry=registry)[0], want[None])

    def test_a_weight_beside_those_of_calls(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="a.")
            graph.output(y - weight("w", 3))
        registry = {"a.w": X + 1, "w": X + 2}
        np.testing.assert_array_equal(run(session, graph, X, weights_registry=registry)[0], X * (X + 1) + 1 - (X + 2))

    def test_one_weight_inside_and_outside(self, session) -> None:
        """The same object is the same weight, whichever part uses it first."""
        for first in ("inside", "outside"):
            w = weight("w", 3)
            with Graph("main", input_types=[VECTOR]) as graph:
                (x,) = graph.inputs
                if first == "outside":
                    x = x + w
                part = graph.add_subgraph("part", lambda v, w=w: v * w, [VECTOR])
                (y,) = ops.call(part, x)
                graph.output(y if first == "outside" else y + w)
            want = (X + 2) * 2 if first == "outside" else X * 2 + 2
            registry = {"w": np.full(3, 2, dtype=np.float32)}
            np.testing.assert_array_equal(run(session, graph, X, weights_registry=registry)[0], want)

    def test_a_missing_weight_is_named_with_its_prefix(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="layers.0.")
            graph.output(*ops.call(layer, y, prefix="layers.1."))
        with pytest.raises(REFUSED) as caught:
            session.load(graph, weights_registry={"layers.0.w": X, "w": X})
        assert "layers.1.w" in str(caught.value)

    def test_prefixes_of_nested_calls(self, session) -> None:
        """The outer prefix comes before the inner one."""
        with Graph("main", input_types=[VECTOR]) as graph:
            inner = graph.add_subgraph("inner", scaled, [VECTOR])
            outer = graph.add_subgraph(
                "outer", lambda v: ops.call(inner, ops.call(inner, v, prefix="a.")[0], prefix="b."), [VECTOR]
            )
            (y,) = ops.call(outer, graph.inputs[0], prefix="0.")
            graph.output(*ops.call(outer, y, prefix="1."))
        names = ["0.a.w", "0.b.w", "1.a.w", "1.b.w"]
        registry = {name: X + k for k, name in enumerate(names)}
        want = X
        for name in names:
            want = want * registry[name] + 1
        np.testing.assert_array_equal(run(session, graph, X, weights_registry=registry)[0], want)

    def test_a_weight_of_a_branch_of_a_subgraph(self, session) -> None:
        def forward(x):
            return ops.cond(x[0] > 0, [VECTOR], lambda: x * weight("w", 3), lambda: x)

        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", forward, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="0.")
            graph.output(*ops.call(layer, y, prefix="1."))
        model = session.load(graph, weights_registry={"0.w": X + 1, "1.w": X + 2})
        np.testing.assert_array_equal(model.execute(X)[0].to_numpy(), X * (X + 1) * (X + 2))
        np.testing.assert_array_equal(model.execute(-X)[0].to_numpy(), -X)

    def test_prefixes_are_text(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            with pytest.raises(TypeError):
                ops.call(layer, graph.inputs[0], prefix=3)


class TestBuffers:
    KIND = buffer("float32", 3)

    def test_a_subgraph_changes_its_argument(self, session) -> None:
        def forward(b, x):
            old = b[...]
            b[...] = old + x
            return old

        with Graph("main", input_types=[self.KIND, VECTOR]) as graph:
            b, x = graph.inputs
            part = graph.add_subgraph("part", forward, [self.KIND, VECTOR])
            (first,) = ops.call(part, b, x)
            (second,) = ops.call(part, b, x * 10)
            graph.output(first, second, b[...])
        array = X.copy()
        outputs = run(session, graph, array, X)
        np.testing.assert_array_equal(outputs, [X, X * 2, X * 12])
        np.testing.assert_array_equal(array, X * 12)

    def test_without_results(self, session) -> None:
        def forward(b):
            b[0] = b[1] * b[2]

        with Graph("main", input_types=[self.KIND]) as graph:
            part = graph.add_subgraph("part", forward, [self.KIND])
            assert ops.call(part, graph.inputs[0]) == []
            graph.output()
        array = X.copy()
        assert run(session, graph, Buffer.from_numpy(array)) == []
        np.testing.assert_array_equal(array, [-6, -2, 3])

    def test_loads_keep_their_place_among_calls(self, session) -> None:
        with Graph("main", input_types=[self.KIND]) as graph:
            (b,) = graph.inputs
            part = graph.add_subgraph("part", lambda k: ops.buffer_store(k, k[...] * 2), [self.KIND])
            seen = [b[...]]
            for _ in range(3):
                ops.call(part, b)
                seen.append(b[...])
            graph.output(*seen)
        array = X.copy()
        np.testing.assert_array_equal(run(session, graph, array), [X, X * 2, X * 4, X * 8])
        np.testing.assert_array_equal(array, X * 8)

    def test_each_call_with_its_own_buffer(self, session) -> None:
        """A stack of layers that share their code but not their state."""

        def forward(state, x):
            state[...] = state[...] + x
            return state[...] * 2

        with Graph("main", input_types=[self.KIND, self.KIND, self.KIND, VECTOR]) as graph:
            *states, y = graph.inputs
            layer = graph.add_subgraph("layer", forward, [self.KIND, VECTOR])
            for state in states:
                (y,) = ops.call(layer, state, y)
            graph.output(y)
        model = session.load(graph)
        states, wanted = [X * k for k in range(3)], [X * k for k in range(3)]
        for step in range(3):
            y = X + step
            (out,) = model.execute(*states, y)
            for k in range(3):
                wanted[k] = wanted[k] + y
                y = wanted[k] * 2
            np.testing.assert_array_equal(out.to_numpy(), y)
            np.testing.assert_array_equal(states, wanted)

    def test_one_buffer_for_two_arguments(self, session) -> None:
        """Either it is refused, or both names stand for the one buffer."""

        def forward(a, b):
            a[...] = a[...] + 1
            b[...] = b[...] * 10
            return a[...]

        try:
            with Graph("main", input_types=[self.KIND]) as graph:
                part = graph.add_subgraph("part", forward, [self.KIND, self.KIND])
                graph.output(*ops.call(part, graph.inputs[0], graph.inputs[0]))
        except ValueError:
            return
        array = X.copy()
        (out,) = run(session, graph, array)
        np.testing.assert_array_equal([out, array], [(X + 1) * 10] * 2)

    def test_created_inside(self, session) -> None:
        """Each call has a new one."""

        def forward(x):
            b = ops.buffer_create(self.KIND, 1.0)
            b[...] = b[...] + x
            return b[...]

        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", forward, [VECTOR])
            (y,) = ops.call(part, graph.inputs[0])
            graph.output(y, *ops.call(part, graph.inputs[0]))
        np.testing.assert_array_equal(run(session, graph, X), [X + 1, X + 1])


class TestErrors:
    @pytest.mark.parametrize("expected, given", [(4, 1), (1, 0), (1, 2), (2, 5)])
    def test_number_of_arguments(self, expected: int, given: int) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", lambda *v: v[0], [VECTOR] * expected)
            with pytest.raises(ValueError, match=f"Expected {expected} args.*got {given}"):
                ops.call(part, *[graph.inputs[0]] * given)

    @pytest.mark.parametrize(
        "given",
        [
            tensor("int32", 3),
            tensor("float64", 3),
            tensor("float32", 4),
            tensor("float32"),
            tensor("float32", 3, 1),
            buffer("float32", 3),
            TensorType(DType.float32, [3], DeviceRef.GPU()),
        ],
    )
    def test_types_of_arguments(self, given) -> None:
        with Graph("main", input_types=[VECTOR, given]) as graph:
            x, bad = graph.inputs
            part = graph.add_subgraph("part", lambda a, b: a, [VECTOR, VECTOR])
            for arguments in ((bad, x), (x, bad)):
                with pytest.raises((TypeError, ValueError), match="wrong type") as caught:
                    ops.call(part, *arguments)
                assert "part" in str(caught.value)

    def test_a_tensor_for_a_buffer(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", lambda b: b[...], [buffer("float32", 3)])
            with pytest.raises((TypeError, ValueError), match="wrong type"):
                ops.call(part, graph.inputs[0])

    def test_one_symbol_for_two_sizes(self) -> None:
        with Graph("main", input_types=[tensor("float32", 3), tensor("float32", 4)]) as graph:
            part = graph.add_subgraph("part", lambda a, b: a + b, [tensor("float32", "n")] * 2)
            with pytest.raises((TypeError, ValueError), match="wrong type"):
                ops.call(part, *graph.inputs)

    @pytest.mark.parametrize("bad", [None, "text", object(), [1]])
    def test_arguments_that_are_not_values(self, bad) -> None:
        with Graph("main") as graph:
            part = graph.add_subgraph("part", lambda v: v, [VECTOR])
            with pytest.raises((TypeError, ValueError)):
                ops.call(part, bad)

    def test_things_that_are_not_subgraphs(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            for bad in (None, lambda v: v, "part"):
                with pytest.raises((TypeError, ValueError)):
                    ops.call(bad, graph.inputs[0])

    def test_a_subgraph_without_outputs_set(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", input_types=[VECTOR])
            with pytest.raises((TypeError, ValueError), match="output"):
                ops.call(part, graph.inputs[0])

    def test_recursion(self) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", input_types=[VECTOR])
            with part:
                with pytest.raises(REFUSED):
                    ops.call(part, part.inputs[0])
            assert Graph.current is graph

    def test_values_of_the_outer_graph_are_not_seen_inside(self) -> None:
        """A subgraph has only its arguments: the same code is called from many places."""
        with pytest.raises(REFUSED):
            with Graph("main", input_types=[VECTOR]) as graph:
                (x,) = graph.inputs
                part = graph.add_subgraph("part", lambda v: v + x, [VECTOR])
                graph.output(*ops.call(part, x))

    def test_values_of_a_subgraph_are_not_seen_outside(self) -> None:
        kept = []
        with pytest.raises(REFUSED):
            with Graph("main", input_types=[VECTOR]) as graph:
                part = graph.add_subgraph("part", lambda v: kept.append(v + 1) or v, [VECTOR])
                ops.call(part, graph.inputs[0])
                graph.output(kept[0] * 2)

    def test_no_graph(self) -> None:
        graph = Graph("main", input_types=[VECTOR])
        part = graph.add_subgraph("part", lambda v: v, [VECTOR])
        with pytest.raises(LookupError, match="No graph found"):
            ops.call(part, graph.inputs[0])


def branching() -> Graph:
    def forward(n, x):
        (y,) = ops.cond(n > 2, [VECTOR], lambda: x * 2, lambda: x - 1)
        return [y, ops.cond(n > 0, [INT], lambda: n, lambda: -n)[0]]

    return build(forward, [INT, VECTOR], "branching")


def looping() -> Graph:
    def forward(n, x):
        def body(i, v):
            _, v = ops.while_loop([i, v], lambda j, w: j > 0, lambda j, w: [j - 1, w + x])
            return [i - 1, v]

        return ops.while_loop([n, x], lambda i, v: i > 0, body)

    return build(forward, [INT, VECTOR], "looping")


def calling() -> Graph:
    with Graph("calling", input_types=[INT, VECTOR]) as graph:
        n, x = graph.inputs
        inner = graph.add_subgraph("inner_part", lambda v: v * 2 + 1, [VECTOR])
        outer = graph.add_subgraph(
            "outer_part", lambda k, v: [ops.call(inner, v)[0] - 3, *ops.call(inner, v), k + 1], [INT, VECTOR]
        )
        graph.output(*ops.call(outer, n, x), *ops.call(inner, x))
    return graph


def storing() -> Graph:
    def forward(n, x):
        b = ops.buffer_create(buffer("float32", 3), 1.0)
        b[1:] = x[:2]
        ops.cond(n > 2, None, lambda: b.__setitem__(0, x[2]), lambda: None)
        b[...] = b[...] * 2
        return [b[...], b[0]]

    return build(forward, [INT, VECTOR], "storing")


def mixing() -> Graph:
    """A subgraph with a branch in it, called in a loop."""
    with Graph("mixing", input_types=[INT, VECTOR]) as graph:
        n, x = graph.inputs
        part = graph.add_subgraph(
            "part", lambda v: ops.cond(v[0] > 5, [VECTOR], lambda: v - 5, lambda: v * 3), [VECTOR]
        )
        graph.output(*ops.while_loop([n, x], lambda i, v: i > 0, lambda i, v: [i - 1, *ops.call(part, v)]))
    return graph


class TestSaving:
    """Graphs with regions, buffers and subgraphs survive being written and printed."""

    GRAPHS = [branching, looping, calling, storing, mixing]

    @pytest.mark.parametrize("make", GRAPHS)
    def test_save_and_load(self, session, tmp_path: Path, make) -> None:
        graph = make()
        path = tmp_path / "saved.maxgraph"
        graph.save(path)
        reread = Graph("saved", path=path)
        assert str(reread) == str(graph)
        assert reread.output_types == graph.output_types
        original = session.load(graph)
        for model in (session.load(path), session.load(reread)):
            for n in (0, 1, 4):
                number = np.array(n, dtype=np.int32)
                for out, want in zip(model.execute(number, X), original.execute(number, X)):
                    assert out.to_numpy().tobytes() == want.to_numpy().tobytes()

    @pytest.mark.parametrize("make", GRAPHS)
    def test_text_round_trip(self, session, make) -> None:
        graph = make()
        text = str(graph)
        parsed = Graph.parse(text)
        assert str(parsed) == text
        number = np.array(3, dtype=np.int32)
        for out, want in zip(run(session, parsed, number, X), run(session, graph, number, X)):
            np.testing.assert_array_equal(out, want)

    def test_weights_with_prefixes(self, session, tmp_path: Path) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            layer = graph.add_subgraph("layer", scaled, [VECTOR])
            (y,) = ops.call(layer, graph.inputs[0], prefix="0.")
            graph.output(*ops.call(layer, y, prefix="1."))
        path = tmp_path / "layers.maxgraph"
        graph.save(path)
        registry = {"0.w": X + 1, "1.w": X + 2}
        model = session.load(path, weights_registry=registry)
        want = (X * (X + 1) + 1) * (X + 2) + 1
        np.testing.assert_array_equal(model.execute(X)[0].to_numpy(), want)

    def test_buffer_inputs(self, session, tmp_path: Path) -> None:
        path = tmp_path / "buffers.maxgraph"
        build(lambda b, x: [ops.buffer_store(b, b[...] + x)][:0], [buffer("float32", 3), VECTOR]).save(path)
        array = X.copy()
        session.load(path).execute(array, X * 10)
        np.testing.assert_array_equal(array, X * 11)

    @pytest.mark.parametrize("make", GRAPHS)
    def test_damaged_text_never_crashes(self, make) -> None:
        """The text without any one line, or cut off, is either a graph or a clean error."""
        text = str(make())
        lines = text.splitlines(keepends=True)
        pieces = ["".join(lines[:n] + lines[n + 1 :]) for n in range(len(lines))]
        pieces += [text[:n] for n in range(0, len(text) - 1, 7)]
        refused = 0
        for piece in pieces:
            try:
                Graph.parse(piece)
            except REFUSED:
                refused += 1
        assert refused > 0


class TestSummaries:
    def test_kernels_of_a_subgraph_are_listed_once(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            (x,) = graph.inputs
            part = graph.add_subgraph("part", lambda v: ops.softmax(v) * 2, [VECTOR])
            for _ in range(3):
                (x,) = ops.call(part, x)
            graph.output(x)
        summaries = session.load(graph).kernel_summaries
        assert [(kernel.kind, kernel.name) for kernel in summaries] == [
            ("call", "call"),
            ("call", "call"),
            ("call", "call"),
            ("loop", "part: softmax+mul"),
        ]

    def test_a_subgraph_that_is_called_once_fuses_with_its_caller(self, session) -> None:
        with Graph("main", input_types=[VECTOR]) as graph:
            part = graph.add_subgraph("part", lambda v: v * 2, [VECTOR])
            (y,) = ops.call(part, graph.inputs[0] + 1)
            graph.output(ops.relu(y))
        (kernel,) = session.load(graph).kernel_summaries
        assert kernel.kind == "loop" and len(kernel.ops) == 3


class TestNesting:
    def test_regions_too_deep_are_refused(self) -> None:
        """Nothing that walks regions may run out of stack."""

        def nested(x, depth: int):
            if depth == 0:
                return x + 1
            (y,) = ops.cond(ops.constant(True, DType.bool, CPU), [x.type], lambda: nested(x, depth - 1), lambda: x)
            return y

        with Graph("deep", input_types=[VECTOR]) as graph:
            graph.output(nested(graph.inputs[0], 60))
        with Graph("deeper", input_types=[VECTOR]) as graph, pytest.raises(ValueError, match="more than 64 deep"):
            nested(graph.inputs[0], 70)


class TestOneBufferTwice:
    def test_a_subgraph_that_writes_refuses_it(self, session) -> None:
        """Under two names, a store through one would change what the other has loaded."""
        kind = buffer("float32", 3)
        with Graph("main", input_types=[kind, kind]) as graph:
            a, b = graph.inputs

            def part(x, y):
                x[...] = y[...] + 1

            add = graph.add_subgraph("part", part, [kind, kind])
            with pytest.raises(ValueError, match="one buffer twice"):
                ops.call(add, a, a)
            ops.call(add, a, b)
            read = graph.add_subgraph("read", lambda x, y: x[...] + y[...], [kind, kind])
            graph.output(*ops.call(read, b, b))
        arrays = [np.zeros(3, dtype=np.float32), X.copy()]
        (total,) = session.load(graph).execute(*arrays)
        np.testing.assert_array_equal(total.to_numpy(), X + X)
        np.testing.assert_array_equal(arrays[0], X + 1)
