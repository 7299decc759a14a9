"""The native object behind a Python one.

Every object of this package that stands for something in Rust holds it as `_native`. Most native functions take
either; where they want the native object itself, it is fetched here.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def native(value: Any, kind: type[T]) -> T:
    """The native object of `value`, which must be of a kind.

    Raises:
        TypeError: If `value` stands for something else.
    """
    found = getattr(value, "_native", None)
    if isinstance(found, kind):
        return found
    raise TypeError(f"expected a {kind.__name__}, got {type(value).__name__}: {value!r}")
