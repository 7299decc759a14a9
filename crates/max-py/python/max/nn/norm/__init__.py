"""Normalization layers: they remove the scale, and some also the mean, of their input."""

from max.nn.norm.group_norm import GroupNorm
from max.nn.norm.layer_norm import LayerNorm, LayerNormV1
from max.nn.norm.rms_norm import RMSNorm, RMSNormV1

__all__ = ["GroupNorm", "LayerNorm", "LayerNormV1", "RMSNorm", "RMSNormV1"]
