"""Mixtures of experts: layers where each token goes through a few of many perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._sharding import parts, strategy_of, unsupported
from max.nn.layer import LayerList, Module
from max.nn.linear import MLP, Linear

__all__ = ["MoE", "MoEGate"]


class MoEGate(Module):
    """The router of a mixture: the experts of each token with the largest scores.

    Args:
        devices: Where the layer runs: the first of them counts.
        hidden_dim: The size of a token.
        num_experts: The number of experts.
        num_experts_per_token: The number of experts that each token goes to.
        dtype: The dtype of the weight.
    """

    def __init__(
        self, devices: Sequence[DeviceRef], hidden_dim: int, num_experts: int, num_experts_per_token: int, dtype: DType
    ) -> None:
        super().__init__()
        if not 1 <= num_experts_per_token <= num_experts:
            raise ValueError(f"a token cannot go to {num_experts_per_token} of {num_experts} experts")
        self.devices = list(devices)
        self.num_experts = num_experts
        self.num_experts_per_token = num_experts_per_token
        self.gate_score = Linear(hidden_dim, num_experts, dtype, devices[0])

    def __call__(self, hidden_state: TensorValue) -> tuple[TensorValue, TensorValue]:
        """The numbers of the experts of each token and their scores, both `[tokens, num_experts_per_token]`."""
        scores, experts = ops.top_k(self.gate_score(hidden_state), self.num_experts_per_token, axis=-1)
        return experts, scores

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the weight is divided among devices: each has all of it."""
        return self.gate_score.sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        if not strategy.is_replicate:
            raise unsupported("MoEGate", "replicate", strategy)
        self.gate_score.sharding_strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[MoEGate]:
        """The layer on each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy_of(self)
        return parts(self, list(devices), type(self))


class MoE(Module):
    """The sum of a few experts' results for each token, with the weights that a router gives them.

    Experts are gated perceptrons, `down_proj(silu(gate_proj(x)) * up_proj(x))`.

    Args:
        devices: Where the layer runs: the first of them counts.
        hidden_dim: The size of a token.
        num_experts: The number of experts.
        num_experts_per_token: The number of experts that each token goes to.
        moe_dim: The size between the layers of an expert.
        gate_cls: What makes the router.
        has_shared_experts: Whether all tokens go through a further perceptron, whose result is added.
        shared_experts_dim: The size between the layers of that.
        dtype: The dtype of the weights.
        apply_router_weight_first: Whether the inputs of experts are weighted, instead of their results.
    """

    _strategy: ShardingStrategy | None = None

    def __init__(
        self,
        devices: Sequence[DeviceRef],
        hidden_dim: int,
        num_experts: int,
        num_experts_per_token: int,
        moe_dim: int,
        gate_cls: Callable[..., MoEGate] = MoEGate,
        has_shared_experts: bool = False,
        shared_experts_dim: int = 0,
        dtype: DType = DType.bfloat16,
        apply_router_weight_first: bool = False,
    ) -> None:
        super().__init__()
        if not devices:
            raise ValueError("a mixture of experts needs a device")
        self.devices = list(devices)
        self.hidden_dim = hidden_dim
        self.num_experts = num_experts
        self.num_experts_per_token = num_experts_per_token
        self.apply_router_weight_first = apply_router_weight_first
        self.gate = gate_cls(
            devices=devices,
            hidden_dim=hidden_dim,
            num_experts=num_experts,
            num_experts_per_token=num_experts_per_token,
            dtype=dtype,
        )
        self.experts = LayerList(MLP(dtype, None, hidden_dim, moe_dim, devices) for _ in range(num_experts))
        if has_shared_experts:
            if shared_experts_dim < 1:
                raise ValueError(f"shared experts have a size of at least 1; got {shared_experts_dim=}")
            self.shared_experts = MLP(dtype, None, hidden_dim, shared_experts_dim, devices)
        self.has_shared_experts = has_shared_experts

    def __call__(self, x: TensorValue) -> TensorValue:
        """The result, with the shape of the input.

        Args:
            x: Tokens, `[tokens, hidden_dim]`.
        """
        experts, scores = self.gate(x)
        stacked = (self._stacked(name) for name in ("gate_proj", "up_proj", "down_proj"))
        y = call("mixture", x, experts, scores, *stacked, "silu", self.apply_router_weight_first)
        return y + self.shared_experts(x) if self.has_shared_experts else y

    def _stacked(self, name: str) -> TensorValue:
        """The weights of a layer of all experts, `[num_experts, out, in]`."""
        return ops.stack([getattr(expert, name).weight for expert in self.experts])

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is divided among devices: `tensor_parallel`, where the results add up to the whole, or `replicate`."""
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        if not (strategy.is_tensor_parallel or strategy.is_replicate):
            raise unsupported("MoE", "tensor_parallel or replicate", strategy)
        self.gate.sharding_strategy = ShardingStrategy.replicate(strategy.num_devices)
        shared = [self.shared_experts] if self.has_shared_experts else []
        for expert in [*self.experts, *shared]:
            expert.sharding_strategy = strategy
        self._strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[MoE]:
        """The layer's part for each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy_of(self)
        return parts(self, list(devices), type(self))
