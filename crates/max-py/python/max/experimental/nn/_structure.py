"""Flattens what a function returns into a list of tensors, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from max.experimental.tensor import Tensor
from max.graph import TensorValue

Rebuild: TypeAlias = Callable[[Iterator[Tensor]], Any]
"""Makes the same structure out of other tensors."""


def flatten(value: Any, source: str) -> tuple[list[Tensor | TensorValue], Rebuild]:
    """The tensors in a structure of tuples, lists, dicts and dataclasses, and how to rebuild it from other tensors.

    >>> tensors, rebuild = flatten({"a": Tensor.ones([1]), "b": (Tensor.zeros([1]), None)}, "the example")
    >>> len(tensors)
    2
    >>> rebuild(iter([1, 2]))
    {'a': 1, 'b': (2, None)}

    Args:
        value: The structure. It may contain None instead of a tensor.
        source: Where it comes from, for error messages.

    Raises:
        TypeError: If it contains anything else, or no tensor.
    """
    tensors: list[Tensor | TensorValue] = []
    rebuild = _flatten(value, source, "", tensors)
    if not tensors:
        raise TypeError(f"{source} must return tensors; got {value!r}")
    return tensors, rebuild


def _flatten(value: Any, source: str, path: str, tensors: list[Tensor | TensorValue]) -> Rebuild:
    if isinstance(value, (Tensor, TensorValue)):
        tensors.append(value)
        return next
    if value is None:
        return lambda _: None
    if isinstance(value, (list, tuple)):
        parts = [_flatten(part, source, f"{path}[{at}]", tensors) for at, part in enumerate(value)]
        make = getattr(type(value), "_make", list if isinstance(value, list) else tuple)
        return lambda given: make([part(given) for part in parts])
    if isinstance(value, dict):
        named = {key: _flatten(part, source, f"{path}[{key!r}]", tensors) for key, part in value.items()}
        return lambda given: {key: part(given) for key, part in named.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        named = {name: _flatten(getattr(value, name), source, f"{path}.{name}", tensors) for name in names}
        cls = type(value)
        return lambda given: _instance(cls, {name: part(given) for name, part in named.items()})
    where = f" at {path}" if path else ""
    raise TypeError(
        f"{source} must return tensors, or tuples, lists, dicts or dataclasses of them; "
        f"got {type(value).__name__}{where}: {value!r}"
    )


def _instance(cls: type, fields: dict[str, Any]) -> Any:
    """A dataclass with these fields, frozen or not."""
    made: Any = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made
