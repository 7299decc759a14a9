"""Modules: components of models that know their weights by name.

>>> from max.dtype import DType
>>> from max.graph import DeviceRef, Graph, TensorType, Weight, ops
>>> class Linear(Module):
...     def __init__(self, in_dim, out_dim):
...         self.weight = Weight("weight", DType.float32, [out_dim, in_dim], DeviceRef.CPU())
...     def __call__(self, x):
...         return x @ self.weight.T
>>> class MLP(Module):
...     def __init__(self):
...         self.up = Linear(5, 10)
...         self.down = Linear(10, 5)
...     def __call__(self, x):
...         return self.down(ops.silu(self.up(x)))
>>> model = MLP()
>>> sorted(model.state_dict())
['down.weight', 'up.weight']
>>> with Graph("mlp", input_types=[TensorType(DType.float32, ["n", 5])]) as graph:
...     graph.output(model(graph.inputs[0]))
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from max.graph import Graph, Type, Weight
from max.nn import _state

if TYPE_CHECKING:
    from max.driver import DLPackArray
    from max.graph import DeviceRef
    from max.graph.weight import ShardingStrategy
    from max.graph.weights import WeightData

__all__ = [
    "Layer",
    "LayerList",
    "Module",
    "Shardable",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]

Hook = Callable[["Layer", tuple[Any, ...], dict[str, Any], Any], Any]
S = TypeVar("S")

_hooks: list[Hook] = []


class Layer:
    """The old base class of components; use `Module` instead.

    Hooks that `add_layer_hook` adds run after `__call__` of every layer.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("__call__")
        if inspect.isfunction(own):
            cls.__call__ = _hooked(own)  # type: ignore[method-assign]


def _hooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `__call__` that is followed by the hooks, unless that of a subclass calls it."""

    @functools.wraps(function)
    def __call__(self: Layer, *args: Any, **kwargs: Any) -> Any:
        outputs = function(self, *args, **kwargs)
        if type(self).__call__ is __call__:
            for hook in tuple(_hooks):
                replaced = hook(self, args, kwargs, outputs)
                outputs = outputs if replaced is None else replaced
        return outputs

    return __call__


class Module(Layer):
    """A component of a model: a function with weights and with other modules, which are its attributes.

    Weights are known by the path of attributes to their module, followed by the name that they had when they became an
    attribute of it. `state_dict` and `load_state_dict` give each weight its path as its name, so that all names in a
    graph differ: call one of them before building it. Modules in plain lists are not found, but a `LayerList` is a
    module.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Weight) and value.shard_idx is None:
            self._record(name, value.name, shared=False)
        super().__setattr__(name, value)

    def _record(self, attribute: str, name: str, shared: bool) -> None:
        """Keeps the name of a weight. What is kept is replaced, not changed: a copy of the module may have it too."""
        vars(self)["_weight_names"] = {**self._weight_names, attribute: name}
        others = self._shared_names - {attribute}
        vars(self)["_shared_names"] = others | {attribute} if shared else others

    _weight_names: Mapping[str, str] = {}
    """The names that weights had when they became attributes, by attribute."""
    _shared_names: frozenset[str] = frozenset()
    """The attributes that are weights of other modules."""

    def _weights(self) -> Iterator[tuple[str, str, Weight]]:
        """The attributes that are weights, with their names. Shards are not, because the whole weight is loaded."""
        taken: set[str] = set()
        for attribute, value in list(vars(self).items()):
            if isinstance(value, Weight) and value.shard_idx is None:
                name = self._weight_names.get(attribute, attribute)
                name = attribute if name in taken else name
                taken.add(name)
                yield attribute, name, value

    @property
    def layer_weights(self) -> dict[str, Weight]:
        """The weights that are attributes, by name."""
        return {name: weight for _, name, weight in self._weights()}

    @property
    def sublayers(self) -> dict[str, Module]:
        """The modules that are attributes, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Module)}

    def set_shared_weight(self, name: str, weight: Weight) -> None:
        """Makes the weight of another module an attribute of this one. It keeps its name and is loaded once.

        Args:
            name: The attribute.
            weight: The weight.
        """
        if not isinstance(weight, Weight):
            raise TypeError(f"a shared weight is a Weight; got {type(weight).__name__}")
        setattr(self, name, weight)
        self._record(name, name, shared=True)

    def raw_state_dict(self) -> dict[str, Weight]:
        """The weights of the module and of all below it, by path.

        Their attributes `align`, `dtype`, `quantization_encoding` and `shape` can be changed until a graph is built.
        A weight that can be reached by several paths has the first one.

        Raises:
            ValueError: If two weights have the same path.
        """
        return _state.first_paths(self._paths())

    def _paths(self) -> Iterator[tuple[str, Weight]]:
        """All paths to weights, but not those of shared weights. A module is visited once."""
        for path, layer in recursive_named_layers(self):
            for attribute, name, weight in layer._weights():
                if attribute not in layer._shared_names:
                    yield _join(path, name), weight

    def state_dict(self, auto_initialize: bool = True) -> dict[str, DLPackArray]:
        """The values of all weights, by path: what `load_state_dict` was given.

        The result is what `InferenceSession.load` takes as `weights_registry`.

        Args:
            auto_initialize: Whether weights without a value get zeros.

        Raises:
            ValueError: If a weight has no value.
        """
        weights = self.raw_state_dict()
        return {path: _state.value(path, weight, auto_initialize) for path, weight in weights.items()}

    def load_state_dict(
        self,
        state_dict: Mapping[str, DLPackArray | WeightData],
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool = True,
    ) -> None:
        """Sets the values of weights. If any value does not fit, none is set, and the error names all that do not.

        >>> import numpy as np
        >>> from max.dtype import DType
        >>> class Scale(Module):
        ...     def __init__(self):
        ...         self.scale = Weight("scale", DType.float32, ["n"])
        >>> Scale().load_state_dict({"scale": np.ones(3, dtype=np.float32)})
        >>> Scale().load_state_dict({})
        Traceback (most recent call last):
            ...
        ValueError: Missing required weights: 'scale'

        Args:
            state_dict: The values, by path: arrays, buffers, tensors or `WeightData`. They are not copied.
            override_quantization_encoding: Whether weights take the encoding of encoded values, and with it their dtype
                and shape.
            weight_alignment: What the address of each value must be a multiple of; by default, the size of an element.
            strict: Whether every weight must have a value, and every value a weight.

        Raises:
            ValueError: If values are missing, do not fit or are not used.
        """
        _state.load(list(self._paths()), state_dict, override_quantization_encoding, weight_alignment, strict)

    def build_subgraph(
        self, name: str, input_types: Sequence[Type[Any] | list[Type[Any]]], weight_prefix: str = ""
    ) -> Graph:
        """The module as a subgraph of the current graph, to be run with `ops.call`.

        Layers that differ only in their weights can be one subgraph, which is compiled once: build that of the first
        with its path as the prefix, and call it with the path of each.

        >>> from max.dtype import DType
        >>> from max.graph import Graph, TensorType, ops
        >>> class Scale(Module):
        ...     def __init__(self):
        ...         self.scale = Weight("scale", DType.float32, [3])
        ...     def __call__(self, x):
        ...         return x * self.scale
        >>> model = LayerList([Scale(), Scale()])
        >>> values, x = model.state_dict(), TensorType(DType.float32, [3])
        >>> with Graph("model", input_types=[x]) as graph:
        ...     layer = model[0].build_subgraph("layer", [x], weight_prefix="0.")
        ...     [y] = ops.call(layer, graph.inputs[0], prefix="0.")
        ...     graph.output(*ops.call(layer, y, prefix="1."))

        Args:
            name: The name of the subgraph.
            input_types: The types of the arguments. A list of types is one argument: the list of their values.
            weight_prefix: What is taken off the names of weights that start with it; calls put their own prefix there.
                Other weights keep their names.
        """
        graph = Graph.current.add_subgraph(name, input_types=_flat(input_types))
        inputs = iter(graph.inputs)
        args = [[next(inputs) for _ in ty] if isinstance(ty, (list, tuple)) else next(inputs) for ty in input_types]
        weights = [weight for _, layer in recursive_named_layers(self) for _, _, weight in layer._weights()]
        with _state.without_prefix(weights, weight_prefix) as others, graph:
            graph.output(*_flat([self(*args)]))
        graph._unprefixed = others
        return graph

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.sublayers)} layers, {len(self.layer_weights)} weights)"


class LayerList(Module, MutableSequence[Any]):
    """A list of layers, which are called one after the other; it can be used like a list.

    >>> class Double(Module):
    ...     def __call__(self, x):
    ...         return 2 * x
    >>> layers = LayerList([Double(), Double()])
    >>> layers.append(Double())
    >>> layers(1), list(layers.sublayers)
    (8, ['0', '1', '2'])

    Args:
        layers: The layers.
    """

    layers: list[Any]
    """The layers."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = [_checked(layer) for layer in layers]

    @property
    def sublayers(self) -> dict[str, Module]:
        """The layers that are modules; their names are their positions."""
        return {str(at): layer for at, layer in enumerate(self.layers) if isinstance(layer, Module)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the first layer with the arguments, and each further one with the outputs of the one before."""
        if not self.layers:
            if len(args) != 1 or kwargs:
                raise TypeError(f"{type(self).__name__} without layers takes one argument and returns it")
            return args[0]
        outputs = self.layers[0](*args, **kwargs)
        for layer in self.layers[1:]:
            outputs = layer(outputs)
        return outputs

    def append(self, layer: Layer) -> None:
        """Adds a layer at the end."""
        self.layers.append(_checked(layer))

    def extend(self, layer: Iterable[Layer]) -> None:
        """Adds layers at the end."""
        self.layers.extend([_checked(each) for each in layer])

    def insert(self, i: int, layer: Layer) -> None:
        """Adds a layer before another."""
        self.layers.insert(i, _checked(layer))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self.layers[index]

    def __setitem__(self, index: Any, layer: Any) -> None:
        self.layers[index] = [_checked(each) for each in layer] if isinstance(index, slice) else _checked(layer)

    def __delitem__(self, index: int | slice) -> None:
        del self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)


def _checked(layer: S) -> S:
    if not callable(layer):
        raise TypeError(f"a layer can be called; got {type(layer).__name__}: {layer!r}")
    return layer


@runtime_checkable
class Shardable(Protocol):
    """What can be spread over devices: weights, and layers of them."""

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is spread over devices."""

    def shard(self, devices: Iterable[DeviceRef]) -> Sequence[Any]:
        """The parts that devices have.

        Args:
            devices: As many devices as the strategy is for.
        """


def add_layer_hook(fn: Hook) -> None:
    """Adds a function that is called after `__call__` of every layer, in the order in which they were added.

    >>> class Increment(Module):
    ...     def __call__(self, x):
    ...         return x + 1
    >>> add_layer_hook(lambda layer, args, kwargs, outputs: print(type(layer).__name__, args, outputs))
    >>> _ = Increment()(1)
    Increment (1,) 2
    >>> clear_hooks()

    Args:
        fn: Called with the layer, its arguments, its keyword arguments and its outputs. What it returns replaces the
            outputs, unless it is None.
    """
    _hooks.append(fn)


def clear_hooks() -> None:
    """Removes all hooks."""
    _hooks.clear()


def recursive_named_layers(parent: Module, prefix: str = "") -> Iterable[tuple[str, Module]]:
    """A module and all below it, with their paths, each before those below it. A module is visited once.

    Args:
        parent: The module.
        prefix: Its own path.
    """
    seen, pending = {id(parent)}, [(prefix, parent)]
    while pending:
        path, layer = pending.pop()
        yield path, layer
        below = []
        for name, sublayer in layer.sublayers.items():
            if id(sublayer) not in seen:
                seen.add(id(sublayer))
                below.append((_join(path, name), sublayer))
        pending.extend(reversed(below))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _flat(items: Iterable[Any]) -> list[Any]:
    """The members of nested lists; None is no member."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, (list, tuple)):
            found.extend(_flat(item))
        elif item is not None:
            found.append(item)
    return found
