"""What a cache of keys and values is like."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from max.dtype import DType

__all__ = ["KVCacheParams", "KVCacheStrategy"]


class KVCacheStrategy(str, Enum):
    """How a cache gives memory to sequences."""

    MODEL_DEFAULT = "model_default"
    """As the model prefers it: in pages."""
    PAGED = "paged"
    """In pages of equally many tokens."""

    def kernel_substring(self) -> str:
        """What the names of kernels have for this strategy."""
        return self.value

    def uses_opaque(self) -> bool:
        """Whether graphs take the cache as one thing, rather than as separate keys and values: they do."""
        return True


@dataclass
class KVCacheParams:
    """The sizes of a cache of keys and values.

    >>> KVCacheParams(DType.bfloat16, n_kv_heads=8, head_dim=64, page_size=128, n_devices=2).n_kv_heads_per_device
    4

    Raises:
        ValueError: If the params contradict each other.
    """

    dtype: DType
    """The dtype of keys and values."""
    n_kv_heads: int
    """The number of heads of keys and values, on all devices."""
    head_dim: int
    """The number of elements of a head."""
    enable_prefix_caching: bool = False
    """Whether sequences share the pages of tokens that they begin with."""
    enable_kvcache_swapping_to_host: bool = False
    """Whether pages that are not in use move to the memory of the host."""
    host_kvcache_swap_space_gb: float | None = None
    """How much memory of the host they may take."""
    cache_strategy: KVCacheStrategy = KVCacheStrategy.PAGED
    """How sequences get memory."""
    page_size: int | None = None
    """The number of tokens of a page."""
    n_devices: int = 1
    """The number of devices, each of which has some of the heads."""
    data_parallel_degree: int = 1
    """How many groups of devices have sequences of their own."""
    n_kv_heads_per_device: int = 0
    """The number of heads that a device has; it is computed."""

    def __post_init__(self) -> None:
        for name in ("n_kv_heads", "head_dim", "n_devices", "data_parallel_degree"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive; got {getattr(self, name)}")
        if self.data_parallel_degree > self.n_devices:
            raise ValueError(
                f"Data parallelism degree ({self.data_parallel_degree}) cannot be greater than the number of devices "
                f"({self.n_devices})"
            )
        if self.data_parallel_degree not in (1, self.n_devices):
            raise ValueError(
                "a cache is divided either by heads or by sequences; got "
                f"data_parallel_degree={self.data_parallel_degree} and n_devices={self.n_devices}"
            )
        shares = self.n_devices // self.data_parallel_degree
        if self.n_kv_heads % shares:
            raise ValueError(
                f"Number of KV heads ({self.n_kv_heads}) must be divisible by the number of devices ({shares})"
            )
        self.n_kv_heads_per_device = self.n_kv_heads // shares
        if self.enable_kvcache_swapping_to_host and not self.enable_prefix_caching:
            raise ValueError("KVCache swapping to host is only supported when prefix caching is enabled")
        if self.enable_kvcache_swapping_to_host and self.host_kvcache_swap_space_gb is None:
            raise ValueError("host_kvcache_swap_space_gb is required when kvcache_swapping_to_host is enabled")
        if self.page_size is None and self.cache_strategy is KVCacheStrategy.PAGED:
            raise ValueError("Page size is required for paged cache strategy")
        if self.page_size is not None and self.page_size < 1:
            raise ValueError(f"pages have room for at least one token; got page_size={self.page_size}")

    @property
    def dtype_shorthand(self) -> str:
        """The dtype in short: `bf16`, `f16` or `f32`."""
        return {DType.bfloat16: "bf16", DType.float16: "f16"}.get(self.dtype, "f32")

    @property
    def static_cache_shape(self) -> tuple[str, str, str, str, str]:
        """The names of the axes of a cache that is not in pages."""
        return ("num_layers", "batch_size", "seq_len", "n_kv_heads", "head_dim")
