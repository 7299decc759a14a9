"""Dims and their algebra, shapes, tensor and buffer types, device references."""

import re

import numpy as np
import pytest
from max import driver
from max.dtype import DType
from max.graph import (
    AlgebraicDim,
    BufferType,
    DeviceRef,
    Dim,
    Shape,
    StaticDim,
    SymbolicDim,
    TensorType,
    TensorValue,
    Type,
    ops,
)
from max.graph.type import ConvInputLayout, DeviceKind, FilterLayout

from helpers import CPU, evaluate, shapes_of, tensor

a, b, c, x, D = map(Dim, ["a", "b", "c", "x", "D"])


@pytest.mark.parametrize(
    "dim, text",
    [
        (x, "x"),
        (Dim(3), "3"),
        (x + 4, "x + 4"),
        (x * 5, "x * 5"),
        (2 * x + 3 * x, "x * 5"),
        ((4 * x + 8) // 4, "x + 2"),
        (-x - 4, "(x * -1) + -4"),
        (b + a, "a + b"),
        ((a + b) * 2, "(a * 2) + (b * 2)"),
        (x - 1, "x + -1"),
        (x * 5 + 3 - 3, "x * 5"),
    ],
    ids=str,
)
def test_canonical_printing(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_repr() -> None:
    assert repr(x) == "Dim('x')"
    assert repr(Dim(3)) == "Dim(3)"
    assert repr(x * 5) == "Dim('x') * Dim(5)"


@pytest.mark.parametrize(
    "left, right",
    [
        (x - x, 0),
        (x + 0, x),
        (x * 1, x),
        (x * 0, 0),
        ((4 * x) // 4, x),
        ((a + 1) * 2, a * 2 + 2),
        (a + b, b + a),
        (a * b, b * a),
        ((a + b) + c, a + (b + c)),
        (a * (b + c), a * b + a * c),
        (-(x + 4), -x - 4),
        ((a * b + c) * D // D, a * b + c),
        ((a + b) - b, a),
        (Dim(7) // 2, 3),
        (Dim(7) % 4, 3),
        (10 - Dim(3), 7),
        (3 + x, x + 3),
    ],
    ids=str,
)
def test_identities(left: Dim, right) -> None:
    assert left == right
    assert not left != right
    assert hash(left) == hash(Dim(right))


@pytest.mark.parametrize(
    "left, right", [((x // 4) * 4, x), (x, Dim("y")), (x, x + 1), (x * 2, x * 3), (a * b, a + b), (x, 3)], ids=str
)
def test_different_dims(left: Dim, right) -> None:
    assert left != right
    assert not left == right


def test_kinds() -> None:
    assert isinstance(x, SymbolicDim) and x.name == "x"
    assert isinstance(Dim(3), StaticDim) and Dim(3).dim == 3
    assert isinstance(x * 5, AlgebraicDim)
    assert all(isinstance(d, Dim) for d in (x, Dim(3), x * 5, SymbolicDim("q"), StaticDim(5), AlgebraicDim(x + 1)))
    assert isinstance(x - x, StaticDim) and (x - x).dim == 0
    assert isinstance((4 * x) // 4, SymbolicDim)
    assert isinstance(Dim(2) * 3, StaticDim)


def test_conversions() -> None:
    for dim in (x, Dim(3), x * 5):
        assert Dim(dim) is dim
    assert x == "x" and "x" == x
    assert Dim(3) == 3 and 3 == Dim(3)
    assert Dim(np.int64(3)) == Dim(3)
    assert int(Dim(3)) == 3
    assert {x: 1}[Dim("x")] == 1


def test_parameters() -> None:
    assert [d.name for d in x.parameters] == ["x"]
    assert list(Dim(3).parameters) == []
    assert {d.name for d in (a * b + 3).parameters} == {"a", "b"}


def test_bad_dims() -> None:
    with pytest.raises(TypeError, match="Int conversions only supported for static dims"):
        int(x)
    with pytest.raises(TypeError, match="Int conversions only supported for static dims"):
        int(x + 1)
    with pytest.raises(TypeError):
        Dim(3.0)
    with pytest.raises(TypeError):
        Dim(None)
    with pytest.raises(TypeError, match="StaticDim"):
        StaticDim("5")


@pytest.mark.parametrize(
    "name",
    ["a", "_", "a1", "aé", "aж", "a中", "a٣", "a½", "aⅷ", "1a", "", "a b", "a+b", "é", "½", "a\n", "\na", "a\u0345",
     "a\u24b6", "a\u203f", "a\u200d", "a\u0301"],
    ids=ascii,
)  # fmt: skip
def test_names(name: str) -> None:
    if re.fullmatch(r"[a-zA-Z_]\w*", name):
        assert SymbolicDim(name).name == name
        assert TensorType(DType.float32, [name]).shape[0] == name
        return
    with pytest.raises(ValueError, match="Invalid name for symbolic dimension"):
        SymbolicDim(name)


def test_substitution() -> None:
    assert Dim(3).substitute({"a": 4}) == 3
    assert a.substitute({"a": 4, "b": 5}) == 4
    assert a.substitute({"b": 5}) == a
    assert (a + b).substitute({"a": 3, "b": Dim("c") * 2}) == Dim("c") * 2 + 3
    assert (a * 2 + b).substitute({"a": "b", "b": a}) == b * 2 + a  # all at once
    assert (a - 4).substitute({"a": np.int64(1)}) == -3
    with pytest.raises(ZeroDivisionError):
        (a // b).substitute({"b": 0})
    with pytest.raises(ValueError, match="64 bits"):
        (a * a).substitute({"a": 2**62})
    with pytest.raises(ValueError, match="Invalid name"):
        a.substitute({"a": "1a"})
    for mapping in ({"a": 1.5}, {a: 3}):
        with pytest.raises(TypeError):
            a.substitute(mapping)


def test_types_change_in_one_part() -> None:
    filters = TensorType(DType.float32, ["a", 3], _layout=FilterLayout.RSCF)
    assert filters.cast(DType.int8) == TensorType(DType.int8, ["a", 3], _layout=FilterLayout.RSCF)
    assert filters.to(DeviceRef.GPU(1)) == TensorType(
        DType.float32, ["a", 3], DeviceRef.GPU(1), _layout=FilterLayout.RSCF
    )
    assert filters.as_buffer().cast(DType.int8) == BufferType(DType.int8, ["a", 3])
    assert filters.as_buffer().to(driver.CPU()) == filters.as_buffer()


def test_sizes_may_exceed_all_memory() -> None:
    most = 2**63 - 1
    for kind in (TensorType, BufferType):
        assert kind(DType.float64, [most, most]).num_elements() == most**2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dim(2**64),
        lambda: Dim(-(2**64)),
        lambda: Dim(2**62) * 4,
        lambda: Dim(2**62) + 2**62 + 2**62,
        lambda: x * 2**62 * 4,
        lambda: (x + 2**62) * 4,
    ],
)
def test_beyond_64_bits(make) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("make", [lambda: x // 0, lambda: Dim(4) // 0, lambda: x % 0, lambda: Dim(4) % 0])
def test_division_by_zero(make) -> None:
    with pytest.raises(ZeroDivisionError):
        make()


def random_dim(rng: np.random.Generator, depth: int):
    """A random expression over a and b, as a function of anything that has Python's integer operators."""
    if depth == 0:
        leaf = int(rng.integers(4))
        constant = int(rng.integers(1, 5))
        return [lambda p, q: p, lambda p, q: q, lambda p, q: p, lambda p, q: constant][leaf]
    left, right = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    divisor = int(rng.integers(1, 5))
    return [
        lambda p, q: left(p, q) + right(p, q),
        lambda p, q: left(p, q) * right(p, q),
        lambda p, q: left(p, q) // divisor,
        lambda p, q: left(p, q) % divisor,
        lambda p, q: left(p, q) + right(p, q) * divisor,
    ][int(rng.integers(5))]


@pytest.mark.parametrize("seed", range(40))
def test_algebra_means_arithmetic(session, seed: int) -> None:
    """A dim as a tensor has the value that plain integers give the same expression."""
    expression = random_dim(np.random.default_rng(seed), 3)
    dim = Dim(expression(a, b))
    for p, q in [(1, 1), (3, 5), (8, 2), (7, 12)]:
        (value,) = evaluate(
            session,
            lambda v: TensorValue(dim),
            np.zeros((p, q), dtype=np.float32),
            types=[tensor("float32", "a", "b")],
        )
        assert value.dtype == np.int64 and value.shape == ()
        assert int(value) == expression(p, q), str(dim)


def test_reshape_cancels_a_common_factor(session) -> None:
    """A reshape finds -1 in ((a * b) + c) * D // D."""

    def forward(u, v):
        joined = ops.concat([ops.reshape(u, [a * b, D]), v])
        assert joined.shape == Shape([a * b + c, D])
        folded = ops.reshape(ops.flatten(joined), [-1, D])
        assert folded.shape == Shape([a * b + c, D])
        return folded

    u, v = np.random.rand(2, 3, 5).astype(np.float32), np.random.rand(4, 5).astype(np.float32)
    types = [tensor("float32", "a", "b", "D"), tensor("float32", "c", "D")]
    (out,) = evaluate(session, forward, u, v, types=types)
    np.testing.assert_array_equal(out, np.concatenate([u.reshape(6, 5), v]))


class TestShape:
    def test_construction(self) -> None:
        shape = Shape(["a", 3, np.int32(4), x + 1])
        assert shape.rank == len(shape) == 4
        assert list(shape) == [Dim("a"), Dim(3), Dim(4), x + 1]
        assert all(isinstance(dim, Dim) for dim in shape)
        assert shape[0] == "a" and shape[-1] == x + 1
        assert Shape().rank == 0

    def test_equality_and_printing(self) -> None:
        assert Shape([2, 3]) == Shape((2, 3)) == [2, 3]
        assert Shape([2, 3]) != Shape([3, 2])
        assert str(Shape(["a", 3])) == repr(Shape(["a", 3])) == "[Dim('a'), Dim(3)]"

    def test_static_dims(self) -> None:
        assert Shape([2, 3]).static_dims == [2, 3]
        assert Shape(["a", 3, x + 1, 5]).static_dims == [3, 5]
        assert Shape.is_static(Shape([2, 3])) and Shape.is_static(Shape())
        assert not Shape.is_static(Shape(["a", 3]))

    def test_parameters(self) -> None:
        assert {d.name for d in Shape(["a", 3, b + 1]).parameters} == {"a", "b"}

    def test_as_a_tensor(self, session) -> None:
        array = np.zeros((2, 5), dtype=np.float32)
        (value,) = evaluate(session, lambda v: TensorValue(v.shape), array, types=[tensor("float32", "a", 5)])
        assert value.dtype == np.int64
        np.testing.assert_array_equal(value, [2, 5])


class TestTypes:
    def test_tensor_type(self) -> None:
        t = TensorType(DType.float32, ["a", 3], CPU)
        assert isinstance(t, Type)
        assert (t.dtype, t.shape, t.device) == (DType.float32, Shape(["a", 3]), DeviceRef.CPU())
        assert repr(t) == "TensorType(dtype=float32, shape=[Dim('a'), Dim(3)], device=cpu:0)"
        assert t == TensorType(dtype=DType.float32, shape=("a", 3), device=driver.CPU())
        for other in (tensor("float64", "a", 3), tensor("float32", "b", 3), tensor("float32", "a")):
            assert t != other
        assert t != TensorType(DType.float32, ["a", 3], DeviceRef.GPU())

    def test_device_defaults_to_the_cpu(self) -> None:
        assert TensorType(DType.float32, (2, 3)).device == DeviceRef.CPU()

    def test_layout(self) -> None:
        assert TensorType(DType.float32, (2, 3), CPU, _layout=FilterLayout.RSCF).shape == [2, 3]

    def test_buffer_type(self) -> None:
        t = tensor("int8", "a", 3)
        buffer = t.as_buffer()
        assert isinstance(buffer, BufferType) and isinstance(buffer, Type)
        assert buffer == BufferType(DType.int8, ["a", 3], CPU)
        assert buffer.as_tensor() == t
        assert buffer != t

    @pytest.mark.parametrize("kind", [TensorType, BufferType])
    def test_negative_dims(self, kind) -> None:
        with pytest.raises(TypeError, match="Static tensor dimensions must be non-negative"):
            kind(DType.float32, [2, -3], CPU)

    @pytest.mark.parametrize("shape", [[1.5], [None], 5, ["1a"]])
    def test_bad_shapes(self, shape) -> None:
        with pytest.raises((TypeError, ValueError)):
            TensorType(DType.float32, shape, CPU)

    def test_value_printing(self) -> None:
        seen = []
        shapes_of(lambda v: seen.append(repr(v)) or v, tensor("float32", "a", 3))
        assert seen == ["TensorValue(dtype=float32, shape=[Dim('a'), Dim(3)], device=cpu:0)"]


class TestDeviceRef:
    def test_construction(self) -> None:
        assert DeviceRef.CPU() == DeviceRef(DeviceKind.CPU) == DeviceRef(DeviceKind.CPU, 0)
        assert DeviceRef.GPU(1) == DeviceRef(device_type=DeviceKind.GPU, id=1) != DeviceRef.GPU(id=0)
        gpu = DeviceRef.GPU(2)
        assert (gpu.device_type, gpu.id, gpu.is_gpu(), gpu.is_cpu()) == (DeviceKind.GPU, 2, True, False)
        assert DeviceRef.CPU().is_cpu() and not DeviceRef.CPU().is_gpu()
        assert len({DeviceRef.CPU(), DeviceRef.CPU(), DeviceRef.GPU()}) == 2

    def test_printing(self) -> None:
        assert str(DeviceRef.CPU()) == repr(DeviceRef.CPU()) == "cpu:0"
        assert str(DeviceRef.GPU(1)) == "gpu:1"

    def test_devices(self) -> None:
        assert DeviceRef.from_device(driver.CPU()) == DeviceRef.CPU()
        assert DeviceRef.from_device(DeviceRef.GPU(3)) == DeviceRef.GPU(3)
        assert DeviceRef.CPU().to_device() == driver.CPU()

    def test_kinds_and_layouts(self) -> None:
        assert DeviceKind("cpu") == DeviceKind.CPU == DeviceKind.from_string("cpu")
        assert DeviceKind.from_string("gpu") == DeviceKind.GPU
        with pytest.raises((ValueError, KeyError)):
            DeviceKind.from_string("toaster")
        assert [member.value for member in ConvInputLayout] == [member.name for member in ConvInputLayout]
        assert {member.value for member in ConvInputLayout} == {"NCHW", "NHWC"}
        assert {member.value for member in FilterLayout} == {"CFRS", "FCQRS", "FCRS", "QRSCF", "RSCF"}
