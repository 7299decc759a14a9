"""The dtype to which two operands are promoted, and when promotion is refused."""

import itertools
import operator

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import Graph, TensorType, ops

from helpers import CPU, REFUSED, dtype_of, evaluate, shapes_of, tensor, to_buffer
from op_cases import DTYPES

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]

# dtype: the other dtypes whose values it can all represent exactly (except bool, which fits everywhere)
HOLDS = {
    "bool": "",
    "int8": "",
    "int16": "int8 uint8",
    "int32": "int8 int16 uint8 uint16",
    "int64": "int8 int16 int32 uint8 uint16 uint32",
    "uint8": "",
    "uint16": "uint8",
    "uint32": "uint8 uint16",
    "uint64": "uint8 uint16 uint32",
    "float16": "int8 uint8",
    "bfloat16": "int8 uint8",
    "float32": "int8 uint8 int16 uint16 float16 bfloat16",
    "float64": "int8 uint8 int16 uint16 int32 uint32 float16 bfloat16 float32",
}


def expected(left: str, right: str):
    """The promoted dtype, or None if neither of the two holds both."""
    if left == right or right == "bool":
        return left
    if left == "bool":
        return right
    if right in HOLDS[left].split():
        return left
    return right if left in HOLDS[right].split() else None


def dtype_after(forward, *dtypes: str) -> DType:
    """The dtype of what `forward` returns for inputs of shape [a, 3]; nothing is executed."""
    with Graph("promotion", input_types=[tensor(d, "a", 3) for d in dtypes]) as graph:
        return forward(*graph.inputs).dtype


def test_the_table_agrees_with_the_rules_in_words() -> None:
    for left, right in [
        ("uint8", "int8"),
        ("uint16", "int16"),
        ("uint32", "int32"),
        ("float16", "bfloat16"),
        ("int32", "float32"),
        ("int64", "float64"),
        ("uint64", "float64"),
    ]:
        assert expected(left, right) is None
    assert all(expected("uint64", signed) is None for signed in SIGNED)
    assert (expected("uint8", "int16"), expected("uint16", "int32"), expected("uint32", "int64")) == (
        "int16",
        "int32",
        "int64",
    )


@pytest.mark.parametrize("left, right", list(itertools.product(DTYPES, DTYPES)))
def test_pairs_of_tensors(left: str, right: str) -> None:
    want = expected(left, right)
    if want is None:
        with pytest.raises(ValueError, match="Unsafe cast") as caught:
            dtype_after(ops.add, left, right)
        assert "cast" in str(caught.value).replace("Unsafe cast", "", 1), "the advice to cast is missing"
    else:
        assert dtype_after(ops.add, left, right) == dtype_of(want)


@pytest.mark.parametrize("op", ["sub", "mul", "div", "mod", "floor_div", "pow", "max", "min", "equal", "greater"])
def test_other_ops_follow_the_same_table(op: str) -> None:
    with pytest.raises(ValueError, match="Unsafe cast"):
        dtype_after(getattr(ops, op), "int32", "float32")
    want = "bool" if op in ("equal", "greater") else "float32"
    assert dtype_after(getattr(ops, op), "int16", "float32") == dtype_of(want)
    assert dtype_after(getattr(ops, op), "float32", "int16") == dtype_of(want)


def test_where_promotes_its_branches() -> None:
    assert dtype_after(lambda c, x, y: ops.where(c, x, y), "bool", "int8", "float32") == DType.float32
    with pytest.raises(ValueError, match="Unsafe cast"):
        dtype_after(lambda c, x, y: ops.where(c, x, y), "bool", "int32", "float32")


@pytest.mark.parametrize(
    "left, right",
    [
        ("int8", "float16"),
        ("uint8", "bfloat16"),
        ("bool", "float32"),
        ("uint32", "int64"),
        ("float16", "float64"),
        ("uint16", "float32"),
    ],
)
def test_promoted_values(session, left: str, right: str) -> None:
    x, y = np.array([0, 1, 1]), np.array([4, 5, 7])
    types = [tensor(left, 3), tensor(right, 3)]
    (out,) = evaluate(session, ops.add, to_buffer(x, left), to_buffer(y, right), types=types)
    np.testing.assert_array_equal(out.astype(np.float64), [4, 6, 8])


class TestWeakOperands:
    """Numbers, arrays and driver buffers take the tensor's dtype."""

    @pytest.mark.parametrize(
        "dtype, other",
        [
            ("float32", np.ones(3, dtype=np.float64)),
            ("float32", np.arange(3)),
            ("float32", True),
            ("float32", 2),
            ("float32", 0.5),
            ("float32", np.float64(0.5)),
            ("float32", np.int64(5)),
            ("float16", np.float64(0.5)),
            ("bfloat16", 0.5),
            ("float64", np.ones(3, dtype=np.float32)),
            ("int32", 7),
            ("int32", np.arange(3)),
            ("int8", np.int64(-128)),
            ("uint8", 255),
            ("uint64", 2**64 - 1),
            ("int32", True),
            ("bool", 1),
            ("bool", True),
        ],
        ids=lambda v: repr(v),
    )
    @pytest.mark.parametrize("swap", [False, True])
    def test_take_the_tensors_dtype(self, dtype: str, other, swap: bool) -> None:
        forward = (lambda v: other + v) if swap else (lambda v: v + other)
        assert dtype_after(forward, dtype) == dtype_of(dtype)

    @pytest.mark.parametrize("array", [np.ones(3, dtype=np.float64), np.arange(3)])
    def test_driver_buffers(self, array: np.ndarray) -> None:
        assert dtype_after(lambda v: v + Buffer.from_numpy(array), "float32") == DType.float32

    @pytest.mark.parametrize(
        "dtype, other",
        [
            ("int32", 1.5),
            ("int32", 2.0),
            ("uint8", 300),
            ("uint8", -1),
            ("int8", 128),
            ("int8", -129),
            ("int64", 2**63),
            ("uint64", -1),
            ("int32", np.float32(1.5)),
            ("int32", np.array([0.5, 1.5, 2.5])),
            ("uint8", np.array([1, 2, 300])),
            ("uint8", np.array([1, 2, -1])),
        ],
        ids=lambda v: repr(v),
    )
    @pytest.mark.parametrize("swap", [False, True])
    def test_values_that_do_not_fit(self, dtype: str, other, swap: bool) -> None:
        forward = (lambda v: other + v) if swap else (lambda v: v + other)
        with pytest.raises(ValueError, match="Unsafe cast"):
            dtype_after(forward, dtype)

    def test_a_buffer_of_floats_into_an_int_tensor(self) -> None:
        with pytest.raises(ValueError, match="Unsafe cast"):
            dtype_after(lambda v: v + Buffer.from_numpy(np.array([0.5, 1.5, 2.5])), "int32")

    def test_values(self, session) -> None:
        x = np.array([1, 2, 3], dtype=np.float32)
        outputs = evaluate(session, lambda v: [v + True, v + np.array([0.5, 1, 2]), 10 - v, v * np.float64(0.5)], x)
        for out, want in zip(outputs, [[2, 3, 4], [1.5, 3, 5], [9, 8, 7], [0.5, 1, 1.5]]):
            assert out.dtype == np.float32
            np.testing.assert_array_equal(out, want)
        (out,) = evaluate(session, lambda v: v + 1, np.array([True, False]))
        assert out.dtype == np.bool_
        np.testing.assert_array_equal(out, [True, True])


class TestResultsOfDivisionAndPower:
    @pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
    def test_integers(self, dtype: str) -> None:
        assert dtype_after(operator.truediv, dtype, dtype) == DType.float64
        assert dtype_after(lambda v: v / 2, dtype) == DType.float64
        assert dtype_after(lambda v: 2 / v, dtype) == DType.float64
        for keep in (lambda v: v // 2, lambda v: v % 2, lambda v: v**2, lambda v: 7 // v, lambda v: 7 % v):
            assert dtype_after(keep, dtype) == dtype_of(dtype)
        with pytest.raises(REFUSED):
            dtype_after(lambda v: v**2.0, dtype)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    def test_floats(self, dtype: str) -> None:
        for keep in (lambda v: v / 2, lambda v: 2 / v, lambda v: v // 2, lambda v: v % 2, lambda v: v**2.5):
            assert dtype_after(keep, dtype) == dtype_of(dtype)

    @pytest.mark.parametrize("op", ["exp", "sqrt", "cos", "erf", "softmax", "mean"])
    def test_real_functions_of_integers_keep_the_dtype(self, op: str) -> None:
        assert dtype_after(getattr(ops, op), "int32") == DType.int32


class TestLogicalOperators:
    @pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
    def test_bool_only(self, session, op) -> None:
        p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
        (out,) = evaluate(session, op, p, q)
        assert out.dtype == np.bool_
        np.testing.assert_array_equal(out, op(p, q))
        for dtype in ("int32", "float32", "uint8"):
            with pytest.raises(REFUSED, match="Inputs must be bools"):
                dtype_after(op, dtype, dtype)

    def test_not(self, session) -> None:
        (out,) = evaluate(session, operator.invert, np.array([True, False]))
        np.testing.assert_array_equal(out, [False, True])
        with pytest.raises(REFUSED, match="Inputs must be bools"):
            dtype_after(operator.invert, "int32")


class TestConstant:
    @pytest.mark.parametrize("value", [1.0, True, np.float32(1), [1.0], (1, 2), [[1], [2]]], ids=repr)
    def test_numbers_and_lists_need_a_dtype_and_a_device(self, value) -> None:
        with Graph("constants"):
            for kwargs in ({}, {"dtype": DType.float32}, {"device": CPU}):
                with pytest.raises(TypeError, match="Literal constants must explicitly set a dtype and device"):
                    ops.constant(value, **kwargs)
            assert ops.constant(value, DType.float32, CPU).dtype is DType.float32

    @pytest.mark.parametrize("array, dtype", [(np.ones(2), DType.int32), (np.ones(2, dtype=np.float32), DType.uint8)])
    def test_arrays_of_another_dtype(self, array: np.ndarray, dtype: DType) -> None:
        with Graph("constants"), pytest.raises(ValueError, match="DType must match"):
            ops.constant(array, dtype, CPU)

    @pytest.mark.parametrize(
        "value, dtype", [(300, DType.uint8), (-1, DType.uint8), (2**31, DType.int32), (1.5, DType.int32)]
    )
    def test_values_that_do_not_fit(self, value, dtype: DType) -> None:
        with Graph("constants"), pytest.raises(ValueError, match="Unsafe cast"):
            ops.constant(value, dtype, CPU)

    @pytest.mark.parametrize(
        "value, dtype, want",
        [
            (3, "int8", 3),
            (3, "float32", 3.0),
            (0.1, "float16", np.float16(0.1)),
            (16777217, "float32", 16777216.0),
            (True, "bool", True),
            (np.float32(2.5), "float64", 2.5),
            (np.int8(-5), "int64", -5),
            ([1.0, 2.0], "float32", [1.0, 2.0]),
            ([[1, 2], [3, 4]], "int32", [[1, 2], [3, 4]]),
            (np.ones((2, 2)), "float32", np.ones((2, 2))),
            (np.array([1, 2, 3]), "float32", [1, 2, 3]),
            (np.array([1.5, -2.0]), "bfloat16", [1.5, -2.0]),
            (np.arange(6).reshape(2, 3).T.astype(np.float32), "float32", [[0, 3], [1, 4], [2, 5]]),
            (np.zeros((0, 3), dtype=np.int64), "int64", np.zeros((0, 3))),
            (np.float64(1.5), "bfloat16", 1.5),
        ],
        ids=lambda v: repr(v),
    )
    def test_values(self, session, value, dtype: str, want) -> None:
        (out,) = evaluate(session, lambda: ops.constant(value, dtype_of(dtype), device=CPU))
        assert out.dtype == np.dtype("float32" if dtype == "bfloat16" else dtype)
        assert out.shape == np.shape(want)
        np.testing.assert_array_equal(out, want)


def test_types_of_shapes_are_unchanged_by_promotion() -> None:
    types = [TensorType(DType.int8, ["a", 3], CPU), TensorType(DType.float32, [3], CPU)]
    assert shapes_of(ops.add, *types) == ["a", 3]
