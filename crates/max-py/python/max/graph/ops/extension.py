"""Custom ops: see `max.graph.KernelLibrary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from max import _core
from max.dtype import DType
from max.graph._building import current_native
from max.graph.type import DeviceRef, Type
from max.graph.value import Value


def custom(
    name: str,
    device: DeviceRef,
    values: Sequence[Value[Any]],
    out_types: Sequence[Type[Any]],
    parameters: Mapping[str, bool | int | str | DType] | None = None,
) -> list[Value[Any]]:
    """Calls a custom op, whose signature is checked now.

    Args:
        name: The name of the op in the libraries of the graph, or an op of a `KernelLibrary`.
        device: Where it runs; all values are there. Buffers among them may be changed.
        values: The operands.
        out_types: The types of the results.
        parameters: Further arguments of the op, by name.

    Returns:
        The results.

    Raises:
        ValueError: If no library has such an op, or the types do not fit its signature.
    """
    args = (name, device, list(values), list(out_types), list((parameters or {}).items()))
    return _core.op(current_native(), "custom", args)  # type: ignore[no-any-return]


def inplace_custom(
    name: str,
    device: DeviceRef,
    values: Sequence[Value[Any]],
    out_types: Sequence[Type[Any]] | None = None,
    parameters: dict[str, bool | int | str | DType] | None = None,
) -> list[Value[Any]]:
    """Calls a custom op that changes buffers.

    Args:
        name: The name of the op in the libraries of the graph, or an op of a `KernelLibrary`.
        device: Where it runs; all values are there.
        values: The operands; at least one is a `BufferValue`.
        out_types: The types of the results, if it has any.
        parameters: Further arguments of the op, by name.

    Returns:
        The results.

    Raises:
        TypeError: If no operand is a buffer.
        ValueError: If no library has such an op, or the types do not fit its signature.
    """
    args = (name, device, list(values), list(out_types or ()), list((parameters or {}).items()))
    return _core.op(current_native(), "inplace_custom", args)  # type: ignore[no-any-return]
