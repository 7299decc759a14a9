"""Attention to latent vectors (MLA), adapters of projections, and projections with GPTQ and float8 weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import TensorType, TensorValue, ops
from max.graph.quantization import QuantizationConfig
from max.nn import kernels
from max.nn.attention import MHAMaskVariant
from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
from max.nn.rotary_embedding import RotaryEmbedding

from caches import F32, HOST, attention, execute, load, turned
from helpers import assert_close, to_array
from scaled import VALUES, codes, float8
from test_nn_cache_kernels import (
    COUNTS,
    DEPTH,
    HEADS,
    HIDDEN,
    KEY_HEADS,
    PARAMS,
    THETA,
    WIDTH,
    Sequences,
    draw,
    heads,
    layer,
    qkv,
)
from test_qmatmul import gptq

LATENT, ROPE, NOPE, VALUE = 12, 4, 6, 5
CAUSAL = MHAMaskVariant.CAUSAL_MASK
MLA = KVCacheParams(F32, 1, LATENT + ROPE, page_size=4)


def test_attention_to_latent_vectors(session: InferenceSession) -> None:
    """Latent vectors are stored as keys, of which the last elements are turned; queries too."""
    own = Sequences(session, MLA)
    weight = draw(LATENT + ROPE, HIDDEN)
    rope = RotaryEmbedding(ROPE, 1, THETA, 64, HOST)

    def forward(
        q: TensorValue, x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection
    ) -> list[TensorValue]:
        kernels.matmul_k_cache_ragged(MLA, x, offsets, ops.constant(weight, F32, HOST), cache, layer(0))
        q = kernels.fused_qk_ragged_rope(MLA, q, offsets, cache, rope.freqs_cis, layer(0))
        where = (q, offsets, cache, layer(0))
        return [
            kernels.flare_mla_decode_ragged(MLA, *where, mask, 0.3, ROPE) for mask in (CAUSAL, MHAMaskVariant.NULL_MASK)
        ]

    types = [TensorType(F32, ["tokens", 3, LATENT + ROPE], HOST), TensorType(F32, ["tokens", HIDDEN], HOST)]
    model = load(session, own.manager, types, forward)
    for step, counts in enumerate(COUNTS):
        cache = own.fetch(counts)
        x, q = draw(sum(counts), HIDDEN, seed=step), draw(sum(counts), 3, LATENT + ROPE, seed=40 + step)
        found = map(to_array, execute(model, [q, x], counts, cache))
        ends = np.cumsum(counts)[:-1]
        grown = own.add(x @ weight.T, counts)
        for mask, result in zip(("causal", "null"), found):
            expected = []
            for queries, (start, rows) in zip(np.split(q, ends), grown):
                k = turned(rows[:, None, :], 0, THETA, rotary=ROPE)
                own_q = turned(queries, start, THETA, rotary=ROPE)
                expected.append(attention(own_q, k, k[..., :LATENT], 0.3, mask))
            assert_close(result, np.concatenate(expected), "float32", 1e-5)


@pytest.mark.parametrize("size", [4, 7, 64])
def test_prompts_in_chunks_of_latent_vectors(session: InferenceSession, size: int) -> None:
    """Chunks that end within sequences give what attention to all tokens does."""
    own, chunks, count = Sequences(session, MLA), -(-28 // size), 2
    up, down = draw(count * (NOPE + VALUE), LATENT), np.eye(LATENT + ROPE, dtype=np.float32)

    def forward(
        q: TensorValue, x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection
    ) -> list[TensorValue]:
        kernels.matmul_k_cache_ragged(MLA, x, offsets, ops.constant(down, F32, HOST), cache, layer(0))
        starts, firsts, lengths = kernels.flare_mla_prefill_plan(MLA, offsets, cache, layer(0), size, chunks)
        output = info = None
        for chunk in range(chunks):
            places = (starts[chunk], firsts[chunk])
            weight = ops.constant(up, F32, HOST)
            rows = kernels.flare_mla_decompress_k_cache(MLA, *places, lengths[chunk], weight, cache, layer(0), size)
            k, v = ops.split(rows.reshape((size, count, NOPE + VALUE)), [NOPE, VALUE], -1)
            rest = (offsets, *places, cache, layer(0), CAUSAL, 0.3, ROPE, output, info)
            output, info = kernels.flare_mla_prefill_ragged(MLA, q, k, v, *rest)
        assert output is not None
        return [output, starts, firsts, lengths]

    types = [TensorType(F32, ["tokens", count, NOPE + ROPE], HOST), TensorType(F32, ["tokens", LATENT + ROPE], HOST)]
    model = load(session, own.manager, types, forward)
    for step, counts in enumerate([[5, 1, 0, 9], [1, 4, 2, 3]]):
        cache = own.fetch(counts)
        q = draw(sum(counts), count, NOPE + ROPE, seed=step)
        x = draw(sum(counts), LATENT + ROPE, seed=10 + step)
        found, starts, firsts, lengths = map(to_array, execute(model, [q, x], counts, cache))
        grown, expected = own.add(x, counts), []
        for queries, (_, rows) in zip(np.split(q, np.cumsum(counts)[:-1]), grown):
            both = (rows[:, :LATENT] @ up.T).reshape(len(rows), count, NOPE + VALUE)
            shared = np.broadcast_to(rows[:, None, LATENT:], (len(rows), count, ROPE))
            expected.append(attention(queries, np.concatenate([both[..., :NOPE], shared], -1), both[..., NOPE:], 0.3))
        assert_close(found, np.concatenate(expected), "float32", 1e-5)
        totals = np.array([len(rows) for _, rows in grown])
        assert lengths.sum() == totals.sum() and lengths.max() <= size and lengths.dtype == np.int32
        np.testing.assert_array_equal(np.diff(starts.astype(np.int64), axis=1).sum(0), totals)
        np.testing.assert_array_equal(firsts[1:], np.cumsum(np.diff(starts.astype(np.int64), axis=1), 0)[:-1])


def test_adapters_of_projections(session: InferenceSession) -> None:
    """Two groups of tokens with adapters, and tokens without one."""
    own, rank, q_dim, kv_dim = Sequences(session), 3, HEADS * DEPTH, KEY_HEADS * DEPTH
    weight, lora_a, lora_b = draw(WIDTH, HIDDEN), draw(2, 3 * rank, HIDDEN, seed=1), draw(2, WIDTH, rank, seed=2)
    ids, ranks, groups = np.array([1, 0], np.int32), np.array([3, 2], np.uint32), np.array([0, 6, 10], np.uint32)

    def forward(x: TensorValue, *rest: Any) -> TensorValue:
        ids, ranks, groups, offsets, cache = rest
        q = kernels.fused_qkv_ragged_matmul(PARAMS, x, offsets, ops.constant(weight, F32, HOST), cache, layer(0), HEADS)
        a, b = ops.constant(lora_a, F32, HOST), ops.constant(lora_b, F32, HOST)
        more = (offsets, groups, cache, PARAMS, layer(0), 9, rank, q_dim, kv_dim)
        q = q + kernels.sgmv_qkv_lora_kernel(x, a, b, ids, ranks, *more)
        return kernels.flash_attention_ragged(PARAMS, heads(q), offsets, cache, layer(0), CAUSAL, 0.1)

    types = [TensorType(F32, ["tokens", HIDDEN], HOST), TensorType(DType.int32, [2], HOST)]
    types += [TensorType(DType.uint32, [size], HOST) for size in (2, 3)]
    model = load(session, own.manager, types, forward)
    counts = COUNTS[0]
    x = draw(sum(counts), HIDDEN, seed=3)
    (found,) = execute(model, [x, ids, ranks, groups], counts, own.fetch(counts))
    rows = x @ weight.T
    for group, (adapter, kept) in enumerate(zip(ids, ranks)):
        tokens = slice(groups[group], groups[group + 1])
        low = (x[tokens] @ lora_a[adapter].T).reshape(-1, 3, rank)
        low[..., kept:] = 0
        parts = np.split(lora_b[adapter], [q_dim, q_dim + kv_dim])
        rows[tokens] += np.concatenate([low[:, i] @ part.T for i, part in enumerate(parts)], 1)
    expected = []
    for _, own_rows in own.add(rows, counts):
        expected.append(attention(*qkv(own_rows), 0.1))
    assert_close(to_array(found), np.concatenate(expected), "float32", 2e-5)


def test_projections_with_gptq_weights(session: InferenceSession) -> None:
    own, hidden, group, rng = Sequences(session), 64, 32, np.random.default_rng(0)
    numbers = rng.integers(0, 16, (hidden, WIDTH)).astype(np.uint8)
    scales = (rng.random((hidden // group, WIDTH)) / 16).astype(np.float16)
    matrix = (numbers.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), group, axis=0)
    packed, order = gptq(numbers, scales, 4), rng.permutation(hidden).astype(np.int32)
    config = QuantizationConfig("gptq", 4, group, desc_act=True, sym=True)

    def forward(x: TensorValue, w: TensorValue, order: TensorValue, *rest: Any) -> TensorValue:
        offsets, cache = rest
        options = (cache, layer(0), HEADS, config, order)
        q = kernels.fused_qkv_ragged_matmul_quantized(PARAMS, x, offsets, w, *options)
        return kernels.flash_attention_ragged(PARAMS, q, offsets, cache, layer(0), CAUSAL, 0.1)

    types = [TensorType(F32, ["tokens", hidden], HOST), TensorType(DType.uint8, packed.shape, HOST)]
    model = load(session, own.manager, [*types, TensorType(DType.int32, [hidden], HOST)], forward)
    for step, counts in enumerate(COUNTS[:2]):
        x = draw(sum(counts), hidden, seed=step)
        (found,) = execute(model, [x, packed, order], counts, own.fetch(counts))
        expected = []
        for start, rows in own.add(x[:, order] @ matrix, counts):
            q, k, v = qkv(rows)
            expected.append(attention(q[start:], k, v, 0.1).reshape(-1, HEADS * DEPTH))
        assert_close(to_array(found), np.concatenate(expected), "float32", 3e-2)


@pytest.mark.parametrize("whole", [True, False])
def test_projections_with_float8_weights(session: InferenceSession, whole: bool) -> None:
    own, f8, rng, counts = Sequences(session), "float8_e4m3fn", np.random.default_rng(0), COUNTS[0]
    tokens = sum(counts)
    x, weight = codes(rng, f8, tokens, HIDDEN), codes(rng, f8, WIDTH, HIDDEN)
    x_scale = np.float32(0.002) if whole else (rng.random((1, tokens)) / 400).astype(np.float32)
    w_scale = np.float32(0.003) if whole else (rng.random((WIDTH, 1)) / 400).astype(np.float32)
    x_scale, w_scale, bias = np.asarray(x_scale), np.asarray(w_scale), draw(WIDTH)

    def forward(x: TensorValue, w: TensorValue, a: TensorValue, b: TensorValue, bias: TensorValue, *rest: Any) -> Any:
        offsets, cache = rest
        given = (cache, layer(0), HEADS, a, b, bias)
        q = kernels.fused_qkv_ragged_matmul_scaled_float8(PARAMS, x, offsets, w, *given)
        return kernels.flash_attention_ragged(PARAMS, q, offsets, cache, layer(0), CAUSAL, 0.1)

    dtype = DType.float8_e4m3fn
    types = [TensorType(dtype, ["tokens", HIDDEN], HOST), TensorType(dtype, [WIDTH, HIDDEN], HOST)]
    types += [TensorType(F32, [] if whole else [1, "tokens"], HOST), TensorType(F32, w_scale.shape, HOST)]
    types += [TensorType(F32, [WIDTH], HOST)]
    model = load(session, own.manager, types, forward)
    given: Any = [float8(x, f8), float8(weight, f8), x_scale, w_scale, bias]
    (found,) = execute(model, given, counts, own.fetch(counts))
    rows = (VALUES[f8][x] * (x_scale if whole else x_scale.T)) @ (VALUES[f8][weight] * w_scale).T + bias
    expected = [attention(*qkv(part), 0.1).reshape(-1, HEADS * DEPTH) for _, part in own.add(rows, counts)]
    assert_close(to_array(found), np.concatenate(expected), "float32", 1e-4)
