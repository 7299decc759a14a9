"""Graphs: programs of tensor ops that an engine compiles and runs.

>>> from max.dtype import DType
>>> with Graph("linear", input_types=[TensorType(DType.float32, ["batch", 2])]) as graph:
...     weight = Weight("weight", DType.float32, [2, 3])
...     graph.output(ops.relu(graph.inputs[0] @ weight))
>>> graph.output_types[0].shape
[Dim('batch'), Dim(3)]
"""

from __future__ import annotations

from max.graph import dim as dim
from max.graph import ops
from max.graph import quantization as quantization
from max.graph import shape as shape
from max.graph import type as type
from max.graph.dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim
from max.graph.graph import Graph
from max.graph.kernel_library import KernelLibrary
from max.graph.shape import Shape, ShapeLike
from max.graph.type import (
    BufferType,
    ConvInputLayout,
    DeviceKind,
    DeviceRef,
    FilterLayout,
    TensorType,
    Type,
)
from max.graph.value import (
    BufferValue,
    HasTensorValue,
    TensorValue,
    TensorValueLike,
    Value,
)
from max.graph.weight import Weight

__all__ = [
    "AlgebraicDim",
    "BufferType",
    "BufferValue",
    "ConvInputLayout",
    "DeviceKind",
    "DeviceRef",
    "Dim",
    "DimLike",
    "FilterLayout",
    "Graph",
    "HasTensorValue",
    "KernelLibrary",
    "Shape",
    "ShapeLike",
    "StaticDim",
    "SymbolicDim",
    "TensorType",
    "TensorValue",
    "TensorValueLike",
    "Type",
    "Value",
    "Weight",
    "ops",
]
