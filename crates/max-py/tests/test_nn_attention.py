"""Attention layers with a cache, against NumPy: prompts of several lengths and then steps of one token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops
from max.graph.quantization import QuantizationConfig, QuantizationEncoding, dequantize
from max.nn.attention import (
    AttentionImpl,
    AttentionImplQKV,
    AttentionWithRope,
    AttentionWithRopeNoOpaque,
    AttentionWithRopeQKV,
    AttentionWithRopeV1,
    DistributedAttentionWithRope,
    GGUFQAttentionWithRope,
    GPTQAttentionWithRope,
    MHAMaskVariant,
    RaggedAttention,
)
from max.nn.float8_config import Float8Config, Float8InputScaleSpec, Float8ScaleOrigin, Float8WeightScaleSpec
from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
from max.nn.layer import Module
from max.nn.linear import Linear, LinearV1
from max.nn.rotary_embedding import RotaryEmbedding

from caches import F32, HOST, U32, attention, execute, load, turned
from helpers import assert_close, to_array, to_buffer
from scaled import COLWISE, ROWWISE, TENSOR, VALUES, codes, float8
from test_nn_cache_kernels import COUNTS, Sequences, draw
from test_qmatmul import draw as draw_blocks
from test_qmatmul import gptq

HEADS, KEY_HEADS, DEPTH, HIDDEN, THETA = 4, 2, 8, 24, 10000.0
Q_DIM, KV_DIM = HEADS * DEPTH, KEY_HEADS * DEPTH
PARAMS = KVCacheParams(F32, KEY_HEADS, DEPTH, page_size=4)
SIZES: dict[str, Any] = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "kv_params": PARAMS}

Call = Callable[[TensorValue, TensorValue, PagedKVCacheCollection], TensorValue]


def rope(**options: Any) -> RotaryEmbedding:
    return RotaryEmbedding(Q_DIM, HEADS, THETA, 64, HOST, **options)


def called(layer: Any, own: RotaryEmbedding) -> Call:
    def forward(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        return layer(ops.constant(0, U32, HOST), x, cache, own.freqs_cis, offsets)

    return forward


def values(layer: Module, scale: float = 0.3) -> dict[str, np.ndarray]:
    weights = layer.raw_state_dict().items()
    return {name: scale * draw(*map(int, w.shape), seed=seed) for seed, (name, w) in enumerate(weights)}


def check(
    session: InferenceSession,
    forward: Call,
    registry: Any,
    weights: dict[str, np.ndarray],
    hidden: int = HIDDEN,
    tolerance: float = 1e-5,
    interleaved: bool = True,
    turn: bool = True,
    mask: str = "causal",
    size: float = 1.0,
) -> None:
    """Compares a layer with NumPy; the weights are `qkv`, `bias` and `out`."""
    own = Sequences(session, PARAMS)
    model = load(session, own.manager, [TensorType(F32, ["tokens", hidden], HOST)], forward, registry)
    for step, counts in enumerate(COUNTS):
        cache, x = own.fetch(counts), size * draw(sum(counts), hidden, seed=100 + step)
        found = to_array(execute(model, [x], counts, cache)[0])
        expected = []
        for start, rows in own.add(x @ weights["qkv"].T + weights.get("bias", 0), counts):
            q, k, v = np.split(rows, [Q_DIM, Q_DIM + KV_DIM], axis=1)
            q, k, v = (
                part.reshape(len(part), count, DEPTH) for part, count in ((q, HEADS), (k, KEY_HEADS), (v, KEY_HEADS))
            )
            q = q[start:]
            if turn:
                q, k = turned(q, start, THETA, interleaved), turned(k, 0, THETA, interleaved)
            expected.append(attention(q, k, v, DEPTH**-0.5, mask).reshape(len(q), Q_DIM) @ weights["out"].T)
        assert_close(found, np.concatenate(expected), "float32", tolerance)


def stacked(values: dict[str, np.ndarray], kind: str = "weight") -> np.ndarray:
    return np.concatenate([values[f"{name}_proj.{kind}"] for name in "qkv"], 0)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("one", [True, False])
def test_attention_with_rope(
    session: InferenceSession, interleaved: bool, has_bias: bool, clip: float | None, one: bool
) -> None:
    own = rope(interleaved=interleaved)
    options = {"stacked_qkv": one, "has_bias": has_bias, "clip_qkv": clip}
    layer = AttentionWithRope(rope=own, hidden_size=HIDDEN, devices=[HOST], **SIZES, **options)
    names = ["qkv_proj"] if one else ["q_proj", "k_proj", "v_proj"]
    expected = {f"{name}.weight" for name in [*names, "o_proj"]} | {f"{name}.bias" for name in names if has_bias}
    assert set(layer.raw_state_dict()) == expected
    given = values(layer)
    layer.load_state_dict(given)
    qkv = given["qkv_proj.weight"] if one else stacked(given)
    weights = {"qkv": qkv if clip is None else np.clip(qkv, -clip, clip), "out": given["o_proj.weight"]}
    if has_bias:
        weights["bias"] = given["qkv_proj.bias"] if one else stacked(given, "bias")
    check(session, called(layer, own), layer.state_dict(), weights, interleaved=interleaved)
    with Graph("weights") as graph:
        graph.output(layer.wqkv, *([] if layer.wqkv_bias is None else [layer.wqkv_bias]))
    whole = [to_array(x) for x in session.load(graph, weights_registry=layer.state_dict()).execute()]
    np.testing.assert_array_equal(whole[0], weights["qkv"])
    assert len(whole) == 1 + has_bias and (not has_bias or np.array_equal(whole[1], weights["bias"]))


def test_attention_without_options(session: InferenceSession) -> None:
    own = rope()
    layer = AttentionWithRopeNoOpaque(rope=own, hidden_size=HIDDEN, devices=[HOST], **SIZES)
    given = values(layer)
    layer.load_state_dict(given)

    def forward(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        return layer(ops.constant(0, U32, HOST), x, cache, offsets)

    weights = {"qkv": given["qkv_proj.weight"], "out": given["o_proj.weight"]}
    check(session, forward, layer.state_dict(), weights)


def test_attention_with_given_weights(session: InferenceSession) -> None:
    own, scale = rope(), DEPTH**-0.5
    qkv, out = draw(Q_DIM + 2 * KV_DIM, HIDDEN) / 3, draw(HIDDEN, Q_DIM, seed=1) / 3
    bias = draw(Q_DIM + 2 * KV_DIM, seed=2)
    assert issubclass(AttentionWithRopeV1, AttentionImpl) and issubclass(AttentionWithRopeQKV, AttentionImplQKV)

    def older(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        weights = [ops.constant(array, F32, HOST) for array in (qkv, out, bias)]
        layer = AttentionWithRopeV1(HEADS, PARAMS, weights[0], LinearV1(weights[1]), scale, own, bias=weights[2])
        return called(layer, own)(x, offsets, cache)

    def three(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        parts = [ops.constant(part, F32, HOST) for part in np.split(qkv, [Q_DIM, Q_DIM + KV_DIM])]
        wo = LinearV1(ops.constant(out, F32, HOST))
        return called(AttentionWithRopeQKV(HEADS, PARAMS, *parts, wo, scale, own), own)(x, offsets, cache)

    check(session, older, None, {"qkv": qkv, "out": out, "bias": bias})
    check(session, three, None, {"qkv": qkv, "out": out})
    with pytest.raises(TypeError, match="abstract"):
        AttentionImpl(HEADS, PARAMS, None, None, scale)  # type: ignore


@pytest.mark.parametrize("mask", ["causal", "null"])
@pytest.mark.parametrize("one", [True, False])
def test_ragged_attention(session: InferenceSession, mask: str, one: bool) -> None:
    variant = MHAMaskVariant(mask)
    layer = RaggedAttention(mask_variant=variant, hidden_size=HIDDEN, has_bias=True, stacked_qkv=one, **SIZES)
    given = values(layer)
    layer.load_state_dict(given)

    def forward(x: TensorValue, offsets: TensorValue, cache: PagedKVCacheCollection) -> TensorValue:
        with pytest.raises(TypeError, match="input_row_offsets"):
            layer(ops.constant(0, U32, HOST), x, cache)
        return layer(ops.constant(0, U32, HOST), x, cache, input_row_offsets=offsets)

    qkv, bias = ((given[f"qkv_proj.{kind}"] if one else stacked(given, kind)) for kind in ("weight", "bias"))
    weights = {"qkv": qkv, "bias": bias, "out": given["o_proj.weight"]}
    check(session, forward, layer.state_dict(), weights, turn=False, mask=mask)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q6_K"])
def test_attention_with_gguf_weights(session: InferenceSession, encoding: str) -> None:
    own, hidden, kind = rope(), 256, QuantizationEncoding[encoding]
    sizes = {"q": Q_DIM, "k": KV_DIM, "v": KV_DIM}
    options = {"hidden_size": hidden, "dtype": DType.uint8, "quantization_encoding": kind, "devices": [HOST]}

    def dense(**kwargs: Any) -> Linear:
        """A layer of results in floats: the rows of blocks would be shorter than a block."""
        return Linear(kwargs["in_dim"], kwargs["out_dim"], F32, HOST)

    layer = GGUFQAttentionWithRope(rope=own, linear_cls=dense, **SIZES, **options)
    drawn = {name: draw_blocks(kind, size, hidden) for name, size in sizes.items()}
    out = draw(hidden, Q_DIM) / 3
    blocks = {f"{name}_proj.weight": blocks for name, (blocks, _) in drawn.items()}
    layer.load_state_dict(blocks | {"o_proj.weight": out})
    factor = max(float(np.abs(matrix).max()) for _, matrix in drawn.values())
    weights = {"qkv": np.concatenate([matrix for _, matrix in drawn.values()]), "out": out}
    assert np.array_equal(dequantize(kind, drawn["k"][0]), drawn["k"][1])
    check(session, called(layer, own), layer.state_dict(), weights, hidden, tolerance=2e-2, size=1 / (16 * factor))
    with Graph("weights") as graph:
        graph.output(layer.wqkv)
    (whole,) = session.load(graph, weights_registry=layer.state_dict()).execute()
    assert np.array_equal(whole.to_numpy(), np.concatenate([blocks for blocks, _ in drawn.values()]))
    assert layer.wqkv_bias is None


@pytest.mark.parametrize("ordered", [True, False])
def test_attention_with_gptq_weights(session: InferenceSession, ordered: bool) -> None:
    own, hidden, group, bits = rope(), 64, 32, 4
    config = QuantizationConfig("gptq", bits, group, desc_act=ordered, sym=True)
    layer = GPTQAttentionWithRope(config, own, HEADS, KEY_HEADS, hidden, PARAMS, [HOST])
    rng, given, matrices = np.random.default_rng(0), {}, []
    perm = rng.permutation(hidden).astype(np.int32)
    for name, size, depth in [("q", Q_DIM, hidden), ("k", KV_DIM, hidden), ("v", KV_DIM, hidden), ("o", hidden, Q_DIM)]:
        numbers = rng.integers(0, 16, (depth, size)).astype(np.uint8)
        scales = (rng.random((depth // group, size)) / 16).astype(np.float16)
        packed = gptq(numbers, scales, bits)
        matrix = (numbers.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), group, axis=0)
        if name == "o":
            given["o_proj.weight"] = packed
            if ordered:
                given["o_proj.perm_idx"] = np.arange(depth, dtype=np.int32)
        else:
            given[f"{name}_proj.qweight"], given[f"{name}_proj.scales"] = np.split(packed, [depth * bits // 8])
            if ordered:
                placed = np.empty_like(matrix)
                placed[perm] = matrix
                matrix = placed
        matrices.append(matrix.T)
    if ordered:
        given["q_proj.perm_idx"] = perm
    layer.load_state_dict(given)
    weights = {"qkv": np.concatenate(matrices[:3]), "out": matrices[3]}
    check(session, called(layer, own), layer.state_dict(), weights, hidden, tolerance=5e-2)


@pytest.mark.parametrize("static", [True, False])
def test_attention_with_float8_weights(session: InferenceSession, static: bool) -> None:
    own, f8 = rope(), "float8_e4m3fn"
    origin = Float8ScaleOrigin.STATIC if static else Float8ScaleOrigin.DYNAMIC
    inputs = Float8InputScaleSpec(TENSOR if static else COLWISE, origin, F32)
    scales = Float8WeightScaleSpec(TENSOR if static else ROWWISE, F32)
    config = Float8Config(inputs, scales, mlp_in_float8={0}, attn_qkv_in_float8={0})
    options = {"hidden_size": HIDDEN, "dtype": DType.float8_e4m3fn, "float8_config": config, "devices": [HOST]}
    layer = AttentionWithRope(rope=own, **SIZES, **options)
    rng, given, matrices, factors = np.random.default_rng(1), {}, {}, {}
    for name, weight in layer.raw_state_dict().items():
        shape = [int(dim) for dim in weight.shape]
        if name.endswith("weight"):
            given[name] = codes(rng, f8, *shape)
        elif name.endswith("weight_scale"):
            given[name] = factors[name] = np.asarray(rng.random(shape) / 500 + 0.001, np.float32)
        else:
            given[name] = np.array(0.01 if "o_proj" not in name else 0.05, np.float32)
    for name in ("q", "k", "v", "o"):
        matrices[name] = VALUES[f8][given[f"{name}_proj.weight"]] * factors[f"{name}_proj.weight_scale"]
    layer.load_state_dict({name: float8(x, f8) if x.dtype == np.uint8 else x for name, x in given.items()})
    weights = {"qkv": np.concatenate([matrices[name] for name in "qkv"]).astype(np.float32)}
    weights["out"] = matrices["o"].astype(np.float32)
    check(session, called(layer, own), layer.state_dict(), weights, tolerance=0.15)
    with Graph("scales") as graph:
        fixed = layer.qkv_input_scale
        assert (fixed is not None) == static
        graph.output(layer.wqkv.cast(F32), layer.qkv_weight_scale, *([] if fixed is None else [fixed]))
    found = [to_array(x) for x in session.load(graph, weights_registry=layer.state_dict()).execute()]
    own_scales = [factors[f"{name}_proj.weight_scale"] for name in "qkv"]
    np.testing.assert_array_equal(found[1], np.max(own_scales) if static else np.concatenate(own_scales))
    np.testing.assert_allclose(found[0] * found[1], weights["qkv"], rtol=0.07, atol=0.001)


def test_attention_in_bfloat16(session: InferenceSession) -> None:
    own, params = rope(), KVCacheParams(DType.bfloat16, KEY_HEADS, DEPTH, page_size=4)
    options = {"hidden_size": HIDDEN, "dtype": DType.bfloat16, "devices": [HOST]}
    layer = AttentionWithRope(rope=own, **{**SIZES, "kv_params": params}, **options)
    given = values(layer)
    layer.load_state_dict({name: to_buffer(value, "bfloat16") for name, value in given.items()})
    sequences = Sequences(session, params)
    types, counts = [TensorType(DType.bfloat16, ["tokens", HIDDEN], HOST)], COUNTS[0]
    model = load(session, sequences.manager, types, called(layer, own), layer.state_dict())
    x = draw(sum(counts), HIDDEN)
    (found,) = execute(model, [to_buffer(x, "bfloat16")], counts, sequences.fetch(counts))
    expected = []
    for _, rows in sequences.add(x @ stacked(given).T, counts):
        q, k, v = np.split(rows, [Q_DIM, Q_DIM + KV_DIM], axis=1)
        q, k = (turned(part.reshape(len(part), -1 if len(part) else HEADS, DEPTH), 0, THETA) for part in (q, k))
        v = v.reshape(len(v), KEY_HEADS, DEPTH)
        if len(v):
            expected.append(attention(q, k, v, DEPTH**-0.5).reshape(len(q), Q_DIM) @ given["o_proj.weight"].T)
    assert_close(to_array(found), np.concatenate(expected), "bfloat16", 5e-2)


def test_attention_errors() -> None:
    own, gpu = rope(), [DeviceRef.GPU(0), DeviceRef.GPU(1)]
    with pytest.raises(ValueError, match="got 4 and 3"):
        AttentionWithRope(rope=own, hidden_size=HIDDEN, **{**SIZES, "num_key_value_heads": 3})
    with pytest.raises(ValueError, match="a cache of 2 heads does not fit num_key_value_heads=4"):
        AttentionWithRope(rope=own, hidden_size=HIDDEN, **{**SIZES, "num_key_value_heads": 4})
    with pytest.raises(ValueError, match="at least 2 devices; got 1"):
        DistributedAttentionWithRope(rope=own, hidden_size=HIDDEN, devices=[HOST], **SIZES)
    with pytest.raises(ValueError, match="the cache is for 1 devices, but there are 2"):
        DistributedAttentionWithRope(rope=own, hidden_size=HIDDEN, devices=gpu, **SIZES)
    encoding = QuantizationEncoding.Q4_0
    quantized: dict[str, Any] = {"rope": own, "hidden_size": 256, "quantization_encoding": encoding, **SIZES}
    with pytest.raises(ValueError, match="only supports uint8"):
        GGUFQAttentionWithRope(dtype=F32, **quantized)
    with pytest.raises(ValueError, match="does not support bias"):
        GGUFQAttentionWithRope(dtype=DType.uint8, has_bias=True, **quantized)
    with pytest.raises(ValueError, match="clip_qkv is not supported"):
        GGUFQAttentionWithRope(dtype=DType.uint8, clip_qkv=1.0, **quantized)
    layer = AttentionWithRope(rope=own, hidden_size=HIDDEN, **SIZES)
    with Graph("scales"), pytest.raises(ValueError, match="only float8 weights have scales"):
        _ = layer.qkv_weight_scale
