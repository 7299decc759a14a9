"""Ops along an axis: reductions, which keep the axis with size 1, and normalizations, which keep the shape."""

from __future__ import annotations

from max.graph.value import TensorValue, TensorValueLike, call


def sum(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The sum along an axis.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("total", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
    ...     ops.sum(graph.inputs[0], axis=0).shape
    [Dim(1), Dim(3)]
    """
    return call("sum", x, axis)


def prod(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The product along an axis."""
    return call("prod", x, axis)


def mean(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The mean along an axis."""
    return call("mean", x, axis)


def max(x: TensorValueLike, y: TensorValueLike | None = None, /, axis: int | None = None) -> TensorValue:
    """The largest elements along an axis, by default the last; or the elementwise maximum of two tensors."""
    return call("reduce_max", x, -1 if axis is None else axis) if y is None else call("max", x, y)


def min(x: TensorValueLike, y: TensorValueLike | None = None, /, axis: int | None = None) -> TensorValue:
    """The smallest elements along an axis, by default the last; or the elementwise minimum of two tensors."""
    return call("reduce_min", x, -1 if axis is None else axis) if y is None else call("min", x, y)


def argmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The index of the largest element along an axis, as int64; the first if several are equal."""
    return call("argmax", x, axis)


def argmin(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The index of the smallest element along an axis, as int64; the first if several are equal."""
    return call("argmin", x, axis)


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
