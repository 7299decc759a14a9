"""Custom ops as PyTorch operators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from max.graph import KernelLibrary, TensorType, TensorValue, ops
from max.torch.operator import Results, define

if TYPE_CHECKING:
    import torch
    from max.dtype import DType

    Parameters = Mapping[str, bool | int | str | DType]


class CustomOpLibrary:
    """The custom ops of a library, as PyTorch operators.

    Every op is an attribute: `library.grayscale(result, picture)` writes the result of the op `grayscale` to the first
    tensor, which PyTorch allocated, and reads the other. `library.crop[{"top": 8}]` is an op with parameters.

    Args:
        kernel_library: The library, or the path of one.
    """

    def __init__(self, kernel_library: str | os.PathLike[str] | KernelLibrary) -> None:
        self._library = as_library(kernel_library)

    def __getattr__(self, name: str) -> CustomOp:
        if name.startswith("__") or name == "_library":  # Python's own protocols, and an object that is not set up
            raise AttributeError(f"a CustomOpLibrary has no attribute {name!r}")
        try:
            op = CustomOp(self._library, name)
        except ValueError as error:
            raise AttributeError(str(error)) from None
        setattr(self, name, op)  # found without this method from now on
        return op


class CustomOp:
    """A custom op as a PyTorch operator: called with its outputs, which it writes in place, then its inputs.

    It has as many outputs as its signature has results, or one if it has no signature. Created by `CustomOpLibrary`.
    """

    def __init__(self, library: KernelLibrary, name: str, parameters: Parameters | None = None) -> None:
        results = library[name].num_results
        self._library, self._name, self._parameters = library, name, dict(parameters or {})
        self._num_outputs = 1 if results is None else results
        self._operator = define(name, self._record, None, self._num_outputs, kernel_library=library)

    def __getitem__(self, parameters: Parameters) -> CustomOp:
        """The op with these values for its parameters."""
        return CustomOp(self._library, self._name, parameters)

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Writes the results of the op to the first tensors, computed from the others."""
        self._operator(*tensors[: self._num_outputs], list(tensors[self._num_outputs :]))

    def _record(self, inputs: Sequence[TensorValue], output_types: Sequence[TensorType]) -> Results:
        device = (output_types[0] if output_types else inputs[0]).device
        return ops.custom(self._name, device, inputs, output_types, self._parameters)


def as_library(library: str | os.PathLike[str] | KernelLibrary) -> KernelLibrary:
    """A library, which may be given by its path."""
    return library if isinstance(library, KernelLibrary) else KernelLibrary(paths=[Path(library)])
