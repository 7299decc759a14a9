"""Sessions: devices on which models run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from max import _core
from max.driver import CPU, Device, DLPackArray
from max.engine.model import Model
from max.engine.settings import AssertLevel, GPUProfilingMode, LogLevel, SplitKReductionPrecision

if TYPE_CHECKING:
    from max.graph import Graph

CustomExtensionsType: TypeAlias = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
"""Libraries of custom ops, by their paths."""


class InferenceSession:
    """A set of devices on which models run.

    >>> from max.driver import CPU
    >>> InferenceSession(devices=[CPU()]).devices
    [Device(type=cpu,id=0)]

    Args:
        devices: The devices; only the CPU if there are none.
        num_threads: How many threads may compute on the CPU; by default one for each core. Results do not depend on
            it.
        custom_extensions: Libraries of custom ops; there must be none.
        precompiled_mefs: Must be None.
        export_mefs: Must be None.
    """

    __slots__ = ("__weakref__", "_native")
    _native: _core.Session

    def __init__(
        self,
        devices: Device | Iterable[Device] = (),
        num_threads: int | None = None,
        *,
        custom_extensions: CustomExtensionsType | None = None,
        precompiled_mefs: Any = None,
        export_mefs: Any = None,
    ) -> None:
        _refuse_extensions(custom_extensions)
        if precompiled_mefs is not None or export_mefs is not None:
            raise NotImplementedError("compiled models are not exchanged as files: compiling takes microseconds")
        chosen: list[Any] = [devices] if isinstance(devices, Device) else list(devices)
        self._native = _core.Session(chosen or [CPU()], num_threads)

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
            custom_extensions: Libraries of custom ops; there must be none.
            custom_ops_path: The older name of `custom_extensions`.
            weights_registry: The data of weights and external constants, by name. Arrays are not copied: leave them as
                they are for as long as the model is used.
            tile_based_fusion: Has no effect: how ops are fused is not a choice of the caller.

        Returns:
            The model, ready to run.

        Raises:
            RuntimeError: If there is no graph at the path.
            ValueError: If the graph has no output, or the data of a weight does not fit.
        """
        _refuse_extensions(custom_extensions or custom_ops_path)
        source: Any = model
        return Model._wrap(self._native.load(source, dict(weights_registry or {})))

    def set_mojo_log_level(self, level: str | LogLevel) -> None:
        """Sets how much is said on standard error, about models that are loaded already too.

        >>> InferenceSession().set_mojo_log_level(LogLevel.ERROR)
        >>> InferenceSession().set_mojo_log_level("loud")
        Traceback (most recent call last):
            ...
        ValueError: log level must be one of notset, trace, debug, info, warning, error, critical; got "loud"
        """
        self._native.set_log_level(level)

    def set_mojo_assert_level(self, level: str | AssertLevel) -> None:
        """Sets how much models check that are loaded from now on.

        With `"all"`, an execution fails at the first op that makes a NaN or an infinity out of finite values, and the
        message says which op that was and where it was recorded; `"warn"` says the same on standard error and goes on.
        Ops are not fused then, so such models are slower. Replays of captured graphs check no values.

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
        """Sets in which precision the parts of long sums in large matrix products combine.

        On the CPU that is always the precision of the accumulator, which is at least that of the output.
        """
        self._native.set_split_k_reduction_precision(precision)

    def gpu_profiling(self, mode: str | GPUProfilingMode) -> None:
        """Sets whether the kernels of models that are loaded from now on are timed; on the CPU too.

        Profilers of NVIDIA (`nsys profile --trace=cuda,nvtx`) then show a range for each execution and each kernel.

        Before that, the environment variable `MODULAR_ENABLE_PROFILING` decides, as it was when the session was made.
        See `Model.profile_table` and `Model.save_trace` for what is measured.

        Args:
            mode: `"off"`; `"on"`; or `"detailed"`, with which traces and ranges also name the ops behind each launch,
                and calls of `execute`, `capture` and `replay` are ranges of their own.
        """
        self._native.set_profiling(mode)

    def allow_tf32(self, enabled: bool = True) -> None:
        """Sets whether models that are loaded from now on may round float32 operands of matrix products on GPUs.

        With the 19 bits of the format called TF32 such products are several times as fast, and have about three decimal
        digits. Before this is called the environment variable `MAX_ALLOW_TF32` decides, as it was when the session was
        made; without it they keep all bits. The CPU always does.

        >>> InferenceSession().allow_tf32()

        Args:
            enabled: Whether it may.
        """
        self._native.set_allow_tf32(bool(enabled))

    def use_old_top_k_kernel(self, mode: str) -> None:
        """Chooses the older kernel for top-k.

        Args:
            mode: `"false"`, `"off"`, `"no"` or `"0"`, in any case, for the newer kernel; anything else for the older.
        """
        self._native.use_old_top_k_kernel(mode)

    def use_fi_topk_kernel(self, mode: str) -> None:
        """Takes what `use_old_top_k_kernel` takes, and has no effect: the kernel it means is one for GPUs."""
        if not isinstance(mode, str):
            raise TypeError(f"mode must be a str, got {type(mode).__name__}")

    def __repr__(self) -> str:
        return f"InferenceSession(devices={self.devices}, num_threads={self._native.num_threads})"


def _refuse_extensions(extensions: CustomExtensionsType | None) -> None:
    if extensions:
        raise NotImplementedError(f"libraries of custom ops cannot be loaded yet: {extensions}")
