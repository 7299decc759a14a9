"""Control flow, buffers and subgraphs on a GPU, through the public API; skipped if there is none."""

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, Weight, ops

from helpers import accelerator

DEVICE = accelerator()
GPU = DeviceRef.GPU()
VECTOR = TensorType(DType.float32, [4], GPU)
CACHE = BufferType(DType.float32, [8, 4], GPU)
AT = TensorType(DType.int64, [], GPU)


def put(array) -> Buffer:
    return Buffer.from_numpy(np.array(array)).to(DEVICE)


def get(buffer: Buffer) -> np.ndarray:
    return buffer.to(CPU()).to_numpy()


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[DEVICE])


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_branches_and_loops(session) -> None:
    flag = TensorType(DType.bool, [], DeviceRef.CPU())
    with Graph("g", input_types=[flag, VECTOR]) as graph:
        flag, x = graph.inputs
        (y,) = ops.cond(flag, [VECTOR], lambda: x * 2, lambda: x + 1)
        (z,) = ops.while_loop(y, lambda v: (ops.sum(v)[0] < 100).to(DeviceRef.CPU()), lambda v: v * 2)
        graph.output(y, z)
    model = session.load(graph)
    for given, y in ((True, floats(2, 4, 6, 8)), (False, floats(2, 3, 4, 5))):
        first, last = model.execute(np.array(given), put(floats(1, 2, 3, 4)))
        np.testing.assert_array_equal(get(first), y)
        while y.sum() < 100:
            y = y * 2
        np.testing.assert_array_equal(get(last), y)


def cache_graph() -> Graph:
    with Graph("cache", input_types=[CACHE, VECTOR, AT]) as graph:
        cache, row, at = graph.inputs
        before = cache[0]
        cache[at] = row * 2
        cache[7] = row
        graph.output(before, ops.sum(cache[...], axis=0))
    return graph


def test_buffers_change_in_place(session) -> None:
    model = session.load(cache_graph())
    cache, expected = put(np.zeros((8, 4), dtype=np.float32)), np.zeros((8, 4), dtype=np.float32)
    for step in range(6):
        row = floats(1, 2, 3, 4) + step
        before, total = model.execute(cache, put(row), put(np.int64(step % 3)))
        np.testing.assert_array_equal(get(before), expected[0])
        expected[step % 3], expected[7] = row * 2, row
        np.testing.assert_array_equal(get(cache), expected)
        np.testing.assert_array_equal(get(total)[0], expected.sum(axis=0))


def test_captures_change_buffers(session) -> None:
    model = session.load(cache_graph())
    cache, row, at = put(np.zeros((8, 4), dtype=np.float32)), put(floats(1, 2, 3, 4)), put(np.int64(2))
    expected = np.zeros((8, 4), dtype=np.float32)
    before, total = model.capture(1, cache, row, at)
    for step in range(4):
        row.inplace_copy_from(put(floats(1, 2, 3, 4) * step))
        at.inplace_copy_from(put(np.int64(step)))
        first = get(cache)[0].copy()
        model.replay(1, cache, row, at)
        np.testing.assert_array_equal(get(before), first)
        expected = get(cache)
        np.testing.assert_array_equal(expected[step], floats(1, 2, 3, 4) * step * 2)
        np.testing.assert_array_equal(expected[7], floats(1, 2, 3, 4) * step)
        np.testing.assert_array_equal(get(total)[0], expected.sum(axis=0))
    model.debug_verify_replay(1, cache, row, at)


def test_positions_out_of_range_are_reported(session) -> None:
    model = session.load(cache_graph())
    cache = put(np.zeros((8, 4), dtype=np.float32))
    for bad in (8, -9, 2**40):
        with pytest.raises(IndexError, match="out of range for axis 0 with size 8"):
            for output in model.execute(cache, put(floats(1, 2, 3, 4)), put(np.int64(bad))):
                get(output)
            DEVICE.synchronize()
    np.testing.assert_array_equal(get(cache)[:7], np.zeros((7, 4)))


def test_subgraphs_are_captured_and_replayed(session) -> None:
    with Graph("layers", input_types=[VECTOR, CACHE]) as graph:
        x, cache = graph.inputs

        def layer(x, cache):
            w = Weight("w", DType.float32, [4], GPU)
            y = ops.relu(x * w)
            cache[1] = y
            return y

        subgraph = graph.add_subgraph("layer", layer, [VECTOR, CACHE])
        for number in range(5):
            (x,) = ops.call(subgraph, x, cache, prefix=f"{number}.")
        graph.output(x)
    weights = {f"{number}.w": floats(1, 2, -1, 0.5) for number in range(5)}
    model = session.load(graph, weights_registry=weights)
    x, cache = put(floats(1, 1, 1, 64)), put(np.zeros((8, 4), dtype=np.float32))
    (out,) = model.capture(3, x, cache)
    for scale in (1, 2, 3):
        x.inplace_copy_from(put(floats(1, 1, 1, 64) * scale))
        model.replay(3, x, cache)
        np.testing.assert_array_equal(get(out), floats(1, 32, 0, 2) * scale)
        np.testing.assert_array_equal(get(cache)[1], floats(1, 32, 0, 2) * scale)


def test_branches_are_not_captured(session) -> None:
    flag = TensorType(DType.bool, [], DeviceRef.CPU())
    with Graph("g", input_types=[flag, VECTOR]) as graph:
        flag, x = graph.inputs
        graph.output(*ops.cond(flag, [VECTOR], lambda: x * 2, lambda: x + 1))
    model = session.load(graph)
    with pytest.raises(RuntimeError, match="branches or loops on a GPU"):
        model.capture(1, np.array(True), put(floats(1, 2, 3, 4)))


def test_host_arrays_are_not_copied_for_buffers(session) -> None:
    model = session.load(cache_graph())
    with pytest.raises(ValueError, match="written in place"):
        model.execute(np.zeros((8, 4), dtype=np.float32), put(floats(1, 2, 3, 4)), put(np.int64(0)))
