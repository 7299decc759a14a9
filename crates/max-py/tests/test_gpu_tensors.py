"""Tensors and modules of `max.experimental` on a GPU; skipped if there is none."""

import copy
import pickle

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.experimental import functional as F
from max.experimental import random
from max.experimental.nn import Conv2d, Embedding, GroupNorm, LayerNorm, Linear, Module, RMSNorm, Sequential
from max.experimental.realization_context import compile_cache_stats, lazy, set_seed
from max.experimental.tensor import Tensor, default_device, default_dtype, defaults
from max.graph import DeviceRef, Graph, TensorType

from helpers import REFUSED, accelerator, assert_close

DEVICE = accelerator()
GPU = DeviceRef.GPU()


@pytest.fixture(autouse=True)
def float32():
    """Tensors default to float32 on the GPU."""
    with default_device(DEVICE), default_dtype(DType.float32):
        yield


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_accelerator_is_the_default_device() -> None:
    import contextvars

    dtype, device = contextvars.Context().run(defaults)
    assert device == DEVICE and dtype == DType.bfloat16


@pytest.mark.parametrize(
    "make,expected",
    [
        (lambda: Tensor([1.0, -2.0]), [1, -2]),
        (lambda: Tensor(3), 3),
        (lambda: Tensor(np.float32([4, 5])), [4, 5]),
        (lambda: Tensor.ones([2, 2]), [[1, 1], [1, 1]]),
        (lambda: Tensor.zeros([3]), [0, 0, 0]),
        (lambda: Tensor.full([2], -0.0), [-0.0, -0.0]),
        (lambda: Tensor.full([2], 7), [7, 7]),
        (lambda: Tensor.arange(4), [0, 1, 2, 3]),
        (lambda: Tensor.full_like(Tensor.zeros([2]), 5), [5, 5]),
        (lambda: Tensor.range_like(Tensor.zeros([2, 2])), [[0, 1], [0, 1]]),
    ],
)
def test_making_tensors(make, expected) -> None:
    tensor = make()
    assert tensor.device == DEVICE and tensor.real
    np.testing.assert_array_equal(tensor.to_numpy(), np.float32(expected))


def test_a_bare_op_is_on_the_device_and_real() -> None:
    x = Tensor(normal(5, 3))
    y = F.relu(x)
    assert y.real and y.device == DEVICE and y.driver_tensor.device == DEVICE
    np.testing.assert_array_equal(y.to_numpy(), np.maximum(normal(5, 3), 0))
    np.testing.assert_array_equal(np.asarray(y), np.maximum(normal(5, 3), 0))


def test_reading() -> None:
    x = Tensor([1.5, -2.0])
    assert x[0].item() == 1.5 and bool(x[1] < 0) and float(x[1]) == -2.0 and f"{x[0]:.1f}" == "1.5"
    assert repr(x) == "Tensor([ 1.5 -2. ], shape=[2], dtype=float32, device=gpu:0)"
    assert [part.item() for part in x] == [1.5, -2.0]
    assert int(Tensor(3, dtype=DType.int32)) == 3


def test_moving() -> None:
    x = Tensor(normal(4), device=CPU())
    there = x.to(DEVICE)
    assert there.device == DEVICE and there.to(DEVICE) is there
    back = there.to(CPU())
    assert back.device == CPU()
    np.testing.assert_array_equal(back.to_numpy(), normal(4))
    with pytest.raises(REFUSED, match="same device"):
        x + there


def test_numbers_and_arrays_beside_tensors() -> None:
    x = Tensor(normal(3, 4))
    before = None
    for number in (2.0, 3.0, 4.5, 5.5):
        np.testing.assert_array_equal((x * number).to_numpy(), normal(3, 4) * np.float32(number))
        if number == 3.0:
            before = compile_cache_stats().misses
    assert compile_cache_stats().misses == before, "a number that varies is compiled once more, then never again"
    np.testing.assert_array_equal((x + normal(4, seed=1)).to_numpy(), normal(3, 4) + normal(4, seed=1))


def test_sizes_that_vary() -> None:
    for size in (2, 3, 100, 70_001, 2):
        x = normal(size)
        assert_close((F.softmax(Tensor(x)) * 2).sum().to_numpy(), np.float32([2]), "float32", 1e-5)


def test_regions_fuse_and_match_the_host() -> None:
    @F.functional
    def block(x, w):
        return F.softmax(F.gelu(x @ w) + x)

    x, w = normal(64, 64), normal(64, 64, seed=1) / 8
    got = block(Tensor(x), Tensor(w))
    expected = block(Tensor(x, device=CPU()), Tensor(w, device=CPU()))
    assert got.device == DEVICE and got.real and expected.device == CPU()
    assert_close(got.to_numpy(), expected.to_numpy(), "float32", 1e-5)
    np.testing.assert_array_equal(block(Tensor(x), Tensor(w)).to_numpy(), got.to_numpy())


def test_lazy_tensors() -> None:
    with lazy():
        x = Tensor.ones([10]) * 3
        unread = Tensor.zeros([1 << 30, 1 << 30])
    assert not x.real and not unread.real
    np.testing.assert_array_equal(x.to_numpy(), np.full(10, 3, np.float32))


def test_random_numbers_match_the_host() -> None:
    draws = {}
    for device in (CPU(), DEVICE):
        set_seed(5)
        draws[device] = [
            random.uniform([1000], device=device, dtype=DType.float32),
            random.gaussian([7, 100], mean=1.0, std=2.0, device=device, dtype=DType.float32),
            random.uniform([1000], device=device, dtype=DType.float32),
        ]
    for host, there in zip(draws[CPU()], draws[DEVICE]):
        assert there.device == DEVICE
        assert_close(there.to_numpy(), host.to_numpy(), "float32", 1e-5)


def test_tensors_in_graphs() -> None:
    weight = Tensor(normal(3))
    with Graph("constant", input_types=[TensorType(DType.float32, [3], GPU)]) as graph:
        graph.output(graph.inputs[0].tensor * weight)
    from max.engine import InferenceSession

    (out,) = InferenceSession(devices=[DEVICE]).load(graph).execute(Tensor.ones([3]).driver_tensor)
    np.testing.assert_array_equal(out.to(CPU()).to_numpy(), normal(3))


def test_copies_and_pickles() -> None:
    x = Tensor(normal(3))
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        np.testing.assert_array_equal(other.to_numpy(), normal(3))


# --- modules ----------------------------------------------------------------------------------------------


class Attention(Module):
    def __init__(self, dim: int, heads: int) -> None:
        self.qkv, self.out, self.heads = Linear(dim, 3 * dim), Linear(dim, dim), heads

    @F.functional
    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape([batch, length, 3, self.heads, dim // self.heads])
        q, k, v = (qkv[:, :, part].permute([0, 2, 1, 3]) for part in range(3))
        scores = q @ k.transpose(-1, -2) * (int(dim) // self.heads) ** -0.5
        return self.out((F.softmax(scores) @ v).permute([0, 2, 1, 3]).reshape([batch, length, dim]))


MODULES = {
    "linear": (lambda: Linear(8, 5), (3, 8)),
    "layer_norm": (lambda: LayerNorm(16), (4, 16)),
    "rms_norm": (lambda: RMSNorm(16), (4, 16)),
    "group_norm": (lambda: GroupNorm(2, 8), (2, 8, 5, 5)),
    "conv2d": (lambda: Conv2d(3, 4, 8, padding=1, has_bias=True), (2, 7, 9, 4)),
    "attention": (lambda: Attention(32, 4), (2, 10, 32)),
    "block": (lambda: Sequential(Linear(16, 32), LayerNorm(32), Linear(32, 16, bias=False)), (5, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_match_the_host(name) -> None:
    make, shape = MODULES[name]
    set_seed(1)
    with default_device(CPU()):
        module = make()
        expected = module(Tensor(normal(*shape))).to_numpy()
    assert module.device == CPU()
    assert module.to(DEVICE) is module and module.device == DEVICE
    x = Tensor(normal(*shape))
    got = module(x)
    assert got.device == DEVICE
    assert_close(got.to_numpy(), expected, "float32", 2e-5)
    compiled = module.compile(TensorType(DType.float32, ["batch", *shape[1:]], GPU))
    result = compiled(x)
    assert result.device == DEVICE
    assert_close(result.to_numpy(), expected, "float32", 2e-5)
    assert_close(compiled(normal(*shape)).to_numpy(), expected, "float32", 2e-5)


def test_embeddings() -> None:
    table = Embedding(50, dim=6)
    assert table.device == DEVICE
    tokens = np.array([[3, 49, 0]])
    np.testing.assert_array_equal(table(Tensor(tokens)).to_numpy(), table.weight.to_numpy()[tokens])


def test_host_state_is_copied_to_the_device() -> None:
    linear = Linear(3, 2)
    linear.load_state_dict({"weight": normal(2, 3), "bias": normal(2, seed=1)})
    assert linear.device == DEVICE
    x = normal(4, 3, seed=2)
    assert_close(linear(Tensor(x)).to_numpy(), x @ normal(2, 3).T + normal(2, seed=1), "float32", 1e-5)


def test_modules_in_bfloat16_by_default() -> None:
    with default_dtype(DType.bfloat16):
        module = Sequential(Linear(64, 64), LayerNorm(64))
        out = module(Tensor.ones([2, 64]))
    assert out.dtype == DType.bfloat16 and out.device == DEVICE
    assert np.isfinite(out.cast(DType.float32).to_numpy()).all()
