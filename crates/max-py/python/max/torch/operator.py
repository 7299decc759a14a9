"""PyTorch operators whose implementation is a compiled graph.

An operator gets its outputs as its first arguments and writes them in place, so PyTorch allocates everything that it can
see. The graph has these outputs as buffers, stores its results there and returns nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from max.driver import CPU, Accelerator, Buffer, Device
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, KernelLibrary, Shape, TensorType, TensorValue, Value, ops
from torch.utils.dlpack import to_dlpack

if TYPE_CHECKING:
    from torch.library import CustomOpDef

Results: TypeAlias = "Value[Any] | Iterable[Value[Any]] | None"
"""What a function over graph values may return."""

Body: TypeAlias = Callable[[Sequence[TensorValue], Sequence[TensorType]], Results]
"""Records a graph: a function of the inputs and of the types that its results must have."""

Key: TypeAlias = "tuple[torch.dtype, torch.Size, torch.device]"
"""What a model is compiled for, of a tensor whose type is not given."""

_MODELS_PER_OPERATOR = 64
"""How many models an operator keeps, one for each combination of dtypes, shapes and devices that it was called with."""

_names: set[str] = set()


def define(
    name: str,
    body: Body,
    inputs: Sequence[str] | None,
    num_outputs: int,
    input_types: Sequence[TensorType] | None = None,
    output_types: Sequence[TensorType] | None = None,
    kernel_library: KernelLibrary | None = None,
) -> CustomOpDef:
    """Registers an operator with PyTorch.

    Args:
        name: The name to show; the registered one is unique, so that defining an operator again leaves the old one alone.
        body: What the operator computes.
        inputs: The names of the inputs; None for an operator that takes any number of them, as one list.
        num_outputs: The number of outputs.
        input_types: The types of the inputs; by default those of the tensors in a call.
        output_types: The types of the outputs; by default those of the tensors in a call.
        kernel_library: Custom ops for the graph.
    """
    operator = _Operator(name, body, num_outputs, input_types, output_types, kernel_library)
    outputs = [f"__out{index}" for index in range(num_outputs)]
    arguments = [f"Tensor(a{index}!) {output}" for index, output in enumerate(outputs)]
    arguments += ["Tensor[] inputs"] if inputs is None else [f"Tensor {argument}" for argument in inputs]

    def run(*given: Any) -> None:
        operator.run(given[:num_outputs], given[num_outputs] if inputs is None else given[num_outputs:])

    defined = torch.library.custom_op(
        f"max_torch::{_unique(name)}",
        run,
        mutates_args=outputs,
        schema=f"({', '.join(arguments)}) -> ()",
        # A CUDA graph of PyTorch's cannot hold work that is on a stream of ours.
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    defined.register_fake(lambda *given: None)
    return defined


def _unique(name: str) -> str:
    """A name that no other operator has, made of letters, digits and underscores."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    candidates = itertools.chain([base], (f"{base}_{count}" for count in itertools.count(1)))
    found = next(candidate for candidate in candidates if candidate not in _names)
    _names.add(found)
    return found


class _Operator:
    """The implementation of an operator: compiles graphs for the tensors it is called with, and runs them."""

    def __init__(
        self,
        name: str,
        body: Body,
        num_outputs: int,
        input_types: Sequence[TensorType] | None,
        output_types: Sequence[TensorType] | None,
        kernel_library: KernelLibrary | None,
    ) -> None:
        self.name, self.body, self.num_outputs, self.kernel_library = name, body, num_outputs, kernel_library
        self.input_types, self.output_types = input_types, output_types
        self.model = lru_cache(maxsize=_MODELS_PER_OPERATOR)(self.compile)

    def run(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Computes the outputs in their own memory, from inputs in theirs; only strided or overlapping ones are copied."""
        sources = [tensor.contiguous() for tensor in inputs]
        targets = [
            output if _is_free(output, [*outputs[:index], *outputs[index + 1 :], *sources]) else _contiguous_like(output)
            for index, output in enumerate(outputs)
        ]
        model = self.model(
            None if self.output_types is not None else tuple(map(_key, targets)),
            None if self.input_types is not None else tuple(map(_key, sources)),
        )
        try:
            self.execute(model, [*targets, *sources])
        except ValueError:
            self.check("output", targets, self.output_types)
            self.check("input", sources, self.input_types)
            raise
        for output, target in zip(outputs, targets, strict=True):
            if target is not output:
                output.copy_(target)

    def execute(self, model: Model, tensors: Sequence[torch.Tensor]) -> None:
        """Runs a model in the memory of tensors, in the order of PyTorch's current streams."""
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if devices and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{self.name!r} cannot be recorded in a CUDA graph of PyTorch: call it outside of one")
        streams = [(torch.cuda.current_stream(device), _our_stream(device)) for device in devices]
        for theirs, ours in streams:
            ours.wait_stream(theirs)
        buffers = [Buffer.from_dlpack(to_dlpack(tensor)) for tensor in tensors]
        model.execute(*buffers)
        for theirs, ours in streams:
            theirs.wait_stream(ours)
        for buffer in buffers:
            buffer._native.give_back()

    def compile(self, outputs: tuple[Key, ...] | None, inputs: tuple[Key, ...] | None) -> Model:
        """The model for tensors of these dtypes, shapes and devices; None where the user gave the types."""
        output_types = [_type(*key) for key in outputs] if outputs is not None else self.output_types
        input_types = [_type(*key) for key in inputs] if inputs is not None else self.input_types
        assert output_types is not None and input_types is not None
        graph_types = [*(output.as_buffer() for output in output_types), *input_types]
        with Graph(self.name, input_types=graph_types, kernel_library=self.kernel_library) as graph:
            values = [value.tensor for value in graph.inputs[self.num_outputs :]]
            results = self.results(self.body(values, output_types))
            for index, (result, wanted) in enumerate(zip(results, output_types, strict=True)):
                ops.buffer_store(graph.inputs[index].buffer, self.fit(index, result, wanted))
            graph.output()
        return _session(frozenset(found.device for found in [*output_types, *input_types])).load(graph)

    def results(self, returned: Results) -> list[TensorValue]:
        """What the body returned, as the right number of tensors."""
        if returned is None:
            returned = []
        values = [returned] if isinstance(returned, Value) else list(returned)
        for value in values:
            if not isinstance(value, TensorValue):
                raise TypeError(f"{self.name!r} must return tensors of its graph; got a {type(value).__name__}")
        if len(values) != self.num_outputs:
            raise ValueError(f"{self.name!r} returns {len(values)} tensors, but has num_outputs={self.num_outputs}")
        return values

    def fit(self, index: int, result: TensorValue, wanted: TensorType) -> TensorValue:
        """A result as a value of its output's type. Only sizes that are not known yet may differ."""
        if not _fits(result.type, wanted):
            raise ValueError(f"output {index} of {self.name!r} is a {result.type}, but must be written to a {wanted}")
        return result if result.shape == wanted.shape else result.rebind(wanted.shape)

    def check(self, role: str, tensors: Sequence[torch.Tensor], types: Sequence[TensorType] | None) -> None:
        """Raises an error about the first tensor that does not fit the type that the user gave for it."""
        for index, (tensor, wanted) in enumerate(zip(tensors, types or (), strict=False)):
            found = _type(*_key(tensor))
            if not _fits(found, wanted):
                raise ValueError(f"{role} {index} of {self.name!r} must be a {wanted}, got a {found}")


def _fits(found: TensorType, wanted: TensorType) -> bool:
    """Whether types are equal, but for sizes that are not static."""
    if (found.dtype, found.device, found.rank) != (wanted.dtype, wanted.device, wanted.rank):
        return False
    static = (pair for pair in zip(found.shape, wanted.shape, strict=True) if Shape.is_static(Shape(pair)))
    return all(have == want for have, want in static)


def _is_free(output: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether a graph can store a result right in the memory of an output: it is contiguous, and no other tensor's."""
    if not output.is_contiguous():
        return False
    start, end = output.data_ptr(), output.data_ptr() + output.nbytes
    return not any(start < other.data_ptr() + other.nbytes and other.data_ptr() < end for other in others)


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _key(tensor: torch.Tensor) -> Key:
    return tensor.dtype, tensor.shape, tensor.device


def _type(dtype: torch.dtype, shape: torch.Size, device: torch.device) -> TensorType:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"graphs run on tensors on cpu and cuda devices; got one on {device}")
    place = DeviceRef.CPU() if device.type == "cpu" else DeviceRef.GPU(device.index or 0)
    return TensorType(DType.from_torch(dtype), list(shape), place)


@lru_cache(maxsize=None)
def _our_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which models run, which exists as long as the process."""
    handle = Accelerator(device.index).default_stream._native.handle
    return torch.cuda.ExternalStream(handle, device=device)


@lru_cache(maxsize=None)
def _session(devices: frozenset[DeviceRef]) -> InferenceSession:
    places: list[Device] = [device.to_device() for device in devices if not device.is_cpu()]
    return InferenceSession(devices=[*places, CPU()])
