"""Sessions: the devices that models run on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from max import _core
from max.driver import CPU, Device, DLPackArray
from max.driver.device import named
from max.engine.model import Model
from max.engine.settings import AssertLevel, GPUProfilingMode, LogLevel, SplitKReductionPrecision
from max.graph.kernel_library import KernelLibrary, library_of

if TYPE_CHECKING:
    from max.graph import Graph

CustomExtensionsType: TypeAlias = Union[
    str, "os.PathLike[str]", KernelLibrary, Sequence[Union[str, "os.PathLike[str]", KernelLibrary]]
]
"""Custom ops: the paths of files, or libraries."""


class InferenceSession:
    """A set of devices that models run on.

    >>> from max.driver import CPU
    >>> InferenceSession(devices=[CPU()]).devices
    [Device(type=cpu,id=0)]

    Args:
        devices: The devices; by default only the CPU.
        num_threads: How many threads may compute on the CPU; by default one per core. Results do not depend on it.
        custom_extensions: Where the custom ops of saved graphs are found: paths, or `KernelLibrary` objects. A graph that
            is being built has its own.
        precompiled_mefs: Must be None.
        export_mefs: Must be None.
    """

    __slots__ = ("__weakref__", "_library", "_native")
    _native: _core.Session
    _library: KernelLibrary

    def __init__(
        self,
        devices: Device | Iterable[Device] = (),
        num_threads: int | None = None,
        *,
        custom_extensions: CustomExtensionsType | None = None,
        precompiled_mefs: Any = None,
        export_mefs: Any = None,
    ) -> None:
        self._library = library_of(custom_extensions)
        if precompiled_mefs is not None or export_mefs is not None:
            raise NotImplementedError("compiled models are not saved to files: compiling takes microseconds")
        chosen: Iterable[Any] = [devices] if isinstance(devices, (Device, str)) else devices
        places = [named(device) for device in chosen]
        self._native = _core.Session(places or [CPU()], num_threads)

    @property
    def devices(self) -> list[Device]:
        """The devices of the session."""
        return [Device._wrap(device) for device in self._native.devices]

    def load(
        self,
        model: Graph | str | os.PathLike[str],
        *,
        custom_extensions: CustomExtensionsType | None = None,
        custom_ops_path: str | None = None,
        weights_registry: Mapping[str, DLPackArray] | None = None,
        tile_based_fusion: bool = False,
    ) -> Model:
        """Compiles a graph.

        Args:
            model: The graph, or the path of one that `Graph.save` wrote.
            custom_extensions: Where the custom ops of a saved graph are found, besides those of the session.
            custom_ops_path: The old name of `custom_extensions`.
            weights_registry: The data of weights and external constants, by name. Arrays are not copied: do not change
                them while the model is in use.
            tile_based_fusion: Has no effect: the compiler decides how ops are fused.

        Returns:
            The model, ready to run.

        Raises:
            RuntimeError: If there is no graph at the path.
            ValueError: If the graph has no output, or the data of a weight does not fit.
        """
        source: Any = model
        if isinstance(model, (str, os.PathLike)):
            library = library_of([self._library, library_of(custom_extensions or custom_ops_path)])
            source = _core.Graph.load(model, library._native)
        return Model._wrap(self._native.load(source, dict(weights_registry or {})))

    def set_mojo_log_level(self, level: str | LogLevel) -> None:
        """Sets how much is logged to standard error, including for models that are already loaded.

        >>> InferenceSession().set_mojo_log_level(LogLevel.ERROR)
        >>> InferenceSession().set_mojo_log_level("loud")
        Traceback (most recent call last):
            ...
        ValueError: log level must be one of notset, trace, debug, info, warning, error, critical; got "loud"
        """
        self._native.set_log_level(level)

    def set_mojo_assert_level(self, level: str | AssertLevel) -> None:
        """Sets how much models that are loaded from now on check.

        With `"all"`, an execution fails at the first op that makes a NaN or an infinity out of finite values, and the
        message says which op that was and where it was recorded; `"warn"` logs the same and continues.
        Ops are not fused then, so such models are slower. Replays of captured graphs do not check values.

        >>> from max.dtype import DType
        >>> from max.graph import Graph, TensorType, ops
        >>> with Graph("roots", input_types=[TensorType(DType.float32, [])]) as graph:
        ...     graph.output(ops.sqrt(graph.inputs[0] - 2) * 3)
        >>> session = InferenceSession()
        >>> session.set_mojo_assert_level("all")
        >>> try:
        ...     session.load(graph).execute(1)
        ... except RuntimeError as error:
        ...     print(str(error).splitlines()[0])
        sqrt made NaN at element 0 of float32 []
        """
        self._native.set_assert_level(level)

    def set_split_k_reduction_precision(self, precision: str | SplitKReductionPrecision) -> None:
        """Sets the precision in which the parts of long sums in large matmuls are combined.

        On the CPU that is always the precision of the accumulator, which is at least that of the output.
        """
        self._native.set_split_k_reduction_precision(precision)

    def gpu_profiling(self, mode: str | GPUProfilingMode) -> None:
        """Sets whether the kernels of models that are loaded from now on are timed; on the CPU too.

        NVIDIA's profilers (`nsys profile --trace=cuda,nvtx`) then show a range for each execution and each kernel.

        The default comes from the environment variable `MODULAR_ENABLE_PROFILING` when the session is created.
        See `Model.profile_table` and `Model.save_trace` for what is measured.

        Args:
            mode: `"off"`; `"on"`; or `"detailed"`, which also names the ops of each launch in traces and ranges, and
                gives calls of `execute`, `capture` and `replay` ranges of their own.
        """
        self._native.set_profiling(mode)

    def allow_tf32(self, enabled: bool = True) -> None:
        """Sets whether models that are loaded from now on may round the operands of float32 matmuls to TF32 on GPUs.

        TF32 has 19 bits: such matmuls are several times as fast, and precise to about three decimal digits. The default
        comes from the environment variable `MAX_ALLOW_TF32` when the session is created; without it, matmuls use full
        precision. The CPU always does.

        >>> InferenceSession().allow_tf32()

        Args:
            enabled: Whether they may.
        """
        self._native.set_allow_tf32(bool(enabled))

    def use_old_top_k_kernel(self, mode: str) -> None:
        """Selects the old top-k kernel.

        Args:
            mode: `"false"`, `"off"`, `"no"` or `"0"`, in any case, for the new kernel; anything else for the old one.
        """
        self._native.use_old_top_k_kernel(mode)

    def use_fi_topk_kernel(self, mode: str) -> None:
        """Takes the same modes as `use_old_top_k_kernel`, and has no effect: there is no such GPU kernel here."""
        if not isinstance(mode, str):
            raise TypeError(f"mode must be a str, got {type(mode).__name__}")

    def __repr__(self) -> str:
        return f"InferenceSession(devices={self.devices}, num_threads={self._native.num_threads})"
