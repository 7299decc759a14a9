"""Layers of `max.nn` with quantized weights: blocks of GGUF files, GPTQ and float8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.graph import TensorType, Weight
from max.graph.quantization import QuantizationConfig, QuantizationEncoding, dequantize, quantize
from max.graph.weights import WeightData
from max.nn.embedding import Embedding
from max.nn.float8_config import Float8Config, Float8InputScaleSpec, Float8ScaleOrigin
from max.nn.linear import MLP, GPTQLinear, GPTQLinearV1, Linear, LinearV1, QLinearV1

from helpers import CPU, build, to_array, to_buffer
from scaled import BLOCK, COLWISE, ROWWISE, TENSOR, VALUES, codes, float8, spread, weights
from test_nn_layers import run
from test_qmatmul import bound, draw, gptq, rows

Q = QuantizationEncoding
ENCODINGS = [encoding for encoding in Q if encoding.is_gguf]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)
def test_linear_layers_of_blocks(session, encoding: QuantizationEncoding) -> None:
    blocks, matrix = draw(encoding, 17, 256)
    x, bias = rows(5, 256), rows(1, 17)[0]
    layer = Linear(256, 17, DType.uint8, CPU, has_bias=True, quantization_encoding=encoding)
    assert layer.weight.dtype == DType.uint8 and layer.bias is not None and layer.bias.dtype == DType.float32
    y = run(session, layer, {"weight": blocks, "bias": bias}, x, ["n", 256])
    exact = x.astype(np.float64) @ matrix.T.astype(np.float64) + bias
    assert np.all(np.abs(y - exact) <= bound(x, matrix) + 1e-5)
    older = LinearV1.create(DType.float32, encoding, 256, 17, Weight("w", DType.uint8, blocks.shape))
    assert isinstance(older, QLinearV1)
    np.testing.assert_array_equal(run(session, older, {"w": blocks}, x) + bias, y)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.uint8])
def test_embeddings_of_blocks(session, encoding: QuantizationEncoding, dtype: DType) -> None:
    blocks, table = draw(encoding, 9, 256)
    layer = Embedding(9, 256, dtype, CPU, quantization_encoding=encoding)
    indices = np.array([[8, 0], [3, 3]], dtype=np.int32)
    y = run(session, layer, {"weight": blocks}, indices)
    exact = dtype == DType.bfloat16
    np.testing.assert_allclose(y, table[indices], rtol=2**-8 if exact else 0)


def test_a_perceptron_of_blocks(session) -> None:
    layer = MLP(DType.uint8, Q.Q8_0, 64, 96, [CPU])
    drawn = {n: draw(Q.Q8_0, *s) for n, s in {"gate": (96, 64), "up": (96, 64), "down": (64, 96)}.items()}
    x = rows(3, 64)
    y = run(session, layer, {f"{name}_proj.weight": blocks for name, (blocks, _) in drawn.items()}, x)
    gate, up, down = (drawn[name][1] for name in ("gate", "up", "down"))
    product = x @ gate.T
    exact = (product / (1 + np.exp(-product)) * (x @ up.T)) @ down.T
    assert np.abs(y - exact).max() <= 0.02 * np.abs(exact).max()


def test_weights_of_another_encoding_than_expected(session) -> None:
    blocks, matrix = draw(Q.Q6_K, 7, 256)
    data = WeightData(blocks, "weight", DType.uint8, blocks.shape, Q.Q6_K)  # type: ignore[arg-type]
    layer = Linear(256, 7, DType.uint8, CPU, quantization_encoding=Q.Q4_K)
    layer.load_state_dict({"weight": data}, override_quantization_encoding=True)
    assert layer.weight.quantization_encoding is Q.Q6_K
    x = rows(2, 256)
    graph = build(layer, [TensorType(DType.float32, x.shape, CPU)])
    (y,) = session.load(graph, weights_registry=layer.state_dict()).execute(x)
    assert np.all(np.abs(to_array(y) - x @ matrix.T.astype(np.float64)) <= bound(x, matrix))


@pytest.mark.parametrize("bits, group", [(4, 32), (4, 128), (8, 64), (4, -1)])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(session, bits: int, group: int, ordered: bool) -> None:
    random = np.random.default_rng(3)
    depth, columns = 256, 24
    size = depth if group == -1 else group
    codes = random.integers(0, 2**bits, size=(depth, columns), dtype=np.uint8)
    scales = random.normal(size=(depth // size, columns)).astype(np.float16)
    matrix = (codes.astype(np.float32) - 2 ** (bits - 1)) * np.repeat(scales.astype(np.float32), size, axis=0)
    x, order = rows(5, depth), random.permutation(depth).astype(np.int32)
    config = QuantizationConfig("gptq", bits, group, desc_act=ordered, sym=True)
    layer = GPTQLinear(depth, columns, DType.uint8, CPU, True, Q.GPTQ, config)
    packed, bias = gptq(codes, scales, bits), rows(1, columns)[0]
    values = {"weight": packed, "bias": bias} | ({"perm_idx": order} if ordered else {})
    y = run(session, layer, values, x, ["n", depth])
    picked = x[:, order] if ordered else x
    exact = picked.astype(np.float64) @ matrix.astype(np.float64) + bias
    assert np.all(np.abs(y - exact) <= bound(picked, matrix.T) + 1e-5)
    w, perm = Weight("weight", DType.uint8, packed.shape), Weight("perm_idx", DType.int32, [depth])
    older = GPTQLinearV1(w, Weight("bias", DType.float32, [columns]), Q.GPTQ, config, perm if ordered else None)
    np.testing.assert_array_equal(run(session, older, values, x), y)


def config(inputs: Any, matrix: Any, origin: Any, block: Any = None, bound: Any = None) -> Float8Config:
    tokens = (1, block[1]) if block and inputs is BLOCK else None
    spec = Float8InputScaleSpec(inputs, origin, DType.float32, bound, tokens)
    return Float8Config(spec, weights(matrix, block), set(), set())


def scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 2, size=shape) / 64, dtype=np.float32)


@pytest.mark.parametrize("granularity", [TENSOR, ROWWISE])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float8_with_a_static_scale_of_inputs(session, granularity: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    matrix = codes(rng, "float8_e4m3fn", 7, 33)
    scale = scales(rng, (7, 1) if granularity is ROWWISE else ())
    layer = Linear(
        33, 7, DType.float8_e4m3fn, CPU, True, float8_config=config(TENSOR, granularity, Float8ScaleOrigin.STATIC)
    )
    assert layer.bias is not None and layer.bias.dtype == DType.float32
    x = (rng.integers(-32, 32, (2, 5, 33)) / 8).astype(np.float32)  # exact in float8 once divided by the scale
    values = {"weight": float8(matrix, "float8_e4m3fn"), "weight_scale": scale, "bias": np.ones(7, np.float32)}
    values["input_scale"] = np.array(0.25, np.float32)
    y = run(session, layer, values, to_buffer(x, dtype), ["a", "b", 33])
    steps = VALUES["float8_e4m3fn"][rounded(x / 0.25)] * 0.25
    exact = steps @ (VALUES["float8_e4m3fn"][matrix] * scale).T + 1
    np.testing.assert_allclose(y, exact, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-2)


def rounded(x: np.ndarray) -> np.ndarray:
    """The codes of the nearest float8 numbers, ties to even."""
    table = VALUES["float8_e4m3fn"][:127]
    at = np.abs(np.abs(x)[..., None] - table)
    low = at.argmin(-1)
    tie = (low + 1 < 127) & (at.min(-1) == np.take_along_axis(at, np.minimum(low + 1, 126)[..., None], -1)[..., 0])
    code = np.where(tie & (low % 2 == 1), low + 1, low)
    return (code | np.where(x < 0, 128, 0)).astype(np.uint8)


@pytest.mark.parametrize(
    "inputs, granularity, block, shape",
    [
        (COLWISE, ROWWISE, None, (7, 1)),
        (COLWISE, TENSOR, None, ()),
        (BLOCK, BLOCK, (4, 16), (2, 3)),
        (BLOCK, BLOCK, (8, 8), (1, 5)),
        (COLWISE, BLOCK, (4, 16), (2, 3)),
    ],
)
def test_float8_with_dynamic_scales_of_inputs(session, inputs: Any, granularity: Any, block: Any, shape: Any) -> None:
    rng = np.random.default_rng(0)
    matrix, scale = codes(rng, "float8_e4m3fn", 7, 33), scales(rng, shape)
    layer = Linear(
        33, 7, DType.float8_e4m3fn, CPU, float8_config=config(inputs, granularity, Float8ScaleOrigin.DYNAMIC, block)
    )
    assert layer.input_scale is None and layer.weight_scale is not None and layer.weight_scale.shape == list(shape)
    x = rng.normal(size=(2, 5, 33)).astype(np.float32)
    values = {"weight": float8(matrix, "float8_e4m3fn"), "weight_scale": scale}
    y = run(session, layer, values, x, ["a", "b", 33])
    wide = spread(scale, (7, 33), block) if block else scale
    exact = x.astype(np.float64) @ (VALUES["float8_e4m3fn"][matrix] * wide).T
    size = np.abs(x).astype(np.float64) @ np.abs(VALUES["float8_e4m3fn"][matrix] * wide).T
    assert np.all(np.abs(y - exact) <= size / 16 + 0.05)


def test_wrong_arguments() -> None:
    f8 = DType.float8_e4m3fn
    with pytest.raises(ValueError, match="rows of q4_k have a multiple of 256 elements; got 100"):
        Linear(100, 4, DType.uint8, CPU, quantization_encoding=Q.Q4_K)
    with pytest.raises(ValueError, match="those of a GPTQLinear layer"):
        Linear(256, 4, DType.uint8, CPU, quantization_encoding=Q.GPTQ)
    with pytest.raises(ValueError, match="rows of q8_0 have a multiple of 32"):
        Embedding(4, 33, DType.uint8, CPU, Q.Q8_0)
    with pytest.raises(ValueError, match="clip_weight is for weights that are not quantized"):
        Linear(256, 4, DType.uint8, CPU, quantization_encoding=Q.Q4_K, clip_weight=1.0)
    dynamic, static = Float8ScaleOrigin.DYNAMIC, Float8ScaleOrigin.STATIC
    with pytest.raises(ValueError, match="not both"):
        Linear(256, 4, f8, CPU, False, Q.Q4_K, config(TENSOR, TENSOR, static))
    with pytest.raises(ValueError, match="float8 weights; got"):
        Linear(256, 4, DType.bfloat16, CPU, float8_config=config(TENSOR, TENSOR, static))
    with pytest.raises(ValueError, match="got colwise and colwise"):
        Linear(256, 4, f8, CPU, float8_config=config(COLWISE, COLWISE, dynamic))
    with pytest.raises(ValueError, match="colwise inputs and rowwise weights"):
        Linear(256, 4, f8, CPU, float8_config=config(COLWISE, ROWWISE, static))
    gptq = QuantizationConfig("gptq", 4, 128)
    with pytest.raises(ValueError, match="needs a quantization_config"):
        GPTQLinear(256, 4, DType.uint8, CPU)
    with pytest.raises(ValueError, match="no float8_config"):
        GPTQLinear(256, 4, f8, CPU, quantization_config=gptq, float8_config=config(TENSOR, TENSOR, static))
    with pytest.raises(ValueError, match="has the encoding GPTQ"):
        GPTQLinear(256, 4, f8, CPU, quantization_encoding=Q.Q4_K, quantization_config=gptq)
    with pytest.raises(ValueError, match="4 or 8 bits; got 3"):
        GPTQLinear(256, 4, f8, CPU, quantization_config=gptq._replace(bits=3))
    with pytest.raises(ValueError, match="200 inputs cannot be divided into groups of 128"):
        GPTQLinear(200, 4, f8, CPU, quantization_config=gptq)
    with pytest.raises(ValueError, match="needs a quantization_config"):
        LinearV1.create(DType.float32, Q.GPTQ, 256, 4, Weight("w", DType.uint8, [1, 4]))


def test_blocks_decode_to_what_they_encode(session) -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    blocks = quantize(Q.Q8_0, values)
    y = run(session, Embedding(2, 32, DType.float32, CPU, Q.Q8_0), {"weight": blocks}, np.arange(2))
    np.testing.assert_array_equal(y, dequantize(Q.Q8_0, blocks))
