"""Functions of `max.nn.kernels` with a cache, against NumPy: prompts of several lengths and then steps of one token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import Graph, TensorType, TensorValue, ops
from max.graph.quantization import QuantizationEncoding, quantize
from max.nn import kernels
from max.nn.attention import MHAMaskVariant
from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
from max.nn.rotary_embedding import RotaryEmbedding

from caches import F32, HOST, U32, Request, attention, execute, load, manager, rotated, turned
from helpers import assert_close, to_array, to_buffer

HEADS, KEY_HEADS, DEPTH, HIDDEN, THETA = 4, 2, 8, 24, 10000.0
WIDTH = (HEADS + 2 * KEY_HEADS) * DEPTH
PARAMS = KVCacheParams(F32, KEY_HEADS, DEPTH, page_size=4)
COUNTS = [[5, 1, 0, 9], [1, 1, 1, 1], [1, 3, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(number: int) -> TensorValue:
    return ops.constant(number, U32, HOST)


class Sequences:
    """Sequences that grow step by step, with the rows that each has got so far."""

    def __init__(self, session: InferenceSession, params: KVCacheParams = PARAMS, layers: int = 1) -> None:
        self.manager = manager(session, params, layers)
        self.requests = [Request(str(i), []) for i in range(len(COUNTS[0]))]
        for request in self.requests:
            self.manager.external_claim(request.request_id)
        self.rows: list[list[np.ndarray]] = [[] for _ in self.requests]

    def fetch(self, counts: list[int]) -> Any:
        for request, count in zip(self.requests, counts):
            request.append(*range(count))
        return self.manager.fetch(self.requests)[0]

    def add(self, rows: np.ndarray, counts: list[int]) -> list[tuple[int, np.ndarray]]:
        """Appends new rows to the sequences: where those of each started, and all of them."""
        for own, new in zip(self.rows, np.split(rows, np.cumsum(counts)[:-1])):
            own.append(new)
        return [(sum(map(len, own[:-1])), np.concatenate(own)) for own in self.rows]


def qkv(rows: np.ndarray) -> list[np.ndarray]:
    q, k, v = np.split(rows, [HEADS * DEPTH, (HEADS + KEY_HEADS) * DEPTH], axis=1)
    return [q.reshape(-1, HEADS, DEPTH), k.reshape(-1, KEY_HEADS, DEPTH), v.reshape(-1, KEY_HEADS, DEPTH)]


def heads(x: TensorValue, count: int = HEADS) -> TensorValue:
    return x.reshape((x.shape[0], count, x.shape[1] // count))


SLOPES = 2.0 ** (-8 * np.arange(1, HEADS + 1) / HEADS)
MASKS = [
    ("causal", -1, False),
    ("null", -1, False),
    ("sliding_window_causal", 3, False),
    ("sliding_window_causal", 3, True),
    ("chunked_causal", 4, False),
    ("causal_alibi", -1, False),
    ("causal", -1, True),
]


@pytest.mark.parametrize("mask, window, sinks", MASKS)
def test_attention(session: InferenceSession, mask: str, window: int, sinks: bool) -> None:
    """Projection, storage and attention, in the second of two layers."""
    own = Sequences(session, layers=2)
    weight, bias, sink = draw(WIDTH, HIDDEN), draw(WIDTH, seed=1), draw(HEADS, seed=2)

    def forward(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        where = (cache, layer(1))
        wqkv, b = ops.constant(weight, F32, HOST), ops.constant(bias, F32, HOST)
        q = kernels.fused_qkv_ragged_matmul(PARAMS, x, offsets, wqkv, *where, HEADS, b)
        score = ops.constant(sink, F32, HOST) if sinks else None
        variant = MHAMaskVariant(mask)
        return kernels.flash_attention_ragged(PARAMS, heads(q), offsets, *where, variant, 0.3, window, score)

    model = load(session, own.manager, [TensorType(F32, ["tokens", HIDDEN], HOST)], forward)
    for step, counts in enumerate(COUNTS):
        cache, x = own.fetch(counts), draw(sum(counts), HIDDEN, seed=10 + step)
        found = to_array(execute(model, [x], counts, cache)[0])
        expected = []
        for start, rows in own.add(x @ weight.T + bias, counts):
            q, k, v = qkv(rows)
            extra = {"sinks": sink if sinks else None, "slopes": SLOPES if mask == "causal_alibi" else None}
            expected.append(attention(q[start:], k, v, 0.3, mask, window, **extra))
        assert_close(found, np.concatenate(expected), "float32", 1e-5)
    assert not own.manager.device_tensors[0].to_numpy()[:, :, 0].any()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("norm", ["head", "all", "some"])
def test_rope_and_norm_of_stored_keys(session: InferenceSession, interleaved: bool, norm: str) -> None:
    own = Sequences(session)
    weight = draw(WIDTH, HIDDEN)
    size = {"head": DEPTH, "all": DEPTH * KEY_HEADS, "some": 6}[norm]
    gamma = draw(size, seed=3)
    rope = RotaryEmbedding(HEADS * DEPTH, HEADS, THETA, 64, HOST, interleaved=interleaved)

    def forward(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        where = (cache, layer(0))
        q = kernels.fused_qkv_ragged_matmul(PARAMS, x, offsets, ops.constant(weight, F32, HOST), *where, HEADS)
        scale, columns = ops.constant(gamma, F32, HOST), size if norm == "some" else None
        last = (x.shape[0], offsets, 1.0, columns, True, norm != "all")
        kernels.rms_norm_key_cache(PARAMS, cache, scale, 1e-5, layer(0), *last)
        table = rope.freqs_cis
        q = kernels.fused_qk_ragged_rope(PARAMS, heads(q), offsets, cache, table, layer(0), interleaved)
        return kernels.flash_attention_ragged(PARAMS, q, offsets, *where, MHAMaskVariant.CAUSAL_MASK, 0.3)

    def normal(k: np.ndarray) -> np.ndarray:
        flat = k.reshape(len(k), 1, KEY_HEADS * DEPTH) if norm == "all" else k
        first = flat[..., :size]
        first = first / np.sqrt((first**2).mean(-1, keepdims=True) + 1e-5) * (gamma + 1)
        return np.concatenate([first, flat[..., size:]], -1).reshape(k.shape)

    model = load(session, own.manager, [TensorType(F32, ["tokens", HIDDEN], HOST)], forward)
    for step, counts in enumerate(COUNTS):
        cache, x = own.fetch(counts), draw(sum(counts), HIDDEN, seed=20 + step)
        found = to_array(execute(model, [x], counts, cache)[0])
        expected = []
        for start, rows in own.add(x @ weight.T, counts):
            q, k, v = qkv(rows)
            q = turned(q[start:], start, THETA, interleaved)
            expected.append(attention(q, turned(normal(k), 0, THETA, interleaved), v, 0.3))
        assert_close(found, np.concatenate(expected), "float32", 2e-5)


@pytest.mark.parametrize("unit", [1, 2])
def test_rope_of_given_positions(session: InferenceSession, unit: int) -> None:
    """Three sections of a head with positions of their own; sections are pairs or elements."""
    own, sections = Sequences(session), [1, 2, 1]
    counts = COUNTS[0]
    positions = np.random.default_rng(0).integers(0, 60, (3, sum(counts)))
    x = draw(sum(counts), WIDTH)
    rope = RotaryEmbedding(HEADS * DEPTH, HEADS, THETA, 64, HOST)

    def forward(
        x: TensorValue, positions: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection
    ) -> list[TensorValue]:
        eye = ops.constant(np.eye(WIDTH, dtype=np.float32), F32, HOST)
        q = kernels.fused_qkv_ragged_matmul(PARAMS, x, offsets, eye, cache, layer(0), HEADS)
        own = [size * unit for size in sections]
        q = kernels.fused_qk_ragged_rope(
            PARAMS, heads(q), offsets, cache, rope.freqs_cis, layer(0), position_ids=positions, mrope_section=own
        )
        result = kernels.flash_attention_ragged(PARAMS, q, offsets, cache, layer(0), MHAMaskVariant.CAUSAL_MASK, 0.3)
        return [q, result]

    types = [TensorType(F32, ["tokens", WIDTH], HOST), TensorType(DType.int64, [3, "tokens"], HOST)]
    model = load(session, own.manager, types, forward)
    found_q, found = map(to_array, execute(model, [x, positions], counts, own.fetch(counts)))
    frequencies = THETA ** (-np.arange(0, DEPTH, 2) / DEPTH)
    angles = positions.repeat(sections, axis=0).T * frequencies
    q, k, v = qkv(x)
    q, k = rotated(q, angles, True), rotated(k, angles, True)
    assert_close(found_q, q, "float32", 1e-5)
    ends = np.cumsum(counts)[:-1]
    parts = zip(*(np.split(part, ends) for part in (q, k, v)))
    assert_close(found, np.concatenate([attention(*part, 0.3) for part in parts]), "float32", 1e-5)


def test_projections_of_keys_and_values_alone(session: InferenceSession) -> None:
    """Keys of one sequence and queries of another, as in a decoder with an encoder."""
    own, kv = Sequences(session), KEY_HEADS * DEPTH
    weight, other = draw(2 * kv, HIDDEN), draw(kv, HIDDEN, seed=1)

    def forward(
        q: TensorValue, q_offsets: TensorValue, x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection
    ) -> list[TensorValue]:
        kernels.matmul_kv_cache_ragged(PARAMS, x, offsets, ops.constant(weight, F32, HOST), cache, layer(0))
        rest = (offsets, ops.constant(0, U32, HOST), 0.3)
        where = (q_offsets, cache, layer(0))
        first = kernels.cross_attention_ragged(PARAMS, q, *where, MHAMaskVariant.NULL_MASK, *rest)
        kernels.matmul_k_cache_ragged(PARAMS, x, offsets, ops.constant(other, F32, HOST), cache, layer(0))
        second = kernels.cross_attention_ragged(PARAMS, q, *where, MHAMaskVariant.NULL_MASK, *rest)
        return [first, second, kernels.kv_cache_get_max_seq_len(PARAMS, cache)]

    types = [TensorType(F32, ["queries", HEADS, DEPTH], HOST), TensorType(U32, ["ends"], HOST)]
    model = load(session, own.manager, [*types, TensorType(F32, ["tokens", HIDDEN], HOST)], forward)
    counts, asked = COUNTS[0], [2, 3, 2, 1]
    q, x = draw(sum(asked), HEADS, DEPTH, seed=2), draw(sum(counts), HIDDEN, seed=3)
    given = [q, np.append([0], np.cumsum(asked)).astype(np.uint32), x]
    *found, longest = map(to_array, execute(model, given, counts, own.fetch(counts)))
    assert longest == 9 and longest.shape == ()
    values = x @ weight[kv:].T
    for result, keys in zip(found, [x @ weight[:kv].T, x @ other.T]):
        expected = []
        split = [np.split(part.reshape(-1, KEY_HEADS, DEPTH), np.cumsum(counts)[:-1]) for part in (keys, values)]
        for own_q, k, v in zip(np.split(q, np.cumsum(asked)[:-1]), *split):
            expected.append(attention(own_q, k, v, 0.3, "null") if len(k) else np.zeros_like(own_q))
        assert_close(result, np.concatenate(expected), "float32", 1e-5)


def test_additions_to_the_last_sequences(session: InferenceSession) -> None:
    own, first, kv = Sequences(session), 1, KEY_HEADS * DEPTH
    counts = COUNTS[0]
    x, added = draw(sum(counts), 2 * kv), draw(sum(counts[first:]), 2 * kv, seed=1)

    def forward(x: TensorValue, a: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        eye = ops.constant(np.eye(2 * kv, dtype=np.float32), F32, HOST)
        kernels.matmul_kv_cache_ragged(PARAMS, x, offsets, eye, cache, layer(0))
        kernels.kv_cache_ragged_radd(PARAMS, a, cache, offsets, ops.constant(first, U32, HOST), 0)
        return x

    types = [TensorType(F32, [name, 2 * kv], HOST) for name in ("tokens", "some")]
    model = load(session, own.manager, types, forward)
    cache = own.fetch(counts)
    execute(model, [x, added], counts, cache)
    expected = x.copy()
    expected[sum(counts[:first]) :] += added
    blocks, table = cache.blocks.to_numpy(), cache.lookup_table.to_numpy()
    found = [
        blocks[table[sequence, token // 4], :, 0, token % 4].reshape(-1)
        for sequence, count in enumerate(counts)
        for token in range(count)
    ]
    assert_close(np.stack(found), expected, "float32")


@pytest.mark.parametrize("encoding", ["Q4_0", "Q6_K"])
def test_projections_with_gguf_weights(session: InferenceSession, encoding: str) -> None:
    hidden, own = 256, Sequences(session)
    kind = QuantizationEncoding[encoding]
    sizes = [HEADS * DEPTH, KEY_HEADS * DEPTH, KEY_HEADS * DEPTH]
    weights = [draw(size, hidden, seed=size + i) / 16 for i, size in enumerate(sizes)]
    encoded = [quantize(kind, weight) for weight in weights]

    def forward(x: TensorValue, *rest: Any) -> list[TensorValue]:
        *blocks, offsets, cache = rest
        options = (offsets, HEADS, *blocks, kind, kind, kind, cache, layer(0))
        q = kernels.unfused_qkv_ragged_matmul_gguf_quantized(PARAMS, x, *options)
        result = kernels.flash_attention_ragged(PARAMS, q, offsets, cache, layer(0), MHAMaskVariant.CAUSAL_MASK, 0.3)
        decoded = ops.concat([ops.dequantize(kind, block) for block in blocks], 0)
        return [result, ops.matmul(x, ops.transpose(decoded, 0, 1))]

    types = [TensorType(F32, ["tokens", hidden], HOST)]
    types += [TensorType(DType.uint8, block.shape, HOST) for block in encoded]
    model = load(session, own.manager, types, forward)
    for step, counts in enumerate(COUNTS[:3]):
        x = draw(sum(counts), hidden, seed=30 + step)
        found, rows = map(to_array, execute(model, [x, *encoded], counts, own.fetch(counts)))
        expected = []
        for start, all_rows in own.add(rows, counts):
            q, k, v = qkv(all_rows)
            expected.append(attention(q[start:], k, v, 0.3).reshape(-1, HEADS * DEPTH))
        assert_close(found, np.concatenate(expected), "float32", 2e-2)


def test_caches_in_other_dtypes(session: InferenceSession) -> None:
    for name in ("float16", "bfloat16"):
        params = KVCacheParams(getattr(DType, name), KEY_HEADS, DEPTH, page_size=4)
        own = Sequences(session, params)
        weight = draw(WIDTH, HIDDEN)

        def forward(x: TensorValue, w: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
            q = kernels.fused_qkv_ragged_matmul(params, x, offsets, w, cache, layer(0), HEADS)
            return kernels.flash_attention_ragged(
                params, heads(q), offsets, cache, layer(0), MHAMaskVariant.CHUNKED_CAUSAL_MASK, 0.3, 4
            )

        types = [TensorType(params.dtype, shape, HOST) for shape in (["tokens", HIDDEN], [WIDTH, HIDDEN])]
        model = load(session, own.manager, types, forward)
        counts = COUNTS[0]
        x = draw(sum(counts), HIDDEN, seed=1)
        given = [to_buffer(array, name) for array in (x, weight)]
        (found,) = execute(model, given, counts, own.fetch(counts))
        assert found.dtype == params.dtype
        expected = []
        rounded = [to_array(buffer) for buffer in given]
        for start, rows in own.add(rounded[0] @ rounded[1].T, counts):
            q, k, v = qkv(rows)
            expected.append(attention(q[start:], k, v, 0.3, "chunked_causal", 4))
        assert_close(to_array(found), np.concatenate(expected), name, 4e-2)


def test_errors(session: InferenceSession) -> None:
    own = Sequences(session)
    (symbols,) = own.manager.input_symbols()
    types = [TensorType(F32, ["tokens", HIDDEN], HOST), TensorType(U32, ["offsets"], HOST), *symbols]
    with Graph("errors", input_types=types) as graph:
        x, offsets, blocks, *tables = graph.inputs
        cache = PagedKVCacheCollection(blocks.buffer, *tables)
        wqkv = ops.constant(draw(WIDTH - DEPTH, HIDDEN), F32, HOST)
        message = r"4 heads with keys and values of 2 heads of 8 elements are \[tokens, 64\]"
        with pytest.raises(ValueError, match=message):
            kernels.fused_qkv_ragged_matmul(PARAMS, x, offsets, wqkv, cache, layer(0), HEADS)
        with pytest.raises(ValueError, match="one dtype"):
            kernels.fused_qkv_ragged_matmul(PARAMS, x.cast(DType.float16), offsets, wqkv, cache, layer(0), HEADS)
        with pytest.raises(ValueError, match="rank 2"):
            kernels.matmul_k_cache_ragged(PARAMS, heads(x, 4), offsets, wqkv, cache, layer(0))
        q = ops.constant(draw(3, HEADS, DEPTH), F32, HOST)
        with pytest.raises(ValueError, match="positive window; got -1"):
            kernels.flash_attention_ragged(
                PARAMS, q, offsets, cache, layer(0), MHAMaskVariant.SLIDING_WINDOW_CAUSAL_MASK, 1.0
            )
        with pytest.raises(ValueError, match=r"takes queries \[tokens, heads, 8\]"):
            kernels.flash_attention_ragged(PARAMS, x.T, offsets, cache, layer(0), MHAMaskVariant.CAUSAL_MASK, 1.0)
        with pytest.raises(ValueError, match="expected gamma to have 8 elements"):
            gamma = ops.constant(draw(6), F32, HOST)
            kernels.rms_norm_key_cache(PARAMS, cache, gamma, 1e-5, layer(0), 3, offsets, 0.0)
        with pytest.raises(ValueError, match="layer_idx must be integers of rank 0"):
            kernels.flash_attention_ragged(PARAMS, q, offsets, cache, offsets, MHAMaskVariant.CAUSAL_MASK, 1.0)
        with pytest.raises(ValueError, match="mrope_section"):
            kernels.fused_qk_ragged_rope(PARAMS, q, offsets, cache, q, layer(0), mrope_section=[1, 3])
