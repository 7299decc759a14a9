"""Scaled float8 tensors in NumPy: their values, random ones, and the specs of their scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.nn.float8_config import (
    Float8InputScaleSpec,
    Float8ScaleGranularity,
    Float8ScaleOrigin,
    Float8WeightScaleSpec,
)

from helpers import to_array

TENSOR, ROWWISE, COLWISE, BLOCK = Float8ScaleGranularity


def decoded(mantissa: int, bias: int, nans: tuple[int, ...], infinity: int = -1) -> np.ndarray:
    """The values of all codes of a float8 type."""
    values = np.zeros(256)
    for code in range(256):
        exponent, fraction = ((code & 0x7F) >> mantissa, (code & ((1 << mantissa) - 1)) / (1 << mantissa))
        magnitude = fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
        if code & 0x7F == infinity:
            magnitude = np.inf
        values[code] = np.nan if code in nans else (-magnitude if code & 0x80 else magnitude)
    return values


VALUES = {
    "float8_e4m3fn": decoded(3, 7, (0x7F, 0xFF)),
    "float8_e4m3fnuz": decoded(3, 8, (0x80,)),
    "float8_e5m2": decoded(2, 15, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), 0x7C),
    "float8_e5m2fnuz": decoded(2, 16, (0x80,)),
}


def codes(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Random codes of finite numbers."""
    finite = np.flatnonzero(np.isfinite(VALUES[dtype])).astype(np.uint8)
    return rng.choice(finite, size=shape)


def float8(array: np.ndarray, dtype: str) -> Buffer:
    return Buffer.from_numpy(np.ascontiguousarray(array)).view(getattr(DType, dtype), list(array.shape))


def values(buffer: Buffer) -> np.ndarray:
    """The values of a buffer in float64, whatever it is."""
    if buffer.dtype.name in VALUES:
        return VALUES[buffer.dtype.name][buffer.view(DType.uint8, list(buffer.shape)).to_numpy()]
    return to_array(buffer).astype(np.float64)


def inputs(granularity: Any, block: Any = None, dtype: DType = DType.float32) -> Float8InputScaleSpec:
    return Float8InputScaleSpec(granularity, Float8ScaleOrigin.DYNAMIC, dtype, block_size=block)


def weights(granularity: Any, block: Any = None, dtype: DType = DType.float32) -> Float8WeightScaleSpec:
    return Float8WeightScaleSpec(granularity, dtype, block)


def spread(scales: np.ndarray, shape: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    """Scales of blocks as a matrix of the scaled one's shape; an axis of size 1 is repeated."""
    for axis in range(2):
        if scales.shape[axis] > 1:
            scales = np.repeat(scales, block[axis], axis=axis).take(range(shape[axis]), axis=axis)
    return np.broadcast_to(scales, shape)
