"""Functions of `max.nn.kernels` that need no cache, on a GPU: the same results as on a CPU."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType
from max.nn import kernels
from max.nn.attention import MHAMaskVariant

from helpers import accelerator, assert_close, to_array, to_buffer

DEVICE = accelerator()
RNG = np.random.default_rng(1)


def run(forward: Callable[..., Any], *inputs: Buffer, device: Any, changes: bool = False) -> list[np.ndarray]:
    """The results of a function, and what its first input holds then if it is a buffer that changes."""
    place = DeviceRef.from_device(device)
    types = [TensorType(x.dtype, list(x.shape), place) for x in inputs]
    first: list[Any] = [BufferType(inputs[0].dtype, list(inputs[0].shape), place) if changes else types[0]]
    with Graph("g", input_types=first + types[1:]) as graph:
        results = forward(*graph.inputs)
        graph.output(*(results if isinstance(results, (list, tuple)) else [] if results is None else [results]))
    moved = [x.copy() if device == CPU() else x.to(device) for x in inputs]
    outputs = InferenceSession(devices=[device]).load(graph).execute(*moved)
    return [to_array(x.to(CPU())) for x in (moved[:1] if changes else outputs)]


def same(forward: Callable[..., Any], *inputs: Buffer, dtype: str = "float32", changes: bool = False) -> None:
    expected, actual = (run(forward, *inputs, device=device, changes=changes) for device in (CPU(), DEVICE))
    for x, y in zip(actual, expected):
        assert x.dtype == y.dtype
        assert_close(x, y, dtype if y.dtype.kind == "f" else "int64", 1e-5)


def array(values: Any, dtype: str) -> Buffer:
    return Buffer.from_numpy(np.array(values, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", list(MHAMaskVariant))
@pytest.mark.parametrize(
    "batch, tokens, heads, key_heads, depth", [(2, 130, 4, 4, 64), (3, 17, 6, 2, 20), (1, 1, 2, 1, 8), (1, 0, 2, 2, 8)]
)
def test_attention(
    batch: int, tokens: int, heads: int, key_heads: int, depth: int, mask: MHAMaskVariant, dtype: str
) -> None:
    shapes = [(batch, tokens, h, depth) for h in (heads, key_heads, key_heads)]
    operands = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    lengths = array([tokens, tokens // 2, 0][:batch], "uint32")
    dense = lambda q, k, v: kernels.flash_attention_gpu(q, k, v, mask, 0.3, 5)  # noqa: E731
    padded = lambda q, k, v, lengths: kernels.flash_attention_gpu(q, k, v, mask, 0.3, 5, lengths)  # noqa: E731
    buffers = [to_buffer(x, dtype) for x in operands]
    same(dense, *buffers, dtype=dtype)
    same(padded, *buffers, lengths, dtype=dtype)
    flat = [to_buffer(x.reshape(batch * tokens, *x.shape[2:]), dtype) for x in operands]
    starts = array([0, 0, *(tokens * (i + 1) for i in range(batch))], "uint32")

    def ragged(*operands: Any) -> Any:
        return kernels.flash_attention_ragged_gpu(*operands, mask, 0.3, 5)

    same(ragged, *flat, starts, array(tokens, "uint32"), dtype=dtype)


def test_groups_of_rows() -> None:
    x, a, b = (Buffer.from_numpy(RNG.standard_normal(s).astype(np.float32)) for s in ((9, 8), (3, 4, 8), (3, 6, 4)))
    ids, ranks, starts = array([2, -1, 0], "int32"), array([4, 4, 2], "int32"), array([0, 3, 5, 8], "uint32")

    def adapters(x: Any, a: Any, b: Any, ids: Any, ranks: Any, starts: Any) -> Any:
        low = kernels.sgmv_kernel(x, a, ids, ranks, starts, 3)
        return low, kernels.sgmv_lora_kernel(x, a, b, ids, ranks, starts, 3)

    same(adapters, x, a, b, ids, ranks, starts)
    experts = array(RNG.integers(-1, 9, 1000), "int32")
    same(lambda ids: kernels.moe_create_indices(ids, 8), experts)
    rows, offsets = array(np.arange(18).reshape(9, 2), "float32"), array([0, 4, 4, 9], "uint32")
    same(kernels.merge_ragged_tensors, rows, offsets, rows, array([0, 0, 9, 9], "uint32"))
    same(kernels.swish_glu, x, *(Buffer.from_numpy(RNG.standard_normal((5, 8)).astype(np.float32)) for _ in "ab"))


def test_sampling() -> None:
    rows = 64
    logits = RNG.standard_normal((rows, 1000)).astype(np.float32)
    logits[3, :5] = [np.nan, np.inf, -np.inf, np.nan, np.inf]
    parameters = [RNG.integers(-1, 60, rows), RNG.uniform(0.2, 1, rows).astype(np.float32)]
    parameters += [RNG.uniform(0, 2, rows).astype(np.float32), np.arange(rows, dtype=np.uint64)]

    def sample(logits: Any, k: Any, p: Any, t: Any, seed: Any) -> Any:
        return kernels.topk_fused_sampling(logits, k, temperature=t, max_k=60, top_p=p, seed=seed)

    same(sample, *map(Buffer.from_numpy, [logits, *parameters]))
    same(lambda x: kernels.topk_fused_sampling(x, 1), Buffer.from_numpy(logits))


def test_counts_and_penalties() -> None:
    logits = Buffer.from_numpy(RNG.standard_normal((3, 40)).astype(np.float32))
    tokens = np.append(RNG.permutation(40)[:10], [-1, -1])
    data = array(np.stack([tokens, RNG.integers(0, 3, 12)], 1), "int32")
    offsets, new = array([0, 4, 4, 12], "uint32"), array([tokens[1], 3, 39], "int64")

    def penalize(logits: Any, data: Any, offsets: Any, penalty: Any) -> None:
        kernels.apply_penalties_to_logits(logits, data, offsets, frequency_penalty=penalty, repetition_penalty=1.5)

    same(penalize, logits, data, offsets, array([0.5, 1, 2], "float32"), changes=True)
    same(kernels.update_frequency_data, data, offsets, new, changes=True)
    places = array([[0, 1], [2, 39]], "int64")
    same(lambda x, at: kernels.scatter_set_constant(x, at, -9.0), logits, places, changes=True)
