"""Attention, and what it sees."""

from max.nn.attention.mask_config import MHAMaskVariant

__all__ = ["MHAMaskVariant"]
