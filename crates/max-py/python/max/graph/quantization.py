"""How the weights of quantized models are encoded.

>>> QuantizationEncoding.Q4_K.block_parameters
BlockParameters(elements_per_block=256, block_size=144)
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from max import _core

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BlockParameters",
    "QuantizationConfig",
    "QuantizationEncoding",
    "dequantize",
    "quantize",
]


class BlockParameters(NamedTuple):
    """The size of an encoding's blocks."""

    elements_per_block: int
    """The number of elements that are encoded together."""
    block_size: int
    """The number of bytes that they take."""


class QuantizationConfig(NamedTuple):
    """How a checkpoint was quantized."""

    quant_method: str
    """The name of the method, such as `"gptq"`."""
    bits: int
    """The number of bits per encoded element."""
    group_size: int
    """The number of elements that share a scale."""
    desc_act: bool = False
    """Whether columns were quantized in descending order of activation."""
    sym: bool = False
    """Whether the quantization is symmetric about zero."""


class QuantizationEncoding(Enum):
    """An encoding of quantized weights.

    >>> QuantizationEncoding.Q6_K.name, QuantizationEncoding.Q6_K.is_gguf
    ('q6_k', True)
    """

    Q4_0 = "Q4_0"
    """4 bits per element, in blocks of 32."""
    Q4_K = "Q4_K"
    """4 bits per element, in blocks of 256 with their own scales."""
    Q5_K = "Q5_K"
    """5 bits per element, in blocks of 256 with their own scales."""
    Q6_K = "Q6_K"
    """6 bits per element, in blocks of 256 with their own scales."""
    GPTQ = "GPTQ"
    """Groups whose size and number of bits are in a `QuantizationConfig`."""
    Q2_K = "Q2_K"
    """2 bits per element, in blocks of 256 with their own scales."""
    Q3_K = "Q3_K"
    """3 bits per element, in blocks of 256 with their own scales."""
    Q4_1 = "Q4_1"
    """4 bits per element above a minimum, in blocks of 32."""
    Q5_0 = "Q5_0"
    """5 bits per element, in blocks of 32."""
    Q5_1 = "Q5_1"
    """5 bits per element above a minimum, in blocks of 32."""
    Q8_0 = "Q8_0"
    """8 bits per element, in blocks of 32."""
    MXFP4 = "MXFP4"
    """Floats of 4 bits, in blocks of 32 that share an exponent."""

    _native: _core.QuantizationEncoding

    def __init__(self, value: str) -> None:
        self._native = _core.QuantizationEncoding(value.lower())

    @property
    def name(self) -> str:
        """The name in lower case."""
        return str(self.value).lower()

    @property
    def block_parameters(self) -> BlockParameters:
        """The size of its blocks.

        Raises:
            ValueError: If they have no fixed size.
        """
        return BlockParameters(*self._native.block_parameters())

    @property
    def elements_per_block(self) -> int:
        """The number of elements that are encoded together."""
        return self.block_parameters.elements_per_block

    @property
    def block_size(self) -> int:
        """The number of bytes of a block."""
        return self.block_parameters.block_size

    @property
    def is_gguf(self) -> bool:
        """Whether GGUF files use it."""
        return self._native.is_gguf


def quantize(encoding: QuantizationEncoding, array: Any) -> np.ndarray:
    """Encodes the elements along the last axis of an array as blocks.

    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4 give the bytes that the `gguf` package gives. The scales of the others are
    searched for, so that the square error of a block is small. A block with an element that is NaN or infinite decodes to
    NaN.

    >>> import numpy as np
    >>> blocks = quantize(QuantizationEncoding.Q8_0, np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32))
    >>> blocks.shape, blocks.dtype
    ((2, 34), dtype('uint8'))

    Args:
        encoding: The encoding; any but GPTQ.
        array: What NumPy takes as an array of numbers; the size of its last axis is a multiple of
            `encoding.elements_per_block`.

    Returns:
        A uint8 array, whose last axis has `encoding.block_size` bytes for each block.
    """
    import numpy as np

    return encoding._native.quantize(np.asarray(array, dtype=np.float32))


def dequantize(encoding: QuantizationEncoding, array: Any) -> np.ndarray:
    """Decodes the blocks along the last axis of an array. In a graph, `ops.dequantize` does so.

    >>> import numpy as np
    >>> values = np.arange(32, dtype=np.float32)
    >>> dequantize(QuantizationEncoding.Q5_1, quantize(QuantizationEncoding.Q5_1, values))[:4].tolist()
    [0.0, 1.0, 2.0, 3.0]

    Args:
        encoding: The encoding; any but GPTQ.
        array: A uint8 array; the size of its last axis is a multiple of `encoding.block_size`.

    Returns:
        A float32 array, whose last axis has `encoding.elements_per_block` elements for each block.
    """
    import numpy as np

    return encoding._native.dequantize(np.asarray(array))
