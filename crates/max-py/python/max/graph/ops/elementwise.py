"""Elementwise ops.

Two tensors broadcast as in NumPy, and are promoted to whichever of their dtypes holds both exactly; numbers and arrays
take the dtype of the tensor they are combined with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call

if TYPE_CHECKING:
    from max.dtype import DType


def add(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The sum of two tensors."""
    return call("add", lhs, rhs)


def sub(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The difference of two tensors."""
    return call("sub", lhs, rhs)


def mul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The elementwise product of two tensors."""
    return call("mul", lhs, rhs)


def div(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The true quotient of two tensors; that of integers is float64."""
    return call("div", lhs, rhs)


def floor_div(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The quotient of two tensors, rounded down."""
    return call("floor_div", lhs, rhs)


def mod(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The remainder of `floor_div`, with the sign of the divisor."""
    return call("mod", lhs, rhs)


def pow(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The left tensor to the power of the right one."""
    return call("pow", lhs, rhs)


def equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether elements are equal, as bool."""
    return call("equal", lhs, rhs)


def not_equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether elements differ, as bool."""
    return call("not_equal", lhs, rhs)


def greater(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether elements of the left tensor are greater, as bool."""
    return call("greater", lhs, rhs)


def greater_equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether elements of the left tensor are greater or equal, as bool."""
    return call("greater_equal", lhs, rhs)


def logical_and(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether both elements are true; bool only."""
    return call("logical_and", lhs, rhs)


def logical_or(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether at least one element is true; bool only."""
    return call("logical_or", lhs, rhs)


def logical_xor(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Whether exactly one element is true; bool only."""
    return call("logical_xor", lhs, rhs)


def abs(x: TensorValueLike) -> TensorValue:
    """The absolute value of each element."""
    return call("abs", x)


def acos(x: TensorValueLike) -> TensorValue:
    """The arc cosine of each element, in radians."""
    return call("acos", x)


def atanh(x: TensorValueLike) -> TensorValue:
    """The inverse hyperbolic tangent of each element."""
    return call("atanh", x)


def ceil(x: TensorValueLike) -> TensorValue:
    """Each element rounded up to an integer."""
    return call("ceil", x)


def cos(x: TensorValueLike) -> TensorValue:
    """The cosine of each element, in radians."""
    return call("cos", x)


def erf(x: TensorValueLike) -> TensorValue:
    """The error function of each element."""
    return call("erf", x)


def exp(x: TensorValueLike) -> TensorValue:
    """e to the power of each element."""
    return call("exp", x)


def floor(x: TensorValueLike) -> TensorValue:
    """Each element rounded down to an integer."""
    return call("floor", x)


def is_inf(x: TensorValueLike) -> TensorValue:
    """Whether each element is infinite, as bool."""
    return call("is_inf", x)


def is_nan(x: TensorValueLike) -> TensorValue:
    """Whether each element is NaN, as bool."""
    return call("is_nan", x)


def log(x: TensorValueLike) -> TensorValue:
    """The natural logarithm of each element."""
    return call("log", x)


def log1p(x: TensorValueLike) -> TensorValue:
    """The natural logarithm of one plus each element, accurate near zero."""
    return call("log1p", x)


def logical_not(x: TensorValueLike) -> TensorValue:
    """The logical negation of each element; bool only."""
    return call("logical_not", x)


def negate(x: TensorValueLike) -> TensorValue:
    """The negative of each element."""
    return call("negate", x)


def relu(x: TensorValueLike) -> TensorValue:
    """Each element, with negative ones replaced by zero."""
    return call("relu", x)


def round(x: TensorValueLike) -> TensorValue:
    """Each element rounded to the nearest integer, ties to even."""
    return call("round", x)


def rsqrt(x: TensorValueLike) -> TensorValue:
    """One over the square root of each element."""
    return call("rsqrt", x)


def sigmoid(x: TensorValueLike) -> TensorValue:
    """`1 / (1 + exp(-x))` of each element."""
    return call("sigmoid", x)


def silu(x: TensorValueLike) -> TensorValue:
    """`x * sigmoid(x)` of each element."""
    return call("silu", x)


def sin(x: TensorValueLike) -> TensorValue:
    """The sine of each element, in radians."""
    return call("sin", x)


def sqrt(x: TensorValueLike) -> TensorValue:
    """The square root of each element."""
    return call("sqrt", x)


def tanh(x: TensorValueLike) -> TensorValue:
    """The hyperbolic tangent of each element."""
    return call("tanh", x)


def trunc(x: TensorValueLike) -> TensorValue:
    """Each element truncated to an integer."""
    return call("trunc", x)


_GELUS = {"none": "gelu", "tanh": "gelu_tanh", "quick": "gelu_quick"}


def gelu(x: TensorValueLike, approximate: str = "none") -> TensorValue:
    """The Gaussian error linear unit of each element.

    Args:
        x: The tensor.
        approximate: `"none"` for the exact function, `"tanh"` for its tanh approximation, `"quick"` for `x *
            sigmoid(1.702 * x)`.

    Raises:
        ValueError: If `approximate` is anything else.
    """
    if approximate not in _GELUS:
        raise ValueError(f"gelu knows the approximations {', '.join(_GELUS)}, not {approximate!r}")
    return call(_GELUS[approximate], x)


def cast(x: TensorValueLike, dtype: DType) -> TensorValue:
    """Each element converted to another dtype: floats become integers by truncation."""
    return call("cast", x, dtype)


def where(condition: TensorValueLike, x: TensorValueLike, y: TensorValueLike) -> TensorValue:
    """The elements of `x` where the condition is true, and those of `y` elsewhere.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> with Graph("clip", input_types=[TensorType(DType.float32, ["n"])]) as graph:
    ...     x = graph.inputs[0].tensor
    ...     graph.output(ops.where(x > 1, 1, x))

    Args:
        condition: A bool tensor.
        x: The values where it is true.
        y: The values where it is false.
    """
    return call("where", condition, x, y)


def clamp(
    x: TensorValueLike, lower_bound: TensorValueLike | None = None, upper_bound: TensorValueLike | None = None
) -> TensorValue:
    """Each element clamped to the bounds."""
    return call("clamp", x, lower_bound, upper_bound)


def complex_mul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """The product of complex numbers, whose real and imaginary parts are along the last axis."""
    return call("complex_mul", lhs, rhs)
