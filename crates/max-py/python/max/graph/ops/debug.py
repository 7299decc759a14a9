"""Ops for inspecting a graph while it runs."""

from __future__ import annotations

from max import _core
from max.graph._building import current_native
from max.graph.value import TensorValue


def print(value: str | TensorValue, label: str = "debug_tensor") -> None:
    """Prints a tensor or a text whenever the graph runs.

    Args:
        value: The tensor or the text.
        label: Printed before a tensor.
    """
    _core.op(current_native(), "print", (value, label))
