"""Whole transformers with a cache: a small Llama against NumPy, and its parts on several virtual devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue
from max.nn import (
    MLP,
    AttentionWithRope,
    ColumnParallelLinear,
    DistributedAttentionWithRope,
    DistributedTransformer,
    DistributedTransformerBlock,
    Embedding,
    Linear,
    ReturnLogits,
    RMSNorm,
    RotaryEmbedding,
    Transformer,
    TransformerBlock,
    VocabParallelEmbedding,
)
from max.nn.kv_cache import FetchPagedKVCacheCollection, KVCacheParams, PagedKVCacheCollection, PagedKVCacheManager

from caches import F32, HOST, U32, Request, attention, execute, load, manager, offsets, turned
from helpers import assert_close, to_array

VOCABULARY, WIDTH, INNER, HEADS, KEY_HEADS, DEPTH, LAYERS, THETA = 50, 32, 48, 4, 2, 8, 2, 10000.0
PARAMS = KVCacheParams(F32, KEY_HEADS, DEPTH, page_size=4)


def llama(**options: Any) -> Transformer:
    rope = RotaryEmbedding(WIDTH, HEADS, THETA, 64, HOST, head_dim=DEPTH, interleaved=False)

    def block() -> TransformerBlock:
        own = AttentionWithRope(
            rope=rope,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            hidden_size=WIDTH,
            kv_params=PARAMS,
            devices=[HOST],
        )
        norms = [RMSNorm(WIDTH, F32, 1e-5) for _ in range(2)]
        return TransformerBlock(own, MLP(F32, None, WIDTH, INNER, [HOST]), *norms)

    return Transformer(
        dim=WIDTH,
        n_heads=HEADS,
        layers=[block() for _ in range(LAYERS)],
        norm=RMSNorm(WIDTH, F32, 1e-5),
        output=Linear(WIDTH, VOCABULARY, F32, HOST),
        embedding=Embedding(VOCABULARY, WIDTH, F32, HOST),
        kv_params=PARAMS,
        kv_collection_constructor=FetchPagedKVCacheCollection(PARAMS),
        rope=rope,
        **options,
    )


def values(model: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {name: [int(dim) for dim in weight.shape] for name, weight in model.raw_state_dict().items()}
    return {
        name: (rng.normal(size=shape) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }


def reference(
    weights: dict[str, np.ndarray], tokens: np.ndarray, multiplier: float = 1.0, divisor: float = 1.0
) -> np.ndarray:
    """The logits after all tokens of a sequence, without a cache."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    x = weights["embed_tokens.weight"][tokens].astype(np.float64) * multiplier
    for number in range(LAYERS):
        at = f"layers.{number}."
        y = norm(x, f"{at}input_layernorm")
        q, k, v = (
            (y @ weights[f"{at}self_attn.{name}_proj.weight"].T).reshape(len(y), count, DEPTH)
            for name, count in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS))
        )
        y = attention(turned(q, 0, THETA, False), turned(k, 0, THETA, False), v, DEPTH**-0.5)
        x = x + y.reshape(len(y), WIDTH) @ weights[f"{at}self_attn.o_proj.weight"].T
        y = norm(x, f"{at}post_attention_layernorm")
        gate, up = (y @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}mlp.down_proj.weight"].T
    return norm(x, "norm") @ weights["lm_head.weight"].T / divisor


TOKENS = [TensorType(DType.int64, ["tokens"], HOST), TensorType(DType.int64, [1], HOST)]


def called(model: Transformer) -> Any:
    return lambda tokens, count, rows, cache: model(tokens, cache, count, rows)


def test_a_llama_reads_and_writes(session: InferenceSession) -> None:
    """Prompts of several lengths, then steps in which requests come and go."""
    model = llama(embedding_multiplier=2.0, logits_scaling=3.0)
    weights = values(model)
    model.load_state_dict(weights)
    owner = manager(session, PARAMS, LAYERS)

    def forward(tokens: TensorValue, count: TensorValue, rows: TensorValue, cache: PagedKVCacheCollection) -> Any:
        return model(tokens, list(cache), count, rows)

    loaded = load(session, owner, TOKENS, forward, model.state_dict())
    rng = np.random.default_rng(1)
    batch = [Request(str(i), rng.integers(0, VOCABULARY, length)) for i, length in enumerate([7, 1, 4])]
    for request in batch:
        owner.external_claim(request.request_id)
    for step in range(6):
        counts = [request.active_length for request in batch]
        given = np.concatenate([request.next_tokens for request in batch])
        (logits,) = execute(loaded, [given, np.array([1])], counts, owner.fetch(batch)[0])
        expected = [reference(weights, request.tokens, 2.0, 3.0)[-1] for request in batch]
        assert_close(to_array(logits), np.stack(expected).astype(np.float32), "float32", 2e-5)
        owner.step(batch)
        for request, row in zip(batch, to_array(logits)):
            request.append(int(row.argmax()))
        if step == 2:
            owner.release(batch.pop(0).request_id)
            batch.append(Request("new", rng.integers(0, VOCABULARY, 9)))
            owner.external_claim("new")


@pytest.mark.parametrize("kind", [ReturnLogits.ALL, ReturnLogits.VARIABLE])
def test_logits_of_several_tokens(session: InferenceSession, kind: ReturnLogits) -> None:
    model = llama(return_logits=kind)
    weights = values(model)
    model.load_state_dict(weights)
    owner = manager(session, PARAMS, LAYERS)
    loaded = load(session, owner, TOKENS, called(model), model.state_dict())
    batch = [Request("a", range(6)), Request("b", range(9, 13))]
    for request in batch:
        owner.external_claim(request.request_id)
    given = np.concatenate([request.tokens for request in batch])
    last, several, starts = map(to_array, execute(loaded, [given, np.array([3])], [6, 4], owner.fetch(batch)[0]))
    own = [reference(weights, request.tokens).astype(np.float32) for request in batch]
    assert_close(last, np.stack([rows[-1] for rows in own]), "float32", 2e-5)
    wanted = own if kind is ReturnLogits.ALL else [rows[-3:] for rows in own]
    assert_close(several, np.concatenate(wanted), "float32", 2e-5)
    assert starts.tolist() == np.append([0], np.cumsum(list(map(len, wanted)))).tolist()


def test_a_prompt_in_pieces_and_prefixes(session: InferenceSession) -> None:
    """A prompt that is read in pieces, and another that begins like it."""
    params = KVCacheParams(F32, KEY_HEADS, DEPTH, page_size=4, enable_prefix_caching=True)
    model = llama()
    weights = values(model)
    model.load_state_dict(weights)
    owner = manager(session, params, LAYERS)
    loaded = load(session, owner, TOKENS, called(model), model.state_dict())

    def logits(request: Request) -> np.ndarray:
        cache, one = owner.fetch([request])[0], np.array([1])
        (found,) = execute(loaded, [request.next_tokens, one], [request.active_length], cache)
        return to_array(found)[0]

    request = Request("a", range(5))
    owner.external_claim("a")
    for more in ([20, 21, 22, 23, 24, 25], [26], [27, 28]):
        assert_close(logits(request), reference(weights, request.tokens)[-1].astype(np.float32), "float32", 2e-5)
        request.append(*more)
        owner.step([request])
    other = Request("b", [*request.tokens[:9], 40, 41])
    owner.external_claim("b")
    assert_close(logits(other), reference(weights, other.tokens)[-1].astype(np.float32), "float32", 2e-5)
    assert other.start_idx == 8 and owner.get_req_blocks("b")[:2] == owner.get_req_blocks("a")[:2]


@pytest.mark.skipif(
    driver.accelerator_count() > 0 and not driver.is_virtual_device_mode(),
    reason="this machine has a GPU, and a process uses either GPUs or virtual devices",
)
def test_a_llama_on_two_devices() -> None:
    driver.set_virtual_device_count(2)
    try:
        compare_two_devices()
    finally:
        driver.set_virtual_device_count(0)


def compare_two_devices() -> None:
    devices = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
    params = KVCacheParams(F32, KEY_HEADS, DEPTH, page_size=4, n_devices=2)
    rope = RotaryEmbedding(WIDTH, HEADS, THETA, 64, devices[0], head_dim=DEPTH, interleaved=False)

    def block() -> DistributedTransformerBlock:
        own = DistributedAttentionWithRope(
            rope=rope,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            hidden_size=WIDTH,
            kv_params=params,
            devices=devices,
        )
        norms = [RMSNorm(WIDTH, F32, 1e-5) for _ in range(2)]
        return DistributedTransformerBlock(own, MLP(F32, None, WIDTH, INNER, devices), *norms, devices)

    model = DistributedTransformer(
        dim=WIDTH,
        n_heads=HEADS,
        layers=[block() for _ in range(LAYERS)],
        norm=RMSNorm(WIDTH, F32, 1e-5),
        output=ColumnParallelLinear(WIDTH, VOCABULARY, F32, devices),
        embedding=VocabParallelEmbedding(VOCABULARY, WIDTH, F32, devices),
        kv_params=params,
        kv_collection_constructor=FetchPagedKVCacheCollection(params),
        devices=devices,
        rope=rope,
        return_logits=ReturnLogits.ALL,
    )
    weights = values(model)
    model.load_state_dict(weights)
    session = InferenceSession(devices=[CPU(), Accelerator(0), Accelerator(1)])
    owner = PagedKVCacheManager[Any](params, 4, 64, LAYERS, [Accelerator(0), Accelerator(1)], session, 1 << 18)
    symbols = owner.input_symbols()
    types = [TensorType(DType.int64, ["tokens"], devices[0]), TensorType(DType.int64, [1], HOST)]
    types += [TensorType(U32, ["offsets"], devices[0])]
    signals = [BufferType(DType.uint8, [1], device) for device in devices]
    with Graph("parallel", input_types=[*types, *signals, *symbols[0], *symbols[1]]) as graph:
        tokens, count, rows, first, second, *caches = graph.inputs
        parts = [caches[:4], caches[4:]]
        graph.output(*model(tokens, [first.buffer, second.buffer], parts, count, rows))
    loaded = session.load(graph, weights_registry=model.state_dict())
    batch = [Request("a", range(6)), Request("b", range(9, 12))]
    for request in batch:
        owner.external_claim(request.request_id)
    for _ in range(3):
        counts = [request.active_length for request in batch]
        given = [np.concatenate([request.next_tokens for request in batch]), np.array([1]), offsets(counts)]
        given += [np.zeros(1, np.uint8)] * 2
        buffers = [Buffer.from_numpy(x).to(device) for x, device in zip(given, loaded.input_devices)]
        caches = [x for inputs in owner.fetch(batch) for x in inputs]
        last, every, _ = (x.to(CPU()).to_numpy() for x in loaded.execute(*buffers, *caches))
        own = [reference(weights, request.tokens)[-count:] for request, count in zip(batch, counts)]
        assert_close(last, np.stack([rows[-1] for rows in own]).astype(np.float32), "float32", 2e-5)
        assert_close(every, np.concatenate(own).astype(np.float32), "float32", 2e-5)
        for request, row in zip(batch, last):
            request.append(int(row.argmax()))
