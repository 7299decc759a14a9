"""The layers of `max.nn` against PyTorch (`goldens/nn_layers.py`), and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, Weight, ops
from max.nn.conv import Conv1D, Conv1DV1, Conv2d, Conv2dV1, Conv3D, Conv3DV1
from max.nn.embedding import Embedding, EmbeddingV1, EmbeddingV2
from max.nn.layer import Module
from max.nn.linear import MLP, MLPV1, DistributedGemmConfig, Linear, LinearV1
from max.nn.moe import MoE, MoEGate
from max.nn.norm import GroupNorm, LayerNorm, LayerNormV1, RMSNorm, RMSNormV1

from helpers import CPU, assert_close, build, dtype_of, shapes_of, tensor, to_array, to_buffer
from op_cases import from_bfloat16_bits

GOLDENS = np.load(Path(__file__).parent / "goldens" / "nn_layers.npz")
CASES: dict[str, list[dict[str, Any]]] = json.loads(str(GOLDENS["cases"]))
PLACES: dict[str, Any] = json.loads(str(GOLDENS["places"]))
VALUES = {"float32": GOLDENS["float32"], "bfloat16": from_bfloat16_bits(GOLDENS["bfloat16"])}
DTYPES = ["float32", "bfloat16"]
KERNEL = [3, 2, 3]


def stored(key: str) -> np.ndarray:
    dtype, start, shape = PLACES[key]
    return VALUES[dtype][start : start + int(np.prod(shape))].reshape(shape)


def golden(name: str, index: int) -> dict[str, np.ndarray]:
    """The weights and the input of a case, by name."""
    prefix = f"{name}.{index}."
    return {key[len(prefix) :]: stored(key) for key in PLACES if key.startswith(prefix)}


def run(session: Any, layer: Any, weights: dict[str, Any], x: Any, sizes: Optional[Sequence[Any]] = None) -> np.ndarray:
    """Loads a layer's weights and runs it."""
    if isinstance(layer, Module):
        layer.load_state_dict(weights)
        weights = layer.state_dict()  # type: ignore[assignment]
    buffer = x if isinstance(x, Buffer) else Buffer.from_numpy(x)
    graph = build(layer, [TensorType(buffer.dtype, list(sizes or buffer.shape), CPU)])
    (y,) = session.load(graph, weights_registry=weights).execute(buffer)
    return to_array(y)


def to_channels_last(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def make(name: str, case: dict[str, Any], dtype: DType) -> Any:
    case = {key: tuple(value) if isinstance(value, list) else value for key, value in case.items() if key != "x"}
    if name == "Linear":
        return Linear(dtype=dtype, device=CPU, **case)
    if name == "MLP":
        return MLP(dtype, None, 5, 11, [CPU], **case)
    if name == "LayerNorm":
        return LayerNorm(7, CPU, dtype, **case)
    if name == "RMSNorm":
        return RMSNorm(9, dtype, **case)
    if name == "GroupNorm":
        return GroupNorm(num_channels=6, device=CPU, **case)
    if name == "MoE":
        return MoE([CPU], 6, 5, 2, 10, shared_experts_dim=10, dtype=dtype, **case)
    sizes = {"Conv1D": KERNEL[:1], "Conv2d": [tuple(KERNEL[:2])], "Conv3D": KERNEL}[name]
    kind = {"Conv1D": Conv1D, "Conv2d": Conv2d, "Conv3D": Conv3D}[name]
    return lambda permute: kind(*sizes, 4, 6, dtype, permute=permute, device=CPU, **case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, index", [(name, i) for name, cases in CASES.items() for i in range(len(cases))])
def test_layers_give_what_pytorch_gives(session, name: str, index: int, dtype: str) -> None:
    arrays = golden(name, index)
    x, expected = arrays.pop("x"), arrays.pop(dtype)
    del arrays[DTYPES[1 - DTYPES.index(dtype)]]
    layer = make(name, CASES[name][index], dtype_of(dtype))
    stored_as = "float32" if name == "GroupNorm" else dtype
    weights = {key: to_buffer(value, stored_as) for key, value in arrays.items()}
    symbolic = ["batch", *x.shape[1:]] if x.ndim > 1 else None
    if not name.startswith("Conv"):
        assert_close(run(session, layer, weights, to_buffer(x, dtype), symbolic), expected, dtype)
        return
    assert_close(run(session, layer(True), weights, to_buffer(x, dtype), symbolic), expected, dtype)
    axes = list(range(2, x.ndim))
    weights["weight"] = to_buffer(np.ascontiguousarray(arrays["weight"].transpose(*axes, 1, 0)), dtype)
    last = to_channels_last(x)
    y = run(session, layer(False), weights, to_buffer(last, dtype), ["batch", *last.shape[1:]])
    assert_close(y, to_channels_last(expected), dtype)


def eighths(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).integers(-16, 16, shape) / 8).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("indices", [np.array([[3, 0, 12], [12, 1, 1]]), np.array(5), np.zeros((0, 2), np.int32)])
def test_embedding(session, indices: np.ndarray, dtype: str) -> None:
    table = eighths(13, 6)
    layer = Embedding(13, 6, dtype_of(dtype), CPU, name="tokens")
    assert EmbeddingV2 is Embedding
    np.testing.assert_array_equal(run(session, layer, {"tokens": to_buffer(table, dtype)}, indices), table[indices])


def test_names_of_weights() -> None:
    def names(layer: Module) -> list[str]:
        return sorted(layer.raw_state_dict())

    f32 = DType.float32
    assert names(Linear(2, 3, f32, CPU, has_bias=True)) == ["bias", "weight"]
    assert names(Linear(2, 3, f32, CPU, has_bias=True, name="a")) == ["a.bias", "a.weight"]
    assert names(Conv1D(3, 4, 5, f32, has_bias=True, name="c")) == ["c.bias", "c.weight"]
    assert names(Conv2d(3, 4, 5, f32)) == ["weight"]
    mlp = MLP(f32, None, 2, 3, [CPU], has_bias=True)
    assert names(mlp) == [f"{p}_proj.{w}" for p in ("down", "gate", "up") for w in ("bias", "weight")]
    moe = MoE([CPU], 2, 2, 1, 3, has_shared_experts=True, shared_experts_dim=4)
    assert names(moe)[0] == "experts.0.down_proj.weight" and len(names(moe)) == 10
    assert names(LayerNorm(2, CPU, f32, use_bias=False)) == ["weight"]
    assert names(GroupNorm(1, 2)) == ["bias", "weight"] and names(GroupNorm(1, 2, affine=False)) == []
    layer = Linear(2, 3, f32, DeviceRef.GPU(1))
    assert layer.device == DeviceRef.GPU(1) and layer.weight.device == CPU and layer.bias is None
    assert layer.weight_scale is None and layer.input_scale is None
    conv = Conv2d(3, 4, 5, f32, stride=2, padding=(1, 2))
    assert (conv.stride, conv.padding, conv.dilation, conv.num_groups) == ((2, 2), (1, 1, 2, 2), (1, 1), 1)
    assert conv.filter.shape == [3, 3, 4, 5] and conv.device is None
    assert Conv3D(1, 2, 3, 4, 6, f32, num_groups=2, permute=True).filter.shape == [6, 2, 1, 2, 3]
    assert DistributedGemmConfig.generate() is None and DistributedGemmConfig(True).enable_matmul_allreduce


def test_parameters_of_another_float_dtype(session) -> None:
    x, weight, bias = eighths(3, 4), eighths(2, 4, seed=1), eighths(2, seed=2)
    layer = LinearV1(Weight("w", DType.float32, [2, 4]), Weight("b", DType.bfloat16, [2]))
    y = run(session, layer, {"w": weight, "b": to_buffer(bias, "bfloat16")}, x)
    np.testing.assert_array_equal(y, x @ weight.T + bias)
    norm = RMSNorm(4, DType.float32)
    wide = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    y = run(session, norm, {"weight": eighths(4)}, to_buffer(x, "bfloat16"))
    assert_close(y, wide * eighths(4), "bfloat16")


SIZES: dict[str, Any] = {
    "Linear": lambda a, b, c: (Linear(b, c, DType.float32, CPU, has_bias=True), [a, b], [a, c]),
    "MLP": lambda a, b, c: (MLP(DType.float32, None, b, c, [CPU]), [a, b], [a, b]),
    "LayerNorm": lambda a, b, c: (LayerNorm(c, CPU, DType.float32), [a, b, c], [a, b, c]),
    "RMSNorm": lambda a, b, c: (RMSNorm(c, DType.float32), [a, b, c], [a, b, c]),
    "GroupNorm": lambda a, b, c: (GroupNorm(1, b, device=CPU), [a, b, c], [a, b, c]),
    "Conv1D": lambda a, b, c: (Conv1D(3, b, c, DType.float32, padding=1, has_bias=True), [a, 4, b], [a, 4, c]),
    "Conv2d": lambda a, b, c: (Conv2d(1, b, c, DType.float32, permute=True), [a, b, 3, 2], [a, c, 3, 2]),
    "Conv3D": lambda a, b, c: (Conv3D(1, 1, 1, b, c, DType.float32), [a, 1, 2, 3, b], [a, 1, 2, 3, c]),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1), (0, 0, 0), (1, 0, 1)], ids=str)
def test_sizes_0_and_1(session, name: str, sizes: tuple[int, int, int]) -> None:
    layer, given, expected = SIZES[name](*sizes)
    weights = {name: np.ones([int(d) for d in w.shape], np.float32) for name, w in layer.raw_state_dict().items()}
    y = run(session, layer, weights, np.ones(given, np.float32))
    assert list(y.shape) == expected and not np.isnan(y).any()


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_mixture_of_few_tokens(session, tokens: int) -> None:
    layer = MoE([CPU], 4, 3, 1, 5, dtype=DType.float32, has_shared_experts=True, shared_experts_dim=1)
    weights = {name: np.ones([int(d) for d in w.shape], np.float32) for name, w in layer.raw_state_dict().items()}
    y = run(session, layer, weights, np.ones((tokens, 4), np.float32), ["tokens", 4])
    silu = 4 / (1 + np.exp(-4))
    np.testing.assert_allclose(y, np.full((tokens, 4), 4 * 5 * 4 * silu + 4 * silu), rtol=1e-5)


def test_a_router_of_ones_own(session) -> None:
    class Softmax(MoEGate):
        def __call__(self, hidden_state: Any) -> Any:
            scores = ops.softmax(self.gate_score(hidden_state))
            weights, experts = ops.top_k(scores, self.num_experts_per_token, axis=-1)
            return experts, weights / ops.sum(weights, axis=-1)

    layer = MoE([CPU], 4, 3, 3, 5, gate_cls=Softmax, dtype=DType.float32)
    arrays = {n: eighths(*map(int, w.shape), seed=i) for i, (n, w) in enumerate(layer.raw_state_dict().items())}
    x = eighths(6, 4, seed=9)
    logits = x @ arrays["gate.gate_score.weight"].T
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    expected = np.zeros_like(x)
    for expert in range(3):
        gate, up, down = (arrays[f"experts.{expert}.{p}_proj.weight"] for p in ("gate", "up", "down"))
        g = x @ gate.T
        expected += scores[:, expert : expert + 1] * ((g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T)
    assert_close(run(session, layer, arrays, x, ["n", 4]), expected, "float32")


def test_older_layers(session) -> None:
    arrays = {"a": eighths(5, 4), "b": eighths(4, 5, seed=1), "c": eighths(5, 4, seed=2), "d": eighths(5, seed=3)}
    weight = {name: Weight(name, DType.float32, list(array.shape)) for name, array in arrays.items()}
    x = eighths(3, 4, seed=4)

    def check(layer: Any, same: Any, x: Any = x, **renamed: str) -> None:
        values = {name: arrays[own] for name, own in renamed.items()}
        used = {own: arrays[own] for own in renamed.values()}
        np.testing.assert_array_equal(run(session, layer, used, x), run(session, same, values, x))

    f32 = DType.float32
    check(LinearV1(weight["a"], weight["d"]), Linear(4, 5, f32, CPU, has_bias=True), weight="a", bias="d")
    check(LinearV1.create(f32, None, 4, 5, weight["a"]), Linear(4, 5, f32, CPU), weight="a")
    mlp = MLPV1(LinearV1(weight["a"]), LinearV1(weight["b"]), LinearV1(weight["c"]))
    names = {"gate_proj.weight": "a", "down_proj.weight": "b", "up_proj.weight": "c"}
    check(mlp, MLP(f32, None, 4, 5, [CPU]), **names)
    rows = eighths(3, 5, seed=5)
    check(LayerNormV1(weight["d"]), LayerNorm(5, CPU, f32, eps=1e-6, use_bias=False), rows, weight="d")
    check(RMSNormV1(weight["d"], weight_offset=1.0), RMSNorm(5, f32, weight_offset=1.0), rows, weight="d")
    check(EmbeddingV1(weight["a"], CPU), Embedding(5, 4, f32, CPU), np.array([4, 0]), weight="a")
    assert LayerNormV1(weight["d"]).eps == 1e-6 and LayerNormV1(weight["d"]).bias is None


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_older_convolutions(session, axes: int) -> None:
    sizes = [3, 2, 2][:axes]
    arrays = {"filter": eighths(*sizes, 2, 6), "bias": eighths(6, seed=1)}
    weight = {name: Weight(name, DType.float32, list(array.shape)) for name, array in arrays.items()}
    x = eighths(2, *[5, 6, 7][:axes], 4, seed=2)
    older = [Conv1DV1, Conv2dV1, Conv3DV1][axes - 1](weight["filter"], weight["bias"], 2, 1, 1, 2)
    options: Any = {"stride": 2, "padding": 1, "num_groups": 2, "has_bias": True}
    newer = (
        Conv2d((3, 2), 4, 6, DType.float32, **options)
        if axes == 2
        else [Conv1D, None, Conv3D][axes - 1](*sizes, 4, 6, DType.float32, **options)  # type: ignore[misc]
    )
    values = {"weight": arrays["filter"], "bias": arrays["bias"]}
    np.testing.assert_array_equal(run(session, older, arrays, x), run(session, newer, values, x))


def named(layer: Module) -> Module:
    """A layer whose weights have their names in it."""
    layer.state_dict()
    return layer


def test_wrong_arguments() -> None:
    f32 = DType.float32
    with pytest.raises(ValueError, match="unknown activation function 'swoosh'; expected silu, gelu"):
        shapes_of(named(MLP(f32, None, 4, 5, [CPU], activation_function="swoosh")), tensor("float32", 2, 4))
    with pytest.raises(ValueError, match="needs a device"):
        MLP(f32, None, 4, 5, [])
    with pytest.raises(ValueError, match="at least zero; got -1"):
        shapes_of(Linear(4, 5, f32, CPU, clip_weight=-1.0), tensor("float32", 2, 4))
    with pytest.raises(ValueError, match=r"must match"):
        shapes_of(Linear(4, 5, f32, CPU), tensor("float32", 2, 3))
    with pytest.raises(ValueError, match="6 channels into 4 equal groups"):
        GroupNorm(4, 6)
    with pytest.raises(ValueError, match="4 input and 6 output channels into 4 groups"):
        Conv2d(3, 4, 6, f32, num_groups=4)
    with pytest.raises(ValueError, match=r"Conv2d stride must be one number or two; got \(1, 2, 3\)"):
        Conv2d(3, 4, 6, f32, stride=(1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Conv2d padding must be one number, two or four; got 'same'"):
        Conv2d(3, 4, 6, f32, padding="same")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Conv1D kernel_size must be one number; got"):
        Conv1D(1.5, 4, 6, f32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Conv3D dilation must be one number or three"):
        Conv3D(1, 1, 1, 4, 6, f32, dilation=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank 3 to 5; got the shapes"):
        shapes_of(Conv1D(3, 4, 6, f32), tensor("float32", 2, 4))
    with pytest.raises(ValueError, match="does not match dimension of reduction"):
        shapes_of(RMSNorm(4, f32), tensor("float32", 2, 3))
    with pytest.raises(ValueError, match="3 of 2 experts"):
        MoEGate([CPU], 4, 2, 3, f32)
    with pytest.raises(ValueError, match="shared_experts_dim=0"):
        MoE([CPU], 4, 2, 1, 3, has_shared_experts=True)
    with pytest.raises(ValueError, match="tokens, ids and scores of rank 2"):
        shapes_of(named(MoE([CPU], 4, 2, 1, 3, dtype=f32)), tensor("float32", 2, 3, 4))
    with Graph("g", input_types=[tensor("float32", 3)]) as graph, pytest.raises((ValueError, TypeError)):
        Embedding(4, 3, f32, CPU)(graph.inputs[0].tensor)
