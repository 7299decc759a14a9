"""Where ops go: the graphs under construction and the active realization contexts, one stack per thread and task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from max import _core
    from max.graph.graph import Graph


class Scope(Protocol):
    """Something that records ops: a graph, or a realization context."""

    @property
    def _native(self) -> _core.Graph | _core.Region:
        """The native object that records the ops."""

    @property
    def _graph(self) -> Graph | None:
        """The graph that records the ops, if it is one."""

    @property
    def _lazy(self) -> bool:
        """Whether nothing is computed until it is read."""


stack: ContextVar[tuple[Scope, ...]] = ContextVar("max.graph scopes", default=())


def current() -> Graph | None:
    """The graph that records ops; None if the innermost scope is not a graph."""
    scopes = stack.get()
    return scopes[-1]._graph if scopes else None


def current_native() -> _core.Graph | _core.Region | None:
    """The native object of the innermost scope."""
    scopes = stack.get()
    return scopes[-1]._native if scopes else None


def enter(scope: Scope) -> None:
    """Makes a scope the innermost one. If Ctrl-C interrupts that, undoes it, because nobody would leave the scope."""
    scopes = stack.get()
    try:
        stack.set((*scopes, scope))
    except BaseException:
        stack.set(scopes)
        raise


def leave(scope: Scope) -> None:
    """Removes a scope from anywhere in the stack: generators and tasks may leave theirs out of order."""
    scopes = stack.get()
    try:
        stack.set(_without(scope, scopes))
    except BaseException:  # Ctrl-C: there is no second chance to leave
        stack.set(_without(scope, scopes))
        raise


def _without(scope: Scope, scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """The scopes without the last occurrence of this one."""
    for at in reversed(range(len(scopes))):
        if scopes[at] is scope:
            return scopes[:at] + scopes[at + 1 :]
    return scopes
