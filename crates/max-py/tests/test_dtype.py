"""DType: codes, predicates, sizes, conversions and printing."""

import numpy as np
import pytest
from max.dtype import DType

# name: (code, bytes)
TABLE = {
    "bool": (1, 1),
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
HALF = {"float16", "bfloat16"}
NO_NUMPY = FLOAT8 | {"bfloat16"}
PREDICATES = {
    "is_float": FLOAT8 | HALF | {"float32", "float64"},
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
    torch = pytest.importorskip("torch")
    for name in ["bool", "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]:
        assert getattr(DType, name).to_torch() == getattr(torch, name)
        assert DType.from_torch(getattr(torch, name)) == getattr(DType, name)
