"""Functions of `max.nn.kernels` that need no cache: attention against PyTorch's, the others against NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import BufferType, Graph, TensorType, TensorValue
from max.nn import kernels
from max.nn.attention import MHAMaskVariant

from helpers import CPU, assert_close, build, dtype_of, evaluate, to_array, to_buffer

GOLDENS = np.load(Path(__file__).parent / "goldens" / "nn_kernels.npz")
CASES = json.loads(str(GOLDENS["cases"]))


def draw(i: int) -> list[np.ndarray]:
    """The queries, keys and values of a case, as `goldens/nn_kernels.py` draws them."""
    batch, tokens, heads, key_heads, depth = CASES[i]["size"]
    rng = np.random.default_rng(i)
    shapes = [(batch, tokens, h, depth) for h in (heads, key_heads, key_heads)]
    return [(rng.integers(-32, 33, shape) / 16).astype(np.float32) for shape in shapes]


def golden(i: int) -> np.ndarray:
    """What PyTorch gives for a case."""
    sizes = [case["size"][0] * case["size"][1] * case["size"][2] * case["size"][4] for case in CASES]
    start = sum(sizes[:i])
    batch, tokens, heads, _, depth = CASES[i]["size"]
    return GOLDENS["values"][start : start + sizes[i]].reshape(batch, tokens, heads, depth)


def attention(case: dict) -> Callable[..., TensorValue]:
    mask = MHAMaskVariant(case["mask"])

    def forward(q: TensorValue, k: TensorValue, v: TensorValue, *lengths: TensorValue) -> TensorValue:
        return kernels.flash_attention_gpu(q, k, v, mask, 0.3, case["window"], *lengths)

    return forward


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention(session: InferenceSession, dtype: str, symbolic: bool) -> None:
    for i, case in enumerate(CASES):
        buffers = [to_buffer(x, dtype) for x in draw(i)]
        dims = [["b", "t", *x.shape[2:]] if symbolic else list(x.shape) for x in buffers]
        types = [TensorType(dtype_of(dtype), d, CPU) for d in dims]
        if case["lengths"] is not None:
            buffers.append(Buffer.from_numpy(np.array(case["lengths"], np.uint32)))
            types.append(TensorType(DType.uint32, ["b"] if symbolic else [len(case["lengths"])], CPU))
        model = session.load(build(attention(case), types))
        (result,) = model.execute(*buffers)
        assert_close(to_array(result), golden(i), dtype)
        kinds = [kernel.kind for kernel in model.kernel_summaries]
        assert kinds.count("attention") == 1 and "matmul" not in kinds, (case, kinds)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_attention(session: InferenceSession, dtype: str) -> None:
    """The sequences of a batch one after the other, with an empty one before the last."""
    for i, case in enumerate(CASES):
        if case["lengths"] is not None:
            continue
        batch, tokens = case["size"][:2]
        flat = [x.reshape(batch * tokens, *x.shape[2:]) for x in draw(i)]
        starts = np.append(np.arange(batch) * tokens, [batch * tokens] * 2)
        starts = np.insert(starts, batch - 1, starts[batch - 1]).astype(np.uint32)
        longest = np.array(tokens, np.uint32)

        def forward(*operands: TensorValue, case: dict = case) -> TensorValue:
            mask = MHAMaskVariant(case["mask"])
            return kernels.flash_attention_ragged_gpu(*operands, mask, 0.3, case["window"])

        buffers = [*(to_buffer(x, dtype) for x in flat), Buffer.from_numpy(starts), Buffer.from_numpy(longest)]
        types = [TensorType(dtype_of(dtype), ["t", *x.shape[1:]], CPU) for x in flat]
        types += [TensorType(DType.uint32, ["s"], CPU), TensorType(DType.uint32, [], CPU)]
        (result,) = session.load(build(forward, types)).execute(*buffers)
        assert_close(to_array(result), golden(i).reshape(flat[0].shape), dtype)


@pytest.mark.parametrize("mask", list(MHAMaskVariant))
def test_attention_to_nothing(session: InferenceSession, mask: MHAMaskVariant) -> None:
    def forward(q: TensorValue, k: TensorValue, v: TensorValue) -> TensorValue:
        return kernels.flash_attention_gpu(q, k, v, mask, 1.0, 2)

    types = [TensorType(DType.float32, ["b", "t", 2, 4], CPU)] * 3
    model = session.load(build(forward, types))
    for batch, tokens in [(0, 3), (2, 0), (1, 1)]:
        x = np.full((batch, tokens, 2, 4), 2, np.float32)
        assert_close(to_array(model.execute(x, x, x)[0]), x, "float32")


def test_padding_may_be_nan(session: InferenceSession) -> None:
    i = next(i for i, case in enumerate(CASES) if case["lengths"] is not None)
    q, k, v = draw(i)
    for sequence, length in enumerate(CASES[i]["lengths"]):
        for x in (q, k, v):
            x[sequence, length:] = np.nan
    lengths = np.array(CASES[i]["lengths"], np.uint32)
    (result,) = evaluate(session, attention(CASES[i]), q, k, v, lengths)
    assert_close(result, golden(i), "float32")


def test_attention_of_tensors() -> None:
    i = next(i for i, case in enumerate(CASES) if case["mask"] == "causal")
    result = F.functional(kernels.flash_attention_gpu)(*map(Tensor, draw(i)), MHAMaskVariant.CAUSAL_MASK, 0.3)
    assert_close(result.to_numpy(), golden(i), "float32")


def test_attention_errors() -> None:
    types = [TensorType(DType.float32, [1, 3, heads, 4], CPU) for heads in (6, 4, 4)]
    with Graph("g", input_types=types) as graph:
        q, k, _ = graph.inputs
        with pytest.raises(ValueError, match="multiple of that of key heads; got 6 and 4"):
            kernels.flash_attention_gpu(q, k, k, MHAMaskVariant.NULL_MASK, 1.0)
        with pytest.raises(ValueError, match="needs a positive window; got -1"):
            kernels.flash_attention_gpu(q, q, q, MHAMaskVariant.SLIDING_WINDOW_CAUSAL_MASK, 1.0)
        with pytest.raises(ValueError, match="diagonal"):
            kernels.flash_attention_gpu(q, q, q, "diagonal", 1.0)  # type: ignore[arg-type]


def test_swish_glu(session: InferenceSession) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (5, 8), (5, 8)))
    (result,) = evaluate(session, kernels.swish_glu, a, b, c)
    gate = a @ b.T
    assert_close(result, gate / (1 + np.exp(-gate)) * (a @ c.T), "float32", 1e-5)


def test_merged_sequences(session: InferenceSession) -> None:
    """The example of the documentation."""
    arrays = [[1, 2, 3, 4, 5, 6], [0, 2, 6], [7, 8, 9, 10], [0, 3, 4]]
    a, a_offsets, b, b_offsets = (np.array(x, np.uint32) for x in arrays)
    types = [TensorType(DType.uint32, [name], CPU) for name in ("a", "s", "b", "s")]
    merged, offsets = evaluate(session, kernels.merge_ragged_tensors, a, a_offsets, b, b_offsets, types=types)
    assert merged.tolist() == [1, 2, 7, 8, 9, 3, 4, 5, 6, 10] and offsets.tolist() == [0, 5, 10]
    assert offsets.dtype == np.uint32


@pytest.mark.parametrize("tokens", [0, 1, 37])
def test_experts(session: InferenceSession, tokens: int) -> None:
    """Tokens that go through their experts and back are multiplied by the weights of these."""
    rng = np.random.default_rng(tokens)
    ids = rng.integers(0, 6, tokens).astype(np.int32)
    ids[ids == 2] = 3
    x, weights = rng.standard_normal((tokens, 8)), rng.standard_normal((6, 5, 8))
    x, weights = x.astype(np.float32), weights.astype(np.float32)

    def forward(x: TensorValue, ids: TensorValue, weights: TensorValue) -> Any:
        order, starts, restore, experts, usage = kernels.moe_create_indices(ids, 6)
        grouped = kernels.grouped_matmul_ragged(F.gather(x, order, 0), weights, starts, experts, usage)
        return F.gather(grouped, restore, 0), usage

    types = [TensorType(DType.float32, ["t", 8], CPU), TensorType(DType.int32, ["t"], CPU)]
    types.append(TensorType(DType.float32, [6, 5, 8], CPU))
    result, usage = evaluate(session, forward, x, ids, weights, types=types)
    assert_close(result, np.einsum("tk,tnk->tn", x, weights[ids]), "float32", 1e-5)
    counts = np.bincount(ids, minlength=6)
    assert usage.tolist() == [counts.max(), (counts > 0).sum()]


def test_adapters(session: InferenceSession) -> None:
    rng = np.random.default_rng(3)
    x, a, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, 8), (3, 4, 8), (3, 6, 4)))
    ids, ranks, starts = (np.array(v, np.int32) for v in ([2, -1, 0], [4, 4, 2], [0, 3, 5, 8]))
    bias = rng.standard_normal((3, 6)).astype(np.float32)

    def forward(x: Any, a: Any, b: Any, ids: Any, ranks: Any, starts: Any, bias: Any) -> Any:
        low = kernels.sgmv_kernel(x, a, ids, ranks, starts, 3)
        return low, kernels.sgmv_lora_kernel(x, a, b, ids, ranks, starts, 3, bias)

    low, result = evaluate(session, forward, x, a, b, ids, ranks, starts, bias)
    expected_low, expected = np.zeros((9, 4)), np.zeros((9, 6))
    for group, adapter in enumerate(ids):
        rows = slice(starts[group], starts[group + 1])
        if adapter >= 0:
            rank = ranks[group]
            expected_low[rows] = x[rows] @ a[adapter].T
            expected[rows] = expected_low[rows, :rank] @ b[adapter, :, :rank].T + bias[adapter]
    assert_close(low, expected_low, "float32", 1e-5)
    assert_close(result, expected, "float32", 1e-5)


class TestSampling:
    """Draws of tokens, and the counts of those that came before."""

    def sample(self, session: InferenceSession, logits: np.ndarray, **parameters: Any) -> np.ndarray:
        names = list(parameters)

        def forward(logits: TensorValue, *given: TensorValue) -> TensorValue:
            arguments = dict(zip(names, given))
            top_k = arguments.pop("top_k", -1)
            return kernels.topk_fused_sampling(logits, top_k, **arguments)

        arrays = [np.asarray(parameters[name]) for name in names]
        (tokens,) = evaluate(session, forward, logits, *arrays)
        assert tokens.dtype == np.int64 and tokens.shape == (len(logits), 1)
        return tokens[:, 0]

    def test_frequencies(self, session: InferenceSession) -> None:
        """Tokens come as often as they are likely, and no others than the likely ones come."""
        logits = np.log(np.array([0.05, 0.4, 0.3, 0.15, 0.1], np.float32))
        count = 20000
        rows = np.tile(logits, (count, 1))
        seeds = np.arange(count, dtype=np.uint64)
        for expected, parameters in [
            ([0.05, 0.4, 0.3, 0.15, 0.1], {}),
            ([0, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0], {"top_k": np.full(count, 3), "max_k": np.array(3)}),
            ([0, 4 / 7, 3 / 7, 0, 0], {"top_p": np.float32(0.65)}),
            ([0, 1, 0, 0, 0], {"temperature": np.zeros(count, np.float32)}),
            (np.exp(logits / 2) / np.exp(logits / 2).sum(), {"temperature": np.float32(2)}),
        ]:
            tokens = self.sample(session, rows, seed=seeds, **parameters)
            shares = np.bincount(tokens, minlength=5) / count
            np.testing.assert_allclose(shares, expected, atol=0.02)
            assert (shares[np.array(expected) == 0] == 0).all()

    def test_rows_do_not_depend_on_each_other(self, session: InferenceSession) -> None:
        rng = np.random.default_rng(5)
        logits = rng.standard_normal((6, 300)).astype(np.float32)
        seeds = rng.integers(0, 2**63, 6).astype(np.uint64)
        ks = np.array([1, 5, -1, 300, 7, 64])
        together = self.sample(session, logits, top_k=ks, max_k=np.array(300), seed=seeds)
        assert together[0] == logits[0].argmax()
        order = [4, 2, 0]
        some = self.sample(session, logits[order], top_k=ks[order], max_k=np.array(-1), seed=seeds[order])
        assert some.tolist() == together[order].tolist()

    def test_numbers_as_parameters(self, session: InferenceSession) -> None:
        logits = np.array([[0.0, 5.0, np.nan, 5.0], [np.nan, np.nan, -np.inf, -np.inf]], np.float32)
        for options in ({"temperature": 0}, {"seed": 2**64 - 1, "top_p": 1e-6}, {}):
            top_k = 1 if not options else -1
            forward = lambda x, k=top_k, o=options: kernels.topk_fused_sampling(x, k, **o)  # noqa: E731
            (tokens,) = evaluate(session, forward, logits)
            assert tokens[0, 0] == 1 and 0 <= tokens[1, 0] < 4

    def test_errors(self) -> None:
        types = [TensorType(DType.float32, [2, 8], CPU), TensorType(DType.int64, [2], CPU)]
        with Graph("g", input_types=types) as graph:
            logits, k = graph.inputs
            for match, top_k, options in [
                ("max_k is required", k, {}),
                ("top_k must be -1 or a positive integer; got 0", 0, {}),
                ("top_p must be above 0", 5, {"top_p": 1.5}),
                ("temperature must be not negative", 5, {"temperature": -1.0}),
            ]:
                with pytest.raises(ValueError, match=match):
                    kernels.topk_fused_sampling(logits, top_k, **options)

    def run(
        self, session: InferenceSession, forward: Callable[..., None], data: np.ndarray, *rest: np.ndarray
    ) -> np.ndarray:
        """What a buffer holds after a function has changed it."""
        types: list[Any] = [BufferType(DType.from_numpy(data.dtype), data.shape, CPU)]
        types += [TensorType(DType.from_numpy(x.dtype), x.shape, CPU) for x in rest]
        with Graph("g", input_types=types) as graph:
            forward(*graph.inputs)
            graph.output()
        buffer = Buffer.from_numpy(data.copy())
        session.load(graph).execute(buffer, *rest)
        return to_array(buffer)

    def test_penalties(self, session: InferenceSession) -> None:
        rng = np.random.default_rng(7)
        logits = rng.standard_normal((3, 50)).astype(np.float32)
        offsets = np.array([0, 10, 10, 30], np.uint32)
        tokens = np.concatenate([rng.permutation(50)[:10], rng.permutation(50)[:20]])
        counts = rng.integers(1, 5, 30)
        tokens[[4, 12, 13]] = [-1, 50, 2**31 - 1]
        data = np.stack([tokens, counts], 1).astype(np.int32)
        frequency, repetition = (rng.uniform(1, 2, 3).astype(np.float32) for _ in range(2))

        def forward(logits: Any, data: Any, offsets: Any, frequency: Any, repetition: Any) -> None:
            kernels.apply_penalties_to_logits(
                logits,
                data,
                offsets,
                frequency_penalty=frequency,
                presence_penalty=0.5,
                repetition_penalty=repetition,
            )

        result = self.run(session, forward, logits, data, offsets, frequency, repetition)
        expected = logits.astype(np.float64)
        for row in range(3):
            for token, count in data[offsets[row] : offsets[row + 1]]:
                if 0 <= token < 50:
                    x = expected[row, token]
                    x = x / repetition[row] if x > 0 else x * repetition[row]
                    expected[row, token] = x - frequency[row] * count - 0.5
        assert_close(result, expected, "float32")

    def test_counts(self, session: InferenceSession) -> None:
        """Counts of many random tokens, one at a time, are those of a dictionary."""
        rng = np.random.default_rng(9)
        offsets = np.array([0, 4, 4, 12], np.uint32)
        data = np.tile(np.array([-1, 0], np.int32), (12, 1))
        expected: list[dict[int, int]] = [{}, {}, {}]
        sizes = np.diff(offsets.astype(int))
        for _ in range(25):
            tokens = rng.integers(-1, 9, 3)
            data = self.run(session, kernels.update_frequency_data, data, offsets, tokens)
            for row, token in enumerate(tokens.tolist()):
                if token >= 0 and (token in expected[row] or len(expected[row]) < sizes[row]):
                    expected[row][token] = expected[row].get(token, 0) + 1
        for row, counts in enumerate(expected):
            found = [tuple(entry) for entry in data[offsets[row] : offsets[row + 1]].tolist()]
            assert found == list(counts.items()) + [(-1, 0)] * (sizes[row] - len(counts))

    def test_set_constant(self, session: InferenceSession) -> None:
        places = np.array([[0, 1], [2, 3]])
        forward = lambda data, places: kernels.scatter_set_constant(data, places, -10000.0)  # noqa: E731
        result = self.run(session, forward, np.zeros((3, 4), np.float32), places)
        assert np.argwhere(result == -10000).tolist() == places.tolist() and (result == 0).sum() == 10
        with pytest.raises(IndexError, match="index 3 is out of range"):
            self.run(session, forward, np.zeros((3, 4), np.float32), places + 1)
