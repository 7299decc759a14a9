"""Graphs and models on a GPU, through the public API; skipped if there is none."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from max.driver import CPU, Buffer, DeviceStream
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Graph, TensorType, Weight, ops

from helpers import REFUSED, accelerator, assert_close, build, to_array, to_buffer

DEVICE = accelerator()
GPU = DeviceRef.GPU()
FLOATS = ["float32", "float16", "bfloat16"]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_gpu(dtype: str, *dims) -> TensorType:
    return TensorType(getattr(DType, dtype), list(dims), GPU)


def put(array: np.ndarray, dtype: str = "float32") -> Buffer:
    return to_buffer(array, dtype).to(DEVICE)


def get(buffer: Buffer) -> np.ndarray:
    assert buffer.device == DEVICE
    return to_array(buffer.to(CPU()))


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[DEVICE])


def run(session: InferenceSession, forward, *arrays: np.ndarray, dtype: str = "float32") -> list[np.ndarray]:
    model = session.load(build(forward, [on_gpu(dtype, *a.shape) for a in arrays]))
    return [get(output) for output in model.execute(*(put(a, dtype) for a in arrays))]


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values, rounded to a dtype."""
    return to_array(to_buffer(array, dtype)).astype(np.float64)


# --- ops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise(session, dtype) -> None:
    x, y = normal(7, 300), normal(300, seed=1)
    (got,) = run(session, lambda a, b: ops.relu(a + b) * 2, x, y, dtype=dtype)
    expected = np.maximum(rounded(x, dtype) + rounded(y, dtype), 0) * 2
    assert_close(got, expected.astype(np.float32), dtype, rtol=0.01 if dtype != "float32" else 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (64, 1000), (3, 20_000)])
def test_rows(session, dtype, shape) -> None:
    x = normal(*shape)
    (softmax, total) = run(session, lambda a: [ops.softmax(a), ops.sum(a)], x, dtype=dtype)
    wide = rounded(x, dtype)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    assert_close(softmax.astype(np.float32), (e / e.sum(-1, keepdims=True)).astype(np.float32), dtype)
    assert_close(total.astype(np.float32), wide.sum(-1, keepdims=True).astype(np.float32), dtype, rtol=1e-5)


def test_layer_norm(session) -> None:
    x, gamma, beta = normal(40, 768), normal(768, seed=1), normal(768, seed=2)
    (got,) = run(session, lambda a, g, b: ops.layer_norm(a, g, b, 1e-5), x, gamma, beta)
    centred = x - x.mean(-1, keepdims=True)
    assert_close(got, centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta, "float32", 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m,k,n", [(1, 1, 1), (3, 5, 7), (64, 64, 64), (127, 300, 65), (512, 768, 256)])
def test_matmul(session, dtype, m, k, n) -> None:
    a, b = normal(m, k) / 4, normal(k, n, seed=1) / 4
    bias = normal(n, seed=2)
    got, ended = run(session, lambda a, b, c: [a @ b, ops.relu(a @ b + c)], a, b, bias, dtype=dtype)
    product = rounded(a, dtype) @ rounded(b, dtype)
    assert_close(got, product.astype(np.float32), dtype, rtol=1e-5)
    assert_close(ended, np.maximum(product + rounded(bias, dtype), 0).astype(np.float32), dtype, rtol=1e-5)


def test_matmul_of_transposed_and_batched_operands(session) -> None:
    a, b = normal(4, 3, 20, 30), normal(3, 50, 30, seed=1)
    (got,) = run(session, lambda a, b: a @ ops.transpose(b, -1, -2), a, b)
    assert_close(got, a @ b.swapaxes(-1, -2), "float32", 1e-5)
    (got,) = run(session, lambda a, b: ops.transpose(a, -1, -2) @ b, a, normal(3, 20, 8, seed=2))
    assert_close(got, a.swapaxes(-1, -2) @ normal(3, 20, 8, seed=2), "float32", 1e-5)


@pytest.mark.parametrize("stride,padding", [(1, 0), (1, 1), (2, 1)])
def test_conv2d(session, stride, padding) -> None:
    x, w = normal(2, 9, 11, 4), normal(3, 3, 4, 6, seed=1)
    (got,) = run(session, lambda x, w: ops.conv2d(x, w, (stride, stride), padding=(padding,) * 4), x, w)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::stride, ::stride]
    assert_close(got, np.einsum("nhwcrs,rscf->nhwf", windows, w), "float32", 1e-5)


def test_movement(session) -> None:
    x, order = normal(6, 50, 7), np.array([5, 0, 3, 3], dtype=np.int64)
    types = [on_gpu("float32", 6, 50, 7), on_gpu("int64", 4)]

    def forward(x, i):
        return [x.permute([2, 0, 1]), x[::-1, 10:40:3], ops.concat([x, x[:, :, :2]], axis=2), ops.gather(x, i, axis=0)]

    outputs = session.load(build(forward, types)).execute(put(x), Buffer.from_numpy(order).to(DEVICE))
    expected = [x.transpose(2, 0, 1), x[::-1, 10:40:3], np.concatenate([x, x[:, :, :2]], 2), x[order]]
    for got, want in zip(outputs, expected):
        np.testing.assert_array_equal(get(got), want)


def test_the_session_still_works_after_an_index_out_of_range(session) -> None:
    model = session.load(build(lambda x, i: ops.gather(x, i, axis=0), [on_gpu("float32", 4), on_gpu("int64", 1)]))
    x = put(normal(4))
    with pytest.raises((IndexError, ValueError, RuntimeError)):
        (out,) = model.execute(x, Buffer.from_numpy(np.array([9])).to(DEVICE))
        out.to(CPU()).to_numpy()
        DEVICE.synchronize()
    (out,) = model.execute(x, Buffer.from_numpy(np.array([2])).to(DEVICE))
    np.testing.assert_array_equal(get(out), normal(4)[2:3])


def test_attention(session) -> None:
    q, k, v = (normal(2, 4, 33, 64, seed=seed) for seed in range(3))

    def attention(q, k, v):
        return ops.softmax(q @ ops.transpose(k, -1, -2) * 0.125) @ v

    (got,) = run(session, attention, q, k, v)
    scores = (q @ k.swapaxes(-1, -2)).astype(np.float64) * 0.125
    e = np.exp(scores - scores.max(-1, keepdims=True))
    assert_close(got, (e / e.sum(-1, keepdims=True) @ v).astype(np.float32), "float32", 1e-5)


# --- models ---------------------------------------------------------------------------------------------


def test_symbolic_sizes_and_the_same_bits_twice(session) -> None:
    graph = build(lambda x: ops.softmax(ops.gelu(x) * 3), [on_gpu("float32", "rows", "columns")])
    model = session.load(graph)
    host = InferenceSession().load(build(lambda x: ops.softmax(ops.gelu(x) * 3), [TensorType(DType.float32, ["r", "c"])]))
    for shape in [(1, 5), (300, 1), (17, 1023), (1, 5), (0, 4)]:
        x = normal(*shape)
        first, again = (get(model.execute(put(x))[0]) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert_close(first, host.execute(x)[0].to_numpy(), "float32", 1e-5)


def test_results_are_on_the_device_and_metadata_says_so(session) -> None:
    model = session.load(build(lambda x: x + 1, [on_gpu("float32", 3)]))
    assert [spec.dtype for spec in model.input_metadata] == [DType.float32]
    assert model.input_devices == [DEVICE] and model.output_devices == [DEVICE]
    (out,) = model.execute(put(np.zeros(3, np.float32)))
    assert out.device == DEVICE and not out.is_host
    np.testing.assert_array_equal(get(out), [1, 1, 1])


def test_weights(session) -> None:
    w, b = normal(8, 5), normal(5, seed=1)
    types = {"w": (DType.float32, [8, 5], GPU), "b": (DType.float32, [5], GPU)}
    with Graph("linear", input_types=[on_gpu("float32", "n", 8)]) as graph:
        weights = {name: graph.add_weight(Weight(name, *type)) for name, type in types.items()}
        graph.output(graph.inputs[0].tensor @ weights["w"] + weights["b"])
    x = normal(3, 8, seed=2)
    # From the host, and from the device.
    for registry in ({"w": w, "b": b}, {"w": put(w), "b": put(b)}):
        (out,) = session.load(graph, weights_registry=registry).execute(put(x))
        assert_close(get(out), x @ w + b, "float32", 1e-5)
    with pytest.raises(ValueError, match="'b'"):
        session.load(graph, weights_registry={"w": w})


def test_values_on_two_devices(session) -> None:
    with Graph("both", input_types=[TensorType(DType.float32, [4]), on_gpu("float32", 4)]) as graph:
        x, y = (value.tensor for value in graph.inputs)
        there = x.to(GPU) * y
        graph.output(there, there.to(DeviceRef.CPU()) + x)
    x, y = normal(4), normal(4, seed=1)
    moved, back = session.load(graph).execute(x, put(y))
    assert_close(get(moved), x * y, "float32")
    assert back.is_host
    assert_close(back.to_numpy(), x * y + x, "float32")


def test_inputs_of_another_device_are_refused_or_moved(session) -> None:
    """A host array is copied to the device; a buffer must already be there."""
    model = session.load(build(lambda x: x * 2, [on_gpu("float32", 3)]))
    try:
        (out,) = model.execute(Buffer.from_numpy(np.ones(3, np.float32)))
    except REFUSED as error:
        assert "gpu" in str(error)
    else:
        np.testing.assert_array_equal(get(out), [2, 2, 2])


def test_ops_on_two_devices_are_refused() -> None:
    with Graph("mixed", input_types=[TensorType(DType.float32, [4]), on_gpu("float32", 4)]) as graph:
        with pytest.raises(REFUSED, match="same device"):
            graph.inputs[0].tensor + graph.inputs[1].tensor


def test_a_session_without_the_device_says_so() -> None:
    graph = build(lambda x: x * 2, [on_gpu("float32", 3)])
    with pytest.raises(REFUSED, match="gpu"):
        InferenceSession(devices=[CPU()]).load(graph)


def test_strided_inputs(session) -> None:
    model = session.load(build(lambda x: x + 1, [on_gpu("float32", 4, 3)]))
    wide = normal(4, 6)
    np.testing.assert_array_equal(get(model.execute(put(wide)[:, ::2])[0]), wide[:, ::2] + 1)


def test_threads(session) -> None:
    model = session.load(build(lambda x: ops.softmax(x @ x), [on_gpu("float32", 65, 65)]))
    inputs = [normal(65, 65, seed=seed) for seed in range(4)]
    alone = [get(model.execute(put(x))[0]) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: [get(model.execute(put(x))[0]) for _ in range(20)], inputs))
    for one, many in zip(alone, together):
        for result in many:
            np.testing.assert_array_equal(result, one)


# --- capture ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def block(session) -> Model:
    def forward(x, w):
        return ops.softmax(ops.gelu(x @ w) + x) @ w

    return session.load(build(forward, [on_gpu("float32", "n", 64), on_gpu("float32", 64, 64)]))


def test_capture_and_replay(block) -> None:
    x, w = put(normal(10, 64)), put(normal(64, 64, seed=1) / 8)
    (out,) = block.capture(1, x, w)
    (expected,) = block.execute(x, w)
    np.testing.assert_array_equal(get(out), get(expected))
    # Other contents in the same memory, then other memory.
    x.inplace_copy_from(put(normal(10, 64, seed=5)))
    block.replay(1, x, w)
    np.testing.assert_array_equal(get(out), get(block.execute(x, w)[0]))
    other = put(normal(10, 64, seed=6))
    for _ in range(3):
        block.replay(1, other, w)
        block.replay(1, x, w)
    np.testing.assert_array_equal(get(out), get(block.execute(x, w)[0]))
    block.debug_verify_replay(1, x, w)
    block.release_captured_graph(1)
    with pytest.raises(REFUSED):
        block.replay(1, x, w)


def test_captures_by_key(block) -> None:
    w = put(normal(64, 64, seed=1) / 8)
    inputs = {rows: put(normal(rows, 64, seed=rows)) for rows in (1, 8, 33)}
    outputs = {rows: block.capture(rows, x, w)[0] for rows, x in inputs.items()}
    for rows in (33, 1, 8, 1):
        block.replay(rows, inputs[rows], w)
    for rows, out in outputs.items():
        np.testing.assert_array_equal(get(out), get(block.execute(inputs[rows], w)[0]))
    with pytest.raises(REFUSED):
        block.replay(8, inputs[33], w)


def test_replay_on_its_own_output(session) -> None:
    model = session.load(build(lambda x: x[::-1] + 1, [on_gpu("float32", 400, 300)]))
    x = normal(400, 300)
    (out,) = model.capture(1, put(x))
    expected = x[::-1] + 1
    for _ in range(3):
        model.replay(1, out)
        expected = expected[::-1] + 1
        np.testing.assert_array_equal(get(out), expected)


# --- observing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "detailed"])
def test_profiles(mode) -> None:
    session = InferenceSession(devices=[DEVICE])
    session.gpu_profiling(mode)
    model = session.load(build(lambda x: ops.softmax(x @ x), [on_gpu("float32", 128, 128)]))
    for _ in range(3):
        model.execute(put(normal(128, 128)))
    table = model.profile_table()
    for kernel in model.kernel_summaries:
        assert kernel.name in table


def test_values_are_checked() -> None:
    session = InferenceSession(devices=[DEVICE])
    session.set_mojo_assert_level("all")
    model = session.load(build(lambda x: ops.log(x) * 2, [on_gpu("float32", 3)]))
    with pytest.raises(RuntimeError, match="log"):
        model.execute(put(np.array([1, -1, 2], np.float32)))
        DEVICE.synchronize()


# --- memory -----------------------------------------------------------------------------------------------


def test_the_session_still_works_after_running_out_of_memory(session) -> None:
    huge = 1 << 42
    with pytest.raises((MemoryError, RuntimeError, ValueError), match="(?i)memory"):
        Buffer(DType.uint8, [huge], DEVICE)
    model = session.load(build(lambda x: ops.broadcast_to(x, [1 << 20, 1 << 20]) + 1.0, [on_gpu("float32", 1)]))
    with pytest.raises((MemoryError, RuntimeError), match="(?i)memory"):
        model.execute(put(np.zeros(1, np.float32)))
    (out,) = session.load(build(lambda x: x + 1, [on_gpu("float32", 3)])).execute(put(np.zeros(3, np.float32)))
    np.testing.assert_array_equal(get(out), [1, 1, 1])


def test_temporaries_do_not_pile_up(session) -> None:
    model = session.load(build(lambda x: ops.softmax(ops.gelu(x @ x)) @ x, [on_gpu("float32", 512, 512)]))
    x = put(normal(512, 512))
    used = []
    for _ in range(30):
        model.execute(x)
        DEVICE.synchronize()
        used.append(DEVICE.stats["bytes_in_use"])
    assert used[-1] == used[5]


def test_buffers_of_other_streams_are_waited_for(session) -> None:
    stream = DeviceStream(DEVICE)
    model = session.load(build(lambda x: x * 2, [on_gpu("float32", 1 << 22)]))
    x = normal(1 << 22)
    for _ in range(5):
        moved = Buffer.from_numpy(x).to(stream)
        np.testing.assert_array_equal(get(model.execute(moved)[0]), x * 2)
