"""Slices of buffers in graphs: what is stored where, and what is refused."""

import numpy as np
import pytest
from buffers import MATRIX, VECTOR, M, X, buffer, execute, s
from helpers import CPU, REFUSED, build, tensor
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, Weight, ops

INDICES = [
    0,
    3,
    -1,
    -4,
    s(None),
    s(1, 3),
    s(-3, -1),
    s(2, None),
    s(None, 2),
    s(None, None, 2),
    s(1, 4, 2),
    s(2, 2),
    ...,
    (),
    (0, 1),
    (-1, -6),
    (s(None), 2),
    (s(1, 3), s(1, 6, 2)),
    (..., 0),
    (0, ...),
    (..., s(2, 4)),
    (1, ..., 2),
    (s(1, 3), ...),
]


class TestSlices:
    @pytest.mark.parametrize("index", INDICES, ids=str)
    def test_store(self, session, index) -> None:
        shape = M[index].shape
        source = -1 - np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        want = M.copy()
        want[index] = source

        def by_item(b, x):
            b[index] = x

        def by_op(b, x):
            ops.buffer_store_slice(b, x, list(index) if isinstance(index, tuple) else [index])

        for forward in (by_item, by_op):
            array = M.copy()
            execute(session, forward, [MATRIX, tensor("float32", *shape)], array, source)
            np.testing.assert_array_equal(array, want)

    @pytest.mark.parametrize("index", [*INDICES, None, (None, 0), (s(None), None)], ids=str)
    def test_load(self, session, index) -> None:
        array = M.copy()
        (out,) = execute(session, lambda b: b[index], [MATRIX], array)
        np.testing.assert_array_equal(out, M[index])
        np.testing.assert_array_equal(array, M)

    @pytest.mark.parametrize("index", [s(None, None, -1), s(3, 0, -2), (s(None), s(None, None, -1)), (0, s(4, 1, -1))])
    def test_negative_steps(self, session, index) -> None:
        """Backwards, as NumPy counts."""
        shape = M[index].shape
        source = -1 - np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)

        def forward(b, x):
            old = b[index]
            b[index] = x
            return old

        array, want = M.copy(), M.copy()
        want[index] = source
        (old,) = execute(session, forward, [MATRIX, tensor("float32", *shape)], array, source)
        np.testing.assert_array_equal(old, M[index])
        np.testing.assert_array_equal(array, want)

    def test_augmented_assignment(self, session) -> None:
        def forward(b):
            b[0] += 1
            b[1:3, ::2] *= 10
            b[...] -= 5

        array, want = M.copy(), M.copy()
        want[0] += 1
        want[1:3, ::2] *= 10
        want -= 5
        execute(session, forward, [MATRIX], array)
        np.testing.assert_array_equal(array, want)

    def test_stores_that_overlap(self, session) -> None:
        def forward(b, x):
            b[0:3] = x[0:3]
            b[1:4, 1:4] = x[0:3, 0:3] * 100
            b[2] = x[3] * 1000
            return [b[1:3], b[...]]

        array = np.zeros((4, 6), dtype=np.float32)
        want = np.zeros_like(array)
        want[0:3] = M[0:3]
        want[1:4, 1:4] = M[0:3, 0:3] * 100
        want[2] = M[3] * 1000
        part, whole = execute(session, forward, [MATRIX, tensor("float32", 4, 6)], array, M)
        np.testing.assert_array_equal(part, want[1:3])
        np.testing.assert_array_equal(whole, want)
        np.testing.assert_array_equal(array, want)

    @pytest.mark.parametrize("dtype", ["int64", "int32"])
    def test_scalar_index_tensors(self, session, dtype: str) -> None:
        def forward(b, x, i):
            old = b[i]
            b[i] = x
            b[i, 2:4] = x[2:4] * 10
            return [old, b[i]]

        row = np.full(6, 7, dtype=np.float32)
        model = session.load(build(forward, [MATRIX, tensor("float32", 6), tensor(dtype)]))
        for position in (0, 3, -1, -4):
            array, want = M.copy(), M.copy()
            want[position] = [7, 7, 70, 70, 7, 7]
            old, new = model.execute(array, row, np.array(position, dtype=dtype))
            np.testing.assert_array_equal(old.to_numpy(), M[position])
            np.testing.assert_array_equal(new.to_numpy(), want[position])
            np.testing.assert_array_equal(array, want)

    def test_an_element(self, session) -> None:
        def forward(b, i, j, x):
            b[i, j] = x

        array, want = M.copy(), M.copy()
        want[2, 5] = -1
        types = [MATRIX, tensor("int64"), tensor("int64"), tensor("float32")]
        execute(session, forward, types, array, np.array(2), np.array(5), np.array(-1, dtype=np.float32))
        np.testing.assert_array_equal(array, want)

    def test_slices_with_bounds_of_the_run(self, session) -> None:
        """A slice with tensors as bounds comes with the dim that it has; a cache is filled this way."""

        def forward(cache, new, start):
            cache[(s(start, start + new.shape[0]), "new"), :] = new
            return cache[(s(0, start + new.shape[0]), "filled"), :]

        model = session.load(
            build(forward, [buffer("float32", "size", 6), tensor("float32", "new", 6), tensor("int64")])
        )
        cache, want, start = np.zeros((10, 6), dtype=np.float32), np.zeros((10, 6), dtype=np.float32), 0
        for count in (3, 1, 1, 0, 2, 3):
            new = np.random.default_rng(start).normal(size=(count, 6)).astype(np.float32)
            (filled,) = model.execute(cache, new, np.array(start))
            want[start : start + count] = new
            start += count
            np.testing.assert_array_equal(cache, want)
            np.testing.assert_array_equal(filled.to_numpy(), want[:start])
        with pytest.raises(REFUSED):
            model.execute(cache, np.ones((2, 6), dtype=np.float32), np.array(9))
        np.testing.assert_array_equal(cache, want)

    def test_static_slices_with_a_dim(self, session) -> None:
        def forward(b, x, i):
            b[(s(i, i + 2), 2), (s(1, 3), 2)] = x

        array, want = M.copy(), M.copy()
        want[1:3, 1:3] = -1
        execute(
            session,
            forward,
            [MATRIX, tensor("float32", 2, 2), tensor("int64")],
            array,
            np.full((2, 2), -1, dtype=np.float32),
            np.array(1),
        )
        np.testing.assert_array_equal(array, want)

    def test_a_slice_of_another_size_than_its_dim(self, session) -> None:
        def forward(b, x, stop):
            b[(s(0, stop), 2), :] = x

        model = session.load(
            build(forward_without_outputs(forward), [MATRIX, tensor("float32", 2, 6), tensor("int64")])
        )
        array, row = M.copy(), np.zeros((2, 6), dtype=np.float32)
        with pytest.raises(REFUSED):
            model.execute(array, row, np.array(3))
        np.testing.assert_array_equal(array, M)
        model.execute(array, row, np.array(2))
        np.testing.assert_array_equal(array[:2], row)

    @pytest.mark.parametrize("position", [4, 7, -5, 2**40])
    def test_an_index_out_of_range_writes_nothing(self, session, position: int) -> None:
        def forward(b, x, i):
            b[i] = x

        model = session.load(build(forward_without_outputs(forward), [MATRIX, tensor("float32", 6), tensor("int64")]))
        array = M.copy()
        with pytest.raises(REFUSED):
            model.execute(array, np.zeros(6, dtype=np.float32), np.array(position))
        np.testing.assert_array_equal(array, M)

    def test_weights_and_sizes_as_source(self, session) -> None:
        def forward(b, sizes, x):
            b[1] = Weight("w", DType.float32, [6], CPU)
            ops.buffer_store(sizes, x.shape)

        types = [MATRIX, buffer("int64", 2), tensor("int8", "n", "m")]
        row = np.full(6, 5, dtype=np.float32)
        model = session.load(build(forward_without_outputs(forward), types), weights_registry={"w": row})
        array, sizes = M.copy(), np.zeros(2, dtype=np.int64)
        model.execute(array, sizes, np.zeros((3, 8), dtype=np.int8))
        np.testing.assert_array_equal(array[1], row)
        np.testing.assert_array_equal(sizes, [3, 8])


def forward_without_outputs(forward):
    """`forward` as a function for `build` that returns no outputs."""
    return lambda *values: [forward(*values)][:0]


class TestStoreErrors:
    @pytest.mark.parametrize("dtype", ["int32", "float64", "float16", "int8", "bool"])
    def test_another_dtype(self, dtype: str) -> None:
        """Nothing is cast silently."""
        with Graph("g", input_types=[MATRIX, tensor(dtype, 4, 6)]) as graph:
            b, x = graph.inputs
            with pytest.raises((TypeError, ValueError)):
                ops.buffer_store(b, x)
            with pytest.raises((TypeError, ValueError)):
                b[0] = x[0]

    @pytest.mark.parametrize("shape", [(4, 5), (5, 6), (6,), (1, 6), (4, 6, 1), ()])
    def test_another_shape(self, session, shape: tuple) -> None:
        """Nothing is broadcast either; found when the graph is built, at the latest when it is loaded."""
        with pytest.raises(REFUSED):
            session.load(
                build(forward_without_outputs(lambda b, x: ops.buffer_store(b, x)), [MATRIX, tensor("float32", *shape)])
            )

    @pytest.mark.parametrize(
        "index, shape",
        [(0, (1, 6)), (0, (1,)), (0, (5,)), (s(1, 3), (6,)), (s(1, 3), (1, 6)), (s(0, 2), (3, 6)), (s(0, 2), ())],
    )
    def test_another_shape_than_the_slice(self, index, shape: tuple) -> None:
        with Graph("g", input_types=[MATRIX, tensor("float32", *shape)]) as graph:
            b, x = graph.inputs
            with pytest.raises(ValueError, match="shape"):
                b[index] = x

    def test_symbolic_sizes_that_differ_when_executed(self, session) -> None:
        graph = build(
            forward_without_outputs(lambda b, x: ops.buffer_store(b, x)),
            [buffer("float32", "n"), tensor("float32", "m")],
        )
        model = session.load(graph)
        array = np.zeros(4, dtype=np.float32)
        with pytest.raises(REFUSED):
            model.execute(array, X[:3].copy())
        np.testing.assert_array_equal(array, np.zeros(4))
        model.execute(array, X)
        np.testing.assert_array_equal(array, X)

    def test_another_device(self) -> None:
        gpu = TensorType(DType.float32, [6], DeviceRef.GPU())
        with Graph("g", input_types=[MATRIX, gpu]) as graph:
            b, x = graph.inputs
            with pytest.raises(ValueError, match="device"):
                b[0] = x

    @pytest.mark.parametrize(
        "index",
        [4, -5, 7, s(0, 5), s(5, None), (0, 6), (0, 0, 0), (..., ...), None, (None, 0), "a", 1.5, s(None, None, 0)],
        ids=str,
    )
    def test_bad_indices(self, index) -> None:
        with Graph("g", input_types=[MATRIX, tensor("float32", 6)]) as graph:
            b, x = graph.inputs
            with pytest.raises(REFUSED):
                b[index] = x
            with pytest.raises(REFUSED):
                ops.buffer_store_slice(b, x, list(index) if isinstance(index, tuple) else [index])

    @pytest.mark.parametrize("dtype", ["float32", "bool"])
    def test_index_tensors_that_are_not_integers(self, dtype: str) -> None:
        with Graph("g", input_types=[MATRIX, tensor("float32", 6), tensor(dtype)]) as graph:
            b, x, i = graph.inputs
            with pytest.raises(REFUSED):
                b[i] = x

    def test_vectors_are_no_indices(self) -> None:
        with Graph("g", input_types=[MATRIX, tensor("float32", 2, 6), tensor("int64", 2)]) as graph:
            b, x, i = graph.inputs
            with pytest.raises(REFUSED):
                b[i] = x
            with pytest.raises(ValueError, match="must be a scalar"):
                b[i]  # noqa: B018

    def test_destinations_and_sources_of_other_kinds(self) -> None:
        with Graph("g", input_types=[VECTOR, tensor("float32", 4)]) as graph:
            b, x = graph.inputs
            for destination, source in ((x, x), (None, x), (X, x), (b, b), (b, None), (b, "text"), (b, object())):
                with pytest.raises((TypeError, ValueError)):
                    ops.buffer_store(destination, source)
                with pytest.raises((TypeError, ValueError)):
                    ops.buffer_store_slice(destination, source, [...])
            with pytest.raises(TypeError):
                ops.buffer_store_slice(b, x, 0)

    def test_no_graph(self) -> None:
        with Graph("g", input_types=[VECTOR, tensor("float32", 4)]) as graph:
            b, x = graph.inputs
        uses = [
            lambda: ops.buffer_load(b),
            lambda: ops.buffer_store(b, x),
            lambda: ops.buffer_store_slice(b, x, [...]),
            lambda: ops.buffer_create(VECTOR),
            lambda: b[0],
            lambda: b.__setitem__(0, x),
        ]
        for use in uses:
            with pytest.raises(LookupError, match="No graph found"):
                use()
