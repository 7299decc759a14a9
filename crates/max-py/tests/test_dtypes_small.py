"""Floats of at most eight bits that hold weights and scales: buffers, DLPack, promotion, casts and graphs."""

from pathlib import Path

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import DeviceRef, Graph, TensorType, Weight, ops

from helpers import pytorch, tensor, to_array
from op_cases import SMALL

HOST = DeviceRef.CPU()
NEW = {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6, "float8_e8m0fnu": 8}
SUB_BYTE = [name for name, bits in NEW.items() if bits < 8]
each_new = pytest.mark.parametrize("name", NEW)
each = pytest.mark.parametrize("name", SMALL)


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Float32 numbers, and the codes that `ml_dtypes` gives them."""
    text = (Path(__file__).parent / "goldens" / "small_floats.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    numbers, codes = ([int(word, 16) for word in line.split()] for line in (lines[0], lines[lines.index(name) + 2]))
    return np.array(numbers, dtype=np.uint32).view(np.float32), np.array(codes, dtype=np.uint8)


def of_codes(codes: np.ndarray, name: str) -> Buffer:
    return Buffer.from_numpy(np.array(codes, dtype=np.uint8)).view(getattr(DType, name), list(np.shape(codes)))


def codes_of(buffer: Buffer) -> np.ndarray:
    return buffer.view(DType.uint8, list(buffer.shape)).to_numpy()


def run(session, forward, *buffers: Buffer) -> list[Buffer]:
    types = [TensorType(buffer.dtype, list(buffer.shape), HOST) for buffer in buffers]
    with Graph("g", input_types=types) as graph:
        graph.output(forward(*graph.inputs))
    return session.load(graph).execute(*buffers)


def cast(session, buffer: Buffer, to: str) -> Buffer:
    return run(session, lambda x: ops.cast(x, to), buffer)[0]


@each_new
def test_the_dtype(name: str) -> None:
    dtype = getattr(DType, name)
    assert (dtype.size_in_bits, dtype.size_in_bytes, dtype.align) == (NEW[name], 1, 1)
    assert dtype.is_float() and not dtype.is_half() and not dtype.is_integral()
    assert dtype.is_float8() == (NEW[name] == 8)
    assert (repr(dtype), str(dtype)) == (name, f"DType.{name}")
    with pytest.raises(ValueError, match="NumPy has no dtype"):
        dtype.to_numpy()


def test_bits_of_other_dtypes() -> None:
    assert {dtype.size_in_bits for dtype in DType} == {4, 6, 8, 16, 32, 64}
    assert all(dtype.size_in_bits == 8 * dtype.size_in_bytes for dtype in DType if dtype.name not in NEW)


class TestBuffers:
    @each_new
    def test_creating_viewing_and_copying(self, name: str) -> None:
        dtype = getattr(DType, name)
        buffer = of_codes(np.arange(6).reshape(2, 3), name)
        assert (buffer.dtype, buffer.shape, buffer.num_elements, buffer.element_size) == (dtype, (2, 3), 6, 1)
        assert codes_of(buffer.copy()).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert codes_of(buffer[:, 1:].contiguous()).tolist() == [[1, 2], [4, 5]]
        assert not codes_of(Buffer.zeros([2, 3], dtype)).any()
        assert Buffer(dtype, [0]).num_elements == 0
        with pytest.raises(ValueError):
            buffer.to_numpy()
        assert name in repr(buffer)

    @each_new
    def test_elements(self, name: str) -> None:
        dtype, values = getattr(DType, name), SMALL[name]
        buffer = of_codes(np.arange(3), name)
        assert [buffer[i].item() for i in range(3)] == values[:3].tolist()
        buffer[1] = 2
        assert buffer[1].item() == 2.0
        assert Buffer.scalar(0.5, dtype).item() == 0.5

    @pytest.mark.parametrize("name, number", [("float4_e2m1fn", 7), ("float6_e3m2fn", -29.0), ("float8_e8m0fnu", 0)])
    def test_numbers_out_of_range(self, name: str, number: float) -> None:
        with pytest.raises(ValueError, match=f"out of the range of {name}"):
            Buffer.scalar(number, getattr(DType, name))

    @pytest.mark.parametrize("name", SUB_BYTE)
    def test_upper_bits_do_not_count(self, session, name: str) -> None:
        codes = np.arange(256, dtype=np.uint8)
        wide = cast(session, of_codes(codes, name), "float32")
        np.testing.assert_array_equal(wide.to_numpy(), SMALL[name][codes % len(SMALL[name])])
        (same,) = run(session, lambda x: ops.concat([x, x]), of_codes(codes, name))
        assert codes_of(same).max() < 1 << NEW[name]

    @each_new
    def test_dlpack(self, name: str) -> None:
        buffer = of_codes(np.arange(6).reshape(2, 3), name)
        again = Buffer.from_dlpack(buffer)
        assert again.dtype == buffer.dtype and codes_of(again).tolist() == [[0, 1, 2], [3, 4, 5]]
        again[0, 0] = 1
        assert buffer[0, 0].item() == 1.0

    @pytest.mark.parametrize("name", SUB_BYTE)
    def test_old_consumers_would_take_elements_for_packed(self, name: str) -> None:
        with pytest.raises((BufferError, ValueError), match=f"a byte for each element of {name}"):
            Buffer.zeros([2], getattr(DType, name)).__dlpack__()

    def test_arrays_of_extension_types(self) -> None:
        extension = pytest.importorskip("ml_dtypes")
        for name, values in SMALL.items():
            array = np.arange(values.size, dtype=np.uint8).view(getattr(extension, name))
            assert DType.from_numpy(array.dtype) is getattr(DType, name)

    def test_scales_of_pytorch(self) -> None:
        torch = pytorch()
        if not hasattr(torch, "float8_e8m0fnu"):
            pytest.skip("this PyTorch has no float8_e8m0fnu")
        assert DType.from_torch(torch.float8_e8m0fnu) is DType.float8_e8m0fnu
        assert DType.float8_e8m0fnu.to_torch() is torch.float8_e8m0fnu
        with pytest.raises(ValueError):
            DType.float4_e2m1fn.to_torch()


class TestCasts:
    @each
    def test_every_code_widens(self, session, name: str) -> None:
        codes = of_codes(np.arange(SMALL[name].size), name)
        for wide in ("float32", "float64", "bfloat16"):
            np.testing.assert_array_equal(to_array(cast(session, codes, wide)), SMALL[name])

    @each
    def test_rounding(self, session, name: str) -> None:
        numbers, codes = golden(name)
        with np.errstate(invalid="ignore"):
            doubles = numbers.astype(np.float64)
        for given in (numbers, doubles):
            result = cast(session, Buffer.from_numpy(given), name)
            np.testing.assert_array_equal(SMALL[name][codes_of(result)], SMALL[name][codes])
            if name in SUB_BYTE:  # NaN becomes a zero, of whichever sign
                np.testing.assert_array_equal(codes_of(result)[~np.isnan(numbers)], codes[~np.isnan(numbers)])

    @each
    def test_folded_and_eager(self, name: str) -> None:
        numbers, codes = golden(name)
        eager = Tensor(numbers).cast(name)
        with Graph("g", input_types=[]) as graph:
            graph.output(ops.cast(ops.cast(ops.constant(numbers), name), DType.float32))
        (folded,) = InferenceSession(devices=[CPU()]).load(graph).execute()
        expected = SMALL[name][codes]
        np.testing.assert_array_equal(folded.to_numpy(), expected)
        np.testing.assert_array_equal(np.array(eager.tolist(), dtype=np.float32), expected)

    def test_between_them(self, session) -> None:
        small = of_codes(np.arange(16), "float4_e2m1fn")
        for name in ("float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn"):
            np.testing.assert_array_equal(to_array(cast(session, small, name)), SMALL["float4_e2m1fn"])


class TestPromotion:
    @pytest.mark.parametrize(
        "left, right, expected",
        [
            ("float4_e2m1fn", "float32", "float32"),
            ("float4_e2m1fn", "float6_e2m3fn", "float6_e2m3fn"),
            ("float6_e3m2fn", "float8_e4m3fn", "float8_e4m3fn"),
            ("float6_e2m3fn", "float16", "float16"),
            ("float8_e8m0fnu", "bfloat16", "bfloat16"),
            ("float8_e8m0fnu", "float32", "float32"),
            ("bool", "float4_e2m1fn", "float4_e2m1fn"),
            ("float8_e8m0fnu", "float16", None),
            ("float6_e2m3fn", "float6_e3m2fn", None),
            ("float6_e2m3fn", "float8_e5m2", None),
            ("bool", "float8_e8m0fnu", None),
            ("int8", "float6_e3m2fn", None),
        ],
    )
    def test_only_where_every_value_fits(self, left: str, right: str, expected) -> None:
        def add() -> DType:
            with Graph("g", input_types=[tensor(left, 2), tensor(right, 2)]) as graph:
                x, y = graph.inputs
                return ops.add(x, y).dtype

        if expected is None:
            with pytest.raises(ValueError, match="Unsafe cast"):
                add()
        else:
            assert add() is getattr(DType, expected)


class TestGraphs:
    @each
    def test_a_weight_of_such_a_dtype(self, session, name: str) -> None:
        values = SMALL[name][: 1 << 3].reshape(2, 4)
        with Graph("g", input_types=[tensor("float32", "n", 2)]) as graph:
            weight = graph.add_weight(Weight("w", getattr(DType, name), [2, 4], HOST))
            graph.output(graph.inputs[0] @ ops.cast(weight, DType.float32))
        codes = of_codes(np.arange(8).reshape(2, 4), name)
        model = session.load(graph, weights_registry={"w": codes})
        x = np.array([[1, 2], [0.5, -1], [0, 3]], dtype=np.float32)
        (result,) = model.execute(Buffer.from_numpy(x))
        np.testing.assert_allclose(result.to_numpy(), x @ values, rtol=1e-6)

    def test_scaled_blocks(self, session) -> None:
        """Blocks of four elements with a scale each, as formats with shared exponents have them."""
        rng = np.random.default_rng(0)
        codes, scales = rng.integers(0, 16, (3, 8)), rng.integers(120, 135, (3, 2))

        def dequantize(x, scale):
            wide = ops.reshape(ops.cast(x, DType.float32), [3, 2, 4])
            return ops.reshape(wide * ops.unsqueeze(ops.cast(scale, DType.float32), -1), [3, 8])

        (result,) = run(session, dequantize, of_codes(codes, "float4_e2m1fn"), of_codes(scales, "float8_e8m0fnu"))
        expected = SMALL["float4_e2m1fn"][codes] * np.repeat(SMALL["float8_e8m0fnu"][scales], 4, axis=1)
        np.testing.assert_array_equal(result.to_numpy(), expected)

    @each_new
    def test_indexing_and_views(self, session, name: str) -> None:
        codes = np.arange(12).reshape(3, 4)
        (result,) = run(session, lambda x: ops.transpose(x, 0, 1)[1:, ::2], of_codes(codes, name))
        np.testing.assert_array_equal(codes_of(result), codes.T[1:, ::2])
        rows = Buffer.from_numpy(np.array([2, 0], dtype=np.int64))
        (result,) = run(session, lambda x, i: ops.gather(x, i, 0), of_codes(codes, name), rows)
        np.testing.assert_array_equal(codes_of(result), codes[[2, 0]])

    def test_constants_and_text(self, session) -> None:
        numbers = np.array([0.5, -6.0, 3.0], dtype=np.float32)
        with Graph("g", input_types=[tensor("float6_e3m2fn", 3)]) as graph:
            constant = ops.constant(numbers, DType.float4_e2m1fn, HOST)
            graph.output(ops.cast(graph.inputs[0], DType.float32) + ops.cast(constant, DType.float32))
        text = str(graph)
        assert "float4_e2m1fn" in text and "float6_e3m2fn" in text
        (result,) = session.load(graph).execute(of_codes(np.arange(3), "float6_e3m2fn"))
        np.testing.assert_array_equal(result.to_numpy(), SMALL["float6_e3m2fn"][:3] + numbers)

    def test_arithmetic_is_rounded(self, session) -> None:
        x = of_codes([1, 3, 7, 15], "float4_e2m1fn")  # 0.5, 1.5, 6, -6
        for forward, expected in [
            (lambda x: x * x, [0.0, 2.0, 6.0, 6.0]),
            (lambda x: ops.max(x), [6.0]),
            (lambda x: ops.top_k(x, 2)[0], [6.0, 1.5]),
            (lambda x: ops.argsort(x), [3, 0, 1, 2]),
        ]:
            (result,) = run(session, forward, x)
            assert to_array(result).tolist() == expected

    def test_eager_constants(self) -> None:
        assert Tensor([0.5, -3.0], dtype="float4_e2m1fn").tolist() == [0.5, -3.0]
        assert Tensor([0.5, 4.0], dtype="float8_e8m0fnu").tolist() == [0.5, 4.0]
        assert F.cast(Tensor([0.3, 100.0]), "float6_e2m3fn").tolist() == [0.25, 7.5]
        with pytest.raises(ValueError, match="out of the range"):
            Tensor([8.0], dtype="float4_e2m1fn")
