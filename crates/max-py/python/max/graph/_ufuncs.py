"""NumPy's elementwise functions on graph values and tensors, as ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPS = {
    "absolute": "abs",
    "add": "add",
    "arccos": "acos",
    "arctanh": "atanh",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "ceil": "ceil",
    "cos": "cos",
    "divide": "div",
    "equal": "equal",
    "exp": "exp",
    "floor": "floor",
    "floor_divide": "floor_div",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "invert": "logical_not",
    "isinf": "is_inf",
    "isnan": "is_nan",
    "log": "log",
    "log1p": "log1p",
    "logical_and": "logical_and",
    "logical_not": "logical_not",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "matmul": "matmul",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "negative": "negate",
    "not_equal": "not_equal",
    "power": "pow",
    "remainder": "mod",
    "rint": "round",
    "sin": "sin",
    "sqrt": "sqrt",
    "subtract": "sub",
    "tanh": "tanh",
    "trunc": "trunc",
}
"""The op of each function, by its name in NumPy."""

_SWAPPED = {"less": "greater", "less_equal": "greater_equal"}
"""The op of each function whose operands change places."""

_REDUCTIONS = {
    "add": "F.sum(x, axis)",
    "logical_and": "x.all(axis)",
    "logical_or": "x.any(axis)",
    "maximum": "F.max(x, axis=axis)",
    "minimum": "F.min(x, axis=axis)",
    "multiply": "F.prod(x, axis)",
}
"""What to write instead of a reduction with one of these functions."""


def run(call: Callable[..., Any], ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The result of a function of NumPy, by the rules of `__array_ufunc__`.

    Raises:
        TypeError: If there is no op for that.
    """
    name = ufunc.__name__
    if method != "__call__":
        instead = _REDUCTIONS.get(name, "x.to_numpy()") if method == "reduce" else "x.to_numpy()"
        raise TypeError(f"np.{name}.{method} does not take tensors: use {instead}")
    if "out" in options:
        raise TypeError(f"np.{name} cannot write a tensor to an array: use x.to_numpy(), or leave out `out`")
    if options:
        raise TypeError(f"np.{name} of tensors takes no {', '.join(options)}: use x.to_numpy()")
    if name in _SWAPPED:
        return call(_SWAPPED[name], *reversed(inputs))
    if name not in _OPS:
        raise TypeError(f"there is no op for np.{name}: use x.to_numpy()")
    return call(_OPS[name], *inputs)
