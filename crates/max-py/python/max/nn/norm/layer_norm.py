"""Layer normalization."""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight
from max.graph.value import call
from max.nn.layer import Layer, Module

__all__ = ["LayerNorm", "LayerNormV1"]


class LayerNorm(Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` along the last axis.

    Args:
        dims: The size of the last axis.
        device: Where the layer runs.
        dtype: The dtype of the weight and of the bias.
        eps: A small positive number that prevents division by zero.
        use_bias: Whether there is a bias.
    """

    weight: Weight
    """The scale, `[dims]`."""
    bias: Weight | None
    """The shift, `[dims]`, if there is one."""

    def __init__(self, dims: int, device: DeviceRef, dtype: DType, eps: float = 1e-5, use_bias: bool = True) -> None:
        super().__init__()
        self.device = device
        self.eps = eps
        self.weight = Weight("weight", dtype, [dims], DeviceRef.CPU())
        self.bias = Weight("bias", dtype, [dims], DeviceRef.CPU()) if use_bias else None

    def __call__(self, input: TensorValue) -> TensorValue:
        """The normalized input, in its dtype."""
        return call("affine_layer_norm", input, self.weight, self.bias, self.eps)


@dataclass
class LayerNormV1(Layer):
    """As `LayerNorm`, with weights that are given. Use `LayerNorm` instead.

    Attributes:
        weight: The scale.
        bias: The shift, if there is one.
        eps: A small positive number that prevents division by zero.
    """

    weight: TensorValue
    bias: TensorValue | None = None
    eps: float = 1e-6

    def __call__(self, input: TensorValue) -> TensorValue:
        """The normalized input, in its dtype."""
        return call("affine_layer_norm", input, self.weight, self.bias, self.eps)
