"""Modules: how they find their weights, load them, and record themselves as subgraphs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.experimental.tensor import Tensor
from max.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops
from max.graph.quantization import QuantizationEncoding, quantize
from max.graph.weights import WeightData
from max.nn import LayerList, Module, Sequential, Shardable
from max.nn.layer import recursive_named_layers

from helpers import CPU, assert_close, build, dtype_of, tensor, to_array, to_buffer

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Linear(Module):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = Weight("weight", DType.float32, [out_dim, in_dim], CPU)

    def __call__(self, x: TensorValue) -> TensorValue:
        return x @ self.weight.T


class MLP(Module):
    """Forgets to initialize its base class, as the documentation's example does."""

    def __init__(self) -> None:
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)

    def __call__(self, x: TensorValue) -> TensorValue:
        return self.down(ops.silu(self.gate(x)) + self.up(x))


class Scale(Module):
    def __init__(self, dtype: DType = DType.float32, shape: Any = (3,), name: str = "scale") -> None:
        self.scale = Weight(name, dtype, shape, CPU)

    def __call__(self, x: TensorValue) -> TensorValue:
        return x * self.scale


def mlp_values() -> dict[str, np.ndarray]:
    return {"up.weight": floats(10, 5), "gate.weight": floats(10, 5), "down.weight": floats(5, 10)}


def mlp(x: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
    gate = x @ values["gate.weight"].T
    return (gate / (1 + np.exp(-gate)) + x @ values["up.weight"].T) @ values["down.weight"].T


def run(session: Any, module: Module, x: np.ndarray, **options: Any) -> np.ndarray:
    values = module.state_dict(**options)
    graph = build(module, [TensorType(DType.from_numpy(x.dtype), x.shape, CPU)])
    return to_array(session.load(graph, weights_registry=values).execute(x)[0])


class TestTree:
    def test_the_documented_model(self, session) -> None:
        model, values = MLP(), mlp_values()
        assert list(model.state_dict()) == list(values)
        model.load_state_dict(values)
        assert model.gate.weight.name == "gate.weight"
        x = floats(2, 5)
        assert_close(run(session, model, x), mlp(x, values), "float32")

    def test_layers_and_weights(self) -> None:
        model = MLP()
        assert model.sublayers == {"up": model.up, "gate": model.gate, "down": model.down}
        assert model.layer_weights == {}
        assert model.up.layer_weights == {"weight": model.up.weight}
        assert list(model.raw_state_dict()) == ["up.weight", "gate.weight", "down.weight"]
        assert model.raw_state_dict()["up.weight"] is model.up.weight
        assert model.up.weight.name == "weight", "only state_dict and load_state_dict name weights"
        assert repr(model) == "MLP(3 layers, 0 weights)"

    def test_weights_have_the_names_they_came_with(self) -> None:
        class Named(Module):
            def __init__(self) -> None:
                self.table = Weight("embedding.table", DType.float32, [2], CPU)
                self.inner = Scale(name="gamma")

        assert list(Named().state_dict()) == ["embedding.table", "inner.gamma"]

    def test_two_weights_with_one_name_have_those_of_their_attributes(self) -> None:
        class Two(Module):
            def __init__(self) -> None:
                self.a = Weight("weight", DType.float32, [2], CPU)
                self.b = Weight("weight", DType.float32, [3], CPU)

        assert {name: value.shape for name, value in Two().state_dict().items()} == {"weight": (2,), "b": (3,)}

    def test_two_weights_with_one_path_are_refused(self) -> None:
        class Two(Module):
            def __init__(self) -> None:
                self.w = Weight("inner.scale", DType.float32, [2], CPU)
                self.inner = Scale()

        with pytest.raises(ValueError, match="inner.scale"):
            Two().state_dict()

    def test_attributes_can_change(self) -> None:
        model = MLP()
        model.up = Scale()
        del model.gate
        model.down.weight = None
        assert list(model.state_dict()) == ["up.scale"]

    def test_plain_lists_are_not_searched(self) -> None:
        class Lists(Module):
            def __init__(self) -> None:
                self.plain = [Scale()]
                self.layers = LayerList([Scale(), Scale()])

        assert list(Lists().state_dict()) == ["layers.0.scale", "layers.1.scale"]

    def test_a_module_that_is_used_twice_counts_once(self) -> None:
        class Twice(Module):
            def __init__(self) -> None:
                self.a = self.b = Scale()

        assert list(Twice().state_dict()) == ["a.scale"]
        assert [path for path, _ in recursive_named_layers(Twice())] == ["", "a"]

    def test_cycles(self) -> None:
        class Child(Scale):
            parent: Module

        class Parent(Module):
            def __init__(self) -> None:
                self.me = self
                self.child = Child()
                self.child.parent = self

        model = Parent()
        assert list(model.state_dict()) == ["child.scale"]
        assert [path for path, _ in recursive_named_layers(model, "p")] == ["p", "p.child"]

    def test_deep_trees(self) -> None:
        class Wrap(Module):
            def __init__(self, inner: Module) -> None:
                self.inner = inner

        model: Module = Scale()
        for _ in range(3000):
            model = Wrap(model)
        (name,) = model.state_dict()
        assert name.count("inner") == 3000

    def test_named_layers_come_before_those_below_them(self) -> None:
        model = Sequential([MLP(), Scale()])
        paths = [path for path, _ in recursive_named_layers(model)]
        assert paths == ["", "0", "0.up", "0.gate", "0.down", "1"]

    def test_a_module_without_call(self) -> None:
        with pytest.raises(NotImplementedError, match="Module"):
            Module()(1)

    def test_copies(self, session) -> None:
        model, values = MLP(), mlp_values()
        model.load_state_dict(values)
        shallow = copy.copy(model.up)
        shallow.weight = Weight("another", DType.float32, [2], CPU)
        assert list(shallow.layer_weights) == ["another"]
        assert list(model.up.layer_weights) == ["weight"]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other.up.weight is not model.up.weight
            x = floats(2, 5)
            assert_close(run(session, other, x), mlp(x, values), "float32")


class TestSharedWeights:
    def test_one_weight_by_two_paths(self, session) -> None:
        model = Sequential([Scale(), Scale()])
        model[1].scale = model[0].scale
        assert list(model.state_dict()) == ["0.scale"]
        values = floats(3)
        for given in (
            {"0.scale": values},
            {"1.scale": values},
            {"0.scale": values, "1.scale": values.copy()},
        ):
            model.load_state_dict(given)
            assert model[1].scale.name == "0.scale"
            x = floats(2, 3)
            assert_close(run(session, model, x), x * values * values, "float32")

    def test_set_shared_weight(self, session) -> None:
        model = Sequential([Scale(), Scale()])
        model[0].set_shared_weight("scale", model[1].scale)
        assert model[0].scale is model[1].scale
        assert model[0].layer_weights == {"scale": model[1].scale}
        assert list(model.raw_state_dict()) == ["1.scale"], "the path of the owner"
        values, x = floats(3), floats(2, 3)
        model.load_state_dict({"1.scale": values})
        assert_close(run(session, model, x), x * values * values, "float32")
        with pytest.raises(ValueError, match="Unexpected keys.*0.scale"):
            model.load_state_dict({"0.scale": values, "1.scale": values})
        with pytest.raises(TypeError, match="Weight"):
            model[0].set_shared_weight("scale", 3)

    def test_a_weight_of_its_own_again(self) -> None:
        model = Sequential([Scale(), Scale()])
        model[0].set_shared_weight("scale", model[1].scale)
        model[0].scale = Weight("scale", DType.float32, [3], CPU)
        assert list(model.state_dict()) == ["0.scale", "1.scale"]


class TestStateDict:
    @pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float16", "bfloat16", "float8_e4m3fn"])
    def test_zeros(self, dtype: str) -> None:
        model = Scale(dtype_of(dtype))
        value = model.state_dict()["scale"]
        buffer = value if isinstance(value, Buffer) else Buffer.from_numpy(value)
        assert (buffer.dtype, tuple(buffer.shape)) == (dtype_of(dtype), (3,))
        assert not to_array(buffer).any()
        assert model.state_dict(auto_initialize=False)["scale"] is value

    def test_without_zeros(self) -> None:
        model = Sequential([Scale(), Scale()])
        with pytest.raises(ValueError, match="Weight '0.scale' was not initialized"):
            model.state_dict(auto_initialize=False)
        model.load_state_dict({"0.scale": floats(3)}, strict=False)
        with pytest.raises(ValueError, match="Weight '1.scale' was not initialized"):
            model.state_dict(auto_initialize=False)

    def test_zeros_need_sizes(self) -> None:
        with pytest.raises(ValueError, match="scale.*static"):
            Scale(shape=["n"]).state_dict()

    def test_values_are_the_given_objects(self) -> None:
        model, values = MLP(), mlp_values()
        model.load_state_dict(values)
        state = model.state_dict()
        assert all(state[name] is values[name] for name in values)
        assert model.up.state_dict(auto_initialize=False)["weight"] is values["up.weight"]

    def test_attributes_can_be_changed_before_a_graph_is_built(self, session) -> None:
        model = Scale()
        model.state_dict()
        weight = model.raw_state_dict()["scale"]
        weight.dtype, weight.shape, weight.align = DType.float64, [2, 1], 8
        weight.quantization_encoding = None
        assert weight.original_dtype_and_shape == (DType.float64, [2, 1])
        assert model.state_dict()["scale"].shape == (2, 1)
        values, x = np.array([[2.0], [3.0]]), RNG.standard_normal((2, 4))
        model.load_state_dict({"scale": values})
        assert_close(run(session, model, x), x * values, "float64")


def as_torch_does(array: np.ndarray) -> Any:
    """An array of another library: it only supports DLPack."""

    class Foreign:
        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return array.__dlpack_device__()

    return Foreign()


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda array: array,
    "strided": lambda array: np.repeat(array, 2)[::2],
    "buffer": Buffer.from_numpy,
    "foreign": as_torch_does,
    "tensor": Tensor,
    "weight data": lambda array: WeightData.from_numpy(array, "scale"),
    "weight data of a buffer": lambda array: WeightData(
        Buffer.from_numpy(array), "scale", DType.float32, list(array.shape)
    ),
    "strided weight data": lambda array: WeightData.from_numpy(np.repeat(array, 2)[::2], "scale"),
}


class TestLoad:
    @pytest.mark.parametrize("kind", KINDS)
    def test_kinds_of_values(self, session, kind: str) -> None:
        model, values, x = Scale(), floats(3), floats(2, 3)
        given = KINDS[kind](values)
        model.load_state_dict({"scale": given})
        assert model.state_dict()["scale"] is given
        assert_close(run(session, model, x), x * values, "float32")

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_dtypes_that_numpy_lacks(self, session, dtype: str, wrapped: bool) -> None:
        class Read(Scale):
            def __call__(self, x: TensorValue) -> TensorValue:
                return x * self.scale.cast(DType.float32)

        model, values, x = Read(dtype_of(dtype)), np.array([0.5, 2, -1], dtype=np.float32), floats(2, 3)
        given: Any = to_buffer(values, dtype)
        if wrapped:
            given = WeightData.from_numpy(values, "scale").astype(dtype_of(dtype))
        model.load_state_dict({"scale": given})
        assert_close(run(session, model, x), x * values, "float32")
        with pytest.raises(ValueError, match=f"scale.*{dtype}.*float32"):
            model.load_state_dict({"scale": values})

    def test_quantized_weights(self, session) -> None:
        encoding = QuantizationEncoding.Q8_0

        class Quantized(Module):
            def __init__(self) -> None:
                self.weight = Weight("weight", DType.uint8, [4, 68], CPU, quantization_encoding=encoding)

            def __call__(self, x: TensorValue) -> TensorValue:
                return ops.qmatmul(encoding, None, x, self.weight)

        model, x = Quantized(), floats(2, 64)
        blocks = quantize(encoding, floats(4, 64))
        results = []
        for given in (blocks, WeightData(blocks, "weight", DType.uint8, [4, 68], encoding)):
            model.load_state_dict({"weight": given})
            results.append(run(session, model, x))
        np.testing.assert_array_equal(*results)
        assert results[0].any()

    def test_the_encoding_of_a_value(self) -> None:
        model = Scale(DType.uint8, [4, 144])
        blocks = np.zeros((4, 210), dtype=np.uint8)
        given = {"scale": WeightData(blocks, "scale", DType.uint8, [4, 210], QuantizationEncoding.Q6_K)}
        with pytest.raises(ValueError, match="scale.*encoding"):
            model.load_state_dict(given)
        model.load_state_dict(given, override_quantization_encoding=True)
        assert model.scale.quantization_encoding is QuantizationEncoding.Q6_K
        assert model.scale.shape == [4, 210]
        assert model.state_dict()["scale"] is given["scale"]

    def test_symbolic_dims_accept_any_size(self, session) -> None:
        model = Scale(shape=["n"])
        for size in (3, 1):
            model.load_state_dict({"scale": np.full(size, 2, dtype=np.float32)})
        with pytest.raises(ValueError, match="scale"):
            model.load_state_dict({"scale": floats(3, 1)})

    def test_one_error_names_everything_that_is_wrong(self) -> None:
        model = Sequential([MLP(), Scale(), Scale()])
        values: dict[str, Any] = {f"0.{name}": value for name, value in mlp_values().items()}
        values["1.scale"] = floats(3)
        values["2.scale"] = floats(3)
        good = dict(values)
        values["0.up.weight"] = values["0.up.weight"].T.copy()
        values["0.gate.wieght"] = values.pop("0.gate.weight")
        values["1.scale"] = values["1.scale"].astype(np.float64)
        values["3.bias"] = "not even an array"
        del values["2.scale"]
        with pytest.raises(ValueError) as caught:
            model.load_state_dict(values)
        message = str(caught.value)
        assert "Missing required weights" in message
        assert "Unexpected keys in state_dict" in message
        for part in ("0.gate.weight", "did you mean '0.gate.wieght'", "2.scale", "3.bias"):
            assert part in message
        lines = message.splitlines()
        assert any("0.up.weight" in line and "[10, 5]" in line and "[5, 10]" in line for line in lines)
        assert any("1.scale" in line and "float32" in line and "float64" in line for line in lines)
        assert "0.down.weight" not in message
        with pytest.raises(ValueError, match="not initialized"):
            model.state_dict(auto_initialize=False)
        model.load_state_dict(good)

    def test_nothing_is_loaded_if_anything_is_wrong(self) -> None:
        model = Sequential([Scale(), Scale()])
        before = {"0.scale": floats(3), "1.scale": floats(3)}
        model.load_state_dict(before)
        with pytest.raises(ValueError, match="1.scale"):
            model.load_state_dict({"0.scale": floats(3), "1.scale": floats(4)})
        assert model.state_dict()["0.scale"] is before["0.scale"]

    def test_not_strict(self) -> None:
        model = Sequential([Scale(), Scale()])
        model.load_state_dict({"0.scale": floats(3), "1.scale": floats(3)})
        old, new = model.state_dict()["1.scale"], floats(3)
        model.load_state_dict({"0.scale": new, "7.scale": object()}, strict=False)
        assert model.state_dict()["0.scale"] is new
        assert model.state_dict()["1.scale"] is old
        with pytest.raises(ValueError, match="0.scale"):
            model.load_state_dict({"0.scale": floats(4)}, strict=False)

    def test_alignment(self, session) -> None:
        data = np.zeros(13, dtype=np.uint8)[1:].view(np.float32)
        model = Scale()
        for given in (data, WeightData.from_numpy(data, "scale")):
            with pytest.raises(ValueError, match="Found unaligned weight 'scale'.*weight_alignment=1"):
                model.load_state_dict({"scale": given})
        model.load_state_dict({"scale": data}, weight_alignment=1)
        assert model.scale.align == 1
        x = floats(2, 3)
        assert_close(run(session, model, x), x * 0, "float32")

    def test_something_else_than_an_array(self) -> None:
        with pytest.raises(TypeError, match="scale.*str"):
            Scale().load_state_dict({"scale": "zeros"})

    def test_a_shared_name_of_weights_without_a_state_dict(self) -> None:
        model = Sequential([Scale(), Scale()])
        with pytest.raises(ValueError, match="already exists"):
            build(model, [tensor("float32", 2, 3)])
        model.state_dict()
        build(model, [tensor("float32", 2, 3)])


class TestSubgraphs:
    def layers(self, count: int) -> tuple[Sequential, dict[str, np.ndarray]]:
        model = Sequential([MLP() for _ in range(count)])
        values = {f"{k}.{name}": value / 4 for k in range(count) for name, value in mlp_values().items()}
        model.load_state_dict(values)
        return model, values

    def test_repeated_layers(self, session) -> None:
        model, _ = self.layers(3)
        kind = tensor("float32", "n", 5)
        with Graph("repeated", input_types=[kind]) as graph:
            layer = model[0].build_subgraph("layer", [kind], weight_prefix="0.")
            (x,) = graph.inputs
            for k in range(3):
                (x,) = ops.call(layer, x, prefix=f"{k}.")
            graph.output(x)
        assert model[0].up.weight.name == "0.up.weight"
        x = floats(4, 5)
        (out,) = session.load(graph, weights_registry=model.state_dict()).execute(x)
        np.testing.assert_array_equal(out.to_numpy(), run(session, model, x))

    def test_without_a_prefix(self, session) -> None:
        model, values = self.layers(2)
        kind = tensor("float32", 4, 5)
        with Graph("g", input_types=[kind]) as graph:
            (x,) = graph.inputs
            for k in range(2):
                (x,) = ops.call(model[k].build_subgraph(f"layer{k}", [kind]), x)
            graph.output(x)
        x = floats(4, 5)
        (out,) = session.load(graph, weights_registry=values).execute(x)
        np.testing.assert_array_equal(out.to_numpy(), run(session, model, x))

    def test_other_weights_keep_their_names(self, session) -> None:
        class Block(Scale):
            def __init__(self, common: Weight) -> None:
                super().__init__()
                self.set_shared_weight("common", common)

            def __call__(self, x: TensorValue) -> TensorValue:
                return x * self.scale + self.common

        class Model(Module):
            def __init__(self) -> None:
                self.common = Weight("common", DType.float32, [3], CPU)
                self.blocks = LayerList([Block(self.common), Block(self.common)])

        model = Model()
        values = {"common": floats(3), "blocks.0.scale": floats(3), "blocks.1.scale": floats(3)}
        model.load_state_dict(values)
        kind = tensor("float32", 3)
        with Graph("g", input_types=[kind]) as graph:
            block = model.blocks[0].build_subgraph("block", [kind], weight_prefix="blocks.0.")
            (x,) = ops.call(block, graph.inputs[0], prefix="blocks.0.")
            graph.output(*ops.call(block, x + model.common, prefix="blocks.1."))
        x, common = floats(3), values["common"]
        want = (x * values["blocks.0.scale"] + common + common) * values["blocks.1.scale"] + common
        (out,) = session.load(graph, weights_registry=model.state_dict()).execute(x)
        assert_close(out.to_numpy(), want, "float32")

    def test_lists_of_inputs_and_of_outputs(self, session) -> None:
        class Several(Module):
            def __call__(self, x: Any, pair: Any) -> Any:
                a, b = pair
                return x + a, [x + b]

        kind = tensor("float32", 3)
        with Graph("g", input_types=[kind] * 3) as graph:
            part = Several().build_subgraph("part", [kind, [kind, kind]])
            graph.output(*ops.call(part, *graph.inputs))
        x, a, b = floats(3), floats(3), floats(3)
        outputs = session.load(graph).execute(x, a, b)
        for out, want in zip(outputs, [x + a, x + b]):
            np.testing.assert_array_equal(out.to_numpy(), want)

    def test_names_come_back_after_an_error(self) -> None:
        class Fails(Scale):
            def __call__(self, x: Any) -> Any:
                raise RuntimeError("no")

        model = Sequential([Fails()])
        model.state_dict()
        with Graph("g"), pytest.raises(RuntimeError, match="no"):
            model[0].build_subgraph("part", [tensor("float32", 3)], weight_prefix="0.")
        assert model[0].scale.name == "0.scale"

    def test_outside_a_graph(self) -> None:
        with pytest.raises(LookupError):
            Scale().build_subgraph("part", [tensor("float32", 3)])


def test_weights_are_shardable() -> None:
    assert isinstance(Weight("w", DType.float32, [2], DeviceRef.CPU()), Shardable)
    assert not isinstance(Scale(), Shardable)
