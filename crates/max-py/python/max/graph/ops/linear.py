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


def outer(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The outer product of two vectors, as a matrix.

    Raises:
        ValueError: If either is not of rank 1.
    """
    return call("outer", lhs, rhs)
