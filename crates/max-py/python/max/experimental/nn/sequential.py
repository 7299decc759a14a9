"""Modules that are lists of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from max.experimental import functional as F
from max.experimental.nn.module import Module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ModuleList", "Sequential"]


class ModuleList(Module, list[Module]):
    """A list of modules, named by their positions. It is a list in every way, and its slices are module lists too.

    >>> from max.experimental.nn import Linear
    >>> layers = ModuleList(Linear(4, 4, bias=False) for _ in range(3))
    >>> layers.append(Linear(4, 1, bias=False))
    >>> [name for name, _ in layers.parameters]
    ['0.weight', '1.weight', '2.weight', '3.weight']

    Args:
        iterable: The modules.
    """

    def __init__(self, iterable: Iterable[Module] = (), /) -> None:
        list.__init__(self, iterable)
        for _ in self.children:  # checks that all are modules
            pass

    @property
    def children(self) -> Iterator[tuple[str, Module]]:
        """Positions and modules of the list, then modules set as attributes."""
        for at, module in enumerate(self):
            if not isinstance(module, Module):
                kind, other = type(self).__name__, type(module).__name__
                raise TypeError(f"{kind} holds modules only; item {at} is of type {other}")
            yield str(at), module
        yield from super().children

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: SupportsIndex, /) -> Module: ...
        @overload
        def __getitem__(self, index: slice, /) -> Self: ...

    def __getitem__(self, index: Any, /) -> Any:
        found = list.__getitem__(self, index)
        return self._of(found) if isinstance(index, slice) else found

    @classmethod
    def _of(cls, modules: list[Module]) -> Self:
        return cls(modules)

    def __rich_repr__(self) -> Iterator[Any]:
        yield from self
        yield from super().__rich_repr__()


class Sequential(ModuleList):
    """Modules that run one after the other, each on the result of the one before.

    >>> from max.experimental.nn import Linear, RMSNorm
    >>> Sequential(Linear(2, 3), RMSNorm(3))
    Sequential(Linear(in_dim=Dim(2), out_dim=Dim(3)), RMSNorm(dim=Dim(3)))

    Args:
        *modules: The modules, in order.
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    @classmethod
    def _of(cls, modules: list[Module]) -> Self:
        return cls(*modules)

    @F.functional
    def forward(self, x: Any) -> Any:
        """The result of the last module; `x` itself if there is none."""
        for module in self:
            x = module(x)
        return x
