"""Blocks of transformers, on one device and on several."""

from max.nn.transformer.distributed_transformer import DistributedTransformerBlock
from max.nn.transformer.transformer import ReturnLogits, TransformerBlock

__all__ = ["DistributedTransformerBlock", "ReturnLogits", "TransformerBlock"]
