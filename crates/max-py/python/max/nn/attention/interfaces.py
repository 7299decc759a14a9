"""What attention layers of transformers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max.graph import BufferValue, TensorValue, TensorValueLike
from max.nn.layer import Layer, Module

if TYPE_CHECKING:
    from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
    from max.nn.linear import LinearV1

__all__ = ["AttentionImpl", "AttentionImplQKV", "DistributedAttentionImpl"]


@dataclass
class AttentionImpl(Layer, ABC):
    """The base of attention with given weights: a layer that is called with tokens and a cache."""

    n_heads: int
    """The number of heads of queries."""
    kv_params: KVCacheParams
    """What the cache is like."""
    wqkv: TensorValue
    """The weights of queries, keys and values, one after the other."""
    wo: LinearV1
    """The layer that gives the result."""
    scale: float
    """What scores are multiplied by."""

    @abstractmethod
    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens.

        Args:
            layer_idx: The number of the layer, a uint32 scalar.
            x: Tokens, `[tokens, hidden]`.
            kv_collection: The cache.
            freqs_cis: The cosines and sines of positions: see `RotaryEmbedding`.
            input_row_offsets: Where each sequence starts, and the last one ends.
        """


@dataclass
class AttentionImplQKV(Layer, ABC):
    """As `AttentionImpl`, with three weights."""

    n_heads: int
    """The number of heads of queries."""
    kv_params: KVCacheParams
    """What the cache is like."""
    wq: TensorValueLike
    """The weights of queries."""
    wk: TensorValueLike
    """The weights of keys."""
    wv: TensorValueLike
    """The weights of values."""
    wo: LinearV1
    """The layer that gives the result."""
    scale: float
    """What scores are multiplied by."""

    @abstractmethod
    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens: see `AttentionImpl`."""


class DistributedAttentionImpl(Module, ABC):
    """The base of attention over several devices: it takes and returns a tensor for each of them."""

    @abstractmethod
    def __call__(
        self,
        layer_idx: TensorValue,
        x: list[TensorValue],
        signal_buffers: list[BufferValue],
        kv_collections: list[PagedKVCacheCollection],
        freqs_cis: list[TensorValue],
        input_row_offsets: Any,
    ) -> list[TensorValue]:
        """The results, one for each device.

        Args:
            layer_idx: The number of the layer.
            x: Tokens, on each device.
            signal_buffers: A buffer on each device, for collectives.
            kv_collections: The cache of each device.
            freqs_cis: The cosines and sines of positions, on each device.
            input_row_offsets: Where each sequence starts, and the last one ends, on each device.
        """
