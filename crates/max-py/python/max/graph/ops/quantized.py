"""Ops on quantized weights."""

from __future__ import annotations

from typing import Optional

from max.graph.quantization import QuantizationConfig, QuantizationEncoding
from max.graph.value import TensorValue, TensorValueLike, call


def dequantize(encoding: QuantizationEncoding, quantized: TensorValueLike) -> TensorValue:
    """Decodes blocks of quantized elements, whose bytes are along the last axis, to float32.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> from max.graph.quantization import QuantizationEncoding
    >>> with Graph("rows", input_types=[TensorType(DType.uint8, ["n", 288])]) as graph:
    ...     ops.dequantize(QuantizationEncoding.Q4_K, graph.inputs[0].tensor).shape
    [Dim('n'), Dim(512)]

    Args:
        encoding: How the blocks are encoded; any encoding but GPTQ.
        quantized: A uint8 tensor. The size of its last axis is a multiple of `encoding.block_size`; one that is not known is
            checked when the graph runs.

    Returns:
        A float32 tensor, whose last axis has `encoding.elements_per_block` elements for each block.
    """
    return call("dequantize", encoding, quantized)


def qmatmul(
    encoding: QuantizationEncoding,
    config: Optional[QuantizationConfig],
    lhs: TensorValueLike,
    *rhs: TensorValueLike,
) -> TensorValue:
    """Multiplies a float tensor by the transposed of a quantized matrix: `lhs @ dequantize(rhs).T`.

    The rows of `lhs` are quantized too, to signed bytes with a scale for each 32 elements, and the products are sums of
    integers.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> from max.graph.quantization import QuantizationEncoding
    >>> types = [TensorType(DType.float32, ["n", 4096]), TensorType(DType.uint8, [14336, 2304])]
    >>> with Graph("projection", input_types=types) as graph:
    ...     x, weight = (value.tensor for value in graph.inputs)
    ...     ops.qmatmul(QuantizationEncoding.Q4_0, None, x, weight).shape
    [Dim('n'), Dim(14336)]

    Args:
        encoding: How the matrix is encoded.
        config: The number of bits and the group size of GPTQ; other encodings need none.
        lhs: A tensor of float32, float16 or bfloat16 with the depth as its last axis.
        rhs: The matrix as uint8. For the encodings of GGUF files it has a row of blocks for each column of the result. For GPTQ
            it has a column for each: the bytes of its codes (the first element in the lowest bits), then those of a float16
            scale per group. A second tensor has the exponents of an MXFP4 matrix whose rows are only codes, or the order of
            the columns of a GPTQ matrix: column `i` of the matrix belongs to column `order[i]` of `lhs`.

    Returns:
        A tensor of the dtype of `lhs`, with a column for each row of the matrix.
    """
    return call("qmatmul", encoding, None if config is None else list(config), lhs, list(rhs))
