"""The graph: a program that ops are recorded into."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from max import _core
from max._native import native
from max.graph import _building
from max.graph import type as _type
from max.graph import value as _value
from max.graph._operators import Operators
from max.graph.kernel_library import KernelLibrary, add_to, library_of
from max.graph.value import TensorValue, TensorValueLike, Value

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from max.graph.type import DeviceRef, Type
    from max.graph.weight import Weight

__all__ = ["Graph"]


class _NoGraph(LookupError, AttributeError):
    """There is no current graph. Also an AttributeError, so that `hasattr` and `getattr` work."""


class _ChainValue:
    """A point in the order of effects."""


class _Current:
    """Makes `Graph.current` the innermost graph under construction."""

    def __get__(self, instance: object, owner: object) -> Graph:
        graph = _building.current()
        if graph is None:
            raise _NoGraph("No graph found: no graph is being built here")
        return graph


class Graph:
    """A program of tensor ops with inputs and outputs, to be loaded by an `InferenceSession`.

    Ops are recorded into the graph whose `with` block they are called in.

    >>> from max.dtype import DType
    >>> from max.graph import TensorType, ops
    >>> x = TensorType(DType.float32, ["n"])
    >>> with Graph("scaled_relu", input_types=[x]) as graph:
    ...     graph.output(ops.relu(graph.inputs[0]) * 2)
    >>> graph.output_types
    [TensorType(dtype=float32, shape=[Dim('n')], device=cpu:0)]

    The body can be a function of the inputs instead:

    >>> graph = Graph("scaled_relu", lambda x: ops.relu(x) * 2, input_types=[x])

    Args:
        name: The name of the graph.
        forward: A function that is called with the inputs, followed by `args` and `kwargs`, and returns one output or
            several, or None if it has set them itself.
        input_types: The types of the inputs.
        path: Instead: the path of a graph that `save` wrote.
        *args: Further arguments for `forward`.
        custom_extensions: Files of custom ops that it may use, or `KernelLibrary` objects.
        context: Must be None.
        kernel_library: The library to which these are added; by default a new one.
        module: Must be None.
        **kwargs: Further keyword arguments for `forward`.
    """

    _native: _core.Graph
    _library: KernelLibrary
    _inputs: list[Value[Any]]
    _ready: _ChainValue
    _chains: defaultdict[DeviceRef, _ChainValue]

    _lazy = True
    _unprefixed: Sequence[str] = ()
    """The weights whose names get no prefix when it is called as a subgraph."""

    current = _Current()
    """The graph of the innermost `with` block; raises LookupError if there is none."""

    def __init__(
        self,
        name: str = "graph",
        forward: Callable[..., Value[Any] | Iterable[Value[Any]] | None] | None = None,
        input_types: Iterable[Type[Any]] = (),
        path: str | os.PathLike[str] | None = None,
        *args: Any,
        custom_extensions: Sequence[Path] = (),
        context: Any = None,
        kernel_library: KernelLibrary | None = None,
        module: Any = None,
        **kwargs: Any,
    ) -> None:
        library = KernelLibrary() if kernel_library is None else kernel_library
        if not isinstance(library, KernelLibrary):
            raise TypeError(f"kernel_library is a KernelLibrary; got a {type(library).__name__}")
        for extension in custom_extensions:
            add_to(library, extension)
        self._library = library
        if context is not None or module is not None:
            raise NotImplementedError("graphs have no compiler context or module to share")
        if path is not None:
            self._adopt(_core.Graph.load(path, library._native))
        else:
            self._adopt(_core.Graph(name, list(input_types), library._native))
        if forward is not None:
            self._build(lambda: forward(*self.inputs, *args, **kwargs))

    def _adopt(self, native: _core.Graph) -> None:
        self._native = native
        self._inputs = [_value.wrap(value) for value in native.inputs()]
        self._ready = _ChainValue()
        self._chains = defaultdict(lambda: self._ready)

    def _nested(self, name: str, input_types: Iterable[Type[Any]]) -> Graph:
        """A graph that becomes a region of an op of this one, and may use values of this one."""
        graph = Graph.__new__(Graph)
        graph._library = self._library
        graph._adopt(self._native.nested(name, list(input_types)))
        return graph

    def add_subgraph(
        self,
        name: str,
        forward: Callable[..., Value[Any] | Iterable[Value[Any]] | None] | None = None,
        input_types: Iterable[Type[Any]] = (),
        path: str | os.PathLike[str] | None = None,
        custom_extensions: Sequence[Path] = (),
    ) -> Graph:
        """A graph that this one can run with `ops.call`, any number of times.

        It is compiled once, however often it is called. Its symbolic dims are those of this graph. It may have weights,
        whose names get the prefix of each call; it cannot use other values of this graph than those passed to it.

        >>> from max.dtype import DType
        >>> from max.graph import TensorType, ops
        >>> x = TensorType(DType.float32, ["n"])
        >>> with Graph("eight_times", input_types=[x]) as graph:
        ...     double = graph.add_subgraph("double", lambda x: x + x, input_types=[x])
        ...     value = graph.inputs[0]
        ...     for _ in range(3):
        ...         [value] = ops.call(double, value)
        ...     graph.output(value)

        Args:
            name: The name of the subgraph.
            forward: A function that is called with its inputs and returns its outputs.
            input_types: The types of its inputs.
            path: Instead: the path of a graph that `save` wrote.
            custom_extensions: Files of custom ops, which are added to those of this graph.
        """
        graph = Graph(name, None, input_types, path, custom_extensions=custom_extensions, kernel_library=self._library)
        if forward is not None:
            graph._build(lambda: forward(*graph.inputs))
        return graph

    @property
    def always_ready_chain(self) -> _ChainValue:
        """A point in the order of effects that comes before all of them."""
        return self._ready

    @property
    def device_chains(self) -> defaultdict[DeviceRef, _ChainValue]:
        """For each device, a point in the order of effects there.

        Ops with effects run in the order in which they are recorded, on all devices, so a chain need not be passed to any
        op.
        """
        return self._chains

    def merge_device_chains(self) -> None:
        """Makes all that is recorded later, on any device, run after all that has been recorded so far."""
        self._native.merge_device_chains()
        merged = _ChainValue()
        for device in self._chains:
            self._chains[device] = merged

    def _build(self, forward: Callable[[], Value[Any] | Iterable[Value[Any]] | None]) -> None:
        """Records what a function does; its results are the outputs, unless it has set them itself."""
        with self:
            result = forward()
            if result is None:
                if not self._native.has_output:
                    self.output()
            elif isinstance(result, Iterable) and not isinstance(result, (Operators, Value)):
                self.output(*result)
            else:
                self.output(result)

    @classmethod
    def parse(cls, text: str, custom_extensions: Any = None) -> Graph:
        """Parses the text form of a graph, as `str` prints it.

        Args:
            text: The text.
            custom_extensions: Where its custom ops are found: paths, or `KernelLibrary` objects.

        Raises:
            ValueError: If it is not valid, or long constants are elided from it.
        """
        graph = cls.__new__(cls)
        graph._library = library_of(custom_extensions)
        graph._adopt(_core.Graph.parse(text, graph._library._native))
        return graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph to a file that `InferenceSession.load` and `Graph(name, path=...)` read.

        They check that the file is whole and as it was written, and read it into memory: it may change afterwards.
        """
        self._native.save(path)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self._native.name

    @property
    def inputs(self) -> Sequence[Value[Any]]:
        """The inputs, as values to compute with."""
        return self._inputs

    @property
    def kernel_libraries_paths(self) -> list[Path]:
        """The files that its custom ops come from."""
        return self._library.library_paths()

    def output(self, *outputs: Value[Any] | TensorValueLike) -> None:
        """Sets what the graph returns."""
        self._native.output(outputs)

    @property
    def output_types(self) -> list[Type[Any]]:
        """The types of the outputs; raises ValueError if they are not set yet."""
        return [_type.wrap(output) for output in self._native.output_types()]

    def add_weight(self, weight: Weight, force_initial_weight_on_host: bool = True) -> TensorValue:
        """Adds a weight. Using a weight in an op also adds it.

        Args:
            weight: The weight; adding it again returns the same value.
            force_initial_weight_on_host: Has no effect: weights are read where they are.

        Raises:
            ValueError: If another weight has the same name.
        """
        return _value.wrap(self._native.add_weight(native(weight, _core.Weight))).tensor

    @property
    def _graph(self) -> Graph:
        return self

    def __enter__(self) -> Graph:
        _building.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _building.leave(self)

    def __str__(self) -> str:
        return str(self._native)

    __repr__ = __str__
