"""Where ops on tensors go before they run.

An op outside any context has run when its call returns. A context collects ops instead:

- `EagerRealizationContext` runs them together, as one program, when its block ends;
- `LazyRealizationContext` (or `lazy()`) runs only what somebody reads, when it is read;
- `GraphRealizationContext` records them into a graph, where tensors represent values without data.

>>> from max.experimental.tensor import Tensor
>>> x = Tensor([1.0, 2.0])
>>> with EagerRealizationContext():
...     y = x * 2 + 1
...     y.real
False
>>> y.real
True
>>> with lazy():
...     z = y * y
>>> z.real
False
>>> z.to_numpy(), z.real
(array([ 9., 25.], dtype=float32), True)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from max import _core
from max.experimental._trace import Realization as Realization
from max.experimental._trace import RealizationTrace as RealizationTrace
from max.experimental._trace import trace as trace
from max.graph import _building
from max.graph.graph import Graph
from max.graph.value import TensorValue, Value, wrap_result

if TYPE_CHECKING:
    from types import TracebackType

    from max.experimental.tensor import Tensor

__all__ = [
    "CompileCacheStats",
    "EagerRealizationContext",
    "GraphRealizationContext",
    "LazyRealizationContext",
    "Realization",
    "RealizationTrace",
    "clear_compile_cache",
    "compile_cache_stats",
    "ensure_context",
    "in_graph_context",
    "lazy",
    "seed",
    "set_default_realization_context",
    "set_seed",
    "trace",
]

C = TypeVar("C", bound="_Context")
R = TypeVar("R")


class Done(Coroutine[Any, Any, R]):
    """A coroutine whose result already exists, so that it need not be awaited; it can be awaited more than once."""

    __slots__ = ("_result",)

    def __init__(self, result: R) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, R]:
        return self._result
        yield

    def send(self, value: Any) -> Any:
        """Ends the coroutine with its result."""
        raise StopIteration(self._result)

    def throw(self, *exception: Any) -> Any:
        """Raises the exception: there is nothing left that could catch it."""
        return super().throw(*exception)

    def close(self) -> None:
        """Does nothing: there is nothing left to do."""


class _Context:
    """A scope of ops on tensors, entered by `with`. It may be entered again, even inside itself."""

    __slots__ = ("__weakref__", "_native")
    _native: Any
    _graph: Any = None
    _lazy = False

    def __enter__(self: C) -> C:
        _building.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _building.leave(self)

    def add_mutable_source(self, tensor: Tensor) -> Any:
        """Not supported yet: raises NotImplementedError."""
        raise NotImplementedError("ops cannot change tensors in place yet")


class EagerRealizationContext(_Context):
    """Collects ops and runs them together when its block ends.

    One program then computes the tensors that somebody still holds. If the block ends with an exception, nothing runs.
    Reading a tensor inside the block runs what it needs.

    Args:
        executor: Must be None.
        use_interpreter: Has no effect: there is only one way to run ops.
    """

    __slots__ = ()
    _kind = "eager"

    def __init__(self, executor: Any = None, *, use_interpreter: bool | None = None) -> None:
        if executor is not None:
            raise NotImplementedError("ops run on the devices of their tensors: there is no executor to choose")
        self._native = _core.Region(self._kind)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _building.leave(self)
        if kind is None:
            self._native.realize_all()

    def add_source(self, tensor: Tensor) -> Tensor:
        """The tensor as an operand in this context: the tensor itself."""
        return tensor

    def create_unrealized(self, values: Any, *, mapping: Any = None) -> Tensor:
        """The tensor of a result in this context; results already are tensors.

        Args:
            values: The result, or a list with only the result in it.
            mapping: Must be None.
        """
        result = _only(values, mapping)
        if getattr(result, "_native", None).__class__ is not _core.Tensor:
            raise TypeError(f"{type(result).__name__} is not a result of this context: {result!r}")
        return result  # type: ignore[no-any-return]

    def finalize_graph(self) -> list[Tensor]:
        """The tensors that `realize_all` would compute: those that somebody holds and that are not real yet."""
        return [wrap_result(native) for native in self._native.pending]  # type: ignore[misc]

    def realize_all(self) -> Done[list[Tensor]]:
        """Computes all tensors of the context that somebody holds.

        Returns:
            The tensors, which may be awaited; they are real immediately.
        """
        tensors = self.finalize_graph()
        self._native.realize_all()
        return Done(tensors)


class LazyRealizationContext(EagerRealizationContext):
    """Collects ops and runs only what somebody reads, when it is read.

    Args:
        executor: Must be None.
        use_interpreter: Has no effect: there is only one way to run ops.
    """

    __slots__ = ()
    _kind = "lazy"
    _lazy = True

    __exit__ = _Context.__exit__


class GraphRealizationContext(_Context):
    """Records ops on tensors into a graph, so that code for tensors can build graphs too.

    >>> from max.dtype import DType
    >>> from max.experimental import functional as F
    >>> from max.experimental.tensor import Tensor
    >>> from max.graph import TensorType
    >>> graph = Graph("double_relu", input_types=[TensorType(DType.float32, ["n"])])
    >>> with GraphRealizationContext(graph):
    ...     x = Tensor.from_graph_value(graph.inputs[0])
    ...     graph.output(F.relu(x) * 2)
    >>> graph.output_types
    [TensorType(dtype=float32, shape=[Dim('n')], device=cpu:0)]

    Args:
        graph: The graph.
        signal_buffers: Must be None: ops do not span devices yet.
        prefix: Has no effect: constants have no names.
    """

    __slots__ = ("_graph",)
    _lazy = True

    def __init__(self, graph: Graph, signal_buffers: Any = None, prefix: str = "") -> None:
        if signal_buffers:
            raise NotImplementedError("ops cannot span several devices yet")
        if not isinstance(graph, Graph):
            raise TypeError(f"expected a Graph, got {type(graph).__name__}")
        self._graph = graph
        self._native = graph._native

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph  # type: ignore[no-any-return]

    def add_source(self, tensor: Tensor) -> TensorValue:
        """The value that represents a tensor in the graph; the data of a real tensor becomes a constant."""
        with self:
            return TensorValue(tensor)

    def create_unrealized(self, values: Any, *, mapping: Any = None) -> Tensor:
        """A tensor for a value of the graph.

        Args:
            values: The value, or a list with only the value in it.
            mapping: Must be None.
        """
        value = _only(values, mapping)
        if not isinstance(value, Value):
            raise TypeError(f"expected a value of a graph, got {type(value).__name__}")
        return wrap_result(_core.Tensor.from_value(value))  # type: ignore[return-value]

    def realize_all(self) -> Done[list[Tensor]]:
        """Raises TypeError: the values of a graph have no data before it is compiled and runs."""
        raise TypeError(f"the values of the graph {self._graph.name!r} have no data before it is compiled and runs")


def _only(values: Any, mapping: Any) -> Any:
    """The only element of a list, or a value that is not a list."""
    if mapping is not None:
        raise NotImplementedError("tensors cannot be spread over several devices yet")
    if not isinstance(values, Sequence):
        return values
    if len(values) != 1:
        raise NotImplementedError(f"a tensor of {len(values)} parts: tensors cannot be spread over several devices yet")
    return values[0]


class _Bare(_Context):
    """The scope of ops outside any other scope: they have run when their calls return."""

    __slots__ = ()

    def __init__(self) -> None:
        self._native = _core.Region("bare")


BARE = _Bare()

_default: Callable[[], Any] | None = None
"""Creates the contexts of ops outside any context, if somebody has chosen one."""


def set_default_realization_context(fn: Callable[[], Any] | None) -> None:
    """Chooses the context for ops outside any context; each op or `functional` call gets a new one.

    >>> from max.experimental.tensor import Tensor
    >>> set_default_realization_context(LazyRealizationContext)
    >>> (Tensor([1.0]) + 1).real
    False
    >>> set_default_realization_context(None)

    Args:
        fn: Called without arguments to create a context; None restores the default: ops run immediately.
    """
    global _default
    if fn is not None and not callable(fn):
        raise TypeError(f"expected a function that creates a context, got {type(fn).__name__}")
    _default = fn


def new_context() -> Any:
    """The context of a call outside any context."""
    return EagerRealizationContext() if _default is None else _default()


@contextmanager
def ensure_context() -> Iterator[Any]:
    """A block in which ops share a context: the current one, or a new one for the block.

    >>> from max.experimental.tensor import Tensor
    >>> with ensure_context() as outer:
    ...     with ensure_context() as inner:
    ...         x = Tensor([1.0]) + 1
    >>> inner is outer, x.real
    (True, True)
    """
    scopes = _building.stack.get()
    if scopes:
        yield scopes[-1]
    else:
        context = new_context()
        try:
            with context:
                yield context
        finally:
            _building.leave(context)  # Ctrl-C may have come before it could be left


def in_graph_context() -> bool:
    """Whether ops are recorded into a graph here.

    >>> with Graph("demo"):
    ...     in_graph_context()
    True
    >>> in_graph_context()
    False
    """
    return _building.current() is not None


def lazy() -> LazyRealizationContext:
    """A block whose ops run only if somebody reads their results.

    >>> from max.experimental.tensor import Tensor
    >>> with lazy():
    ...     weights = Tensor.zeros([100_000, 100_000])
    >>> weights.real
    False
    """
    return LazyRealizationContext()


_seed = 0


def set_seed(value: int) -> None:
    """Restarts the random numbers of this process: the same seed gives the same numbers.

    >>> from max.experimental import random
    >>> set_seed(7)
    >>> first = random.uniform([3])
    >>> set_seed(7)
    >>> bool((random.uniform([3]) == first).min().item())
    True
    """
    global _seed
    _core.set_seed(value)
    _seed = value


def seed() -> int:
    """The seed of the random numbers of this process: the last argument of `set_seed`.

    >>> set_seed(7)
    >>> seed()
    7
    """
    return _seed


@dataclass(frozen=True)
class CompileCacheStats:
    """How this process has used the cache of compiled ops and regions."""

    hits: int
    """How often a program was found."""
    misses: int
    """How often one had to be compiled."""
    size: int
    """Programs in the cache."""


def compile_cache_stats() -> CompileCacheStats:
    """How this process has used the cache of compiled ops and regions: the same ops on the same types compile once.

    >>> from max.experimental.tensor import Tensor
    >>> x = Tensor([1.0, 2.0]) * 3
    >>> before = compile_cache_stats()
    >>> for _ in range(10):
    ...     x = x * 3
    >>> compile_cache_stats().misses - before.misses
    0
    """
    return CompileCacheStats(*_core.tensor_cache_stats())


def clear_compile_cache() -> None:
    """Empties the cache of compiled ops and regions.

    >>> clear_compile_cache()
    >>> compile_cache_stats().size
    0
    """
    _core.clear_tensor_cache()
