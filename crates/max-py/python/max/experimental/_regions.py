"""Functions whose ops run immediately, or together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from max.experimental import realization_context as _realization
from max.graph._building import leave, stack
from max.graph.value import TensorValue

F = TypeVar("F", bound=Callable[..., Any])


def functional(op: F) -> F:
    """Lets the ops of a function share one context, so that they run as one program when it returns.

    Use it as a decorator of functions and methods, or on a function of graph values to get one of tensors. In a
    context, or while a graph is being built, the function's ops join that. When the function returns, one program
    computes the tensors that somebody still holds; if it raises, nothing runs. A coroutine is one region; each step of
    a generator runs on its own.

    >>> from max.experimental.tensor import Tensor
    >>> from max.graph import ops
    >>> functional(ops.relu)(Tensor([-1.0, 1.0])).to_numpy()
    array([0., 1.], dtype=float32)

    Args:
        op: The function.
    """
    if isinstance(op, (classmethod, staticmethod)):
        return type(op)(functional(op.__func__))  # type: ignore[return-value]
    if not callable(op):
        raise TypeError(f"functional() takes a function, got {type(op).__name__}")
    if inspect.iscoroutinefunction(op):

        @functools.wraps(op)
        async def together_async(*args: Any, **kwargs: Any) -> Any:
            with _realization.ensure_context():
                return await op(*args, **kwargs)

        return together_async  # type: ignore[return-value]

    @functools.wraps(op)
    def together(*args: Any, **kwargs: Any) -> Any:
        if stack.get():
            return op(*args, **kwargs)
        context = _realization.new_context()
        try:
            with context:
                return op(*args, **kwargs)
        finally:
            if stack.get():  # Ctrl-C may have come before the context could be left
                leave(context)

    return together  # type: ignore[return-value]


_BARE_STACK = (_realization.BARE,)


def single(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors for a single op, which runs immediately without a context of its own."""

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        if stack.get():
            return op(*args, **kwargs)
        if _realization._default is not None:
            with _realization.new_context():
                return op(*args, **kwargs)
        try:
            stack.set(_BARE_STACK)
            return op(*args, **kwargs)
        finally:
            stack.set(())

    run.__module__ = "max.experimental.functional"
    return run


def source(op: Callable[..., Any]) -> Callable[..., Any]:
    """Like `single`, for an op without operands: it always returns tensors here."""
    run = single(op)

    @functools.wraps(run)
    def make(*args: Any, **kwargs: Any) -> Any:
        made, scopes = run(*args, **kwargs), stack.get()
        if isinstance(made, TensorValue) and isinstance(scopes[-1], _realization.GraphRealizationContext):
            return scopes[-1].create_unrealized(made)
        return made

    return make
