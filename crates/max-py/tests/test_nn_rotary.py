"""Rotary position embeddings against Transformers (`goldens/rotary.npz`), and their edges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import dtype_of, to_array, to_buffer
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops
from max.nn.layer import Module
from max.nn.rotary_embedding import (
    DeepseekYarnRopeScalingParams,
    DeepseekYarnRotaryEmbedding,
    DynamicRotaryEmbedding,
    LinearScalingParams,
    Llama3RopeScalingParams,
    Llama3RotaryEmbedding,
    LongRoPERotaryEmbedding,
    LongRoPEScalingParams,
    RotaryEmbedding,
    YarnRotaryEmbedding,
    YarnScalingParams,
)

GOLDENS = np.load(Path(__file__).parent / "goldens" / "rotary.npz")
LISTS = json.loads(GOLDENS["cases"].tobytes())
CASES: list[dict[str, Any]] = LISTS["cases"]
HOST = DeviceRef.CPU()


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[CPU()])


def run(session: InferenceSession, build: Any, *inputs: Any, types: Any = None) -> np.ndarray:
    """The result of a graph of inputs."""
    types = types or [TensorType(DType.from_numpy(x.dtype), x.shape, HOST) for x in inputs]
    with Graph("rotary", input_types=types) as graph:
        graph.output(build(*(value.tensor for value in graph.inputs)))
    return to_array(session.load(graph).execute(*inputs)[0])


def embedding(case: dict[str, Any], longest: int = 65536, **options: Any) -> RotaryEmbedding:
    """The embedding of a case, for heads of its dim."""
    own = case.get("parameters", {})
    original = own.get("original_max_position_embeddings")
    common = (case["dim"], 1, case["theta"], longest, HOST)
    match case["type"]:
        case "default":
            return RotaryEmbedding(*common, **options)
        case "linear":
            return Llama3RotaryEmbedding(*common, scaling_params=LinearScalingParams(own["factor"]), **options)
        case "llama3":
            factors = (own["factor"], own["low_freq_factor"], own["high_freq_factor"])
            return Llama3RotaryEmbedding(*common, scaling_params=Llama3RopeScalingParams(*factors, original), **options)
        case "yarn":
            yarn = YarnScalingParams(own["factor"], own["beta_fast"], own["beta_slow"], original, own["truncate"])
            return YarnRotaryEmbedding(*common, scaling_params=yarn, **options)
        case "longrope":
            long = LongRoPEScalingParams(own["short_factor"], own["long_factor"], original, 131072)
            return LongRoPERotaryEmbedding(*common, scaling_params=long, **options)
        case "deepseek":
            deepseek = DeepseekYarnRopeScalingParams(
                own["factor"], original, own["beta_fast"], own["beta_slow"], own["mscale"], own["mscale_all_dim"]
            )
            common = (case["dim"], 1, case["theta"], 2 * longest, HOST)
            return DeepseekYarnRotaryEmbedding(*common, scaling_params=deepseek, **options)
        case "dynamic":
            rope = DynamicRotaryEmbedding(case["dim"], 1, case["theta"], case["max"], HOST, **options)
            rope.maybe_update_freqs([case["length"] - 1])
            return rope
    raise ValueError(case["type"])


def positions(case: dict[str, Any]) -> np.ndarray:
    return np.array([p for p in LISTS["positions"] if p < case.get("length", 1 << 30)])


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c['type']}-{c['dim']}" for c in CASES])
def test_tables_are_those_of_transformers(session: InferenceSession, number: int) -> None:
    case, expected = CASES[number], GOLDENS[f"table{number}"]
    rope = embedding(case)
    found = run(session, lambda at: ops.gather(rope.freqs_cis_base(), at, axis=0), positions(case))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    flat = run(session, lambda at: ops.gather(rope.freqs_cis, at, axis=0), positions(case))
    np.testing.assert_array_equal(flat, found.reshape(len(found), -1))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c['type']}-{c['dim']}" for c in CASES])
def test_rows_from_a_start_are_those_of_the_table(session: InferenceSession, number: int) -> None:
    case = CASES[number]
    rope = embedding(case)
    pairs, starts = np.zeros((1, 1, 1, case["dim"]), np.float32), positions(case)
    pairs[..., ::2] = 1
    for start, row in zip(starts, GOLDENS[f"table{number}"]):
        found = run(session, lambda x: rope(x, int(start)), pairs)
        np.testing.assert_allclose(found.reshape(row.shape), row, rtol=0, atol=1e-6)
    found = run(session, rope, np.broadcast_to(pairs, (1, len(starts), 1, case["dim"])).copy(), starts)
    np.testing.assert_allclose(found.reshape(len(starts), *row.shape), GOLDENS[f"table{number}"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("kind", ["start", "scalar", "positions", "batches"])
def test_application(session: InferenceSession, dtype: str, interleaved: bool, kind: str) -> None:
    rope = RotaryEmbedding(48, 3, 10000.0, 64, HOST, interleaved=interleaved)
    expected = GOLDENS[f"{'interleaved' if interleaved else 'halves'}_{dtype}"]
    each = np.arange(7, 12)
    at = {"start": 7, "scalar": np.array(7), "positions": each, "batches": np.stack([each, each])}[kind]
    types = [TensorType(dtype_of(dtype), ["batch", "sequence", 3, 16], HOST)]
    inputs = [to_buffer(GOLDENS["x"], dtype)]
    if kind != "start":
        types.append(TensorType(DType.int64, ["batch", "sequence"][2 - at.ndim :], HOST))
        inputs.append(at)
    found = run(session, lambda x, start=at: rope(x, start), *inputs, types=types)
    # Of the two, only the application to halves rounds what it computes on the way.
    tolerance = 2e-6 if dtype == "float32" else 0.05 if not interleaved else 2**-8 * np.abs(expected)
    assert (np.abs(found - expected) <= tolerance).all()


def test_parts_of_heads_and_their_order(session: InferenceSession) -> None:
    """Computed by hand: a table of quarter turns."""
    quarter = np.float32([[[0, 1], [0, 1]]])
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 1, 6)
    neighbours = RotaryEmbedding(4, 1, 10000.0, 4, HOST, _freqs_cis=quarter)
    np.testing.assert_array_equal(run(session, neighbours, x).ravel(), [-2, 1, -4, 3, 5, 6])
    halves = RotaryEmbedding(4, 1, 10000.0, 4, HOST, _freqs_cis=quarter.reshape(1, 4), interleaved=False)
    np.testing.assert_array_equal(run(session, halves, x).ravel(), [-3, -4, 1, 2, 5, 6])
    np.testing.assert_array_equal(run(session, lambda x: halves.freqs_cis, x), [[0, 1, 0, 1]])
    np.testing.assert_array_equal(run(session, lambda x: halves.freqs_cis_base(), x), quarter)


def test_scales_of_attention() -> None:
    rope = RotaryEmbedding(256, 4, 10000.0, 512, HOST)
    assert rope.compute_scale() == 0.125
    assert rope.compute_scale(0.5) == 0.5
    found = [embedding(case).compute_scale(192**-0.5) for case in CASES if case["type"] == "deepseek"]
    np.testing.assert_allclose(found, GOLDENS["deepseek_scales"], rtol=1e-12)
    for case in CASES:
        if case["type"] != "deepseek":
            assert embedding(case).compute_scale() == pytest.approx(1 / math.sqrt(case["dim"]))
    assert DeepseekYarnRotaryEmbedding(64, 128, 10000.0, 512, HOST).compute_scale() == 0.125


def test_attributes_and_shapes() -> None:
    rope = RotaryEmbedding(256, 4, 10000.0, 512, HOST)
    assert isinstance(rope, Module) and not rope.raw_state_dict()
    assert (rope.dim, rope.n_heads, rope.theta, rope.max_seq_len) == (256, 4, 10000.0, 512)
    assert (rope.head_dim, rope.device, rope.interleaved) == (64, HOST, True)
    assert Llama3RotaryEmbedding(64, 4, 10000.0, 512, HOST).scaling_params is None
    with Graph("shapes"):
        assert rope.freqs_cis_base().shape == [1024, 32, 2]
        assert rope.freqs_cis.shape == [1024, 64]
        assert rope.freqs_cis.dtype == DType.float32
        assert RotaryEmbedding(256, 4, 10000.0, 512, HOST, head_dim=16).freqs_cis.shape == [1024, 16]
        deepseek = DeepseekYarnRotaryEmbedding(64, 128, 10000.0, 512, HOST)
        assert deepseek.freqs_cis_base().shape == [512, 32, 2]
        assert deepseek.freqs_cis.shape == [512, 64]
        assert RotaryEmbedding(64, 4, 10000.0, 0, HOST).freqs_cis.shape == [0, 16]


def test_a_sequence_length_that_is_better_known(session: InferenceSession) -> None:
    rope = RotaryEmbedding(48, 3, 10000.0, 64, HOST)
    types = [TensorType(DType.float32, ["batch", "sequence", 3, 16], HOST)]
    build = lambda x: rope(x, seq_len=5)  # noqa: E731
    found = run(session, build, GOLDENS["x"], types=types)
    np.testing.assert_array_equal(found, run(session, rope, GOLDENS["x"]))
    with pytest.raises(Exception, match="seq_len of a rotary embedding"):
        run(session, build, GOLDENS["x"][:, :4].copy(), types=types)


def test_dynamic_frequencies_grow_and_shrink(session: InferenceSession) -> None:
    rope = DynamicRotaryEmbedding(16, 1, 10000.0, 32, HOST)
    table = lambda: run(session, lambda x: rope.freqs_cis_base() + x, np.float32(0))  # noqa: E731
    original = table()
    rope.maybe_update_freqs(np.arange(32))
    np.testing.assert_array_equal(table(), original)
    rope.maybe_update_freqs(np.array([[99, 3]]))
    assert rope.max_seq_len_cached == 100
    longer = table()
    assert longer.shape == (200, 8, 2)
    assert not np.allclose(longer[:64, 1:], original[:, 1:], atol=1e-2)
    rope.maybe_update_freqs([50])
    assert rope.max_seq_len_cached == 100
    for shorter in ([7], [], 0):
        rope.maybe_update_freqs([99])
        rope.maybe_update_freqs(shorter)
        np.testing.assert_array_equal(table(), original)

    def at(positions: TensorValue) -> TensorValue:
        rope.maybe_update_freqs(positions)
        return rope.freqs_cis_base()

    np.testing.assert_allclose(run(session, at, np.arange(32)), original, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run(session, at, np.array([[99], [3]])), longer[:64], atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 5, 3, 16), (2, 0, 3, 16), (2, 5, 0, 16), (1, 1, 1, 16), (1, 1, 1, 2)])
@pytest.mark.parametrize("interleaved", [True, False])
def test_small_sizes(session: InferenceSession, shape: tuple[int, ...], interleaved: bool) -> None:
    rope = RotaryEmbedding(shape[3], 1, 10000.0, 8, HOST, interleaved=interleaved)
    x = np.ones(shape, np.float32)
    symbolic = [TensorType(DType.float32, ["a", "b", "c", shape[3]], HOST)]
    for types in (None, symbolic):
        found = run(session, rope, x, types=types)
        assert found.shape == shape
        assert shape[1] != 1 or (found == 1).all()
    found = run(session, rope, x, np.zeros(shape[1], np.int64))
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: RotaryEmbedding(7, 1, 10000.0, 8, HOST)(x), "positive, even and at most 65536; got 7"),
        (lambda x: RotaryEmbedding(0, 1, 10000.0, 8, HOST)(x), "positive, even and at most 65536; got 0"),
        (lambda x: RotaryEmbedding(16, 0, 10000.0, 8, HOST)(x), "number of heads of a rotary embedding must be"),
        (lambda x: RotaryEmbedding(16, 1, 0.0, 8, HOST)(x), "theta of a rotary embedding must be positive"),
        (lambda x: RotaryEmbedding(16, 1, math.nan, 8, HOST)(x), "theta of a rotary embedding must be positive"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, -8, HOST)(x), "length must not be negative; got -16"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 2, HOST)(x), "out of range"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST)(x, 12), "out of range"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST)(x, -1), "starts at a position of the table; got -1"),
        (lambda x: RotaryEmbedding(32, 1, 10000.0, 8, HOST)(x), "too wide for a head_dim of 16"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST)(x[0, 0]), "takes \\[.., sequence, heads, head_dim\\]"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST)(x, np.zeros(4, np.int64)), "must fit \\[2, 5\\]"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST)(x.cast(DType.int32)), "rope takes floats"),
        (lambda x: RotaryEmbedding(16, 1, 10000.0, 8, HOST, _freqs_cis=np.float32([1]))(x), "_freqs_cis must be"),
        (lambda x: scaled(LinearScalingParams(0.0))(x), "factor of a rotary embedding must be positive"),
        (lambda x: scaled(Llama3RopeScalingParams(8.0, 4.0, 1.0, 8192))(x), "must be less than high_freq_factor"),
        (lambda x: scaled(YarnScalingParams(8.0, 1.0, 32.0, 4096, True))(x), "must be at most beta_fast"),
        (lambda x: scaled(LongRoPEScalingParams([1.0] * 7, [1.0] * 8, 32, 64))(x), "short_factor must have one factor"),
        (lambda x: scaled("llama3")(x), "scaling_params must be parameters of a scaling; got str"),
        (lambda x: DynamicRotaryEmbedding(2, 1, 10000.0, 8, HOST)(x), "needs a rotary dim of at least 4; got 2"),
    ],
)
def test_errors_say_what_was_expected(build: Any, message: str) -> None:
    with Graph("wrong", input_types=[TensorType(DType.float32, [2, 5, 3, 16], HOST)]) as graph:
        with pytest.raises((ValueError, TypeError, IndexError), match=message):
            build(graph.inputs[0].tensor)


def scaled(params: Any) -> RotaryEmbedding:
    return Llama3RotaryEmbedding(16, 1, 10000.0, 8, HOST, scaling_params=params)
