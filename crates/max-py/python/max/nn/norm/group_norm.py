"""Group normalization."""

from __future__ import annotations

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight
from max.graph.value import call
from max.nn.layer import Module

__all__ = ["GroupNorm"]


class GroupNorm(Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` for groups of channels, which are axis 1 of the input.

    Mean and variance are taken over all elements of a group, including any axes after the channels.

    Args:
        num_groups: The number of groups, which must divide the number of channels.
        num_channels: The number of channels.
        eps: A small positive number that prevents division by zero.
        affine: Whether there is a weight and a bias per channel, in float32.
        device: Where the layer runs.
    """

    weight: Weight | None = None
    """The scale, `[num_channels]`, if there is one."""
    bias: Weight | None = None
    """The shift, `[num_channels]`, if there is one."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: DeviceRef = DeviceRef.GPU(),
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm cannot divide {num_channels} channels into {num_groups} equal groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.device = device
        if affine:
            self.weight = Weight("weight", DType.float32, [num_channels], DeviceRef.CPU())
            self.bias = Weight("bias", DType.float32, [num_channels], DeviceRef.CPU())

    def __call__(self, x: TensorValue) -> TensorValue:
        """The normalized input, in its dtype."""
        if x.rank > 1 and x.shape[1] != self.num_channels:
            raise ValueError(f"GroupNorm expected {self.num_channels} channels along axis 1; got the shape {x.shape}")
        return call("affine_group_norm", x, self.num_groups, self.weight, self.bias, self.eps)
