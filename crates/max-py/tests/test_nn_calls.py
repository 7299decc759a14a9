"""Calls of layers: hooks, lists of layers and transformer blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.graph import Graph, TensorType, TensorValue, Weight, ops
from max.nn import Layer, LayerList, Module, ReturnLogits, Sequential, TransformerBlock
from max.nn.layer import add_layer_hook, clear_hooks

from helpers import CPU, assert_close, build, tensor

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Scale(Module):
    def __init__(self, size: int = 3) -> None:
        self.scale = Weight("scale", DType.float32, [size], CPU)

    def __call__(self, x: TensorValue) -> TensorValue:
        return x * self.scale


def run(session: Any, module: Module, x: np.ndarray) -> np.ndarray:
    graph = build(module, [TensorType(DType.float32, x.shape, CPU)])
    (out,) = session.load(graph, weights_registry=module.state_dict()).execute(x)
    return out.to_numpy()


class Increment(Module):
    def __call__(self, x: int, *, by: int = 1) -> int:
        return x + by


@pytest.fixture
def hooks() -> Iterator[None]:
    clear_hooks()
    yield
    clear_hooks()


@pytest.mark.usefixtures("hooks")
class TestHooks:
    def test_they_see_every_call(self) -> None:
        seen: list[Any] = []
        add_layer_hook(lambda *call: seen.append(call))
        layer = Increment()
        assert layer(1, by=2) == 3
        assert seen == [(layer, (1,), {"by": 2}, 3)]
        clear_hooks()
        layer(1)
        assert len(seen) == 1

    def test_inner_layers_come_first(self) -> None:
        seen: list[str] = []
        add_layer_hook(lambda layer, args, kwargs, outputs: seen.append(type(layer).__name__))
        assert Sequential([Increment(), Increment()])(1) == 3
        assert seen == ["Increment", "Increment", "Sequential"]

    def test_they_can_replace_outputs(self) -> None:
        add_layer_hook(lambda layer, args, kwargs, outputs: outputs * 10)
        add_layer_hook(lambda layer, args, kwargs, outputs: None)
        add_layer_hook(lambda layer, args, kwargs, outputs: outputs + 1)
        assert Increment()(1) == 21

    def test_once_in_a_hierarchy_of_classes(self) -> None:
        class Doubled(Increment):
            def __call__(self, x: int) -> int:  # type: ignore[override]
                return 2 * super().__call__(x)

        class Inherits(Doubled):
            pass

        class Aliased(Increment):
            __call__ = Increment.__call__

        for kind, want in ((Doubled, 4), (Inherits, 4), (Aliased, 2)):
            clear_hooks()
            seen: list[int] = []
            add_layer_hook(lambda layer, args, kwargs, outputs: seen.append(outputs))
            assert kind()(1) == want
            assert seen == [want]

    def test_a_layer_that_calls_itself(self) -> None:
        class Down(Module):
            def __call__(self, n: int) -> int:
                return 0 if n == 0 else 1 + self(n - 1)

        seen: list[int] = []
        add_layer_hook(lambda layer, args, kwargs, outputs: seen.append(outputs))
        assert Down()(2) == 2
        assert seen == [0, 1, 2]

    def test_old_layers(self) -> None:
        class Old(Layer):
            def __call__(self, x: int) -> int:
                return x + 1

        add_layer_hook(lambda layer, args, kwargs, outputs: outputs + 1)
        assert Old()(1) == 3
        assert Sequential([Old()])(1) == 4

    def test_they_survive_exceptions(self) -> None:
        def fails(*call: Any) -> None:
            raise KeyError("hook")

        seen: list[Any] = []
        add_layer_hook(lambda *call: seen.append(call))
        add_layer_hook(fails)
        for count in (1, 2):
            with pytest.raises(KeyError, match="hook"):
                Increment()(1)
            assert len(seen) == count
        with pytest.raises(TypeError):
            Increment()("text")
        assert len(seen) == 2


class TestLayerList:
    def test_it_is_a_list(self) -> None:
        a, b, c, d = (Scale() for _ in range(4))
        layers = LayerList([a])
        layers.append(c)
        layers.insert(1, b)
        layers.extend([d])
        assert list(layers) == [a, b, c, d] and len(layers) == 4
        assert layers[0] is a and layers[-1] is d and layers[1:3] == [b, c]
        assert list(layers.sublayers) == ["0", "1", "2", "3"]
        assert b in layers and layers.index(c) == 2
        layers[0], layers[1:3] = b, [a]
        del layers[2]
        assert list(layers) == [b, a]
        assert layers.pop() is a
        layers += [c]
        assert list(layers.sublayers.items()) == [("0", b), ("1", c)]
        with pytest.raises(IndexError):
            layers[2]

    def test_weights_follow_positions(self) -> None:
        layers = LayerList([Scale(), Scale(4)])
        layers.state_dict()
        layers.insert(0, Scale(5))
        assert [value.shape for value in layers.state_dict().values()] == [(5,), (3,), (4,)]
        assert layers[2].scale.name == "2.scale"

    def test_only_what_can_be_called(self) -> None:
        for layers in (lambda: LayerList([1]), lambda: LayerList([]).append("x"), lambda: LayerList([]).extend([2])):
            with pytest.raises(TypeError, match="called"):
                layers()

    def test_calls(self) -> None:
        assert LayerList([Increment(), Increment()])(1, by=5) == 7
        assert Sequential([])(3) == 3
        with pytest.raises(TypeError):
            Sequential([])(3, 4)

    def test_sequential(self, session) -> None:
        model = Sequential([Scale(), ops.relu, Scale()])
        assert list(model.state_dict()) == ["0.scale", "2.scale"]
        values = {"0.scale": floats(3), "2.scale": floats(3)}
        model.load_state_dict(values)
        x = floats(2, 3)
        assert_close(run(session, model, x), np.maximum(x * values["0.scale"], 0) * values["2.scale"], "float32")


class TestTransformerBlock:
    class Attention(Scale):
        """Stands for attention, and keeps its arguments."""

        def __call__(self, *args: Any, **kwargs: Any) -> TensorValue:
            self.seen = args, kwargs
            x = next(value for value in args if isinstance(value, TensorValue) and value.rank)
            return x * self.scale

    def block(self, factor: float = 1.0) -> TransformerBlock:
        return TransformerBlock(self.Attention(), Scale(), Scale(), Scale(), residual_multiplier=factor)

    @pytest.mark.parametrize("factor", [1.0, 0.5])
    def test_results(self, session, factor: float) -> None:
        block = self.block(factor)
        names = ["self_attn", "mlp", "input_layernorm", "post_attention_layernorm"]
        values = {f"{name}.scale": floats(3) for name in names}
        assert list(block.state_dict()) == list(values)
        block.load_state_dict(values)
        attention, mlp, norm, mlp_norm = values.values()
        x = floats(2, 3)
        want = x + factor * x * norm * attention
        want = want + factor * want * mlp_norm * mlp
        assert_close(run(session, block, x), want, "float32")

    def test_arguments_are_passed_on(self) -> None:
        block = self.block()
        block.state_dict()
        with Graph("g", input_types=[tensor("uint32"), tensor("float32", "n", 3)]) as graph:
            layer_idx, x = graph.inputs
            for args, kwargs, positional, keywords in [
                ((x,), {}, ["x"], {}),
                ((x, "mask"), {"scale": 2}, ["x", "mask"], {"scale": 2}),
                ((), {"x": x, "mask": 1}, ["x"], {"mask": 1}),
                ((layer_idx, x, "kv", "freqs", "offsets"), {}, ["layer", "x", "kv", "freqs", "offsets"], {}),
                ((3, x, "kv"), {"freqs_cis": "f"}, [3, "x", "kv"], {"freqs_cis": "f"}),
                ((), {"layer_idx": layer_idx, "x": x, "kv": 1}, ["layer", "x"], {"kv": 1}),
            ]:
                assert block(*args, **kwargs).shape == ["n", 3]
                seen, options = block.self_attn.seen
                shown = [
                    ("x" if a.rank else "layer") if isinstance(a, TensorValue) else a for a in seen
                ]
                assert (shown, options) == (positional, keywords)
            with pytest.raises(TypeError, match="'x'"):
                block()

    def test_return_logits(self) -> None:
        assert [kind.value for kind in ReturnLogits] == ["last_token", "variable", "all"]
        assert ReturnLogits("all") is ReturnLogits.ALL
