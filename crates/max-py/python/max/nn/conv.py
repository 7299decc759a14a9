"""Convolutions over one, two and three axes.

>>> from max.dtype import DType
>>> from max.graph import Graph, TensorType
>>> layer = Conv1D(kernel_size=3, in_channels=16, out_channels=32, dtype=DType.float32, padding=1)
>>> with Graph("layer", input_types=[TensorType(DType.float32, [2, 10, 16])]) as graph:
...     layer(graph.inputs[0].tensor).shape
[Dim(2), Dim(10), Dim(32)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, TensorValueLike, Weight
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._sharding import parts, strategy_of, unsupported
from max.nn.layer import Layer, Module

__all__ = ["Conv1D", "Conv1DV1", "Conv2d", "Conv2dV1", "Conv3D", "Conv3DV1"]


class _Conv(Module):
    """What the convolutions have in common: their weights and their call."""

    device: DeviceRef | None
    """Where the layer runs; None is the CPU."""
    filter: Weight
    """The filter: `[sizes.., in_channels // num_groups, out_channels]`, or `[out_channels, in_channels // num_groups,
    sizes..]` if it is permuted."""
    bias: Weight | None = None
    """The bias, `[out_channels]`, if there is one."""
    num_groups: int
    """The number of independent groups that the channels are divided into."""
    permute: bool = False
    """Whether filter and input have PyTorch's order of axes: the channels before the others."""
    stride: Any
    """The step of the filter along each axis."""
    padding: Any
    """The zeros before and after each axis."""
    dilation: Any
    """The distance between the elements of the filter along each axis."""

    def _set_up(
        self,
        sizes: tuple[int, ...],
        in_channels: int,
        out_channels: int,
        dtype: DType,
        num_groups: int,
        device: DeviceRef | None,
        has_bias: bool,
        permute: bool,
        name: str | None,
    ) -> None:
        kind = type(self).__name__
        if num_groups < 1 or in_channels % num_groups or out_channels % num_groups:
            raise ValueError(
                f"{kind} cannot divide {in_channels} input and {out_channels} output channels into {num_groups} groups"
            )
        inputs = in_channels // num_groups
        shape = [out_channels, inputs, *sizes] if permute else [*sizes, inputs, out_channels]
        prefix = f"{name}." if name else ""
        self.device = device
        self.num_groups = num_groups
        self.permute = permute
        self.filter = Weight(f"{prefix}weight", dtype, shape, DeviceRef.CPU())
        if has_bias:
            self.bias = Weight(f"{prefix}bias", dtype, [out_channels], DeviceRef.CPU())

    def __call__(self, x: TensorValue) -> TensorValue:
        """The convolution of the input with the filter, plus the bias."""
        options = _options(self, self.filter.rank - 2)
        return call("convolution", x, self.filter, self.bias, *options, self.num_groups, self.permute)


class Conv1D(_Conv):
    """A convolution over the positions of a sequence.

    Sequences are `[batch, length, channels]`, or `[batch, channels, length]` with `permute`.

    Args:
        kernel_size: The size of the filter.
        in_channels: The number of channels of the input.
        out_channels: The number of channels of the result.
        dtype: The dtype of the filter and of the bias.
        stride: The step of the filter.
        padding: The number of zeros before and after each sequence.
        dilation: The distance between the filter's elements.
        num_groups: The number of independent groups that the channels are divided into.
        device: Where the layer runs; by default the CPU.
        has_bias: Whether there is a bias.
        permute: Whether sequences and filter have PyTorch's order of axes.
        name: What the names of the weights start with.
    """

    stride: int
    padding: int
    dilation: int

    def __init__(
        self,
        kernel_size: int,
        in_channels: int,
        out_channels: int,
        dtype: DType,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        num_groups: int = 1,
        device: DeviceRef | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        sizes = per_axis("Conv1D kernel_size", kernel_size, 1)
        (self.stride,) = per_axis("Conv1D stride", stride, 1)
        (self.padding,) = per_axis("Conv1D padding", padding, 1)
        (self.dilation,) = per_axis("Conv1D dilation", dilation, 1)
        self._set_up(sizes, in_channels, out_channels, dtype, num_groups, device, has_bias, permute, name)


class Conv2d(_Conv):
    """A convolution over height and width.

    Images are `[batch, height, width, channels]`, or `[batch, channels, height, width]` with `permute`.

    Args:
        kernel_size: The size of the filter: one number, or height and width.
        in_channels: The number of channels of the input.
        out_channels: The number of channels of the result.
        dtype: The dtype of the filter and of the bias.
        stride: The step of the filter: one number, or vertical and horizontal.
        padding: Zeros around each image: one number; two, vertical and horizontal; or four: top, bottom, left, right.
        dilation: The distance between the filter's elements: one number, or vertical and horizontal.
        num_groups: The number of independent groups that the channels are divided into.
        device: Where the layer runs; by default the CPU.
        has_bias: Whether there is a bias.
        permute: Whether images and filter have PyTorch's order of axes.
        name: What the names of the weights start with.
    """

    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        in_channels: int,
        out_channels: int,
        dtype: DType,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        num_groups: int = 1,
        device: DeviceRef | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        sizes = per_axis("Conv2d kernel_size", kernel_size, 2)
        self.stride = per_axis("Conv2d stride", stride, 2)  # type: ignore[assignment]
        self.padding = per_side("Conv2d padding", padding, 2)  # type: ignore[assignment]
        self.dilation = per_axis("Conv2d dilation", dilation, 2)  # type: ignore[assignment]
        self._set_up(sizes, in_channels, out_channels, dtype, num_groups, device, has_bias, permute, name)

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the filter is divided among devices.

        Each device has all of it (`replicate`); or, if it is permuted and has one group, some of the output channels
        (`rowwise`) or of the input channels (`columnwise`). Results of the latter add up to the whole: only the first
        has the bias.
        """
        return self.filter.sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        cut = strategy.is_rowwise or strategy.is_colwise
        if not (strategy.is_replicate or cut):
            raise unsupported("Conv2d", "rowwise, columnwise or replicate", strategy)
        if cut and (self.num_groups != 1 or not self.permute):
            raise ValueError("only a Conv2d layer with permute and one group has channels that can be sharded")
        self.filter.sharding_strategy = strategy
        if self.bias is not None:
            whole = ShardingStrategy.replicate(strategy.num_devices)
            self.bias.sharding_strategy = strategy if strategy.is_rowwise else whole

    def shard(self, devices: Iterable[DeviceRef]) -> list[Conv2d]:
        """The layer's part for each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy, shards = strategy_of(self), parts(self, list(devices), type(self))
        if strategy.is_colwise:
            for shard in shards[1:]:
                shard.bias = None
        return shards


class Conv3D(_Conv):
    """A convolution over depth, height and width.

    Volumes are `[batch, depth, height, width, channels]`, or `[batch, channels, depth, height, width]` with `permute`.

    Args:
        depth: The depth of the filter.
        height: The height of the filter.
        width: The width of the filter.
        in_channels: The number of channels of the input.
        out_channels: The number of channels of the result.
        dtype: The dtype of the filter and of the bias.
        stride: The step of the filter: one number, or one for each axis.
        padding: Zeros around each volume: one number; one for each axis; or six: front, back, top, bottom, left, right.
        dilation: The distance between the filter's elements: one number, or one for each axis.
        num_groups: The number of independent groups that the channels are divided into.
        device: Where the layer runs; by default the CPU.
        has_bias: Whether there is a bias.
        permute: Whether volumes and filter have PyTorch's order of axes.
        name: What the names of the weights start with.
    """

    stride: tuple[int, int, int]
    padding: tuple[int, int, int, int, int, int]
    dilation: tuple[int, int, int]

    def __init__(
        self,
        depth: int,
        height: int,
        width: int,
        in_channels: int,
        out_channels: int,
        dtype: DType,
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int, int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        num_groups: int = 1,
        device: DeviceRef | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        sizes = per_axis("Conv3D kernel size", (depth, height, width), 3)
        self.stride = per_axis("Conv3D stride", stride, 3)  # type: ignore[assignment]
        self.padding = per_side("Conv3D padding", padding, 3)  # type: ignore[assignment]
        self.dilation = per_axis("Conv3D dilation", dilation, 3)  # type: ignore[assignment]
        self._set_up(sizes, in_channels, out_channels, dtype, num_groups, device, has_bias, permute, name)


@dataclass
class _ConvV1(Layer):
    """What the older convolutions have in common."""

    filter: TensorValueLike
    bias: TensorValueLike | None = None

    def _convolve(self, x: TensorValue, axes: int, groups: int) -> TensorValue:
        return call("convolution", x, self.filter, self.bias, *_options(self, axes), groups)


@dataclass
class Conv1DV1(_ConvV1):
    """As `Conv1D`, with a filter `[size, in / groups, out]` that is given. Use `Conv1D` instead."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def __call__(self, x: TensorValue) -> TensorValue:
        """The convolution of the input with the filter, plus the bias."""
        return self._convolve(x, 1, self.groups)


@dataclass
class Conv2dV1(_ConvV1):
    """As `Conv2d`, with a filter `[height, width, in / groups, out]` that is given. Use `Conv2d` instead."""

    stride: int | tuple[int, int] = (1, 1)
    padding: int | tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: int | tuple[int, int] = (1, 1)
    groups: int = 1

    def __call__(self, x: TensorValue) -> TensorValue:
        """The convolution of the input with the filter, plus the bias."""
        return self._convolve(x, 2, self.groups)


@dataclass
class Conv3DV1(_ConvV1):
    """As `Conv3D`, with a filter `[depth, height, width, in / groups, out]` that is given. Use `Conv3D` instead."""

    stride: int | tuple[int, int, int] = (1, 1, 1)
    padding: int | tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    dilation: int | tuple[int, int, int] = (1, 1, 1)
    groups: int = 1

    def __call__(self, x: TensorValue) -> TensorValue:
        """The convolution of the input with the filter, plus the bias."""
        return self._convolve(x, 3, self.groups)


def _options(layer: Any, axes: int) -> tuple[list[int], list[int], list[int]]:
    """The stride, the dilation and the padding of a layer, for each axis."""
    kind = type(layer).__name__
    stride = per_axis(f"{kind} stride", layer.stride, axes)
    dilation = per_axis(f"{kind} dilation", layer.dilation, axes)
    return list(stride), list(dilation), list(per_side(f"{kind} padding", layer.padding, axes))


def per_axis(name: str, value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """A number for each axis: the one that is given, or as many as there are axes."""
    given = numbers(value)
    if len(given) == 1:
        return tuple(given * axes)
    if given and len(given) == axes:
        return tuple(given)
    raise ValueError(f"{name} must be {_counts(1, axes)}; got {value!r}")


def per_side(name: str, value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Numbers for both sides of each axis: the one that is given, one for each axis or two for each."""
    given = numbers(value)
    if len(given) == 1:
        return tuple(given * 2 * axes)
    if given and len(given) == axes:
        return tuple(number for number in given for _ in range(2))
    if given and len(given) == 2 * axes:
        return tuple(given)
    raise ValueError(f"{name} must be {_counts(1, axes, 2 * axes)}; got {value!r}")


def numbers(value: int | Sequence[int]) -> list[int]:
    """The given integers; an empty list if anything is not an integer."""
    given: list[Any] = list(value) if isinstance(value, Iterable) else [value]
    return [int(number) for number in given] if all(isinstance(number, Integral) for number in given) else []


def _counts(*counts: int) -> str:
    names = {1: "one number", 2: "two", 3: "three", 4: "four", 6: "six"}
    several = [names[count] for count in dict.fromkeys(counts)]
    return " or ".join([", ".join(several[:-1]), several[-1]] if len(several) > 1 else several)
