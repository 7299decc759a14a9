"""Caches of keys and values in pages: what they are like, who has which pages, and what graphs take of them.

>>> from max.driver import CPU
>>> from max.dtype import DType
>>> from max.engine import InferenceSession
>>> params = KVCacheParams(DType.float32, n_kv_heads=2, head_dim=16, page_size=8)
>>> manager = load_kv_manager(params, 4, 64, 2, [CPU()], InferenceSession(), available_cache_memory=1 << 20)
>>> manager.block_shape()
[256, 2, 2, 8, 2, 16]
>>> manager.external_claim("a request")
>>> manager.contains("a request")
True
"""

from max.nn.kv_cache.cache_params import KVCacheParams, KVCacheStrategy
from max.nn.kv_cache.context import KVCacheAwareContext
from max.nn.kv_cache.manager import (
    KVCacheInputs,
    KVCacheInputsSequence,
    KVCacheInputSymbols,
    KVCacheManager,
    PaddedKVCacheInputs,
    RaggedKVCacheInputs,
)
from max.nn.kv_cache.paged_cache import (
    FetchPagedKVCacheCollection,
    PagedCacheInputSymbols,
    PagedCacheValues,
    PagedKVCacheCollection,
    PagedKVCacheManager,
    build_max_lengths_tensor,
)
from max.nn.kv_cache.registry import estimate_kv_cache_size, infer_optimal_batch_size, load_kv_manager

__all__ = [
    "FetchPagedKVCacheCollection",
    "KVCacheAwareContext",
    "KVCacheInputSymbols",
    "KVCacheInputs",
    "KVCacheInputsSequence",
    "KVCacheManager",
    "KVCacheParams",
    "KVCacheStrategy",
    "PaddedKVCacheInputs",
    "PagedCacheInputSymbols",
    "PagedCacheValues",
    "PagedKVCacheCollection",
    "PagedKVCacheManager",
    "RaggedKVCacheInputs",
    "build_max_lengths_tensor",
    "estimate_kv_cache_size",
    "infer_optimal_batch_size",
    "load_kv_manager",
]
