"""Fully connected layers."""

from __future__ import annotations

from typing import Any, Literal

from max.experimental import functional as F
from max.experimental import random
from max.experimental.nn.module import Module
from max.experimental.tensor import Tensor

__all__ = ["Linear"]


class Linear(Module):
    """`x @ weight.T + bias`, along the last axis.

    >>> Linear(2, 3)
    Linear(weight=float32[3, 2], bias=float32[3])
    >>> Linear(2, 3)(Tensor.ones([5, 2])).shape
    [Dim(5), Dim(3)]

    Args:
        in_dim: The size of the last axis of the input.
        out_dim: The size of the last axis of the result.
        bias: Whether there is a bias.
        quant_config: How the weight is quantized; must be None.
    """

    weight: Tensor
    """The matrix, `[out_dim, in_dim]`."""
    bias: Tensor | Literal[0]
    """The bias, `[out_dim]`; 0 if there is none."""

    def __init__(self, in_dim: int, out_dim: int, *, bias: bool = True, quant_config: Any = None) -> None:
        if quant_config is not None:
            raise NotImplementedError("Linear layers with quantized weights (quant_config) are not supported yet")
        self.weight = random.gaussian([out_dim, in_dim], std=max(in_dim, 1) ** -0.5)
        self.bias = Tensor.zeros([out_dim]) if bias else 0

    @property
    def in_dim(self) -> int:
        """The size of the last axis of the input."""
        return int(self.weight.shape[1])

    @property
    def out_dim(self) -> int:
        """The size of the last axis of the result."""
        return int(self.weight.shape[0])

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The matmul, plus the bias."""
        product, bias = x @ self.weight.T, self.bias
        return product + bias if isinstance(bias, Tensor) else product
