"""Looking into a graph while it runs."""

from __future__ import annotations

from max import _core
from max.graph.value import TensorValue


def print(value: str | TensorValue, label: str = "debug_tensor") -> None:
    """Writes a tensor to standard output whenever the graph runs.

    Args:
        value: The tensor.
        label: Written before it.
    """
    _core.op("print", value, label)
