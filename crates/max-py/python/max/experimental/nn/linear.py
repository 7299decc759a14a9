"""Fully connected layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from max.experimental import functional as F
from max.experimental import random
from max.experimental._regions import call
from max.experimental.nn.module import Module
from max.experimental.tensor import Tensor

if TYPE_CHECKING:
    from max.graph.dim import Dim, DimLike

__all__ = ["Linear"]


class Linear(Module[[Tensor], Tensor]):
    """`x @ weight.T + bias`, along the last axis.

    >>> Linear(2, 3)
    Linear(in_dim=Dim(2), out_dim=Dim(3))
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

    def __init__(self, in_dim: DimLike, out_dim: DimLike, *, bias: bool = True, quant_config: Any = None) -> None:
        if quant_config is not None:
            raise NotImplementedError("Linear layers with quantized weights (quant_config) are not supported yet")
        self.weight = random.gaussian([out_dim, in_dim], std=max(int(in_dim), 1) ** -0.5)
        self.bias = Tensor.zeros([out_dim]) if bias else 0

    @property
    def in_dim(self) -> Dim:
        """The size of the last axis of the input."""
        return self.weight.shape[1]

    @property
    def out_dim(self) -> Dim:
        """The size of the last axis of the result."""
        return self.weight.shape[0]

    def __rich_repr__(self) -> Iterator[Any]:
        yield "in_dim", self.in_dim
        yield "out_dim", self.out_dim
        yield "bias", isinstance(self.bias, Tensor), True

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The matmul, plus the bias."""
        bias = self.bias
        return call("linear", x, self.weight, bias if isinstance(bias, Tensor) else None)  # type: ignore[no-any-return]
