"""Programs written with branches and loops, against NumPy, and what they print."""

import contextlib
import io

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.graph import Graph, Weight, ops

from helpers import CPU, build, evaluate, tensor
from regions import FALSE, FLAG, INT, TRUE, VECTOR, X, buffer, const, lines_of, real, scalar


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
