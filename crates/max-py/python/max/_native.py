"""The native object behind a Python one.

Every object of this package that stands for something in Rust holds it as `_native`. Most native functions accept
either; where they need the native object itself, it is looked up here.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def native(value: Any, kind: type[T]) -> T:
    """The native object of `value`, which must be of the given kind.

    Raises:
        TypeError: If it is not.
    """
    found = getattr(value, "_native", None)
    if isinstance(found, kind):
        return found
    raise TypeError(f"expected a {kind.__name__}, got {type(value).__name__}: {value!r}")
