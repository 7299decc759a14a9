"""What attention over several devices needs."""

from max.nn.transformer.distributed_transformer import distribute_value

__all__ = ["distribute_value"]
