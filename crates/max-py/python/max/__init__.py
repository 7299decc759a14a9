"""MAX in Rust: record a model as a graph, compile it, run it.

>>> import numpy as np
>>> from max.dtype import DType
>>> from max.engine import InferenceSession
>>> from max.graph import Graph, TensorType, ops
>>> with Graph("double", input_types=[TensorType(DType.float32, ["n"])]) as graph:
...     graph.output(graph.inputs[0] * 2)
>>> model = InferenceSession().load(graph)
>>> model(np.array([1.0, 2.0], dtype=np.float32))[0].to_numpy()
array([2., 4.], dtype=float32)
"""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up lazily: reading package metadata is slow
        from importlib.metadata import version

        return version("max-rs")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
