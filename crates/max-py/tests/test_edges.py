"""Uses at the edge of the API: odd objects, shared memory, interleaved graphs, copies, files with odd names."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from max.driver import CPU, Buffer, DeviceSpec, DeviceStream, load_devices
from max.dtype import DType
from max.graph import DeviceRef, Dim, FilterLayout, Graph, TensorType, Weight, ops

from helpers import CPU as HOST

FLOATS = TensorType(DType.float32, ["n", 3], HOST)


class Opaque:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def __dlpack__(self, **options: object) -> object:
        return self.buffer.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()


class TestArguments:
    def test_objects_that_contain_themselves_are_refused(self) -> None:
        endless: list = []
        endless.append(endless)
        doubled: list = [1]
        for _ in range(60):
            doubled = [doubled, doubled]

        class Mirror:
            def __tensorvalue__(self) -> Mirror:
                return self

        with Graph("g", input_types=[FLOATS]) as graph:
            x = graph.inputs[0].tensor
            for bad in (lambda: ops.add(x, endless), lambda: x[endless], lambda: ops.add(x, doubled), lambda: x + Mirror()):
                with pytest.raises(TypeError):
                    bad()

    def test_errors_name_the_op_and_the_argument(self) -> None:
        with Graph("g", input_types=[FLOATS]) as graph:
            x = graph.inputs[0].tensor
            with pytest.raises(TypeError, match="argument 'rhs' of add"):
                x + None
            with pytest.raises(TypeError, match="complex(.|\n)*in add"):
                x + 1j
            with pytest.raises(TypeError, match="argument 'axis' of sum"):
                ops.sum(x, axis="last")
            with pytest.raises(ValueError, match="Unsafe cast(.|\n)*in constant"):
                ops.constant([300], DType.uint8, HOST)

    def test_errors_show_the_users_line(self) -> None:
        with Graph("a", input_types=[FLOATS]) as other:
            pass
        with Graph("b", input_types=[FLOATS]) as graph:
            for bad in (
                lambda: graph.output(other.inputs[0]),
                lambda: ops.relu(other.inputs[0]),
                lambda: [graph.add_weight(Weight("w", DType.float32, [n], HOST)) for n in (1, 2)],
            ):
                with pytest.raises(ValueError, match=r"at .*test_edges\.py:\d+"):
                    bad()

    def test_sizes_can_be_dims(self) -> None:
        assert Buffer.zeros(TensorType(DType.int8, [2, 3]).shape, DType.int8).shape == (2, 3)

    def test_the_shape_of_a_type_is_a_copy(self) -> None:
        kind = TensorType(DType.float32, [2])
        kind.shape[0] = Dim(5)
        assert kind.shape == [2] and kind == TensorType(DType.float32, [2])


class TestMemory:
    def test_constants_do_not_share_memory_that_others_can_write(self, session) -> None:
        array = np.arange(3, dtype=np.float32)
        view = array.view()
        view.flags.writeable = False
        with Graph("g") as graph:
            graph.output(ops.constant(view), ops.constant(Buffer.from_numpy(view)))
        model = session.load(graph)
        array[:] = 99
        assert [list(output.to_numpy()) for output in model()] == [[0, 1, 2], [0, 1, 2]]

    def test_strided_arrays_of_other_libraries(self, session) -> None:
        strided = Opaque(Buffer.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))[:, ::-2][:, :2])
        want = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::-2]
        weight = Weight("w", DType.float32, [3, 2], HOST)
        with Graph("g", input_types=[TensorType(DType.float32, [3, 2], HOST)]) as graph:
            graph.output(graph.inputs[0] + 0, weight + 0, ops.constant(strided) + 0)
        outputs = session.load(graph, weights_registry={"w": strided})(strided)
        assert all(np.array_equal(output.to_numpy(), want) for output in outputs)
        assert np.array_equal(Buffer.from_dlpack(strided, copy=True).to_numpy(), want)
        with pytest.raises(ValueError, match="contiguous"):
            Buffer.from_dlpack(strided)

    def test_fields_of_records(self) -> None:
        field = np.array([(1, 2.5), (3, 4.5)], dtype="u1,f4")["f1"]
        with pytest.raises(ValueError, match="cannot be shared"):
            Buffer.from_dlpack(field, copy=False)
        assert list(Buffer.from_numpy(field).to_numpy()) == [2.5, 4.5]

    def test_indices_are_not_bools_and_bounds_are_clamped(self) -> None:
        buffer = Buffer.from_numpy(np.arange(3))
        assert buffer[: 2**70].shape == (3,) and buffer[-(2**70) :].shape == (3,)
        for bad, kind in ((lambda: buffer[True], IndexError), (lambda: 1 in buffer, TypeError)):
            with pytest.raises(kind):
                bad()

    def test_to_its_own_device_is_the_same_buffer(self) -> None:
        buffer = Buffer.zeros([2], DType.int8)
        assert buffer.to(CPU()) is buffer

    def test_mmap_creates_a_file(self, tmp_path) -> None:
        path = tmp_path / "new"
        Buffer.mmap(path, DType.int16, [2], "w+")[1] = 7
        gc.collect()
        assert path.read_bytes() == b"\0\0\7\0"

    @pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
    def test_file_names_that_are_not_text(self, tmp_path, session) -> None:
        path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.bin")
        with Graph("g", input_types=[FLOATS]) as graph:
            graph.output(graph.inputs[0])
        graph.save(path)
        assert session.load(path).name == Graph("again", path=path).name == "g"
        assert Buffer.mmap(path, DType.uint8, [8], "r").to_numpy().tobytes() == b"MAXGRAPH"


class TestScopes:
    def test_tasks_build_graphs_at_the_same_time(self) -> None:
        async def build(name: str) -> str:
            with Graph(name, input_types=[FLOATS]) as graph:
                for _ in range(3):
                    await asyncio.sleep(0)
                    assert Graph.current is graph
                    graph.inputs[0] + 1
            return str(graph)

        async def both() -> list[str]:
            return await asyncio.gather(build("a"), build("b"))

        texts = asyncio.run(both())
        assert [text.count("= add(") for text in texts] == [3, 3]
        with pytest.raises(LookupError, match="No graph found"):
            Graph.current

    def test_generators_leave_their_graph_out_of_order(self) -> None:
        def generator():
            with Graph("inner") as graph:
                yield graph

        inner = generator()
        next(inner)
        with Graph("outer") as outer:
            inner.close()
            assert Graph.current is outer
        with pytest.raises(LookupError, match="No graph found"):
            ops.constant(1, DType.int32, HOST)

    def test_hasattr_works_on_current(self) -> None:
        assert not hasattr(Graph, "current") and getattr(Graph, "current", None) is None


class TestCopies:
    @pytest.mark.parametrize(
        "value",
        [CPU(), Dim("x") * 2 + 1, DeviceRef.GPU(1), TensorType(DType.float32, [Dim("x") // 2, 3]), DType.bfloat16],
        ids=repr,
    )
    def test_survive_pickling_and_copying(self, value: object) -> None:
        assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)

    @pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.bool], ids=str)
    def test_buffers(self, dtype: DType) -> None:
        buffer = Buffer.zeros([2, 3], dtype)
        buffer[1, 2] = 1
        for twin in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
            assert (twin.dtype, twin.shape, twin[1, 2].item(), twin[0, 0].item()) == (dtype, (2, 3), 1, 0)
            twin[0, 0] = 1
        assert buffer[0, 0].item() == 0

    def test_weights_are_copied_and_renamed(self) -> None:
        weight = Weight("w", DType.float32, [3], HOST, align=64)
        twin = copy.deepcopy(weight)
        twin.name = "layer.w"
        assert (twin.name, twin.dtype, twin.shape, twin.align) == ("layer.w", DType.float32, [3], 64)
        with Graph("g") as graph:
            graph.output(weight + twin)
        assert 'name = "w"' in str(graph) and 'name = "layer.w"' in str(graph)

    def test_streams_hash(self) -> None:
        assert len({CPU().default_stream, CPU().default_stream}) == 1 and hash(DeviceStream(CPU()))


def test_print_goes_where_python_prints(session) -> None:
    with Graph("g", input_types=[TensorType(DType.float32, [2], HOST)]) as graph:
        ops.print("hello")
        ops.print(graph.inputs[0], label="x")
        graph.output(graph.inputs[0])
    model = session.load(graph)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        model(np.array([1, 2], dtype=np.float32))
    assert out.getvalue() == "hello\nx = tensor([1.0, 2.0], dtype=float32, shape=[2])\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on Unix")
def test_ctrl_c_ends_an_execution(session) -> None:
    class Slow(io.StringIO):
        """Takes a millisecond to write a line, and presses Ctrl-C after the third."""

        lines = 0

        def write(self, text: str) -> int:
            time.sleep(0.001)
            self.lines += 1
            if self.lines == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return len(text)

    with Graph("long", input_types=[TensorType(DType.float32, [1], HOST)]) as graph:
        for _ in range(1000):
            ops.print("still here")
        graph.output(graph.inputs[0])
    model = session.load(graph)
    with contextlib.redirect_stdout(Slow()) as out, pytest.raises(KeyboardInterrupt):
        model(np.zeros(1, dtype=np.float32))
    assert 3 <= out.lines < 1000
    with contextlib.redirect_stdout(io.StringIO()):
        assert model(np.ones(1, dtype=np.float32))[0].item() == 1


def test_rebind_sets_the_layout_of_a_filter() -> None:
    with Graph("g", input_types=[TensorType(DType.float32, ["r", 3, 4, 8], HOST)]) as graph:
        y = ops.rebind(graph.inputs[0], [3, 3, 4, 8], "three rows", layout=FilterLayout.RSCF)
        assert y.type == TensorType(DType.float32, [3, 3, 4, 8], HOST, FilterLayout.RSCF)
        graph.output(y.rebind([3, 3, 4, 8]))
    assert Graph.parse(graph._native.text()).output_types == [y.type]


def test_conversions_without_effect_return_the_value_itself() -> None:
    with Graph("g", input_types=[FLOATS]) as graph:
        x = graph.inputs[0].tensor
        assert x.cast(DType.float32) is x and x.to(HOST) is x


def test_specs_of_unknown_devices() -> None:
    with pytest.raises(ValueError, match="tpu"):
        load_devices([DeviceSpec(0, "tpu")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="-1"):
        DeviceRef.GPU(-1)


def test_missing_numpy_is_an_import_error() -> None:
    """Native code that looks for arrays says that NumPy is missing."""
    code = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType

def relu():
    with Graph("g", input_types=[TensorType(DType.float32, [2])]) as graph:
        graph.output(graph.inputs[0] + 1)

model = InferenceSession().load(Graph.parse('graph "g"(%0: float32[]) { return %0 }'))
calls = [
    lambda: Buffer.from_dlpack(object()),
    lambda: Buffer.from_numpy(object()),
    lambda: Tensor.ones([2]) + 1,
    lambda: Buffer(object, [2]),
    lambda: model(1.0),
    relu,
]
for call in calls:
    try:
        call()
    except ImportError as error:
        print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["numpy"] * 6, "", 0)


def test_a_dict_that_changes_while_it_is_read() -> None:
    sizes: dict = {}

    class Growing:
        def __index__(self) -> int:
            sizes[f"n{len(sizes)}"] = 1
            return 3

    sizes.update(a=Growing(), b=2)
    assert str((Dim("a") + Dim("b"))._native.substitute(sizes)) == "5"
