"""Products with quantized weights, in graphs and on tensors."""

from __future__ import annotations

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType, Weight, ops
from max.graph.quantization import QuantizationConfig, QuantizationEncoding, dequantize, quantize
from max.nn.kernels import grouped_qmatmul

from helpers import CPU, evaluate

Q = QuantizationEncoding
ENCODINGS = [encoding for encoding in Q if encoding.is_gguf]


def bound(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How far products may be off if each element of a block of 32 is half a step off: a step is 1/127 of the largest."""
    blocks = np.abs(x.astype(np.float64)).reshape(-1, x.shape[-1] // 32, 32)
    steps = np.repeat(blocks.max(axis=2) / 127, 32, axis=1) / 2
    exact = np.abs(x.astype(np.float64)) @ np.abs(weights.T.astype(np.float64))
    return (steps @ np.abs(weights.T.astype(np.float64))).reshape(*x.shape[:-1], -1) + 1e-5 * exact


def draw(encoding: QuantizationEncoding, rows: int, depth: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A quantized matrix and what it stands for."""
    values = np.random.default_rng(seed).normal(size=(rows, depth)).astype(np.float32)
    blocks = quantize(encoding, values)
    return blocks, dequantize(encoding, blocks)


def rows(count: int, depth: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, depth)).astype(np.float32)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)
@pytest.mark.parametrize("count, columns", [(1, 40), (3, 17), (16, 1), (70, 33)])
def test_products_are_within_the_bound(session, encoding: QuantizationEncoding, count: int, columns: int) -> None:
    blocks, weights = draw(encoding, columns, 512)
    x = rows(count, 512)
    (got,) = evaluate(session, lambda x, w: ops.qmatmul(encoding, None, x, w), x, blocks)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    assert np.all(np.abs(got - exact) <= bound(x, weights))
    eager = F.qmatmul(encoding, None, Tensor(x), Tensor(blocks))
    np.testing.assert_array_equal(np.from_dlpack(eager), got)


def load(session, encodings: list[QuantizationEncoding], depth: int, columns: list[int]):
    """A model with weights, which are packed when it first runs."""
    registry = {}
    with Graph("projections", input_types=[TensorType(DType.float32, ["n", depth], CPU)]) as graph:
        x = graph.inputs[0].tensor
        results = []
        for number, (encoding, count) in enumerate(zip(encodings, columns)):
            blocks, weights = draw(encoding, count, depth, seed=number)
            name = f"w{number}"
            registry[name] = blocks
            weight = graph.add_weight(Weight(name, DType.uint8, blocks.shape, CPU, quantization_encoding=encoding))
            results.append((ops.qmatmul(encoding, None, x, weight), weights))
        graph.output(*[ops.relu(result) for result, _ in results])
    return session.load(graph, weights_registry=registry), [weights for _, weights in results]


def test_projections_of_one_input_are_one_step(session) -> None:
    model, matrices = load(session, [Q.Q4_K, Q.Q4_K, Q.Q6_K], 256, [64, 16, 16])
    assert len(model.kernel_summaries) == 1
    for count in (1, 2, 9, 33):
        x = rows(count, 256)
        for output, weights in zip(model.execute(Buffer.from_numpy(x)), matrices):
            exact = x.astype(np.float64) @ weights.T.astype(np.float64)
            assert np.all(np.abs(output.to_numpy() - np.maximum(exact, 0)) <= bound(x, weights))


def test_a_row_has_the_same_bits_in_any_company(session) -> None:
    model, _ = load(session, [Q.Q5_K], 512, [50])
    x = rows(40, 512)
    (together,) = model.execute(Buffer.from_numpy(x))
    for row in (0, 7, 39):
        (alone,) = model.execute(Buffer.from_numpy(x[row : row + 1]))
        np.testing.assert_array_equal(alone.to_numpy()[0], together.to_numpy()[row])


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_short_floats(session, dtype: DType) -> None:
    blocks, weights = draw(Q.Q8_0, 20, 64)
    x = rows(3, 64)

    def product(x, w):
        y = ops.qmatmul(Q.Q8_0, None, ops.cast(x, dtype), w)
        assert y.dtype == dtype
        return ops.cast(y, DType.float32)

    (got,) = evaluate(session, product, x, blocks)
    np.testing.assert_allclose(got, x @ weights.T, atol=0.15)


def gptq(codes: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """Codes `[k, n]` and scales `[groups, n]` as the bytes of a GPTQ matrix."""
    if bits == 4:
        codes = codes[0::2] | codes[1::2] << 4
    pairs = scales.astype("<f2").view(np.uint8).reshape(*scales.shape, 2)
    return np.concatenate([codes.astype(np.uint8), pairs.transpose(0, 2, 1).reshape(-1, scales.shape[1])])


@pytest.mark.parametrize("bits, group", [(4, 32), (4, 128), (8, 64), (4, -1)])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(session, bits: int, group: int, ordered: bool) -> None:
    random = np.random.default_rng(3)
    depth, columns = 256, 24
    size = depth if group == -1 else group
    codes = random.integers(0, 2**bits, size=(depth, columns), dtype=np.uint8)
    scales = random.normal(size=(depth // size, columns)).astype(np.float16)
    weights = (codes.astype(np.float32) - 2 ** (bits - 1)) * np.repeat(scales.astype(np.float32), size, axis=0)
    x = rows(5, depth)
    config = QuantizationConfig("gptq", bits, group, desc_act=ordered, sym=True)
    order = random.permutation(depth).astype(np.int32)
    aux = [order] if ordered else []
    (got,) = evaluate(session, lambda x, *w: ops.qmatmul(Q.GPTQ, config, x, *w), x, gptq(codes, scales, bits), *aux)
    picked = x[:, order] if ordered else x
    exact = picked.astype(np.float64) @ weights.astype(np.float64)
    assert np.all(np.abs(got - exact) <= bound(picked, weights.T))


def test_mxfp4_with_exponents_apart(session) -> None:
    blocks, weights = draw(Q.MXFP4, 20, 64)
    parts = blocks.reshape(20, 2, 17)
    exponents, halves = parts[:, :, 0], parts[:, :, 1:]
    # In a block the second half of the elements is in the upper bits; apart, neighbours share a byte.
    codes = np.concatenate([halves & 15, halves >> 4], axis=2).reshape(20, 64)
    codes = codes[:, 0::2] | codes[:, 1::2] << 4
    x = rows(3, 64)
    (got,) = evaluate(
        session, lambda x, *w: ops.qmatmul(Q.MXFP4, None, x, *w), x, codes, np.ascontiguousarray(exponents)
    )
    (whole,) = evaluate(session, lambda x, w: ops.qmatmul(Q.MXFP4, None, x, w), x, blocks)
    np.testing.assert_array_equal(got, whole)
    assert np.all(np.abs(got - x.astype(np.float64) @ weights.T) <= bound(x, weights))


def test_shapes_and_types() -> None:
    types = [TensorType(DType.float32, ["n", 3, "k"], CPU), TensorType(DType.uint8, ["m", 36], CPU)]
    with Graph("g", input_types=types) as graph:
        x, w = (value.tensor for value in graph.inputs)
        assert str(ops.qmatmul(Q.Q4_0, None, x, w).shape) == "[Dim('n'), Dim(3), Dim('m')]"


def test_a_wrong_depth_is_found_when_the_graph_runs(session) -> None:
    types = [TensorType(DType.float32, ["n", "k"], CPU), TensorType(DType.uint8, [4, 36], CPU)]
    with Graph("g", input_types=types) as graph:
        x, w = (value.tensor for value in graph.inputs)
        graph.output(ops.qmatmul(Q.Q4_0, None, x, w))
    model = session.load(graph)
    blocks, _ = draw(Q.Q4_0, 4, 64)
    assert model.execute(Buffer.from_numpy(rows(2, 64)), Buffer.from_numpy(blocks))[0].shape == (2, 4)
    with pytest.raises(ValueError, match="depth of the weights"):
        model.execute(Buffer.from_numpy(rows(2, 96)), Buffer.from_numpy(blocks))


@pytest.mark.parametrize(
    "encoding, config, lhs, rhs, error, message",
    [
        (Q.Q4_0, None, (3, 64), (2, 4, 36), TypeError, "must be a matrix"),
        (Q.Q4_0, None, (3, 64), (4, 35), ValueError, "35 bytes is no whole number"),
        (Q.Q4_0, None, (3, 65), (4, 36), ValueError, "does not fit q4_0 weights"),
        (Q.Q4_0, None, (3, 64), (4, "k"), ValueError, "static length"),
        (Q.Q4_0, None, (), (4, 36), ValueError, "rank 2 or more"),
        (Q.GPTQ, None, (3, 64), (36, 4), ValueError, "needs a QuantizationConfig"),
        (Q.GPTQ, QuantizationConfig("gptq", 4, 32), (3, 64), (35, 4), ValueError, "no whole number of groups"),
        (Q.GPTQ, QuantizationConfig("gptq", 3, 32), (3, 64), (36, 4), ValueError, "4 or 8 bits"),
        (Q.GPTQ, QuantizationConfig("gptq", 4, 0), (3, 64), (36, 4), ValueError, "whole number of groups"),
        (Q.GPTQ, QuantizationConfig("gptq", 4, 2**62), (3, 64), (36, 4), ValueError, "whole number of groups"),
        (Q.GPTQ, QuantizationConfig("gptq", 4, 32, desc_act=True), (3, 64), (36, 4), ValueError, "order"),
    ],
)
def test_errors(encoding, config, lhs, rhs, error, message) -> None:
    types = [TensorType(DType.float32, lhs, CPU), TensorType(DType.uint8, rhs, CPU)]
    with Graph("g", input_types=types) as graph:
        x, w = (value.tensor for value in graph.inputs)
        with pytest.raises(error, match=message):
            ops.qmatmul(encoding, config, x, w)


def test_other_dtypes_are_refused() -> None:
    types = [TensorType(DType.float64, (3, 64), CPU), TensorType(DType.uint8, (4, 36), CPU)]
    with Graph("g", input_types=types) as graph:
        x, w = (value.tensor for value in graph.inputs)
        with pytest.raises(TypeError, match="Left-hand side must be float32"):
            ops.qmatmul(Q.Q4_0, None, x, w)
        with pytest.raises(TypeError, match="must be uint8"):
            ops.qmatmul(Q.Q4_0, None, ops.cast(x, DType.float32), ops.cast(w, DType.int8))
        with pytest.raises(ValueError, match="one tensor or two"):
            ops.qmatmul(Q.Q4_0, None, x)
        with pytest.raises(ValueError, match="is one tensor"):
            ops.qmatmul(Q.Q4_0, None, x, w, w)


def test_what_is_not_finite_stays_in_its_row(session) -> None:
    blocks, _ = draw(Q.Q4_K, 8, 256)
    x = rows(3, 256)
    x[1, 5] = np.inf
    (got,) = evaluate(session, lambda x, w: ops.qmatmul(Q.Q4_K, None, x, w), x, blocks)
    assert np.all(np.isnan(got[1])) and np.all(np.isfinite(got[[0, 2]]))


def test_experts_have_matrices_of_their_own(session) -> None:
    matrices = [draw(Q.Q6_K, 20, 256, seed=seed) for seed in range(3)]
    blocks = np.stack([blocks for blocks, _ in matrices])
    x = rows(11, 256)
    starts, ids = np.array([1, 4, 4, 9], np.uint32), np.array([2, 0, 1], np.int32)
    (got,) = evaluate(session, lambda *inputs: grouped_qmatmul(Q.Q6_K, *inputs), x, blocks, starts, ids)
    assert np.all(got[:1] == 0) and np.all(got[9:] == 0)
    for first, last, expert in ((1, 4, 2), (4, 9, 1)):
        weights = matrices[expert][1]
        exact = x[first:last].astype(np.float64) @ weights.T
        assert np.all(np.abs(got[first:last] - exact) <= bound(x[first:last], weights))
    with pytest.raises(ValueError, match="is not among 11 rows and 3 matrices"):
        evaluate(session, lambda *inputs: grouped_qmatmul(Q.Q6_K, *inputs), x, blocks, starts + np.uint32(3), ids)
