"""Pooling and resizing of images."""

from __future__ import annotations

from enum import Enum

from max.graph.dim import DimLike
from max.graph.shape import ShapeLike, dims
from max.graph.value import TensorValue, TensorValueLike, call


class InterpolationMode(Enum):
    """How images are resized."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"

    def __str__(self) -> str:
        return self.value


def avg_pool2d(
    input: TensorValueLike,
    kernel_size: tuple[DimLike, DimLike],
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_boundary: bool = True,
) -> TensorValue:
    """The mean of each window of the images.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("halved", input_types=[TensorType(DType.float32, ["n", 32, 32, 3])]) as graph:
    ...     ops.avg_pool2d(graph.inputs[0].tensor, (2, 2), stride=2).shape
    [Dim('n'), Dim(16), Dim(16), Dim(3)]

    Args:
        input: The images: batch, height, width, channels. The means of integers are truncated.
        kernel_size: Height and width of the window.
        stride: The distance between neighbouring windows.
        dilation: The distance between neighbouring elements of a window.
        padding: Zeros on both sides of height and width.
        ceil_mode: Whether the last windows may extend beyond the padding, if they start before its end.
        count_boundary: Whether padding counts as elements. What is beyond it never does.
    """
    return call(
        "avg_pool2d",
        input,
        dims(kernel_size),
        stride,
        dilation,
        padding,
        ceil_mode,
        count_boundary,
    )


def max_pool2d(
    input: TensorValueLike,
    kernel_size: tuple[DimLike, DimLike],
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
) -> TensorValue:
    """The maximum of each window of the images.

    Padding is below every element, and NaN is the maximum of a window that has one.

    Args:
        input: The images: batch, height, width, channels.
        kernel_size: Height and width of the window.
        stride: The distance between neighbouring windows.
        dilation: The distance between neighbouring elements of a window.
        padding: How far windows may extend beyond both sides of height and width.
        ceil_mode: Whether the last windows may extend beyond the padding, if they start before its end.
    """
    return call("max_pool2d", input, dims(kernel_size), stride, dilation, padding, ceil_mode)


def resize(
    input: TensorValueLike,
    shape: ShapeLike,
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
) -> TensorValue:
    """Resizes images, with half-pixel coordinates.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("enlarged", input_types=[TensorType(DType.float32, ["n", 3, 32, 32])]) as graph:
    ...     ops.resize(graph.inputs[0].tensor, ["n", 3, 64, 64], ops.InterpolationMode.BICUBIC).shape
    [Dim('n'), Dim(3), Dim(64), Dim(64)]

    Args:
        input: The images: batch, channels, height, width.
        shape: The shape of the result. Every axis whose size changes is resampled.
        interpolation: How elements between those of `input` are computed.

    Raises:
        ValueError: If `input` is not of rank 4, or `shape` has not four elements.
    """
    return call("resize", input, dims(shape), InterpolationMode(interpolation).value)


def resize_bicubic(input: TensorValueLike, size: ShapeLike) -> TensorValue:
    """Resizes images by cubic convolution with the coefficient -0.75 and half-pixel coordinates.

    Args:
        input: The images: batch, channels, height, width.
        size: The shape of the result. Every axis whose size changes is resampled.

    Raises:
        ValueError: If `input` is not of rank 4, or `size` has not four elements.
    """
    return call("resize_bicubic", input, dims(size))


def resize_linear(
    input: TensorValueLike,
    size: ShapeLike,
    coordinate_transform_mode: int = 0,
    antialias: bool = False,
) -> TensorValue:
    """Resizes a tensor by linear interpolation along every axis whose size changes.

    Args:
        input: A tensor of any rank.
        size: The shape of the result.
        coordinate_transform_mode: Where the results are on an axis of `input`: 0 (half pixel) keeps the borders of the
            axis, with the centres of elements half an element from theirs; 1 (align corners) keeps the first and the
            last element; 2 (asymmetric) keeps the first element and scales distances; 3 (half pixel 1D) is 0, except
            that a single result is the first element.
        antialias: Whether an axis that shrinks is averaged over all elements nearer than a step of the result.

    Raises:
        ValueError: If the mode is not from 0 to 3, or `size` is of another rank than `input`.
    """
    return call("resize_linear", input, dims(size), coordinate_transform_mode, antialias)


def resize_nearest(
    input: TensorValueLike,
    size: ShapeLike,
    coordinate_transform_mode: int = 0,
    round_mode: int = 0,
) -> TensorValue:
    """Resizes a tensor along every axis whose size changes; each result is the nearest element.

    Args:
        input: A tensor of any rank and dtype.
        size: The shape of the result.
        coordinate_transform_mode: Where the results are on an axis of `input`, as for `resize_linear`.
        round_mode: How that is rounded: 0 to the nearest, halves down; 1 to the nearest, halves up; 2 down; 3 up.

    Raises:
        ValueError: If a mode is not from 0 to 3, or `size` is of another rank than `input`.
    """
    return call("resize_nearest", input, dims(size), coordinate_transform_mode, round_mode)
