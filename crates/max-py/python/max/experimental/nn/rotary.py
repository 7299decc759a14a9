"""Rotary position embeddings."""

from __future__ import annotations

from max.experimental import functional as F
from max.experimental.nn.module import Module, module_dataclass
from max.experimental.tensor import Tensor
from max.graph.value import call

__all__ = ["RotaryEmbedding"]


@module_dataclass
class RotaryEmbedding(Module):
    """Rotates neighbouring pairs along the last axis by angles that depend on the position in the sequence.

    >>> import numpy as np
    >>> angles = np.outer(np.arange(10), [1, 0.1]).astype(np.float32)
    >>> rope = RotaryEmbedding(Tensor(np.stack([np.cos(angles), np.sin(angles)], axis=-1)))
    >>> rope.max_sequence_length, rope.dim
    (10, 4)
    >>> rope(Tensor.ones([1, 3, 2, 4]), start_pos=7).shape
    [Dim(1), Dim(3), Dim(2), Dim(4)]

    Args:
        weight: The cosines and sines of the angles, `[max_sequence_length, dim // 2, 2]`.
    """

    weight: Tensor

    @property
    def dim(self) -> int:
        """The size of the last axis of the input."""
        return int(self.weight.shape[1]) * 2

    @property
    def max_sequence_length(self) -> int:
        """The number of positions that have angles."""
        return int(self.weight.shape[0])

    @F.functional
    def forward(self, x: Tensor, start_pos: int | Tensor = 0) -> Tensor:
        """The rotated input.

        Args:
            x: `[batch, sequence, heads, dim]`.
            start_pos: The position at which the sequence starts; a tensor must be a scalar.
        """
        if x.rank != 4 or x.shape[3] != self.dim:
            raise ValueError(f"RotaryEmbedding rotates [batch, sequence, heads, {self.dim}]; got {x.shape}")
        return call("rope", x, self.weight, start_pos)
