"""Virtual devices, and collectives on them against NumPy.

A process uses either GPUs or virtual devices, so these tests are skipped where there is a GPU: others in this process use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pytest
from max import driver
from max.driver import CPU, Accelerator, Buffer, DeviceSpec
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import BufferType, BufferValue, DeviceRef, Graph, TensorType, TensorValue, ops

pytestmark = pytest.mark.skipif(
    driver.accelerator_count() > 0 and not driver.is_virtual_device_mode(),
    reason="this machine has a GPU, and a process uses either GPUs or virtual devices",
)

Collective = Callable[[list[TensorValue], list[BufferValue]], list[TensorValue]]


@pytest.fixture(autouse=True)
def virtual_devices() -> Iterator[None]:
    driver.set_virtual_device_count(4)
    yield
    driver.set_virtual_device_count(0)


def build(
    types: Sequence[TensorType], op: Collective, signals: Optional[Sequence[int]] = None
) -> Graph:
    """A graph from tensors to the results of a collective, with signal buffers on GPUs: by default on those of the tensors."""
    on = [ty.device.id for ty in types] if signals is None else signals
    buffers = [BufferType(DType.uint8, [1], DeviceRef.GPU(id)) for id in on]
    with Graph("collective", input_types=[*types, *buffers]) as graph:
        values = graph.inputs
        results = op([v.tensor for v in values[: len(types)]], [v.buffer for v in values[len(types) :]])
        graph.output(*results)
    return graph


def run(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Executes a graph on its devices, and checks that results are where their types say."""
    devices = [Accelerator(id) for id in range(driver.accelerator_count())]
    model = InferenceSession(devices=devices).load(graph)
    inputs = [
        Buffer.from_numpy(array).to(device)
        for array, device in zip([*arrays, *[np.zeros(1, np.uint8)] * 4], model.input_devices)
    ]
    outputs = model.execute(*inputs)
    assert [output.device for output in outputs] == model.output_devices
    assert not any(output.is_host for output in outputs)
    return [output.to(CPU()).to_numpy() for output in outputs]


def draw(count: int, shape: Sequence[int], dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-8, 8, shape).astype(dtype) for _ in range(count)]


def types(arrays: Sequence[np.ndarray], shape: Optional[Sequence[Any]] = None) -> list[TensorType]:
    return [
        TensorType(DType.from_numpy(x.dtype), shape or x.shape, DeviceRef.GPU(id)) for id, x in enumerate(arrays)
    ]


class TestVirtualDevices:
    def test_they_answer_as_gpus(self) -> None:
        assert driver.get_virtual_device_count() == driver.accelerator_count() == 4
        assert driver.is_virtual_device_mode()
        device = Accelerator(2)
        assert str(device) == "Device(type=gpu,id=2)"
        assert (device.label, device.id, device.is_host, device.is_compatible) == ("gpu", 2, False, True)
        assert device == Accelerator(2) != Accelerator(1)
        assert (device.api, driver.accelerator_api()) == ("virtual", "virtual")
        assert DeviceRef.from_device(device) == DeviceRef.GPU(2)
        assert DeviceRef.GPU(2).to_device() == device
        assert driver.scan_available_devices() == [DeviceSpec.accelerator(id) for id in range(4)]
        assert driver.load_devices([DeviceSpec.accelerator(3)]) == [Accelerator(3)]
        assert not driver.devices_exist([DeviceSpec.accelerator(4)])
        with pytest.raises(RuntimeError, match="gpu:4.*there are 4 virtual devices"):
            Accelerator(4)
        with pytest.raises(RuntimeError, match="virtual"):
            driver.accelerator_architecture_name()

    def test_buffers_are_theirs(self) -> None:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        before = Accelerator(1).stats["bytes_in_use"]
        buffer = Buffer.from_numpy(x).to(Accelerator(1))
        assert Accelerator(1).stats["bytes_in_use"] > before
        assert not buffer.is_host and buffer.device == Accelerator(1)
        other = buffer.to(Accelerator(0))
        buffer[0, 0] = 9
        assert other[0, 0].item() == 0 and buffer[0, 0].item() == 9
        assert buffer[1, 2].item() == 5
        assert "gpu[1]" in repr(buffer)
        with pytest.raises(ValueError, match="not in host memory"):
            buffer.to_numpy()
        with pytest.raises(RuntimeError, match="copy the elements to the CPU"):
            np.from_dlpack(buffer)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("count", "error"), [(-1, ValueError), (10**6, ValueError), (2**40, ValueError)])
    def test_impossible_counts(self, count: int, error: type[Exception]) -> None:
        with pytest.raises(error, match="virtual devices"):
            driver.set_virtual_device_count(count)
        assert driver.get_virtual_device_count() == 4

    @pytest.mark.parametrize("count", ["2", 1.5, None, True])
    def test_a_count_is_an_int(self, count: Any) -> None:
        with pytest.raises(TypeError, match="must be an int"):
            driver.set_virtual_device_count(count)

    def test_the_count_changes_while_they_are_used(self) -> None:
        buffer = Buffer.from_numpy(np.ones(3, np.float32)).to(Accelerator(3))
        driver.set_virtual_device_count(1)
        with pytest.raises(RuntimeError, match="there are 1 virtual devices"):
            Accelerator(3)
        assert buffer.to(CPU()).to_numpy().sum() == 3
        driver.set_virtual_device_count(0)
        assert not driver.is_virtual_device_mode() and driver.accelerator_count() == 0

    def test_tensors(self) -> None:
        x = Tensor.ones([2, 3], dtype=DType.float32, device=Accelerator(1))
        y = F.relu(x * 2 - 1)
        assert y.device == Accelerator(1) and y.real
        assert Tensor.ones([2]).device == Accelerator(0), "as on a GPU, the first one is the default"
        np.testing.assert_array_equal(np.from_dlpack(y.to(CPU())), np.ones((2, 3), np.float32))
        with pytest.raises(ValueError, match="device"):
            x + x.to(Accelerator(0))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
class TestAgainstNumPy:
    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int64, np.float16])
    def test_allreduce(self, count: int, dtype: Any) -> None:
        arrays = draw(count, (3, 5), dtype)
        for result in run(build(types(arrays, ["a", "b"]), ops.allreduce.sum), arrays):
            np.testing.assert_array_equal(result, np.sum(arrays, axis=0, dtype=dtype))
            assert result.dtype == dtype

    @pytest.mark.parametrize("axis", [0, 1, -1, -2])
    def test_allgather(self, count: int, axis: int) -> None:
        # Sizes differ along the axis.
        arrays = [np.concatenate([x] * (id + 1), axis=axis) for id, x in enumerate(draw(count, (2, 3)))]
        for result in run(build(types(arrays), lambda x, s: ops.allgather(x, s, axis)), arrays):
            np.testing.assert_array_equal(result, np.concatenate(arrays, axis=axis))

    @pytest.mark.parametrize("size", [0, 1, 7, 12])
    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("symbolic", [False, True])
    def test_reducescatter(self, count: int, size: int, axis: int, symbolic: bool) -> None:
        arrays = draw(count, (size, size), np.int32)
        graph = build(types(arrays, ["n", "m"] if symbolic else None), lambda x, s: ops.reducescatter.sum(x, s, axis))
        expected = np.array_split(np.sum(arrays, axis=0, dtype=np.int32), count, axis=axis)
        for result, part in zip(run(graph, arrays), expected):
            np.testing.assert_array_equal(result, part)

    def test_broadcast(self, count: int) -> None:
        (x,) = draw(1, (4, 3))
        ty = TensorType(DType.float32, ["n", 3], DeviceRef.GPU(count - 1))
        graph = build([ty], lambda x, s: ops.distributed_broadcast(x[0][1:], s), range(count))
        results = run(graph, [x])
        assert len(results) == count
        for result in results:
            np.testing.assert_array_equal(result, x[1:])

    @pytest.mark.parametrize("chunks", [1, 2, 3, 4])
    def test_scatter(self, count: int, chunks: int) -> None:
        arrays = [np.full(id + 1, id, np.float32) for id in range(chunks)]
        given = [TensorType(DType.float32, x.shape, DeviceRef.GPU(0)) for x in arrays]
        if chunks > count:
            with pytest.raises(ValueError, match=f"{chunks} input chunks.*{count} devices"):
                build(given, ops.distributed_scatter, range(count))
            return
        sharing = -(-count // chunks)
        results = run(build(given, ops.distributed_scatter, range(count)), arrays)
        for rank, result in enumerate(results):
            np.testing.assert_array_equal(result, arrays[min(rank // sharing, chunks - 1)])

    def test_empty_tensors(self, count: int) -> None:
        arrays = draw(count, (0, 3))
        for op in (ops.allreduce.sum, ops.allgather, ops.reducescatter.sum):
            for result in run(build(types(arrays), op), arrays):
                assert result.shape == (0, 3)


@pytest.mark.parametrize("count", [2, 4])
def test_a_sharded_matmul_is_that_of_one_device(count: int) -> None:
    x, w = draw(1, (5, 16))[0], draw(1, (16, 8))[0]
    rows = [np.ascontiguousarray(part) for part in np.split(w, count, axis=0)]
    columns = [np.ascontiguousarray(part) for part in np.split(x, count, axis=1)]

    def add(values: list[TensorValue], signals: list[BufferValue]) -> list[TensorValue]:
        return ops.allreduce.sum([a @ b for a, b in zip(values[:count], values[count:])], signals)

    graph = build([*types(columns, ["rows", 16 // count]), *types(rows)], add, range(count))
    for result in run(graph, [*columns, *rows]):
        np.testing.assert_array_equal(result, x @ w)


class TestErrors:
    X = TensorType(DType.float32, [2, 3], DeviceRef.GPU(0))

    @pytest.mark.parametrize("op", [ops.allreduce.sum, ops.allgather, ops.reducescatter.sum])
    def test_inputs_and_signal_buffers(self, op: Collective) -> None:
        there = self.X.to(DeviceRef.GPU(1))
        with pytest.raises(ValueError, match=r"inputs \(2\) and number of signal buffers \(1\) to match"):
            build([self.X, there], op, [0])
        with pytest.raises(ValueError, match="input 0 is on gpu:0, but its signal buffer is on gpu:1"):
            build([self.X, there], op, [1, 0])
        with pytest.raises(ValueError, match="gpu:0 does so repeatedly"):
            build([self.X, self.X], op, [0, 1])
        with pytest.raises(ValueError, match="same dtype; got float32 and int32"):
            build([self.X, there.cast(DType.int32)], op)
        with pytest.raises(ValueError, match=r"\[2, 3\] and \[2, 4\]"):
            build([self.X, TensorType(DType.float32, [2, 4], DeviceRef.GPU(1))], op)
        with pytest.raises(ValueError, match=r"\[2, 3\] and \[6\]"):
            build([self.X, TensorType(DType.float32, [6], DeviceRef.GPU(1))], op)
        with pytest.raises(TypeError, match="BufferValue"), Graph("g", input_types=[self.X]) as graph:
            op([graph.inputs[0].tensor], [graph.inputs[0]])  # type: ignore[list-item]

    def test_no_inputs(self) -> None:
        with Graph("g"):
            assert ops.allgather([], []) == []
            for op in (ops.allreduce.sum, ops.reducescatter.sum):
                with pytest.raises(ValueError, match="at least one"):
                    op([], [])

    def test_axes(self) -> None:
        with pytest.raises(IndexError, match="axis 2"):
            build([self.X], lambda x, s: ops.allgather(x, s, 2))
        with pytest.raises(ValueError, match="axis -3"):
            build([self.X], lambda x, s: ops.reducescatter.sum(x, s, -3))

    def test_broadcast(self) -> None:
        def op(x: list[TensorValue], s: list[BufferValue]) -> list[TensorValue]:
            return ops.distributed_broadcast(x[0], s)

        with pytest.raises(ValueError, match="at least one device with a signal buffer"):
            build([self.X], op, [])
        with pytest.raises(ValueError, match="on gpu:0, which is not among .*: gpu:1, gpu:2"):
            build([self.X], op, [1, 2])
        with pytest.raises(ValueError, match="gpu:0 does so repeatedly"):
            build([self.X], op, [0, 0])

    def test_scatter(self) -> None:
        op = ops.distributed_scatter
        with pytest.raises(ValueError, match="at least one input chunk"):
            build([], op, [0, 1])
        with pytest.raises(ValueError, match="same device; got gpu:0 and gpu:1"):
            build([self.X, self.X.to(DeviceRef.GPU(1))], op, [0, 1])
        with pytest.raises(ValueError, match="same dtype; got float32 and int8"):
            build([self.X, self.X.cast(DType.int8)], op, [0, 1])
        with pytest.raises(ValueError, match="gpu:0, which is not among"):
            build([self.X], op, [1, 2])
        with pytest.raises(ValueError, match="gpu:1 does so repeatedly"):
            build([self.X], op, [1, 1])

    def test_a_device_that_the_session_does_not_have(self) -> None:
        graph = build([self.X, self.X.to(DeviceRef.GPU(1))], ops.allreduce.sum)
        with pytest.raises(ValueError, match="values on gpu:1, but the session's devices are gpu:0"):
            InferenceSession(devices=[Accelerator(0)]).load(graph)
