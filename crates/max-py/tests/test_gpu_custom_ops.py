"""Custom ops on a GPU, through the public API; skipped if there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, KernelLibrary, TensorType, ops

from helpers import accelerator

DEVICE = accelerator()
GPU = DeviceRef.GPU()
ROWS = Path(__file__).resolve().parents[3] / "examples" / "custom-ops" / "rows.cu"


def on_gpu(dtype: str, *dims: Any) -> TensorType:
    return TensorType(getattr(DType, dtype), list(dims), GPU)


def put(array: np.ndarray) -> Buffer:
    return Buffer.from_numpy(array).to(DEVICE)


def get(buffer: Buffer) -> np.ndarray:
    return buffer.to(CPU()).to_numpy()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[DEVICE])


def rows_graph() -> Graph:
    types = [on_gpu("float32", "n", "k"), on_gpu("float32", "n")]
    with Graph("rows", input_types=types, kernel_library=KernelLibrary(paths=[ROWS])) as graph:
        x, by = (value.tensor for value in graph.inputs)
        (scaled,) = ops.custom("scale_rows", GPU, [x + 1, by], [on_gpu("float32", "n", "k")])
        (sums,) = ops.custom("row_sums", GPU, [scaled * 2], [on_gpu("float32", "n")], {"shift": 7})
        graph.output(scaled, sums - 1)
    return graph


def check_rows(outputs: Any, x: np.ndarray, by: np.ndarray) -> None:
    scaled = (x + 1) * by[:, np.newaxis]
    np.testing.assert_allclose(get(outputs[0]), scaled, rtol=1e-6)
    np.testing.assert_allclose(get(outputs[1]), 2 * scaled.sum(axis=1) + 6, rtol=1e-4, atol=1e-3)


def test_the_example(session: InferenceSession) -> None:
    model = session.load(rows_graph())
    for n, k in ((3, 5), (1000, 300), (1, 1), (0, 4), (17, 0)):
        x, by = normal(n, k), normal(n)
        check_rows(model.execute(put(x), put(by)), x, by)


def test_captures(session: InferenceSession) -> None:
    model = session.load(rows_graph())
    x, by = normal(64, 100), normal(64)
    inputs = (put(x), put(by))
    outputs = model.capture(1, *inputs)
    check_rows(outputs, x, by)
    for factor in (2, 3):
        others = (put(factor * x), put(by))
        model.replay(1, *others)
        check_rows(outputs, factor * x, by)
    model.debug_verify_replay(1, *inputs)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64"])
def test_names_of_dtypes_are_types(session: InferenceSession, dtype: str) -> None:
    library, matrix = KernelLibrary(paths=[ROWS]), on_gpu(dtype, 4, 6)
    with Graph("g", input_types=[matrix, on_gpu("float32", 4)], kernel_library=library) as graph:
        graph.output(*ops.custom("scale_rows", GPU, graph.inputs, [matrix]))
    x, by = np.arange(24).reshape(4, 6).astype(dtype), np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(get(session.load(graph).execute(put(x), put(by))[0]), x * by[:, np.newaxis].astype(dtype))


def test_a_source_that_does_not_compile(session: InferenceSession) -> None:
    library = KernelLibrary()
    library.register_cuda("broken", 'extern "C" __global__ void broken(T* x) { x = y; }', "T[n] -> T[n]", threads="n")
    library.register_cuda("nameless", "__global__ void other() {}", "T[n] -> T[n]", threads="n")
    for name, message in (("broken", '(?s)custom op \'broken\' .*"y" is undefined'), ("nameless", "custom op 'nameless'")):
        with Graph("g", input_types=[on_gpu("float32", 3)], kernel_library=library) as graph:
            graph.output(*ops.custom(name, GPU, graph.inputs, [on_gpu("float32", 3)]))
        with pytest.raises(RuntimeError, match=message):
            session.load(graph).execute(put(normal(3)))


def test_buffers_are_changed_in_place(session: InferenceSession) -> None:
    library = KernelLibrary()
    source = """
    extern "C" __global__ void bump(float* x, float* old, long long n, long long by) {
        const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (at < n) { old[at] = x[at]; x[at] += by; }
    }
    """
    library.register_cuda("bump", source, "&float32[n] -> float32[n]", threads="n", parameters=["by"])
    with Graph("g", input_types=[BufferType(DType.float32, [1000], GPU)], kernel_library=library) as graph:
        (old,) = ops.inplace_custom("bump", GPU, graph.inputs, [on_gpu("float32", 1000)], {"by": 3})
        graph.output(old * 2)
    model, state = session.load(graph), put(np.zeros(1000, np.float32))
    for count in range(3):
        assert set(get(model.execute(state)[0])) == {6.0 * count}
    assert set(get(state)) == {9.0}


def test_a_function_gets_buffers_of_the_gpu(session: InferenceSession) -> None:
    library, seen = KernelLibrary(), []

    @library.register("double_on_host", "T[*shape] -> T[*shape]")
    def double_on_host(x: Buffer, out: Buffer) -> None:
        seen.append((x.device, out.device))
        out.inplace_copy_from(put(2 * get(x)))

    with Graph("g", input_types=[on_gpu("float32", 3)], kernel_library=library) as graph:
        (y,) = ops.custom("double_on_host", GPU, [graph.inputs[0] + 1], [on_gpu("float32", 3)])
        graph.output(y * 3)
    model, x = session.load(graph), normal(3)
    np.testing.assert_allclose(get(model.execute(put(x))[0]), 6 * (x + 1), rtol=1e-6)
    assert seen == [(DEVICE, DEVICE)]
    with pytest.raises(RuntimeError, match="cannot be captured"):
        model.capture(1, put(x))


def test_a_body_fuses(session: InferenceSession) -> None:
    library = KernelLibrary()
    library.elementwise("swish", lambda x: x * ops.sigmoid(x), "T[*shape] -> T[*shape]")
    with Graph("g", input_types=[on_gpu("float32", "n")], kernel_library=library) as graph:
        (y,) = ops.custom("swish", GPU, [graph.inputs[0] + 1], [on_gpu("float32", "n")])
        graph.output(y * 2)
    model, x = session.load(graph), normal(1000)
    assert len(model.kernel_summaries) == 1
    np.testing.assert_allclose(get(model.execute(put(x))[0]), 2 * (x + 1) / (1 + np.exp(-x - 1)), rtol=1e-5, atol=1e-6)
