"""A cache in pages: its manager, and what graphs take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from max.driver import Buffer, Device
from max.dtype import DType
from max.graph import BufferType, BufferValue, DeviceRef, TensorType, TensorValue, Value
from max.nn.kv_cache._pages import Pages
from max.nn.kv_cache.cache_params import KVCacheParams
from max.nn.kv_cache.context import KVCacheAwareContext
from max.nn.kv_cache.manager import KVCacheInputSymbols, KVCacheManager, RaggedKVCacheInputs, _Fields

if TYPE_CHECKING:
    from max.engine import InferenceSession

__all__ = [
    "FetchPagedKVCacheCollection",
    "PagedCacheInputSymbols",
    "PagedCacheValues",
    "PagedKVCacheCollection",
    "PagedKVCacheManager",
    "build_max_lengths_tensor",
]

T = TypeVar("T", bound=KVCacheAwareContext)

_MOST_REQUESTS = 512


@dataclass
class PagedCacheInputSymbols(KVCacheInputSymbols):
    """The types of the inputs of a graph that are about a cache in pages."""

    kv_blocks: BufferType
    """The pages; a buffer, because graphs write them."""
    cache_lengths: TensorType
    """How many tokens of each sequence are in the cache."""
    lookup_table: TensorType
    """The pages of each sequence."""
    max_lengths: TensorType
    """The most new tokens and the most tokens of a sequence, for each step."""


@dataclass
class PagedKVCacheCollection(_Fields):
    """A cache in a graph: what functions of `max.nn.kernels` take as `kv_collection`."""

    kv_blocks: BufferValue
    """The pages, `[pages, 2, layers, tokens of a page, heads, elements of a head]`."""
    cache_lengths: TensorValue
    """How many tokens of each sequence are in the cache, `[sequences]`."""
    lookup_table: TensorValue
    """The pages of each sequence, `[sequences, pages]`."""
    max_lengths: TensorValue
    """The most new tokens and the most tokens of a sequence, for each step, `[steps, 2]`."""


PagedCacheValues = PagedKVCacheCollection


class FetchPagedKVCacheCollection:
    """Makes the collection of a graph from its inputs.

    Args:
        kv_params: What the cache is like.
        **kwargs: Have no effect.
    """

    def __init__(self, kv_params: KVCacheParams, **kwargs: Any) -> None:
        self.kv_params = kv_params

    def __call__(
        self,
        blocks: Value[Any],
        cache_lengths: TensorValue,
        lookup_table: TensorValue,
        is_cache_empty: TensorValue,
    ) -> PagedKVCacheCollection:
        """The collection.

        Args:
            blocks: The pages, an input with a `BufferType`.
            cache_lengths: How many tokens of each sequence are in the cache.
            lookup_table: The pages of each sequence.
            is_cache_empty: The lengths of the longest sequences, `max_lengths` of the inputs.
        """
        if not isinstance(blocks, BufferValue):
            raise TypeError(f"the pages of a cache are written, so they are an input with a BufferType; got {blocks!r}")
        params, shape = self.kv_params, blocks.shape
        expected = [2, params.n_kv_heads_per_device, params.head_dim]
        if blocks.rank != 6 or [shape[1], shape[4], shape[5]] != expected or blocks.dtype != params.dtype:
            raise ValueError(
                f"the pages of a cache are {params.dtype} [pages, 2, layers, tokens of a page, "
                f"{params.n_kv_heads_per_device}, {params.head_dim}]; got {blocks.type}"
            )
        return PagedKVCacheCollection(blocks, cache_lengths, lookup_table, is_cache_empty)


def build_max_lengths_tensor(num_steps: int, max_seq_length: int, max_cache_length: int) -> Buffer:
    """The most new tokens and the most tokens of a sequence, for each of some steps.

    >>> build_max_lengths_tensor(3, 5, 9).to_numpy().tolist()
    [[5, 9], [1, 10], [1, 11]]

    Args:
        num_steps: The number of steps, each of which adds a token.
        max_seq_length: The most new tokens of the first step.
        max_cache_length: The most tokens of the first step.
    """
    steps = [[1 if step else max_seq_length, max_cache_length + step] for step in range(num_steps)]
    return Buffer.from_numpy(np.array(steps, dtype=np.uint32).reshape(num_steps, 2))


class PagedKVCacheManager(KVCacheManager[T]):
    """A manager of a cache in pages, which sequences get as they grow.

    All devices have the same pages, each with some of the heads.

    Args:
        params: What the cache is like.
        max_batch_size: The most requests at a time.
        max_seq_len: The length of the longest sequence.
        num_layers: The number of layers.
        devices: Where the cache is.
        session: What loads the models of the manager.
        cache_memory: The bytes for pages, on all devices.
        page_size: The number of tokens of a page; that of the params, if it is not given.
        enable_runtime_checks: Has no effect: what sequences have is always checked.

    Raises:
        RuntimeError: If there is no room for a page.
    """

    def __init__(
        self,
        params: KVCacheParams,
        max_batch_size: int,
        max_seq_len: int,
        num_layers: int,
        devices: Sequence[Device],
        session: InferenceSession,
        cache_memory: int,
        page_size: int | None = None,
        enable_runtime_checks: bool = False,
    ) -> None:
        super().__init__(params, max_batch_size, max_seq_len, num_layers, devices, session, is_ragged=True)
        if params.data_parallel_degree > 1:
            degree = params.data_parallel_degree
            raise ValueError(f"a cache has one group of devices; got data_parallel_degree={degree}")
        if params.enable_kvcache_swapping_to_host:
            raise ValueError("the pages of a cache do not move to the host; got enable_kvcache_swapping_to_host=True")
        if params.dtype not in (DType.float32, DType.float16, DType.bfloat16):
            raise ValueError(f"a cache has keys and values in float32, float16 or bfloat16; got {params.dtype}")
        self.page_size = _page_size(params, page_size)
        page_bytes = _page_bytes(params, num_layers, self.page_size)
        count = cache_memory // page_bytes
        if count < 1:
            raise RuntimeError(
                f"a cache needs room for a page: {page_bytes} bytes for {self.page_size} tokens of {num_layers} "
                f"layers, and {cache_memory} are available"
            )
        self._pages = Pages(count, self.page_size)
        self.device_tensors = [Buffer.zeros(self.block_shape(), params.dtype, device) for device in self.devices]

    @property
    def total_num_pages(self) -> int:
        """The number of pages."""
        return self._pages.count

    @property
    def num_free_blocks(self) -> int:
        """The number of pages that no sequence has."""
        return self._pages.free

    @property
    def free_blocks_pct(self) -> float:
        """How many of the pages these are, as a fraction."""
        return self._pages.free / self._pages.count

    @property
    def used_blocks_pct(self) -> float:
        """How many of the pages sequences have, as a fraction."""
        return 1 - self.free_blocks_pct

    def get_req_blocks(self, request_id: str) -> Sequence[int]:
        """The pages of a request.

        Args:
            request_id: The request.
        """
        return list(self._pages.of(request_id))

    def block_shape(
        self, total_num_pages: int | None = None, num_layers: int | None = None, is_parameterized: bool = False
    ) -> list[Any]:
        """The shape of the pages of a device.

        Args:
            total_num_pages: Another number of pages.
            num_layers: Another number of layers.
            is_parameterized: Whether the number of pages is a name.
        """
        pages: int | str = self.total_num_pages if total_num_pages is None else total_num_pages
        layers = self.num_layers if num_layers is None else num_layers
        heads, depth = self.params.n_kv_heads_per_device, self.params.head_dim
        return ["total_num_pages" if is_parameterized else pages, 2, layers, self.page_size, heads, depth]

    @classmethod
    def estimated_memory_size(
        cls,
        params: KVCacheParams,
        max_batch_size: int,
        max_seq_len: int,
        num_layers: int,
        available_cache_memory: int,
        devices: Sequence[Device],
        **kwargs: Any,
    ) -> int:
        """The bytes of the pages for so many sequences, or of as many pages as there is memory for."""
        page_size = _page_size(params, kwargs.get("page_size"))
        page_bytes = _page_bytes(params, num_layers, page_size)
        wanted = max_batch_size * -(-max_seq_len // page_size)
        return min(wanted, available_cache_memory // page_bytes) * page_bytes

    @classmethod
    def infer_optimal_batch_size(
        cls,
        params: KVCacheParams,
        max_seq_len: int,
        num_layers: int,
        available_cache_memory: int,
        devices: Sequence[Device],
        **kwargs: Any,
    ) -> int:
        """How many of the longest sequences there is memory for: at least one, and not more than 512."""
        page_size = _page_size(params, kwargs.get("page_size"))
        sequence = -(-max_seq_len // page_size) * _page_bytes(params, num_layers, page_size)
        return max(1, min(_MOST_REQUESTS, available_cache_memory // sequence))

    def input_symbols(
        self, devices: Sequence[Device] | None = None, num_layers: int | None = None
    ) -> Sequence[PagedCacheInputSymbols]:
        """The types of the inputs, for each device."""
        shape = self.block_shape(num_layers=num_layers, is_parameterized=True)
        u32, host = DType.uint32, DeviceRef.CPU()
        return [
            PagedCacheInputSymbols(
                kv_blocks=BufferType(self.params.dtype, shape, device),
                cache_lengths=TensorType(u32, ["batch_size"], device),
                lookup_table=TensorType(u32, ["batch_size", "max_num_pages"], device),
                max_lengths=TensorType(u32, ["steps_remaining", 2], host),
            )
            for device in map(DeviceRef.from_device, self.devices if devices is None else devices)
        ]

    def fetch(self, batch: Sequence[T], num_steps: int = 1) -> Sequence[RaggedKVCacheInputs]:
        """What a model takes to compute the next tokens of requests, for each device.

        Requests get the pages that they need. With prefix caching, one that has none yet also gets those of tokens that
        it begins with, and its `start_idx` grows by as many.

        Raises:
            ValueError: If a request is not claimed, or is in the batch twice.
            RuntimeError: If a sequence is too long, or there are not enough pages. Then no request gets new ones.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps must be positive; got {num_steps}")
        self._check(batch, num_steps)
        if self.params.enable_prefix_caching:
            for context in batch:
                self._adopt(context)
        lengths = [context.start_idx + context.active_length for context in batch]
        needs = [
            self._pages.missing(context.request_id, length + num_steps - 1)
            for context, length in zip(batch, lengths, strict=True)
        ]
        if sum(needs) > self._pages.free:
            names = ", ".join(str(context.request_id) for context, need in zip(batch, needs, strict=True) if need)
            raise RuntimeError(
                f"the cache is full: {sum(needs)} more pages of {self.page_size} tokens are needed for {names}, and "
                f"{self._pages.free} of {self._pages.count} are free"
            )
        for context, need in zip(batch, needs, strict=True):
            self._pages.grow(context.request_id, need)
        return self._inputs(batch, lengths, num_steps)

    def _check(self, batch: Sequence[T], num_steps: int) -> None:
        seen: set[str] = set()
        for context in batch:
            name = context.request_id
            if not self.contains(name):
                raise ValueError(f"request {name} is not claimed, so it has no place in the cache")
            if name in seen:
                raise ValueError(f"request {name} is in the batch twice")
            seen.add(name)
            length = context.start_idx + context.active_length + num_steps - 1
            if length > self.max_seq_len:
                raise RuntimeError(
                    f"request {name} has {context.start_idx + context.active_length} tokens and {num_steps} steps, "
                    f"so it would have {length} tokens: sequences have at most {self.max_seq_len}"
                )
            if context.start_idx > len(self._pages.of(name)) * self.page_size:
                raise ValueError(
                    f"request {name} has {context.start_idx} tokens in the cache as it says, but only "
                    f"{len(self._pages.of(name))} pages of {self.page_size} tokens"
                )

    def _adopt(self, context: T) -> None:
        """Gives pages of others to a new request, but not for its last token: what comes after it is to be computed."""
        if self._pages.of(context.request_id) or context.start_idx:
            return
        found = self._pages.adopt(context.request_id, context.tokens[: max(0, context.active_length - 1)])
        if found:
            context.bump_token_indices(start_idx=found)

    def _inputs(self, batch: Sequence[T], lengths: list[int], num_steps: int) -> list[RaggedKVCacheInputs]:
        owned = [self._pages.of(context.request_id) for context in batch]
        width = max(map(len, owned), default=0)
        table = np.full((len(batch), width), self._pages.count, dtype=np.uint32)
        for row, pages in zip(table, owned, strict=True):
            row[: len(pages)] = pages
        cached = np.array([context.start_idx for context in batch], dtype=np.uint32)
        new = max((context.active_length for context in batch), default=0)
        most = build_max_lengths_tensor(num_steps, new, max(lengths, default=0))
        return [
            RaggedKVCacheInputs(
                blocks=blocks,
                cache_lengths=Buffer.from_numpy(cached.copy()).to(device),
                lookup_table=Buffer.from_numpy(table.copy()).to(device),
                max_lengths=most,
            )
            for blocks, device in zip(self.device_tensors, self.devices, strict=True)
        ]

    def release(self, request_id: str) -> None:
        """Ends a request: others get its pages."""
        super().release(request_id)
        self._pages.release(request_id)

    def step(self, batch: Sequence[T]) -> None:
        """Keeps the full pages of requests, up to their `start_idx`, for others that begin with the same tokens."""
        for context in batch:
            if not self.contains(context.request_id):
                raise ValueError(f"request {context.request_id} is not claimed, so it has no place in the cache")
            if self.params.enable_prefix_caching:
                self._pages.keep(context.request_id, context.tokens[: context.start_idx])


def _page_size(params: KVCacheParams, given: int | None) -> int:
    size = params.page_size if given is None else given
    if size is None or size < 1:
        raise ValueError(f"the pages of a cache have room for at least one token; got the page size {size}")
    return size


def _page_bytes(params: KVCacheParams, num_layers: int, page_size: int) -> int:
    """The bytes of a page on all devices."""
    heads = params.n_kv_heads_per_device * params.n_devices
    return 2 * num_layers * page_size * heads * params.head_dim * params.dtype.size_in_bytes
