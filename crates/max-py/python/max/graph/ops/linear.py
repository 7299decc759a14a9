"""Matmuls and convolutions."""

from __future__ import annotations

from max.graph.type import ConvInputLayout, FilterLayout
from max.graph.value import TensorValue, TensorValueLike, call


def matmul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The matrix product over the last two axes; the leading axes broadcast.

    A vector is a row on the left and a column on the right, and its axis is dropped from the result.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> types = [TensorType(DType.float32, ["n", 3]), TensorType(DType.float32, [3, 5])]
    >>> with Graph("product", input_types=types) as graph:
    ...     ops.matmul(*graph.inputs).shape
    [Dim('n'), Dim(5)]
    """
    return call("matmul", lhs, rhs)


def conv2d(
    x: TensorValueLike,
    filter: TensorValueLike,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
    bias: TensorValueLike | None = None,
    input_layout: ConvInputLayout = ConvInputLayout.NHWC,
    filter_layout: FilterLayout = FilterLayout.RSCF,
) -> TensorValue:
    """A two-dimensional convolution.

    Args:
        x: The images, with axes in the order of `input_layout`.
        filter: The filter, with axes in the order of `filter_layout`.
        stride: The step of the filter: vertical and horizontal.
        dilation: The distance between the filter's taps: vertical and horizontal.
        padding: Zeros around each image: top, bottom, left, right.
        groups: The number of independent groups that the channels are divided into.
        bias: A number to add to each output channel.
        input_layout: The order of the axes of `x` and of the result.
        filter_layout: The order of the axes of `filter`.
    """
    layouts = ConvInputLayout(input_layout).value, FilterLayout(filter_layout).value
    return call("conv2d", x, filter, bias, [stride, dilation, padding, groups, *layouts])


def conv2d_transpose(
    x: TensorValueLike,
    filter: TensorValueLike,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_paddings: tuple[int, int] = (0, 0),
    bias: TensorValueLike | None = None,
    input_layout: ConvInputLayout = ConvInputLayout.NHWC,
    filter_layout: FilterLayout = FilterLayout.RSCF,
) -> TensorValue:
    """A transposed two-dimensional convolution: the gradient of a convolution with respect to its input.

    Each element of the input adds the filter, scaled, to the result. Along each axis, the size of the result is
    `(size - 1) * stride - padding_before - padding_after + dilation * (taps - 1) + 1 + output_padding`.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> types = [TensorType(DType.float32, [1, "h", "w", 8]), TensorType(DType.float32, [4, 4, 3, 8])]
    >>> with Graph("upsample", input_types=types) as graph:
    ...     ops.conv2d_transpose(*graph.inputs, stride=(2, 2), padding=(1, 1, 1, 1)).shape
    [Dim(1), Dim('h') * Dim(2), Dim('w') * Dim(2), Dim(3)]

    Args:
        x: The images, with axes in the order of `input_layout`.
        filter: The filter, with axes in the order of `filter_layout`: the axis C has the channels of the result, and
            the axis F those of `x`.
        stride: The distance in the result between neighbours of `x`: vertical and horizontal.
        dilation: The distance between the filter's taps: vertical and horizontal.
        padding: How much of the result is cut off: top, bottom, left, right.
        output_paddings: How much longer the result is at the bottom and at the right. Less than the stride or the
            dilation.
        bias: A number to add to each output channel.
        input_layout: The order of the axes of `x` and of the result.
        filter_layout: The order of the axes of `filter`.
    """
    layouts = ConvInputLayout(input_layout).value, FilterLayout(filter_layout).value
    return call("conv2d_transpose", x, filter, bias, [stride, dilation, padding, output_paddings, *layouts])


def conv3d(
    x: TensorValueLike,
    filter: TensorValueLike,
    stride: tuple[int, int, int] = (1, 1, 1),
    dilation: tuple[int, int, int] = (1, 1, 1),
    padding: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
    groups: int = 1,
    bias: TensorValueLike | None = None,
    input_layout: ConvInputLayout = ConvInputLayout.NHWC,
    filter_layout: FilterLayout = FilterLayout.QRSCF,
) -> TensorValue:
    """A three-dimensional convolution.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> types = [TensorType(DType.float32, ["n", 16, 56, 56, 3]), TensorType(DType.float32, [3, 7, 7, 3, 64])]
    >>> with Graph("video", input_types=types) as graph:
    ...     ops.conv3d(*graph.inputs, stride=(1, 2, 2), padding=(1, 1, 3, 3, 3, 3)).shape
    [Dim('n'), Dim(16), Dim(28), Dim(28), Dim(64)]

    Args:
        x: The volumes, with axes in the order of `input_layout`; the depth comes before the height.
        filter: The filter, with axes in the order of `filter_layout`.
        stride: The step of the filter: in depth, vertical and horizontal.
        dilation: The distance between the filter's taps: in depth, vertical and horizontal.
        padding: Zeros around each volume: front, back, top, bottom, left, right.
        groups: The number of independent groups that the channels are divided into.
        bias: A number to add to each output channel.
        input_layout: The order of the axes of `x` and of the result.
        filter_layout: The order of the axes of `filter`.
    """
    layouts = ConvInputLayout(input_layout).value, FilterLayout(filter_layout).value
    return call("conv3d", x, filter, bias, [stride, dilation, padding, groups, *layouts])


def outer(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The outer product of two vectors, as a matrix.

    Raises:
        ValueError: If either is not of rank 1.
    """
    return call("outer", lhs, rhs)
