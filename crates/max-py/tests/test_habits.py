"""What users of NumPy and PyTorch type without thinking, on eager tensors and on graph values."""

from __future__ import annotations

import operator
from typing import Any, Callable

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Buffer, DeviceStream
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor, default_device
from max.graph import BufferType, DeviceRef, Dim, Graph, Shape, TensorType, TensorValue, Weight, ops

from helpers import REFUSED, assert_close, evaluate, shapes_of, tensor

F32 = np.float32
C = np.random.default_rng(7).normal(size=(2, 3, 4)).astype(F32)
I = np.arange(24, dtype=np.int32).reshape(2, 3, 4) - 11
D4 = np.random.default_rng(8).normal(size=(3, 2, 5, 4)).astype(F32)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    with default_device(CPU()):
        yield


def same(actual: Tensor, expected: Any) -> None:
    """Checks type, dtype, shape and values."""
    assert type(actual) is Tensor
    expected = np.asarray(expected)
    array = actual.to_numpy()
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)


class Anything:
    """An object that is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True


class TestShapes:
    @pytest.mark.parametrize("shape", [[], [0], [1], [2, 3], [2, 0, 4]])
    def test_tuples_and_lists(self, shape: list) -> None:
        x = Tensor.zeros(shape)
        for same_shape in (
            tuple(shape),
            list(shape),
            Shape(shape),
            tuple(map(Dim, shape)),
            tuple(map(np.int64, shape)),
        ):
            assert x.shape == same_shape
            assert same_shape == x.shape
            assert not x.shape != same_shape
            assert not same_shape != x.shape
        for other in ((*shape, 1), (9, *shape), (3, 3, 3, 3), None, 3, "ab", {1}):
            assert x.shape != other
            assert other != x.shape
            assert not x.shape == other
            assert not other == x.shape

    def test_symbolic_dims(self) -> None:
        shape = shapes_of(lambda v: v, tensor("float32", "n", 3))
        assert shape == ("n", 3)
        assert ("n", 3) == shape
        assert shape == (Dim("n"), Dim(3))
        assert shape != ("m", 3)
        assert shape != (3, "n")
        assert shape == Shape(("n", 3))
        assert (shape + (4,)) == ("n", 3, 4)

    def test_shapes_stay_unhashable(self) -> None:
        with pytest.raises(TypeError):
            hash(Tensor(C).shape)
        assert hash(tuple(Tensor(C).shape)) == hash((Dim(2), Dim(3), Dim(4)))

    def test_other_objects_decide_themselves(self) -> None:
        assert Tensor(C).shape == Anything()

    def test_in_lists(self) -> None:
        assert Tensor(C).shape in [(1,), (2, 3, 4)]
        assert (2, 3, 4) in [Tensor(C).shape]

    def test_types_and_weights(self) -> None:
        assert TensorType("float32", [2, "n"]).shape == (2, "n")
        assert Weight("w", DType.float32, [2, 3], DeviceRef.CPU()).shape == (2, 3)


class TestSizes:
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (1, 1)])
    def test_tensors(self, shape: tuple) -> None:
        array = np.zeros(shape, F32)
        x = Tensor(array)
        assert (x.ndim, x.size, x.numel(), x.num_elements()) == (array.ndim, array.size, array.size, array.size)
        assert type(x.size) is int

    def test_graph_values(self) -> None:
        def check(v: TensorValue) -> TensorValue:
            assert v.ndim == 2
            assert v.size == v.numel() == Dim("n") * 3
            assert isinstance(v.size, Dim)
            assert v[0].size == 3
            assert type(v[0].size) is int
            assert v[0, 0].size == 1
            assert v[0, 0].ndim == 0
            return v

        shapes_of(check, tensor("float32", "n", 3))

    def test_beyond_64_bits(self) -> None:
        assert shapes_of(lambda v: [v], tensor("float32", 2**40, 2**40))[0].rank == 2
        with Graph("large", input_types=[tensor("float32", 2**40, 2**40)]) as graph:
            assert graph.inputs[0].tensor.size == 2**80


class TestReading:
    @pytest.mark.parametrize("array", [np.array(1.5, F32), np.zeros(0, F32), C, I, C > 0, np.ones((1, 1), np.uint8)])
    def test_lists_and_arrays(self, array: np.ndarray) -> None:
        x = Tensor(array)
        assert x.tolist() == array.tolist()
        np.testing.assert_array_equal(x.numpy(), array)
        assert np.asarray(x).dtype == array.dtype

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_lists_of_dtypes_that_numpy_lacks(self, dtype: str) -> None:
        assert Tensor([[0.5, -2.0]], dtype="float32").cast(dtype).tolist() == [[0.5, -2.0]]
        with pytest.raises(ValueError):
            Tensor([0.5], dtype="float32").cast(dtype).numpy()

    def test_asarray(self) -> None:
        x = Tensor(C)
        assert np.shares_memory(np.asarray(x), x.to_numpy())
        assert not np.shares_memory(np.array(x), x.to_numpy())
        assert np.asarray(x, dtype=np.float64).dtype == np.float64
        assert np.asarray(x, np.int8).dtype == np.int8
        assert not np.shares_memory(x.__array__(copy=True), x.to_numpy())
        with pytest.raises(ValueError):
            x.__array__(np.float64, copy=False)

    def test_numbers(self) -> None:
        assert (float(Tensor(1.5)), int(Tensor(2.0)), bool(Tensor(0.0)), complex(Tensor(2.0))) == (1.5, 2, False, 2)
        assert (len(Tensor(C)), [len(row) for row in Tensor(C)]) == (2, [3, 3])

    @pytest.mark.parametrize("name", ["item", "numpy", "to_numpy", "tolist"])
    def test_graph_values_have_no_elements(self, name: str) -> None:
        def check(v: TensorValue) -> TensorValue:
            with pytest.raises(AttributeError, match=f"has no elements to read with {name} before the graph runs"):
                getattr(v, name)
            assert not hasattr(v, name)
            with pytest.raises(AttributeError, match="'TensorValue' object has no attribute 'absent'"):
                v.absent
            for read in (np.asarray, np.array, lambda v: np.asarray(v, dtype=object), float, int, len, list):
                with pytest.raises(TypeError):
                    read(v)
            return v

        shapes_of(check, tensor("float32", 3))


class TestVarargs:
    @pytest.mark.parametrize("shape", [(6, 4), (24,), (-1,), (4, -1), (2, 3, 4, 1), (1, -1, 1)])
    def test_reshape(self, shape: tuple) -> None:
        same(Tensor(C).reshape(*shape), C.reshape(shape))
        same(Tensor(C).reshape(shape), C.reshape(shape))
        same(Tensor(C).reshape(*map(np.int64, shape)), C.reshape(shape))

    def test_reshape_of_graph_values(self) -> None:
        assert shapes_of(lambda v: v.reshape(-1, 2), tensor("float32", "n", 6)) == (Dim("n") * 3, 2)
        assert shapes_of(lambda v: v.reshape(6, "n"), tensor("float32", "n", 6)) == (6, "n")
        assert shapes_of(lambda v: v.reshape(Dim("n"), 3, 2), tensor("float32", "n", 6)) == ("n", 3, 2)
        assert shapes_of(lambda v: v.reshape(Dim("n")), tensor("float32", "n", 1)) == ("n",)
        assert shapes_of(lambda v: v.reshape(shape=[6]), tensor("float32", 2, 3)) == (6,)
        assert shapes_of(lambda v: ops.reshape(v, 6), tensor("float32", 2, 3)) == (6,)

    def test_permute(self) -> None:
        for order in ((1, 0, 2), (2, 1, 0), (-1, 0, 1)):
            same(Tensor(C).permute(*order), C.transpose(order))
            same(Tensor(C).permute(list(order)), C.transpose(order))
        same(Tensor(C[0, 0]).permute(0), C[0, 0])
        assert shapes_of(lambda v: v.permute(1, 0), tensor("float32", "n", 6)) == (6, "n")
        with pytest.raises(ValueError, match="duplicate"):
            Tensor(C).permute(0, 0, 1)
        with pytest.raises(REFUSED):
            Tensor(C).permute(0, 1)

    def test_broadcast_to(self) -> None:
        same(Tensor(C).broadcast_to(5, 2, 3, 4), np.broadcast_to(C, (5, 2, 3, 4)))
        same(Tensor(1.0).broadcast_to(3), np.ones(3, F32))
        assert shapes_of(lambda v: v.broadcast_to("n", 6), tensor("float32", 6)) == ("n", 6)

    def test_creating(self) -> None:
        for sizes in ((3,), (2, 3), (0,), (1, 1), (2, 0, 3)):
            same(Tensor.zeros(*sizes), np.zeros(sizes, F32))
            same(Tensor.ones(*sizes, dtype=DType.int8), np.ones(sizes, np.int8))
            same(F.zeros(*sizes), np.zeros(sizes, F32))
        same(Tensor.full(3, 1.5), np.full(3, 1.5, F32))
        same(Tensor.full((), 1.5), np.full((), 1.5, F32))
        same(F.full(2, -1), np.full(2, -1, F32))
        same(Tensor.zeros(shape=[2]), np.zeros(2, F32))
        with pytest.raises(REFUSED):
            Tensor.zeros(-1)

    @pytest.mark.parametrize("shape", [None, 2.0, "n", object()])
    def test_a_shape_is_sizes(self, shape: Any) -> None:
        for take in (Tensor.zeros, Tensor(C).reshape, Tensor(C).broadcast_to):
            with pytest.raises(TypeError, match="a shape is a list of dims"):
                take(shape)

    def test_flatten_and_transposes(self) -> None:
        same(Tensor(C).flatten(), C.flatten())
        same(Tensor(C).mT, C.swapaxes(-1, -2))
        same(Tensor(C).T, C.swapaxes(-1, -2))
        assert shapes_of(lambda v: v.mT, tensor("float32", "n", 6)) == (6, "n")


AXES: list = [None, 0, 1, -1, (0,), (0, 1), (1, 2), (0, 2), (2, 0), (-1, -3), (0, 1, 2), (), [0, 1]]
METHODS: dict[str, Callable] = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "var": np.var,
    "stdev": np.std,
}


def numpy_axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, (list, tuple)) else axis


class TestReductions:
    @pytest.mark.parametrize("keepdims", [True, False])
    @pytest.mark.parametrize("axis", AXES, ids=str)
    @pytest.mark.parametrize("name", METHODS)
    def test_axes(self, session, name: str, axis: Any, keepdims: bool) -> None:
        want = METHODS[name](C.astype(np.float64), axis=numpy_axes(axis), keepdims=keepdims)

        def reduce(x: Any) -> Any:
            return getattr(x, name)(axis, keepdims=keepdims)

        assert_close(reduce(Tensor(C)).to_numpy(), want, "float32")
        assert_close(evaluate(session, reduce, C)[0], want, "float32")
        (symbolic,) = evaluate(session, reduce, C, types=[tensor("float32", "a", 3, "c")])
        assert_close(symbolic, want, "float32")
        assert shapes_of(reduce, tensor("float32", 2, 3, 4)) == want.shape

    @pytest.mark.parametrize("keepdims", [True, False])
    @pytest.mark.parametrize("axis", [*AXES, (0, 1, 3), (0, 2, 3), (1, 3)], ids=str)
    @pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min"])
    def test_functions(self, session, name: str, axis: Any, keepdims: bool) -> None:
        if axis is None and name in ("max", "min"):
            want = METHODS[name](D4, axis=-1, keepdims=keepdims)  # the documented meaning of None
        else:
            want = METHODS[name](D4.astype(np.float64), axis=numpy_axes(axis), keepdims=keepdims)
        assert_close(getattr(F, name)(Tensor(D4), axis=axis, keepdims=keepdims).to_numpy(), want, "float32")
        op = getattr(ops, name)
        assert_close(evaluate(session, lambda v: op(v, axis=axis, keepdims=keepdims), D4)[0], want, "float32")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("axis", [None, (0, 2), (0, 1), (1, 3), (0, 1, 3)], ids=str)
    @pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "var"])
    def test_narrow_floats_are_rounded_once(self, name: str, axis: Any, dtype: str) -> None:
        x = Tensor(np.abs(D4) + 0.5).cast(dtype)
        exact = x.cast(DType.float32).to_numpy().astype(np.float64)
        want = METHODS[name](exact, axis=axis, keepdims=True)
        got = getattr(x, name)(axis)
        assert got.dtype is getattr(DType, dtype)
        rounded = Tensor(want.astype(F32)).cast(dtype).cast(DType.float32).to_numpy()
        if np.isfinite(rounded).all():
            step = np.spacing(np.abs(want).astype(F32)).astype(np.float64) * 2 ** (13 if dtype == "float16" else 16)
            assert (np.abs(got.cast(DType.float32).to_numpy() - want) <= 0.501 * step).all()

    @pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "bool"])
    @pytest.mark.parametrize("axis", [None, (0, 2), (0, 1)], ids=str)
    def test_integers(self, dtype: str, axis: Any) -> None:
        array = (np.arange(24).reshape(2, 3, 4) % 3).astype(dtype)
        x = Tensor(array)
        if dtype == "bool":
            same(x.sum(axis), array.any(axis=axis, keepdims=True))
            return
        same(x.sum(axis), array.sum(axis=axis, keepdims=True, dtype=dtype))
        same(x.max(axis, keepdims=False), array.max(axis=axis))
        same(x.mean(axis), np.trunc(array.mean(axis=axis, keepdims=True)).astype(dtype))

    def test_the_mean_of_integers_is_truncated_once(self) -> None:
        array = np.array(
            [[[1, 2]], [[2, 3]]], np.int32
        )  # truncated, the means of rows are 1 and 2, and that of these 1
        same(Tensor(array).mean((0, 2), keepdims=False), np.array([2], np.int32))

    @pytest.mark.parametrize("keepdims", [True, False])
    @pytest.mark.parametrize("name", ["argmax", "argmin"])
    def test_positions(self, session, name: str, keepdims: bool) -> None:
        find = getattr(np, name)
        for axis in (None, 0, 1, -1):
            got = getattr(F, name)(Tensor(C), axis=axis, keepdims=keepdims)
            same(got, find(C, axis=axis, keepdims=keepdims))
            (built,) = evaluate(session, lambda v, a=axis: getattr(ops, name)(v, a, keepdims=keepdims), C)
            np.testing.assert_array_equal(built, find(C, axis=axis, keepdims=keepdims))
        same(Tensor(C).argmax(None, keepdims=keepdims), np.argmax(C, keepdims=keepdims))
        same(Tensor(C).argmax((1,)), np.argmax(C, axis=1, keepdims=True))  # type: ignore[arg-type]
        for axes in ((0, 1), (), (0, 1, 2)):
            with pytest.raises(ValueError, match="Invalid axis: arg(max|min) gives one index"):
                getattr(F, name)(Tensor(C), axis=axes)

    @pytest.mark.parametrize("axis", [3, -4, (0, 3), (0, -4), (1, 1), (0, -3)], ids=str)
    def test_bad_axes(self, axis: Any) -> None:
        for name in (*METHODS, "all", "any"):
            with pytest.raises(ValueError, match="Invalid axis"):
                getattr(Tensor(C), name)(axis)
            with pytest.raises(ValueError, match="Invalid axis"):
                shapes_of(lambda v, n=name: getattr(v, n)(axis), tensor("float32", "a", 3, 4))

    @pytest.mark.parametrize("axis", ["0", 1.0, True, (0, True), (0, None), [[0]], (0, "dropped", 1)], ids=str)
    def test_what_is_no_axis(self, axis: Any) -> None:
        with pytest.raises(TypeError, match="for the argument 'axis' of sum"):
            Tensor(C).sum(axis)

    def test_rank_zero_and_sizes_zero_and_one(self) -> None:
        for name, find in METHODS.items():
            scalar = getattr(Tensor(2.5), name)(axis=None)
            assert_close(scalar.to_numpy(), np.asarray(find(np.array(2.5)), F32), "float32")
            one = getattr(Tensor.full((1, 1), 2.5), name)(axis=(0, 1), keepdims=False)
            assert_close(one.to_numpy(), np.asarray(find(np.array(2.5)), F32), "float32")
        same(Tensor(2.5).argmax(axis=None), np.int64(0))
        for shape in ((0,), (2, 0), (0, 3), (2, 0, 3)):
            empty = np.zeros(shape, F32)
            same(Tensor(empty).sum(None, keepdims=False), F32(0))
            same(Tensor(empty).prod(None, keepdims=False), F32(1))
            assert np.isnan(Tensor(empty).mean(None).item())
            for name in ("max", "min", "argmax"):
                with pytest.raises(ValueError, match="size 0"):
                    getattr(Tensor(empty), name)(None).to_numpy()
        same(Tensor(np.zeros((2, 0, 3), F32)).sum((0, 1)), np.zeros((1, 1, 3), F32))
        same(Tensor(np.zeros((2, 0, 3), F32)).sum((0, 2), keepdims=False), np.zeros(0, F32))
        with pytest.raises(ValueError, match="Invalid axis"):
            Tensor(2.5).sum()

    def test_defaults_keep_the_last_axis(self) -> None:
        for name in METHODS:
            assert getattr(Tensor(C), name)().shape == (2, 3, 1)

    def test_adjacent_axes_are_one_kernel(self) -> None:
        from max.experimental.realization_context import trace

        for axis in (None, (0, 1), (1, 2)):
            with trace() as seen:
                Tensor(C).sum(axis, keepdims=False)
            assert [step.kernels for step in seen if step.kernels] == [["reduce"]]

    @pytest.mark.parametrize(
        "array", [C, C > 0, C > -9, C > 9, I, np.zeros((2, 0), F32), np.array(True), np.array(0.0)]
    )
    def test_all_and_any(self, session, array: np.ndarray) -> None:
        for name in ("all", "any"):
            want = getattr(array, name)()
            whole = getattr(Tensor(array), name)()
            same(whole, want)
            assert bool(whole) is bool(want)
            assert evaluate(session, lambda v, n=name: getattr(v, n)(), array)[0] == want
            for axis in range(array.ndim):
                same(getattr(Tensor(array), name)(axis), getattr(array, name)(axis=axis))
                same(getattr(Tensor(array), name)(axis, keepdims=True), getattr(array, name)(axis=axis, keepdims=True))
            same(getattr(Tensor(array), name)(keepdims=True), getattr(array, name)(keepdims=True))

    def test_nan_is_true(self) -> None:
        assert bool(Tensor([float("nan")]).all())

    def test_everyday(self) -> None:
        x = Tensor(C)
        assert (x == x).all()
        assert not (x != x).any()
        assert (x.shape == (2, 3, 4)) is True


class TestDTypesAndDevices:
    @pytest.mark.parametrize("dtype", [DType.int16, "int16", np.int16, np.dtype("int16")], ids=str)
    def test_dtypes(self, dtype: Any) -> None:
        assert Tensor.zeros(2, dtype=dtype).dtype is DType.int16
        assert Tensor([1, 2], dtype=dtype).dtype is DType.int16
        assert Tensor.arange(3, dtype=dtype).dtype is DType.int16
        assert Tensor(C).cast(dtype).dtype is DType.int16
        assert F.cast(Tensor(C), dtype).dtype is DType.int16
        assert TensorType(dtype, [2]).dtype is DType.int16
        assert Buffer(dtype, [2]).dtype is DType.int16
        with Graph("g"):
            assert ops.constant([1], dtype, "cpu").dtype is DType.int16
            assert ops.range(0, 3, dtype=dtype, device="cpu").dtype is DType.int16

    def test_devices(self) -> None:
        for name in ("cpu", "cpu:0"):
            x = Tensor.zeros(2, device=name)  # type: ignore[arg-type]
            assert x.device == CPU()
            assert x.to(name) is x  # type: ignore[arg-type]
            assert Tensor([1.0], device=name).device == CPU()  # type: ignore[arg-type]
            assert TensorType("int8", [1], name).device == BufferType("int8", [1], name).device == DeviceRef.CPU()  # type: ignore[arg-type]
            buffer = Buffer("int8", [2], name)  # type: ignore[arg-type]
            assert buffer.to(name) is buffer  # type: ignore[call-overload]
            assert buffer.to([name])[0] is buffer  # type: ignore[call-overload]
            assert buffer.copy(device=name).device == CPU()  # type: ignore[arg-type]
            assert Buffer(np.ones(2), name).shape == (2,)  # type: ignore[call-overload]
            assert DeviceStream(name).device == CPU()  # type: ignore[arg-type]
            assert InferenceSession(name).devices == InferenceSession([name]).devices == [CPU()]  # type: ignore[arg-type,list-item]
            assert Weight("w", DType.float32, [1], name).device == DeviceRef.CPU()  # type: ignore[arg-type]
            with default_device(name):  # type: ignore[arg-type]
                assert Tensor(1.0).device == CPU()
        assert TensorType("int8", [1], "gpu:1").device == DeviceRef.GPU(1)  # type: ignore[arg-type]
        assert TensorType("int8", [1], "gpu").device == DeviceRef.GPU()  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "name", ["", "cuda", "cuda:0", "cpu:", "cpu:x", "gpu:-1", "gpu:99999999999", "CPU", "cpu:0:0"]
    )
    def test_no_device(self, name: str) -> None:
        for take in (
            lambda: Tensor.zeros(2, device=name),  # type: ignore[arg-type]
            lambda: Tensor(1.0).to(name),  # type: ignore[arg-type]
            lambda: TensorType("int8", [1], name),  # type: ignore[arg-type]
            lambda: Buffer("int8", [1], name),  # type: ignore[arg-type]
            lambda: F.transfer_to(Tensor(1.0), name),
        ):
            with pytest.raises(ValueError, match="is not a device; expected something like 'cpu', 'gpu' or 'gpu:1'"):
                take()

    def test_no_dtype(self) -> None:
        for dtype in ("float31", "", "f4x"):
            with pytest.raises(ValueError):
                Tensor.zeros(2, dtype=dtype)  # type: ignore[arg-type]
        for other in (3, object(), float):
            with pytest.raises((TypeError, ValueError)):
                Tensor.zeros(2, dtype=other)  # type: ignore[arg-type]


class TestNone:
    def test_comparisons(self) -> None:
        x = Tensor(C)
        assert (x == None) is False  # noqa: E711
        assert (x != None) is True  # noqa: E711
        assert (None == x) is False  # noqa: E711
        assert (None != x) is True  # noqa: E711
        assert None not in [x]
        assert x not in [None]
        assert [x, None].index(None) == 1

        def check(v: TensorValue) -> TensorValue:
            assert (v == None) is False  # noqa: E711
            assert (v != None) is True  # noqa: E711
            assert None not in [v]
            return v

        shapes_of(check, tensor("float32", 3))

    def test_others_stay_errors(self) -> None:
        for compare in (operator.lt, operator.ge, operator.add):
            with pytest.raises(TypeError):
                compare(Tensor(C), None)
        with pytest.raises(TypeError):
            Tensor(C) == "a"


class TestLists:
    @pytest.mark.parametrize(
        "other",
        [
            [1, 2, 3, 4],
            (1, 2, 3, 4),
            [1.5, 2, -3, 0],
            [[1], [2], [3]],
            [[[1, 2, 3, 4]]],
            [True, False, True, True],
            [np.float32(1), 2, np.int8(3), 4.0],
            [5],
            ((1, 2, 3, 4), [5, 6, 7, 8], (0, 0, 0, 0)),
        ],
        ids=str,
    )
    def test_operands(self, session, other: Any) -> None:
        for op in (operator.add, operator.sub, operator.mul, operator.gt, operator.le, operator.eq):
            want = op(C, np.asarray(other, F32))
            same(op(Tensor(C), other), want)
            np.testing.assert_array_equal(evaluate(session, lambda v, o=op: o(v, other), C)[0], want)
            same(op(other, Tensor(C)), op(np.asarray(other, F32), C))

    def test_they_are_weak(self) -> None:
        small = Tensor(np.array([1, 2], np.int8))
        assert (small + [1, 2]).dtype is DType.int8
        assert (small * [True, False]).dtype is DType.int8
        assert (Tensor([1.0, 2.0], dtype=DType.bfloat16) + [1, 2.5]).dtype is DType.bfloat16
        assert (Tensor(np.array([1], np.uint64)) + [2**64 - 2]).item() == 2**64 - 1
        for bad in ([1.5, 2], [300, 0]):
            with pytest.raises(ValueError, match="Unsafe cast"):
                small + bad

    def test_empty(self) -> None:
        for dtype in (F32, np.int8, np.bool_):
            none = Tensor(np.zeros(0, dtype))
            same(none == [], np.zeros(0, bool))
            same(Tensor(np.zeros((2, 0), dtype)) == [[]], np.zeros((2, 0), bool))
            same(Tensor(np.zeros((3, 1), dtype)) != [[], [], []], np.zeros((3, 0), bool))

    @pytest.mark.parametrize("bad", [[1, [2]], [[1], 2], [[1, 2], [3]], [[], [1]], [[1], [[2]]], [[[1]], [2]]], ids=str)
    def test_ragged(self, bad: list) -> None:
        with pytest.raises(ValueError, match="the same length and depth"):
            Tensor(C) + bad

    @pytest.mark.parametrize("bad", [["a"], [None], [1, "b"], [[slice(1)]], [Tensor(1.0)], [DType.int8]], ids=str)
    def test_other_things(self, bad: list) -> None:
        with pytest.raises(TypeError):
            Tensor(C) + bad

    def test_other_ops(self, session) -> None:
        same(F.where([[True], [False], [True]], Tensor(C), 0), np.where([[True], [False], [True]], C, F32(0)))
        same(F.gather(Tensor(C), [0, 2], axis=1), C[:, [0, 2]])
        same(F.relu([-1.0, 2.0]), np.array([0.0, 2.0]))
        same(F.concat([Tensor([1.0]), [2, 3]]), np.array([1, 2, 3], F32))
        (out,) = evaluate(session, lambda v: ops.gather(v, [[0], [2]], axis=2), C)
        np.testing.assert_array_equal(out, C[:, :, [[0], [2]]])

    def test_depth(self) -> None:
        deep: Any = 1
        for _ in range(8):
            deep = [deep]
        with pytest.raises(TypeError, match="nested more than"):
            Tensor(C) + deep


UNARY = [
    np.absolute, np.negative, np.exp, np.sin, np.cos, np.tanh, np.floor, np.ceil, np.trunc, np.rint, np.isnan, np.isinf,
]  # fmt: skip
POSITIVE = [np.log, np.log1p, np.sqrt]
UNIT = [np.arccos, np.arctanh]
BINARY = [
    np.add, np.subtract, np.multiply, np.divide, np.true_divide, np.floor_divide, np.mod, np.remainder, np.maximum,
    np.minimum, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
]  # fmt: skip
BOOLS = [np.logical_and, np.logical_or, np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor]


class TestUfuncs:
    @pytest.mark.parametrize("ufunc", UNARY + POSITIVE + UNIT, ids=lambda u: u.__name__)
    def test_unary(self, session, ufunc: np.ufunc) -> None:
        array = np.abs(C) + 0.1 if ufunc in POSITIVE else np.clip(C, -0.9, 0.9) if ufunc in UNIT else C
        want = ufunc(array)
        got = ufunc(Tensor(array))
        assert type(got) is Tensor
        assert_close(got.to_numpy(), want, str(want.dtype))
        assert_close(evaluate(session, ufunc, array)[0], want, str(want.dtype))

    @pytest.mark.parametrize("ufunc", BINARY, ids=lambda u: u.__name__)
    def test_binary(self, session, ufunc: np.ufunc) -> None:
        other = (np.arange(1, 5) / 3).astype(F32)
        for lhs, rhs in ((C, other), (other, C)):
            want = ufunc(lhs, rhs)
            for got in (
                ufunc(Tensor(lhs), Tensor(rhs)),
                ufunc(lhs, Tensor(rhs)),
                ufunc(Tensor(lhs), rhs),
                ufunc(Tensor(lhs), rhs.tolist()),
            ):
                assert type(got) is Tensor
                assert_close(got.to_numpy(), want, str(want.dtype))
            assert_close(evaluate(session, lambda v, u=ufunc, r=rhs: u(v, r), lhs)[0], want, str(want.dtype))
        assert type(ufunc(Tensor(C), 2)) is type(ufunc(2, Tensor(C))) is Tensor

    @pytest.mark.parametrize("ufunc", BOOLS, ids=lambda u: u.__name__)
    def test_bools(self, ufunc: np.ufunc) -> None:
        a, b = C > 0, C > 0.5
        same(ufunc(Tensor(a), b), ufunc(a, b))
        same(ufunc(a, Tensor(b)), ufunc(a, b))
        same(np.logical_not(Tensor(a)), ~a)
        same(np.invert(Tensor(a)), ~a)
        with pytest.raises(REFUSED):
            ufunc(Tensor(C), Tensor(C))

    def test_power_and_matmul(self) -> None:
        same(np.power(Tensor(C), 2), C**2)
        same(np.matmul(Tensor(C), Tensor(C[0].T)), C @ C[0].T)
        with pytest.raises(TypeError, match="must be a tensor, not a number or an array"):
            C @ Tensor(C[0].T)

    def test_operators_of_arrays_and_scalars(self, session) -> None:
        row = C[0, 0]
        for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.ge, operator.eq):
            same(op(row, Tensor(C)), op(row, C))
            for number in (np.float32(2), np.float64(2), np.int64(2), np.int8(2)):
                same(op(number, Tensor(C)), op(F32(2), C))
                same(op(Tensor(C), number), op(C, F32(2)))
            np.testing.assert_array_equal(evaluate(session, lambda v, o=op: o(np.float64(2), v), C)[0], op(F32(2), C))

    def test_arrays_are_weak(self) -> None:
        assert np.add(np.ones(4), Tensor(C)).dtype is DType.float32
        assert np.add(Tensor(C), np.float64(1)).dtype is DType.float32
        with pytest.raises(ValueError, match="Unsafe cast"):
            np.add(Tensor(I), 0.5)

    def test_rank_zero_and_size_zero(self) -> None:
        same(np.sin(Tensor(0.0)), F32(0))
        same(np.add(Tensor(np.zeros((0, 3), F32)), np.ones(3)), np.zeros((0, 3), F32))

    @pytest.mark.parametrize("ufunc", [np.arctan2, np.hypot, np.exp2, np.sign, np.left_shift, np.modf, np.divmod])
    def test_without_an_op(self, ufunc: np.ufunc) -> None:
        args = [Tensor(C)] * ufunc.nin
        with pytest.raises(TypeError, match=rf"there is no op for np\.{ufunc.__name__}: use x\.to_numpy\(\)"):
            ufunc(*args)

    def test_out(self) -> None:
        array = C.copy()
        with pytest.raises(TypeError, match="np.add cannot write a tensor to an array"):
            np.add(C, Tensor(C), out=array)
        with pytest.raises(TypeError, match="np.add cannot write a tensor to an array"):
            np.add(C, C, out=Tensor(C))  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="np.add cannot write"):
            array += Tensor(C)  # type: ignore[arg-type]
        np.testing.assert_array_equal(array, C)

    def test_options(self) -> None:
        with pytest.raises(TypeError, match="np.add of tensors takes no where"):
            np.add(Tensor(C), 1, where=C > 0)
        with pytest.raises(TypeError, match="np.sin of tensors takes no dtype"):
            np.sin(Tensor(C), dtype=np.float64)

    def test_methods(self) -> None:
        for ufunc, instead in (
            (np.add, "F.sum"),
            (np.multiply, "F.prod"),
            (np.maximum, "F.max"),
            (np.logical_and, "x.all"),
        ):
            with pytest.raises(TypeError, match=rf"np\.{ufunc.__name__}\.reduce does not take tensors: use {instead}"):
                ufunc.reduce(Tensor(C))
        for method in ("accumulate", "outer", "at", "reduceat"):
            args = {"outer": [1], "at": [[0], 1], "reduceat": [[0]]}.get(method, [])
            with pytest.raises(TypeError, match=rf"np\.add\.{method} does not take tensors: use x.to_numpy"):
                getattr(np.add, method)(Tensor(C), *args)

    def test_comparing_with_numpy(self) -> None:
        np.testing.assert_array_equal(Tensor(C), C)
        np.testing.assert_allclose(C, Tensor(C))
        assert np.array_equal(Tensor(C), C)
        assert np.allclose(C, Tensor(C))

    def test_other_operators(self) -> None:
        x = Tensor(C)
        same(abs(x), abs(C))
        same(round(x), np.round(C))
        same(round(x, 0), np.round(C))
        with pytest.raises(TypeError, match=r"round\(x \* 10\*\*2\) / 10\*\*2"):
            round(x, 2)
        for got, want in zip(divmod(Tensor(I), 5), divmod(I, 5), strict=True):
            same(got, want)
        for got, want in zip(divmod(7, Tensor(I * 2 + 1)), divmod(7, I * 2 + 1), strict=True):
            same(got, want)


s = slice
ROWS = np.array([1, 0, 1])
INDICES: list = [
    [0, 1],
    [1],
    [],
    [[0, 1], [1, 1]],
    [[]],
    [-1, 0, -2],
    ROWS,
    ROWS.astype(np.uint8),
    ROWS.reshape(3, 1),
    np.array(1),
    np.int64(1),
    np.zeros((0, 2), np.int64),
    (s(None), [0, 2]),
    (s(None), s(None), [3, 0, -1]),
    (s(0, 1), [0, 2], s(1, 3)),
    (..., [3, 0]),
    (..., [3, 0], None),
    (None, [1, 0]),
    (s(None), None, [1, 0]),
    ([1, 0], None),
    (0, [2, 0]),
    ([1, 0], 2),
    ([1, 0], s(None), 2),
    (1, s(None), [0, 3]),
    (0, ..., [0, 3]),
    (s(None), 1, [0, 3]),
    (s(None), 1, ..., [0, 3]),
    (s(None), [2, 1], ..., [0, 3]),
    ([0, 1], [2, 0]),
    ([0, 1], [[2], [0]]),
    (s(None), [0, 1, 2], [3, -1, 0]),
    ([0, 1], s(None), [3, 0]),
    ([[0], [1]], s(None, None, -1), [3, 0, 1]),
    ([0, 1], [2, 0], [1, -4]),
    ([0, 1], [2], 1),
    (ROWS, [0]),
    ((1, 0),),
    ((0, 1), (1, 2)),
    ([], []),
    C > 0,
    C > 99,
    C > -99,
    C[:, :, 0] > 0,
    np.array([True, False]),
    [True, False],
    [False, False],
    [[True, False, True], [False, True, True]],
    (s(None), [True, False, True]),
    (s(None), C[0] > 0),
    (..., C[0, 0] > 0),
    (..., C[0] > 0),
    (C[:, :, 0] > 0, 1),
    (C[:, :, 0] > 0, s(1, 3)),
    (C[:, :, 0] > 0, [1]),
    (0, C[0] > 0),
    ([True, True], [0, 2]),
    ([True, False], s(None), [0, 2]),
    (None, C > 0),
    (C[:, 0, 0] > -99, None, [True, False, True]),
]


class TestIndexing:
    @pytest.mark.parametrize("index", INDICES, ids=lambda i: str(i).replace("\n", ""))
    def test_as_in_numpy(self, index: Any) -> None:
        same(Tensor(C)[index], C[index])

    @pytest.mark.parametrize("index", INDICES, ids=lambda i: str(i).replace("\n", ""))
    def test_tensors_as_indices(self, index: Any) -> None:
        def as_tensor(part: Any) -> Any:
            if isinstance(part, (list, np.ndarray)):
                array = np.asarray(part)
                return Tensor(array.astype(np.int64) if not array.size and array.dtype.kind == "f" else array)
            return part

        wrapped = tuple(map(as_tensor, index)) if isinstance(index, tuple) else as_tensor(index)
        same(Tensor(C)[wrapped], C[index])

    @pytest.mark.parametrize("index", INDICES[::3], ids=lambda i: str(i).replace("\n", ""))
    def test_in_regions(self, index: Any) -> None:
        same(F.functional(lambda x: (x + 1)[index] * 2)(Tensor(C)), (C + 1)[index] * 2)
        with F.lazy():
            lazy = (Tensor(C) + 1)[index]
        same(lazy, (C + 1)[index])

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
    def test_dtypes(self, dtype: str) -> None:
        array = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
        same(Tensor(array)[[2, 0]], array[[2, 0]])
        same(Tensor(array)[array > 0], array[array > 0])
        same(Tensor(array)[[2, 0], [1, 3]], array[[2, 0], [1, 3]])

    @pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (3, 0), (1, 1)])
    def test_sizes_zero_and_one(self, shape: tuple) -> None:
        array = np.ones(shape, F32)
        for index in ([], np.zeros((0, 2), np.int64), array > 0, array < 0, (..., []), array[:, ...] == 1):
            same(Tensor(array)[index], array[index])
        if shape[0]:
            same(Tensor(array)[[0, -1, 0]], array[[0, -1, 0]])

    @pytest.mark.parametrize(
        "index",
        [[2], [-3], [0, 5], (s(None), [3]), ([0, 2], [0, 0]), ([0, 1], [0, 3]), ([0, 1], [0, -4]), ([0], [0], [4])],
        ids=str,
    )
    def test_out_of_range(self, index: Any) -> None:
        with pytest.raises(IndexError, match="out of range"):
            Tensor(C)[index]
        with pytest.raises(IndexError):
            C[index]

    @pytest.mark.parametrize(
        "mask, shown",
        [
            (np.ones((2, 2), bool), r"\[2, 2\].*\[2, 3, 4\]"),
            (np.ones(3, bool), r"\[3\].*\[2, 3, 4\]"),
            ([True, False, True], r"\[3\].*\[2, 3, 4\]"),
            (np.ones((2, 3, 5), bool), r"\[2, 3, 5\].*\[2, 3, 4\]"),
            ((s(None), np.ones(2, bool)), r"\[2\].*\[2, 3, 4\]"),
        ],
    )
    def test_masks_of_another_shape(self, mask: Any, shown: str) -> None:
        with pytest.raises(IndexError, match=f"a mask of shape {shown}"):
            Tensor(C)[mask]
        with pytest.raises(IndexError):
            C[mask]

    @pytest.mark.parametrize(
        "index",
        [
            (np.ones((2, 3, 4, 1), bool)),
            ([0], [0], [0], [0]),
            ([0], 0, 0, 0),
            (np.ones((2, 3), bool), 0, 0),
            (..., [0], ...),
            [0.5],
            np.array([1.0]),
            ["a"],
            ([0, 1], [0, 1, 2]),
            ([0, 1], np.ones((2, 3)).astype(int), [0, 1, 2, 0]),
        ],
        ids=lambda i: str(i).replace("\n", ""),
    )
    def test_refused(self, index: Any) -> None:
        with pytest.raises(IndexError):
            Tensor(C)[index]
        with pytest.raises(IndexError):
            C[index]

    @pytest.mark.parametrize("index", [True, False, np.True_, np.array(True), Tensor(np.array(True)), "a", 1.5, {0}])
    def test_no_index(self, index: Any) -> None:
        with pytest.raises(TypeError):
            Tensor(C)[index]

    def test_masks_of_integers_are_positions(self) -> None:
        mask = np.array([1, 0], np.uint8)
        same(Tensor(C)[mask], C[mask])
        same(Tensor(C)[[1, 0]], C[[1, 0]])
        same(Tensor(C)[[True, 0]], C[[True, 0]])  # as in NumPy, this is [1, 0]

    def test_a_tensor_of_floats_is_no_index(self) -> None:
        with pytest.raises(IndexError, match="has integers or bools, not float32"):
            Tensor(C)[Tensor([1.0])]

    def test_scalars_stay_slices(self) -> None:
        same(Tensor(C)[Tensor(1, dtype=DType.int32)], C[1])
        same(Tensor(C)[Dim(1)], C[1])
        same(Tensor(C)[0, Tensor(1, dtype=DType.int32), [0, 2]], C[0, 1, [0, 2]])

    def test_graph_values(self) -> None:
        def check(v: TensorValue) -> TensorValue:
            vector = ops.constant([0, 1], DType.int64, "cpu")
            with pytest.raises(ValueError, match="must be a scalar"):
                v[vector]
            with pytest.raises(TypeError, match="gather takes lists of indices"):
                v[[0, 1]]
            with pytest.raises(TypeError):
                v[np.array([0, 1])]
            with pytest.raises(TypeError):
                v[[True, False]]
            return v

        shapes_of(check, tensor("float32", "a", 3))

    def test_tensors_in_graphs(self) -> None:
        with Graph("g", input_types=[tensor("float32", 2, 3)]) as graph:
            x = Tensor.from_graph_value(graph.inputs[0].tensor)
            with pytest.raises(ValueError, match="must be a scalar"):
                x[Tensor.from_graph_value(ops.constant([0, 1], DType.int64, "cpu"))]
            with pytest.raises(TypeError, match="gather takes lists of indices"):
                x[[0, 1]]
            assert x[0, ::-1].shape == (3,)

    def test_assignment(self) -> None:
        x = Tensor(C)
        for index in (0, [0, 1], C > 0, slice(None), ...):
            with pytest.raises(TypeError, match=r"tensors are immutable(.|\n)*where\(mask, value, x\)"):
                x[index] = 1
        with pytest.raises(TypeError, match="immutable"):
            x[0] += 1

        def check(v: TensorValue) -> TensorValue:
            with pytest.raises(TypeError, match="immutable"):
                v[0] = 1
            return v

        shapes_of(check, tensor("float32", 3))


class TestRanges:
    @pytest.mark.parametrize("args", [(5, 0), (0, 5, -1), (-1,), (2, 1, 0.5), (0, -3), (1, 1), (3, 0, 2)])
    def test_empty(self, args: tuple) -> None:
        same(Tensor.arange(*args), np.arange(*args).astype(F32))
        if 0.5 not in args:
            same(F.arange(*args, dtype=DType.int64), np.arange(*args, dtype=np.int64))
        assert Tensor.arange(*args).shape == (0,)

    def test_a_step_of_zero(self) -> None:
        with pytest.raises(ValueError):
            Tensor.arange(0, 5, 0)

    def test_range_says_so(self) -> None:
        with pytest.raises(ValueError), Graph("g"):
            ops.range(5, 0, dtype=DType.int32, device=DeviceRef.CPU())
        with pytest.raises(ValueError):
            F.range(5, 0, dtype=DType.int32, device=DeviceRef.CPU())


def test_functions_of_numpy_about_shapes() -> None:
    x = Tensor(C)
    assert (np.ndim(x), np.size(x), np.shape(x)) == (3, 24, (2, 3, 4))


def test_two_tensors_have_no_axis() -> None:
    assert F.max(Tensor(C), Tensor(C + 1), axis=0, keepdims=False).shape == (2, 3, 4)
    same(F.max(Tensor(C), [0, 1, 2, 3]), np.maximum(C, np.arange(4, dtype=F32)))
    for function in (F.max, F.min):
        with pytest.raises(TypeError, match=r"for axes, write axis=\(0, 1\)"):
            function(Tensor(C), (0, 1))


@pytest.fixture
def gpu() -> Any:
    """The name of a GPU, or of a virtual device where there is none."""
    if driver.accelerator_count():
        yield "gpu:0"
        return
    driver.set_virtual_device_count(1)
    yield "gpu:0"
    driver.set_virtual_device_count(0)


class TestOtherDevices:
    def test_everything_follows_the_tensor(self, gpu: str) -> None:
        x = Tensor(C).to(gpu)  # type: ignore[arg-type]
        rows = Tensor(np.array([1, 0]))
        got = [
            x[[1, 0]],
            x[rows],
            x[rows.to(gpu)],  # type: ignore[arg-type]
            x[C > 0],
            x[x > 0],
            x[[1, 0], :, [2, 3]],
            x[rows, [2, 0]],
            x + [1, 2, 3, 4],
            np.maximum(C[0], x),
            x.sum((0, 2), keepdims=False),
            x.all(),
            F.gather(x, [0, 2], axis=1),
        ]
        want = [
            C[[1, 0]],
            C[[1, 0]],
            C[[1, 0]],
            C[C > 0],
            C[C > 0],
            C[[1, 0], :, [2, 3]],
            C[[1, 0], [2, 0]],
            C + np.arange(1, 5, dtype=F32),
            np.maximum(C[0], C),
            C.sum((0, 2)),
            C.all(),
            C[:, [0, 2]],
        ]
        for one, expected in zip(got, want, strict=True):
            assert DeviceRef.from_device(one.device) == DeviceRef.GPU()
            np.testing.assert_allclose(one.to_numpy(), expected, rtol=1e-6)
        assert x.tolist() == C.tolist()
        assert x.to("cpu").device == CPU()  # type: ignore[arg-type]
        assert Buffer.from_numpy(C).to(gpu).to("cpu").device == CPU()  # type: ignore[call-overload]
        assert Tensor.zeros(2, device=gpu).device == x.device  # type: ignore[arg-type]

    def test_in_regions(self, gpu: str) -> None:
        x = Tensor(C).to(gpu)  # type: ignore[arg-type]
        same(F.functional(lambda x: (x + 1)[x > 0] * 2)(x), (C + 1)[C > 0] * 2)
        with F.lazy():
            y = x + 1
            rows = Tensor(np.array([1, 0])).to(gpu)  # type: ignore[arg-type]
            positions, kept = y[rows, :, [2, 3]] * 2, y[y > 0.5]
            assert not positions.real
        same(positions, (C + 1)[[1, 0], :, [2, 3]] * 2)
        same(kept, (C + 1)[C + 1 > 0.5])
        same(x[x > 99], C[C > 99])
        with pytest.raises(IndexError, match="index 2 is out of range for axis 0 with size 2"):
            x[rows + 1, [0, 0]].to_numpy()
