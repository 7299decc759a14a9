"""Float8: products with scales of tensors, rows and blocks, quantization with given and computed scales, and groups of
rows with weights of their own, against NumPy in float64."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, ops
from max.nn import kernels
from max.nn.float8_config import Float8Config, Float8ScaleGranularity

from helpers import CPU, assert_close, build, to_array, to_buffer
from scaled import BLOCK, COLWISE, ROWWISE, TENSOR, VALUES, codes, float8, inputs, spread, values, weights


def type_of(buffer: Buffer, *dims: Any) -> TensorType:
    return TensorType(buffer.dtype, list(dims) or list(buffer.shape), CPU)


def run(session: Any, forward: Callable[..., Any], *buffers: Buffer, types: Optional[list] = None) -> list[Buffer]:
    model = session.load(build(forward, types or [type_of(buffer) for buffer in buffers]))
    return model.execute(*buffers)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz"])
@pytest.mark.parametrize("scale_shape", [[], [1]])
def test_static_scales(session: InferenceSession, dtype: str, scale_shape: list) -> None:
    rng = np.random.default_rng(1)
    a, b = codes(rng, dtype, 5, 48), codes(rng, dtype, 7, 48)
    scales = [np.full(scale_shape, s, np.float32) for s in (0.03, 0.5)]
    buffers = [float8(a, dtype), float8(b, dtype), *map(Buffer.from_numpy, scales)]
    types = [type_of(buffers[0], "m", 48), type_of(buffers[1]), *[TensorType(DType.float32, scale_shape, CPU)] * 2]
    (result,) = run(session, kernels.matmul_static_scaled_float8, *buffers, types=types)
    assert result.dtype == DType.bfloat16
    expected = VALUES[dtype][a] @ VALUES[dtype][b].T * scales[0].item() * scales[1].item()
    assert_close(to_array(result), expected, "bfloat16")


@pytest.mark.parametrize("scale", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
@pytest.mark.parametrize("m", [0, 1, 3, 33])
def test_scales_of_rows(session: InferenceSession, dtype: str, m: int, scale: str) -> None:
    rng = np.random.default_rng(2)
    a, b = codes(rng, dtype, m, 80), codes(rng, dtype, 19, 80)
    a_scales, b_scales = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in ((1, m), (19, 1)))
    buffers = [float8(a, dtype), float8(b, dtype), to_buffer(a_scales, scale), to_buffer(b_scales, scale)]
    types = [type_of(buffers[0], "m", 80), type_of(buffers[1]), type_of(buffers[2], 1, "m"), type_of(buffers[3])]

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, inputs(COLWISE), weights(ROWWISE), DType.float32)

    (result,) = run(session, forward, *buffers, types=types)
    expected = (VALUES[dtype][a] * values(buffers[2]).T) @ (VALUES[dtype][b] * values(buffers[3])).T
    assert_close(to_array(result), expected, "float32")


@pytest.mark.parametrize("m", [1, 6])
@pytest.mark.parametrize("n, k, block", [(256, 256, (128, 128)), (70, 96, (32, 32)), (10, 50, (4, 16)), (9, 64, (4, 8))])
@pytest.mark.parametrize("padded", [0, 3])
def test_scales_of_blocks(
    session: InferenceSession, m: int, n: int, k: int, block: tuple[int, int], padded: int
) -> None:
    rng, dtype = np.random.default_rng(3), "float8_e4m3fn"
    a, b = codes(rng, dtype, m, k), codes(rng, dtype, n, k)
    down, along = -(-n // block[0]), -(-k // block[1])
    a_scales = rng.uniform(0.5, 2, (along, m + padded)).astype(np.float32)
    b_scales = rng.uniform(0.5, 2, (down, along)).astype(np.float32)
    specs = inputs(BLOCK, (1, block[1])), weights(BLOCK, block)

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, *specs)

    buffers = [float8(a, dtype), float8(b, dtype), Buffer.from_numpy(a_scales), Buffer.from_numpy(b_scales)]
    (result,) = run(session, forward, *buffers)
    left = VALUES[dtype][a] * spread(a_scales[:, :m].T, (m, k), (1, block[1]))
    right = VALUES[dtype][b] * spread(b_scales, (n, k), block)
    assert_close(to_array(result), left @ right.T, "bfloat16")


@pytest.mark.parametrize("left", ["tensor", "token", "block"])
@pytest.mark.parametrize("right", ["tensor", "channel", "block"])
def test_any_two_granularities(session: InferenceSession, left: str, right: str) -> None:
    rng, dtype, (m, n, k) = np.random.default_rng(4), "float8_e4m3fn", (3, 64, 64)
    a, b = codes(rng, dtype, m, k), codes(rng, dtype, n, k)
    a_shape, a_spec = {
        "tensor": ((1, 1), inputs(TENSOR)),
        "token": ((1, m), inputs(COLWISE)),
        "block": ((2, m), inputs(BLOCK, (1, 32))),
    }[left]
    b_shape, b_spec = {
        "tensor": ((1, 1), weights(TENSOR)),
        "channel": ((n, 1), weights(ROWWISE)),
        "block": ((4, 2), weights(BLOCK, (16, 32))),
    }[right]
    a_scales, b_scales = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in (a_shape, b_shape))
    buffers = [float8(a, dtype), float8(b, dtype), Buffer.from_numpy(a_scales), Buffer.from_numpy(b_scales)]

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, a_spec, b_spec, out_type=DType.float32)

    (result,) = run(session, forward, *buffers)
    block = (1, 1) if right == "channel" else (16, 32)
    expected = (VALUES[dtype][a] * spread(a_scales.T, (m, k), (1, 32))) @ (
        VALUES[dtype][b] * spread(b_scales, (n, k), block)
    ).T
    assert_close(to_array(result), expected, "float32", rtol=5e-6)


def test_weights_of_a_model(session: InferenceSession) -> None:
    """Weights of the graph, which kernels may keep packed: a row has the same bits whatever is computed with it."""
    rng, dtype = np.random.default_rng(5), "float8_e4m3fn"
    a, b = codes(rng, dtype, 40, 320), codes(rng, dtype, 72, 320)
    scales = np.array([[0.01]], np.float32)

    def forward(x: TensorValue) -> TensorValue:
        weight = ops.constant_external("weight", TensorType(DType.float8_e4m3fn, [72, 320], CPU))
        one = ops.constant(scales, DType.float32, CPU)
        return kernels.dynamic_scaled_matmul(x, weight, one, one, inputs(TENSOR), weights(TENSOR), DType.float32)

    graph = build(forward, [TensorType(DType.float8_e4m3fn, ["m", 320], CPU)])
    model = session.load(graph, weights_registry={"weight": float8(b, dtype)})
    whole = to_array(model.execute(float8(a, dtype))[0])
    assert_close(whole, VALUES[dtype][a] @ VALUES[dtype][b].T * 1e-4, "float32")
    for rows in (slice(0, 1), slice(7, 10), slice(3, 29)):
        part = to_array(model.execute(float8(a[rows], dtype))[0])
        np.testing.assert_array_equal(part, whole[rows])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("wide", ["float32", "bfloat16"])
def test_casts_of_weights(session: InferenceSession, dtype: str, wide: str) -> None:
    """A cast of float8 weights gives the product that the same weights give in the wider type, NaN and infinity too."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    b = np.stack([np.roll(np.arange(256, dtype=np.uint8), shift) for shift in range(20)])
    special = ~np.isfinite(VALUES[dtype])
    zeroed = np.where(special[b], 0, b).astype(np.uint8)

    def forward(x: TensorValue, b: TensorValue) -> TensorValue:
        return x @ ops.cast(b, getattr(DType, wide)).T

    for right in (zeroed, b[:, :2], zeroed[:, :1]):
        left = x[:, : right.shape[1]]
        buffers = [to_buffer(left, wide), float8(right, dtype)]
        (result,) = run(session, forward, *buffers)
        with np.errstate(invalid="ignore"):
            expected = values(buffers[0]) @ VALUES[dtype][right].T
        found, finite = to_array(result), np.isfinite(expected)
        np.testing.assert_array_equal(found[~finite], expected[~finite])
        assert_close(np.where(finite, found, 0), np.where(finite, expected, 0), wide)


def test_buffers_that_change_are_read_before(session: InferenceSession) -> None:
    rng, dtype = np.random.default_rng(7), "float8_e4m3fn"
    a, b = codes(rng, dtype, 4, 16), codes(rng, dtype, 16, 16)
    types = [TensorType(DType.float8_e4m3fn, [4, 16], CPU), BufferType(DType.float8_e4m3fn, [16, 16], CPU)]
    with Graph("changes", input_types=types) as graph:
        x, buffer = graph.inputs
        wide = ops.cast(ops.buffer_load(buffer), DType.float32)
        zeros = ops.broadcast_to(ops.constant(0.0, DType.float32, CPU), [16, 16])
        ops.buffer_store(buffer, ops.cast(zeros, DType.float8_e4m3fn))
        graph.output(ops.cast(x, DType.float32) @ wide)
    held = float8(b, dtype).copy()
    (result,) = session.load(graph).execute(float8(a, dtype), held)
    assert_close(to_array(result), VALUES[dtype][a] @ VALUES[dtype][b], "float32")
    assert not values(held).any()


@pytest.mark.parametrize("dtype, largest", [("float8_e4m3fn", 448), ("float8_e4m3fnuz", 240), ("float8_e5m2", 57344)])
def test_quantize_static(session: InferenceSession, dtype: str, largest: float) -> None:
    x = np.array([[0, 1, -1.06, 3e5, -np.inf, 1e-9], [7, -700, 0.3, 0.001, 2**-20, -0.0]], np.float32)

    def forward(x: TensorValue, scale: TensorValue) -> list[TensorValue]:
        quantize = kernels.quantize_static_scaled_float8
        return [quantize(x, scale, inverted, getattr(DType, dtype)) for inverted in (True, False)]

    types = [TensorType(DType.float32, ["m", "n"], CPU), TensorType(DType.float32, [], CPU)]
    results = run(session, forward, Buffer.from_numpy(x), Buffer.from_numpy(np.array(0.5, np.float32)), types=types)
    grid = np.unique(VALUES[dtype][np.isfinite(VALUES[dtype])])
    for result, wanted in zip(results, (x / 0.5, x * 0.5)):
        found, clipped = values(result), np.clip(wanted, -largest, largest)
        nearest = np.abs(grid[None, None, :] - clipped[:, :, None]).min(axis=-1)
        np.testing.assert_array_equal(np.abs(found - clipped), nearest)


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz"])
@pytest.mark.parametrize("group", [-1, 16, 20])
def test_quantize_dynamic(session: InferenceSession, dtype: str, group: int, scale_dtype: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((5, 48)).astype(np.float32) * np.array([[1], [100], [0], [1e-3], [1]], np.float32)
    x[4, 3] = 5000.0
    largest = np.nanmax(VALUES[dtype])

    def forward(x: TensorValue) -> tuple[TensorValue, TensorValue]:
        return kernels.quantize_dynamic_scaled_float8(
            x,
            inputs(COLWISE),
            weights(ROWWISE),
            group_size_or_per_token=group,
            out_type=getattr(DType, dtype),
            scales_type=getattr(DType, scale_dtype),
        )

    types = [TensorType(DType.float32, ["m", 48], CPU)]
    quantized, scales = run(session, forward, Buffer.from_numpy(x), types=types)
    size = 48 if group == -1 else group
    count = -(-48 // size)
    padded = np.zeros((5, count * size))
    padded[:, :48] = x
    bounds = np.minimum(np.abs(padded.reshape(5, count, size)).max(axis=-1), 1200.0)
    assert list(scales.shape) == [count, 5] and scales.dtype == getattr(DType, scale_dtype)
    found = values(scales).T
    rtol = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-10}[scale_dtype]
    np.testing.assert_allclose(found, bounds / largest, rtol=rtol, atol=1e-7)
    assert (found > 0).all(), "zeros have a scale too"
    restored = values(quantized) * np.repeat(found, size, axis=1)[:, :48]
    expected = np.clip(x, -1200.0 * (1 + rtol), 1200.0 * (1 + rtol))
    tolerance = np.repeat(found, size, axis=1)[:, :48] * 2.0**-9 + np.abs(expected) / 15.9
    assert (np.abs(restored - expected) <= tolerance + 1e-12).all()
    assert not values(quantized)[2].any()


@pytest.mark.parametrize("scale_dtype, multiple", [("float32", 4), ("bfloat16", 8)])
def test_scales_of_blocks_are_padded(session: InferenceSession, scale_dtype: str, multiple: int) -> None:
    x = np.random.default_rng(9).standard_normal((5, 256)).astype(np.float32)
    dtype = getattr(DType, scale_dtype)

    def forward(x: TensorValue) -> tuple[TensorValue, ...]:
        specs = inputs(BLOCK, (1, 128)), weights(BLOCK, (128, 128))
        return kernels.quantize_dynamic_scaled_float8(x, *specs, scales_type=dtype)

    for rows in (5, 8, 1):
        for dims in ([rows, 256], ["m", 256]):
            types = [TensorType(DType.float32, dims, CPU)]
            data = Buffer.from_numpy(np.resize(x, (rows, 256)))
            quantized, scales = run(session, forward, data, types=types)
            assert list(quantized.shape) == [rows, 256]
            assert list(scales.shape) == [2, -(-rows // multiple) * multiple]
            assert not values(scales)[:, rows:].any()


def test_quantized_tokens_are_multiplied(session: InferenceSession) -> None:
    """Quantization and product in one graph, as in a layer, with a symbolic number of tokens."""
    rng, dtype = np.random.default_rng(10), "float8_e4m3fn"
    x, b = rng.standard_normal((7, 256)).astype(np.float32), codes(rng, dtype, 96, 256)
    a_spec, b_spec = inputs(BLOCK, (1, 128)), weights(BLOCK, (32, 128))
    b_scales = rng.uniform(0.001, 0.002, (3, 2)).astype(np.float32)

    def blocks(x: TensorValue, b: TensorValue, b_scales: TensorValue) -> TensorValue:
        a, scales = kernels.quantize_dynamic_scaled_float8(x, a_spec, b_spec, scales_type=DType.float32)
        return kernels.dynamic_scaled_matmul(a, b, scales, b_scales, a_spec, b_spec)

    def rows(x: TensorValue, b: TensorValue, b_scales: TensorValue) -> TensorValue:
        specs = inputs(COLWISE), weights(TENSOR)
        a, scales = kernels.quantize_dynamic_scaled_float8(x, *specs, scales_type=DType.float32)
        return kernels.dynamic_scaled_matmul(a, b, scales, b_scales[:1, :1], *specs)

    buffers = [Buffer.from_numpy(x), float8(b, dtype), Buffer.from_numpy(b_scales)]
    types = [TensorType(DType.float32, ["m", 256], CPU), type_of(buffers[1]), type_of(buffers[2])]
    for forward, right in [
        (blocks, VALUES[dtype][b] * spread(b_scales, (96, 256), (32, 128))),
        (rows, VALUES[dtype][b] * b_scales[0, 0]),
    ]:
        (result,) = run(session, forward, *buffers, types=types)
        expected = x.astype(np.float64) @ right.T
        error = np.abs(to_array(result) - expected).max() / np.abs(expected).max()
        assert error < 0.05, error


def test_tensors() -> None:
    """The functions on eager tensors."""
    rng = np.random.default_rng(13)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 64), (8, 64)))
    specs = inputs(COLWISE), weights(ROWWISE)
    quantize = F.functional(kernels.quantize_dynamic_scaled_float8)
    (a, a_scales), (b, b_scales) = (quantize(Tensor(array), *specs, scales_type=DType.float32) for array in (x, y))
    multiply = F.functional(kernels.dynamic_scaled_matmul)
    result = multiply(a, b, a_scales, F.transpose(b_scales, 0, 1), *specs, out_type=DType.float32)
    assert result.real
    expected = x @ y.T
    assert np.abs(result.to_numpy() - expected).max() < 0.1 * np.abs(expected).max()


def test_absurd_sizes_are_one_block(session: InferenceSession) -> None:
    x = np.ones((3, 8), np.float32)

    def whole(x: TensorValue) -> tuple[TensorValue, TensorValue]:
        return kernels.quantize_dynamic_scaled_float8(
            x, inputs(COLWISE), weights(ROWWISE), group_size_or_per_token=2**62, scales_type=DType.float32
        )

    quantized, scales = run(session, whole, Buffer.from_numpy(x))
    assert list(scales.shape) == [1, 3] and (values(quantized) == 448).all()

    specs = inputs(BLOCK, (1, 2**62)), weights(BLOCK, (2**62, 2**62))
    a, one = codes(np.random.default_rng(0), "float8_e4m3fn", 3, 8), np.ones((1, 1), np.float32)

    def product(a: TensorValue, a_scales: TensorValue, b_scales: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(a, a, a_scales, b_scales, *specs, out_type=DType.float32)

    buffers = [float8(a, "float8_e4m3fn"), Buffer.from_numpy(one), Buffer.from_numpy(one)]
    (result,) = run(session, product, *buffers)
    assert_close(to_array(result), VALUES["float8_e4m3fn"][a] @ VALUES["float8_e4m3fn"][a].T, "float32")


def test_fnuz(session: InferenceSession) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    scale = np.full((16, 1), 0.25, np.float32)
    buffers = [float8(every, "float8_e4m3fn"), Buffer.from_numpy(scale)]
    weight, scales = run(session, kernels.normalize_e4m3fn_to_e4m3fnuz, *buffers)
    assert weight.dtype == DType.float8_e4m3fnuz
    np.testing.assert_array_equal(values(weight) * values(scales), VALUES["float8_e4m3fn"][every] * scale)
    assert kernels.needs_fp8_fnuz_conversion() is False
    with Graph("same", input_types=[type_of(buffer) for buffer in buffers]) as graph:
        pair = kernels.convert_weights_to_fp8_fnuz_if_needed(*graph.inputs)
        assert [value.dtype for value in pair] == [DType.float8_e4m3fn, DType.float32]


STARTS = np.array([0, 2, 2, 7, 9], np.uint32)
IDS = np.array([3, 0, 1, -1], np.int32)
STATS = np.array([5, 3], np.uint32)


def grouped(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    result = np.zeros((left.shape[0], right.shape[1]))
    for start, end, expert in zip(STARTS, STARTS[1:], IDS):
        if expert >= 0:
            result[start:end] = left[start:end] @ right[expert].T
    return result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_groups_of_rows(session: InferenceSession, dtype: str) -> None:
    rng = np.random.default_rng(11)
    left, right = rng.standard_normal((10, 24)), rng.standard_normal((4, 6, 24))
    buffers = [to_buffer(x.astype(np.float32), dtype) for x in (left, right)]
    buffers += [Buffer.from_numpy(x) for x in (STARTS, IDS, STATS)]
    types = [
        type_of(buffers[0], "tokens", 24),
        type_of(buffers[1]),
        type_of(buffers[2], "g1"),
        *map(type_of, buffers[3:]),
    ]
    (result,) = run(session, kernels.grouped_matmul_ragged, *buffers, types=types)
    assert_close(to_array(result), grouped(values(buffers[0]), values(buffers[1])), dtype)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block", "odd"])
def test_groups_of_scaled_rows(session: InferenceSession, granularity: str) -> None:
    rng, dtype = np.random.default_rng(12), "float8_e4m3fn"
    k = 50 if granularity == "odd" else 64
    a, b = codes(rng, dtype, 10, k), codes(rng, dtype, 4, 40, k)
    block = (16, 32)
    a_shape, b_shape, specs = {
        "tensor": ((1, 1), (4, 1, 1), (inputs(TENSOR), weights(TENSOR))),
        "channel": ((1, 10), (4, 40, 1), (inputs(COLWISE), weights(ROWWISE))),
        "block": ((2, 12), (4, 3, 2), (inputs(BLOCK, (1, 32)), weights(BLOCK, block))),
        "odd": ((2, 12), (4, 3, 2), (inputs(BLOCK, (1, 32)), weights(BLOCK, block))),
    }[granularity]
    a_scales, b_scales = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in (a_shape, b_shape))
    buffers = [float8(a, dtype), float8(b, dtype)]
    buffers += [Buffer.from_numpy(x) for x in (a_scales, b_scales, STARTS, IDS, STATS)]

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.grouped_dynamic_scaled_fp8_matmul(*operands, *specs)

    (result,) = run(session, forward, *buffers)
    left = VALUES[dtype][a] * spread(a_scales[:, :10].T, (10, k), (1, 32))
    step = (1, 1) if granularity == "channel" else block
    right = np.stack([VALUES[dtype][b[e]] * spread(b_scales[e], (40, k), step) for e in range(4)])
    assert_close(to_array(result), grouped(left, right), "bfloat16")


def refused(message: str, forward: Callable[..., Any], *types: TensorType, error: Any = ValueError) -> None:
    with pytest.raises(error, match=message), Graph("refused", input_types=list(types)) as graph:
        forward(*graph.inputs)


def test_errors() -> None:
    f8, f32 = DType.float8_e4m3fn, DType.float32

    def of(dtype: DType, *dims: Any) -> TensorType:
        return TensorType(dtype, list(dims), CPU)

    static, scale = kernels.matmul_static_scaled_float8, of(f32)
    a, b = of(f8, "m", 64), of(f8, 32, 64)
    refused("input_scale to be a scalar", static, a, b, of(f32, 2), scale)
    refused("weight_scale to be a scalar", static, a, b, scale, of(f32, 32, 1))
    refused("input rank to be 2, but got 3", static, of(f8, 2, "m", 64), b, scale, scale)
    refused("input dtype to be float8_e4m3fn", static, of(f32, "m", 64), b, scale, scale)
    refused("inner dims must match", static, a, of(f8, 32, 48), scale, scale)

    def dynamic(a_spec: Any, b_spec: Any) -> Callable[..., Any]:
        return lambda *operands: kernels.dynamic_scaled_matmul(*operands, a_spec, b_spec)

    rows, tokens, channels = (dynamic(inputs(COLWISE), weights(ROWWISE)), of(f32, 1, "m"), of(f32, 32, 1))
    refused("rank 2 tensors", rows, a, b, of(f32, "m"), channels)
    refused("only per-token scaling", rows, a, b, of(f32, "m", 1), channels)
    refused("only channel-wise scaling", rows, a, b, tokens, of(f32, 1, 32))
    refused("must have 1 or 32 along axis 0", rows, a, b, tokens, of(f32, 31, 1))
    refused("second dimension of b", rows, a, of(f8, 32, 48), tokens, channels)
    refused("must match, as do", rows, a, b, tokens, of(DType.bfloat16, 32, 1), error=TypeError)
    refused("granularity", dynamic(inputs(ROWWISE), weights(ROWWISE)), a, b, tokens, channels)
    refused("granularity", dynamic(inputs(COLWISE), weights(COLWISE)), a, b, tokens, channels)
    blocks = dynamic(inputs(BLOCK, (1, 32)), weights(BLOCK, (32, 32)))
    refused("must have 1 or 2 along axis 1", blocks, a, b, of(f32, 3, "m"), of(f32, 1, 2))
    refused("scales of 3 rows for 8 rows", blocks, of(f8, 8, 64), b, of(f32, 2, 3), of(f32, 1, 2))
    refused("do not fit", dynamic(inputs(BLOCK, (1, 16)), weights(BLOCK, (32, 32))), a, b, of(f32, 4, "m"), channels)

    def quantize(spec: Any = None, **options: Any) -> Callable[..., Any]:
        spec = spec or inputs(COLWISE)
        return lambda x: kernels.quantize_dynamic_scaled_float8(x, spec, weights(ROWWISE), **options)

    x = of(f32, "m", 64)
    refused("rank 2", quantize(), of(f32, 64))
    refused("out_type must be float8_e4m3fn", quantize(out_type=DType.bfloat16), x)
    refused("scales must be float32", quantize(scales_type=DType.int32), x)
    refused("at least one element", quantize(group_size_or_per_token=0), x)
    refused("at least one element", quantize(group_size_or_per_token=-(2**62)), x)
    refused("static size", quantize(group_size_or_per_token=16), of(f32, 4, "k"))
    refused("must be positive", quantize(scale_ub=0.0), x)
    refused("takes floats", quantize(), of(DType.int32, 4, 64), error=TypeError)
    refused("one token", quantize(inputs(BLOCK, (2, 32))), x)
    refused("float8 type", lambda x, s: kernels.quantize_static_scaled_float8(x, s, out_type=f32), x, scale)

    grouped, starts, ids, stats = (kernels.grouped_matmul_ragged, of(DType.uint32, 5), of(DType.int32, 4), of(f32, 2))
    refused("weight of rank 3", grouped, x, of(f32, 8, 64), starts, ids, stats)
    refused("hidden_states of rank 2", grouped, of(f32, 64), of(f32, 4, 8, 64), starts, ids, stats)
    refused(r"\[num_experts, \*, 64\]", grouped, x, of(f32, 4, 8, 32), starts, ids, stats)
    refused("one start more", grouped, x, of(f32, 4, 8, 64), of(DType.uint32, 4), ids, stats)


def test_groups_are_checked_when_they_run(session: InferenceSession) -> None:
    left, right = np.ones((4, 32), np.float32), np.ones((2, 3, 32), np.float32)
    types = [TensorType(DType.from_numpy(x.dtype), x.shape, CPU) for x in (left, right, STARTS[:2], IDS[:1], STATS)]
    model = session.load(build(kernels.grouped_matmul_ragged, types))
    for starts, ids in [([0, 5], [0]), ([3, 2], [0]), ([0, 4], [2])]:
        with pytest.raises((ValueError, IndexError, RuntimeError), match="group of rows"):
            model.execute(left, right, np.array(starts, np.uint32), np.array(ids, np.int32), STATS)


def test_specs() -> None:
    spec = inputs(BLOCK, (1, 128))
    assert spec.is_block and not (spec.is_tensor or spec.is_rowwise or spec.is_colwise)
    assert [granularity.value for granularity in Float8ScaleGranularity] == ["tensor", "rowwise", "colwise", "block"]
    for bad in (None, (1,), (0, 128)):
        with pytest.raises(ValueError, match="block"):
            weights(BLOCK, bad)
    config = Float8Config(spec, weights(BLOCK, (64, 128)), {0, 1}, {0})
    assert config.is_dynamic and not config.is_static
    assert config.scales_granularity_mnk == (1, 64, 128)
    assert Float8Config(inputs(COLWISE), weights(ROWWISE), set(), set()).scales_granularity_mnk == (1, 1, -1)
    assert Float8Config(inputs(TENSOR), weights(TENSOR), set(), set()).scales_granularity_mnk == (-1, -1, -1)
    with pytest.raises(ValueError, match="granularity"):
        Float8Config(inputs(ROWWISE), weights(ROWWISE), set(), set()).scales_granularity_mnk  # noqa: B018


def test_scales_may_be_elsewhere() -> None:
    """The scales of a layer are on the host, its operands on a GPU; only types are checked here."""
    gpu = DeviceRef.GPU()
    types = [TensorType(DType.float8_e4m3fn, [n, 64], gpu) for n in (4, 8)]
    types += [TensorType(DType.float32, [], CPU)] * 2
    with Graph("devices", input_types=types) as graph:
        assert kernels.matmul_static_scaled_float8(*graph.inputs).device == gpu
