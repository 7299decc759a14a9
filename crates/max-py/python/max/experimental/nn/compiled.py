"""Compiled modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from max import _core
from max.engine import InferenceSession, Model
from max.experimental.nn._state import fit_all, look_up
from max.experimental.nn._structure import Rebuild
from max.experimental.nn._tracing import Trace
from max.experimental.tensor import Tensor, wrap
from max.graph import DeviceRef, Graph, TensorType

__all__ = ["CompiledModule"]


class CompiledModule:
    """The `forward` of a module as one program, created by `Module.compile`. It may run on several threads at once."""

    __slots__ = ("__weakref__", "_rebuild", "graph", "input_types", "model")
    _rebuild: Rebuild
    graph: Graph
    """The graph that was compiled."""
    input_types: tuple[TensorType, ...]
    """The types of the inputs."""
    model: Model
    """The model that runs."""

    def __init__(self) -> None:
        raise TypeError("a CompiledModule is created by Module.compile")

    def __call__(self, *inputs: Any) -> Any:
        """Runs the program.

        Args:
            *inputs: Tensors, arrays, or numbers for rank-0 inputs. Host arrays and numbers are moved to the device of
                their input; a tensor must already be there.

        Returns:
            What `forward` returned when it was traced, with the results in place of its tensors.

        Raises:
            TypeError: If an input is none of these.
            ValueError: If the number of inputs, a dtype or a shape is not what the program expects.
        """
        given = tuple([_storage(x) if isinstance(x, Tensor) else x for x in inputs])
        outputs = self.model._native.execute(given)
        return self._rebuild(map(wrap, map(_core.Tensor.from_buffer, outputs)))

    def __repr__(self) -> str:
        return f"CompiledModule({self.model!r})"


def load(
    trace: Trace,
    weights: Mapping[str, Any] | Callable[[str], Any] | None,
    session: InferenceSession | None,
    auto_cast: bool,
) -> CompiledModule:
    """Compiles a graph with the parameters of its module, or with other weights."""
    if weights is None:
        values = {parameter.name: parameter.tensor for parameter in trace.parameters}
    else:
        values = fit_all(trace.parameters, look_up(trace.parameters, weights), auto_cast)
        for parameter in trace.parameters:
            if parameter.name not in values:
                raise KeyError(f"parameter {parameter.name!r} is missing from the weights of {trace.graph.name!r}")
    registry = {name: _storage(tensor) for name, tensor in values.items()}
    compiled = object.__new__(CompiledModule)
    session = session or _shared_session(_devices(trace))
    compiled.model = session.load(trace.graph, weights_registry=registry)
    compiled.graph, compiled.input_types, compiled._rebuild = trace.graph, trace.input_types, trace.rebuild
    return compiled


def _devices(trace: Trace) -> frozenset[DeviceRef]:
    """Where the inputs, parameters and results of a module are."""
    types = [*trace.input_types, *(parameter.tensor.type for parameter in trace.parameters)]
    types += [type for type in trace.graph.output_types if isinstance(type, TensorType)]
    return frozenset(type.device for type in types)


@cache
def _shared_session(devices: frozenset[DeviceRef]) -> InferenceSession:
    """The session of modules that are compiled without one, for devices: others are not opened."""
    return InferenceSession(devices=[device.to_device() for device in sorted(devices, key=str)])


def _storage(tensor: Tensor) -> _core.Buffer:
    """The memory of a tensor, which is computed if it has none."""
    native = tensor._native
    native.realize()
    return native.buffer  # type: ignore[no-any-return]
