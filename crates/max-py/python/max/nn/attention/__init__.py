"""Attention layers with a cache, and what they see."""

from max.nn.attention.attention_with_rope import (
    AttentionWithRope,
    AttentionWithRopeNoOpaque,
    AttentionWithRopeQKV,
    AttentionWithRopeV1,
    DistributedAttentionWithRope,
    GGUFQAttentionWithRope,
    GPTQAttentionWithRope,
)
from max.nn.attention.interfaces import AttentionImpl, AttentionImplQKV, DistributedAttentionImpl
from max.nn.attention.mask_config import MHAMaskVariant
from max.nn.attention.ragged_attention import RaggedAttention

__all__ = [
    "AttentionImpl",
    "AttentionImplQKV",
    "AttentionWithRope",
    "AttentionWithRopeNoOpaque",
    "AttentionWithRopeQKV",
    "AttentionWithRopeV1",
    "DistributedAttentionImpl",
    "DistributedAttentionWithRope",
    "GGUFQAttentionWithRope",
    "GPTQAttentionWithRope",
    "MHAMaskVariant",
    "RaggedAttention",
]
