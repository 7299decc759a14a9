"""Functions whose ops run immediately, or together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from max import _core
from max.experimental import realization_context as _realization
from max.graph._building import current_native, leave, stack
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


_BARE = _realization.BARE._native


def call(op: str, *args: Any) -> Any:
    """Runs an op with one result, or records it in the current scope."""
    scopes = stack.get()
    if scopes:
        return _core.op(scopes[-1]._native, op, args)
    if _realization._default is None:
        return _core.op(_BARE, op, args)
    with _realization.new_context():
        return call(op, *args)


def call_many(op: str, *args: Any) -> list[Any]:
    """Runs an op with several results, or records it in the current scope."""
    if not stack.get() and _realization._default is not None:
        with _realization.new_context():
            return call_many(op, *args)
    return _core.op(_current_native(), op, args)  # type: ignore[no-any-return]


def converted(convert: Callable[[], Any]) -> Any:
    """Converts an operand of a bare op; the ops that this takes run immediately too."""
    with _realization.BARE:
        return convert()


def _current_native() -> _core.Graph | _core.Region:
    """The native object of the innermost scope, or the one for bare ops."""
    return current_native() or _BARE


_ELSEWHERE = {"call": call, "call_many": call_many, "current_native": _current_native}
"""What the functions of ops call instead, when they are functions of tensors."""

_globals: dict[str, dict[str, Any]] = {}
"""The globals of these functions, by module."""


def single(op: FunctionType) -> Callable[..., Any]:
    """The function of tensors for a single op, which runs immediately without a context of its own.

    It is the same code, but calls the functions of this module.
    """
    module = op.__module__
    if module not in _globals:
        _globals[module] = op.__globals__ | _ELSEWHERE
    run = FunctionType(op.__code__, _globals[module], op.__name__, op.__defaults__, op.__closure__)
    run.__kwdefaults__ = op.__kwdefaults__
    functools.update_wrapper(run, op)
    run.__module__ = "max.experimental.functional"
    return run


def source(op: FunctionType) -> Callable[..., Any]:
    """Like `single`, for an op without operands: it always returns tensors here."""
    run = single(op)

    @functools.wraps(run)
    def make(*args: Any, **kwargs: Any) -> Any:
        made, scopes = run(*args, **kwargs), stack.get()
        if isinstance(made, TensorValue) and isinstance(scopes[-1], _realization.GraphRealizationContext):
            return scopes[-1].create_unrealized(made)
        return made

    return make
