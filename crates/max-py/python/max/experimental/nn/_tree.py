"""How modules are found inside modules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from max.experimental.nn.module import Module
    from max.graph import TensorType


class Place(NamedTuple):
    """Where a module is inside another one."""

    name: str
    """The qualified name."""
    prefix: str
    """The prefix of the qualified names of its parameters and children."""
    module: Module


def attributes(module: Module) -> Iterator[tuple[str, Any]]:
    """Names and values of the attributes of a module: the fields of a dataclass, then all others as they were set.

    A `cached_property` is not among them: it follows from the others.
    """
    fields = dataclasses.fields(module) if dataclasses.is_dataclass(module) else ()
    for name in dict.fromkeys([*(field.name for field in fields), *vars(module)]):
        if is_cache(module, name):
            continue
        try:
            yield name, getattr(module, name)
        except AttributeError:  # a field that has not been set
            continue


def is_cache(module: Module, name: str) -> bool:
    """Whether an attribute is a `cached_property`."""
    return isinstance(getattr(type(module), name, None), functools.cached_property)


def below(module: Module, prefix: str = "", above: tuple[Module, ...] = ()) -> Iterator[Place]:
    """All modules inside a module, each before its own contents.

    Raises:
        ValueError: If a module is inside itself.
    """
    above = (*above, module)
    for name, child in module.children:
        qualified = prefix + name
        if any(child is parent for parent in above):
            raise ValueError(f"{qualified!r} is a {type(child).__name__} that is inside itself: modules form a tree")
        inside = prefix if child.name_transparent else f"{qualified}."
        yield Place(qualified, inside, child)
        yield from below(child, inside, above)


def type_text(type: TensorType) -> str:
    """The dtype and shape of a tensor: `float32[2, 3]`."""
    return f"{type.dtype!r}[{', '.join(map(str, type.shape))}]"
