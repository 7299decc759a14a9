"""Models: graphs that are compiled and ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from max import _core
from max import dtype as _dtype
from max.driver import Buffer, Device, DLPackArray

if TYPE_CHECKING:
    import inspect

    import numpy as np

    from max.dtype import DType

InputLike: TypeAlias = Union[DLPackArray, Buffer, int, float, bool, "np.generic"]
"""What a model takes as an input: an array of any library, or a number for an input of rank zero."""


class TensorSpec(NamedTuple):
    """What a model says about one of its inputs or outputs."""

    name: str
    """The name: `input0`, `input1`, ... and `output0`, ..."""
    shape: list[int | None]
    """The sizes of the axes; None for those that are only known at run time."""
    dtype: DType
    """The type of the elements."""


class Model:
    """A graph that is compiled and ready to run. It may run on several threads at once.

    It is made by `InferenceSession.load`.
    """

    __slots__ = ("__weakref__", "_native")
    _native: _core.Model

    def __init__(self) -> None:
        raise TypeError("a Model is made by InferenceSession.load")

    @staticmethod
    def _wrap(native: _core.Model) -> Model:
        model = object.__new__(Model)
        model._native = native
        return model

    def execute(self, *args: InputLike) -> list[Buffer]:
        """Runs the model.

        Args:
            *args: The inputs, in order.

        Returns:
            The outputs, in order, each in memory of its own.

        Raises:
            TypeError: If an input is no array and no number.
            ValueError: If their number, a dtype or a shape is not what the model takes.
        """
        return [Buffer._wrap(output) for output in self._native.execute(args)]

    def __call__(self, *args: InputLike, **kwargs: InputLike) -> list[Buffer]:
        """Runs the model with inputs by position or by name: `model(x, input1=y)`."""
        return self.execute(*(self._bind(args, kwargs) if kwargs else args))

    def _bind(self, args: tuple[InputLike, ...], kwargs: dict[str, InputLike]) -> list[InputLike]:
        """All inputs in order."""
        names = [name for name, *_ in self._native.inputs]
        bound = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(f"model {self.name!r} has no input {name!r}; its inputs are {', '.join(names)}")
            if name in bound:
                raise TypeError(f"input {name!r} of model {self.name!r} is given twice")
            bound[name] = value
        missing = [name for name in names if name not in bound]
        if missing:
            raise TypeError(f"model {self.name!r} is called without its inputs {', '.join(missing)}")
        return [bound[name] for name in names]

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self._native.name

    @property
    def input_metadata(self) -> list[TensorSpec]:
        """What the inputs are.

        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType
        >>> with Graph("same", input_types=[TensorType(DType.float32, ["n", 3])]) as graph:
        ...     graph.output(graph.inputs[0])
        >>> InferenceSession().load(graph).input_metadata
        [TensorSpec(name='input0', shape=[None, 3], dtype=float32)]
        """
        return [_spec(*described) for described in self._native.inputs]

    @property
    def output_metadata(self) -> list[TensorSpec]:
        """What the outputs are."""
        return [_spec(*described) for described in self._native.outputs]

    @property
    def devices(self) -> list[Device]:
        """The devices it runs on."""
        return [Device._wrap(device) for device in self._native.devices]

    @property
    def input_devices(self) -> list[Device]:
        """The device of each input."""
        return [Device._wrap(_core.Device.from_ref(ref)) for *_, ref in self._native.inputs]

    @property
    def output_devices(self) -> list[Device]:
        """The device of each output."""
        return [Device._wrap(_core.Device.from_ref(ref)) for *_, ref in self._native.outputs]

    @property
    def signature(self) -> inspect.Signature:
        """The inputs as the parameters of a call."""
        from inspect import Parameter, Signature

        names = [name for name, *_ in self._native.inputs]
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs={self.input_metadata}, outputs={self.output_metadata})"


def _spec(name: str, shape: list[int | None], dtype: _core.DType, device: Any) -> TensorSpec:
    return TensorSpec(name, shape, _dtype.wrap(dtype))
