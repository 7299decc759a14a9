"""DType: codes, predicates, sizes, conversions and printing."""

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.experimental import functional as F
from max.experimental import random
from max.experimental.nn import Conv2d
from max.experimental.tensor import Tensor, default_dtype, defaults
from max.graph import BufferType, DeviceRef, Graph, TensorType, Weight, ops

from helpers import pytorch

# name: (code, bytes)
TABLE = {
    "bool": (1, 1),
    "float8_e8m0fnu": (62, 1),
    "float6_e3m2fn": (63, 1),
    "float4_e2m1fn": (64, 1),
    "float6_e2m3fn": (65, 1),
    "float8_e4m3fn": (66, 1),
    "float8_e4m3fnuz": (67, 1),
    "float8_e5m2": (68, 1),
    "float8_e5m2fnuz": (69, 1),
    "float16": (70, 2),
    "bfloat16": (71, 2),
    "float32": (72, 4),
    "float64": (73, 8),
    "uint8": (134, 1),
    "int8": (135, 1),
    "uint16": (136, 2),
    "int16": (137, 2),
    "uint32": (138, 4),
    "int32": (139, 4),
    "uint64": (140, 8),
    "int64": (141, 8),
}
FLOAT8 = {name for name in TABLE if name.startswith("float8")}
SMALL = FLOAT8 | {name for name in TABLE if name.startswith(("float4_", "float6_"))}
HALF = {"float16", "bfloat16"}
NO_NUMPY = SMALL | {"bfloat16"}
PREDICATES = {
    "is_float": SMALL | HALF | {"float32", "float64"},
    "is_float8": FLOAT8,
    "is_half": HALF,
    "is_integral": {name for name in TABLE if "int" in name},
    "is_signed_integral": {name for name in TABLE if name.startswith("int")},
    "is_unsigned_integral": {name for name in TABLE if name.startswith("uint")},
}
each = pytest.mark.parametrize("name", TABLE)


@each
def test_code_size_and_name(name: str) -> None:
    dtype = getattr(DType, name)
    code, size = TABLE[name]
    assert dtype.value == code
    assert DType(code) == dtype
    assert dtype.name == name
    assert dtype.size_in_bytes == size
    assert dtype.align == size


@each
def test_printing(name: str) -> None:
    dtype = getattr(DType, name)
    assert repr(dtype) == name
    assert str(dtype) == f"{dtype}" == f"DType.{name}"


@pytest.mark.parametrize("predicate", PREDICATES)
def test_predicates(predicate: str) -> None:
    assert {name for name in TABLE if getattr(getattr(DType, name), predicate)()} == PREDICATES[predicate]


@pytest.mark.parametrize("name", sorted(set(TABLE) - NO_NUMPY))
def test_numpy_round_trip(name: str) -> None:
    dtype = getattr(DType, name)
    assert np.dtype(dtype.to_numpy()) == np.dtype(name)
    assert DType.from_numpy(np.dtype(name)) == dtype
    assert np.zeros(2, dtype=dtype.to_numpy()).dtype == np.dtype(name)


@pytest.mark.parametrize("name", sorted(NO_NUMPY))
def test_types_without_a_numpy_dtype(name: str) -> None:
    with pytest.raises(ValueError):
        getattr(DType, name).to_numpy()


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "datetime64[s]"])
def test_unsupported_numpy_dtypes(dtype: str) -> None:
    with pytest.raises(ValueError):
        DType.from_numpy(np.dtype(dtype))


def test_identity_and_hashing() -> None:
    members = [getattr(DType, name) for name in TABLE]
    assert len(set(members)) == len(TABLE)
    assert {DType.int8: "a"}[DType(135)] == "a"
    assert DType.float32 != DType.float64
    assert set(members) <= set(DType)


def test_unknown_code() -> None:
    with pytest.raises(ValueError):
        DType(9999)


def test_torch_round_trip() -> None:
    torch = pytorch()
    for name in ["bool", "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]:
        assert getattr(DType, name).to_torch() == getattr(torch, name)
        assert DType.from_torch(getattr(torch, name)) == getattr(DType, name)


class TestWhatStandsForADType:
    """Names, NumPy dtypes and NumPy scalar types are accepted wherever a `DType` is."""

    LIKES = ["int32", np.int32, np.dtype("int32"), np.dtype("i4"), DType.int32]

    @pytest.mark.parametrize("name", TABLE)
    def test_names(self, name: str) -> None:
        assert TensorType(name, [1]).dtype is getattr(DType, name)
        if name not in NO_NUMPY:
            for like in (np.dtype(name), np.dtype(name).type):
                assert TensorType(like, [1]).dtype is getattr(DType, name)

    @pytest.mark.parametrize("like", LIKES, ids=repr)
    def test_in_types_and_graphs(self, like) -> None:
        expected = TensorType(DType.int32, [2])
        assert TensorType(like, [2]) == expected and hash(TensorType(like, [2])) == hash(expected)
        assert TensorType(like, [2]).dtype is BufferType(like, [2]).dtype is DType.int32
        assert Weight("w", like, [2]).dtype is DType.int32
        with Graph("g", input_types=[TensorType("float32", [2])]) as graph:
            (x,) = graph.inputs
            made = [
                x.cast(like),
                ops.cast(x, like),
                ops.constant(3, like, DeviceRef.CPU()),
                ops.constant(np.arange(3, dtype=np.int32), like, DeviceRef.CPU()),
                ops.range(0, 4, 1, dtype=like, device=DeviceRef.CPU()),
            ]
            assert x.cast("float32") is x.cast(np.float32) is x
        assert all(value.dtype is DType.int32 for value in made)

    @pytest.mark.parametrize("like", LIKES, ids=repr)
    def test_in_buffers(self, like, tmp_path) -> None:
        (tmp_path / "data").write_bytes(bytes(8))
        made = [
            Buffer(like, [2]),
            Buffer.zeros([2], like),
            Buffer.scalar(1, like),
            Buffer.zeros([2], DType.float32).view(like),
            Buffer.mmap(tmp_path / "data", like, [2]),
        ]
        assert all(buffer.dtype is DType.int32 for buffer in made)

    @pytest.mark.parametrize("like", LIKES, ids=repr)
    def test_in_tensors(self, like) -> None:
        x = Tensor([1.0, 2.0])
        made = [
            x.cast(like),
            F.cast(x, like),
            Tensor([1, 2], dtype=like),
            Tensor(1, dtype=like),
            Tensor(np.arange(2, dtype=np.int32), dtype=like),
            Tensor.constant(1, dtype=like),
            Tensor.full([2], 3, dtype=like),
            Tensor.zeros([2], dtype=like),
            Tensor.ones([2], dtype=like),
            Tensor.arange(3, dtype=like),
            F.constant(1, like, CPU()),
        ]
        with default_dtype(like):
            made.append(Tensor.ones([2]))
        assert all(tensor.dtype is DType.int32 for tensor in made)
        assert defaults(like)[0] is DType.int32
        assert made[0].cast(like) is made[0]

    @pytest.mark.parametrize("like", ["float64", np.float64, np.dtype("float64")], ids=repr)
    def test_in_random_numbers_and_layers(self, like) -> None:
        assert random.uniform([2], dtype=like).dtype is random.gaussian([2], dtype=like).dtype is DType.float64
        assert Conv2d(1, 1, 1, dtype=like).weight.dtype is DType.float64

    def test_extension_types_are_recognised_by_name(self) -> None:
        extension = pytest.importorskip("ml_dtypes")
        assert TensorType(extension.bfloat16, [1]).dtype is DType.bfloat16
        assert TensorType(np.dtype(extension.float8_e4m3fn), [1]).dtype is DType.float8_e4m3fn

    TAKERS = [
        lambda dtype: TensorType(dtype, [1]),
        lambda dtype: BufferType(dtype, [1]),
        lambda dtype: Weight("w", dtype, [1]),
        lambda dtype: Buffer(dtype, [1]),
        lambda dtype: Buffer.zeros([1], DType.int32).view(dtype),
        lambda dtype: Tensor([1.0]).cast(dtype),
        lambda dtype: F.cast(Tensor([1.0]), dtype),
        lambda dtype: Tensor.ones([1], dtype=dtype),
    ]

    @pytest.mark.parametrize("take", TAKERS)
    @pytest.mark.parametrize("other", [float, int, Tensor, [DType.int32]], ids=repr)
    def test_other_objects_are_refused(self, take, other) -> None:
        with pytest.raises(TypeError) as caught:
            take(other)
        message = str(caught.value)
        if isinstance(other, type):
            assert repr(other) in message and "a NumPy dtype or scalar type, or a name such as 'float32'" in message

    @pytest.mark.parametrize("take", TAKERS)
    @pytest.mark.parametrize("other", ["flaot32", np.complex64, np.dtype("U3"), np.dtype(">i4"), np.object_], ids=repr)
    def test_unknown_dtypes_are_refused(self, take, other) -> None:
        with pytest.raises(ValueError) as caught:
            take(other)
        assert str(np.dtype(other) if other != "flaot32" else other) in str(caught.value)

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="'flaot32' is not the name of a dtype.*bool, .*, bfloat16, float32"):
            TensorType("flaot32", [1])
