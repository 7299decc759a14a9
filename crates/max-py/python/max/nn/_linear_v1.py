"""The older fully connected layers: functions of weights that are given to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from max.graph import TensorValue, TensorValueLike, Weight
from max.graph.quantization import QuantizationConfig, QuantizationEncoding
from max.graph.value import call
from max.nn.layer import Layer

if TYPE_CHECKING:
    from max.dtype import DType
    from max.graph.weights import Weights


@dataclass
class LinearV1(Layer):
    """`x @ weight.T + bias`, along the last axis. Use `Linear` instead.

    Attributes:
        weight: The matrix, `[out, in]`.
        bias: The bias, `[out]`, if there is one.
    """

    weight: TensorValueLike
    bias: TensorValueLike | None = None

    def __call__(self, x: TensorValue) -> TensorValue:
        """The matmul, plus the bias."""
        return call("linear", x, self.weight, self.bias)

    @classmethod
    def create(
        cls,
        dtype: DType,
        quantization_encoding: QuantizationEncoding | None,
        in_features: int,
        out_features: int,
        weights: Weights | Weight,
        bias: Weights | Weight | None = None,
        quantization_config: QuantizationConfig | None = None,
    ) -> LinearV1:
        """A layer for weights of any encoding.

        Args:
            dtype: The dtype of the weight and of the bias.
            quantization_encoding: How the weight is encoded, if it is.
            in_features: The size of the last axis of the input.
            out_features: The size of the last axis of the result.
            weights: The weight, or where it is: `weights.weight`, and `weights.perm_idx` for GPTQ.
            bias: The bias, or where it is: `bias.bias`.
            quantization_config: The number of bits and the size of groups of GPTQ.
        """
        shift: Weight | None
        if bias is None or isinstance(bias, Weight):
            shift = bias
        else:
            shift = bias.bias.allocate(dtype, [out_features])
        if quantization_encoding is None:
            shape = [out_features, in_features]
            return LinearV1(weights if isinstance(weights, Weight) else weights.weight.allocate(dtype, shape), shift)
        weight = weights
        if not isinstance(weight, Weight):
            weight = weight.weight.allocate(quantization_encoding=quantization_encoding)
        if quantization_encoding is not QuantizationEncoding.GPTQ:
            return QLinearV1(weight, shift, quantization_encoding)
        if quantization_config is None:
            raise ValueError("a layer with weights of GPTQ needs a quantization_config")
        order = None
        if quantization_config.desc_act:
            if isinstance(weights, Weight):
                raise ValueError("a weight of GPTQ with desc_act has an order: give the Weights that hold both")
            order = weights.perm_idx.allocate(shape=[in_features])
        return GPTQLinearV1(weight, shift, quantization_encoding, quantization_config, order)


@dataclass
class QLinearV1(LinearV1):
    """A fully connected layer with an encoded weight. Use `Linear` instead.

    Attributes:
        weight: The blocks of each row, as uint8.
        bias: The bias, if there is one.
        quantization_encoding: How the weight is encoded.
    """

    quantization_encoding: QuantizationEncoding | None = None

    def __call__(self, x: TensorValue) -> TensorValue:
        """The matmul, plus the bias."""
        if self.quantization_encoding is None:
            raise ValueError("a QLinearV1 layer needs a quantization_encoding")
        return call("quantized_linear", x, self.weight, self.quantization_encoding, None, None, self.bias)


@dataclass
class GPTQLinearV1(QLinearV1):
    """A fully connected layer with a weight in the format of GPTQ. Use `GPTQLinear` instead.

    Attributes:
        quantization_config: The number of bits and the size of groups.
        perm_idx: The input that each row of the weight belongs to, if they are in another order.
    """

    quantization_config: QuantizationConfig | None = None
    perm_idx: TensorValueLike | None = None

    def __call__(self, x: TensorValue) -> TensorValue:
        """The matmul, plus the bias."""
        if self.quantization_config is None:
            raise ValueError("a GPTQLinearV1 layer needs a quantization_config")
        encoding = self.quantization_encoding or QuantizationEncoding.GPTQ
        config = list(self.quantization_config)
        return call("quantized_linear", x, self.weight, encoding, config, self.perm_idx, self.bias)


@dataclass
class MLPV1(Layer):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`. Use `MLP` instead.

    Attributes:
        gate_proj: The layer before the activation.
        down_proj: The layer that gives the result.
        up_proj: The layer whose result is gated.
    """

    gate_proj: LinearV1
    down_proj: LinearV1
    up_proj: LinearV1

    def __call__(self, x: TensorValue) -> TensorValue:
        """The result, with the shape of the input."""
        return self.down_proj(call("gated", self.gate_proj(x), self.up_proj(x)))
