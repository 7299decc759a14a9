"""What sessions can be configured to do, and what they and their models report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.engine import (
    AssertLevel,
    GPUProfilingMode,
    InferenceSession,
    KernelSummary,
    LogLevel,
    MemoryReport,
    Model,
    SplitKReductionPrecision,
    clear_program_cache,
    program_cache_stats,
)
from max.graph import Graph, ops

from helpers import build, tensor

X = np.array([1, 2, 3, 4], dtype=np.float32)

SETTINGS = {
    "set_mojo_log_level": LogLevel,
    "set_mojo_assert_level": AssertLevel,
    "set_split_k_reduction_precision": SplitKReductionPrecision,
    "gpu_profiling": GPUProfilingMode,
}

PROGRAM = """
import os, sys
import numpy as np
from max.driver import CPU
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import Graph, TensorType, ops

with Graph("watched graph", input_types=[TensorType(DType.float32, ["n"])]) as graph:
    graph.output(ops.tanh(ops.exp(graph.inputs[0])))
session = InferenceSession(devices=[CPU()])
if len(sys.argv) > 1:
    session.gpu_profiling(sys.argv[1])
model = session.load(graph)
model.execute(np.zeros(3, dtype=np.float32))
try:
    print(model.profile_table())
except RuntimeError as error:
    print(error)
"""


def chain(x):
    return ops.relu(ops.tanh(ops.exp(x)))


def fresh(**settings: str) -> InferenceSession:
    """A new session with this setting."""
    session = InferenceSession(devices=[CPU()])
    for method, value in settings.items():
        getattr(session, method)(value)
    return session


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs the program above in a process of its own."""
    names = ("MODULAR_ENABLE_PROFILING", "MAX_LOG_LEVEL", "MAX_ASSERT_LEVEL", "MAX_DUMP_IR", "MAX_DUMP_DIR")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


class TestSettings:
    @pytest.mark.parametrize("method, names", SETTINGS.items())
    def test_members_and_strings(self, method: str, names) -> None:
        session = fresh()
        for member in names:
            assert getattr(session, method)(member) is None
            assert getattr(session, method)(member.value) is None

    @pytest.mark.parametrize("method, names", SETTINGS.items())
    @pytest.mark.parametrize("value", ["loud", "", "INFO ", "Off"])
    def test_unknown_names(self, method: str, names, value: str) -> None:
        with pytest.raises(ValueError) as caught:
            getattr(fresh(), method)(value)
        assert ", ".join(member.value for member in names) in str(caught.value)
        assert f'"{value}"' in str(caught.value)

    @pytest.mark.parametrize("method", [*SETTINGS, "use_old_top_k_kernel", "use_fi_topk_kernel"])
    @pytest.mark.parametrize("value", [None, 1, True, b"on", ["on"]])
    def test_other_types(self, method: str, value) -> None:
        with pytest.raises(TypeError):
            getattr(fresh(), method)(value)

    def test_values(self) -> None:
        assert [level.value for level in AssertLevel] == ["none", "warn", "safe", "all"]
        assert [precision.value for precision in SplitKReductionPrecision] == ["ACCUM", "OUTPUT"]
        assert AssertLevel("warn") is AssertLevel.WARN and AssertLevel.WARN == "warn"

    @pytest.mark.parametrize("mode", ["false", "Off", "NO", "0", "true", "on", "", "anything"])
    def test_switches_take_any_text(self, mode: str) -> None:
        assert fresh().use_old_top_k_kernel(mode) is None
        assert fresh().use_fi_topk_kernel(mode) is None

    @pytest.mark.parametrize("precision", SplitKReductionPrecision)
    def test_precision_changes_no_result(self, precision) -> None:
        x = np.random.default_rng(3).normal(size=(4, 700)).astype(np.float32)
        graph = build(lambda v: v @ v.T, [tensor("float32", 4, 700)])
        expected = fresh().load(graph).execute(x)[0].to_numpy()
        actual = fresh(set_split_k_reduction_precision=precision).load(graph).execute(x)[0].to_numpy()
        assert actual.tobytes() == expected.tobytes()


class TestLogs:
    def test_info_reports_what_was_compiled(self, capfd) -> None:
        graph = build(chain, [tensor("float32", 5)], name="spoken of")
        clear_program_cache()
        fresh(set_mojo_log_level="info").load(graph)
        said = capfd.readouterr().err
        assert "compiled" in said and "spoken of" in said

    def test_silence_is_the_default(self, capfd) -> None:
        clear_program_cache()
        model = fresh().load(build(chain, [tensor("float32", 4)]))
        model.execute(X)
        assert capfd.readouterr().err == ""

    def test_trace_names_every_launch(self, capfd) -> None:
        session = fresh(set_mojo_log_level=LogLevel.TRACE)
        model = session.load(build(chain, [tensor("float32", 4)]))
        capfd.readouterr()
        model.execute(X)
        assert "exp+tanh+relu" in capfd.readouterr().err
        session.set_mojo_log_level("critical")
        model.execute(X)
        assert capfd.readouterr().err == ""

    def test_environment(self) -> None:
        assert "compiled" in run(MAX_LOG_LEVEL="info").stderr
        assert run().stderr == ""

    def test_unknown_values_in_the_environment_are_reported(self) -> None:
        said = run(MAX_LOG_LEVEL="loud").stderr
        assert "MAX_LOG_LEVEL" in said and "loud" in said


class TestAsserts:
    @staticmethod
    def logs(session: InferenceSession) -> Model:
        return session.load(build(lambda x: ops.exp(ops.log(x - 2) * 3), [tensor("float32", "n")]))

    def test_all_names_the_first_op_that_makes_a_nan(self) -> None:
        model = self.logs(fresh(set_mojo_assert_level="all"))
        with pytest.raises(RuntimeError) as caught:
            model.execute(np.array([5, 1, 4], dtype=np.float32))
        message = str(caught.value)
        assert "log made NaN at element 1" in message
        assert "test_engine_observing.py" in message

    def test_infinities_are_named_too(self) -> None:
        model = self.logs(fresh(set_mojo_assert_level=AssertLevel.ALL))
        with pytest.raises(RuntimeError, match="log made an infinity at element 0"):
            model.execute(np.array([2], dtype=np.float32))

    def test_finite_values_pass(self) -> None:
        x = np.array([3, 4, 5], dtype=np.float32)
        result = self.logs(fresh(set_mojo_assert_level="all")).execute(x)[0].to_numpy()
        np.testing.assert_allclose(result, (x - 2) ** 3, rtol=1e-5)

    def test_nan_in_an_input_is_not_blamed_on_an_op(self) -> None:
        model = self.logs(fresh(set_mojo_assert_level="all"))
        result = model.execute(np.array([3, np.nan], dtype=np.float32))[0].to_numpy()
        assert result[0] == 1 and np.isnan(result[1])

    def test_warn_continues(self, capfd) -> None:
        model = self.logs(fresh(set_mojo_assert_level="warn"))
        result = model.execute(np.array([1, 3], dtype=np.float32))[0].to_numpy()
        assert np.isnan(result[0]) and result[1] == 1
        said = capfd.readouterr().err
        assert said.count("made NaN") == 1 and "log" in said

    @pytest.mark.parametrize("level", ["none", "safe"])
    def test_other_levels_do_not_check(self, level: str, capfd) -> None:
        model = self.logs(fresh(set_mojo_assert_level=level))
        assert np.isnan(model.execute(np.array([1], dtype=np.float32))[0].to_numpy()[0])
        assert capfd.readouterr().err == ""

    def test_results_do_not_depend_on_the_level(self) -> None:
        x = np.random.default_rng(2).normal(size=(7, 33)).astype(np.float32)
        graph = build(lambda v: ops.softmax(ops.tanh(v) @ ops.relu(v).T), [tensor("float32", "a", 33)])
        results = [fresh(set_mojo_assert_level=level).load(graph).execute(x)[0].to_numpy() for level in AssertLevel]
        for other in results[1:]:
            np.testing.assert_allclose(other, results[0], rtol=1e-6)


class TestProfiling:
    @staticmethod
    def graph() -> Graph:
        return build(lambda x: ops.softmax(ops.exp(x) @ x.T), [tensor("float32", "n", 4)], name='a "quoted" name')

    def test_the_table_counts_launches(self) -> None:
        model = fresh(gpu_profiling="on").load(self.graph())
        kernels = [kernel.name for kernel in model.kernel_summaries]
        for _ in range(3):
            model.execute(X[None])
        header, *lines = model.profile_table().splitlines()
        assert "launches" in header and "kernel" in header
        assert sorted(line.split()[-1] for line in lines) == sorted(kernels)
        assert {line.split()[1] for line in lines} == {"3"}

    def test_replays_count(self) -> None:
        model = fresh(gpu_profiling="on").load(self.graph())
        model.capture(1, X[None])
        model.replay(1, X[None])
        assert {line.split()[1] for line in model.profile_table().splitlines()[1:]} == {"2"}

    @pytest.mark.parametrize("mode", ["on", GPUProfilingMode.DETAILED])
    def test_traces(self, mode: str, tmp_path: Path) -> None:
        model = fresh(gpu_profiling=mode).load(self.graph())
        for _ in range(2):
            model.execute(X[None])
        for path in (tmp_path / "trace.json", str(tmp_path / "again.json")):
            assert model.save_trace(path) is None
            events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
            assert len(events) == 2 * len(model.kernel_summaries)
            assert {event["name"] for event in events} == {kernel.name for kernel in model.kernel_summaries}
            for event in events:
                assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
                assert ("ops" in event["args"]) == (mode == "detailed")
        with pytest.raises(RuntimeError, match="missing"):
            model.save_trace(tmp_path / "missing" / "trace.json")

    def test_models_without_a_profile(self, tmp_path: Path) -> None:
        session = fresh(gpu_profiling="off")
        model = session.load(self.graph())
        session.gpu_profiling("on")
        model.execute(X[None])
        with pytest.raises(RuntimeError, match="profiling"):
            model.profile_table()
        with pytest.raises(RuntimeError, match="profiling"):
            model.save_trace(tmp_path / "trace.json")
        assert list(tmp_path.iterdir()) == []

    def test_environment(self) -> None:
        assert "exp+tanh" in run(MODULAR_ENABLE_PROFILING="on").stdout
        assert "exp+tanh" in run(MODULAR_ENABLE_PROFILING="detailed").stdout
        assert "without profiling" in run().stdout

    def test_the_method_overrides_the_environment(self) -> None:
        assert "without profiling" in run("off", MODULAR_ENABLE_PROFILING="on").stdout
        assert "exp+tanh" in run("on", MODULAR_ENABLE_PROFILING="off").stdout


class TestKernels:
    def test_a_chain_is_one_kernel(self, session) -> None:
        model = session.load(build(chain, [tensor("float32", "n")]))
        (kernel,) = model.kernel_summaries
        assert isinstance(kernel, KernelSummary)
        assert (kernel.name, kernel.kind) == ("exp+tanh+relu", "loop")
        assert len(kernel.ops) == 3
        assert kernel.ops[0] == "exp(float32[n])"
        assert "tanh" in kernel.text

    def test_a_picture_is_well_formed(self, session) -> None:
        name = "<script>alert('&')</script>"
        model = session.load(build(chain, [tensor("float32", "n")], name=name))
        root = ElementTree.fromstring(model.picture())
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert name in texts
        assert {"kernel 0: loop", "input 0", "exp", "tanh", "relu", "output 0"} <= set(texts)
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        assert model.picture() == model.picture()

    def test_a_summary_has_a_line_for_each_kernel(self, session) -> None:
        model = session.load(build(chain, [tensor("float32", "n")]))
        assert model.fusion_summary() == "kernel 0  loop       exp, tanh, relu  -> float32[n]\n"

    def test_kinds(self, session) -> None:
        table = np.ones((5, 4), dtype=np.float32)
        types = [tensor("float32", 3, 4), tensor("int64", 2)]
        model = session.load(build(lambda x, i: [x @ x.T, ops.gather(table, i)], types))
        assert {kernel.kind for kernel in model.kernel_summaries} == {"matmul", "gather"}

    def test_checked_models_are_not_fused(self) -> None:
        model = fresh(set_mojo_assert_level="all").load(build(chain, [tensor("float32", "n")]))
        assert [kernel.name for kernel in model.kernel_summaries] == ["exp", "tanh", "relu"]


class TestMemory:
    def test_temporaries_share_memory(self, session) -> None:
        def products(x):
            for _ in range(6):
                x = ops.tanh(x @ x)
            return x

        model = session.load(build(products, [tensor("float32", "n", "n")]))
        small, large = (model.memory_report(np.zeros((n, n), dtype=np.float32)) for n in (16, 64))
        assert isinstance(small, MemoryReport)
        assert small.peak_bytes >= 16 * 16 * 4
        assert small.peak_bytes < small.bytes_without_reuse
        assert large.peak_bytes > small.peak_bytes

    def test_one_kernel_needs_no_temporaries(self, session) -> None:
        model = session.load(build(chain, [tensor("float32", "n")]))
        assert model.memory_report(Buffer.from_numpy(X)) == (0, 0, 0)

    def test_wrong_inputs(self, session) -> None:
        model = session.load(build(chain, [tensor("float32", "n")]))
        with pytest.raises(ValueError):
            model.memory_report()
        with pytest.raises(TypeError):
            model.memory_report("text")


class TestDumps:
    def test_to_standard_error(self) -> None:
        said = run(MAX_DUMP_IR="program").stderr
        assert "watched graph: after program" in said
        assert "exp" in said and "tanh" in said

    def test_to_a_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "dumps"
        assert run(MAX_DUMP_IR="all", MAX_DUMP_DIR=str(folder)).stderr == ""
        files = sorted(folder.iterdir())
        assert any(path.name.endswith("watched_graph-program.txt") for path in files)
        assert all("tanh" in path.read_text(encoding="utf-8") for path in files)

    def test_of_unknown_stages(self) -> None:
        assert run(MAX_DUMP_IR="nothing").stderr == ""


class TestCache:
    @staticmethod
    def graph(size: int) -> Graph:
        return build(chain, [tensor("float32", size)])

    def test_the_same_graph_is_compiled_once(self) -> None:
        clear_program_cache()
        assert program_cache_stats().size == 0
        models, counts = [], [program_cache_stats()]
        for size in (4, 4, 5, 4):
            models.append(fresh().load(self.graph(size)))
            counts.append(program_cache_stats())
        found = [after.hits - before.hits for before, after in zip(counts, counts[1:])]
        missed = [after.misses - before.misses for before, after in zip(counts, counts[1:])]
        assert (found, missed) == ([0, 1, 0, 1], [1, 0, 1, 0])
        assert counts[-1].size == 2
        for model in (models[0], models[1], models[3]):
            np.testing.assert_allclose(model.execute(X)[0].to_numpy(), np.tanh(np.exp(X)), rtol=1e-6)

    def test_constants_and_checks_are_part_of_a_program(self) -> None:
        def graph(k: float) -> Graph:
            return build(lambda x: x * np.array([k, k, k, k], dtype=np.float32), [tensor("float32", 4)])

        clear_program_cache()
        before = program_cache_stats()
        results = [fresh().load(graph(k)).execute(X)[0].to_numpy() for k in (2.0, 3.0)]
        fresh(set_mojo_assert_level="all").load(graph(2.0))
        assert program_cache_stats().hits == before.hits
        np.testing.assert_array_equal(results, [2 * X, 3 * X])

    def test_models_survive_clearing(self) -> None:
        model = fresh().load(self.graph(4))
        clear_program_cache()
        np.testing.assert_allclose(model.execute(X)[0].to_numpy(), np.tanh(np.exp(X)), rtol=1e-6)
