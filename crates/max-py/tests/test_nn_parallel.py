"""Layers of `max.nn` on several virtual devices give what they give on one.

A process uses either GPUs or virtual devices, so these tests are skipped where there is a GPU: others in this process
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, Weight
from max.graph.quantization import QuantizationConfig, QuantizationEncoding, quantize
from max.graph.weight import ShardingStrategy
from max.nn.conv import Conv2d
from max.nn.embedding import Embedding, VocabParallelEmbedding
from max.nn.float8_config import Float8Config, Float8InputScaleSpec, Float8ScaleOrigin, Float8WeightScaleSpec
from max.nn.layer import Module, Shardable
from max.nn.linear import MLP, ColumnParallelLinear, GPTQLinear, Linear
from max.nn.moe import MoE
from max.nn.norm import RMSNorm

from helpers import assert_close
from scaled import BLOCK, COLWISE, ROWWISE, codes, float8

pytestmark = pytest.mark.skipif(
    driver.accelerator_count() > 0 and not driver.is_virtual_device_mode(),
    reason="this machine has a GPU, and a process uses either GPUs or virtual devices",
)

F32, HOST, Q = DType.float32, DeviceRef.CPU(), QuantizationEncoding


@pytest.fixture(autouse=True)
def virtual_devices() -> Iterator[None]:
    driver.set_virtual_device_count(4)
    yield
    driver.set_virtual_device_count(0)


def gpus(count: int) -> list[DeviceRef]:
    return [DeviceRef.GPU(id) for id in range(count)]


def eighths(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).integers(-16, 16, shape) / 8).astype(np.float32)


def draw(layer: Module) -> dict[str, np.ndarray]:
    weights = layer.raw_state_dict().items()
    return {name: eighths(*map(int, w.shape), seed=seed) for seed, (name, w) in enumerate(weights)}


def run(layer: Module, values: dict[str, Any], forward: Callable[..., Any], x: np.ndarray, inputs: int) -> Any:
    """What a graph with the input on each device gives, where `forward` takes the inputs and signal buffers."""
    layer.load_state_dict(values)
    registry = layer.state_dict()
    devices = gpus(inputs) if inputs else [HOST]
    types: list[Any] = [TensorType(DType.from_numpy(x.dtype), x.shape, device) for device in devices]
    types += [BufferType(DType.uint8, [1], device) for device in gpus(inputs)]
    with Graph("layer", input_types=types) as graph:
        given = [value.tensor for value in graph.inputs[: len(devices)]]
        graph.output(*forward(given, [value.buffer for value in graph.inputs[len(devices) :]]))
    session = InferenceSession(devices=[CPU(), *map(Accelerator, range(4))])
    model = session.load(graph, weights_registry=registry)
    arrays = [x] * len(devices) + [np.zeros(1, np.uint8)] * inputs
    buffers = [Buffer.from_numpy(array).to(device) for array, device in zip(arrays, model.input_devices)]
    outputs = model.execute(*buffers)
    return [output.device for output in outputs], [output.to(CPU()).to_numpy() for output in outputs]


def whole(layer: Module, values: dict[str, Any], x: np.ndarray) -> np.ndarray:
    return run(layer, values, lambda inputs, _: [layer(inputs[0])], x, 0)[1][0]


def sharded(layer: Any, values: dict[str, Any], strategy: ShardingStrategy, x: np.ndarray) -> list[np.ndarray]:
    """What each shard gives for the whole input, on its device."""
    assert isinstance(layer, Shardable)
    layer.sharding_strategy = strategy
    assert layer.sharding_strategy is strategy
    names = sorted(layer.raw_state_dict())

    def forward(inputs: Sequence[TensorValue], _: Any) -> list[TensorValue]:
        shards = layer.shard(gpus(strategy.num_devices))
        assert all(type(shard) is type(layer) and shard.raw_state_dict() == {} for shard in shards)
        return [shard(x) for shard, x in zip(shards, inputs)]

    places, outputs = run(layer, values, forward, x, strategy.num_devices)
    assert [place.id for place in places] == list(range(strategy.num_devices))
    assert sorted(layer.raw_state_dict()) == names
    return outputs


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_of_linear_layers(devices: int, has_bias: bool) -> None:
    layer, x = Linear(6, 7, F32, HOST, has_bias), eighths(3, 6, seed=9)
    values = draw(layer)
    shards = sharded(layer, values, ShardingStrategy.rowwise(devices), x)
    np.testing.assert_array_equal(np.concatenate(shards, axis=-1), whole(layer, values, x))


def columns(layer: Linear, values: Any, strategy: ShardingStrategy, x: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The sum of what columnwise shards give for their parts of the input."""
    layer.sharding_strategy = strategy
    ends = np.cumsum([0, *sizes])

    def forward(inputs: Sequence[TensorValue], _: Any) -> list[TensorValue]:
        shards = layer.shard(gpus(strategy.num_devices))
        assert [shard.bias is None for shard in shards][1:] == [True] * (len(shards) - 1)
        return [shard(x[:, a:b]) for shard, x, a, b in zip(shards, inputs, map(int, ends), map(int, ends[1:]))]

    return np.sum(run(layer, values, forward, x, strategy.num_devices)[1], axis=0)


def test_columns_of_linear_layers() -> None:
    layer, x = Linear(7, 5, F32, HOST, has_bias=True), eighths(3, 7, seed=9)
    values = draw(layer)
    total = columns(layer, values, ShardingStrategy.columnwise(3), x, [3, 2, 2])
    np.testing.assert_array_equal(total, whole(layer, values, x))
    layer, x = Linear(12, 5, F32, HOST, has_bias=True), eighths(3, 12, seed=9)
    values = draw(layer)
    total = columns(layer, values, ShardingStrategy.head_aware_columnwise(2, 3, 4), x, [8, 4])
    np.testing.assert_array_equal(total, whole(layer, values, x))


def test_stacked_projections() -> None:
    layer, x = Linear(5, 24, F32, HOST, has_bias=True), eighths(3, 5, seed=9)
    values = draw(layer)
    first, second = sharded(layer, values, ShardingStrategy.stacked_qkv(2, 2, 4), x)
    parts = whole(layer, values, x).reshape(3, 3, 2, 4)
    np.testing.assert_array_equal(first, parts[:, :, 0].reshape(3, 12))
    np.testing.assert_array_equal(second, parts[:, :, 1].reshape(3, 12))


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_perceptrons(devices: int, has_bias: bool) -> None:
    layer, x = MLP(F32, None, 4, 11, [HOST], has_bias=has_bias), eighths(3, 4, seed=9)
    values = draw(layer)
    expected = whole(layer, values, x)
    shards = sharded(layer, values, ShardingStrategy.tensor_parallel(devices), x)
    assert_close(np.sum(shards, axis=0), expected, "float32", rtol=1e-5)
    for copy in sharded(layer, values, ShardingStrategy.replicate(devices), x):
        np.testing.assert_array_equal(copy, expected)


def test_mixtures_of_experts() -> None:
    layer = MoE([HOST], 4, 3, 2, 6, has_shared_experts=True, shared_experts_dim=4, dtype=F32)
    values, x = draw(layer), eighths(5, 4, seed=9)
    values["gate.gate_score.weight"] += np.linspace(0, 0.01, 12, dtype=np.float32).reshape(3, 4)
    shards = sharded(layer, values, ShardingStrategy.tensor_parallel(2), x)
    assert_close(np.sum(shards, axis=0), whole(layer, values, x), "float32", rtol=1e-5)


def test_norms() -> None:
    layer, x = RMSNorm(6, F32, weight_offset=1.0), eighths(3, 6, seed=9)
    values = draw(layer)
    for copy in sharded(layer, values, ShardingStrategy.replicate(3), x):
        np.testing.assert_array_equal(copy, whole(layer, values, x))


def test_convolutions() -> None:
    layer = Conv2d(3, 4, 5, F32, padding=1, has_bias=True, permute=True)
    values, x = draw(layer), eighths(2, 4, 5, 6, seed=9)
    expected = whole(layer, values, x)
    shards = sharded(layer, values, ShardingStrategy.rowwise(2), x)
    np.testing.assert_array_equal(np.concatenate(shards, axis=1), expected)
    for copy in sharded(layer, values, ShardingStrategy.replicate(2), x):
        np.testing.assert_array_equal(copy, expected)
    layer.sharding_strategy = ShardingStrategy.columnwise(2)
    cut = [slice(0, 2), slice(2, 4)]
    _, terms = run(
        layer,
        values,
        lambda inputs, _: [shard(x[:, at]) for shard, x, at in zip(layer.shard(gpus(2)), inputs, cut)],
        x,
        2,
    )
    np.testing.assert_array_equal(np.sum(terms, axis=0), expected)


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("signals", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
def test_column_parallel_layers(devices: int, signals: bool, everywhere: bool) -> None:
    layer = ColumnParallelLinear(5, 8, F32, gpus(devices), has_bias=True)
    values, x = draw(layer), eighths(2, 3, 5, seed=9)

    def forward(inputs: Any, buffers: Any) -> list[TensorValue]:
        return layer(inputs if everywhere else inputs[0], buffers if signals else None)

    places, outputs = run(layer, values, forward, x, devices)
    assert [place.id for place in places] == list(range(devices))
    for output in outputs:
        np.testing.assert_array_equal(output, x @ values["weight"].T + values["bias"])


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("signals", [False, True])
@pytest.mark.parametrize("vocab", [11, 3, 1])
def test_embeddings_of_a_divided_vocabulary(devices: int, signals: bool, vocab: int) -> None:
    layer = VocabParallelEmbedding(vocab, 6, F32, gpus(devices), name="tokens")
    table, indices = eighths(vocab, 6), np.random.default_rng(0).integers(0, vocab, (2, 9))
    _, outputs = run(
        layer, {"tokens": table}, lambda x, s: layer(x if signals else x[0], s if signals else None), indices, devices
    )
    assert len(outputs) == devices
    for output in outputs:
        np.testing.assert_array_equal(output, table[indices])


def test_a_table_that_is_tied_to_the_output() -> None:
    class Tied(Module):
        def __init__(self) -> None:
            self.embedding = VocabParallelEmbedding(7, 4, F32, gpus(2))
            self.output = ColumnParallelLinear(4, 7, F32, gpus(2), tied_weight=self.embedding.weight)

        def __call__(self, indices: Any, signals: Any) -> list[TensorValue]:
            return self.output(self.embedding(indices, signals), signals)

    model, table = Tied(), eighths(7, 4)
    assert list(model.raw_state_dict()) == ["embedding.weight"]
    indices = np.array([6, 0, 3, 3])
    _, outputs = run(model, {"embedding.weight": table}, lambda x, s: model(x[0], s), indices, 2)
    for output in outputs:
        np.testing.assert_array_equal(output, table[indices] @ table.T)


def test_blocks_are_cut_between_blocks() -> None:
    layer = Linear(128, 6, DType.uint8, HOST, has_bias=True, quantization_encoding=Q.Q8_0)
    matrix, x = eighths(6, 128), eighths(3, 128, seed=9)
    values = {"weight": quantize(Q.Q8_0, matrix), "bias": eighths(6, seed=1)}
    expected = whole(layer, values, x)
    rows = sharded(layer, values, ShardingStrategy.rowwise(2), x)
    np.testing.assert_array_equal(np.concatenate(rows, axis=-1), expected)
    total = columns(layer, values, ShardingStrategy.columnwise(2), x, [64, 64])
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match="blocks of 34 along an axis of 136 cannot be cut .* for 3 devices"):
        layer.sharding_strategy = ShardingStrategy.columnwise(3)
    embedding = VocabParallelEmbedding(6, 128, F32, gpus(4), Q.Q8_0)
    indices = np.array([5, 0, 2])
    same = whole(Embedding(6, 128, F32, HOST, Q.Q8_0), {"weight": values["weight"]}, indices)
    for output in run(embedding, {"weight": values["weight"]}, lambda x, s: embedding(x, s), indices, 4)[1]:
        np.testing.assert_array_equal(output, same)


@pytest.mark.parametrize("block", [None, (4, 32)])
def test_float8_layers(block: Any) -> None:
    rng = np.random.default_rng(0)
    inputs = Float8InputScaleSpec(
        BLOCK if block else COLWISE, Float8ScaleOrigin.DYNAMIC, F32, block_size=(1, 32) if block else None
    )
    config = Float8Config(inputs, Float8WeightScaleSpec(BLOCK if block else ROWWISE, F32, block), set(), set())
    layer = Linear(128, 8, DType.float8_e4m3fn, HOST, True, float8_config=config)
    assert layer.weight_scale is not None
    scale = rng.uniform(0.5, 1, [int(d) for d in layer.weight_scale.shape]).astype(np.float32) / 64
    weight = float8(codes(rng, "float8_e4m3fn", 8, 128), "float8_e4m3fn")
    values = {"weight": weight, "weight_scale": scale, "bias": eighths(8)}
    x = rng.normal(size=(3, 128)).astype(np.float32)
    expected = whole(layer, values, x)
    rows = sharded(layer, values, ShardingStrategy.rowwise(2), x)
    assert_close(np.concatenate(rows, axis=-1), expected, "float32", rtol=1e-5)
    total = columns(layer, values, ShardingStrategy.columnwise(2), x, [64, 64])
    # Without blocks, the scale of a token depends on all of its elements.
    assert_close(total, expected, "float32", rtol=1e-5 if block else 0.05)
    if block:
        with pytest.raises(ValueError, match="blocks of 4 along an axis of 8 cannot be cut .* for 3 devices"):
            layer.sharding_strategy = ShardingStrategy.rowwise(3)


def test_gptq_layers() -> None:
    rng = np.random.default_rng(0)
    config = QuantizationConfig("gptq", 4, 32, desc_act=True, sym=True)
    layer = GPTQLinear(64, 6, DType.uint8, HOST, True, Q.GPTQ, config)
    scales = rng.normal(size=(2, 6)).astype(np.float16).view(np.uint8).reshape(2, 6, 2).transpose(0, 2, 1)
    packed = np.concatenate([rng.integers(0, 256, (32, 6), dtype=np.uint8), scales.reshape(4, 6)])
    values = {"weight": packed, "bias": eighths(6), "perm_idx": rng.permutation(64).astype(np.int32)}
    x = eighths(3, 64, seed=9)
    rows = sharded(layer, values, ShardingStrategy.rowwise(3), x)
    np.testing.assert_array_equal(np.concatenate(rows, axis=-1), whole(layer, values, x))
    with pytest.raises(ValueError, match="GPTQLinear layer is sharded rowwise or replicate"):
        layer.sharding_strategy = ShardingStrategy.columnwise(2)


def test_wrong_strategies() -> None:
    with pytest.raises(ValueError, match="only be sharded once it has a sharding_strategy"):
        Linear(4, 5, F32, HOST).shard(gpus(2))
    with pytest.raises(ValueError, match="MLP layer is sharded tensor_parallel or replicate"):
        MLP(F32, None, 4, 5, [HOST]).sharding_strategy = ShardingStrategy.rowwise(2)
    with pytest.raises(ValueError, match="Linear layer is sharded rowwise, columnwise"):
        Linear(4, 5, F32, HOST).sharding_strategy = ShardingStrategy.tensor_parallel(2)
    with pytest.raises(ValueError, match="RMSNorm layer is sharded replicate"):
        RMSNorm(4, F32).sharding_strategy = ShardingStrategy.rowwise(2)
    with pytest.raises(ValueError, match="only a Conv2d layer with permute and one group"):
        Conv2d(3, 4, 5, F32).sharding_strategy = ShardingStrategy.rowwise(2)
    layer = Linear(4, 5, F32, HOST)
    layer.sharding_strategy = ShardingStrategy.rowwise(2)
    with pytest.raises(ValueError, match="over 2 devices, but 3 were given"):
        layer.shard(gpus(3))
    shard = layer.shard(gpus(2))[0]
    with pytest.raises(ValueError, match="cannot be sharded further"):
        shard.shard(gpus(2))
    for kind in (ColumnParallelLinear, VocabParallelEmbedding):
        with pytest.raises(ValueError, match="needs at least one device"):
            kind(4, 5, F32, [])
    layer = ColumnParallelLinear(4, 5, F32, gpus(2), tied_weight=Weight("w", F32, [5, 4]))
    with Graph("g", input_types=[TensorType(F32, [3, 4], HOST)]) as graph:
        x = graph.inputs[0].tensor
        with pytest.raises(ValueError, match="an input on each of 2 devices; got 3"):
            layer([x, x, x])
