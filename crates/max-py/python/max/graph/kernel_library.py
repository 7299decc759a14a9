"""Libraries of custom ops.

An op comes from a file (a shared library, or CUDA C++), or is a Python function:

>>> import numpy as np
>>> from max.dtype import DType
>>> from max.engine import InferenceSession
>>> from max.graph import DeviceRef, Graph, KernelLibrary, TensorType, ops
>>> library = KernelLibrary()
>>> @library.register("row_max", "float32[n, k] -> float32[n]")
... def row_max(x, out):
...     np.max(x.to_numpy(), axis=1, out=out.to_numpy())
>>> with Graph("maxima", input_types=[TensorType(DType.float32, [2, 3])], kernel_library=library) as graph:
...     out_types = [TensorType(DType.float32, [2])]
...     graph.output(*ops.custom("row_max", DeviceRef.CPU(), graph.inputs, out_types))
>>> model = InferenceSession().load(graph)
>>> model.execute(np.array([[1, 2, 3], [6, 5, 4]], np.float32))[0].to_numpy()
array([3., 6.], dtype=float32)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from max import _core
from max.graph import _building

__all__ = ["KernelLibrary"]

F = TypeVar("F", bound=Callable[..., Any])


class KernelLibrary:
    """Custom ops by name, for graphs.

    A signature says what an op takes and returns, and is checked when the op is recorded: `"T[n, k], float32[k] -> T[n]"`.
    Capitalized names stand for dtypes and others for sizes; `_` is any size, `*shape` any number of sizes, `&T[n]` a buffer
    that the op may change, and an expression such as `n // 2` a size that follows from others.

    Args:
        context: Has no effect: a library needs no compiler context.
        paths: Files to load custom ops from: see `add_path`.
    """

    _native: _core.KernelLibrary
    _paths: list[Path]

    def __init__(self, context: Any = None, paths: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._native = _core.KernelLibrary()
        self._paths = []
        self.load_paths(context, paths)

    def library_paths(self) -> list[Path]:
        """The files that its custom ops were loaded from."""
        return list(self._paths)

    def add_path(self, path: str | os.PathLike[str]) -> None:
        """Loads the custom ops of a file.

        Args:
            path: A shared library (`.so`, `.dylib`, `.dll`) with the interface of `max_custom_op.h`, whose code runs in this
                process, or CUDA C++ (`.cu`) whose comments declare its ops.

        Raises:
            RuntimeError: If it is neither, or cannot be loaded.
            NotImplementedError: If it is Mojo.
            ValueError: If what it declares is wrong, or the library has an op of the same name.
        """
        path = Path(path)
        self._native.load(path)
        if path not in self._paths:
            self._paths.append(path)

    def load_paths(self, context: Any, custom_extensions: Iterable[str | os.PathLike[str]]) -> None:
        """Loads the custom ops of several files.

        Args:
            context: Has no effect.
            custom_extensions: The files; see `add_path`.
        """
        for path in custom_extensions:
            self.add_path(path)

    def verify_custom_op(self, custom_op: Any) -> None:
        """Checks that the library has an op.

        Args:
            custom_op: The op, or its name.

        Raises:
            ValueError: If it does not have it; the message lists what it has.
        """
        name = custom_op.name if isinstance(custom_op, _core.CustomOp) else custom_op
        if not isinstance(name, str):
            raise TypeError(f"a custom op is given by its name; got a {type(name).__name__}")
        self._native.find(name)

    def register(self, name: str, signature: str | None = None) -> Callable[[F], F]:
        """Makes a Python function a custom op, as a decorator.

        The function is called each time the op runs, with a `Buffer` for each operand and then for each result, all
        without copies, and with the parameters of the op as keywords. It fills the results, or returns one array for each.
        Operands on the host are read-only unless they are buffers of the graph. Buffers are only good during the call: what
        is kept must be copied. An exception ends the execution. The op runs between kernels, with the GIL, on any device;
        a model that uses it cannot be captured.

        Args:
            name: The name of the op.
            signature: What it takes and returns; by default anything.
        """

        def decorate(function: F) -> F:
            if not callable(function):
                raise TypeError(f"a custom op is a function; got a {type(function).__name__}")
            self._native.register(name, signature, function)
            return function

        return decorate

    def elementwise(self, name: str, function: Callable[..., Any], signature: str | None = None) -> None:
        """Makes a function over other ops a custom op.

        Where the op is recorded, the ops that the function records take its place. So it fuses with its neighbours like
        built-in ops, on every device.

        >>> from max.graph import ops
        >>> KernelLibrary().elementwise("swish2", lambda x: x * ops.sigmoid(2 * x), "T[*shape] -> T[*shape]")

        Args:
            name: The name of the op.
            function: It is called with a `TensorValue` for each operand and the parameters of the op as keywords, and
                returns one value or several.
            signature: What it takes and returns; by default anything.
        """
        if not callable(function):
            raise TypeError(f"a custom op is a function; got a {type(function).__name__}")
        self._native.register_body(name, signature, function)

    def register_cuda(
        self,
        name: str,
        source: str,
        signature: str,
        *,
        threads: str | None = None,
        blocks: str | None = None,
        block: int = 256,
        function: str | None = None,
        parameters: Sequence[str] = (),
    ) -> None:
        """Makes a function in CUDA C++ a custom op for GPUs.

        The function is declared `extern "C" __global__`. It gets the addresses of the operands, then of the results, then
        the sizes that the signature names in order of their first use, then the parameters; sizes and parameters are
        `long long`. Names of dtypes in the signature are types in the source, which includes no headers. It is compiled when
        a model first runs with given dtypes.

        Args:
            name: The name of the op.
            source: The source.
            signature: What it takes and returns.
            threads: How many threads it needs, in terms of the sizes in the signature, such as `"n * k // 4"`.
            blocks: Instead: how many blocks.
            block: How many threads a block has.
            function: The name of the function; by default that of the op.
            parameters: The names of the parameters that it takes, which are ints or bools.
        """
        self._native.register_cuda(name, source, signature, threads, blocks, block, function, list(parameters))

    def __getitem__(self, name: str) -> _core.CustomOp:
        """An op by its name: `ops.custom` takes it in place of the name, also where no graph knows the library."""
        return self._native.find(name)

    def __repr__(self) -> str:
        return f"KernelLibrary({[op.name for op in self._native.ops()]})"


def library_of(custom_extensions: Any) -> KernelLibrary:
    """A library of everything that `custom_extensions` may be: a path, a library, several of them, or None."""
    if isinstance(custom_extensions, KernelLibrary):
        return custom_extensions
    library = KernelLibrary()
    if custom_extensions is None:
        return library
    if isinstance(custom_extensions, (str, os.PathLike)):
        custom_extensions = [custom_extensions]
    for item in custom_extensions:
        add_to(library, item)
    return library


def add_to(library: KernelLibrary, item: Any) -> None:
    """Adds the ops of a path or of another library."""
    if isinstance(item, KernelLibrary):
        library._native.extend(item._native)
        library._paths += [path for path in item._paths if path not in library._paths]
    else:
        library.add_path(item)


def _inlined(function: Callable[..., Any], values: list[Any], parameters: dict[str, Any]) -> list[Any]:
    """Calls the function of an op, whose ops go to the graph that native code is building."""
    token = _building.stack.set(())
    try:
        result = function(*values, **parameters)
    finally:
        _building.stack.reset(token)
    return list(result) if isinstance(result, (list, tuple)) else [result]
