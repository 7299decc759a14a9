"""Root-mean-square normalization."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, TensorValueLike, Weight
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._sharding import parts, strategy_of, unsupported
from max.nn.layer import Layer, Module

__all__ = ["RMSNorm", "RMSNormV1"]


class RMSNorm(Module):
    """`x / sqrt(mean(x * x) + eps) * (weight + weight_offset)` along the last axis.

    Args:
        dim: The size of the last axis.
        dtype: The dtype of the weight.
        eps: A small number that prevents division by zero.
        weight_offset: What is added to the weight: 1 for models of the Gemma family.
        multiply_before_cast: Whether the quotient is rounded to the dtype of the input only after it was multiplied, as
            Gemma does; Llama rounds before.
    """

    weight: Weight
    """The scale, `[dim]`."""

    def __init__(
        self,
        dim: int,
        dtype: DType,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        multiply_before_cast: bool = True,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight_offset = weight_offset
        self.multiply_before_cast = multiply_before_cast
        self.weight = Weight("weight", dtype, [dim], DeviceRef.CPU())

    def __call__(self, x: TensorValue) -> TensorValue:
        """The normalized input, in its dtype."""
        return _rms_norm(x, self.weight, self.eps, self.weight_offset, self.multiply_before_cast)

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the weight is divided among devices: each has all of it."""
        return self.weight.sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        if not strategy.is_replicate:
            raise unsupported("RMSNorm", "replicate", strategy)
        self.weight.sharding_strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> Sequence[RMSNorm]:
        """The layer on each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy_of(self)
        return parts(self, list(devices), type(self))


@dataclass
class RMSNormV1(Layer):
    """As `RMSNorm`, with a weight that is given. Use `RMSNorm` instead.

    Attributes:
        weight: The scale.
        eps: A small number that prevents division by zero.
        weight_offset: What is added to the weight.
        multiply_before_cast: Whether the quotient is rounded only after it was multiplied.
    """

    weight: TensorValueLike
    eps: float = 1e-6
    weight_offset: float = 0.0
    multiply_before_cast: bool = True

    def __call__(self, x: TensorValue) -> TensorValue:
        """The normalized input, in its dtype."""
        return _rms_norm(x, self.weight, self.eps, self.weight_offset, self.multiply_before_cast)


def _rms_norm(x: TensorValue, weight: TensorValueLike, eps: float, offset: float, multiply: bool) -> TensorValue:
    scale = weight.to(x.device) if isinstance(weight, TensorValue) else weight
    return call("rms_norm", x, scale, eps, offset, multiply)
