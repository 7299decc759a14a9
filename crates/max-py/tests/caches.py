"""Requests with a cache: what managers must know of them, and what attention to all their tokens gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType
from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection, PagedKVCacheManager, RaggedKVCacheInputs

HOST = DeviceRef.CPU()
F32, U32 = DType.float32, DType.uint32


class Request:
    """A sequence of tokens, of which the first ones are in the cache."""

    def __init__(self, request_id: str, tokens: Sequence[int]) -> None:
        self.request_id = request_id
        self.tokens = np.array(tokens, dtype=np.int64)
        self.start_idx = 0

    @property
    def active_idx(self) -> int:
        return len(self.tokens)

    @property
    def active_length(self) -> int:
        return self.active_idx - self.start_idx

    @property
    def next_tokens(self) -> np.ndarray:
        return self.tokens[self.start_idx :]

    def bump_token_indices(self, start_idx: int = 0, active_idx: int = 0, end_idx: int = 0) -> None:
        assert active_idx == end_idx == 0
        self.start_idx += start_idx

    def append(self, *tokens: int) -> None:
        """New tokens; those before are in the cache now."""
        self.start_idx = len(self.tokens)
        self.tokens = np.append(self.tokens, np.array(tokens, dtype=np.int64))


def offsets(counts: Sequence[int]) -> np.ndarray:
    return np.append([0], np.cumsum(counts)).astype(np.uint32)


def manager(
    session: InferenceSession,
    params: KVCacheParams,
    layers: int = 1,
    pages: int = 32,
    requests: int = 8,
    longest: int = 64,
) -> PagedKVCacheManager[Any]:
    size = 2 * layers * (params.page_size or 0) * params.n_kv_heads * params.head_dim * params.dtype.size_in_bytes
    return PagedKVCacheManager(params, requests, longest, layers, [CPU()], session, pages * size)


def load(
    session: InferenceSession,
    owner: PagedKVCacheManager[Any],
    types: Sequence[TensorType],
    forward: Callable[..., Any],
    registry: Any = None,
) -> Model:
    """A model whose `forward` takes inputs of some types, row offsets and the cache."""
    (symbols,) = owner.input_symbols()
    with Graph("cached", input_types=[*types, TensorType(U32, ["offsets"], HOST), *symbols]) as graph:
        inputs = list(graph.inputs)
        tensors = [value.tensor for value in inputs[: len(types)]]
        blocks, *tables = inputs[len(types) + 1 :]
        collection = PagedKVCacheCollection(blocks.buffer, *(value.tensor for value in tables))
        results = forward(*tensors, inputs[len(types)].tensor, collection)
        graph.output(*(results if isinstance(results, (list, tuple)) else [results]))
    return session.load(graph, weights_registry=registry)


def execute(
    model: Model, arrays: Sequence[np.ndarray], counts: Sequence[int], cache: RaggedKVCacheInputs
) -> list[Buffer]:
    return model.execute(*arrays, offsets(counts), *cache)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(-1, keepdims=True)


def seen(mask: str, window: int, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys queries see, by their positions."""
    q, k = queries[:, None], keys[None, :]
    if mask == "null":
        return np.ones((len(queries), len(keys)), bool)
    causal = k <= q
    if mask == "sliding_window_causal":
        return causal & (q - k < window)
    if mask == "chunked_causal":
        return causal & (q // window == k // window)
    return causal


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    mask: str = "causal",
    window: int = -1,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    start: int | None = None,
) -> np.ndarray:
    """Attention of `[queries, heads, depth]` to `[keys, key heads, depth]`: the queries are the last tokens."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k.astype(np.float64)) * scale
    start = len(k) - len(q) if start is None else start
    positions, keys = np.arange(len(q)) + start, np.arange(len(k))
    if slopes is not None:
        scores = scores + slopes[:, None, None] * (keys[None, :] - positions[:, None])
    scores = np.where(seen(mask, window, positions, keys), scores, -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))], -1)
    weights = softmax(scores)[..., : len(k)]
    return np.einsum("hqk,khd->qhd", weights, v.astype(np.float64)).astype(np.float32)


def turned(x: np.ndarray, start: int, theta: float, interleaved: bool = True, rotary: int | None = None) -> np.ndarray:
    """The last elements of `[tokens, heads, depth]`, turned by the angles of their positions."""
    depth = x.shape[-1] if rotary is None else rotary
    rest, x = x[..., : x.shape[-1] - depth], x[..., x.shape[-1] - depth :]
    angles = (np.arange(len(x)) + start)[:, None] * theta ** (-np.arange(0, depth, 2) / depth)
    return np.concatenate([rest, rotated(x, angles, interleaved)], -1)


def rotated(x: np.ndarray, angles: np.ndarray, interleaved: bool) -> np.ndarray:
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pair = [a * cos - b * sin, a * sin + b * cos]
    return (np.stack(pair, -1).reshape(x.shape) if interleaved else np.concatenate(pair, -1)).astype(np.float32)
