"""Weights that are spread over devices, and layers of them, on virtual devices."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, Weight, ops
from max.graph.quantization import QuantizationEncoding
from max.graph.weight import ShardingStrategy
from max.nn import DistributedTransformerBlock, LayerList, Module, Shardable, TransformerBlock
from max.nn.transformer.distributed_transformer import (
    ShardableCallable,
    distribute_value,
    forward_sharded_layers,
    take,
)

pytestmark = pytest.mark.skipif(
    driver.accelerator_count() > 0 and not driver.is_virtual_device_mode(),
    reason="this machine has a GPU, and a process uses either GPUs or virtual devices",
)

HOST = DeviceRef.CPU()
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def virtual_devices() -> Iterator[None]:
    driver.set_virtual_device_count(4)
    yield
    driver.set_virtual_device_count(0)


def gpus(count: int) -> list[DeviceRef]:
    return [DeviceRef.GPU(id) for id in range(count)]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def weight(strategy: Any = None, shape: Sequence[Any] = (6, 8), **options: Any) -> Weight:
    return Weight("w", DType.float32, shape, HOST, sharding_strategy=strategy, **options)


def run(graph: Graph, inputs: Sequence[np.ndarray] = (), **weights: Any) -> list[np.ndarray]:
    devices = [Accelerator(id) for id in range(driver.accelerator_count())]
    model = InferenceSession(devices=[CPU(), *devices]).load(graph, weights_registry=weights)
    given = [Buffer.from_numpy(array).to(device) for array, device in zip(inputs, model.input_devices)]
    return [output.to(CPU()).to_numpy() for output in model.execute(*given)]


def shares(count: int, devices: int) -> list[slice]:
    """The positions that each device has of so many."""
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(count), devices)])
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends)]


def heads(axis: int, stacked: int, num_heads: int, head_dim: int, devices: int, whole: np.ndarray) -> list[np.ndarray]:
    """The rows or columns of some heads, in each of the stacked parts."""
    parts = np.split(whole, stacked, axis=axis)
    taken = [slice(part.start * head_dim, part.stop * head_dim) for part in shares(num_heads, devices)]
    index = lambda part: (slice(None),) * axis + (part,)  # noqa: E731
    return [np.concatenate([part[index(each)] for part in parts], axis=axis) for each in taken]


STRATEGIES = [
    pytest.param(ShardingStrategy.rowwise, (6, 8), lambda n, w: np.array_split(w, n, axis=0), id="rowwise"),
    pytest.param(ShardingStrategy.rowwise, (7,), lambda n, w: np.array_split(w, n), id="rowwise vector"),
    pytest.param(ShardingStrategy.columnwise, (6, 8), lambda n, w: np.array_split(w, n, axis=1), id="columnwise"),
    pytest.param(ShardingStrategy.replicate, (6, 8), lambda n, w: [w] * n, id="replicate"),
    pytest.param(ShardingStrategy.replicate, (), lambda n, w: [w] * n, id="replicate a scalar"),
    pytest.param(
        lambda n: ShardingStrategy.stacked_qkv(n, 5, 2), (30, 4), lambda n, w: heads(0, 3, 5, 2, n, w), id="stacked qkv"
    ),
    pytest.param(
        lambda n: ShardingStrategy.head_aware_columnwise(n, 5, 3),
        (4, 15),
        lambda n, w: heads(1, 1, 5, 3, n, w),
        id="head aware columnwise",
    ),
    pytest.param(
        lambda n: ShardingStrategy(n, lambda weight, index: weight[index::n]),
        (6, 8),
        lambda n, w: [w[index::n] for index in range(n)],
        id="custom",
    ),
    pytest.param(
        lambda n: ShardingStrategy(n, lambda weight, index, count: weight[:, index::count] * 2),
        (6, 8),
        lambda n, w: [w[:, index::n] * 2 for index in range(n)],
        id="custom with the number of devices",
    ),
]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy, shape, parts", STRATEGIES)
class TestStrategies:
    def test_shards_are_parts_of_the_whole(self, strategy: Any, shape: Any, parts: Any, count: int) -> None:
        whole = floats(*shape)
        w = weight(strategy(count), shape)
        shards = w.shard(gpus(count))
        expected = parts(count, whole)
        assert [s.shape for s in shards] == [list(part.shape) for part in expected], "known without a graph"
        assert [(s.dtype, s.device, s.shard_idx) for s in shards] == [
            (DType.float32, device, at) for at, device in enumerate(gpus(count))
        ]
        with Graph("shards") as graph:
            values = [s + 0 for s in shards]
            assert [v.type for v in values] == [s.type for s in shards]
            graph.output(*values)
        for out, part in zip(run(graph, w=whole), expected):
            np.testing.assert_array_equal(out, part)

    def test_the_whole_can_be_used_too(self, strategy: Any, shape: Any, parts: Any, count: int) -> None:
        whole = floats(*shape)
        w = weight(strategy(count), shape)
        first = w.shard(gpus(count))[0]
        with Graph("both") as graph:
            graph.output(w + 0, first + 0)
        out, part = run(graph, w=whole)
        np.testing.assert_array_equal(out, whole)
        np.testing.assert_array_equal(part, parts(count, whole)[0])


class TestMatmuls:
    """Shards give the results of the whole weight."""

    @pytest.mark.parametrize("count", [2, 3])
    def test_rowwise_results_are_gathered(self, count: int) -> None:
        x, whole = floats(2, 8), floats(6, 8)
        shards = weight(ShardingStrategy.rowwise(count)).shard(gpus(count))
        with Graph("g", input_types=[TensorType(DType.float32, [2, 8], HOST)]) as graph:
            copies = distribute_value(graph.inputs[0].tensor, gpus(count))
            parts = [v @ s.T for v, s in zip(copies, shards)]
            graph.output(ops.concat([part.to(HOST) for part in parts], axis=1))
        np.testing.assert_allclose(run(graph, [x], w=whole)[0], x @ whole.T, rtol=1e-5, atol=1e-5)

    def test_columnwise_results_add_up(self) -> None:
        x, whole, count = floats(2, 8), floats(6, 8), 2
        shards = weight(ShardingStrategy.columnwise(count)).shard(gpus(count))
        signals = [BufferType(DType.uint8, [1], device) for device in gpus(count)]
        with Graph("g", input_types=[TensorType(DType.float32, [2, 8], HOST), *signals]) as graph:
            x_in, *buffers = graph.inputs
            halves = [x_in.tensor[:, 4 * k : 4 * k + 4].to(device) for k, device in enumerate(gpus(count))]
            parts = [v @ s.T for v, s in zip(halves, shards)]
            graph.output(*ops.allreduce.sum(parts, [buffer.buffer for buffer in buffers]))
        zeros = np.zeros(1, dtype=np.uint8)
        for out in run(graph, [x, zeros, zeros], w=whole):
            np.testing.assert_allclose(out, x @ whole.T, rtol=1e-5, atol=1e-5)


class TestShards:
    def test_they_are_weights_with_names_of_their_own(self) -> None:
        w = weight(ShardingStrategy.rowwise(2), align=16)
        first, second = w.shard(gpus(2))
        assert isinstance(first, Weight) and isinstance(first, TensorValue)
        assert (first.name, second.name) == ("w[0]", "w[1]")
        assert w.shard_idx is None and first.align == 16
        w.name = "layers.0.w"
        assert second.name == "layers.0.w[1]"
        assert repr(second) == "Weight(layers.0.w[1], DType.float32, [Dim(3), Dim(8)], gpu:1)"

    def test_encodings_are_kept(self) -> None:
        encoding = QuantizationEncoding.Q4_K
        w = Weight("w", DType.uint8, [6, 144], HOST, encoding, sharding_strategy=ShardingStrategy.rowwise(2))
        for shard in w.shard(gpus(2)):
            assert (shard.quantization_encoding, shard.shape) == (encoding, [3, 144])

    def test_they_follow_changes_of_the_whole(self) -> None:
        w = weight(ShardingStrategy.rowwise(2))
        first, _ = w.shard(gpus(2))
        w.dtype, w.shape = DType.float16, [4, 2]
        assert (first.dtype, first.shape, first.rank) == (DType.float16, [2, 2], 2)

    def test_methods_and_operators(self) -> None:
        first, _ = weight(ShardingStrategy.rowwise(2)).shard(gpus(2))
        whole = floats(6, 8)
        with Graph("g") as graph:
            graph.output(first.T, first[1, ::2], 2 - first, first.cast(DType.int32), first.to(HOST))
        outputs = run(graph, w=whole)
        part = whole[:3]
        for out, want in zip(outputs, [part.T, part[1, ::2], 2 - part, part.astype(np.int32), part]):
            np.testing.assert_array_equal(out, want)

    def test_outside_a_graph(self) -> None:
        first, _ = weight(ShardingStrategy.rowwise(2)).shard(gpus(2))
        with pytest.raises(ValueError, match="weight 'w' has no parent graph"):
            first + 1

    def test_copies(self) -> None:
        first, _ = weight(ShardingStrategy.rowwise(2)).shard(gpus(2))
        for other in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
            assert (other.name, other.shape, other.device) == ("w[0]", [3, 8], DeviceRef.GPU(0))

    def test_only_the_whole_weight_is_loaded(self) -> None:
        class Layer(Module):
            def __init__(self) -> None:
                self.first, self.second = (w := weight(ShardingStrategy.rowwise(2))).shard(gpus(2))
                self.whole = w

            def __call__(self) -> list[TensorValue]:
                return [self.first + 0, self.second + 0]

        class Model(Module):
            def __init__(self) -> None:
                self.layer = Layer()

        model = Model()
        assert model.raw_state_dict() == {"layer.w": model.layer.whole}
        whole = floats(6, 8)
        model.load_state_dict({"layer.w": whole})
        with Graph("g") as graph:
            graph.output(*model.layer())
        np.testing.assert_array_equal(np.concatenate(run(graph, **model.state_dict())), whole)

    def test_in_a_subgraph(self) -> None:
        class Layer(Module):
            def __init__(self) -> None:
                self.whole = weight(ShardingStrategy.rowwise(2))
                self.shards = self.whole.shard(gpus(2))

            def __call__(self, x: TensorValue) -> TensorValue:
                return x * self.shards[1]

        model = LayerList([Layer(), Layer()])
        values = {"0.w": floats(6, 8), "1.w": floats(6, 8)}
        model.load_state_dict(values)
        kind = TensorType(DType.float32, [3, 8], DeviceRef.GPU(1))
        with Graph("g", input_types=[kind]) as graph:
            layer = model[0].build_subgraph("layer", [kind], weight_prefix="0.")
            (x,) = ops.call(layer, graph.inputs[0], prefix="0.")
            graph.output(*ops.call(layer, x, prefix="1."))
        x = floats(3, 8)
        (out,) = run(graph, [x], **model.state_dict())
        np.testing.assert_array_equal(out, x * values["0.w"][3:] * values["1.w"][3:])


class TestErrors:
    def test_no_strategy(self) -> None:
        assert weight().sharding_strategy is None
        with pytest.raises(ValueError, match="w cannot be sharded because no sharding strategy"):
            weight().shard(gpus(2))

    @pytest.mark.parametrize("given", [0, 1, 3])
    def test_wrong_number_of_devices(self, given: int) -> None:
        with pytest.raises(ValueError, match=f"over 2 devices, but {given} were given"):
            weight(ShardingStrategy.rowwise(2)).shard(gpus(given))

    def test_a_shard_of_a_shard(self) -> None:
        first, _ = weight(ShardingStrategy.rowwise(2)).shard(gpus(2))
        with pytest.raises(ValueError, match=r"w\[0\] was already sharded"):
            first.shard(gpus(2))

    def test_strategies_of_modules(self) -> None:
        for strategy in (ShardingStrategy.tensor_parallel(2), ShardingStrategy.expert_parallel(2)):
            with pytest.raises(NotImplementedError, match="parallel is a strategy of modules"):
                weight(strategy).shard(gpus(2))

    @pytest.mark.parametrize(
        "strategy, shape",
        [
            (ShardingStrategy.columnwise(2), (8,)),
            (ShardingStrategy.rowwise(2), ("n", 2)),
            (ShardingStrategy.stacked_qkv(2, 4, 2), (8, 3)),
            (ShardingStrategy.head_aware_columnwise(2, 3, 2), (4, 8)),
            (ShardingStrategy.rowwise(2), ()),
        ],
    )
    def test_shapes_that_do_not_fit(self, strategy: ShardingStrategy, shape: Any) -> None:
        with pytest.raises(ValueError, match="axis"):
            weight(strategy, shape).shard(gpus(2))

    def test_no_devices(self) -> None:
        for count in (0, -1):
            with pytest.raises(ValueError, match="at least one device"):
                ShardingStrategy.rowwise(count)

    def test_something_else_than_a_strategy(self) -> None:
        with pytest.raises(TypeError, match="ShardingStrategy; got a str"):
            weight("rowwise")


def test_properties_of_strategies() -> None:
    made = {
        "is_rowwise": ShardingStrategy.rowwise(2),
        "is_colwise": ShardingStrategy.columnwise(2),
        "is_replicate": ShardingStrategy.replicate(2),
        "is_stacked_qkv": ShardingStrategy.stacked_qkv(2, 4, 8),
        "is_head_aware_colwise": ShardingStrategy.head_aware_columnwise(2, 4, 8),
        "is_tensor_parallel": ShardingStrategy.tensor_parallel(2),
        "is_expert_parallel": ShardingStrategy.expert_parallel(2),
    }
    for name, strategy in made.items():
        assert strategy.num_devices == 2
        assert [other for other in made if getattr(strategy, other)] == [name]
    assert ShardingStrategy.rowwise(2) == ShardingStrategy.rowwise(2) != ShardingStrategy.rowwise(3)
    assert not any(getattr(ShardingStrategy(2, lambda w, i: w), name) for name in made)


class Scale(Module):
    """A norm for these tests: replicated."""

    def __init__(self, size: int) -> None:
        self.scale = Weight("scale", DType.float32, [size], HOST)

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        return self.scale.sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        assert strategy.is_replicate
        self.scale.sharding_strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[Scale]:
        shards = []
        for part in self.scale.shard(devices):
            shard = copy.copy(self)
            shard.scale = part
            shards.append(shard)
        return shards

    def __call__(self, x: TensorValue) -> TensorValue:
        return x * self.scale


class MLP(Module):
    """An MLP for these tests, of which each device has some of the hidden elements."""

    def __init__(self, size: int, hidden: int) -> None:
        self.up = Weight("up", DType.float32, [hidden, size], HOST)
        self.down = Weight("down", DType.float32, [size, hidden], HOST)
        self._strategy: ShardingStrategy | None = None

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        assert strategy.is_tensor_parallel
        self._strategy = strategy
        self.up.sharding_strategy = ShardingStrategy.rowwise(strategy.num_devices)
        self.down.sharding_strategy = ShardingStrategy.columnwise(strategy.num_devices)

    def shard(self, devices: Iterable[DeviceRef]) -> list[MLP]:
        devices, shards = list(devices), []
        for up, down in zip(self.up.shard(devices), self.down.shard(devices)):
            shard = copy.copy(self)
            shard.up, shard.down = up, down
            shards.append(shard)
        return shards

    def __call__(self, x: TensorValue) -> TensorValue:
        up, down = (w.to(x.device) for w in (self.up, self.down))
        return ops.relu(x @ up.T) @ down.T


class TestDistributedTransformerBlock:
    @pytest.mark.parametrize("count", [2, 3])
    @pytest.mark.parametrize("form", ["x", "layer and x", "keywords"])
    def test_it_is_the_block_of_one_device(self, count: int, form: str) -> None:
        devices = gpus(count)
        parts = MLP(4, 7), Scale(4), Scale(4)
        seen: list[Any] = []

        def attention(*args: Any, **kwargs: Any) -> list[TensorValue]:
            seen.append((len(args), kwargs))
            xs = next(value for value in args if isinstance(value, list))
            return [ops.softmax(x) for x in xs]

        block = DistributedTransformerBlock(attention, *parts, devices=devices)
        single = TransformerBlock(ops.softmax, *parts)
        names = ["mlp.up", "mlp.down", "input_layernorm.scale", "post_attention_layernorm.scale"]
        assert list(block.state_dict()) == list(single.state_dict()) == names
        values = {name: floats(*value.shape) for name, value in block.state_dict().items()}
        block.load_state_dict(values)
        x = floats(3, 4)
        kind = TensorType(DType.float32, ["n", 4], HOST)
        with Graph("single", input_types=[kind]) as graph:
            graph.output(single(graph.inputs[0]))
        (want,) = run(graph, [x], **block.state_dict())
        signals = [BufferType(DType.uint8, [1], device) for device in devices]
        with Graph("distributed", input_types=[kind, *signals]) as graph:
            value, *buffers = graph.inputs
            xs, signal_buffers = distribute_value(value.tensor, devices), [buffer.buffer for buffer in buffers]
            if form == "x":
                graph.output(*block(xs, signal_buffers, "mask", scale=2))
                assert seen == [(3, {"scale": 2})]
            elif form == "layer and x":
                graph.output(*block(0, xs, signal_buffers, "mask", scale=2))
                assert seen == [(4, {"scale": 2})]
            else:
                graph.output(*block(layer_idx=0, xs=xs, signal_buffers=signal_buffers, scale=2))
                assert seen == [(3, {"scale": 2})]
        outputs = run(graph, [x, *[np.zeros(1, np.uint8)] * count], **block.state_dict())
        assert len(outputs) == count
        for out in outputs:
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)

    def test_protocols(self) -> None:
        assert isinstance(MLP(2, 2), Shardable) and isinstance(MLP(2, 2), ShardableCallable)
        assert isinstance(weight(), Shardable) and not isinstance(weight(), ShardableCallable)


def test_forward_sharded_layers() -> None:
    assert forward_sharded_layers([abs, float], [-1, 2]) == [1, 2.0]  # type: ignore[list-item]
    with pytest.raises(AssertionError, match=r"Number of layers \(1\) must match number of inputs \(2\)"):
        forward_sharded_layers([abs], [1, 2])  # type: ignore[list-item]


def test_take() -> None:
    items: Iterator[Any] = iter(range(5))
    assert take(items, 2) == [0, 1]
    assert take(items, 0) == []
    assert take(items, 9) == [2, 3, 4]
