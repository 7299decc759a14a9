"""Modules: names, parameters, state dicts, devices and reprs."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.nn import (
    Conv2d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Module,
    ModuleList,
    RMSNorm,
    RotaryEmbedding,
    Sequential,
    module_dataclass,
)
from max.experimental.realization_context import lazy
from max.experimental.tensor import Tensor
from max.graph import Dim

from helpers import address, tensor, to_buffer

# The example of the documentation, verbatim.
PAGE = '''
from max.experimental import functional as F
from max.experimental.nn import Module, module_dataclass
from max.experimental.tensor import Tensor
@module_dataclass
class MyLayer(Module):
    weight: Tensor
    bias: Tensor
    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias
'''


def array(*shape: int, dtype: Any = np.float32, start: float = 0.0) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) * 0.25 + start).astype(dtype).reshape(shape)


class Block(Module):
    def __init__(self, dim: int) -> None:
        self.norm = RMSNorm(dim)
        self.scale = Tensor.ones([dim])
        self.up = Linear(dim, 2 * dim, bias=False)
        self.down = Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x)))) * self.scale


class Model(Module):
    def __init__(self) -> None:
        self.tokens = Embedding(10, dim=4)
        self.layers = ModuleList([Block(4), Block(4)])
        self.head = Sequential(LayerNorm(4), Linear(4, 10))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def names(pairs: Any) -> list[str]:
    return [name for name, _ in pairs]


def values(module: Module) -> dict[str, np.ndarray]:
    return {name: tensor.to_numpy().copy() for name, tensor in module.parameters}


def state_of(module: Module, start: float = 1.0) -> dict[str, np.ndarray]:
    """New values for all parameters."""
    return {name: array(*map(int, tensor.shape), start=start) for name, tensor in module.parameters}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


# --- the tree -------------------------------------------------------------------------------------


def test_the_example_of_the_documentation() -> None:
    namespace: dict[str, Any] = {}
    exec(PAGE, namespace)
    weight, bias, x = array(3, 2), array(3, start=-1), array(5, 2)
    layer = namespace["MyLayer"](Tensor(weight), bias=Tensor(bias))
    np.testing.assert_allclose(layer(Tensor(x)).to_numpy(), x @ weight.T + bias, rtol=1e-6)
    assert layer(Tensor(x)).real
    assert names(layer.parameters) == ["weight", "bias"]
    assert repr(layer) == "MyLayer(weight=float32[3, 2], bias=float32[3])"
    with pytest.raises(TypeError, match="bias"):
        namespace["MyLayer"](Tensor(weight))


def test_names_of_a_tree() -> None:
    model = Model()
    block = ["scale", "norm.weight", "up.weight", "down.weight", "down.bias"]
    assert names(model.parameters) == [
        "tokens.weight",
        *(f"layers.0.{name}" for name in block),
        *(f"layers.1.{name}" for name in block),
        *("head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias"),
    ]
    assert names(model.local_parameters) == []
    assert names(model.children) == ["tokens", "layers", "head"]
    assert names(model.layers[0].local_parameters) == ["scale"]
    assert names(model.layers[0].children) == ["norm", "up", "down"]
    inside = ["norm", "up", "down"]
    assert names(model.descendants) == [
        *("tokens", "layers", "layers.0", *(f"layers.0.{name}" for name in inside)),
        *("layers.1", *(f"layers.1.{name}" for name in inside)),
        *("head", "head.0", "head.1"),
    ]
    found = dict(model.descendants)
    assert found["layers.1.up"] is model.layers[1].up
    assert dict(model.parameters)["layers.1.up.weight"] is model.layers[1].up.weight


def test_other_attributes_are_not_parameters() -> None:
    class Odd(Module):
        def __init__(self) -> None:
            self.hidden = [Linear(1, 1)]
            self.array = np.ones(3)
            self.number = 3
            self._private = Tensor.ones([1])

    odd = Odd()
    assert names(odd.parameters) == ["_private"]
    assert names(odd.descendants) == []
    with pytest.raises(NotImplementedError, match="Odd"):
        odd(1)


def test_shared_parameters_have_all_their_names() -> None:
    shared = Linear(2, 2, bias=False)
    both = Sequential(shared, shared)
    assert names(both.parameters) == ["0.weight", "1.weight"]
    other = Linear(2, 2, bias=False)
    other.weight = shared.weight
    assert names(Sequential(shared, other).parameters) == ["0.weight", "1.weight"]


def test_a_cycle_is_an_error() -> None:
    outer, inner = Module(), Module()
    outer.inner, inner.outer = inner, outer
    for walk in ("parameters", "descendants"):
        with pytest.raises(ValueError, match=r"inner\.outer.*inside itself"):
            list(getattr(outer, walk))
    itself = ModuleList()
    itself.append(itself)
    with pytest.raises(ValueError, match="inside itself"):
        list(itself.descendants)
    assert "..." in repr(outer)
    assert "..." in repr(itself)


def test_transparent_names() -> None:
    class Wrapper(Module):
        name_transparent = True

        def __init__(self, inner: Module) -> None:
            self.inner = inner
            self.gain = Tensor.ones([1])

    class Outer(Module):
        def __init__(self) -> None:
            self.wrapped = Wrapper(Linear(2, 3, bias=False))

    outer = Outer()
    assert names(outer.parameters) == ["gain", "inner.weight"]
    assert names(outer.descendants) == ["wrapped", "inner"]
    outer.load_state_dict({"gain": array(1), "inner.weight": array(3, 2)})
    np.testing.assert_array_equal(outer.wrapped.inner.weight.to_numpy(), array(3, 2))
    outer.second = Wrapper(Linear(2, 3, bias=False))
    with pytest.raises(ValueError, match="two parameters of Outer are called 'gain'"):
        list(outer.parameters)


def test_module_list_is_a_list() -> None:
    layers = ModuleList(Linear(1, size) for size in (1, 2, 3))
    assert isinstance(layers, list) and isinstance(layers, Module)
    assert [layer.out_dim for layer in layers] == [1, 2, 3]
    assert layers[-1].out_dim == 3
    layers.insert(0, RMSNorm(1))
    del layers[1]
    assert names(layers.children) == ["0", "1", "2"]
    assert isinstance(layers[1:], ModuleList) and len(layers[1:]) == 2
    stack = Sequential(Linear(1, 2), Linear(2, 3))
    assert isinstance(stack[:1], Sequential) and stack[:1][0] is stack[0]
    assert len(ModuleList()) == 0
    layers.extra = Linear(1, 1, bias=False)
    assert names(layers.children) == ["0", "1", "2", "extra"]
    with pytest.raises(TypeError, match="item 1 is of type str"):
        ModuleList([Linear(1, 1), "no"])


def test_dataclasses() -> None:
    @module_dataclass
    class Pair(Module):
        left: Linear
        right: Linear
        times: int = 2

        def __post_init__(self) -> None:
            self.scale = Tensor.ones([1])

        def forward(self, x: Tensor) -> Tensor:
            return (self.left(x) + self.right(x)) * self.scale * self.times

    pair = Pair(right=Linear(2, 2), left=Linear(2, 2))
    assert names(pair.children) == ["left", "right"]
    assert names(pair.local_parameters) == ["scale"]
    assert pair != Pair(pair.left, pair.right) and pair == pair
    assert len({pair, pair}) == 1

    @module_dataclass(repr=True, kw_only=True)
    class Shown(Module):
        size: int

    assert repr(Shown(size=3)).endswith("Shown(size=3)")
    with pytest.raises(TypeError):
        Shown(3)


def test_modules_are_generic_in_their_signature() -> None:
    class Doubled(Module[[Tensor], Tensor]):
        def __init__(self) -> None:
            self.scale = Tensor([2.0])

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    class Several(Module[[Tensor, int], tuple[Tensor, ...]]):
        def forward(self, x: Tensor, times: int) -> tuple[Tensor, ...]:
            return (x,) * times

    doubled = Doubled()
    assert names(doubled.parameters) == ["scale"] and doubled(Tensor([3.0])).item() == 6
    assert doubled.compile(tensor("float32", 1))(Tensor([3.0])).item() == 6
    assert len(Several()(Tensor([1.0]), times=2)) == 2
    assert issubclass(Linear, Module) and isinstance(pickle.loads(pickle.dumps(Linear(2, 3))), Linear)


def test_the_sizes_of_layers_are_dims() -> None:
    linear, table = Linear(2, 3), Embedding(7, dim=4)
    assert all(isinstance(dim, Dim) for dim in (linear.in_dim, linear.out_dim, table.vocab_size, table.dim))
    after = Sequential(Linear(linear.out_dim, table.dim), RMSNorm(table.dim), LayerNorm(table.dim))
    assert after(linear(Tensor.ones([2]))).shape == [4]
    assert Embedding(table.vocab_size, dim=linear.in_dim).dims == [2]


def test_repr_of_a_module_with_its_own_rich_repr() -> None:
    class Shown(Module):
        def __rich_repr__(self):
            yield 1
            yield (2,)
            yield "three", 3
            yield "four", 4, 4
            yield "five", 5, 4

    assert repr(Shown()) == "Shown(1, 2, three=3, five=5)"


def test_repr_of_a_tree() -> None:
    assert repr(Linear(2, 3)) == "Linear(in_dim=Dim(2), out_dim=Dim(3))"
    assert repr(Linear(2, 3, bias=False)) == "Linear(in_dim=Dim(2), out_dim=Dim(3), bias=False)"
    assert repr(Embedding(5, dims=[2, 3])) == "Embedding(vocab_size=Dim(5), dims=[Dim(2), Dim(3)])"
    assert repr(RMSNorm(3, eps=0.5)) == "RMSNorm(dim=Dim(3), eps=0.5)"
    assert repr(LayerNorm(3, use_bias=False)) == "LayerNorm(dim=3, use_bias=False)"
    assert repr(LayerNorm(3, elementwise_affine=False)) == "LayerNorm(dim=3, elementwise_affine=False)"
    assert repr(GroupNorm(2, 4, affine=False)) == "GroupNorm(num_groups=2, num_channels=4, affine=False)"
    lines = repr(Model()).splitlines()
    assert lines[0] == "Model("
    assert lines[1] == "    tokens=Embedding(vocab_size=Dim(10), dim=Dim(4)),"
    assert lines[2] == "    layers=ModuleList("
    assert lines[3] == "        Block("
    assert lines[-1] == ")"
    with lazy():
        big = Linear(50_000, 50_000)
    assert repr(big) == "Linear(in_dim=Dim(50000), out_dim=Dim(50000))"
    assert not big.weight.real


def test_lazy_layers_cost_nothing() -> None:
    with lazy():
        big = Linear(50_000, 50_000)
        model = Sequential(Embedding(1_000_000, dim=10_000), big)
    assert [tensor.real for _, tensor in model.parameters] == [False] * 3
    assert big.in_dim == big.out_dim == 50_000
    with lazy():
        small = Linear(2, 3)
    state = state_of(small)
    small.load_state_dict(state)
    assert_same(values(small), state)


def test_device_and_to() -> None:
    model = Model()
    assert model.device == CPU()
    assert Module().device == CPU()
    before = dict(model.parameters)
    assert model.to(CPU()) is model
    assert all(tensor is before[name] for name, tensor in model.parameters)


def test_modules_can_be_copied() -> None:
    model = Model()
    other = copy.deepcopy(model)
    other.load_state_dict(state_of(other))
    assert not np.array_equal(other.tokens.weight.to_numpy(), model.tokens.weight.to_numpy())
    assert names(other.parameters) == names(model.parameters)
    again = pickle.loads(pickle.dumps(model))
    assert_same(values(again), values(model))
    tokens = Tensor(np.array([[1, 2, 3]]))
    np.testing.assert_array_equal(again(tokens).to_numpy(), model(tokens).to_numpy())
    head = copy.copy(model.head)
    assert type(head) is Sequential and head is not model.head and head[1] is model.head[1]


# --- state dicts ----------------------------------------------------------------------------------


def test_load_values_of_all_kinds() -> None:
    class Many(Module):
        def __init__(self) -> None:
            self.tensor, self.buffer, self.numpy, self.dlpack, self.turned = (Tensor.zeros([2, 3]) for _ in range(5))

    class Exporter:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    many = Many()
    expected = {name: array(2, 3, start=at) for at, name in enumerate(names(many.parameters))}
    tensor = Tensor(expected["tensor"].copy())
    sources = {name: value.copy() for name, value in expected.items()}
    many.load_state_dict(
        {
            "tensor": tensor,
            "buffer": Buffer.from_numpy(sources["buffer"]),
            "numpy": sources["numpy"],
            "dlpack": Exporter(sources["dlpack"]),
            "turned": np.asfortranarray(sources["turned"]),
        }
    )
    assert_same(values(many), expected)
    assert many.tensor is tensor
    for name in ("buffer", "numpy", "dlpack"):  # the same memory
        assert address(getattr(many, name).to_numpy()) == address(sources[name])


def test_loaded_memory_stays_alive() -> None:
    linear = Linear(100, 100, bias=False)
    linear.load_state_dict({"weight": array(100, 100)})
    gc.collect()
    _ = [array(100, 100, start=7) for _ in range(10)]
    np.testing.assert_array_equal(linear.weight.to_numpy(), array(100, 100))


@pytest.mark.parametrize("state", [None, [("weight", 1)], (pair for pair in ()), 3])
def test_load_refuses_other_states(state: Any) -> None:
    with pytest.raises(TypeError, match=r"expected values by name, or a function that finds them; got \w+"):
        Linear(2, 1).load_state_dict(state)
    if state is not None:
        with pytest.raises(TypeError, match="expected values by name"):
            Linear(2, 1).compile(tensor("float32", 2), weights=state)


def test_load_from_a_function() -> None:
    model = Model()
    state = state_of(model)
    asked = []

    def lookup(name: str) -> np.ndarray:
        asked.append(name)
        return state[name]

    model.load_state_dict(lookup)
    assert asked == names(model.parameters)
    assert_same(values(model), state)
    del state["layers.0.scale"]
    with pytest.raises(ValueError, match=r"Missing required weights.*layers\.0\.scale"):
        model.load_state_dict(lookup)
    model.load_state_dict(lookup, strict=False)


def test_strict_and_not() -> None:
    linear = Linear(2, 3)
    before = values(linear)
    with pytest.raises(ValueError, match="Unexpected keys in state_dict: extra, more"):
        linear.load_state_dict({**state_of(linear), "extra": array(1), "more": array(1)})
    with pytest.raises(ValueError, match=r"Missing required weights.*bias"):
        linear.load_state_dict({"weight": array(3, 2)})
    assert_same(values(linear), before)
    linear.load_state_dict({"weight": array(3, 2), "extra": array(1)}, strict=False)
    assert_same(values(linear), {**before, "weight": array(3, 2)})


@pytest.mark.parametrize(
    "wrong, message",
    [
        (array(4, 4), r"'1\.weight' is not assignable: expected float32\[4, 3\], got float32\[4, 4\]"),
        (array(12), r"'1\.weight' is not assignable: expected float32\[4, 3\], got float32\[12\]"),
        (array(4, 3, dtype=np.float64), r"not assignable: expected float32\[4, 3\], got float64\[4, 3\].*auto_cast"),
        (array(4, 3, dtype=np.int32), "not assignable.*int32"),
    ],
)
def test_a_wrong_value_changes_nothing(wrong: np.ndarray, message: str) -> None:
    model = Sequential(Linear(2, 3), Linear(3, 4))
    before = dict(model.parameters)
    for state in ({**state_of(model), "1.weight": wrong}, {**state_of(model), "1.weight": Tensor(wrong)}):
        with pytest.raises(ValueError, match=message):
            model.load_state_dict(state)
        assert all(tensor is before[name] for name, tensor in model.parameters)


@pytest.mark.parametrize("wrong", [None, "text", 3.0, [[1.0]]])
def test_a_value_that_is_not_an_array(wrong: Any) -> None:
    linear = Linear(2, 3)
    before = dict(linear.parameters)
    with pytest.raises(TypeError, match="'bias' must be a Tensor"):
        linear.load_state_dict({"weight": array(3, 2), "bias": wrong})
    assert all(tensor is before[name] for name, tensor in linear.parameters)


def test_auto_cast() -> None:
    linear = Linear(2, 3)
    linear.load_state_dict(
        {"weight": array(3, 2, dtype=np.float64), "bias": to_buffer(array(3), "bfloat16")}, auto_cast=True
    )
    assert [tensor.dtype for _, tensor in linear.parameters] == [DType.float32] * 2
    assert_same(values(linear), {"weight": array(3, 2), "bias": array(3)})
    with pytest.raises(ValueError, match="not assignable"):
        linear.load_state_dict({"weight": array(2, 3, dtype=np.float64), "bias": array(3)}, auto_cast=True)


def test_compile_with_a_function_of_weights() -> None:
    state = {"weight": np.array([[1, 2]], np.float32), "bias": np.array([3], np.float32)}
    compiled = Linear(2, 1).compile(tensor("float32", 2), weights=state.__getitem__)
    assert compiled(np.ones(2, np.float32)).item() == 6
    with pytest.raises(KeyError, match="'bias' is missing"):
        Linear(2, 1).compile(tensor("float32", 2), weights={"weight": state["weight"]}.__getitem__)


def test_an_embedding_of_larger_tensors_has_no_dim() -> None:
    with pytest.raises(ValueError, match=r"\[Dim\(2\), Dim\(3\)\] has no dim"):
        Embedding(5, dims=[2, 3]).dim  # noqa: B018


def test_tied_parameters_load_by_one_name() -> None:
    class Tied(Module):
        def __init__(self) -> None:
            self.tokens = Embedding(5, dim=2)
            self.head = Linear(2, 5, bias=False)
            self.head.weight = self.tokens.weight

    tied = Tied()
    tied.load_state_dict({"tokens.weight": array(5, 2)})
    assert tied.head.weight is tied.tokens.weight
    tied.load_state_dict({"head.weight": array(5, 2, start=1)})
    assert tied.head.weight is tied.tokens.weight
    np.testing.assert_array_equal(tied.tokens.weight.to_numpy(), array(5, 2, start=1))
    tied.load_state_dict({"head.weight": array(5, 2), "tokens.weight": array(5, 2, start=2)})
    np.testing.assert_array_equal(tied.head.weight.to_numpy(), array(5, 2))
    np.testing.assert_array_equal(tied.tokens.weight.to_numpy(), array(5, 2, start=2))


# --- constructors ---------------------------------------------------------------------------------


def test_initial_parameters() -> None:
    linear = Linear(1000, 50)
    weight = linear.weight.to_numpy()
    assert weight.shape == (50, 1000) and abs(weight.std() * 1000**0.5 - 1) < 0.05 and abs(weight.mean()) < 0.001
    np.testing.assert_array_equal(linear.bias.to_numpy(), np.zeros(50))
    table = Embedding(1000, dims=[5, 7])
    assert (table.vocab_size, table.dims) == (1000, [5, 7])
    assert abs(table.weight.to_numpy().std() - 1) < 0.05
    assert Embedding(3, dim=4).dim == 4
    for norm in (LayerNorm(4), GroupNorm(2, 4)):
        np.testing.assert_array_equal(norm.weight.to_numpy(), np.ones(4))
        np.testing.assert_array_equal(norm.bias.to_numpy(), np.zeros(4))
    assert names(LayerNorm(4, use_bias=False).parameters) == ["weight"]
    assert names(LayerNorm(4, elementwise_affine=False).parameters) == []
    assert names(GroupNorm(2, 4, affine=False).parameters) == []
    assert RMSNorm(4).dim == 4
    conv = Conv2d((3, 5), 4, 6, num_groups=2, has_bias=True)
    assert [list(map(int, tensor.shape)) for _, tensor in conv.parameters] == [[3, 5, 2, 6], [6]]
    assert list(map(int, Conv2d((3, 5), 4, 6, num_groups=2, permute=True).weight.shape)) == [6, 2, 3, 5]
    rope = RotaryEmbedding(Tensor.zeros([16, 4, 2]))
    assert (rope.dim, rope.max_sequence_length) == (8, 16)


def test_defaults_choose_the_dtype() -> None:
    from max.experimental.tensor import default_dtype

    with default_dtype(DType.bfloat16):
        layers = Sequential(Linear(2, 2), Embedding(2, dim=2), LayerNorm(2), RMSNorm(2), Conv2d(1, 2, 2))
    assert {tensor.dtype for _, tensor in layers.parameters} == {DType.bfloat16}
    assert Conv2d(1, 2, 2, dtype=DType.float64).weight.dtype == DType.float64


def test_constructors_refuse() -> None:
    with pytest.raises(NotImplementedError, match="quant_config"):
        Linear(2, 2, quant_config=object())
    for options in ({}, {"dim": 2, "dims": [2]}):
        with pytest.raises(TypeError, match="either dim or dims"):
            Embedding(3, **options)
    with pytest.raises(ValueError, match="4 channels into 3"):
        GroupNorm(3, 4)
    with pytest.raises(ValueError, match="into 2 groups"):
        Conv2d(3, 3, 4, num_groups=2)
    with pytest.raises(ValueError, match="padding must be one number, two or four"):
        Conv2d(3, 3, 4, padding=(1, 2, 3))
    with pytest.raises(ValueError, match="padding must be one number, two or four; got 'same'"):
        Conv2d(3, 1, 1, padding="same")  # type: ignore[arg-type]
    assert Conv2d(np.int64(3), 1, 1, padding=(np.int64(1), 2)).padding == (1, 1, 2, 2)
    with pytest.raises(ValueError, match="stride must be one number or two"):
        Conv2d(3, 3, 4, stride=(1, 2, 3))
    with pytest.raises(ValueError):
        _ = Embedding(3, dims=[2, 2]).dim
