"""Quantization encodings: plain facts about the block formats."""

import pytest
from max.graph.quantization import (
    BlockParameters,
    QuantizationConfig,
    QuantizationEncoding,
)

# encoding: (elements in a block, bytes of an encoded block)
BLOCKS = {
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_0": (32, 34),
    "MXFP4": (32, 17),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    encoding = getattr(QuantizationEncoding, name)
    elements, size = BLOCKS[name]
    assert encoding.elements_per_block == elements
    assert encoding.block_size == size
    assert encoding.block_parameters == BlockParameters(elements_per_block=elements, block_size=size)
    assert encoding.is_gguf
    assert encoding.name == name.lower()
    assert QuantizationEncoding(name) is encoding


def test_the_documented_encodings_come_first() -> None:
    documented = ["Q4_0", "Q4_K", "Q5_K", "Q6_K", "GPTQ"]
    assert [encoding.value for encoding in QuantizationEncoding][:5] == documented
    assert {encoding.value for encoding in QuantizationEncoding} == {*BLOCKS, "GPTQ"}


def test_gptq_has_no_blocks() -> None:
    assert not QuantizationEncoding.GPTQ.is_gguf
    assert QuantizationEncoding.GPTQ.name == "gptq"
    for fact in ("block_parameters", "elements_per_block", "block_size"):
        with pytest.raises(ValueError, match="gptq has no fixed block parameters"):
            getattr(QuantizationEncoding.GPTQ, fact)


def test_there_are_no_other_encodings() -> None:
    with pytest.raises(ValueError, match="Q9_9"):
        QuantizationEncoding("Q9_9")


def test_config_defaults() -> None:
    config = QuantizationConfig(quant_method="gptq", bits=4, group_size=128)
    assert (config.quant_method, config.bits, config.group_size) == ("gptq", 4, 128)
    assert (config.desc_act, config.sym) == (False, False)
