"""Tensors: creating them, reading them, and computing with them, outside any context."""

from __future__ import annotations

import asyncio
import copy
import enum
import gc
import operator
import pickle
import warnings
from collections.abc import Coroutine
from typing import Any, Callable

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.experimental.realization_context import lazy
from max.experimental.tensor import (
    Tensor,
    contextvar_context,
    default_device,
    default_dtype,
    defaults,
    defaults_like,
    driver_tensor_type,
)
from max.graph import DeviceRef, Dim, Graph, Shape, TensorType

from helpers import address, mentions

F32 = np.float32


@pytest.fixture(autouse=True)
def on_the_cpu():
    with default_device(CPU()):
        yield


def same(actual: Tensor, expected: Any, dtype: Any = None) -> None:
    """Checks that the tensor is real and has these elements."""
    expected = np.asarray(expected, dtype=dtype)
    assert isinstance(actual, Tensor) and actual.real
    array = actual.to_numpy()
    assert array.dtype == expected.dtype and array.shape == expected.shape
    np.testing.assert_array_equal(array, expected)


class TestFromData:
    @pytest.mark.parametrize("data", [1.5, 3, True, [1.5, 2], [1, 2], [[1], [2]], (1.0, 2.0), [], [[], []]])
    def test_python_numbers_take_the_default_dtype(self, data: Any) -> None:
        same(Tensor(data), data, F32)
        with default_dtype(DType.float64):
            same(Tensor(data), data, np.float64)

    @pytest.mark.parametrize("data", [0, [1, 2], [[True, False]]])
    def test_a_dtype_can_be_given(self, data: Any) -> None:
        same(Tensor(data, dtype=DType.int16), data, np.int16)
        same(Tensor.constant(data, dtype=DType.int64, device=CPU()), data, np.int64)

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64"])
    def test_arrays_keep_their_dtype(self, dtype: str) -> None:
        array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
        same(Tensor(array), array)
        same(Tensor(array.T), array.T)
        same(Tensor(array[:, ::-2]), array[:, ::-2])
        same(Tensor(Buffer.from_numpy(array)), array)
        same(Tensor(array[1, 2]), array[1, 2])

    def test_arrays_are_copied(self) -> None:
        array = np.ones(3, F32)
        x = Tensor(array)
        y = Tensor(Buffer.from_numpy(array))
        array[:] = 5
        same(x, [1, 1, 1], F32)
        same(y, [1, 1, 1], F32)

    @pytest.mark.parametrize("dtype", [DType.int32, DType.float32, DType.bfloat16])
    def test_arrays_of_another_dtype_are_refused(self, dtype: DType) -> None:
        array = np.array([1.0, 3.140625])
        same(Tensor(array, dtype=DType.float64), array, np.float64)
        for data in (array, np.array(1.0), Buffer.from_numpy(array)):
            with pytest.raises(ValueError, match="DType must match.*float64"):
                Tensor(data, dtype=dtype)
        with pytest.raises(ValueError, match="DType must match"):
            Tensor.constant(array, dtype=dtype)

    def test_numpy_scalars_are_numbers(self) -> None:
        same(Tensor(np.float32(3)), 3, F32)
        same(Tensor(np.float64(3), dtype=DType.int32), 3, np.int32)

    def test_bfloat16_from_lists(self) -> None:
        x = Tensor([1.5, 2], dtype=DType.bfloat16)
        assert x.dtype is DType.bfloat16 and x[0].item() == 1.5

    def test_tensors(self) -> None:
        x = Tensor([1.0, 2.0])
        same(Tensor(x), [1, 2], F32)
        same(Tensor(x, dtype=DType.int32), [1, 2], np.int32)

    @pytest.mark.parametrize(
        "data, dtype", [(300, DType.uint8), (-1, DType.uint8), ([1, 300], DType.uint8), ([0.5], DType.int32)]
    )
    def test_refuses_numbers_that_do_not_fit(self, data: Any, dtype: DType) -> None:
        with pytest.raises(ValueError):
            Tensor(data, dtype=dtype)

    @pytest.mark.parametrize("data", ["text", ["a"], object(), {1: 2}, np.array(["a"]), 1j])
    def test_refuses_what_is_not_a_number(self, data: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            Tensor(data)

    def test_takes_one_source(self) -> None:
        buffer = Buffer(DType.float32, [2])
        for bad in ({}, {"data": 1, "storage": buffer}, {"storage": buffer, "dtype": DType.int8}):
            with pytest.raises(TypeError):
                Tensor(**bad)
        with pytest.raises(TypeError):
            Tensor(storage=np.zeros(2))  # type: ignore[arg-type]

    def test_represents_a_graph_value(self) -> None:
        with Graph("demo", input_types=[TensorType(DType.float32, ["n"])]) as graph:
            value = graph.inputs[0].tensor
            assert Tensor(value).state.value.type == value.type
            assert Tensor(value, dtype=DType.int32).dtype == DType.int32

    @pytest.mark.parametrize("data", [1, 1.0, [1], np.ones(1)])
    @pytest.mark.parametrize("dtype", [float, 72, b"float32"])
    def test_refuses_what_is_not_a_dtype(self, data: Any, dtype: Any) -> None:
        with pytest.raises(TypeError, match="a dtype is a DType, a NumPy dtype"):
            Tensor(data, dtype=dtype)

    def test_kinds_of_python_numbers(self) -> None:
        class Size(enum.IntEnum):
            LARGE = 3

        for number in (Size.LARGE, 3, 3.0):
            same(Tensor(number), 3, F32)
        same(Tensor(np.float64(3)), 3, np.float64)

    def test_storage_is_shared(self) -> None:
        buffer = Buffer.from_numpy(np.array([1, 2], F32))
        x = Tensor(storage=buffer)
        assert address(x.driver_tensor) == address(x.storage) == address(buffer)

    def test_dlpack_is_shared(self) -> None:
        array = np.arange(4, dtype=F32)
        assert address(Tensor.from_dlpack(array).driver_tensor) == address(array)
        with pytest.raises((ValueError, BufferError, TypeError)):
            Tensor.from_dlpack(array[::2])


class TestFilled:
    @pytest.mark.parametrize("shape", [[], [3], (2, 3), [0], [2, 0], Shape([2, 2]), [Dim(2)], iter([2, 3])])
    def test_shapes(self, shape: Any) -> None:
        shape = list(shape)
        sizes = [int(dim) for dim in shape]
        same(Tensor.zeros(shape), np.zeros(sizes, F32))
        same(Tensor.ones(shape), np.ones(sizes, F32))
        same(Tensor.full(shape, -2.5), np.full(sizes, -2.5, F32))

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64"])
    def test_dtypes(self, dtype: str) -> None:
        kind = DType[dtype]
        same(Tensor.ones([2], dtype=kind), np.ones(2, dtype))
        same(Tensor.full([2], 1, dtype=kind, device=CPU()), np.ones(2, dtype))
        same(Tensor.zeros([2], dtype=kind, device=DeviceRef.CPU()), np.zeros(2, dtype))

    def test_bfloat16(self) -> None:
        same(Tensor.full([2], 1.5, dtype=DType.bfloat16).cast(DType.float32), [1.5, 1.5], F32)

    def test_the_number_must_fit(self) -> None:
        with pytest.raises(ValueError):
            Tensor.full([2], 300, dtype=DType.uint8)

    def test_negative_zero_and_nan_are_kept(self) -> None:
        for zero in (-0.0, F32(-0.0), np.float16(-0.0)):
            assert np.signbit(Tensor.full([2], zero).to_numpy()).all()
        assert np.isnan(Tensor.full([2], float("nan")).to_numpy()).all()

    @pytest.mark.parametrize("like", [Tensor.zeros, lambda s, **k: Tensor.zeros(s, **k).type])
    def test_like_another(self, like: Any) -> None:
        with default_device(CPU()):
            source = like([2, 3], dtype=DType.int32)
        same(Tensor.zeros_like(source), np.zeros((2, 3), np.int32))
        same(Tensor.ones_like(source), np.ones((2, 3), np.int32))
        same(Tensor.full_like(source, 7), np.full((2, 3), 7, np.int32))
        same(Tensor.ones_like(type=source), np.ones((2, 3), np.int32))
        same(Tensor.zeros_like(type=source), np.zeros((2, 3), np.int32))
        same(Tensor.full_like(type=source, value=7), np.full((2, 3), 7, np.int32))
        same(Tensor.range_like(source), [[0, 1, 2], [0, 1, 2]], np.int32)

    def test_like_refuses_other_objects(self) -> None:
        for bad in (Tensor.zeros_like, Tensor.ones_like, Tensor.full_like):
            with pytest.raises(TypeError):
                bad()
        with pytest.raises(TypeError, match="shape"):
            Tensor.full_like(Tensor([1.0]), 2, shape=[3])  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            Tensor.range_like(Tensor(1.0))
        for like in (Tensor.zeros_like, Tensor.ones_like, Tensor.full_like, Tensor.range_like):
            for other in (3, np.zeros(2)):
                with pytest.raises(TypeError, match="the type of one, got"):
                    driver_tensor_type(other)  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="the type of one, got"), defaults_like(other):  # type: ignore[arg-type]
                    pass
                with pytest.raises(TypeError, match="the type of one, got (int|ndarray)"):
                    like(other)

    @pytest.mark.parametrize("shape", [None, 2.0])
    def test_a_shape_is_a_list(self, shape: Any) -> None:
        x = Tensor.ones([3])
        for take in (Tensor.zeros, x.reshape, x.broadcast_to):
            with pytest.raises(TypeError, match="a shape is a list of dims, got (NoneType|float)"):
                take(shape)

    @pytest.mark.parametrize(
        "args", [(5,), (0,), (2, 6), (6, 2, -1), (0, 10, 3), (1, 1), (-3, 3), (0, 1_000), (10, 0, -4)]
    )
    def test_arange(self, args: tuple) -> None:
        same(Tensor.arange(*args), np.arange(*args), F32)
        same(Tensor.arange(*args, dtype=DType.int64), np.arange(*args))

    def test_arange_by_keywords(self) -> None:
        same(Tensor.arange(start=1, stop=7, step=2, dtype=DType.int8), [1, 3, 5], np.int8)

    def test_arange_refuses_a_step_of_zero(self) -> None:
        with pytest.raises((ValueError, ZeroDivisionError)):
            Tensor.arange(0, 5, 0)

    @pytest.mark.parametrize("dim", [3, Dim(3)])
    def test_from_dim(self, dim: Any) -> None:
        same(Tensor.from_dim(dim), 3, np.int64)

    def test_from_a_symbolic_dim(self) -> None:
        with pytest.raises((LookupError, ValueError, TypeError)):
            Tensor.from_dim("n")


class TestDefaults:
    def test_on_the_cpu(self) -> None:
        assert defaults() == (DType.float32, CPU())
        assert defaults(DType.int8, CPU()) == (DType.int8, CPU())
        assert defaults(device=DeviceRef.CPU()) == (DType.float32, CPU())

    def test_dtype_blocks_nest(self) -> None:
        with default_dtype(DType.float16):
            with default_dtype(DType.int32):
                assert Tensor.ones([1]).dtype is DType.int32
                assert Tensor.ones([1], dtype=DType.bool).dtype is DType.bool
            assert Tensor(1.0).dtype is DType.float16
            assert Tensor.arange(3).dtype is DType.float16
        assert Tensor(1.0).dtype is DType.float32

    def test_blocks_end_with_exceptions(self) -> None:
        with pytest.raises(RuntimeError), default_dtype(DType.int8):
            raise RuntimeError
        assert defaults()[0] is DType.float32

    def test_like_another(self) -> None:
        for like in (Tensor.ones([1], dtype=DType.int16), TensorType(DType.int16, [1]), Buffer(DType.int16, [1])):
            with defaults_like(like):
                assert defaults() == (DType.int16, CPU())

    def test_refuse_other_things(self) -> None:
        with pytest.raises(TypeError):
            default_dtype(float)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            default_device(3)  # type: ignore[arg-type]

    def test_contextvar_context(self) -> None:
        from contextvars import ContextVar

        var: ContextVar[int] = ContextVar("var", default=1)
        with contextvar_context(var, 2) as value:
            assert var.get() == value == 2
        assert var.get() == 1

    def test_driver_tensor_type(self) -> None:
        assert driver_tensor_type(Buffer(DType.int8, [2, 3])) == TensorType(DType.int8, [2, 3])


class TestProperties:
    def test_of_a_matrix(self) -> None:
        x = Tensor([[1, 2, 3], [4, 5, 6]], dtype=DType.int32)
        assert x.shape == [2, 3] and isinstance(x.shape, Shape)
        assert (x.rank, x.dtype, x.device, x.num_elements()) == (2, DType.int32, CPU(), 6)
        assert x.type == TensorType(DType.int32, [2, 3]) and isinstance(x.type, TensorType)
        assert x.real and x.state is None and isinstance(x.storage, Buffer)
        assert len(x) == 2

    def test_of_a_scalar(self) -> None:
        x = Tensor(2.5)
        assert (x.shape, x.rank, x.num_elements(), x.item()) == ([], 0, 1, 2.5)
        with pytest.raises(TypeError):
            len(x)

    def test_realize_of_a_real_tensor(self) -> None:
        x = Tensor(2.5)

        async def wait() -> Tensor:
            return await x.realize

        assert asyncio.run(wait()) is x
        x.realize

    def test_realize_is_a_coroutine(self) -> None:
        with lazy():
            x = Tensor([1.0, 2.0]) + 1

        async def together() -> list[Tensor]:
            return await asyncio.gather(x.realize, asyncio.create_task(x.realize))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            realize = x.realize
            assert x.real and isinstance(realize, Coroutine)
            assert asyncio.run(x.realize) is x
            assert asyncio.run(together()) == [x, x]
            with pytest.raises(ZeroDivisionError):
                realize.throw(ZeroDivisionError())
            realize.close()
            del realize
            x.realize  # not awaiting it must not warn
            gc.collect()

    def test_cannot_be_set(self) -> None:
        x = Tensor([1.0])
        for name in ("dtype", "shape", "other"):
            with pytest.raises(AttributeError):
                setattr(x, name, 1)
        with pytest.raises(TypeError):
            x[0] = 1  # type: ignore[index]


A = np.array([[1, -2, 3], [4, 5, -6]], F32)
B = np.array([2, 4, -8], F32)
I = np.array([[7, -7, 3], [4, 5, -6]], np.int32)

ARITHMETIC: list[Callable] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


class TestOperators:
    @pytest.mark.parametrize("op", ARITHMETIC)
    def test_between_tensors(self, op: Callable) -> None:
        same(op(Tensor(A), Tensor(B)), op(A, B))
        same(op(Tensor(B), Tensor(A)), op(B, A))

    @pytest.mark.parametrize("op", ARITHMETIC)
    @pytest.mark.parametrize("other", [2, -3.5, B, F32(4)])
    def test_with_numbers_and_arrays_on_either_side(self, op: Callable, other: Any) -> None:
        same(op(Tensor(A), other), op(A, other))
        same(op(other, Tensor(A)), op(other, A))

    def test_powers(self) -> None:
        same(Tensor(A) ** 2, A**2)
        same(2 ** Tensor([1.0, 3.0]), [2, 8], F32)
        same(Tensor(I) ** 2, I**2)

    def test_unary(self) -> None:
        same(-Tensor(A), -A)
        same(+Tensor(A), A)
        same(abs(Tensor(A)), abs(A))
        same(~Tensor(A > 0), ~(A > 0))

    @pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
    def test_logical(self, op: Callable) -> None:
        p, q = A > 0, A > 2
        same(op(Tensor(p), Tensor(q)), op(p, q))
        same(op(q, Tensor(p)), op(q, p))
        with pytest.raises((ValueError, TypeError)):
            op(Tensor(A), Tensor(A))

    def test_matmul(self) -> None:
        same(Tensor(A) @ Tensor(A).T, A @ A.T)
        same(Tensor(A) @ Tensor(B), A @ B)

    def test_in_place_operators_create_new_tensors(self) -> None:
        x = first = Tensor([1.0, 2.0])
        x += 1
        x *= 2
        x -= 1
        x /= 2
        same(first, [1, 2], F32)
        same(x, [1.5, 2.5], F32)

    def test_integers(self) -> None:
        same(Tensor(I) / 2, I / 2)
        same(Tensor(I) // 2, I // 2)
        same(Tensor(I) % 4, I % 4)
        same(3 - Tensor(I), 3 - I)

    def test_dtypes_meet_where_both_fit(self) -> None:
        same(Tensor(np.array([1], np.uint8)) + Tensor(np.array([-2], np.int16)), [-1], np.int16)
        same(Tensor(np.array([True])) + Tensor(np.array([2], np.int8)), [3], np.int8)

    @pytest.mark.parametrize(
        "bad, words",
        [
            (lambda: Tensor(I) + Tensor(A), ["Unsafe cast", "int32", "float32"]),
            (lambda: Tensor(I) + 0.5, ["Unsafe cast", "int32"]),
            (lambda: Tensor(np.array([1], np.uint8)) + 300, ["Unsafe cast", "uint8", "300"]),
        ],
    )
    def test_unsafe_promotion_names_the_dtypes(self, bad: Callable, words: list) -> None:
        with pytest.raises(ValueError) as caught:
            bad()
        assert [word for word in words if word not in str(caught.value)] == []

    def test_shapes_that_do_not_fit_are_named(self) -> None:
        with pytest.raises(ValueError) as caught:
            Tensor.ones([2, 3]) + Tensor.ones([4])
        assert mentions(str(caught.value), [2, 3], [4])
        with pytest.raises(ValueError, match="must match") as caught:
            Tensor.ones([2, 3]) @ Tensor.ones([2, 3])
        assert mentions(str(caught.value), [2, 3])

    def test_errors_name_the_op_and_its_operands(self) -> None:
        with pytest.raises(ValueError, match=r"add\(float32\[2\], float32\[3\]\)"):
            Tensor.ones([2]) + Tensor.ones([3])

    def test_equality_is_an_op_and_hashing_is_by_identity(self) -> None:
        x, y = Tensor([1.0]), Tensor([1.0])
        assert (x == y).dtype is DType.bool
        assert len({x, y, x}) == 2
        with pytest.raises(TypeError):
            1 in x  # noqa: B015

    def test_nothing_else_can_be_an_operand(self) -> None:
        for other in ("text", None, object(), {}):
            with pytest.raises(TypeError):
                Tensor([1.0]) + other


C = np.arange(24, dtype=F32).reshape(2, 3, 4)


class TestIndexing:
    @pytest.mark.parametrize(
        "index",
        [
            0,
            -1,
            (1, 2),
            (1, 2, 3),
            (0, ..., -1),
            ...,
            None,
            (None, 1),
            slice(None),
            slice(1, 2),
            (slice(None), slice(0, 2)),
            (slice(None), slice(None, None, -1)),
            (..., slice(None, None, 2)),
            (slice(None), None, 1, slice(1, -1)),
            np.int64(1),
        ],
        ids=str,
    )
    def test_like_numpy(self, index: Any) -> None:
        same(Tensor(C)[index], C[index])

    def test_by_a_scalar_tensor(self) -> None:
        same(Tensor(C)[Tensor(1, dtype=DType.int64)], C[1])

    @pytest.mark.parametrize("index", [2, -3, (0, 3), (0, 0, 4), (..., 5)])
    def test_out_of_range_is_an_index_error(self, index: Any) -> None:
        with pytest.raises(IndexError):
            Tensor(C)[index]

    @pytest.mark.parametrize("index", [(0, 0, 0, 0), slice(0, 5), (..., ...), slice(None, None, 0)])
    def test_other_mistakes_are_value_errors(self, index: Any) -> None:
        with pytest.raises(ValueError):
            Tensor(C)[index]

    def test_iterating(self) -> None:
        rows = list(Tensor(A))
        assert len(rows) == 2
        same(rows[1], A[1])
        first, second = Tensor([1.0, 2.0])
        assert (first.item(), second.item()) == (1, 2)
        with pytest.raises(TypeError):
            iter(Tensor(1.0))


class TestMethods:
    @pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "prod"])
    def test_reductions_keep_the_axis(self, name: str) -> None:
        for axis in (None, -1, 0, 1, 2):
            given = () if axis is None else (axis,)
            want = getattr(np, name)(C, axis=-1 if axis is None else axis, keepdims=True)
            same(getattr(Tensor(C), name)(*given), want, F32)
        same(getattr(Tensor(C), name)(axis=1), getattr(np, name)(C, axis=1, keepdims=True), F32)

    def test_split_takes_the_integers_of_numpy(self) -> None:
        assert [len(part) for part in Tensor.arange(5).split(np.int64(2))] == [2, 2, 1]

    def test_argmax(self) -> None:
        same(Tensor(A).argmax(), [[2], [1]], np.int64)
        same(Tensor(A).argmax(axis=0), [[1, 1, 0]], np.int64)

    def test_a_bad_axis(self) -> None:
        with pytest.raises(ValueError, match="Invalid axis"):
            Tensor(A).sum(axis=2)

    def test_shapes_and_axes(self) -> None:
        x = Tensor(C)
        same(x.reshape([4, -1]), C.reshape(4, -1))
        same(x.reshape((24,)), C.reshape(24))
        same(x.T, C.swapaxes(-1, -2))
        same(x.transpose(0, 2), C.swapaxes(0, 2))
        same(x.transpose(dim1=0, dim2=1), C.swapaxes(0, 1))
        same(x.permute([2, 0, 1]), C.transpose(2, 0, 1))
        same(x.unsqueeze(1), C[:, None])
        same(x.unsqueeze(-1), C[..., None])
        same(x.unsqueeze(0).squeeze(0), C)
        same(Tensor(B).broadcast_to([2, 3]), np.broadcast_to(B, (2, 3)))
        same(x.flatten(), C.reshape(-1))
        with pytest.raises(ValueError):
            x.squeeze(0)

    def test_split(self) -> None:
        x = np.arange(7, dtype=F32)
        for size in (1, 2, 3, 7, 9):
            parts = Tensor(x).split(size)
            for part, start in zip(parts, range(0, 7, size), strict=True):
                same(part, x[start : start + size])
        for part, want in zip(Tensor(C).split([1, 2], axis=1), (C[:, :1], C[:, 1:]), strict=True):
            same(part, want)
        assert [part.shape for part in Tensor(C).split(3, axis=-1)] == [[2, 3, 3], [2, 3, 1]]

    @pytest.mark.parametrize("bad", [(0,), (-1,), ([1, 1],), (2, 5), (2, -2)])
    def test_split_refuses(self, bad: tuple) -> None:
        with pytest.raises((ValueError, IndexError)):
            Tensor.ones([7]).split(*bad)

    def test_clip(self) -> None:
        x = Tensor([-2.0, 0.0, 2.0])
        same(x.clip(min=-1, max=1), [-1, 0, 1], F32)
        same(x.clip(min=0.5), [0.5, 0.5, 2], F32)
        same(x.clip(max=Tensor([-1.0, 1.0, 1.0])), [-2, 0, 1], F32)
        same(x.clip(), [-2, 0, 2], F32)

    def test_cast(self) -> None:
        x = Tensor([1.75, -1.75])
        assert x.cast(DType.float32) is x
        same(x.cast(DType.int32), [1, -1], np.int32)

    def test_to_the_same_device_is_itself(self) -> None:
        x = Tensor([1.0])
        assert x.to(CPU()) is x and x.to(device=CPU()) is x and x.to(DeviceRef.CPU()) is x
        for bad in (lambda: x.to(), lambda: x.to(CPU(), device=CPU()), lambda: x.to(3)):
            with pytest.raises(TypeError):
                bad()


class TestReading:
    def test_numbers(self) -> None:
        x = Tensor([[2.5]])
        assert (x.item(), float(x), int(x), complex(x), bool(x)) == (2.5, 2.5, 2, 2.5 + 0j, True)
        assert bool(Tensor(0.0)) is False and bool(Tensor([False])) is False
        assert Tensor(True, dtype=DType.bool).item() is True
        assert isinstance(Tensor(3, dtype=DType.int8).item(), int)

    def test_index(self) -> None:
        assert [10, 20, 30][Tensor(1, dtype=DType.int64)] == 20
        assert list(range(Tensor(2, dtype=DType.uint8))) == [0, 1]
        with pytest.raises(TypeError):
            [10, 20][Tensor(1.0)]

    @pytest.mark.parametrize("read", [bool, float, int, complex, Tensor.item])
    @pytest.mark.parametrize("shape", [[2], [0], [1, 2]])
    def test_more_or_less_than_one_element(self, read: Callable, shape: list) -> None:
        with pytest.raises(ValueError):
            read(Tensor.ones(shape))

    @pytest.mark.parametrize(
        "read, asked",
        [
            (bool, "the truth value of a tensor with 6 elements is ambiguous"),
            (int, "one element converts to int, and this one has 6"),
            (float, "one element converts to float, and this one has 6"),
            (complex, "one element converts to complex, and this one has 6"),
            (operator.index, "one element converts to int, and this one has 6"),
            (lambda x: f"{x:.2f}", "one element converts to text in the format '.2f', and this one has 6"),
        ],
    )
    def test_conversion_errors_name_the_target(self, read: Callable, asked: str) -> None:
        with pytest.raises(ValueError, match=asked) as caught:
            read(Tensor.ones([2, 3], dtype=DType.int32))
        assert "item" not in str(caught.value)
        with lazy():
            pending = Tensor.ones([2, 3], dtype=DType.int32) + 1
        with pytest.raises(ValueError, match=asked):
            read(pending)
        with pytest.raises(ValueError, match="calling `item` on a tensor with 6 items but expected only 1"):
            pending.item()

    def test_numpy_shares_memory(self) -> None:
        x = Tensor(C) + 1
        assert address(np.from_dlpack(x)) == address(x.to_numpy()) == address(x.driver_tensor)
        np.testing.assert_array_equal(np.from_dlpack(x), C + 1)

    def test_memory_outlives_the_tensor(self) -> None:
        array = (Tensor.full([1000], 3.0) + 1).to_numpy()
        junk = [Tensor.zeros([1000]) + 9 for _ in range(20)]
        assert (array == 4).all() and len(junk) == 20

    def test_array_protocol(self) -> None:
        x = Tensor([1.5, 2.5])
        assert np.asarray(x).dtype == F32
        assert np.asarray(x, dtype=np.float64).dtype == np.float64
        copied = np.array(x)
        copied[0] = 9
        same(x, [1.5, 2.5], F32)
        assert np.add(np.asarray(x), 1).tolist() == [2.5, 3.5]

    def test_bfloat16_has_no_numpy_dtype(self) -> None:
        with pytest.raises(ValueError, match="bfloat16"):
            Tensor([1.0], dtype=DType.bfloat16).to_numpy()

    def test_repr_shows_what_it_is(self) -> None:
        text = repr(Tensor([[1.0, 2.5], [3.0, 4.0]]))
        assert "2.5" in text and "float32" in text and "2, 2" in text
        assert str(Tensor(7, dtype=DType.int8)).count("7") == 1
        assert len(repr(Tensor.ones([1000, 1000]))) < 2000
        assert f"{Tensor(2.5):.2f} {Tensor(2.5)}" == f"2.50 {Tensor(2.5)!r}"
        with pytest.raises(ValueError):
            f"{Tensor([1.0, 2.0]):.2f}"

    def test_copies(self) -> None:
        x = Tensor([1.0, 2.0])
        same(copy.copy(x), [1, 2], F32)
        deep = copy.deepcopy({"x": x})["x"]
        same(deep, [1, 2], F32)
        assert address(deep.driver_tensor) != address(x.driver_tensor)
        with lazy():
            pending = copy.deepcopy(x + 1)
        assert not pending.real
        same(copy.copy(pending + 0), [2, 3], F32)

    @pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.int64, DType.bool])
    def test_pickling(self, dtype: DType) -> None:
        x = Tensor([[1, 0], [0, 1]], dtype=dtype)
        y = pickle.loads(pickle.dumps(x))
        assert y.type == x.type
        same((x == y).cast(DType.bool), [[True, True], [True, True]])


class TestLongSums:
    """The error of a sum does not grow with its length."""

    LENGTH = 1 << 25

    @pytest.mark.parametrize(("shape", "axis"), [([LENGTH], 0), ([2, LENGTH // 2], -1), ([LENGTH // 32, 32], 0)])
    def test_sums_and_means(self, shape: list[int], axis: int) -> None:
        x = Tensor(np.full(shape, 0.1, F32))
        count = shape[axis]
        np.testing.assert_allclose(x.sum(axis).to_numpy().astype(np.float64), float(F32(0.1)) * count, rtol=1e-6)
        np.testing.assert_allclose(x.mean(axis).to_numpy(), F32(0.1), rtol=1e-6)

    def test_products(self) -> None:
        row = Tensor(np.full([1, self.LENGTH], 0.1, F32))
        ones = Tensor(np.ones([self.LENGTH, 1], F32))
        np.testing.assert_allclose((row @ ones).item(), float(F32(0.1)) * self.LENGTH, rtol=5e-6)
