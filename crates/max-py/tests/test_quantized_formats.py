"""Blocks of quantized elements: NumPy arrays to blocks and back, and the op that decodes them in graphs and on tensors."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import Dim, Graph, TensorType, ops
from max.graph.quantization import QuantizationEncoding, dequantize, quantize

from helpers import CPU, evaluate

GOLDENS = Path(__file__).resolve().parents[3] / "cases" / "quantized.txt"
ENCODINGS = [encoding for encoding in QuantizationEncoding if encoding.is_gguf]

# Those that the gguf package can write.
WRITTEN = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]

# The root mean square error of normal numbers, relative to theirs.
ERRORS = {
    "Q2_K": 0.27,
    "Q3_K": 0.15,
    "Q4_0": 0.09,
    "Q4_1": 0.08,
    "Q4_K": 0.073,
    "Q5_0": 0.045,
    "Q5_1": 0.039,
    "Q5_K": 0.036,
    "Q6_K": 0.018,
    "Q8_0": 0.006,
    "MXFP4": 0.12,
}


def goldens() -> list[tuple[QuantizationEncoding, np.ndarray | None, np.ndarray, np.ndarray]]:
    lines = [line.split() for line in GOLDENS.read_text().splitlines() if not line.startswith("#")]
    array = lambda text, dtype: np.frombuffer(bytes.fromhex(text), dtype)  # noqa: E731
    return [
        (
            QuantizationEncoding(name.upper()),
            None if before == "-" else array(before, "<f4"),
            array(block, np.uint8),
            array(after, "<f4"),
        )
        for name, before, block, after in lines
    ]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether floats have the same bits; NaN may have any."""
    return a.shape == b.shape and bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def random_blocks(encoding: QuantizationEncoding, *shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(*shape[:-1], shape[-1] * encoding.elements_per_block))
    return quantize(encoding, values)


def decode(
    session,
    encoding: QuantizationEncoding,
    blocks: np.ndarray,
    dims: list | None = None,
) -> np.ndarray:
    ty = TensorType(DType.uint8, blocks.shape if dims is None else dims, CPU)
    (result,) = evaluate(session, lambda x: ops.dequantize(encoding, x), blocks, types=[ty])
    return result


class TestArrays:
    def test_blocks_are_those_of_gguf(self) -> None:
        found = goldens()
        assert {encoding for encoding, *_ in found} == set(ENCODINGS)
        for encoding, before, block, after in found:
            if before is not None:
                assert quantize(encoding, before).tolist() == block.tolist(), (
                    encoding,
                    before,
                )
            assert same_bits(dequantize(encoding, block), after), (encoding, block)

    @pytest.mark.parametrize("name", WRITTEN)
    def test_random_numbers_give_the_blocks_of_gguf(self, name: str) -> None:
        gguf = pytest.importorskip("gguf")
        kind, encoding = gguf.GGMLQuantizationType[name], QuantizationEncoding(name)
        rng = np.random.default_rng(len(name))
        normal = rng.normal(size=(1000, 64))
        near_powers = 2.0 ** rng.integers(-100, 100, (1000, 1)) * (1 - rng.integers(0, 64, (1000, 64)) * 2.0**-24)
        for values in [
            normal,
            np.abs(normal),
            rng.integers(-127, 128, (1000, 64)) / 2,
            rng.integers(-1000, 1000, (1000, 64)) / 64,
            rng.integers(-8, 8, (1000, 64)),
            normal * 10.0 ** rng.integers(-30, 30, (1000, 64)),
            normal * 1e-30,
            normal * 1e37,
            near_powers,
            np.repeat(normal[:, :1], 64, axis=1),
        ]:
            values = values.astype(np.float32)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                blocks = gguf.quants.quantize(values, kind)
                after = gguf.quants.dequantize(blocks, kind)
            assert np.array_equal(quantize(encoding, values), blocks)
            assert same_bits(dequantize(encoding, blocks), after)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_any_bytes_decode_as_in_gguf(self, encoding: QuantizationEncoding) -> None:
        gguf = pytest.importorskip("gguf")
        blocks = np.random.default_rng(3).integers(0, 256, (500, encoding.block_size)).astype(np.uint8)
        if encoding is QuantizationEncoding.MXFP4:
            blocks[:, 0] %= 255  # the last exponent is NaN, which the package does not know
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[encoding.value])
        assert same_bits(dequantize(encoding, blocks), expected)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_errors_are_what_the_bits_allow(self, encoding: QuantizationEncoding) -> None:
        values = np.random.default_rng(5).normal(size=(16, 1024)).astype(np.float32)
        for unit in (1.0, 0.02, 1e4):
            after = dequantize(encoding, quantize(encoding, values * unit))
            error = np.sqrt(np.mean((after / unit - values) ** 2) / np.mean(values**2))
            assert error < ERRORS[encoding.value]

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_shapes(self, encoding: QuantizationEncoding) -> None:
        elements, size = encoding.block_parameters
        values = np.random.default_rng(1).normal(size=(3, 2, 3 * elements)).astype(np.float32)
        blocks = quantize(encoding, values)
        assert (blocks.shape, blocks.dtype) == ((3, 2, 3 * size), np.uint8)
        after = dequantize(encoding, blocks)
        assert (after.shape, after.dtype) == (values.shape, np.float32)
        # Rows and blocks are independent, in whatever order they are in memory.
        assert np.array_equal(quantize(encoding, values[1, 1]), blocks[1, 1])
        assert np.array_equal(quantize(encoding, values.transpose(1, 0, 2)), blocks.transpose(1, 0, 2))
        assert np.array_equal(dequantize(encoding, blocks[::-1, :, size:]), after[::-1, :, elements:])
        assert quantize(encoding, np.zeros((0, elements))).shape == (0, size)
        assert quantize(encoding, np.zeros((4, 0))).shape == (4, 0)
        assert dequantize(encoding, np.zeros((2, 0), np.uint8)).shape == (2, 0)

    @pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
    def test_other_numbers_are_converted(self, dtype: type) -> None:
        values = np.arange(-16, 16).astype(dtype)
        expected = quantize(QuantizationEncoding.Q8_0, values.astype(np.float32))
        assert np.array_equal(quantize(QuantizationEncoding.Q8_0, values), expected)
        assert np.array_equal(quantize(QuantizationEncoding.Q8_0, values.tolist()), expected)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_special_numbers(self, encoding: QuantizationEncoding) -> None:
        values = np.ones((4, encoding.elements_per_block), np.float32)
        values[0] = 0
        values[1, 3], values[2, 5] = np.nan, -np.inf
        after = dequantize(encoding, quantize(encoding, values))
        assert np.all(after[0] == 0)
        assert np.all(np.isnan(after[1:3]))
        assert np.all(np.isfinite(after[3]))

    def test_arguments(self) -> None:
        q4_k = QuantizationEncoding.Q4_K
        with pytest.raises(
            ValueError,
            match=r"last dimension \(36\) not divisible by block size \(144\)",
        ):
            dequantize(q4_k, np.zeros((4, 36), np.uint8))
        with pytest.raises(
            ValueError,
            match=r"last dimension \(128\) not divisible by block size \(256\)",
        ):
            quantize(q4_k, np.zeros((2, 128), np.float32))
        with pytest.raises(ValueError, match="at least one axis"):
            quantize(q4_k, np.float32(1))
        with pytest.raises(TypeError, match="dequantize takes a uint8 array; got int8"):
            dequantize(q4_k, np.zeros(144, np.int8))
        for function in (quantize, dequantize):
            with pytest.raises(ValueError, match="gptq has no fixed block parameters"):
                function(QuantizationEncoding.GPTQ, np.zeros(256, np.uint8))


class TestGraphs:
    def test_blocks_decode_as_in_gguf(self, session) -> None:
        for encoding in ENCODINGS:
            blocks, expected = zip(*((block, after) for kind, _, block, after in goldens() if kind is encoding))
            assert same_bits(decode(session, encoding, np.stack(blocks)), np.stack(expected)), encoding

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_many_blocks(self, session, encoding: QuantizationEncoding) -> None:
        blocks = random_blocks(encoding, 37, 3, 70 if encoding.elements_per_block == 32 else 9)
        assert same_bits(decode(session, encoding, blocks), dequantize(encoding, blocks))

    @pytest.mark.parametrize("shape", [(1,), (5,), (0,), (0, 3), (3, 0), (2, 3, 1, 2)])
    def test_any_rank(self, session, shape: tuple[int, ...]) -> None:
        encoding = QuantizationEncoding.Q5_0
        blocks = random_blocks(encoding, *shape)
        after = decode(session, encoding, blocks)
        assert after.shape == (*shape[:-1], shape[-1] * 32)
        assert same_bits(after, dequantize(encoding, blocks))

    def test_symbolic_dims(self, session) -> None:
        encoding = QuantizationEncoding.Q6_K
        blocks = random_blocks(encoding, 2, 3, 2)
        expected = dequantize(encoding, blocks)
        assert same_bits(decode(session, encoding, blocks, ["a", "b", 420]), expected)
        assert same_bits(decode(session, encoding, blocks, ["a", "b", "c"]), expected)
        with Graph("g", input_types=[TensorType(DType.uint8, ["n", Dim("m") * 210], CPU)]) as graph:
            assert ops.dequantize(encoding, graph.inputs[0].tensor).shape == [
                Dim("n"),
                Dim("m") * 256,
            ]

    def test_a_last_dim_is_checked_when_the_graph_runs(self, session) -> None:
        with Graph("g", input_types=[TensorType(DType.uint8, ["n", "m"], CPU)]) as graph:
            graph.output(ops.dequantize(QuantizationEncoding.Q4_0, graph.inputs[0].tensor))
        model = session.load(graph)
        assert model.execute(np.zeros((2, 36), np.uint8))[0].shape == (2, 64)
        assert model.execute(np.zeros((2, 0), np.uint8))[0].shape == (2, 0)
        with pytest.raises(ValueError, match=r"not divisible by the block size \(18\)"):
            model.execute(np.zeros((2, 35), np.uint8))

    def test_views_of_blocks(self, session) -> None:
        encoding = QuantizationEncoding.Q4_1
        blocks = random_blocks(encoding, 4, 6, 3)
        ty = TensorType(DType.uint8, ["a", 6, 60], CPU)

        def build(x):
            views = [
                x[:, 2:5],
                x[1:, :, 20:],
                x[:, ::2],
                x.transpose(0, 1),
                x[:, :, 20:40].reshape([-1, 20]),
            ]
            return [ops.dequantize(encoding, view) for view in views]

        part, later, every, turned, middle = evaluate(session, build, blocks, types=[ty])
        after = dequantize(encoding, blocks)
        assert same_bits(part, after[:, 2:5])
        assert same_bits(later, after[1:, :, 32:])
        assert same_bits(every, after[:, ::2])
        assert same_bits(turned, after.transpose(1, 0, 2))
        assert same_bits(middle, after[:, :, 32:64].reshape(-1, 32))

    def test_embeddings_of_quantized_rows(self, session) -> None:
        encoding = QuantizationEncoding.Q4_K
        table = random_blocks(encoding, 100, 2)
        tokens = np.array([[3, 99, 3], [0, -1, 42]])

        def build(table, tokens):
            return ops.dequantize(encoding, ops.gather(table, tokens, axis=0)) * 2

        types = [
            TensorType(DType.uint8, ["rows", 288], CPU),
            TensorType(DType.int64, ["batch", "len"], CPU),
        ]
        (after,) = evaluate(session, build, table, tokens, types=types)
        assert same_bits(after, dequantize(encoding, table)[tokens] * 2)

    def test_constants_are_folded_to_the_same_bits(self, session) -> None:
        encoding = QuantizationEncoding.Q3_K
        blocks = random_blocks(encoding, 2, 1)
        with Graph("g", input_types=[TensorType(DType.float32, [2, 256], CPU)]) as graph:
            weights = ops.dequantize(encoding, ops.constant(blocks, DType.uint8, CPU))
            graph.output(weights, weights + graph.inputs[0].tensor)
        alone, added = session.load(graph).execute(np.ones((2, 256), np.float32))
        expected = dequantize(encoding, blocks)
        assert same_bits(alone.to_numpy(), expected)
        assert same_bits(added.to_numpy(), expected + 1)

    def test_the_text_names_the_encoding(self) -> None:
        with Graph("g", input_types=[TensorType(DType.uint8, [17], CPU)]) as graph:
            graph.output(ops.dequantize(QuantizationEncoding.MXFP4, graph.inputs[0].tensor))
        assert 'dequantize(%0) {encoding = "mxfp4"} : float32[32]' in str(graph)

    @pytest.mark.parametrize(
        "shape, dtype, encoding, error, message",
        [
            (
                [4, 36],
                DType.uint8,
                "Q4_K",
                ValueError,
                r"last dimension \(36\) not divisible by block size \(144\)",
            ),
            (
                [4, 17],
                DType.uint8,
                "Q4_0",
                ValueError,
                r"last dimension \(17\) not divisible by block size \(18\)",
            ),
            ([], DType.uint8, "Q4_0", ValueError, "at least one axis"),
            (
                [4, 36],
                DType.uint8,
                "GPTQ",
                ValueError,
                "unsupported quantization encoding gptq",
            ),
            ([4, 36], DType.float32, "Q4_0", TypeError, "uint8; got float32"),
            (
                [(2**63 - 1) // 18 * 18],
                DType.uint8,
                "Q4_0",
                Exception,
                "dequantize|overflow|exceeds|large",
            ),
        ],
    )
    def test_errors(self, shape: list, dtype: DType, encoding: str, error: type, message: str) -> None:
        with Graph("g", input_types=[TensorType(dtype, shape, CPU)]) as graph:
            with pytest.raises(error, match=message):
                ops.dequantize(QuantizationEncoding(encoding), graph.inputs[0].tensor)


class TestTensors:
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_eager(self, encoding: QuantizationEncoding) -> None:
        blocks = random_blocks(encoding, 5, 2)
        after = F.dequantize(encoding, Tensor(blocks))
        assert after.dtype == DType.float32
        assert same_bits(after.to_numpy(), dequantize(encoding, blocks))

    def test_embeddings(self) -> None:
        encoding = QuantizationEncoding.Q8_0
        table = random_blocks(encoding, 10, 4)
        rows = F.gather(Tensor(table), Tensor(np.array([7, 1])), axis=0)
        assert same_bits(F.dequantize(encoding, rows).to_numpy(), dequantize(encoding, table)[[7, 1]])

    def test_errors(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"last dimension \(20\) not divisible by block size \(18\)",
        ):
            F.dequantize(QuantizationEncoding.Q4_0, Tensor(np.zeros((2, 20), np.uint8)))
        with pytest.raises(TypeError, match="uint8; got float32"):
            F.dequantize(QuantizationEncoding.Q4_0, Tensor(np.zeros((2, 18), np.float32)))
        with pytest.raises(ValueError, match="q9"):
            F.dequantize("q9", Tensor(np.zeros((2, 18), np.uint8)))
