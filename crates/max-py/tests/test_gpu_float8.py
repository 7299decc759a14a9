"""Float8 on a GPU, through graphs: products with scales and quantization, against NumPy."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, TensorType, TensorValue, ops
from max.nn import kernels

from helpers import accelerator, assert_close, build, to_array
from scaled import BLOCK, COLWISE, ROWWISE, TENSOR, VALUES, codes, float8, inputs, spread, values, weights

DEVICE = accelerator()
GPU = DeviceRef.GPU()
CODES = "float8_e4m3fn"


def run(forward: Callable[..., Any], *buffers: Buffer) -> list[Buffer]:
    types = [TensorType(buffer.dtype, list(buffer.shape), GPU) for buffer in buffers]
    model = InferenceSession(devices=[DEVICE]).load(build(forward, types))
    return model.execute(*(buffer.to(DEVICE) for buffer in buffers))


def host(buffer: Buffer) -> Buffer:
    return buffer.to(CPU())


# Whole tiles, a single row, and sizes that the library's float8 instructions do not take.
SIZES = [(64, 128, 256), (1, 64, 128), (33, 48, 64), (5, 40, 50), (128, 100, 96), (3, 16, 16)]


@pytest.mark.parametrize("m, n, k", SIZES)
def test_scales_of_tensors(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(1)
    a, b = codes(rng, CODES, m, k), codes(rng, CODES, n, k)
    scales = [np.array(scale, np.float32) for scale in (0.01, 0.5)]
    (result,) = run(
        kernels.matmul_static_scaled_float8, float8(a, CODES), float8(b, CODES), *map(Buffer.from_numpy, scales)
    )
    assert result.dtype == DType.bfloat16
    assert_close(to_array(host(result)), VALUES[CODES][a] @ VALUES[CODES][b].T * 0.005, "bfloat16")


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k", SIZES)
def test_scales_of_rows(m: int, n: int, k: int, out: str) -> None:
    rng = np.random.default_rng(2)
    a, b = codes(rng, CODES, m, k), codes(rng, CODES, n, k)
    # Small scales, so that float16 holds the results.
    a_scales, b_scales = (rng.uniform(0.01, 0.02, shape).astype(np.float32) for shape in ((1, m), (n, 1)))

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, inputs(COLWISE), weights(ROWWISE), getattr(DType, out))

    buffers = [float8(a, CODES), float8(b, CODES), Buffer.from_numpy(a_scales), Buffer.from_numpy(b_scales)]
    (result,) = run(forward, *buffers)
    expected = (VALUES[CODES][a] * a_scales.T) @ (VALUES[CODES][b] * b_scales).T
    assert_close(to_array(host(result)), expected, out, rtol=1e-3)


def test_one_scale_of_rows_and_one_of_a_tensor() -> None:
    rng = np.random.default_rng(3)
    a, b = codes(rng, CODES, 32, 64), codes(rng, CODES, 48, 64)
    a_scales, b_scale = (rng.uniform(0.5, 1, (1, 32)).astype(np.float32), np.array([[0.25]], np.float32))

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, inputs(COLWISE), weights(TENSOR))

    buffers = [float8(a, CODES), float8(b, CODES), Buffer.from_numpy(a_scales), Buffer.from_numpy(b_scale)]
    (result,) = run(forward, *buffers)
    assert_close(to_array(host(result)), (VALUES[CODES][a] * a_scales.T) @ VALUES[CODES][b].T * 0.25, "bfloat16")


@pytest.mark.parametrize("m, n, k, block", [(64, 256, 256, (128, 128)), (1, 70, 96, (32, 32)), (5, 10, 50, (4, 16))])
def test_scales_of_blocks(m: int, n: int, k: int, block: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    a, b = codes(rng, CODES, m, k), codes(rng, CODES, n, k)
    down, along = -(-n // block[0]), -(-k // block[1])
    a_scales = rng.uniform(0.5, 2, (along, m)).astype(np.float32)
    b_scales = rng.uniform(0.5, 2, (down, along)).astype(np.float32)

    def forward(*operands: TensorValue) -> TensorValue:
        return kernels.dynamic_scaled_matmul(*operands, inputs(BLOCK, (1, block[1])), weights(BLOCK, block))

    buffers = [float8(a, CODES), float8(b, CODES), Buffer.from_numpy(a_scales), Buffer.from_numpy(b_scales)]
    (result,) = run(forward, *buffers)
    left = VALUES[CODES][a] * spread(a_scales.T, (m, k), (1, block[1]))
    right = VALUES[CODES][b] * spread(b_scales, (n, k), block)
    assert_close(to_array(host(result)), left @ right.T, "bfloat16")


def test_quantized_on_the_device() -> None:
    """The same codes and scales as on the host, and a product of them in the same graph."""
    rng = np.random.default_rng(5)
    x, b = rng.standard_normal((40, 256)).astype(np.float32), codes(rng, CODES, 64, 256)

    def forward(x: TensorValue, b: TensorValue) -> tuple[TensorValue, ...]:
        specs = inputs(COLWISE), weights(TENSOR)
        a, scales = kernels.quantize_dynamic_scaled_float8(x, *specs, scales_type=DType.float32)
        one = ops.constant(np.ones((1, 1), np.float32), DType.float32, x.device)
        return (a, scales, kernels.dynamic_scaled_matmul(a, b, scales, one, *specs, out_type=DType.float32))

    a, scales, product = map(host, run(forward, Buffer.from_numpy(x), float8(b, CODES)))
    np.testing.assert_allclose(values(scales)[0], np.abs(x).max(axis=1) / 448.0, rtol=1e-6)
    restored = values(a) * values(scales).T
    assert (np.abs(restored - x) <= np.abs(x) / 15.9 + values(scales).T * 2.0**-9).all()
    assert_close(to_array(product), restored @ VALUES[CODES][b].T, "float32", rtol=1e-3)
