"""The cache of compiled programs, one for the process: loading the same graph again compiles nothing."""

from __future__ import annotations

from typing import NamedTuple

from max import _core


class ProgramCacheStats(NamedTuple):
    """How the cache of compiled programs has been used."""

    hits: int
    """Loads that found a program."""
    misses: int
    """Loads that did not."""
    size: int
    """Programs that are kept."""


def program_cache_stats() -> ProgramCacheStats:
    """How the cache of compiled programs has been used by this process.

    >>> from max.dtype import DType
    >>> from max.engine import InferenceSession
    >>> from max.graph import Graph, TensorType
    >>> with Graph("same", input_types=[TensorType(DType.float32, [3])]) as graph:
    ...     graph.output(graph.inputs[0])
    >>> first, before = InferenceSession().load(graph), program_cache_stats()
    >>> again, after = InferenceSession().load(graph), program_cache_stats()
    >>> after.hits - before.hits
    1
    """
    return ProgramCacheStats(*_core.program_cache_stats())


def clear_program_cache() -> None:
    """Forgets all compiled programs; models keep theirs.

    >>> clear_program_cache()
    >>> program_cache_stats().size
    0
    """
    _core.clear_program_cache()
