"""Transformers and their blocks, on one device and on several."""

from max.nn.transformer.distributed_transformer import DistributedTransformer, DistributedTransformerBlock
from max.nn.transformer.transformer import ReturnLogits, Transformer, TransformerBlock

__all__ = ["DistributedTransformer", "DistributedTransformerBlock", "ReturnLogits", "Transformer", "TransformerBlock"]
