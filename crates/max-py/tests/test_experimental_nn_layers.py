"""What layers compute: eagerly and compiled, against NumPy in float64, and against PyTorch where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.nn import (
    Conv2d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Module,
    RMSNorm,
    RotaryEmbedding,
    Sequential,
)
from max.experimental.tensor import Tensor, default_dtype

from helpers import assert_close, pytorch, tensor, to_array, to_buffer

Params = dict[str, np.ndarray]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tokens(*shape: int, below: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, below, shape)


def rotation_table(length: int, dim: int) -> np.ndarray:
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, dim, 2) / dim))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


# --- the layers in plain NumPy --------------------------------------------------------------------


def linear(p: Params, x: np.ndarray) -> np.ndarray:
    return x @ p["weight"].T + p.get("bias", 0)


def embedding(p: Params, indices: np.ndarray) -> np.ndarray:
    return p["weight"][indices]


def layer_norm(p: Params, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normed * p.get("weight", 1) + p.get("bias", 0)


def rms_norm(p: Params, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["weight"]


def group_norm(groups: int) -> Callable[..., np.ndarray]:
    def norm(p: Params, x: np.ndarray) -> np.ndarray:
        parts = x.reshape(x.shape[0], groups, -1)
        centred = parts - parts.mean(-1, keepdims=True)
        normed = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
        channels = (-1, *[1] * (x.ndim - 2))
        return normed * p.get("weight", np.ones(1)).reshape(channels) + p.get("bias", np.zeros(1)).reshape(channels)

    return norm


def conv2d(
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    permute: bool = False,
) -> Callable[..., np.ndarray]:
    def conv(p: Params, x: np.ndarray) -> np.ndarray:
        weight = p["weight"]
        if permute:
            x, weight = x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0)
        x = np.pad(x, [(0, 0), padding[:2], padding[2:], (0, 0)])
        rows, columns, inside, outside = weight.shape
        height = (x.shape[1] - (rows - 1) * dilation[0] - 1) // stride[0] + 1
        width = (x.shape[2] - (columns - 1) * dilation[1] - 1) // stride[1] + 1
        result = np.zeros((x.shape[0], height, width, outside))
        each = outside // groups
        for group in range(groups):
            channels = slice(group * inside, (group + 1) * inside)
            filters = slice(group * each, (group + 1) * each)
            for row in range(rows):
                for column in range(columns):
                    top, left = row * dilation[0], column * dilation[1]
                    seen = x[:, top :: stride[0], left :: stride[1], channels][:, :height, :width]
                    result[..., filters] += seen @ weight[row, column, :, filters]
        result = result + p.get("bias", 0)
        return result.transpose(0, 3, 1, 2) if permute else result

    return conv


def rotary(p: Params, x: np.ndarray, start: int = 0) -> np.ndarray:
    table = p["weight"][start : start + x.shape[1], None]
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * (table[..., 0] + 1j * table[..., 1])
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


# name: the constructor, its NumPy equivalent, its input, and the dims of a compiled layer
Case = tuple[Callable[[], Module], Callable[..., np.ndarray], np.ndarray, Sequence[Any]]
CASES: dict[str, Case] = {
    "linear": (lambda: Linear(5, 7), linear, normal(3, 4, 5), ["a", "b", 5]),
    "linear without bias": (lambda: Linear(5, 7, bias=False), linear, normal(4, 5), ["a", 5]),
    "linear of a vector": (lambda: Linear(5, 7), linear, normal(5), [5]),
    "embedding": (lambda: Embedding(9, dim=4), embedding, tokens(2, 5, below=9), ["a", "b"]),
    "embedding of matrices": (lambda: Embedding(9, dims=[2, 3]), embedding, tokens(5, below=9), ["a"]),
    "layer norm": (lambda: LayerNorm(6), layer_norm, normal(3, 2, 6), ["a", "b", 6]),
    "layer norm in float32": (lambda: LayerNorm(6, keep_dtype=False), layer_norm, normal(3, 6), ["a", 6]),
    "layer norm without bias": (lambda: LayerNorm(6, use_bias=False), layer_norm, normal(3, 6), ["a", 6]),
    "layer norm, bare": (lambda: LayerNorm(6, elementwise_affine=False), layer_norm, normal(3, 6), ["a", 6]),
    "rms norm": (lambda: RMSNorm(6), rms_norm, normal(3, 2, 6), ["a", "b", 6]),
    "group norm": (lambda: GroupNorm(3, 6), group_norm(3), normal(2, 6, 4, 5), ["a", 6, "h", "w"]),
    "group norm of sequences": (lambda: GroupNorm(2, 6), group_norm(2), normal(2, 6, 4), ["a", 6, "n"]),
    "group norm, bare": (lambda: GroupNorm(3, 6, affine=False), group_norm(3), normal(2, 6, 4, 5), ["a", 6, 4, 5]),
    "conv2d": (lambda: Conv2d(3, 4, 5), conv2d(), normal(2, 6, 7, 4), ["a", 6, 7, 4]),
    "conv2d with all options": (
        lambda: Conv2d((3, 2), 4, 6, stride=(2, 1), padding=(1, 2), dilation=(1, 2), num_groups=2, has_bias=True),
        conv2d((2, 1), (1, 1, 2, 2), (1, 2), 2),
        normal(2, 7, 8, 4),
        ["a", 7, 8, 4],
    ),
    "conv2d as in PyTorch": (
        lambda: Conv2d(3, 4, 6, padding=(1, 0, 2, 1), num_groups=2, has_bias=True, permute=True),
        conv2d(padding=(1, 0, 2, 1), groups=2, permute=True),
        normal(2, 4, 6, 7),
        ["a", 4, 6, 7],
    ),
    "rotary": (
        lambda: RotaryEmbedding(Tensor(rotation_table(16, 8))),
        rotary,
        normal(2, 5, 3, 8),
        ["a", 5, "h", 8],
    ),
    "rotary of any length": (
        lambda: RotaryEmbedding(Tensor(rotation_table(16, 8))),
        rotary,
        normal(2, 5, 3, 8),
        ["a", "n", "h", 8],
    ),
}

DTYPES = ["float32", "float64", "bfloat16"]


def make(name: str, dtype: str = "float32") -> tuple[Module, Params]:
    """A layer with random instead of initial parameters, and these parameters in float64."""
    with default_dtype(getattr(DType, dtype)):
        module = CASES[name][0]()
    state: dict[str, Any] = {}
    params: Params = {}
    for at, (key, parameter) in enumerate(module.parameters):
        values = normal(*map(int, parameter.shape), seed=100 + at)
        if isinstance(module, RotaryEmbedding):
            values = rotation_table(module.max_sequence_length, module.dim)
        state[key] = to_buffer(values, str(parameter.dtype).removeprefix("DType."))
        params[key] = to_array(state[key]).astype(np.float64)
    module.load_state_dict(state)
    return module, params


def given(name: str, dtype: str) -> tuple[Tensor, np.ndarray, str]:
    """The input of a layer, the same in float64 or int64, and its dtype."""
    x = CASES[name][2]
    if x.dtype == np.int64:
        return Tensor(x), x, "int64"
    buffer = to_buffer(x, dtype)
    return Tensor(storage=buffer), to_array(buffer).astype(np.float64), dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str, dtype: str) -> None:
    module, params = make(name, dtype)
    x, plain, own = given(name, dtype)
    result = module(x)
    if own == dtype:
        assert result.dtype == x.dtype
    assert result.real
    loose = {"float32": 1e-5, "bfloat16": 3e-2}.get(dtype, 1e-5 if name.endswith("in float32") else 0.0)
    assert_close(to_array(result.driver_tensor), CASES[name][1](params, plain), dtype, rtol=loose)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_compiled_is_eager(name: str, dtype: str) -> None:
    module, _ = make(name, dtype)
    x, _, own = given(name, dtype)
    compiled = module.compile(tensor(own, *CASES[name][3]))
    np.testing.assert_array_equal(to_array(compiled(x).driver_tensor), to_array(module(x).driver_tensor))


def test_the_bias_of_a_mean() -> None:
    """Computed by hand: rows of -1 and 1 are already normalized."""
    norm = LayerNorm(2, eps=1e-12)
    norm.load_state_dict({"weight": np.float32([2, 3]), "bias": np.float32([10, 20])})
    np.testing.assert_allclose(norm(Tensor([[-1.0, 1.0], [5.0, 7.0]])).to_numpy(), [[8, 23], [8, 23]], rtol=1e-6)


def test_layer_norm_in_float32_is_more_accurate() -> None:
    """With parameters in float32, a bfloat16 input is only rounded at the end."""
    exact, rounded = LayerNorm(64, keep_dtype=False), LayerNorm(64)
    weight = normal(64, seed=1)
    for norm in (exact, rounded):
        norm.load_state_dict({"weight": weight, "bias": np.zeros(64, np.float32)})
    buffer = to_buffer(normal(20, 64), "bfloat16")
    x = Tensor(storage=buffer)
    assert exact(x).dtype == rounded(x).dtype == DType.bfloat16
    expected = layer_norm({"weight": weight}, to_array(buffer).astype(np.float64))
    errors = [np.abs(to_array(norm(x).driver_tensor) - expected).mean() for norm in (exact, rounded)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("start", [0, 1, 11])
@pytest.mark.parametrize("kind", ["int", "int32", "int64"])
def test_rotary_from_a_position(start: int, kind: str) -> None:
    table, x = rotation_table(16, 8), normal(2, 5, 3, 8)
    rope = RotaryEmbedding(Tensor(table))
    position: Any = start if kind == "int" else Tensor(np.array(start, dtype=kind))
    expected = rotary({"weight": table}, x, start)
    np.testing.assert_allclose(rope(Tensor(x), position).to_numpy(), expected, rtol=1e-5, atol=1e-6)

    class Placed(Module):
        def __init__(self) -> None:
            self.rope = rope

        def forward(self, x: Tensor, *positions: Tensor) -> Tensor:
            return self.rope(x, *(positions or [start]))

    positions = [] if kind == "int" else [position]
    compiled = Placed().compile(tensor("float32", "a", "n", "h", 8), *(tensor(kind) for _ in positions))
    np.testing.assert_allclose(compiled(x, *positions).to_numpy(), expected, rtol=1e-5, atol=1e-6)


def test_rotary_beyond_the_table() -> None:
    rope = RotaryEmbedding(Tensor(rotation_table(16, 8)))
    x = Tensor(normal(1, 5, 1, 8))
    for position in (12, Tensor(np.array(12))):
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            rope(x, position).to_numpy()
    with pytest.raises(ValueError, match=r"rotates \[batch, sequence, heads, 8\]"):
        rope(Tensor(normal(1, 5, 1, 4)))


def test_rotary_turns_by_angles() -> None:
    """Computed by hand: a quarter turn of (1, 0) is (0, 1)."""
    quarter = Tensor(np.float32([[[1, 0]], [[0, 1]]]))
    x = Tensor(np.float32([1, 0]).reshape(1, 1, 1, 2))
    np.testing.assert_allclose(RotaryEmbedding(quarter)(x, 1).to_numpy().ravel(), [0, 1], atol=1e-7)
    np.testing.assert_allclose(RotaryEmbedding(quarter)(x, 0).to_numpy().ravel(), [1, 0], atol=1e-7)


def test_embedding_refuses_floats_and_unknown_tokens() -> None:
    table = Embedding(4, dim=2)
    with pytest.raises((ValueError, TypeError)):
        table(Tensor([1.0]))
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        table(Tensor(np.array([4]))).to_numpy()


def test_a_sequence_of_layers() -> None:
    stack = Sequential(Linear(4, 8), LayerNorm(8), Linear(8, 2, bias=False))
    state = {name: normal(*map(int, p.shape), seed=at) for at, (name, p) in enumerate(stack.parameters)}
    stack.load_state_dict(state)
    x = normal(3, 4)
    hidden = linear({"weight": state["0.weight"], "bias": state["0.bias"]}, x)
    hidden = layer_norm({"weight": state["1.weight"], "bias": state["1.bias"]}, hidden)
    expected = linear({"weight": state["2.weight"]}, hidden)
    eager = stack(Tensor(x))
    np.testing.assert_allclose(eager.to_numpy(), expected, rtol=1e-4, atol=1e-5)
    compiled = stack.compile(tensor("float32", "n", 4))
    np.testing.assert_array_equal(compiled(x).to_numpy(), eager.to_numpy())
    assert Sequential()(Tensor.ones([1])).item() == 1


def test_layers_run_as_one_region() -> None:
    """Nothing inside a layer, or a sequence of them, is computed before the end."""
    seen: list[bool] = []

    class Spy(Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.real)
            return F.relu(x)

    assert Sequential(Linear(2, 2), Spy(), Linear(2, 2))(Tensor.ones([1, 2])).real
    assert seen == [False]


# --- PyTorch --------------------------------------------------------------------------------------


def torch_twin(name: str, torch: Any) -> Any:
    nn = torch.nn
    return {
        "linear": lambda: nn.Linear(5, 7),
        "linear without bias": lambda: nn.Linear(5, 7, bias=False),
        "embedding": lambda: nn.Embedding(9, 4),
        "layer norm": lambda: nn.LayerNorm(6),
        "layer norm without bias": lambda: nn.LayerNorm(6, bias=False),
        "layer norm, bare": lambda: nn.LayerNorm(6, elementwise_affine=False),
        "rms norm": lambda: nn.RMSNorm(6, eps=1e-6),
        "group norm": lambda: nn.GroupNorm(3, 6),
        "group norm of sequences": lambda: nn.GroupNorm(2, 6),
        "group norm, bare": lambda: nn.GroupNorm(3, 6, affine=False),
    }[name]()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        *("linear", "linear without bias", "embedding", "layer norm", "layer norm without bias", "layer norm, bare"),
        *("rms norm", "group norm", "group norm of sequences", "group norm, bare"),
    ],
)
def test_against_torch(name: str, dtype: str) -> None:
    torch = pytorch()
    twin = torch_twin(name, torch).to(getattr(torch, dtype))
    with default_dtype(getattr(DType, dtype)):
        module = CASES[name][0]()
    module.load_state_dict({key: value.detach() for key, value in twin.state_dict().items()})
    x = torch.from_numpy(CASES[name][2])
    x = x.to(getattr(torch, dtype)) if x.is_floating_point() else x
    result = torch.from_dlpack(module(Tensor.from_dlpack(x)))
    torch.testing.assert_close(result, twin(x).detach(), rtol=RTOL_TORCH[dtype], atol=RTOL_TORCH[dtype])


def test_convolution_against_torch() -> None:
    torch = pytorch()
    twin = torch.nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    conv = Conv2d(
        (3, 2), 4, 6, stride=(2, 1), padding=(1, 2), dilation=(1, 2), num_groups=2, has_bias=True, permute=True
    )
    conv.load_state_dict({key: value.detach() for key, value in twin.state_dict().items()})
    x = torch.randn(2, 4, 7, 8)
    torch.testing.assert_close(torch.from_dlpack(conv(Tensor.from_dlpack(x))), twin(x).detach(), rtol=1e-4, atol=1e-5)


RTOL_TORCH = {"float32": 1e-5, "bfloat16": 2e-2}
