"""Where ops go: graphs being built and realization contexts in use, as a stack for each thread and each task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from max import _core
    from max.graph.graph import Graph


class Scope(Protocol):
    """Something that takes ops in: a graph, or a realization context."""

    @property
    def _native(self) -> _core.Graph | _core.Region:
        """What takes the ops in."""

    @property
    def _graph(self) -> Graph | None:
        """The graph that the ops are recorded into, if it is one."""

    @property
    def _lazy(self) -> bool:
        """Whether nothing is computed before somebody asks for it."""


stack: ContextVar[tuple[Scope, ...]] = ContextVar("max.graph scopes", default=())


def current() -> Graph | None:
    """The graph into which ops record themselves; None if the innermost scope is no graph."""
    scopes = stack.get()
    return scopes[-1]._graph if scopes else None


def current_native() -> _core.Graph | _core.Region | None:
    """The native object of the innermost scope."""
    scopes = stack.get()
    return scopes[-1]._native if scopes else None


def enter(scope: Scope) -> None:
    """Makes a scope the innermost one, unless Ctrl-C comes in between: then nobody is there to leave it."""
    scopes = stack.get()
    try:
        stack.set((*scopes, scope))
    except BaseException:
        stack.set(scopes)
        raise


def leave(scope: Scope) -> None:
    """Takes a scope off the stack, wherever it is: generators and tasks may leave theirs out of order."""
    scopes = stack.get()
    try:
        stack.set(_without(scope, scopes))
    except BaseException:  # Ctrl-C, for which there is no second time to leave
        stack.set(_without(scope, scopes))
        raise


def _without(scope: Scope, scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """The scopes without the last of them that is this one."""
    for at in reversed(range(len(scopes))):
        if scopes[at] is scope:
            return scopes[:at] + scopes[at + 1 :]
    return scopes
