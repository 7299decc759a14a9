"""What managers of caches have in common, and what they give to models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from max.driver import Buffer, Device
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType
from max.nn.kv_cache.cache_params import KVCacheParams
from max.nn.kv_cache.context import KVCacheAwareContext

if TYPE_CHECKING:
    from max.engine import InferenceSession, Model

__all__ = [
    "KVCacheInputSymbols",
    "KVCacheInputs",
    "KVCacheInputsSequence",
    "KVCacheManager",
    "PaddedKVCacheInputs",
    "RaggedKVCacheInputs",
]

T = TypeVar("T", bound=KVCacheAwareContext)


class _Fields:
    """The fields of a dataclass one after the other, those of nested ones in their place."""

    def __iter__(self) -> Iterator[Any]:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            yield from _flat(value)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (_Fields, list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


@dataclass
class KVCacheInputSymbols(_Fields):
    """The types of the inputs of a graph that are about a cache: a base of dataclasses, which can be iterated."""


@dataclass
class KVCacheInputs(_Fields):
    """The inputs of a model that are about a cache: a base of dataclasses, which can be iterated.

    >>> import numpy as np
    >>> given = RaggedKVCacheInputs(*(Buffer.from_numpy(np.zeros(size)) for size in (4, 3, 2, 1)))
    >>> [buffer.shape for buffer in given]
    [(4,), (3,), (2,), (1,)]
    """


@dataclass
class PaddedKVCacheInputs(KVCacheInputs):
    """The inputs for sequences that are padded to one length."""

    k_cache: Buffer
    """The keys."""
    v_cache: Buffer
    """The values."""
    start_pos: Buffer
    """How many tokens are in the cache."""
    null_op: Buffer
    """Has no meaning."""


@dataclass
class RaggedKVCacheInputs(KVCacheInputs):
    """The inputs for sequences one after the other, with a cache in pages."""

    blocks: Buffer
    """The pages, `[pages, 2, layers, tokens of a page, heads, elements of a head]`."""
    cache_lengths: Buffer
    """How many tokens of each sequence are in the cache: uint32 `[sequences]`."""
    lookup_table: Buffer
    """The pages of each sequence: uint32 `[sequences, pages]`. Those that it does not have are the number of pages."""
    max_lengths: Buffer
    """The most new tokens and the most tokens of a sequence, for each step: uint32 `[steps, 2]`, on the host."""


@dataclass
class KVCacheInputsSequence(KVCacheInputs):
    """Several inputs as one."""

    kv_cache_inputs: Sequence[KVCacheInputs]
    """The inputs."""


class KVCacheManager(ABC, Generic[T]):
    """Says which memory of a cache each request has.

    A request is claimed, fetched for each execution of the model, and released.

    Args:
        params: What the cache is like.
        max_batch_size: The most requests at a time.
        max_seq_len: The length of the longest sequence.
        num_layers: The number of layers.
        devices: Where the cache is; each device has some of the heads.
        session: What loads the models of the manager.
        is_ragged: Whether sequences come one after the other, rather than padded.
    """

    params: KVCacheParams
    """What the cache is like."""
    max_batch_size: int
    """The most requests at a time."""
    max_seq_len: int
    """The length of the longest sequence."""
    num_layers: int
    """The number of layers."""

    def __init__(
        self,
        params: KVCacheParams,
        max_batch_size: int,
        max_seq_len: int,
        num_layers: int,
        devices: Sequence[Device],
        session: InferenceSession,
        is_ragged: bool = False,
    ) -> None:
        sizes = {"max_batch_size": max_batch_size, "max_seq_len": max_seq_len, "num_layers": num_layers}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be positive; got {value}")
        if len(devices) != params.n_devices:
            raise ValueError(f"the params are for {params.n_devices} devices; got {len(devices)}")
        self.params = params
        self.max_batch_size = max_batch_size
        self.max_seq_len = max_seq_len
        self.num_layers = num_layers
        self.devices = list(devices)
        self.session = session
        self.is_ragged = is_ragged
        self._active: set[str] = set()

    @classmethod
    @abstractmethod
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
        """The bytes that a cache for so many sequences takes.

        Args:
            params: What the cache is like.
            max_batch_size: The most requests at a time.
            max_seq_len: The length of the longest sequence.
            num_layers: The number of layers.
            available_cache_memory: The bytes that there are.
            devices: Where the cache is.
            **kwargs: Further options.
        """

    @classmethod
    @abstractmethod
    def infer_optimal_batch_size(
        cls,
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
            **kwargs: Further options.
        """

    @abstractmethod
    def fetch(self, batch: Sequence[T], num_steps: int = 1) -> Sequence[KVCacheInputs]:
        """What a model takes to compute the next tokens of requests, for each device.

        Args:
            batch: The requests.
            num_steps: How often the model runs until the next fetch, with one more token of each request each time.
        """

    @abstractmethod
    def input_symbols(
        self, devices: Sequence[Device] | None = None, num_layers: int | None = None
    ) -> Sequence[KVCacheInputSymbols]:
        """The types of these inputs, for each device.

        Args:
            devices: Other devices than those of the manager.
            num_layers: Another number of layers.
        """

    def contains(self, request_id: str) -> bool:
        """Whether a request is claimed.

        Args:
            request_id: The request.
        """
        return request_id in self._active

    def external_claim(self, request_id: str) -> None:
        """Takes a request in.

        Args:
            request_id: The request.

        Raises:
            ValueError: If it is there already, or there are as many as there may be.
        """
        if request_id in self._active:
            raise ValueError(f"Request ID {request_id} is already claimed")
        if len(self._active) >= self.max_batch_size:
            most = self.max_batch_size
            raise ValueError(f"request {request_id} is one more than the {most} that there may be at a time")
        self._active.add(request_id)

    def release(self, request_id: str) -> None:
        """Ends a request: others get its memory.

        Args:
            request_id: The request.

        Raises:
            ValueError: If it is not claimed.
        """
        if request_id not in self._active:
            raise ValueError(f"Attempted to release request ID {request_id} but it is not claimed")
        self._active.remove(request_id)

    def step(self, batch: Sequence[T]) -> None:
        """Says that the tokens of requests are in the cache, for others that begin with the same ones.

        Nothing happens unless prefix caching is enabled.

        Args:
            batch: The requests.
        """

    def increment_cache_lengths(self, kv_cache_inputs: Any, prev_model_inputs: Any) -> Any:
        """The inputs for the next of several steps: the tokens of the one before are in the cache now.

        Args:
            kv_cache_inputs: The inputs of the step before, one for each device.
            prev_model_inputs: What has the `input_row_offsets` of that step: a buffer, or one for each device.
        """
        if not all(isinstance(inputs, RaggedKVCacheInputs) for inputs in kv_cache_inputs):
            raise TypeError("only the inputs of ragged sequences have lengths to increment")
        offsets = prev_model_inputs.input_row_offsets
        offsets = offsets if isinstance(offsets, (list, tuple)) else [offsets] * len(kv_cache_inputs)
        offsets = [own.to(given.cache_lengths.device) for own, given in zip(offsets, kv_cache_inputs, strict=True)]
        lengths = [given.cache_lengths for given in kv_cache_inputs]
        updated = self.increment_cache_lengths_model.execute(*offsets, *lengths)
        return [
            replace(given, cache_lengths=lengths, max_lengths=given.max_lengths[1:, :])
            for given, lengths in zip(kv_cache_inputs, updated, strict=True)
        ]

    @cached_property
    def increment_cache_lengths_model(self) -> Model:
        """The model that adds the lengths of sequences to those in the cache."""
        devices = [DeviceRef.from_device(device) for device in self.devices]
        types = [TensorType(DType.uint32, ["offsets"], device) for device in devices]
        types += [TensorType(DType.uint32, ["batch_size"], device) for device in devices]
        with Graph("increment_cache_lengths", input_types=types) as graph:
            values = [value.tensor for value in graph.inputs]
            count = len(devices)
            sums = []
            for offsets, lengths in zip(values[:count], values[count:], strict=True):
                new = offsets[1:] - offsets[:-1]
                sums.append(lengths + new.rebind(lengths.shape, "an offset more than there are sequences"))
            graph.output(*sums)
        return self.session.load(graph)
