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
    """How many elements are encoded together."""
    block_size: int
    """How many bytes they take."""


class QuantizationConfig(NamedTuple):
    """What a checkpoint says about how it was quantized."""

    quant_method: str
    """The name of the method, such as `"gptq"`."""
    bits: int
    """The bits of an encoded element."""
    group_size: int
    """How many elements share a scale."""
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
    """4 bits an element, in blocks of 32."""
    Q4_K = "Q4_K"
    """4 bits an element, in blocks of 256 with scales of their own."""
    Q5_K = "Q5_K"
    """5 bits an element, in blocks of 256 with scales of their own."""
    Q6_K = "Q6_K"
    """6 bits an element, in blocks of 256 with scales of their own."""
    GPTQ = "GPTQ"
    """Groups whose size and bits are in a `QuantizationConfig`."""

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
        """How many elements are encoded together."""
        return self.block_parameters.elements_per_block

    @property
    def block_size(self) -> int:
        """The bytes of a block."""
        return self.block_parameters.block_size

    @property
    def is_gguf(self) -> bool:
        """Whether GGUF files use it."""
        return self._native.is_gguf
