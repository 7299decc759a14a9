"""Indexing a TensorValue: every documented form, executed and compared with NumPy."""

import numpy as np
import pytest
from max.graph import Dim, Graph, Shape, ops

from helpers import REFUSED, build, evaluate, shapes_of, tensor

s = slice
ARRAY = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)

INDICES = [
    0,
    -1,
    3,
    -4,
    s(None),
    s(1, 3),
    s(0, 4),
    s(-3, -1),
    s(-4, None),
    s(2, None),
    s(None, 2),
    s(None, -1),
    s(4, None),
    s(2, 2),
    s(None, None, 2),
    s(1, 4, 2),
    s(None, None, 3),
    s(None, None, 7),
    s(None, None, -1),
    s(None, None, -2),
    s(3, 0, -1),
    s(-1, -5, -1),
    s(3, -5, -2),
    s(2, None, -1),
    s(None, 1, -1),
    ...,
    None,
    (),
    (0, 1),
    (0, 1, 2),
    (-1, -6, -3),
    (s(None), 2),
    (s(1, 3), s(None, None, -1), 0),
    (..., 0),
    (..., s(None, None, -1)),
    (0, ...),
    (1, ..., 2),
    (0, ..., 1, 2),
    (..., None),
    (None, ..., None),
    (..., None, s(None)),
    (s(None), None, 0),
    (None, 0, None, s(1, 2)),
    (s(1, 2), s(2, 5, 2), s(0, 3)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_static(session, index) -> None:
    (out,) = evaluate(session, lambda v: v[index], ARRAY)
    np.testing.assert_array_equal(out, ARRAY[index])
    assert shapes_of(lambda v: v[index], tensor("float32", 4, 6, 3)) == list(ARRAY[index].shape)


@pytest.mark.parametrize("index", [i for i in INDICES if i not in (s(-1, -5, -1), s(3, -5, -2))], ids=str)
def test_symbolic(session, index) -> None:
    """The same through symbolic dims of the same sizes."""
    (out,) = evaluate(session, lambda v: v[index], ARRAY, types=[tensor("float32", "a", "b", "c")])
    np.testing.assert_array_equal(out, ARRAY[index])


@pytest.mark.parametrize("index", [i if isinstance(i, tuple) else (i,) for i in INDICES], ids=str)
def test_slice_tensor(session, index) -> None:
    (out,) = evaluate(session, lambda v: ops.slice_tensor(v, list(index)), ARRAY)
    np.testing.assert_array_equal(out, ARRAY[index])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
def test_dtypes(session, dtype: str) -> None:
    array = (np.arange(20).reshape(4, 5) % 3).astype(dtype)
    (out,) = evaluate(session, lambda v: v[::-1, 1:4:2], array)
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array[::-1, 1:4:2])


@pytest.mark.parametrize(
    "index, shape",
    [
        (s(1, 5), [4, 3]),
        (s(1, None), [Dim("a") + -1, 3]),
        (s(None, -1), [Dim("a") + -1, 3]),
        (s(-2, None), [2, 3]),
        (s(None), ["a", 3]),
        (s(None, None, -1), ["a", 3]),
        (0, [3]),
        (-1, [3]),
        ((..., 1), ["a"]),
        (None, [1, "a", 3]),
    ],
    ids=str,
)
def test_shapes_of_symbolic_slices(index, shape: list) -> None:
    assert shapes_of(lambda v: v[index], tensor("float32", "a", 3)) == Shape(shape)


def test_printed_shape_of_a_symbolic_slice() -> None:
    assert str(shapes_of(lambda v: v[1:], tensor("float32", "a", 3))[0]) == "a + -1"


def test_one_model_many_sizes(session) -> None:
    indices = [s(1, None), s(None, -1), s(None, None, 2), s(None, None, -1), s(None, None, -3), -1, (..., None)]
    model = session.load(build(lambda v: [v[i] for i in indices], [tensor("float32", "a", 3)]))
    for size in (1, 2, 5, 6, 9):
        array = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        for index, out in zip(indices, model.execute(array)):
            np.testing.assert_array_equal(out.to_numpy(), array[index])


@pytest.mark.parametrize(
    "index",
    [
        s(0, 5),
        s(5, None),
        s(-5, None),
        s(None, -5),
        s(3, 1),
        s(-1, -3),
        s(4, None, -1),
        s(None, -6, -1),
        s(None, None, 0),
        4,
        -5,
        (0, 6),
        (0, 0, 0, 0),
        (s(None), s(None), s(None), s(None)),
        (..., ...),
        "a",
        1.5,
    ],
    ids=str,
)
def test_refused(index) -> None:
    """Static dims are never clamped: bounds beyond the size, a start after the stop, too many indices."""
    with pytest.raises(REFUSED):
        shapes_of(lambda v: v[index], tensor("float32", 4, 6, 3))


@pytest.mark.parametrize("index", [s(0, 5), s(5, None), s(3, 1), (0, 0, 0, 0)], ids=str)
def test_refused_with_value_error(index) -> None:
    with pytest.raises(ValueError):
        shapes_of(lambda v: v[index], tensor("float32", 4, 6, 3))


def test_symbolic_bounds_are_checked_at_run_time(session) -> None:
    with pytest.raises(REFUSED):
        evaluate(session, lambda v: v[1:5], np.zeros((3, 3), np.float32), types=[tensor("float32", "a", 3)])


class TestIndexTensors:
    @pytest.mark.parametrize("dtype", ["int64", "int32"])
    @pytest.mark.parametrize("position", [0, 3, -1, -4])
    def test_scalar(self, session, position: int, dtype: str) -> None:
        (out,) = evaluate(session, lambda v, i: v[i], ARRAY, np.array(position, dtype=dtype))
        np.testing.assert_array_equal(out, ARRAY[position])

    def test_scalar_among_others(self, session) -> None:
        (out,) = evaluate(session, lambda v, i: v[1:3, i, ::-1], ARRAY, np.array(4))
        np.testing.assert_array_equal(out, ARRAY[1:3, 4, ::-1])

    def test_non_scalar(self) -> None:
        with pytest.raises(REFUSED, match="must be a scalar"):
            shapes_of(lambda v, i: v[i], tensor("float32", 4, 6), tensor("int64", 2))

    def test_float_index(self) -> None:
        with pytest.raises(REFUSED):
            shapes_of(lambda v, i: v[i], tensor("float32", 4, 6), tensor("float32"))


class TestSliceWithOutputDim:
    """A slice whose bounds are only known at run time is given with the dim of its result."""

    def test_tensor_bounds(self, session) -> None:
        def forward(v, start, stop):
            out = v[(s(start, stop), "n"), 1:]
            assert out.shape == Shape(["n", 5, 3])
            return out

        for start, stop in [(0, 4), (1, 3), (2, 2)]:
            (out,) = evaluate(session, forward, ARRAY, np.array(start), np.array(stop))
            np.testing.assert_array_equal(out, ARRAY[start:stop, 1:])

    def test_static_bounds(self, session) -> None:
        (out,) = evaluate(session, lambda v: v[(s(1, 3), 2),], ARRAY)
        np.testing.assert_array_equal(out, ARRAY[1:3])

    def test_wrong_output_dim(self, session) -> None:
        with pytest.raises(REFUSED):
            evaluate(session, lambda v, stop: v[(s(None, stop), 3),], ARRAY, np.array(2))


def test_not_a_container() -> None:
    with Graph("g", input_types=[tensor("float32", 3)]) as graph:
        (value,) = graph.inputs
        with pytest.raises(TypeError, match="is not a container"):
            1 in value  # noqa: B015
        with pytest.raises(TypeError, match="is not iterable"):
            iter(value)
        with pytest.raises(TypeError, match="is not iterable"):
            list(value)
        with pytest.raises(TypeError):
            len(value)
        assert bool(value) is True
