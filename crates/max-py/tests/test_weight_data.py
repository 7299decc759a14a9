"""The data of weights, with its dtype and encoding."""

from __future__ import annotations

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import Graph
from max.graph.quantization import QuantizationEncoding, dequantize, quantize
from max.graph.weights import WeightData


def test_attributes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = WeightData.from_numpy(array, "layer.weight")
    assert (data.name, data.dtype, data.shape) == ("layer.weight", DType.float32, [2, 3])
    assert data.data is array
    assert data.quantization_encoding is None
    np.testing.assert_array_equal(np.from_dlpack(data), array)
    assert repr(data) == "WeightData(DType.float32, [Dim(2), Dim(3)])"


def test_astype() -> None:
    array = np.array([[0.5, -2, 1e5]], dtype=np.float32)
    data = WeightData.from_numpy(array, "w")
    assert data.astype(DType.float32) is data
    np.testing.assert_array_equal(data.astype(DType.float64).data, array.astype(np.float64))
    np.testing.assert_array_equal(data.astype(DType.int32).data, array.astype(np.int32))
    half = data.astype(DType.bfloat16)
    assert (half.dtype, half.name, half.shape) == (DType.bfloat16, "w", [1, 3])
    assert isinstance(half.data, Buffer)
    np.testing.assert_allclose(half.astype(DType.float32).data, array, rtol=2**-8)
    with Graph("g"):
        np.testing.assert_allclose(half.astype(DType.float32).data, array, rtol=2**-8)


def test_bits_of_another_dtype() -> None:
    data = WeightData(np.array([0x3F80, 0xC000], dtype=np.uint16), "w", DType.bfloat16, [2])
    np.testing.assert_array_equal(data.astype(DType.float32).data, [1, -2])


def test_encoded_elements_are_decoded() -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    blocks = quantize(QuantizationEncoding.Q8_0, values)
    data = WeightData(blocks, "w", DType.uint8, [2, 34], QuantizationEncoding.Q8_0)
    assert data.astype(DType.uint8) is data
    decoded = data.astype(DType.float32)
    assert (decoded.dtype, decoded.shape, decoded.quantization_encoding) == (DType.float32, [2, 32], None)
    np.testing.assert_array_equal(decoded.data, dequantize(QuantizationEncoding.Q8_0, blocks))
    half = data.astype(DType.bfloat16)
    assert (half.name, half.dtype, half.shape) == ("w", DType.bfloat16, [2, 32])
    gptq = WeightData(blocks, "w", DType.uint8, [2, 34], QuantizationEncoding.GPTQ)
    with pytest.raises(ValueError, match="gptq"):
        gptq.astype(DType.float32)
