"""The process-wide cache of compiled programs: loading the same graph again compiles nothing."""

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
    """Programs in the cache."""


def program_cache_stats() -> ProgramCacheStats:
    """How this process has used the cache of compiled programs.

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
    """Empties the cache of compiled programs; models keep theirs.

    >>> clear_program_cache()
    >>> program_cache_stats().size
    0
    """
    _core.clear_program_cache()
