"""Normalization layers: they remove the scale, and some also the mean, of their input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.experimental import functional as F
from max.experimental._regions import call
from max.experimental.nn.module import Module
from max.experimental.tensor import Tensor

if TYPE_CHECKING:
    from max.graph.dim import Dim, DimLike

__all__ = ["GroupNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(Module[[Tensor], Tensor]):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` along the last axis.

    The result has the dtype of the input.

    >>> LayerNorm(3)
    LayerNorm(dim=3)

    Args:
        dim: The size of the last axis.
        eps: A small positive number that prevents division by zero.
        keep_dtype: Whether to convert the parameters to the dtype of the input if it differs. If not, everything is
            computed in float32.
        elementwise_affine: Whether there is a weight and a bias.
        use_bias: Whether there is a bias, if there is a weight.
    """

    weight: Tensor | None
    """The scale, `[dim]`, or None."""
    bias: Tensor | None
    """The shift, `[dim]`, or None."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        *,
        keep_dtype: bool = True,
        elementwise_affine: bool = True,
        use_bias: bool = True,
    ) -> None:
        self.weight = Tensor.ones([dim]) if elementwise_affine else None
        self.bias = Tensor.zeros([dim]) if elementwise_affine and use_bias else None
        self.dim = dim
        self.eps = eps
        self.keep_dtype = keep_dtype

    def __rich_repr__(self) -> Iterator[Any]:
        yield "dim", self.dim
        yield "eps", self.eps, 1e-5
        yield "keep_dtype", self.keep_dtype, True
        yield "elementwise_affine", self.weight is not None, True
        yield "use_bias", self.bias is not None, self.weight is not None

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        input = x if self.keep_dtype else x.cast(DType.float32)
        _check_size(x, -1, self.dim)
        y: Tensor = call("affine_layer_norm", input, self.weight, self.bias, self.eps)
        return y.cast(x.dtype)


class RMSNorm(Module[[Tensor], Tensor]):
    """`x / sqrt(mean(x * x) + eps) * weight` along the last axis.

    >>> RMSNorm(3)(Tensor.full([3], 5.0)).to_numpy()
    array([1., 1., 1.], dtype=float32)

    Args:
        dim: The size of the last axis.
        eps: A small number that prevents division by zero.
    """

    weight: Tensor
    """The scale, `[dim]`."""

    def __init__(self, dim: DimLike, eps: float = 1e-6) -> None:
        self.weight = Tensor.ones([dim])
        self.eps = eps

    @property
    def dim(self) -> Dim:
        """The size of the last axis."""
        return self.weight.shape[0]

    def __rich_repr__(self) -> Iterator[Any]:
        yield "dim", self.dim
        yield "eps", self.eps, 1e-6

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        return F.rms_norm(x, self.weight, self.eps)


class GroupNorm(Module[[Tensor], Tensor]):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` for groups of channels, which are axis 1 of the input.

    Mean and variance are taken over all elements of a group, including any axes after the channels.

    >>> GroupNorm(2, 4)
    GroupNorm(num_groups=2, num_channels=4)

    Args:
        num_groups: The number of groups, which must divide the number of channels.
        num_channels: The number of channels.
        eps: A small positive number that prevents division by zero.
        affine: Whether there is a weight and a bias per channel.
    """

    weight: Tensor | None
    """The scale, `[num_channels]`, or None."""
    bias: Tensor | None
    """The shift, `[num_channels]`, or None."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm cannot divide {num_channels} channels into {num_groups} equal groups")
        self.weight = Tensor.ones([num_channels]) if affine else None
        self.bias = Tensor.zeros([num_channels]) if affine else None
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps

    def __rich_repr__(self) -> Iterator[Any]:
        yield "num_groups", self.num_groups
        yield "num_channels", self.num_channels
        yield "eps", self.eps, 1e-5
        yield "affine", self.weight is not None, True

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        _check_size(x, 1, self.num_channels)
        y: Tensor = call("affine_group_norm", x, self.num_groups, self.weight, self.bias, self.eps)
        return y


def _check_size(x: Tensor, axis: int, size: int) -> None:
    """Checks the size of an axis, if there is one: a layer without weights must not take another either."""
    if x.rank > axis and x.rank and x.shape[axis] != size:
        raise ValueError(f"expected the size {size} along axis {axis}; got the shape {x.shape}")
