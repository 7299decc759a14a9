"""Convolutions."""

from __future__ import annotations

from typing import Literal

from max.driver import Device
from max.dtype import DType
from max.experimental import functional as F
from max.experimental import random
from max.experimental._regions import call
from max.experimental.nn.module import Module
from max.experimental.tensor import Tensor
from max.nn.conv import per_axis, per_side

__all__ = ["Conv2d"]


class Conv2d(Module[[Tensor], Tensor]):
    """A convolution over height and width.

    Images are `[batch, height, width, channels]`, or `[batch, channels, height, width]` with `permute`.

    >>> Conv2d(3, in_channels=4, out_channels=8, padding=1)(Tensor.ones([1, 16, 16, 4])).shape
    [Dim(1), Dim(16), Dim(16), Dim(8)]

    Args:
        kernel_size: The size of the filter: one number, or height and width.
        in_channels: The number of channels of the input.
        out_channels: The number of channels of the result.
        dtype: The dtype of the parameters; by default the default dtype.
        stride: The step of the filter: one number, or vertical and horizontal.
        padding: Zeros around each image: one number; two, vertical and horizontal; or four: top, bottom, left, right.
        dilation: The distance between the filter's taps: one number, or vertical and horizontal.
        num_groups: The number of independent groups that the channels are divided into.
        device: The device of the parameters; by default the default device.
        has_bias: Whether there is a bias.
        permute: Whether images and filter use PyTorch's axis order.
        name: A name to show; the names of parameters come from the attributes that hold modules.
    """

    weight: Tensor
    """The filter: `[height, width, in_channels // num_groups, out_channels]`, or `[out_channels,
    in_channels // num_groups, height, width]` with `permute`."""
    bias: Tensor | Literal[0]
    """The bias, `[out_channels]`; 0 if there is none."""

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        in_channels: int,
        out_channels: int,
        dtype: DType | None = None,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        num_groups: int = 1,
        device: Device | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        if num_groups < 1 or in_channels % num_groups or out_channels % num_groups:
            raise ValueError(
                f"Conv2d cannot divide {in_channels} input and {out_channels} output channels into {num_groups} groups"
            )
        height, width = per_axis("Conv2d kernel_size", kernel_size, 2)
        inputs = in_channels // num_groups
        shape = [out_channels, inputs, height, width] if permute else [height, width, inputs, out_channels]
        std = max(inputs * height * width, 1) ** -0.5
        self.weight = random.gaussian(shape, std=std, dtype=dtype, device=device)
        self.bias = Tensor.zeros([out_channels], dtype=dtype, device=device) if has_bias else 0
        self.kernel_size = height, width
        self.stride = per_axis("Conv2d stride", stride, 2)
        self.padding = per_side("Conv2d padding", padding, 2)
        self.dilation = per_axis("Conv2d dilation", dilation, 2)
        self.num_groups = num_groups
        self.permute = permute
        self.name = name

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        """The convolution of the images with the filter, plus the bias."""
        bias = self.bias if isinstance(self.bias, Tensor) else None
        options = list(self.stride), list(self.dilation), list(self.padding), self.num_groups, self.permute
        return call("convolution", x, self.weight, bias, *options)  # type: ignore[no-any-return]
