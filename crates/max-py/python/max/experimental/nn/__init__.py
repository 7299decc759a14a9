"""Layers and models on eager tensors: see `Module`.

>>> from max.experimental.nn import Linear, Module, RMSNorm, Sequential
>>> from max.experimental.tensor import Tensor
>>> model = Sequential(RMSNorm(4), Linear(4, 2))
>>> model(Tensor.ones([3, 4])).shape
[Dim(3), Dim(2)]
"""

from __future__ import annotations

from max.experimental.nn.compiled import CompiledModule
from max.experimental.nn.conv import Conv2d
from max.experimental.nn.embedding import Embedding
from max.experimental.nn.linear import Linear
from max.experimental.nn.module import Module, module_dataclass
from max.experimental.nn.norm import GroupNorm, LayerNorm, RMSNorm
from max.experimental.nn.rotary import RotaryEmbedding
from max.experimental.nn.sequential import ModuleList, Sequential

__all__ = [
    "CompiledModule",
    "Conv2d",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "RMSNorm",
    "RotaryEmbedding",
    "Sequential",
    "module_dataclass",
]
