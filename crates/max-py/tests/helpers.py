"""Helpers that convert between NumPy arrays and the package under test."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Callable, Optional, Sequence

import numpy as np
import pytest
from max.driver import Accelerator, Buffer
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType

from op_cases import SMALL, bfloat16_bits, from_bfloat16_bits, small_codes

CPU = DeviceRef.CPU()

# The documentation leaves open which exception is raised: any that stands for a user's mistake.
REFUSED = (ValueError, TypeError, IndexError, LookupError, RuntimeError, NotImplementedError)

# Relative tolerances; absolute ones are these times the scale of the expected values (at least 1).
RTOL = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def accelerator() -> Accelerator:
    """The first GPU; without one the calling module is skipped, with one line that says why."""
    try:
        return Accelerator()
    except RuntimeError as error:
        pytest.skip(f"no GPU: {str(error).splitlines()[0]}", allow_module_level=True)


def pytorch() -> Any:
    """PyTorch; without it the calling test or module is skipped, with one line for all of them."""
    try:
        import torch
    except ModuleNotFoundError:
        pytest.skip("PyTorch is not installed; cargo xtask test --torch installs it", allow_module_level=True)
    return torch


def compiler() -> None:
    """Skips the calling test where there is no C++ compiler, which `torch.compile` needs."""
    if not any(map(shutil.which, [os.environ.get("CXX", "g++"), "g++", "clang++"])):
        pytest.skip("torch.compile needs a C++ compiler, and there is none")


def dtype_of(name: str) -> DType:
    return getattr(DType, name)


def tensor(dtype: Any, *dims: Any) -> TensorType:
    """A CPU tensor type; the dtype may be a name."""
    return TensorType(dtype_of(dtype) if isinstance(dtype, str) else dtype, list(dims), CPU)


def to_buffer(array: np.ndarray, dtype: str) -> Buffer:
    """A buffer of `dtype`; those that NumPy lacks are given as arrays of float32 values."""
    if dtype in SMALL:
        return Buffer.from_numpy(small_codes(array, dtype)).view(dtype_of(dtype), list(array.shape))
    if dtype == "bfloat16":
        return Buffer.from_numpy(bfloat16_bits(array)).view(DType.bfloat16, list(array.shape))
    return Buffer.from_numpy(np.ascontiguousarray(array, dtype=dtype).reshape(array.shape))


def to_array(buffer: Buffer) -> np.ndarray:
    """The values of a buffer; dtypes that NumPy lacks are returned as float32."""
    if buffer.dtype.name in SMALL:
        return SMALL[buffer.dtype.name][buffer.view(DType.uint8, list(buffer.shape)).to_numpy()]
    if buffer.dtype == DType.bfloat16:
        return from_bfloat16_bits(buffer.view(DType.uint16, list(buffer.shape)).to_numpy())
    return buffer.to_numpy()


def build(forward: Callable[..., Any], types: Sequence[Any], name: str = "test") -> Graph:
    """A graph whose body is `forward` applied to the inputs; it may return one value or several."""
    with Graph(name, input_types=list(types)) as graph:
        result = forward(*graph.inputs)
        graph.output(*(result if isinstance(result, (list, tuple)) else [result]))
    return graph


def shapes_of(forward: Callable[..., Any], *types: Any) -> Any:
    """The shape (or shapes) of what `forward` returns for values of these types; nothing is executed."""
    with Graph("shapes", input_types=list(types)) as graph:
        result = forward(*graph.inputs)
        return [v.shape for v in result] if isinstance(result, (list, tuple)) else result.shape


def evaluate(
    session: Any, forward: Callable[..., Any], *arrays: Any, types: Optional[Sequence[Any]] = None
) -> list[np.ndarray]:
    """Builds `forward` over inputs of the arrays' types (or of `types`), runs it and returns its outputs."""
    if types is None:
        types = [TensorType(DType.from_numpy(a.dtype), a.shape, CPU) for a in arrays]
    model = session.load(build(forward, types))
    return [to_array(output) for output in model.execute(*arrays)]


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str, rtol: float = 0.0) -> None:
    """Checks shape and values: exactly for ints and bools, within the dtype's tolerance for floats."""
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if dtype not in RTOL:
        np.testing.assert_array_equal(actual, expected)
        return
    rtol = max(rtol, RTOL[dtype])
    finite = np.abs(np.asarray(expected, dtype=np.float64))
    finite = finite[np.isfinite(finite)]
    scale = max(1.0, finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(
        np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64), rtol=rtol, atol=rtol * scale
    )


def address(array: Any) -> int:
    """The address of the first element of an array or host buffer."""
    if isinstance(array, Buffer):
        array = np.from_dlpack(array)
    return array.__array_interface__["data"][0]


def mentions(text: str, *shapes: Sequence[Any]) -> bool:
    """Whether a message contains each of these shapes, with plain sizes and names or as Dims."""
    plain = re.sub(r"Dim\('?(\w+)'?\)", r"\1", text)
    plain = plain.replace("(", "[").replace(")", "]").replace(",]", "]")
    return all("[" + ", ".join(map(str, shape)) + "]" in plain for shape in shapes)
