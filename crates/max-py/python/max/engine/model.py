"""Models: compiled graphs, ready to run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from max import _core
from max import dtype as _dtype
from max.driver import Buffer, Device, DLPackArray

if TYPE_CHECKING:
    import inspect

    import numpy as np

    from max.dtype import DType

InputLike: TypeAlias = Union[DLPackArray, Buffer, int, float, bool, "np.generic"]
"""What a model accepts as an input: an array of any library, or a number for a rank-0 input."""


class TensorSpec(NamedTuple):
    """The description of one input or output of a model."""

    name: str
    """The name: `input0`, `input1`, ... and `output0`, ..."""
    shape: list[int | None]
    """The sizes of the axes; None for those that are only known at run time."""
    dtype: DType
    """The type of the elements."""


class KernelSummary(NamedTuple):
    """One kernel of a model, which does the work of one or more ops."""

    name: str
    """The names of its ops: `mul+add+relu`."""
    kind: str
    """Its kind: `loop`, `matmul`, `attention`, `conv2d`, `gather`, `print` or `transfer`."""
    ops: list[str]
    """The ops whose work it does, with the types of their operands."""
    text: str
    """Everything it does, as text."""


class MemoryReport(NamedTuple):
    """The memory a model uses besides inputs, weights and outputs, except where sizes depend on data."""

    peak_bytes: int
    """The bytes of the temporaries of an execution, on all devices."""
    bytes_without_reuse: int
    """The bytes they would take if no temporary reused the memory of another."""
    packed_bytes: int
    """The bytes of constants and weights that executions so far have packed for their kernels; models with the same
    weights share them."""


class Model:
    """A compiled graph, ready to run, on several threads at once if you like.

    Created by `InferenceSession.load`.
    """

    __slots__ = ("__weakref__", "_native")
    _native: _core.Model

    def __init__(self) -> None:
        raise TypeError("a Model is created by InferenceSession.load")

    @staticmethod
    def _wrap(native: _core.Model) -> Model:
        model = object.__new__(Model)
        model._native = native
        return model

    def execute(self, *args: InputLike) -> list[Buffer]:
        """Runs the model.

        Args:
            *args: The inputs, in order. Host arrays and numbers are moved to the device of their input; a `Buffer` must
                already be there.

        Returns:
            The outputs, in order, each in its own memory on the device that the graph names. Work on a GPU may still be
            running; reading an output waits for it.

        Raises:
            TypeError: If an input is neither an array nor a number.
            ValueError: If the number of inputs, a dtype or a shape is not what the model expects.
        """
        return self._native.execute(args)

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

    def capture(self, graph_key: int, *inputs: InputLike) -> list[Buffer]:
        """Runs the model once, and keeps sizes, memory and launches for `replay`.

        Capturing a key again replaces its capture; earlier outputs keep their last values.

        >>> import numpy as np
        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType
        >>> with Graph("double", input_types=[TensorType(DType.float32, ["n"])]) as graph:
        ...     graph.output(graph.inputs[0] * 2)
        >>> model = InferenceSession().load(graph)
        >>> x = np.array([1, 2, 3], dtype=np.float32)
        >>> (y,) = model.capture(1, x)
        >>> x[0] = 10
        >>> model.replay(1, x)
        >>> y.to_numpy()
        array([20.,  4.,  6.], dtype=float32)

        Args:
            graph_key: An integer from 0 to 2**64 - 1, chosen by the caller.
            *inputs: The inputs, in order.

        Returns:
            The outputs. They belong to the capture: each replay overwrites them.

        Raises:
            TypeError: If the key is not an integer, or an input is neither an array nor a number.
            ValueError: If the key is out of range, there are no inputs, or they are not what the model expects.
            RuntimeError: If the model cannot be captured: it prints, its sizes depend on data, or it runs on more
                than one device.
        """
        return self._native.capture(graph_key, inputs)

    def replay(self, graph_key: int, *inputs: InputLike) -> None:
        """Replays the capture of a key, into the outputs that `capture` returned.

        The inputs must have the captured shapes. They may be other arrays, including outputs of the capture.

        Raises:
            TypeError: If the key is not an integer, or an input is neither an array nor a number.
            ValueError: If the key is out of range, there are no inputs, or they are not what the model expects.
            RuntimeError: If nothing was captured for the key, or it was captured for other shapes.
        """
        self._native.replay(graph_key, inputs)

    def debug_verify_replay(self, graph_key: int, *inputs: InputLike) -> None:
        """Runs the model as `execute` does, and checks that it launches what was captured under a key.

        Raises:
            TypeError: If the key is not an integer, or an input is neither an array nor a number.
            ValueError: If the key is out of range, there are no inputs, or they are not what the model expects.
            RuntimeError: If nothing was captured for the key, or the launches differ.
        """
        self._native.debug_verify_replay(graph_key, inputs)

    def release_captured_graph(self, graph_key: int) -> None:
        """Releases the capture of a key; its outputs stay as they are.

        Raises:
            TypeError: If the key is not an integer.
            ValueError: If the key is out of range.
            RuntimeError: If nothing was captured for the key.
        """
        self._native.release_captured_graph(graph_key)

    @property
    def kernel_summaries(self) -> list[KernelSummary]:
        """The kernels of the model, in execution order.

        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType, ops
        >>> with Graph("fused", input_types=[TensorType(DType.float32, ["n"])]) as graph:
        ...     graph.output(ops.tanh(ops.exp(graph.inputs[0])))
        >>> [(kernel.kind, kernel.name) for kernel in InferenceSession().load(graph).kernel_summaries]
        [('loop', 'exp+tanh')]
        """
        return [KernelSummary(*kernel) for kernel in self._native.kernels]

    def picture(self) -> str:
        """The graph and its kernels as an SVG document: the ops of one kernel share a box.

        In a large graph each kernel is one node. The picture follows the reader's preference for light or dark colours.

        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType, ops
        >>> with Graph("fused", input_types=[TensorType(DType.float32, ["n"])]) as graph:
        ...     graph.output(ops.tanh(ops.exp(graph.inputs[0])))
        >>> svg = InferenceSession().load(graph).picture()
        >>> svg.startswith("<svg"), "kernel 0: loop" in svg
        (True, True)

        Returns:
            The text of the document, for a file that ends in `.svg` or, in a notebook, `IPython.display.SVG(svg)`.
        """
        return self._native.picture()

    def fusion_summary(self) -> str:
        """What was fused: a line per kernel with its ops and what it writes, and one for ops that became views.

        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType, ops
        >>> with Graph("fused", input_types=[TensorType(DType.float32, ["n"])]) as graph:
        ...     graph.output(ops.tanh(ops.exp(graph.inputs[0])))
        >>> print(InferenceSession().load(graph).fusion_summary(), end="")
        kernel 0  loop       exp, tanh  -> float32[n]
        """
        return self._native.fusion_summary()

    def memory_report(self, *inputs: InputLike) -> MemoryReport:
        """The memory that an execution with such inputs uses, and what the model keeps packed; nothing runs.

        Raises:
            TypeError: If an input is neither an array nor a number.
            ValueError: If the number of inputs, a dtype or a shape is not what the model expects.
        """
        return MemoryReport(*self._native.memory_report(inputs))

    def profile_table(self) -> str:
        """Where the time of all executions and replays went: one line per kernel, slowest first.

        Kernels on a GPU are timed by the GPU. There a replay is launched as a whole, so all replays share one line.

        >>> from max.dtype import DType
        >>> from max.engine import InferenceSession
        >>> from max.graph import Graph, TensorType, ops
        >>> with Graph("exp", input_types=[TensorType(DType.float32, [])]) as graph:
        ...     graph.output(ops.exp(graph.inputs[0]))
        >>> session = InferenceSession()
        >>> session.gpu_profiling("on")
        >>> model = session.load(graph)
        >>> for _ in range(3):
        ...     _ = model.execute(1.5)
        >>> header, line = model.profile_table().splitlines()
        >>> line.split()[:2], line.split()[-1]
        (['0', '3'], 'exp')

        Raises:
            RuntimeError: If the session did not profile when it loaded the model.
        """
        return self._native.profile_table()

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the launches of all executions and replays to a JSON file for Perfetto and Chrome's trace viewer.

        Raises:
            RuntimeError: If the session did not profile when it loaded the model, or the file cannot be written.
        """
        self._native.save_trace(path)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self._native.name

    @property
    def input_metadata(self) -> list[TensorSpec]:
        """The descriptions of the inputs.

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
        """The descriptions of the outputs."""
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
