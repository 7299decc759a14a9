"""Modules: models and their parts, as objects that hold parameters and compute with them."""

from __future__ import annotations

import dataclasses
import os
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from max.driver import Device
from max.experimental import tensor as _tensor
from max.experimental.nn import _state, _tracing
from max.experimental.nn import compiled as _compiled
from max.experimental.nn._tree import attributes, below, type_text
from max.experimental.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform

    from max.engine import InferenceSession
    from max.experimental.nn.compiled import CompiledModule
    from max.graph import DeviceRef, Graph, TensorType
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda decorator: decorator


C = TypeVar("C", bound="type[Module]")
P = ParamSpec("P")
R = TypeVar("R")

_get = object.__getattribute__


class Module(Generic[P, R]):
    """A model, or a part of one: a class with a `forward` method.

    For type checkers, `Module[[Tensor], Tensor]` says what `forward` takes and returns.

    Attributes that are tensors are its parameters, and attributes that are modules its children, in the order in which
    they were set. Calling a module calls `forward`.

    >>> from max.dtype import DType
    >>> from max.experimental.nn import Linear
    >>> from max.graph import TensorType
    >>> class Gated(Module):
    ...     def __init__(self, dim: int) -> None:
    ...         self.gate = Linear(dim, dim)
    ...         self.scale = Tensor.ones([dim])
    ...
    ...     def forward(self, x: Tensor) -> Tensor:
    ...         return self.gate(x) * x * self.scale
    >>> gated = Gated(3)
    >>> [name for name, _ in gated.parameters]
    ['scale', 'gate.weight', 'gate.bias']
    >>> gated(Tensor.ones([2, 3])).shape
    [Dim(2), Dim(3)]

    `compile` turns it into one program, for inputs of any size where a type has a symbolic dim:

    >>> model = gated.compile(TensorType(DType.float32, ["batch", 3]))
    >>> model(Tensor.ones([5, 3])).shape
    [Dim(5), Dim(3)]
    """

    name_transparent: bool = False
    """Whether the qualified names of the parameters and modules inside omit the name of this module."""

    def __getattribute__(self, name: str) -> Any:
        # While a module is traced, its parameters are weights of the graph, but only in the context that traces it.
        stand_ins = _tracing.stand_ins.get()
        return _get(self, name) if stand_ins is None else stand_ins.read(self, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `forward`."""
        return self.forward(*args, **kwargs)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The computation of the module; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    @property
    def local_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the parameters of the module itself."""
        return ((name, value) for name, value in attributes(self) if isinstance(value, Tensor))

    @property
    def children(self) -> Iterator[tuple[str, Module]]:
        """Names and modules directly below this one."""
        return ((name, value) for name, value in attributes(self) if isinstance(value, Module))

    @property
    def descendants(self) -> Iterator[tuple[str, Module]]:
        """Qualified names and modules of everything below this one, each before its own contents.

        Raises:
            ValueError: If a module is inside itself.
        """
        return ((place.name, place.module) for place in below(self))

    @property
    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Qualified names and tensors of the parameters of the module and of all modules inside.

        A tensor that has two names is listed under both.

        >>> from max.experimental.nn import Linear, Sequential
        >>> [name for name, _ in Sequential(Linear(2, 3), Linear(3, 1, bias=False)).parameters]
        ['0.weight', '0.bias', '1.weight']

        Raises:
            ValueError: If a module is inside itself, or two parameters have the same name because a module in between
                omits its own.
        """
        return ((parameter.name, parameter.tensor) for parameter in _state.parameters(self))

    @property
    def device(self) -> Device:
        """The device of the parameters; the default device if there are none.

        Raises:
            ValueError: If they are on several devices.
        """
        devices = {tensor.device: name for name, tensor in self.parameters}
        if len(devices) > 1:
            where = ", ".join(f"{name!r} on {device}" for device, name in devices.items())
            raise ValueError(f"the parameters of {type(self).__name__} are on several devices: {where}")
        return next(iter(devices)) if devices else _tensor.defaults()[1]

    def to(self, target: Device | DeviceRef) -> Self:
        """Moves all parameters to a device, and returns the module."""
        moved: dict[int, Tensor] = {}
        found = list(_state.parameters(self))
        for parameter in found:
            moved.setdefault(id(parameter.tensor), parameter.tensor.to(target))
        for parameter in found:
            parameter.assign(moved[id(parameter.tensor)])
        return self

    def load_state_dict(
        self, state: Mapping[str, Any] | Callable[[str], Any], strict: bool = True, *, auto_cast: bool = False
    ) -> None:
        """Replaces the parameters. The data is not copied, so it must not be changed afterwards.

        Everything is checked first: after an error, all parameters are unchanged.

        >>> import numpy as np
        >>> from max.experimental.nn import Linear
        >>> linear = Linear(2, 1)
        >>> linear.load_state_dict(
        ...     {"weight": np.array([[1, 2]], dtype=np.float32), "bias": np.array([3], dtype=np.float32)}
        ... )
        >>> linear(Tensor.ones([2])).item()
        6.0

        Args:
            state: Tensors, buffers, NumPy arrays or other DLPack arrays by the qualified names of the parameters; or a
                function that is called with such names, and may raise KeyError for unknown ones. If a tensor has
                several names, one of them is enough.
            strict: Whether there must be a value for each parameter, and a parameter for each value.
            auto_cast: Whether values are cast to the dtypes of the parameters.

        Raises:
            TypeError: If `state` or a value in it is something else.
            ValueError: If values are missing or unexpected, or a dtype or shape differs from that of its parameter.
        """
        _state.load(self, state, strict, auto_cast)

    def trace(
        self,
        *input_types: TensorType,
        name: str | None = None,
        custom_extensions: Sequence[str | os.PathLike[str]] = (),
        allow_subgraphs: bool = True,
        is_device_graph: bool = False,
        signal_buffer_index: int | None = None,
    ) -> Graph:
        """Records `forward` as a graph, in which parameters are weights with their qualified names.

        Args:
            *input_types: The types of the arguments of `forward`; sizes may be symbolic.
            name: The name of the graph; by default that of the class.
            custom_extensions: Files of custom ops that `forward` uses, or `KernelLibrary` objects.
            allow_subgraphs: Has no effect: the graph has no subgraphs.
            is_device_graph: Must be False.
            signal_buffer_index: Must be None.

        Raises:
            TypeError: If `forward` reads data, or returns something other than tensors.
        """
        _refuse_device_graph(is_device_graph, signal_buffer_index)
        return _tracing.trace(self, input_types, name, custom_extensions).graph

    def compile(
        self,
        *input_types: TensorType,
        weights: Mapping[str, Any] | Callable[[str], Any] | None = None,
        session: InferenceSession | None = None,
        name: str | None = None,
        custom_extensions: Sequence[str | os.PathLike[str]] = (),
        auto_cast: bool = False,
        allow_subgraphs: bool = True,
        is_device_graph: bool = False,
        signal_buffer_index: int | None = None,
    ) -> CompiledModule:
        """Compiles `forward` to one program. It is called once for that, with tensors that have no data.

        The program keeps the parameters it was compiled with. Decisions that `forward` makes in Python are made now: it
        must not read data.

        Args:
            *input_types: The types of the arguments of `forward`; sizes may be symbolic.
            weights: The data of the parameters by qualified name, or a function that finds it, as for
                `load_state_dict`; by default the parameters themselves. The parameters of the module do not change.
            session: The session to load it in; by default one shared by all modules.
            name: The name of the model; by default that of the class.
            custom_extensions: Files of custom ops that `forward` uses, or `KernelLibrary` objects.
            auto_cast: Whether `weights` are cast to the dtypes of the parameters.
            allow_subgraphs: Has no effect: the graph has no subgraphs.
            is_device_graph: Must be False.
            signal_buffer_index: Must be None.

        Returns:
            A program that is called with tensors or arrays and returns what `forward` returns.

        Raises:
            KeyError: If a parameter is missing from `weights`.
            TypeError: If `forward` reads data, or returns something other than tensors.
            ValueError: If a dtype or shape in `weights` differs from that of its parameter.
        """

        _refuse_device_graph(is_device_graph, signal_buffer_index)
        trace = _tracing.trace(self, input_types, name, custom_extensions)
        return _compiled.load(trace, weights, session, auto_cast)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        parts = [shown for part in self.__rich_repr__() if (shown := _show_part(part)) is not None]
        line = f"{type(self).__name__}({', '.join(parts)})"
        if "\n" not in line and len(line) <= 100:
            return line
        return f"{type(self).__name__}(\n" + textwrap.indent("".join(f"{part},\n" for part in parts), "    ") + ")"

    def __rich_repr__(self) -> Iterator[Any]:
        """What the repr of the module shows between its parentheses, by default its public attributes.

        The library `rich` uses it too: values, and tuples of a name, a value and optionally a default value, with which
        the value is not shown.
        """
        return ((name, value) for name, value in attributes(self) if not name.startswith("_"))


def _refuse_device_graph(is_device_graph: bool, signal_buffer_index: int | None) -> None:
    if is_device_graph or signal_buffer_index is not None:
        raise NotImplementedError("modules cannot be compiled for several devices that signal each other yet")


def _show_part(part: Any) -> str | None:
    """A part of the text of a module, unless it has its default value."""
    match part:
        case (name, value, default):
            return None if value == default else f"{name}={_show(value)}"
        case (name, value):
            return f"{name}={_show(value)}"
        case (value,) | value:
            return _show(value)


def _show(value: Any) -> str:
    """A value in the repr of a module; for a tensor only the type, as its data may not exist."""
    return type_text(value.type) if isinstance(value, Tensor) else repr(value)


if TYPE_CHECKING:

    @overload
    def module_dataclass(cls: C, /, *, repr: bool = False, **kwargs: Any) -> C: ...
    @overload
    def module_dataclass(cls: None = None, /, *, repr: bool = False, **kwargs: Any) -> Callable[[C], C]: ...


@dataclass_transform(eq_default=False)
def module_dataclass(cls: C | None = None, /, *, repr: bool = False, **kwargs: Any) -> C | Callable[[C], C]:
    """Turns the annotated fields of a module class into parameters of its constructor.

    Such modules are equal only to themselves.

    >>> from max.experimental import functional as F
    >>> @module_dataclass
    ... class Scale(Module):
    ...     factor: Tensor
    ...     times: int = 1
    ...
    ...     @F.functional
    ...     def forward(self, x: Tensor) -> Tensor:
    ...         return x * self.factor**self.times
    >>> Scale(Tensor.ones([3]), times=2)
    Scale(factor=float32[3], times=2)

    Args:
        cls: The class.
        repr: Whether to use the `repr` of dataclasses instead of that of modules, which does not show the data.
        **kwargs: Further arguments of `dataclasses.dataclass`.
    """

    def decorate(cls: C) -> C:
        return dataclasses.dataclass(cls, repr=repr, **{"eq": False, **kwargs})

    return decorate if cls is None else decorate(cls)
