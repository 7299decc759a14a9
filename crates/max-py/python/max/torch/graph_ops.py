"""`graph_op`: functions over graph values as PyTorch operators."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from max.graph import TensorType, Value
from max.torch.library import as_library
from max.torch.operator import define

if TYPE_CHECKING:
    from max.graph import KernelLibrary
    from torch.library import CustomOpDef

    Function = Callable[..., Value[Any] | Iterable[Value[Any]] | None]

    @overload
    def graph_op(
        fn: Function,
        name: str | None = None,
        kernel_library: str | os.PathLike[str] | KernelLibrary | None = None,
        input_types: Sequence[TensorType] | None = None,
        output_types: Sequence[TensorType] | None = None,
        num_outputs: int | None = None,
    ) -> CustomOpDef: ...
    @overload
    def graph_op(
        fn: None = None,
        name: str | None = None,
        kernel_library: str | os.PathLike[str] | KernelLibrary | None = None,
        input_types: Sequence[TensorType] | None = None,
        output_types: Sequence[TensorType] | None = None,
        num_outputs: int | None = None,
    ) -> Callable[[Function], CustomOpDef]: ...


def graph_op(
    fn: Function | None = None,
    name: str | None = None,
    kernel_library: str | os.PathLike[str] | KernelLibrary | None = None,
    input_types: Sequence[TensorType] | None = None,
    output_types: Sequence[TensorType] | None = None,
    num_outputs: int | None = None,
) -> CustomOpDef | Callable[[Function], CustomOpDef]:
    """Makes a PyTorch operator of a function that records graph ops.

    The operator is called with its outputs first, which it writes in place, then the inputs. It can be called directly
    and under `torch.compile`. Gradients do not flow through it.

    A graph is compiled for each combination of dtypes, shapes and devices that the operator is called with, and the models
    used last are kept. For sizes that often change, give types with symbolic dims: then there is one model for all sizes.

    >>> import torch
    >>> from max.dtype import DType
    >>> from max.graph import TensorType
    >>> rows = TensorType(DType.float32, ["rows", 3])
    >>> @graph_op(input_types=[rows], output_types=[rows])
    ... def centered(x):
    ...     return x - x.mean(axis=-1)
    >>> result = torch.empty(2, 3)
    >>> centered(result, torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 8.0]]))
    >>> result
    tensor([[-1.,  0.,  1.],
            [-1., -1.,  2.]])

    Args:
        fn: The function of one or more tensors that returns one or several; if None, the result is a decorator.
            Parameters with defaults keep them, unless `input_types` has types for them.
        name: The name of the operator; by default that of the function.
        kernel_library: Custom ops that the function uses: a library, or the path of one.
        input_types: The types of the inputs; by default those of the tensors in a call.
        output_types: The types of the outputs; by default those of the tensors in a call.
        num_outputs: The number of outputs; by default that of `output_types`, or 1.

    Returns:
        The operator, which `torch.library` also knows.

    Raises:
        TypeError: If the function cannot be called with the inputs by position.
        ValueError: If `num_outputs` is negative, or not the number of `output_types`.
    """
    if fn is None:
        return lambda fn: graph_op(fn, name, kernel_library, input_types, output_types, num_outputs)
    if num_outputs is None:
        num_outputs = 1 if output_types is None else len(output_types)
    if num_outputs < 0 or (output_types is not None and num_outputs != len(output_types)):
        expected = "0 or more" if output_types is None else f"{len(output_types)}, the number of output_types"
        raise ValueError(f"num_outputs is {num_outputs}, expected {expected}")
    title = name or getattr(fn, "__name__", type(fn).__name__)
    return define(
        title,
        lambda inputs, _: fn(*inputs),
        _input_names(title, fn, None if input_types is None else len(input_types)),
        num_outputs,
        input_types,
        output_types,
        None if kernel_library is None else as_library(kernel_library),
    )


def _input_names(title: str, fn: Function, count: int | None) -> list[str]:
    """The names of the parameters that get tensors: those without defaults, or the given number of them."""
    signature = inspect.signature(fn)
    named = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    if count is None:
        if rest is not None:
            raise TypeError(f"{title!r} takes any number of tensors (*{rest.name}): give input_types to say how many")
        count = sum(p.default is p.empty for p in named)
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise TypeError(f"{title!r}{signature} cannot be called with {count} tensors by position: {error}") from None
    names = [p.name for p in named[:count]]
    return names + [f"{rest.name}{index}" for index in range(count - len(names)) if rest is not None]
