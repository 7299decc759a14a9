"""The graphs that are being built: a stack for each thread and each asyncio task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from max import _core
    from max.graph.graph import Graph

_stack: ContextVar[tuple[Graph, ...]] = ContextVar("max.graph building", default=())


def current() -> Graph | None:
    """The innermost graph, into which ops record themselves."""
    stack = _stack.get()
    return stack[-1] if stack else None


def current_native() -> _core.Graph | None:
    """The native graph of `current`."""
    stack = _stack.get()
    return stack[-1]._native if stack else None


def enter(graph: Graph) -> None:
    """Makes a graph the innermost one."""
    _stack.set((*_stack.get(), graph))


def leave(graph: Graph) -> None:
    """Takes a graph off the stack, wherever it is: generators and tasks may leave theirs out of order."""
    stack = list(_stack.get())
    for at in reversed(range(len(stack))):
        if stack[at] is graph:
            del stack[at]
            break
    _stack.set(tuple(stack))
