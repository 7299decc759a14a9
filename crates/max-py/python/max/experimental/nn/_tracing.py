"""Recording the `forward` of a module as a graph, without touching the module.

While a module is traced, reading one of its parameters gives the graph's weight in its place. Which weights those are
is a context variable, so other threads and tasks, and other traces inside of this one, see the module as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from max.experimental.nn import _state, _structure
from max.experimental.nn._tree import is_cache
from max.experimental.realization_context import GraphRealizationContext
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType, Weight

if TYPE_CHECKING:
    from max.experimental.nn.module import Module


class StandIns(NamedTuple):
    """What modules return for their attributes while they are traced."""

    weights: Mapping[int, Tensor]
    """The weights that replace parameters, by the `id` of the parameter."""
    caches: dict[tuple[int, str], tuple[Module, Any]]
    """The value of each `cached_property`, by the `id` of its module and by name. The module is kept alive, so that no
    other gets its `id`."""

    def read(self, module: Module, name: str) -> Any:
        """An attribute of a module.

        Values derived from parameters are computed from the weights, ignoring the cache of the module and leaving it
        alone; only cached modules are used as they are.
        """
        from max.experimental.nn.module import Module

        if is_cache(module, name) and not isinstance(vars(module).get(name), Module):
            key = id(module), name
            if key not in self.caches:
                self.caches[key] = module, getattr(type(module), name).func(module)
            return self.caches[key][1]
        value = object.__getattribute__(module, name)
        return self.weights.get(id(value), value) if isinstance(value, Tensor) else value


stand_ins: ContextVar[StandIns | None] = ContextVar("max.experimental.nn stand-ins", default=None)


class Trace(NamedTuple):
    """The `forward` of a module as a graph."""

    graph: Graph
    input_types: tuple[TensorType, ...]
    parameters: list[_state.Parameter]
    """The parameters of the module; a tensor shared by several is the weight with the first of their names."""
    rebuild: _structure.Rebuild
    """Makes what `forward` returns from the outputs of the graph."""


def trace(
    module: Module,
    input_types: Sequence[TensorType],
    name: str | None,
    custom_extensions: Sequence[str | os.PathLike[str]],
) -> Trace:
    """Calls `forward` once, with values of a new graph for its arguments and parameters.

    It runs in a copy of the context, so that no context variable stays set, whenever Ctrl-C comes.
    """
    return copy_context().run(_trace, module, input_types, name, custom_extensions)


def _trace(
    module: Module,
    input_types: Sequence[TensorType],
    name: str | None,
    custom_extensions: Sequence[str | os.PathLike[str]],
) -> Trace:
    for position, type_ in enumerate(input_types):
        if not isinstance(type_, TensorType):
            raise TypeError(f"input {position} must be a TensorType; got {type(type_).__name__}: {type_!r}")
    title = name or type(module).__name__
    stand_ins.set(None)  # an enclosing trace must not affect this one
    parameters = list(_state.parameters(module))
    graph = Graph(title, input_types=input_types, custom_extensions=custom_extensions)
    weights: dict[int, Tensor] = {}
    for parameter in parameters:
        if id(parameter.tensor) not in weights:
            weights[id(parameter.tensor)] = _weight(graph, parameter)
    with _without_leaks(module), GraphRealizationContext(graph):
        stand_ins.set(StandIns(weights, {}))
        result = module(*(Tensor.from_graph_value(value.tensor) for value in graph.inputs))
        outputs, rebuild = _structure.flatten(result, f"forward of {type(module).__name__}")
        graph.output(*outputs)
    return Trace(graph, tuple(input_types), parameters, rebuild)


def _weight(graph: Graph, parameter: _state.Parameter) -> Tensor:
    type = parameter.tensor.type
    return Tensor.from_graph_value(graph.add_weight(Weight(parameter.name, type.dtype, type.shape, type.device)))


@contextmanager
def _without_leaks(module: Module) -> Iterator[None]:
    """Removes graph values that `forward` leaves in a module: they are useless outside the graph.

    Raises:
        TypeError: If `forward` sets attributes to them, which a compiled program cannot do.
    """
    before = [(part, dict(vars(part))) for part in (module, *(part for _, part in module.descendants))]
    leaked: list[str] = []
    try:
        yield
    finally:
        for part, attributes in before:
            now = vars(part)
            for name in [name for name in now if now[name] is not attributes.get(name) and _is_graph_value(now[name])]:
                if not is_cache(part, name):
                    leaked.append(f"{type(part).__name__}.{name}")
                if name in attributes:
                    setattr(part, name, attributes[name])
                else:
                    delattr(part, name)
    if leaked:
        raise TypeError(
            f"forward of {type(module).__name__} sets {', '.join(leaked)}, but a compiled module has no state to set"
        )


def _is_graph_value(value: Any) -> bool:
    return isinstance(value, Tensor) and value._native.state == "value"
