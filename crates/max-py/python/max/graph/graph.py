"""The graph: a program that ops are recorded into."""

from __future__ import annotations

import os
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

    from max.graph.type import Type
    from max.graph.weight import Weight

__all__ = ["Graph"]


class _NoGraph(LookupError, AttributeError):
    """There is no current graph. Also an AttributeError, so that `hasattr` and `getattr` work."""


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

    _lazy = True

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
            with self:
                result = forward(*self.inputs, *args, **kwargs)
                if result is not None:
                    many = isinstance(result, Iterable) and not isinstance(result, Operators)
                    self.output(*(result if many else [result]))  # type: ignore[misc]

    def _adopt(self, native: _core.Graph) -> None:
        self._native = native
        self._inputs = [_value.wrap(value) for value in native.inputs()]

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
