"""Embedding tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from max.experimental import functional as F
from max.experimental import random
from max.experimental.nn.module import Module
from max.experimental.tensor import Tensor

if TYPE_CHECKING:
    from max.graph.dim import Dim, DimLike

__all__ = ["Embedding"]


class Embedding(Module[[Tensor], Tensor]):
    """A table with a vector, or a larger tensor, for each token.

    >>> from max.dtype import DType
    >>> tokens = Tensor.zeros([2, 7], dtype=DType.int64)
    >>> Embedding(100, dim=8)(tokens).shape
    [Dim(2), Dim(7), Dim(8)]

    Args:
        vocab_size: The number of tokens.
        dim: The size of each vector.
        dims: Instead of `dim`: the shape of the tensor of each token.
    """

    weight: Tensor
    """The table, `[vocab_size, *dims]`."""

    def __init__(
        self, vocab_size: DimLike, *, dim: DimLike | None = None, dims: Sequence[DimLike] | None = None
    ) -> None:
        if (dim is None) == (dims is None):
            raise TypeError(f"Embedding takes either dim or dims; got dim={dim} and dims={dims}")
        self.weight = random.gaussian([vocab_size, *(dims if dims is not None else [dim])])

    @property
    def vocab_size(self) -> Dim:
        """The number of tokens."""
        return self.weight.shape[0]

    @property
    def dim(self) -> Dim:
        """The size of each vector; raises ValueError if the table has larger tensors."""
        if len(self.dims) != 1:
            raise ValueError(f"an Embedding of tensors of shape {self.dims} has no dim")
        return self.dims[0]

    @property
    def dims(self) -> list[Dim]:
        """The shape of the tensor of each token."""
        return list(self.weight.shape[1:])

    def __rich_repr__(self) -> Iterator[Any]:
        yield "vocab_size", self.vocab_size
        yield ("dim", self.dim) if len(self.dims) == 1 else ("dims", self.dims)

    @F.functional
    def forward(self, indices: Tensor) -> Tensor:
        """The vectors of the tokens, each in place of its index."""
        return F.gather(self.weight, indices, axis=0)
