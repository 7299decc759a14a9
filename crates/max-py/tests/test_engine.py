"""Sessions and models: loading, executing, metadata, bad inputs, saved graphs, threads."""

import os
import gc
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model, TensorSpec
from max.graph import Graph, TensorType, ops

from helpers import CPU as CPU_REF
from helpers import REFUSED, address, build, evaluate, tensor

X = np.array([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)


@pytest.fixture(scope="module")
def affine(session) -> Model:
    """x * y + 1 with a symbolic batch."""
    types = [tensor("float32", "batch", 3), tensor("float32", "batch", 3)]
    return session.load(build(lambda x, y: x * y + 1, types))


class TestSession:
    def test_devices(self) -> None:
        assert InferenceSession(devices=[CPU()]).devices == [CPU()]
        assert InferenceSession().devices == [CPU()]
        assert InferenceSession([CPU()], num_threads=2).devices == [CPU()]

    def test_every_thread_count_gives_the_same_bits(self) -> None:
        x = np.random.default_rng(0).normal(size=(67, 131)).astype(np.float32)
        results = []
        for threads in (1, 2, 5, None):
            session = InferenceSession(devices=[CPU()], num_threads=threads)
            results.append(evaluate(session, lambda v: [ops.sum(v, 0), v @ v.T, ops.softmax(v)], x))
        for other in results[1:]:
            assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0], other))

    def test_load_keywords(self, session) -> None:
        graph = build(ops.relu, [tensor("float32", 3)])
        assert isinstance(session.load(graph, custom_extensions=None, weights_registry=None), Model)
        assert isinstance(session.load(graph, weights_registry={}), Model)

    @pytest.mark.parametrize("thing", [None, 5, [1], DType.int8])
    def test_load_refuses_other_objects(self, session, thing) -> None:
        with pytest.raises(REFUSED):
            session.load(thing)


class TestExecute:
    def test_results_are_buffers(self, affine) -> None:
        result = affine.execute(X, X)
        assert isinstance(result, list) and len(result) == 1
        (out,) = result
        assert isinstance(out, Buffer)
        assert (out.dtype, tuple(out.shape), out.device) == (DType.float32, (2, 3), CPU())
        assert address(out) % 64 == 0
        np.testing.assert_array_equal(out.to_numpy(), X * X + 1)

    @pytest.mark.parametrize(
        "call",
        [
            lambda m: m(X, 2 * X),
            lambda m: m(input0=X, input1=2 * X),
            lambda m: m(input1=2 * X, input0=X),
            lambda m: m(X, input1=2 * X),
            lambda m: m.execute(Buffer.from_numpy(X), 2 * X),
            lambda m: m.execute(*(Buffer.from_dlpack(a) for a in (X, 2 * X))),
        ],
    )
    def test_ways_to_call(self, affine, call) -> None:
        np.testing.assert_array_equal(call(affine)[0].to_numpy(), X * 2 * X + 1)

    @pytest.mark.parametrize(
        "call",
        [
            lambda m: m(),
            lambda m: m(X),
            lambda m: m(X, X, X),
            lambda m: m(X, X, input1=X),
            lambda m: m(X, other=X),
            lambda m: m(input0=X),
            lambda m: m.execute(),
            lambda m: m.execute(X),
            lambda m: m.execute(X, X, X),
        ],
    )
    def test_wrong_count_or_names(self, affine, call) -> None:
        with pytest.raises((TypeError, ValueError)):
            call(affine)

    @pytest.mark.parametrize(
        "bad",
        [
            X.astype(np.float64),
            X.astype(np.int32),
            X[0],
            X[None],
            X[:, :2],
            np.float32(1),
            X.astype(">f4"),
            X.astype(object),
            "text",
            None,
            Buffer.from_numpy(X.astype(np.float64)),
        ],
        ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', '')}-{getattr(v, 'shape', '')}",
    )
    def test_wrong_dtype_rank_or_shape(self, affine, bad) -> None:
        with pytest.raises((TypeError, ValueError)):
            affine.execute(bad, X)
        with pytest.raises((TypeError, ValueError)):
            affine.execute(X, bad)

    def test_messages_name_the_input(self, affine) -> None:
        with pytest.raises((TypeError, ValueError)) as caught:
            affine.execute(X, X.astype(np.float64))
        message = str(caught.value)
        assert "input1" in message and "float64" in message and "float32" in message

    def test_a_symbol_bound_to_two_sizes(self, affine) -> None:
        with pytest.raises((TypeError, ValueError), match="symbolic dimension") as caught:
            affine.execute(X, np.ones((5, 3), dtype=np.float32))
        assert "batch" in str(caught.value)

    def test_a_symbol_inside_one_input(self, session) -> None:
        model = session.load(build(ops.relu, [tensor("float32", "n", "n")]))
        model.execute(np.ones((3, 3), dtype=np.float32))
        with pytest.raises((TypeError, ValueError), match="symbolic dimension"):
            model.execute(np.ones((3, 4), dtype=np.float32))

    @pytest.mark.parametrize("batch", [0, 1, 2, 7, 64, 1000])
    def test_one_model_for_every_size(self, affine, batch: int) -> None:
        x = np.random.default_rng(batch).normal(size=(batch, 3)).astype(np.float32)
        np.testing.assert_allclose(affine.execute(x, x)[0].to_numpy(), x * x + 1, rtol=1e-6)

    @pytest.mark.parametrize(
        "make",
        [lambda x: x[::2], lambda x: x[::-1], lambda x: x.T, lambda x: x[:, 1:4], lambda x: np.asfortranarray(x)],
    )
    def test_non_contiguous_inputs(self, session, make) -> None:
        x = make(np.arange(36, dtype=np.float32).reshape(6, 6))
        model = session.load(build(lambda v: v + 1, [tensor("float32", "a", "b")]))
        np.testing.assert_array_equal(model.execute(x)[0].to_numpy(), x + 1)

    def test_strided_buffers(self, session) -> None:
        x = np.arange(36, dtype=np.float32).reshape(6, 6)
        model = session.load(build(lambda v: v + 1, [tensor("float32", "a", "b")]))
        for index in ((slice(None, None, 2), slice(1, 4)), (slice(None, None, -1), slice(None))):
            view = Buffer.from_numpy(x)[index]
            np.testing.assert_array_equal(model.execute(view)[0].to_numpy(), x[index] + 1)

    def test_read_only_inputs(self, session) -> None:
        x = X.copy()
        x.flags.writeable = False
        np.testing.assert_array_equal(evaluate(session, lambda v: v * 2, x)[0], X * 2)

    @pytest.mark.parametrize(
        "dtype, value",
        [
            ("float32", 2.5),
            ("float32", 2),
            ("float64", np.float64(2.5)),
            ("int32", 7),
            ("int64", np.int64(-7)),
            ("bool", True),
        ],
    )
    def test_scalar_arguments(self, session, dtype: str, value) -> None:
        model = session.load(build(lambda v: ops.where(v == v, v, v), [tensor(dtype)]))
        (out,) = model.execute(value)
        assert out.to_numpy().dtype == np.dtype(dtype)
        assert out.item() == value
        (out,) = model(input0=value)
        assert out.item() == value

    def test_a_scalar_that_does_not_fit(self, session) -> None:
        model = session.load(build(lambda v: v + 1, [tensor("int32")]))
        for bad in (1.5, 2**40, "1"):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                model.execute(bad)

    def test_foreign_dlpack_arrays(self, affine) -> None:
        class Foreign:
            def __init__(self, array: np.ndarray) -> None:
                self.array = array

            def __dlpack__(self, **kwargs):
                return self.array.__dlpack__(**kwargs)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        np.testing.assert_array_equal(affine.execute(Foreign(X), Foreign(X))[0].to_numpy(), X * X + 1)

    def test_outputs_feed_models(self, affine) -> None:
        (first,) = affine.execute(X, X)
        (second,) = affine.execute(first, first)
        np.testing.assert_array_equal(second.to_numpy(), (X * X + 1) ** 2 + 1)

    def test_results_are_independent(self, affine) -> None:
        (first,) = affine.execute(X, X)
        kept = first.to_numpy().copy()
        for k in range(20):
            affine.execute(X + k, X)
        np.testing.assert_array_equal(first.to_numpy(), kept)
        first[0, 0] = 123
        assert affine.execute(X, X)[0][0, 0].item() == kept[0, 0]

    def test_inputs_are_never_written(self, session) -> None:
        x = X.copy()
        evaluate(session, lambda v: [ops.relu(v), v * 0, ops.exp(v)], x)
        np.testing.assert_array_equal(x, X)

    def test_outputs_outlive_everything(self) -> None:
        session = InferenceSession(devices=[CPU()])
        model = session.load(build(lambda v: v + 1, [tensor("float32", 2, 3)]))
        array = np.from_dlpack(model.execute(X)[0])
        del model, session
        gc.collect()
        np.testing.assert_array_equal(array, X + 1)

    def test_many_threads(self, affine) -> None:
        def work(seed: int) -> bool:
            rng = np.random.default_rng(seed)
            for _ in range(20):
                x = rng.normal(size=(int(rng.integers(1, 200)), 3)).astype(np.float32)
                if not np.allclose(affine.execute(x, x)[0].to_numpy(), x * x + 1, rtol=1e-6):
                    return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(32)))

    def test_the_same_bits_every_time(self, session) -> None:
        x = np.random.default_rng(1).normal(size=(33, 257)).astype(np.float32)
        model = session.load(build(lambda v: [ops.softmax(v), ops.mean(v), v @ v.T], [tensor("float32", 33, 257)]))
        first = [out.to_numpy().tobytes() for out in model.execute(x)]
        for _ in range(5):
            assert [out.to_numpy().tobytes() for out in model.execute(x)] == first


def test_metadata(session) -> None:
    types = [tensor("float32", "batch", 3), tensor("int64")]
    model = session.load(build(lambda x, k: [x[:, 0], k + 1, ops.concat([x, x])], types))
    assert all(isinstance(spec, TensorSpec) for spec in model.input_metadata + model.output_metadata)
    described = [(spec.name, spec.dtype, list(spec.shape)) for spec in model.input_metadata]
    assert described == [("input0", DType.float32, [None, 3]), ("input1", DType.int64, [])]
    described = [(spec.name, spec.dtype, list(spec.shape)) for spec in model.output_metadata]
    assert described == [
        ("output0", DType.float32, [None]),
        ("output1", DType.int64, []),
        ("output2", DType.float32, [None, 3]),
    ]


class TestSavedGraphs:
    @pytest.fixture
    def graph(self) -> Graph:
        bias = np.array([10, 20, 30], dtype=np.float32)
        return build(
            lambda x: ops.relu(x) + ops.constant(bias, DType.float32, CPU_REF),
            [tensor("float32", "n", 3)],
            name="saved",
        )

    @pytest.fixture
    def path(self, graph: Graph, tmp_path: Path) -> Path:
        path = tmp_path / "saved.maxgraph"
        graph.save(path)
        return path

    @pytest.mark.parametrize("convert", [str, Path])
    def test_round_trip(self, session, graph: Graph, path: Path, convert) -> None:
        expected = session.load(graph).execute(X)[0].to_numpy()
        np.testing.assert_array_equal(session.load(convert(path)).execute(X)[0].to_numpy(), expected)
        reread = Graph("saved", path=convert(path))
        assert str(reread) == str(graph)
        np.testing.assert_array_equal(session.load(reread).execute(X)[0].to_numpy(), expected)

    def test_weights_come_from_the_registry(self, session, tmp_path: Path) -> None:
        kind = TensorType(DType.float32, [3], CPU_REF)
        path = tmp_path / "weights.maxgraph"
        build(lambda x: x * ops.constant_external("w", kind), [tensor("float32", 3)]).save(str(path))
        model = session.load(path, weights_registry={"w": np.array([1, 2, 3], dtype=np.float32)})
        np.testing.assert_array_equal(model.execute(X[0])[0].to_numpy(), X[0] * [1, 2, 3])

    def test_every_truncation_is_an_error(self, session, path: Path) -> None:
        data = path.read_bytes()
        for length in range(len(data)):
            path.write_bytes(data[:length])
            with pytest.raises(Exception):  # noqa: B017
                session.load(path)

    def test_every_change_is_an_error(self, session, path: Path) -> None:
        data = path.read_bytes()
        for position in range(len(data)):
            for mask in (0xFF, 0x01, 0x80):
                damaged = bytearray(data)
                damaged[position] ^= mask
                path.write_bytes(bytes(damaged))
                with pytest.raises(RuntimeError):
                    session.load(path)

    @pytest.fixture
    def large(self, tmp_path: Path) -> Path:
        """A layer whose weights are packed when it first runs, and a table that is read where it is."""
        rng = np.random.default_rng(1)
        weights, table = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
        path = tmp_path / "large.maxgraph"
        constant = lambda data: ops.constant(data, DType.float32, CPU_REF)  # noqa: E731
        build(lambda x: x @ constant(weights) + constant(table), [tensor("float32", 256, 256)]).save(path)
        return path

    def test_every_sampled_change_of_a_large_file_is_an_error(self, session, large: Path) -> None:
        data = large.read_bytes()
        rng = np.random.default_rng(2)
        for bit in rng.integers(0, 8 * len(data), 200):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            large.write_bytes(damaged)
            with pytest.raises(RuntimeError, match="damaged|MAXGRAPH|version"):
                session.load(large)

    @pytest.mark.parametrize("runs_before", [0, 1])
    @pytest.mark.parametrize("change", ["truncated", "overwritten", "removed"])
    def test_a_file_that_changes_after_loading(self, session, large: Path, change: str, runs_before: int) -> None:
        x = np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32)
        expected = session.load(large).execute(x)[0].to_numpy()
        graph = Graph("large", path=large)
        model = session.load(large)
        for _ in range(runs_before):
            model.execute(x)
        if change == "truncated":
            os.truncate(large, 100)
        elif change == "overwritten":
            with large.open("r+b") as file:
                file.seek(4096)
                file.write(bytes(large.stat().st_size - 4096))
        else:
            large.unlink()
        for loaded in (model, session.load(graph)):
            np.testing.assert_array_equal(loaded.execute(x)[0].to_numpy(), expected)
        with pytest.raises(RuntimeError):
            session.load(large)

    def test_the_version_before_is_named(self, session, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[8] = 1
        path.write_bytes(data)
        with pytest.raises(RuntimeError, match="version 1, but this release reads version 2"):
            session.load(path)

    def test_files_of_another_kind(self, session, path: Path) -> None:
        for content in (b"", b"\x00" * 100, b"not a graph", b"PK\x03\x04" + b"\x00" * 64):
            path.write_bytes(content)
            for read in (session.load, lambda p: Graph("g", path=p)):
                with pytest.raises(REFUSED):
                    read(path)

    @pytest.mark.parametrize("name", ["missing.maxgraph", "model.mojopkg", "folder", "model.onnx"])
    def test_paths_that_are_not_graphs(self, session, tmp_path: Path, name: str) -> None:
        target = tmp_path / name
        if name == "folder":
            target.mkdir()
        elif not name.startswith("missing"):
            target.write_bytes(b"something else")
        for given in (target, str(target)):
            with pytest.raises(RuntimeError) as caught:
                session.load(given)
            assert name in str(caught.value)
        if not name.startswith("missing"):
            assert "graph" in str(caught.value).replace(str(tmp_path), "").lower()

    def test_files_that_cannot_be_read_say_why(self, session, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        (tmp_path / "locked").write_bytes(b"secret")
        (tmp_path / "locked").chmod(0)
        reasons = {
            "missing": "the file does not exist",
            "": "it is a directory, not a file",
            "empty": "the file is empty",
            "empty/inside": "the file cannot be read: Not a directory",
        }
        if not os.access(tmp_path / "locked", os.R_OK):  # root can read it
            reasons["locked"] = "the file cannot be read: .*Permission denied"
        for name, reason in reasons.items():
            where = re.escape(str(tmp_path / name))
            for read in (session.load, lambda path: Graph("g", path=path)):
                with pytest.raises(RuntimeError, match=f"cannot load '{where}': {reason}"):
                    read(tmp_path / name)
