"""How the weights of quantized models are encoded.

>>> QuantizationEncoding.Q4_K.block_parameters
BlockParameters(elements_per_block=256, block_size=144)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from max import _core

__all__ = ["BlockParameters", "QuantizationConfig", "QuantizationEncoding"]


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
