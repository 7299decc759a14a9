"""Quantization encodings: plain facts about the block formats."""

import pytest
from max.graph.quantization import BlockParameters, QuantizationConfig, QuantizationEncoding

# encoding: (elements in a block, bytes of an encoded block)
BLOCKS = {"Q4_0": (32, 18), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    encoding = getattr(QuantizationEncoding, name)
    elements, size = BLOCKS[name]
    assert encoding.elements_per_block == elements
    assert encoding.block_size == size
    assert encoding.block_parameters == BlockParameters(elements_per_block=elements, block_size=size)
    assert encoding.is_gguf
    assert encoding.name == name.lower()


def test_gptq_is_not_a_gguf_encoding() -> None:
    assert not QuantizationEncoding.GPTQ.is_gguf
    assert QuantizationEncoding.GPTQ.name == "gptq"


def test_config_defaults() -> None:
    config = QuantizationConfig(quant_method="gptq", bits=4, group_size=128)
    assert (config.quant_method, config.bits, config.group_size) == ("gptq", 4, 128)
    assert (config.desc_act, config.sym) == (False, False)
