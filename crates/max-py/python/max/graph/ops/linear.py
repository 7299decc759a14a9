"""Products of matrices, and convolutions."""

from __future__ import annotations

from max.graph.type import ConvInputLayout, FilterLayout
from max.graph.value import TensorValue, TensorValueLike, call


def matmul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The matrix product over the last two axes; the axes before them broadcast.

    A vector on the left is a row and on the right a column, and its axis is not in the result.

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
        stride: How far the filter moves, down and across.
        dilation: The distance of the filter's taps, down and across.
        padding: Zeros around each image: above, below, left, right.
        groups: How many parts the channels fall into that do not mix.
        bias: A number for each output channel, added to it.
        input_layout: The order of the axes of `x` and of the result.
        filter_layout: The order of the axes of `filter`.
    """
    layouts = ConvInputLayout(input_layout).value, FilterLayout(filter_layout).value
    return call("conv2d", x, filter, bias, [stride, dilation, padding, groups, *layouts])


def outer(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The products of each element of one vector with each of another, as a matrix.

    Raises:
        ValueError: If one of them is not of rank 1.
    """
    return call("outer", lhs, rhs)
