"""Buffers in graphs: inputs changed in place, loads and stores in program order, slices, created buffers, captures."""

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from buffers import MATRIX, VECTOR, M, X, buffer, execute, real, s
from helpers import CPU, REFUSED, address, build, tensor, to_array, to_buffer
from max.driver import Buffer
from max.dtype import DType
from max.engine import Model
from max.graph import BufferType, BufferValue, Graph, TensorValue, ops


class TestValues:
    def test_inputs_are_buffer_values(self) -> None:
        kind = BufferType(DType.float32, ["n", 6], CPU)
        with Graph("g", input_types=[kind]) as graph:
            (b,) = graph.inputs
            assert isinstance(b, BufferValue) and not isinstance(b, TensorValue)
            assert (b.type, b.dtype, b.shape, b.rank, b.device) == (kind, DType.float32, ["n", 6], 2, CPU)
            assert b.buffer is b
            with pytest.raises(TypeError):
                b.tensor  # noqa: B018
            assert repr(b) == "BufferValue(dtype=float32, shape=[Dim('n'), Dim(6)], device=cpu:0)"
            assert BufferValue(b).type == kind

    def test_tensors_are_not_buffers(self) -> None:
        with Graph("g", input_types=[tensor("float32", 4)]) as graph:
            for bad in (*graph.inputs, None, X):
                with pytest.raises(TypeError):
                    BufferValue(bad)
                with pytest.raises((TypeError, ValueError)):
                    ops.buffer_load(bad)

    def test_buffers_are_not_tensors(self) -> None:
        """A buffer is loaded before it is computed with."""
        with Graph("g", input_types=[buffer("float32", 2, 2)]) as graph:
            (b,) = graph.inputs
            for use in (lambda: b + 1, lambda: 1 + b, lambda: b @ b, lambda: ops.relu(b), lambda: TensorValue(b)):
                with pytest.raises((TypeError, ValueError)):
                    use()

    def test_load_and_store_return(self) -> None:
        with Graph("g", input_types=[VECTOR]) as graph:
            (b,) = graph.inputs
            loaded = ops.buffer_load(b)
            assert isinstance(loaded, TensorValue) and loaded.type == tensor("float32", 4)
            assert ops.buffer_store(b, loaded + 1) is None
            assert ops.buffer_store(destination=b, source=loaded) is None
            assert ops.buffer_store_slice(b, loaded[:2], [s(0, 2)]) is None
            assert ops.buffer_store_slice(destination=b, source=loaded[0], indices=(3,)) is None

    def test_length_and_iteration(self) -> None:
        with Graph("g", input_types=[VECTOR]) as graph:
            (b,) = graph.inputs
            with pytest.raises(TypeError):
                len(b)
            assert bool(b) is True


class TestInputs:
    @pytest.mark.parametrize("convert", [lambda x: x, Buffer.from_numpy, Buffer.from_dlpack])
    def test_the_caller_sees_the_change(self, session, convert) -> None:
        model = session.load(build(lambda b: ops.buffer_store(b, b[...] * 2 + 1) or [], [VECTOR]))
        array = X.copy()
        given = convert(array)
        where = address(given)
        assert model.execute(given) == []
        np.testing.assert_array_equal(array, X * 2 + 1)
        assert address(given) == where
        model(given)
        np.testing.assert_array_equal(array, (X * 2 + 1) * 2 + 1)

    def test_other_inputs_do_not_change(self, session) -> None:
        b, x = X.copy(), X + 10
        execute(session, lambda b, x: ops.buffer_store(b, x + 1), [VECTOR, tensor("float32", 4)], b, x)
        np.testing.assert_array_equal(b, X + 11)
        np.testing.assert_array_equal(x, X + 10)

    def test_a_buffer_that_is_only_read_does_not_change(self, session) -> None:
        b = X.copy()
        (out,) = execute(session, lambda b: b[...] * 2, [VECTOR], b)
        np.testing.assert_array_equal(out, X * 2)
        np.testing.assert_array_equal(b, X)

    def test_results_do_not_share_memory_with_the_buffer(self, session) -> None:
        model = session.load(build(lambda b: b[...], [VECTOR]))
        b = X.copy()
        (out,) = model.execute(b)
        b[:] = 0
        np.testing.assert_array_equal(out.to_numpy(), X)
        out[0] = 77
        assert b[0] == 0

    def test_state_over_many_executions(self, session) -> None:
        """A counter and a sum that live in the caller's buffers."""

        def forward(count, total, x):
            ops.buffer_store(count, count[...] + 1)
            total[...] = total[...] + x
            return total[...] / ops.cast(count[...], DType.float32)

        types = [buffer("int32"), VECTOR, tensor("float32", 4)]
        model = session.load(build(forward, types))
        count, total = np.array(0, dtype=np.int32), np.zeros(4, dtype=np.float32)
        for k in range(1, 20):
            (mean,) = model.execute(count, total, X * k)
            np.testing.assert_allclose(mean.to_numpy(), X * (k + 1) / 2, rtol=1e-6)
        assert count == 19
        np.testing.assert_allclose(total, X * 190, rtol=1e-6)

    def test_several_buffers(self, session) -> None:
        def forward(a, b, c):
            a[...] = b[...] + c[...]
            c[...] = a[...] * b[...]

        a, b, c = X.copy(), X + 1, X + 2
        execute(session, forward, [VECTOR] * 3, a, b, c)
        np.testing.assert_array_equal(a, 2 * X + 3)
        np.testing.assert_array_equal(b, X + 1)
        np.testing.assert_array_equal(c, (2 * X + 3) * (X + 1))

    def test_swap(self, session) -> None:
        def forward(a, b):
            x, y = a[...], b[...]
            a[...] = y
            b[...] = x

        a, b = X.copy(), X + 10
        execute(session, forward, [VECTOR, VECTOR], a, b)
        np.testing.assert_array_equal(a, X + 10)
        np.testing.assert_array_equal(b, X)

    def test_symbolic_sizes(self, session) -> None:
        model = session.load(build(lambda b: ops.buffer_store(b, b[...] + b[...]) or [], [buffer("float32", "n", 2)]))
        for n in (0, 1, 3, 1000):
            array = np.ones((n, 2), dtype=np.float32)
            model.execute(array)
            np.testing.assert_array_equal(array, np.full((n, 2), 2))

    @pytest.mark.parametrize(
        "dtype", ["bool", "int8", "int16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"]
    )
    def test_dtypes(self, session, dtype: str) -> None:
        array = np.array([0, 1, 1], dtype=np.float32 if dtype == "bfloat16" else dtype)
        want = array[::-1].copy()
        given = to_buffer(array, dtype)
        session.load(build(lambda b: ops.buffer_store(b, b[...][::-1]) or [], [buffer(dtype, 3)])).execute(given)
        np.testing.assert_array_equal(to_array(given), want)

    @pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 2, 3)])
    def test_scalars_and_empty_buffers(self, session, shape: tuple) -> None:
        array = np.ones(shape, dtype=np.float32)
        (before,) = execute(
            session, lambda b: [b[...], ops.buffer_store(b, b[...] + 4)][:1], [buffer("float32", *shape)], array
        )
        assert before.shape == shape
        np.testing.assert_array_equal(before, np.ones(shape))
        np.testing.assert_array_equal(array, np.full(shape, 5))

    def test_part_of_a_larger_array(self, session) -> None:
        """Rows of an array are contiguous, and only they change."""
        whole = M.copy()
        execute(session, lambda b: ops.buffer_store(b, b[...] * 10), [buffer("float32", 2, 6)], whole[1:3])
        want = M.copy()
        want[1:3] *= 10
        np.testing.assert_array_equal(whole, want)

    def test_threads_with_their_own_buffers(self, session) -> None:
        model = session.load(build(lambda b: ops.buffer_store(b, b[...] + 1) or [], [buffer("float32", "n")]))

        def work(size: int) -> bool:
            array = np.zeros(size, dtype=np.float32)
            for _ in range(50):
                model.execute(array)
            return bool((array == 50).all())

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(1, 400, 13)))


@pytest.fixture(scope="module")
def increment(session) -> Model:
    """Adds 1 to a buffer."""
    return session.load(build(lambda b: ops.buffer_store(b, b[...] + 1) or [], [VECTOR]))


class TestInputErrors:
    def test_read_only_arrays(self, increment) -> None:
        array = X.copy()
        array.flags.writeable = False
        with pytest.raises(REFUSED + (BufferError,), match="read-?only|writ"):
            increment.execute(array)
        np.testing.assert_array_equal(array, X)

    @pytest.mark.parametrize("convert", [lambda x: x, lambda x: Buffer.from_numpy(x)])
    @pytest.mark.parametrize("index", [s(None, None, 2), s(None, None, -2)])
    def test_arrays_that_are_not_contiguous(self, increment, convert, index) -> None:
        """They would have to be copied, and the caller would not see the change."""
        array = np.arange(8, dtype=np.float32)
        given = convert(array)[index]
        with pytest.raises(ValueError, match="contiguous"):
            increment.execute(given)
        np.testing.assert_array_equal(array, np.arange(8))

    def test_transposed_arrays(self, session) -> None:
        model = session.load(build(lambda b: ops.buffer_store(b, b[...] + 1) or [], [buffer("float32", 6, 4)]))
        array = M.copy()
        with pytest.raises(ValueError, match="contiguous"):
            model.execute(array.T)
        np.testing.assert_array_equal(array, M)

    @pytest.mark.parametrize(
        "bad",
        [
            X.astype(np.float64),
            X.astype(np.int32),
            X.astype(">f4"),
            X[:3].copy(),
            X[None],
            [1.0, 2.0, 3.0, 4.0],
            1.5,
            None,
            "text",
        ],
        ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', '')}-{getattr(v, 'shape', '')}",
    )
    def test_other_dtypes_shapes_and_objects(self, increment, bad) -> None:
        kept = np.array(bad)
        with pytest.raises((TypeError, ValueError)):
            increment.execute(bad)
        np.testing.assert_array_equal(np.array(bad), kept)

    def test_numbers_cannot_be_changed(self, session) -> None:
        """A number is fine for a scalar tensor, but nobody would see the change of a buffer."""
        model = session.load(build(lambda b: ops.buffer_store(b, b[...] + 1) or [], [buffer("float32")]))
        for number in (1, 1.5, np.float32(2)):
            with pytest.raises((TypeError, ValueError)):
                model.execute(number)

    def test_one_array_for_two_buffers(self, session) -> None:
        """Either it is refused, or both are the one array and the stores happen in program order."""

        def forward(a, b):
            a[...] = a[...] + 1
            b[...] = b[...] * 10
            return [a[...], b[...]]

        model = session.load(build(forward, [VECTOR, VECTOR]))
        array = X.copy()
        try:
            outputs = model.execute(array, array)
        except ValueError:
            np.testing.assert_array_equal(array, X)
            return
        for result in (array, *(out.to_numpy() for out in outputs)):
            np.testing.assert_array_equal(result, (X + 1) * 10)

    def test_one_array_for_a_buffer_and_a_tensor(self, session) -> None:
        """Either it is refused, or the tensor is what it was when the execution began."""

        def forward(b, x):
            b[...] = real([0, 0, 0, 0])
            return x + 1

        model = session.load(build(forward, [VECTOR, tensor("float32", 4)]))
        array = X.copy()
        try:
            (out,) = model.execute(array, array)
        except ValueError:
            np.testing.assert_array_equal(array, X)
            return
        np.testing.assert_array_equal(out.to_numpy(), X + 1)
        np.testing.assert_array_equal(array, np.zeros(4))


class TestOrder:
    """Loads see exactly the stores before them."""

    def test_a_load_keeps_the_value_it_saw(self, session) -> None:
        def forward(b):
            old = ops.buffer_load(b)
            ops.buffer_store(b, old * 10)
            return [old, old + 1, b[...], old]

        array = X.copy()
        outputs = execute(session, forward, [VECTOR], array)
        np.testing.assert_array_equal(outputs, [X, X + 1, X * 10, X])
        np.testing.assert_array_equal(array, X * 10)

    def test_loads_before_between_and_after(self, session) -> None:
        def forward(b, x):
            first = b[...]
            b[...] = x
            second = b[...]
            b[...] = first + second
            return [first, second, b[...]]

        array = X.copy()
        outputs = execute(session, forward, [VECTOR, tensor("float32", 4)], array, X * 3)
        np.testing.assert_array_equal(outputs, [X, X * 3, X * 4])
        np.testing.assert_array_equal(array, X * 4)

    def test_two_loads_without_a_store_between(self, session) -> None:
        array = X.copy()
        outputs = execute(session, lambda b: [b[...], b[...] * b[...]], [VECTOR], array)
        np.testing.assert_array_equal(outputs, [X, X * X])

    def test_the_last_store_wins(self, session) -> None:
        def forward(b, x):
            for k in range(5):
                b[...] = x + k

        array = X.copy()
        execute(session, forward, [VECTOR, tensor("float32", 4)], array, X)
        np.testing.assert_array_equal(array, X + 4)

    def test_a_value_computed_after_the_store(self, session) -> None:
        """The load comes first in the program; that its use comes after the store changes nothing."""

        def forward(b):
            old = b[...]
            b[...] = real([0, 0, 0, 0])
            return ops.exp(old) + old * 2

        array = X.copy()
        (out,) = execute(session, forward, [VECTOR], array)
        np.testing.assert_allclose(out, np.exp(X) + X * 2, rtol=1e-6)
        np.testing.assert_array_equal(array, np.zeros(4))

    def test_a_view_of_a_load_keeps_its_values(self, session) -> None:
        def forward(b):
            view = b[...].T[1:3]
            row = b[2]
            b[...] = b[...] * 0
            return [view, row, view + 1]

        array = M.copy()
        view, row, more = execute(session, forward, [MATRIX], array)
        np.testing.assert_array_equal(view, M.T[1:3])
        np.testing.assert_array_equal(row, M[2])
        np.testing.assert_array_equal(more, M.T[1:3] + 1)
        np.testing.assert_array_equal(array, np.zeros((4, 6)))

    def test_many_steps(self, session) -> None:
        """A long chain of loads and stores of two buffers against NumPy."""
        rng = np.random.default_rng(0)
        steps = rng.integers(0, 4, size=60)

        def forward(a, b):
            seen = []
            for step in steps:
                if step == 0:
                    a[...] = b[...] - a[...]
                elif step == 1:
                    b[1:3] = a[:2]
                elif step == 2:
                    a[0] = b[3]
                else:
                    seen.append(a[...] + b[...])
            return seen

        arrays = [X.copy(), X[::-1].copy()]
        outputs = execute(session, forward, [VECTOR, VECTOR], *arrays)
        a, b, seen = X.copy(), X[::-1].copy(), []
        for step in steps:
            if step == 0:
                a = b - a
            elif step == 1:
                b[1:3] = a[:2]
            elif step == 2:
                a[0] = b[3]
            else:
                seen.append(a + b)
        assert len(outputs) == len(seen) > 3
        for out, want in zip(outputs, seen):
            np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(arrays, [a, b])


class TestOverlap:
    """What is stored is computed from the buffer itself, in an order that would read what was already written."""

    @pytest.mark.parametrize("size", [1, 2, 5, 64, 100_001])
    def test_reversed(self, session, size: int) -> None:
        array = np.arange(size, dtype=np.float32)
        execute(session, lambda b: ops.buffer_store(b, ops.buffer_load(b)[::-1]), [buffer("float32", size)], array)
        np.testing.assert_array_equal(array, np.arange(size)[::-1])

    @pytest.mark.parametrize("distance", [1, 3, 4999])
    def test_shifted(self, session, distance: int) -> None:
        def up(b):
            b[distance:] = b[:-distance]

        def down(b):
            b[:-distance] = b[distance:]

        for forward in (up, down):
            array = np.arange(5000, dtype=np.float32)
            want = array.copy()
            if forward is up:
                want[distance:] = want[:-distance].copy()
            else:
                want[:-distance] = want[distance:].copy()
            execute(session, forward, [buffer("float32", 5000)], array)
            np.testing.assert_array_equal(array, want)

    @pytest.mark.parametrize("size", [2, 7, 130])
    def test_transposed(self, session, size: int) -> None:
        array = np.arange(size * size, dtype=np.float32).reshape(size, size)
        want = array.T.copy()
        execute(session, lambda b: ops.buffer_store(b, b[...].T), [buffer("float32", size, size)], array)
        np.testing.assert_array_equal(array, want)

    def test_rolled_rows(self, session) -> None:
        array = M.copy()
        execute(session, lambda b: ops.buffer_store(b, ops.concat([b[1:], b[:1]])), [MATRIX], array)
        np.testing.assert_array_equal(array, np.roll(M, -1, axis=0))

    @pytest.mark.parametrize("size", [2, 33, 128])
    def test_matmul_with_itself(self, session, size: int) -> None:
        array = np.random.default_rng(1).integers(-3, 4, size=(size, size)).astype(np.float32)
        want = array @ array
        execute(session, lambda b: ops.buffer_store(b, b[...] @ b[...]), [buffer("float32", size, size)], array)
        np.testing.assert_array_equal(array, want)

    def test_softmax_and_reductions(self, session) -> None:
        array = np.random.default_rng(2).normal(size=(5, 300)).astype(np.float32)
        e = np.exp(array - array.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True) - array.sum(0, keepdims=True)
        execute(
            session,
            lambda b: ops.buffer_store(b, ops.softmax(b[...]) - ops.sum(b[...], 0)),
            [buffer("float32", 5, 300)],
            array,
        )
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-5)

    def test_gathered(self, session) -> None:
        array = M.copy()
        order = np.array([3, 3, 0, 1])

        def forward(b):
            b[...] = ops.gather(b[...], ops.constant(order, DType.int64, CPU), axis=0)

        execute(session, forward, [MATRIX], array)
        np.testing.assert_array_equal(array, M[order])

    def test_blocks_change_places(self, session) -> None:
        def forward(b):
            top = b[:2]
            b[:2] = b[2:]
            b[2:] = top

        array = M.copy()
        execute(session, forward, [MATRIX], array)
        np.testing.assert_array_equal(array, np.concatenate([M[2:], M[:2]]))


class TestCreate:
    @pytest.mark.parametrize(
        "dtype, value, want",
        [
            ("float32", 7.0, 7),
            ("float32", 7, 7),
            ("float32", -0.5, -0.5),
            ("float32", float("inf"), np.inf),
            ("float32", float("nan"), np.nan),
            ("int32", -3, -3),
            ("uint8", 255, 255),
            ("float16", 1.5, 1.5),
            ("int64", 0, 0),
            ("bool", True, True),
            ("bool", False, False),
        ],
    )
    def test_with_a_first_value(self, session, dtype: str, value, want) -> None:
        def forward():
            b = ops.buffer_create(buffer(dtype, 2, 3), init_value=value)
            assert isinstance(b, BufferValue) and b.type == buffer(dtype, 2, 3)
            return b[...]

        (out,) = execute(session, forward, [])
        assert out.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(out, np.full((2, 3), want, dtype=dtype))

    def test_without_a_first_value(self, session) -> None:
        def forward(x):
            b = ops.buffer_create(VECTOR)
            b[...] = x + 1
            b[2] = real(0)
            return [b[...], x]

        out, x = execute(session, forward, [tensor("float32", 4)], X)
        np.testing.assert_array_equal(out, [2, -1, 0, 5])
        np.testing.assert_array_equal(x, X)

    def test_each_execution_starts_anew(self, session) -> None:
        def forward():
            b = ops.buffer_create(VECTOR, 1.0)
            b[...] = b[...] + 1
            return b[...]

        model = session.load(build(forward, []))
        outputs = [model.execute()[0] for _ in range(3)]
        for out in outputs:
            np.testing.assert_array_equal(out.to_numpy(), [2, 2, 2, 2])

    def test_created_buffers_are_distinct(self, session) -> None:
        def forward():
            a, b = ops.buffer_create(VECTOR, 1.0), ops.buffer_create(VECTOR, 1.0)
            a[...] = a[...] + 1
            return [a[...], b[...]]

        a, b = execute(session, forward, [])
        np.testing.assert_array_equal(a, np.full(4, 2))
        np.testing.assert_array_equal(b, np.ones(4))

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0)])
    def test_scalars_and_empty_buffers(self, session, shape: tuple) -> None:
        (out,) = execute(session, lambda: ops.buffer_create(buffer("float32", *shape), 2.0)[...] + 1, [])
        np.testing.assert_array_equal(out, np.full(shape, 3))

    def test_a_symbolic_size(self, session) -> None:
        def forward(x):
            b = ops.buffer_create(buffer("float32", "n"))
            b[...] = x * 2
            b[0] = real(0)
            return b[...]

        for size in (1, 5):
            x = np.ones(size, dtype=np.float32)
            (out,) = execute(session, forward, [tensor("float32", "n")], x)
            np.testing.assert_array_equal(out, [0] + [2] * (size - 1))

    def test_errors(self) -> None:
        with Graph("g"):
            for bad in (tensor("float32", 4), DType.float32, None):
                with pytest.raises((TypeError, ValueError)):
                    ops.buffer_create(bad)
            for kind, value in ((buffer("uint8", 3), 300), (buffer("uint8", 3), -1), (VECTOR, "a"), (VECTOR, object())):
                with pytest.raises((TypeError, ValueError, OverflowError)):
                    ops.buffer_create(kind, value)


class TestOutputs:
    def test_a_created_buffer(self, session) -> None:
        def forward(x):
            b = ops.buffer_create(VECTOR, 3.0)
            b[1:3] = x[:2]
            return [b, x]

        graph = build(forward, [tensor("float32", 4)])
        assert graph.output_types == [VECTOR, tensor("float32", 4)]
        model = session.load(graph)
        first, second = (model.execute(X + k)[0] for k in (0, 1))
        assert isinstance(first, Buffer)
        np.testing.assert_array_equal(first.to_numpy(), [3, 1, -2, 3])
        np.testing.assert_array_equal(second.to_numpy(), [3, 2, -1, 3])

    def test_an_input(self, session) -> None:
        """A buffer that is given in and out has its last value, also if it is stored to after a load."""

        def forward(b):
            old = b[...]
            b[...] = old + 1
            return [b, old]

        model = session.load(build(forward, [VECTOR]))
        given = Buffer.from_numpy(X.copy())
        out, old = model.execute(given)
        np.testing.assert_array_equal(out.to_numpy(), X + 1)
        np.testing.assert_array_equal(old.to_numpy(), X)
        np.testing.assert_array_equal(given.to_numpy(), X + 1)

    def test_the_output_may_be_given_in_again(self, session) -> None:
        model = session.load(build(lambda b: [ops.buffer_store(b, b[...] * 2), b][1], [VECTOR]))
        state = Buffer.from_numpy(X.copy())
        for _ in range(4):
            (state,) = model.execute(state)
        np.testing.assert_array_equal(state.to_numpy(), X * 16)


class TestCapture:
    """A capture executes once; each replay changes the buffers that it is given."""

    @pytest.fixture
    def model(self, session):
        def forward(b, x):
            old = b[...]
            b[...] = old + x
            b[0] = real(100)
            return [old, b[...]]

        return session.load(build(forward, [VECTOR, tensor("float32", 4)]))

    def step(self, state: np.ndarray, x: np.ndarray) -> np.ndarray:
        state = state + x
        state[0] = 100
        return state

    def test_replay_on_the_same_buffer(self, model) -> None:
        b, state = X.copy(), X
        old, new = model.capture(1, b, X)
        for k in range(4):
            after = self.step(state, X)
            np.testing.assert_array_equal(old.to_numpy(), state)
            np.testing.assert_array_equal(new.to_numpy(), after)
            np.testing.assert_array_equal(b, after)
            state = after
            if k < 3:
                model.replay(1, b, X)

    def test_replay_on_another_buffer(self, model) -> None:
        first, second = X.copy(), Buffer.from_numpy(X * 5)
        old, new = model.capture(1, first, X)
        kept = first.copy()
        model.replay(1, second, X * 2)
        want = self.step(X * 5, X * 2)
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(second.to_numpy(), want)
        np.testing.assert_array_equal(old.to_numpy(), X * 5)
        np.testing.assert_array_equal(new.to_numpy(), want)

    def test_replay_refuses_what_an_execution_refuses(self, model) -> None:
        b = X.copy()
        model.capture(1, b, X)
        kept = b.copy()
        strided = np.zeros(8, dtype=np.float32)
        locked = np.zeros(4, dtype=np.float32)
        locked.flags.writeable = False
        for bad in (strided[::2], locked, X.astype(np.float64)):
            with pytest.raises(REFUSED + (BufferError,)):
                model.replay(1, bad, X)
        np.testing.assert_array_equal(b, kept)
        assert not strided.any() and not locked.any()

    def test_replay_on_its_own_output(self, session) -> None:
        """The output of a capture is the tensor that is stored next."""
        model = session.load(
            build(lambda b, x: [ops.buffer_store(b, x), b[...][::-1] + 1][1], [VECTOR, tensor("float32", 4)])
        )
        b, x = np.zeros(4, dtype=np.float32), X
        (out,) = model.capture(1, b, x)
        for _ in range(3):
            np.testing.assert_array_equal(b, x)
            x = x[::-1] + 1
            np.testing.assert_array_equal(out.to_numpy(), x)
            model.replay(1, b, out)


class TestOrdering:
    def test_chains(self, session) -> None:
        """They may be read and merged anywhere in a program without changing what it computes."""
        with Graph("g", input_types=[VECTOR]) as graph:
            (b,) = graph.inputs
            ready = graph.always_ready_chain
            assert ready is not None and graph.always_ready_chain is ready
            b[...] = b[...] + 1
            assert graph.device_chains[CPU] is not None
            assert graph.merge_device_chains() is None
            assert graph.always_ready_chain is ready
            b[...] = b[...] * 2
            assert CPU in graph.device_chains
            graph.output(b[...])
        array = X.copy()
        np.testing.assert_array_equal(session.load(graph).execute(array)[0].to_numpy(), (X + 1) * 2)

    def test_fence(self, session) -> None:
        def forward(x, i):
            fenced = ops.fence(x + 1, i, x)
            assert isinstance(fenced, list)
            assert [v.type for v in fenced] == [x.type, i.type, x.type]
            (single,) = ops.fence(x)
            assert isinstance(single, TensorValue)
            return [fenced[0] * 2, fenced[1] + 1, fenced[2], single]

        types = [tensor("float32", 4), tensor("int64", 2)]
        a, i, x, single = execute(session, forward, types, X, np.array([5, 6]))
        np.testing.assert_array_equal(a, (X + 1) * 2)
        np.testing.assert_array_equal(i, [6, 7])
        np.testing.assert_array_equal([x, single], [X, X])

    def test_fence_between_stores(self, session) -> None:
        def forward(b):
            (old,) = ops.fence(b[...])
            b[...] = old * 2
            (new,) = ops.fence(b[...])
            b[...] = new + 1
            return [old, new]

        array = X.copy()
        old, new = execute(session, forward, [VECTOR], array)
        np.testing.assert_array_equal([old, new, array], [X, X * 2, X * 2 + 1])

    def test_fence_of_nothing(self) -> None:
        with Graph("g"):
            with pytest.raises(ValueError):
                ops.fence()
            for bad in (None, "text", [None]):
                with pytest.raises((TypeError, ValueError)):
                    ops.fence(bad)

    def test_print(self, session) -> None:
        """A printed buffer shows what it holds at that place of the program."""
        with Graph("g", input_types=[buffer("int32", 2)]) as graph:
            (b,) = graph.inputs
            assert b.print() is None
            b[...] = b[...] * 1000
            b.print("changed")
            b[...] = b[...] + 1
            b.print(label="again")
            graph.output()
        model = session.load(graph)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            model.execute(np.array([57, 3], dtype=np.int32))
        lines = out.getvalue().splitlines()
        assert [line.split(" = ")[0] for line in lines] == ["debug_buffer", "changed", "again"]
        assert all(text in line for text, line in zip(("57", "57000", "57001"), lines))
        assert all("shape=[2]" in line for line in lines)
