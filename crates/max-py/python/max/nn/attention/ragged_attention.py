"""Attention without rotary embeddings, with a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops
from max.graph.value import call
from max.nn._cached import _place
from max.nn.attention.attention_with_rope import _set_sizes, _split
from max.nn.attention.mask_config import MHAMaskVariant
from max.nn.layer import Module
from max.nn.linear import Linear

if TYPE_CHECKING:
    from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection

__all__ = ["RaggedAttention"]


class RaggedAttention(Module):
    """Attention of tokens to those of their sequences, with any mask that needs no window, and a cache.

    The weights have the names of those of `AttentionWithRope`.

    Args:
        mask_variant: Which tokens of its sequence a token sees.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like.
        devices: Where the layer runs: the first of them counts.
        dtype: The dtype of the weights.
        linear_cls: What makes the layer `o_proj`.
        stacked_qkv: Whether queries, keys and values have one weight.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
        has_bias: Whether queries, keys and values have a bias.
        clip_qkv: The largest magnitude of weights of queries, keys and values: larger ones are clipped.
    """

    devices: list[DeviceRef]
    """Where the layer runs."""

    def __init__(
        self,
        *,
        mask_variant: MHAMaskVariant,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        devices: list[DeviceRef] | None = None,
        dtype: DType = DType.float32,
        linear_cls: Callable[..., Linear] = Linear,
        stacked_qkv: bool = False,
        scale: float | None = None,
        has_bias: bool = False,
        clip_qkv: float | None = None,
    ) -> None:
        super().__init__()
        self.mask_variant = MHAMaskVariant(mask_variant)
        _set_sizes(self, num_attention_heads, num_key_value_heads, kv_params, devices)
        self.scale = kv_params.head_dim**-0.5 if scale is None else scale
        self._dims = (num_attention_heads * kv_params.head_dim, num_key_value_heads * kv_params.head_dim)
        q_dim, kv_dim = self._dims
        options: dict[str, Any] = {"dtype": dtype, "device": self.devices[0]}
        more = options | {"has_bias": has_bias, "clip_weight": clip_qkv}
        if stacked_qkv:
            self.qkv_proj = Linear(hidden_size, q_dim + 2 * kv_dim, **more)
        else:
            self.q_proj = Linear(hidden_size, q_dim, **more)
            self.k_proj = Linear(hidden_size, kv_dim, **more)
            self.v_proj = Linear(hidden_size, kv_dim, **more)
        self.stacked_qkv = stacked_qkv
        self.o_proj = linear_cls(in_dim=q_dim, out_dim=hidden_size, **options)

    @property
    def _projections(self) -> list[Linear]:
        return [self.qkv_proj] if self.stacked_qkv else [self.q_proj, self.k_proj, self.v_proj]

    @property
    def wqkv(self) -> TensorValue:
        """The weights of queries, keys and values, one after the other."""
        weights, clip = [TensorValue(layer.weight) for layer in self._projections], self._projections[0].clip_weight
        whole = ops.concat(weights, 0) if len(weights) > 1 else weights[0]
        return whole if clip is None else call("clamp", whole, -clip, clip)

    def __call__(
        self, layer_idx: TensorValue, x: TensorValue, kv_collection: PagedKVCacheCollection, **kwargs: Any
    ) -> TensorValue:
        """The results for tokens, `[tokens, hidden_size]`; their keys and values are stored in the cache.

        Args:
            layer_idx: The number of the layer, a uint32 scalar.
            x: Tokens, `[tokens, hidden_size]`.
            kv_collection: The cache.
            **kwargs: `input_row_offsets`: where each sequence starts, and the last one ends.
        """
        if "input_row_offsets" not in kwargs:
            raise TypeError("RaggedAttention needs input_row_offsets: where each sequence starts, and the last ends")
        place = _place(kv_collection, kwargs["input_row_offsets"], layer_idx)
        qkv = _split([layer(x) for layer in self._projections], *self._dims)
        mask = self.mask_variant.value
        return self.o_proj(call("cached_self_attention", *qkv, place, self.scale, None, True, mask))
