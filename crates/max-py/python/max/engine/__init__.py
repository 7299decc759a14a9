"""The engine: loads graphs as models and runs them.

>>> import numpy as np
>>> from max.driver import CPU
>>> from max.dtype import DType
>>> from max.graph import Graph, TensorType, ops
>>> with Graph("relu", input_types=[TensorType(DType.float32, [3])]) as graph:
...     graph.output(ops.relu(graph.inputs[0]))
>>> model = InferenceSession(devices=[CPU()]).load(graph)
>>> model.execute(np.array([1, -2, 3], dtype=np.float32))[0].to_numpy()
array([1., 0., 3.], dtype=float32)
"""

from __future__ import annotations

from max.engine.cache import ProgramCacheStats, clear_program_cache, program_cache_stats
from max.engine.model import KernelSummary, MemoryReport, Model, TensorSpec
from max.engine.session import CustomExtensionsType, InferenceSession
from max.engine.settings import AssertLevel, GPUProfilingMode, LogLevel, SplitKReductionPrecision

__all__ = [
    "AssertLevel",
    "CustomExtensionsType",
    "GPUProfilingMode",
    "InferenceSession",
    "KernelSummary",
    "LogLevel",
    "MemoryReport",
    "Model",
    "ProgramCacheStats",
    "SplitKReductionPrecision",
    "TensorSpec",
    "clear_program_cache",
    "program_cache_stats",
]
