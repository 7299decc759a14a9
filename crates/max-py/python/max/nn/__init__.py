"""Layers and kernels of models that are built as graphs.

A layer is a `Module`: it holds its weights and other modules, and records its ops into the current graph when it is
called. Its weights are loaded by name.

>>> import numpy as np
>>> from max.dtype import DType
>>> from max.engine import InferenceSession
>>> from max.graph import Graph, TensorType, Weight
>>> class Scale(Module):
...     def __init__(self):
...         self.scale = Weight("scale", DType.float32, [2])
...     def __call__(self, x):
...         return x * self.scale
>>> model = Sequential([Scale(), Scale()])
>>> model.load_state_dict({f"{k}.scale": np.array([2, 3], dtype=np.float32) for k in range(2)})
>>> with Graph("model", input_types=[TensorType(DType.float32, ["n", 2])]) as graph:
...     graph.output(model(graph.inputs[0]))
>>> loaded = InferenceSession().load(graph, weights_registry=model.state_dict())
>>> loaded(np.ones((1, 2), dtype=np.float32))[0].to_numpy()
array([[4., 9.]], dtype=float32)
"""

from max.nn.attention import (
    AttentionWithRope,
    AttentionWithRopeV1,
    DistributedAttentionWithRope,
    GGUFQAttentionWithRope,
    GPTQAttentionWithRope,
    RaggedAttention,
)
from max.nn.conv import Conv1D, Conv1DV1, Conv2d, Conv2dV1, Conv3D, Conv3DV1
from max.nn.embedding import Embedding, EmbeddingV1, EmbeddingV2, VocabParallelEmbedding
from max.nn.float8_config import (
    Float8Config,
    Float8InputScaleSpec,
    Float8ScaleGranularity,
    Float8ScaleOrigin,
    Float8WeightScaleSpec,
)
from max.nn.layer import Layer, LayerList, Module, Shardable
from max.nn.linear import (
    MLP,
    MLPV1,
    ColumnParallelLinear,
    DistributedGemmConfig,
    GPTQLinear,
    GPTQLinearV1,
    Linear,
    LinearV1,
    QLinearV1,
)
from max.nn.moe import MoE, MoEGate
from max.nn.norm import GroupNorm, LayerNorm, LayerNormV1, RMSNorm, RMSNormV1
from max.nn.rotary_embedding import (
    DynamicRotaryEmbedding,
    LinearScalingParams,
    Llama3RopeScalingParams,
    Llama3RotaryEmbedding,
    LongRoPERotaryEmbedding,
    LongRoPEScalingParams,
    RotaryEmbedding,
    YarnRotaryEmbedding,
    YarnScalingParams,
)
from max.nn.sequential import Sequential
from max.nn.transformer import (
    DistributedTransformer,
    DistributedTransformerBlock,
    ReturnLogits,
    Transformer,
    TransformerBlock,
)

__all__ = [
    "MLP",
    "MLPV1",
    "AttentionWithRope",
    "AttentionWithRopeV1",
    "ColumnParallelLinear",
    "Conv1D",
    "Conv1DV1",
    "Conv2d",
    "Conv2dV1",
    "Conv3D",
    "Conv3DV1",
    "DistributedAttentionWithRope",
    "DistributedGemmConfig",
    "DistributedTransformer",
    "DistributedTransformerBlock",
    "DynamicRotaryEmbedding",
    "Embedding",
    "EmbeddingV1",
    "EmbeddingV2",
    "Float8Config",
    "Float8InputScaleSpec",
    "Float8ScaleGranularity",
    "Float8ScaleOrigin",
    "Float8WeightScaleSpec",
    "GGUFQAttentionWithRope",
    "GPTQAttentionWithRope",
    "GPTQLinear",
    "GPTQLinearV1",
    "GroupNorm",
    "Layer",
    "LayerList",
    "LayerNorm",
    "LayerNormV1",
    "Linear",
    "LinearScalingParams",
    "LinearV1",
    "Llama3RopeScalingParams",
    "Llama3RotaryEmbedding",
    "LongRoPERotaryEmbedding",
    "LongRoPEScalingParams",
    "MoE",
    "MoEGate",
    "Module",
    "QLinearV1",
    "RMSNorm",
    "RMSNormV1",
    "RaggedAttention",
    "ReturnLogits",
    "RotaryEmbedding",
    "Sequential",
    "Shardable",
    "Transformer",
    "TransformerBlock",
    "VocabParallelEmbedding",
    "YarnRotaryEmbedding",
    "YarnScalingParams",
]
