"""`max.nn.kv_cache`: params, and a manager that gives pages to sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType
from max.nn.kv_cache import (
    FetchPagedKVCacheCollection,
    KVCacheAwareContext,
    KVCacheInputsSequence,
    KVCacheManager,
    KVCacheParams,
    KVCacheStrategy,
    PaddedKVCacheInputs,
    PagedKVCacheManager,
    RaggedKVCacheInputs,
    estimate_kv_cache_size,
    infer_optimal_batch_size,
    load_kv_manager,
)

from caches import F32, HOST, Request, manager, offsets

PARAMS = KVCacheParams(F32, 2, 4, page_size=4)
PAGE_BYTES = 2 * 3 * 4 * 2 * 4 * 4


def claimed(owner: PagedKVCacheManager[Any], name: str, tokens: int) -> Request:
    owner.external_claim(name)
    return Request(name, range(tokens))


def tables(owner: PagedKVCacheManager[Any], *requests: Request, steps: int = 1) -> list[Any]:
    (given,) = owner.fetch(requests, steps)
    return [x.to_numpy().tolist() for x in (given.cache_lengths, given.lookup_table, given.max_lengths)]


def test_params() -> None:
    params = KVCacheParams(DType.bfloat16, 8, 64, page_size=16, n_devices=4)
    assert params.n_kv_heads_per_device == 2 and params.dtype_shorthand == "bf16" and PARAMS.dtype_shorthand == "f32"
    assert params.cache_strategy is KVCacheStrategy.PAGED and params.cache_strategy.kernel_substring() == "paged"
    assert KVCacheStrategy("model_default").uses_opaque()
    assert params.static_cache_shape == ("num_layers", "batch_size", "seq_len", "n_kv_heads", "head_dim")
    spread = KVCacheParams(F32, 3, 4, page_size=4, n_devices=2, data_parallel_degree=2)
    assert spread.n_kv_heads_per_device == 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "Page size is required"),
        ({"page_size": 0}, "at least one token; got page_size=0"),
        ({"page_size": 4, "n_devices": 3}, r"KV heads \(2\) must be divisible by the number of devices \(3\)"),
        ({"page_size": 4, "data_parallel_degree": 2}, r"\(2\) cannot be greater than the number of devices \(1\)"),
        ({"page_size": 4, "n_devices": 4, "data_parallel_degree": 2}, "either by heads or by sequences"),
        ({"page_size": 4, "enable_kvcache_swapping_to_host": True}, "prefix caching"),
        ({"page_size": 4, "n_devices": 0}, "n_devices must be positive; got 0"),
    ],
)
def test_params_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVCacheParams(F32, 2, 4, **options)


def test_pages(session: InferenceSession) -> None:
    owner = manager(session, PARAMS, layers=3, pages=10, longest=20)
    assert owner.block_shape() == [10, 2, 3, 4, 2, 4] and owner.num_free_blocks == 10
    a, b = claimed(owner, "a", 5), claimed(owner, "b", 1)
    assert owner.contains("a") and not owner.contains("z") and isinstance(owner, KVCacheManager)
    assert tables(owner, a, b) == [[0, 0], [[0, 1], [2, 10]], [[5, 5]]]
    assert tables(owner, a, b) == [[0, 0], [[0, 1], [2, 10]], [[5, 5]]]
    a.append(0)
    b.append(0)
    owner.step([a, b])
    assert tables(owner, a, b, steps=3) == [[5, 1], [[0, 1], [2, 10]], [[1, 6], [1, 7], [1, 8]]]
    assert tables(owner, a, steps=4) == [[5], [[0, 1, 3]], [[1, 6], [1, 7], [1, 8], [1, 9]]]
    assert owner.get_req_blocks("a") == [0, 1, 3] and owner.get_req_blocks("b") == [2]
    assert owner.used_blocks_pct == pytest.approx(0.4)
    owner.release("a")
    assert owner.num_free_blocks == 9 and not owner.contains("a")
    c = claimed(owner, "c", 17)
    assert tables(owner, b, c)[1] == [[2, 10, 10, 10, 10], [0, 1, 3, 4, 5]]


def test_sequences_without_tokens_and_batches_without_sequences(session: InferenceSession) -> None:
    owner = manager(session, PARAMS)
    empty = claimed(owner, "empty", 0)
    assert tables(owner, empty) == [[0], [[]], [[0, 0]]]
    assert tables(owner) == [[], [], [[0, 0]]]
    empty.append(7)
    assert tables(owner, empty) == [[0], [[0]], [[1, 1]]]


def test_a_full_cache(session: InferenceSession) -> None:
    owner = manager(session, PARAMS, pages=4, longest=64)
    a, b = claimed(owner, "a", 8), claimed(owner, "b", 12)
    with pytest.raises(RuntimeError, match="5 more pages of 4 tokens are needed for a, b, and 4 of 4 are free"):
        owner.fetch([a, b])
    assert owner.num_free_blocks == 4 and owner.get_req_blocks("a") == []
    owner.fetch([b])
    with pytest.raises(RuntimeError, match="the cache is full: 2 more pages"):
        owner.fetch([a])
    owner.release("b")
    owner.fetch([a])


def test_requests_are_checked(session: InferenceSession) -> None:
    owner = manager(session, PARAMS, requests=2, longest=20)
    with pytest.raises(ValueError, match="request a is not claimed"):
        owner.fetch([Request("a", [1])])
    a = claimed(owner, "a", 20)
    with pytest.raises(ValueError, match="a is already claimed"):
        owner.external_claim("a")
    owner.external_claim("b")
    with pytest.raises(ValueError, match="request c is one more than the 2"):
        owner.external_claim("c")
    with pytest.raises(ValueError, match="request ID c but it is not claimed"):
        owner.release("c")
    with pytest.raises(ValueError, match="a is in the batch twice"):
        owner.fetch([a, a])
    with pytest.raises(RuntimeError, match="a has 20 tokens and 2 steps, so it would have 21 tokens.* at most 20"):
        owner.fetch([a], 2)
    with pytest.raises(ValueError, match="num_steps must be positive; got 0"):
        owner.fetch([a], 0)
    a.start_idx = 3
    with pytest.raises(ValueError, match="request a has 3 tokens in the cache as it says, but only 0 pages"):
        owner.fetch([a])
    with pytest.raises(ValueError, match="request z is not claimed"):
        owner.step([Request("z", [1])])


def test_managers_are_checked(session: InferenceSession) -> None:
    given = (8, 20, 3, [CPU()], session)
    with pytest.raises(RuntimeError, match="768 bytes for 4 tokens of 3 layers, and 767 are available"):
        PagedKVCacheManager(PARAMS, *given, PAGE_BYTES - 1)
    with pytest.raises(ValueError, match="for 2 devices; got 1"):
        PagedKVCacheManager(KVCacheParams(F32, 2, 4, page_size=4, n_devices=2), *given, 10**6)
    with pytest.raises(ValueError, match="float32, float16 or bfloat16; got .*int8"):
        PagedKVCacheManager(KVCacheParams(DType.int8, 2, 4, page_size=4), *given, 10**6)
    with pytest.raises(ValueError, match="max_seq_len must be positive; got 0"):
        PagedKVCacheManager(PARAMS, 8, 0, 3, [CPU()], session, 10**6)
    with pytest.raises(ValueError, match="available_cache_memory"):
        load_kv_manager(PARAMS, *given)
    with pytest.raises(ValueError, match="max_batch_size"):
        load_kv_manager(PARAMS, None, *given[1:], 10**6)
    assert load_kv_manager(PARAMS, *given, 5 * PAGE_BYTES, 2).block_shape() == [10, 2, 3, 2, 2, 4]


def test_estimates() -> None:
    assert estimate_kv_cache_size(PARAMS, 8, 20, 3, 10**6, [CPU()]) == 8 * 5 * PAGE_BYTES
    assert estimate_kv_cache_size(PARAMS, 8, 20, 3, 7 * PAGE_BYTES + 5, [CPU()]) == 7 * PAGE_BYTES
    assert infer_optimal_batch_size(PARAMS, 20, 3, 17 * PAGE_BYTES, [CPU()]) == 3
    assert infer_optimal_batch_size(PARAMS, 20, 3, 1, [CPU()]) == 1
    assert infer_optimal_batch_size(PARAMS, 20, 3, 10**9, [CPU()]) == 512


def test_common_beginnings_share_pages(session: InferenceSession) -> None:
    params = KVCacheParams(F32, 2, 4, page_size=4, enable_prefix_caching=True)
    owner = manager(session, params, pages=6)
    a = claimed(owner, "a", 10)
    owner.fetch([a])
    a.append(10)
    owner.step([a])
    b = claimed(owner, "b", 9)
    assert tables(owner, b) == [[8], [[0, 1, 3]], [[1, 9]]] and b.start_idx == 8
    c = claimed(owner, "c", 8)
    assert tables(owner, c)[:2] == [[4], [[0, 4]]]
    other = Request("d", [0, 1, 2, 9, 4, 5])
    owner.external_claim("d")
    with pytest.raises(RuntimeError, match="2 more pages .* 1 of 6 are free"):
        owner.fetch([other])
    for name in "abc":
        owner.release(name)
    assert owner.num_free_blocks == 6
    again = claimed(owner, "e", 9)
    assert tables(owner, again)[0] == [8]
    # All pages are needed: what was kept for others is gone.
    owner.release("e")
    owner.external_claim("f")
    owner.fetch([Request("f", range(100, 124))])
    owner.release("f")
    assert tables(owner, claimed(owner, "g", 9))[0] == [0]


def test_steps_without_a_fetch(session: InferenceSession) -> None:
    owner = manager(session, PARAMS)
    a, b = claimed(owner, "a", 5), claimed(owner, "b", 2)
    (given,) = owner.fetch([a, b], 3)
    inputs = SimpleNamespace(input_row_offsets=Buffer.from_numpy(offsets([5, 2])))
    (second,) = owner.increment_cache_lengths([given], inputs)
    assert second.cache_lengths.to_numpy().tolist() == [5, 2] and second.blocks is given.blocks
    assert second.max_lengths.to_numpy().tolist() == [[1, 6], [1, 7]]
    inputs = SimpleNamespace(input_row_offsets=Buffer.from_numpy(offsets([1, 1])))
    (third,) = owner.increment_cache_lengths([second], inputs)
    assert third.cache_lengths.to_numpy().tolist() == [6, 3]
    assert given.cache_lengths.to_numpy().tolist() == [0, 0]
    padded = PaddedKVCacheInputs(*given)
    with pytest.raises(TypeError, match="ragged"):
        owner.increment_cache_lengths([padded], inputs)


def test_inputs_are_flat() -> None:
    one = RaggedKVCacheInputs(*(Buffer.from_numpy(np.zeros(size)) for size in range(4)))
    both = KVCacheInputsSequence([one, one])
    assert [x.shape for x in both] == [(0,), (1,), (2,), (3,)] * 2 and len(both) == 8 and both[5].shape == (1,)


def test_symbols_and_collections(session: InferenceSession) -> None:
    owner = manager(session, PARAMS, layers=3)
    (symbols,) = owner.input_symbols(num_layers=1)
    assert symbols.kv_blocks == BufferType(F32, ["total_num_pages", 2, 1, 4, 2, 4], HOST)
    assert symbols.lookup_table == TensorType(DType.uint32, ["batch_size", "max_num_pages"], HOST)
    assert len(symbols) == 4
    fetch = FetchPagedKVCacheCollection(PARAMS)
    plain = TensorType(F32, ["total_num_pages", 2, 1, 4, 2, 4], HOST)
    other = BufferType(F32, ["total_num_pages", 2, 1, 4, 3, 4], HOST)
    with Graph("collection", input_types=[*symbols, plain, other]) as graph:
        blocks, *rest, tensor, wrong = graph.inputs
        assert fetch(blocks, *rest).kv_blocks is blocks
        with pytest.raises(TypeError, match="BufferType"):
            fetch(tensor, *rest)
        with pytest.raises(ValueError, match=r"tokens of a page, 2, 4\]; got"):
            fetch(wrong, *rest)


def test_contexts() -> None:
    names = [name for name in dir(KVCacheAwareContext) if not name.startswith("_")]
    whole = type("Whole", (), {name: lambda self: None for name in names})
    assert isinstance(whole(), KVCacheAwareContext) and not isinstance(object(), KVCacheAwareContext)


def test_several_devices(session: InferenceSession) -> None:
    params = KVCacheParams(F32, 2, 4, page_size=4, n_devices=2)
    owner = PagedKVCacheManager[Any](params, 2, 16, 1, [CPU(), CPU()], session, 4 * 2 * 4 * 2 * 4 * 4)
    assert owner.block_shape() == [4, 2, 1, 4, 1, 4]
    request = claimed(owner, "a", 5)
    first, second = owner.fetch([request])
    assert first.blocks is not second.blocks and [DeviceRef.from_device(x.device) for x in second] == [HOST] * 4
    assert first.lookup_table.to_numpy().tolist() == second.lookup_table.to_numpy().tolist() == [[0, 1]]
