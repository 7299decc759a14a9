"""Functions that choose the manager for the strategy of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from max.driver import Device
from max.nn.kv_cache.cache_params import KVCacheParams
from max.nn.kv_cache.paged_cache import PagedKVCacheManager

if TYPE_CHECKING:
    from max.engine import InferenceSession

__all__ = ["estimate_kv_cache_size", "infer_optimal_batch_size", "load_kv_manager"]


def load_kv_manager(
    params: KVCacheParams,
    max_batch_size: int | None,
    max_seq_len: int,
    num_layers: int,
    devices: Sequence[Device],
    session: InferenceSession,
    available_cache_memory: int | None = None,
    page_size: int | None = None,
) -> PagedKVCacheManager[Any]:
    """A manager, with its cache.

    Args:
        params: What the cache is like.
        max_batch_size: The most requests at a time.
        max_seq_len: The length of the longest sequence.
        num_layers: The number of layers.
        devices: Where the cache is.
        session: What loads the models of the manager.
        available_cache_memory: The bytes for the cache.
        page_size: The number of tokens of a page; that of the params, if it is not given.
    """
    if max_batch_size is None or max_batch_size < 1:
        raise ValueError(f"max_batch_size must be a positive number of requests; got {max_batch_size}")
    if available_cache_memory is None:
        raise ValueError("Missing required argument available_cache_memory: the bytes for the cache")
    return PagedKVCacheManager(
        params, max_batch_size, max_seq_len, num_layers, devices, session, available_cache_memory, page_size
    )


def estimate_kv_cache_size(
    params: KVCacheParams,
    max_batch_size: int | None,
    max_seq_len: int,
    num_layers: int,
    available_cache_memory: int,
    devices: Sequence[Device],
    **kwargs: Any,
) -> int:
    """The bytes that a cache for so many sequences takes.

    Args:
        params: What the cache is like.
        max_batch_size: The most requests at a time.
        max_seq_len: The length of the longest sequence.
        num_layers: The number of layers.
        available_cache_memory: The bytes that there are.
        devices: Where the cache is.
        **kwargs: `page_size`, if it is not that of the params.
    """
    if max_batch_size is None or max_batch_size < 1:
        raise ValueError(f"max_batch_size must be a positive number of requests; got {max_batch_size}")
    given = (params, max_batch_size, max_seq_len, num_layers, available_cache_memory, devices)
    return PagedKVCacheManager.estimated_memory_size(*given, **kwargs)


def infer_optimal_batch_size(
    params: KVCacheParams,
    max_seq_len: int,
    num_layers: int,
    available_cache_memory: int,
    devices: Sequence[Device],
    **kwargs: Any,
) -> int:
    """How many requests there can be at a time.

    Args:
        params: What the cache is like.
        max_seq_len: The length of the longest sequence.
        num_layers: The number of layers.
        available_cache_memory: The bytes that there are.
        devices: Where the cache is.
        **kwargs: `page_size`, if it is not that of the params.
    """
    given = (params, max_seq_len, num_layers, available_cache_memory, devices)
    return PagedKVCacheManager.infer_optimal_batch_size(*given, **kwargs)
