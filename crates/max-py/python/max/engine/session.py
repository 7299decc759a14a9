"""Sessions: devices on which models run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from max import _core
from max.driver import CPU, Device, DLPackArray
from max.engine.model import Model

if TYPE_CHECKING:
    from max.graph import Graph

CustomExtensionsType: TypeAlias = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
"""Libraries of custom ops, by their paths."""


class LogLevel(str, Enum):
    """How much is logged."""

    NOTSET = "notset"
    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    __str__ = str.__str__


class GPUProfilingMode(str, Enum):
    """How much a profiler is told about work on GPUs."""

    OFF = "off"
    ON = "on"
    DETAILED = "detailed"

    __str__ = str.__str__


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

    def __repr__(self) -> str:
        return f"InferenceSession(devices={self.devices}, num_threads={self._native.num_threads})"


def _refuse_extensions(extensions: CustomExtensionsType | None) -> None:
    if extensions:
        raise NotImplementedError(f"libraries of custom ops cannot be loaded yet: {extensions}")
