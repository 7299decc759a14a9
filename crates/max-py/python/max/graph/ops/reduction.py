"""Ops along an axis: reductions, which keep the axis with size 1, and normalizations, which keep the shape."""

from __future__ import annotations

from max.graph._operators import Axes, over
from max.graph.value import TensorValue, TensorValueLike, call


def sum(x: TensorValueLike, axis: Axes = -1, *, keepdims: bool = True) -> TensorValue:
    """The sum along an axis.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("total", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
    ...     ops.sum(graph.inputs[0], axis=0).shape
    ...     ops.sum(graph.inputs[0], axis=(0, 1), keepdims=False).shape
    [Dim(1), Dim(3)]
    []

    Args:
        x: The tensor.
        axis: The axis, several of them, or None for all.
        keepdims: Whether the result has these axes, with size 1.
    """
    return call("sum", x, over(axis, keepdims))


def prod(x: TensorValueLike, axis: Axes = -1, *, keepdims: bool = True) -> TensorValue:
    """The product along an axis, several of them or all (None), which keep the size 1 if `keepdims` is true."""
    return call("prod", x, over(axis, keepdims))


def mean(x: TensorValueLike, axis: Axes = -1, *, keepdims: bool = True) -> TensorValue:
    """The mean along an axis, several of them or all (None), which keep the size 1 if `keepdims` is true."""
    return call("mean", x, over(axis, keepdims))


def max(
    x: TensorValueLike, y: TensorValueLike | None = None, /, axis: Axes = None, *, keepdims: bool = True
) -> TensorValue:
    """The largest elements along an axis or several; or the elementwise maximum of two tensors.

    Args:
        x: The tensor.
        y: The other tensor, if there are two; then `axis` and `keepdims` mean nothing.
        axis: The axis, or several of them. None is the last one, unlike in other reductions: write
            `x.max(axis=None)` for all of them, or name them.
        keepdims: Whether the result has these axes, with size 1.
    """
    if y is not None:
        return call("max", x, _operand(y))
    return call("reduce_max", x, over(-1 if axis is None else axis, keepdims))


def min(
    x: TensorValueLike, y: TensorValueLike | None = None, /, axis: Axes = None, *, keepdims: bool = True
) -> TensorValue:
    """The smallest elements along an axis or several; or the elementwise minimum of two tensors.

    Args:
        x: The tensor.
        y: The other tensor, if there are two; then `axis` and `keepdims` mean nothing.
        axis: The axis, or several of them. None is the last one, unlike in other reductions: write
            `x.min(axis=None)` for all of them, or name them.
        keepdims: Whether the result has these axes, with size 1.
    """
    if y is not None:
        return call("min", x, _operand(y))
    return call("reduce_min", x, over(-1 if axis is None else axis, keepdims))


def _operand(y: TensorValueLike) -> TensorValueLike:
    """The second operand, which users of NumPy may take for the axes."""
    if isinstance(y, tuple):
        raise TypeError(f"the second argument is a tensor, and {y} is not: for axes, write axis={y}")
    return y


def argmax(x: TensorValueLike, axis: int | None = -1, *, keepdims: bool = True) -> TensorValue:
    """The index of the largest element along an axis, as int64; the first if several are equal.

    Args:
        x: The tensor.
        axis: The axis; for None, the index is that in row-major order.
        keepdims: Whether the result has the axis, with size 1.
    """
    return call("argmax", x, over(axis, keepdims))


def argmin(x: TensorValueLike, axis: int | None = -1, *, keepdims: bool = True) -> TensorValue:
    """The index of the smallest element along an axis, as int64; the first if several are equal.

    Args:
        x: The tensor.
        axis: The axis; for None, the index is that in row-major order.
        keepdims: Whether the result has the axis, with size 1.
    """
    return call("argmin", x, over(axis, keepdims))


def cumsum(
    x: TensorValueLike, axis: int = -1, exclusive: bool = False, reverse: bool = False
) -> TensorValue:
    """The running sum along an axis: each result is the sum of the elements up to its position.

    Floats are summed in float64 and rounded once.

    Args:
        x: The tensor.
        axis: The axis to sum along; a negative one counts from the last.
        exclusive: Whether a result leaves out its own element, so that the first one is zero.
        reverse: Whether sums run from the end of the axis to its start.
    """
    return call("cumsum", x, axis, exclusive, reverse)


def softmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The exponentials, divided by their sum along an axis."""
    return call("softmax", x, axis)


def logsoftmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The logarithm of the softmax along an axis."""
    return call("logsoftmax", x, axis)


def layer_norm(
    input: TensorValueLike, gamma: TensorValueLike, beta: TensorValueLike, epsilon: float
) -> TensorValue:
    """`(input - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis.

    Args:
        input: The tensor.
        gamma: The scale at each position of the last axis.
        beta: The shift at each position of the last axis.
        epsilon: A small positive number that prevents division by zero.
    """
    return call("layer_norm", input, gamma, beta, epsilon)


def rms_norm(
    input: TensorValueLike,
    weight: TensorValueLike,
    epsilon: float,
    weight_offset: float = 0.0,
    multiply_before_cast: bool = False,
) -> TensorValue:
    """`input / sqrt(mean(input ** 2) + epsilon) * (weight + weight_offset)` along the last axis.

    Args:
        input: The tensor.
        weight: The scale at each position of the last axis.
        epsilon: A small non-negative number that prevents division by zero.
        weight_offset: A number to add to the weight.
        multiply_before_cast: Whether narrow floats are scaled before they are rounded to their dtype, instead of
            afterwards.
    """
    return call("rms_norm", input, weight, epsilon, weight_offset, multiply_before_cast)


def group_norm(
    input: TensorValueLike, gamma: TensorValueLike, beta: TensorValueLike, num_groups: int, epsilon: float
) -> TensorValue:
    """Normalizes groups of channels like `layer_norm`, then scales and shifts each channel.

    Args:
        input: A tensor `[N, C, ...]`.
        gamma: The scale of each channel.
        beta: The shift of each channel.
        num_groups: The number of groups that the channels are divided into.
        epsilon: A small positive number that prevents division by zero.
    """
    return call("group_norm", input, gamma, beta, num_groups, epsilon)
