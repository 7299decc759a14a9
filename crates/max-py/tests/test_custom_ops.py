"""Custom ops: shared libraries, Python functions, functions over ops, and everything that can be wrong with them."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.nn import Module
from max.experimental.tensor import Tensor
from max.graph import BufferType, DeviceRef, Graph, KernelLibrary, TensorType, ops

from helpers import tensor

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "custom-ops"
CPU = DeviceRef.CPU()
X = np.array([[1, -2, 3], [6, 5, -4]], np.float32)


def graph_of(library: KernelLibrary, name: str, types: list[Any], out_types: list[Any], **parameters: Any) -> Graph:
    with Graph("g", input_types=types, kernel_library=library) as graph:
        graph.output(*ops.custom(name, CPU, graph.inputs, out_types, parameters))
    return graph


def run(session: InferenceSession, graph: Graph, *arrays: np.ndarray) -> list[np.ndarray]:
    return [out.to_numpy() for out in session.load(graph).execute(*arrays)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Builds a shared library from Rust or C source."""
    folder = tmp_path_factory.mktemp("libraries")

    def build(name: str, source: str) -> Path:
        library, rust = folder / f"lib{name}.so", "fn " in source
        file = folder / f"{name}.{'rs' if rust else 'c'}"
        file.write_text(source, encoding="utf-8")
        c_compiler = ["cc", "-shared", "-fPIC", "-I", str(EXAMPLES / "include")]
        compiler = ["rustc", "--edition=2024", "--crate-type=cdylib"] if rust else c_compiler
        if shutil.which(compiler[0]) is None:
            pytest.skip(f"no {compiler[0]} to build a library with")
        subprocess.run([*compiler, "-o", str(library), str(file)], check=True)
        return library

    return build


@pytest.fixture(scope="module")
def template(build: Callable[[str, str], Path]) -> Path:
    """The library of examples/custom-ops."""
    source = (EXAMPLES / "src" / "lib.rs").read_text(encoding="utf-8")
    interface = EXAMPLES / "src" / "interface.rs"
    return build("template", source.replace("mod interface;", f'#[path = "{interface}"]\nmod interface;'))


# --- shared libraries -----------------------------------------------------------------------------


def test_the_template(session: InferenceSession, template: Path) -> None:
    library = KernelLibrary(paths=[template])
    assert library.library_paths() == [template]
    matrix = tensor("float32", "n", 3)
    graph = graph_of(library, "leaky_relu", [matrix], [matrix], slope_divisor=4)
    assert graph.kernel_libraries_paths == [template]
    np.testing.assert_array_equal(run(session, graph, X)[0], np.where(X < 0, X / 4, X))
    np.testing.assert_array_equal(run(session, graph, X.T.copy().T)[0], np.where(X < 0, X / 4, X))
    doubles = tensor("float64", "n", 3)
    graph = graph_of(library, "running_max", [doubles], [doubles, tensor("int64", "n")])
    maxima, places = run(session, graph, X.astype(np.float64))
    np.testing.assert_array_equal(maxima, np.maximum.accumulate(X, axis=1))
    np.testing.assert_array_equal(places, [2, 0])
    assert [array.shape for array in run(session, graph, np.zeros((0, 3)))] == [(0, 3), (0,)]


def test_a_failure_is_an_error_of_that_execution(session: InferenceSession, template: Path) -> None:
    matrix = tensor("float32", "n", 3)
    for parameters, message in (({"slope_divisor": 0}, "slope_divisor must not be 0"), ({}, "'slope_divisor' is missing")):
        model = session.load(graph_of(KernelLibrary(paths=[template]), "leaky_relu", [matrix], [matrix], **parameters))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"(?s)custom op 'leaky_relu' of .*libtemplate.so failed: .*{message}.*test_"):
                model.execute(X)


def test_a_panic_is_an_error_of_that_execution(session: InferenceSession, build: Callable[[str, str], Path]) -> None:
    source = f"""
        #[path = "{EXAMPLES / "src" / "interface.rs"}"]
        mod interface;
        use interface::{{Operands, Parameters, Results, custom_ops}};
        custom_ops! {{ c"panics", c"float32[n] -> float32[n]" => panics; }}
        fn panics(operands: &Operands, results: &mut Results, _: &Parameters) -> Result<(), String> {{
            let x = operands.get::<f32>(0)?;
            results.get::<f32>(0)?[0] = x[x.len()];
            Ok(())
        }}
    """
    vector = tensor("float32", "n")
    graph = graph_of(KernelLibrary(paths=[build("panics", source)]), "panics", [vector], [vector])
    with pytest.raises(RuntimeError, match="custom op 'panics' .* failed: .*it panicked: index out of bounds: the len is 3"):
        run(session, graph, X[0])


def test_the_c_header(session: InferenceSession, build: Callable[[str, str], Path]) -> None:
    source = """
        #include <string.h>
        #include "max_custom_op.h"
        static int32_t add(const max_call *call) {
            const max_tensor x = call->operands[0], y = call->results[0];
            if (x.dtype != MAX_INT32 || x.rank != 2 || call->num_parameters != 4 || call->stream) {
                strncpy(call->message, "not what was declared", call->message_bytes);
                return 7;
            }
            int32_t sum = 0;
            for (uint32_t i = 0; i < 4; i++) {
                const max_parameter p = call->parameters[i];
                sum += p.kind == MAX_PARAMETER_STR ? (int32_t)strlen(p.text) : (int32_t)p.number;
            }
            for (int64_t i = 0; i < x.elements; i++) ((int32_t *)y.data)[i] = ((int32_t *)x.data)[i] + sum;
            return 0;
        }
        static const max_op OPS[] = {{"add", 0, add, 0}};
        static const max_op_table TABLE = {MAX_CUSTOM_OP_VERSION, 1, OPS};
        const max_op_table *max_custom_ops(uint32_t version) { return version == 1 ? &TABLE : 0; }
    """
    library = KernelLibrary(paths=[build("header", source)])
    matrix, parameters = tensor("int32", 2, 3), {"a": True, "b": 20, "c": "four", "d": DType.int32}
    graph = graph_of(library, "add", [matrix], [matrix], **parameters)
    np.testing.assert_array_equal(run(session, graph, X.astype(np.int32))[0], X + 1 + 20 + 4 + DType.int32.value)
    with pytest.raises(RuntimeError, match="failed with status 7: not what was declared"):
        run(session, graph_of(library, "add", [tensor("float32", 2, 3)], [matrix], **parameters), X)


@pytest.mark.parametrize(
    "name, code, message",
    [
        ("symbol", "int other(void) { return 1; }", "does not export the function 'max_custom_ops'"),
        ("null", "void *max_custom_ops(unsigned v) { return 0; }", "does not support version 1 of the interface"),
        (
            "version",
            "static unsigned table[8] = {99}; void *max_custom_ops(unsigned v) { return table; }",
            "built for version 99 of the interface, but this release has version 1",
        ),
        ("empty", "static unsigned table[8] = {1}; void *max_custom_ops(unsigned v) { return table; }", "table has 0 ops"),
        (
            "nameless",
            '#include "max_custom_op.h"\nstatic const max_op OPS[1]; static const max_op_table T = {1, 1, OPS};'
            "const max_op_table *max_custom_ops(uint32_t v) { return &T; }",
            "op 0 of its table has no name",
        ),
        (
            "signature",
            '#include "max_custom_op.h"\nstatic int32_t run(const max_call *c) { return 0; }'
            'static const max_op OPS[] = {{"f", "float31[n] ->", run, 0}}; static const max_op_table T = {1, 1, OPS};'
            "const max_op_table *max_custom_ops(uint32_t v) { return &T; }",
            "'float31' is neither a dtype",
        ),
    ],
)
def test_broken_libraries(build: Callable[[str, str], Path], name: str, code: str, message: str) -> None:
    path = build(f"broken_{name}", code)
    with pytest.raises((RuntimeError, ValueError), match=message):
        KernelLibrary(paths=[path])


def test_files_that_are_no_libraries(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    unknown = tmp_path / "ops.txt"
    unknown.write_text("no library")
    cuda = tmp_path / "ops.cu"
    cuda.write_text("__global__ void f() {}")
    for path, message in (
        (text, "cannot load custom ops from the shared library '.*text.so'"),
        (unknown, "ops.txt': its name does not say what it is: custom ops are written in Rust or C"),
        (tmp_path / "missing.so", "missing.so': the file does not exist"),
        (tmp_path, "it is not a file"),
    ):
        with pytest.raises(RuntimeError, match=message):
            KernelLibrary().add_path(path)
    with pytest.raises(ValueError, match="ops.cu': no line declares an op"):
        KernelLibrary().add_path(cuda)
    for name in ("ops.mojopkg", "ops.mojo"):
        for load in (
            lambda path: KernelLibrary(paths=[path]),
            lambda path: Graph("g", custom_extensions=[path]),
            lambda path: InferenceSession(custom_extensions=path),
        ):
            with pytest.raises(NotImplementedError, match=f"(?s){name}' is Mojo.*Rust or C.*CUDA C\\+\\+.*Python"):
                load(tmp_path / name)


# --- Python functions -----------------------------------------------------------------------------


def test_a_function_fills_its_results(session: InferenceSession) -> None:
    library, seen = KernelLibrary(), []

    @library.register("min_max", "T[n, k] -> T[n], T[n]")
    def min_max(x: Buffer, low: Buffer, high: Buffer, **parameters: Any) -> None:
        seen.append((type(x), x.shape, parameters))
        np.min(x.to_numpy(), axis=1, out=low.to_numpy())
        np.max(x.to_numpy(), axis=1, out=high.to_numpy())

    vector = tensor("float32", "n")
    parameters = {"flag": True, "count": -3, "text": "float32", "dtype": DType.int8}
    with Graph("g", input_types=[tensor("float32", "n", "k")], kernel_library=library) as graph:
        low, high = ops.custom("min_max", CPU, [graph.inputs[0] * 2], [vector, vector], parameters)
        graph.output(high - low, low)
    difference, low = run(session, graph, X)
    np.testing.assert_array_equal(difference, 2 * (X.max(axis=1) - X.min(axis=1)))
    np.testing.assert_array_equal(low, 2 * X.min(axis=1))
    assert seen == [(Buffer, (2, 3), parameters)]
    assert type(seen[0][2]["flag"]) is bool


def test_nothing_is_copied(session: InferenceSession) -> None:
    library, addresses = KernelLibrary(), []

    @library.register("same")
    def same(x: Buffer, out: Buffer) -> None:
        addresses.append(x.to_numpy().ctypes.data)
        addresses.append(out.to_numpy().ctypes.data)
        out.to_numpy()[...] = x.to_numpy()

    data = Buffer.from_numpy(X)
    model = session.load(graph_of(library, "same", [tensor("float32", 2, 3)], [tensor("float32", 2, 3)]))
    (result,) = model.execute(data)
    assert addresses == [data.to_numpy().ctypes.data, result.to_numpy().ctypes.data]


def test_a_function_may_return_its_results(session: InferenceSession) -> None:
    library = KernelLibrary()
    for name, returned in {
        "one": lambda x, _: x.to_numpy() * 2,
        "list": lambda x, _: [Buffer.from_numpy(x.to_numpy() * 2)],
        "wrong shape": lambda x, _: x.to_numpy()[:1],
        "wrong dtype": lambda x, _: x.to_numpy().astype(np.float64),
        "two": lambda x, _: (x.to_numpy(), x.to_numpy()),
        "text": lambda x, _: "done",
    }.items():
        library.register(name)(returned)
    matrix = tensor("float32", 2, 3)
    for name in ("one", "list"):
        np.testing.assert_array_equal(run(session, graph_of(library, name, [matrix], [matrix]), X)[0], X * 2)
    for name, message in {
        "wrong shape": r"it returned float32 of shape \[1, 3\] for result 0, which is float32 of shape \[2, 3\]",
        "wrong dtype": r"it returned float64 of shape \[2, 3\] for result 0",
        "two": "it returned 2 values for 1 results",
        "text": "it returned <class 'str'> for result 0",
    }.items():
        with pytest.raises(RuntimeError, match=f"custom op '{name}' of this process failed: .*{message}"):
            run(session, graph_of(library, name, [matrix], [matrix]), X)


def test_an_exception_ends_the_execution_and_is_its_cause(session: InferenceSession) -> None:
    library = KernelLibrary()

    class Mine(Exception):
        pass

    @library.register("raises")
    def raises(x: Buffer, out: Buffer) -> None:
        if x.to_numpy()[0, 0] < 0:
            raise Mine("negative")
        out.to_numpy()[...] = x.to_numpy()

    matrix = tensor("float32", 2, 3)
    model = session.load(graph_of(library, "raises", [matrix], [matrix]))
    with pytest.raises(RuntimeError, match="(?s)custom op 'raises' of this process failed: .*Mine: negative.*test_custom_ops") as info:
        model.execute(-X)
    assert isinstance(info.value.__cause__, Mine)
    assert info.value.__cause__.__traceback__ is not None
    np.testing.assert_array_equal(model.execute(X)[0].to_numpy(), X)
    with pytest.raises(RuntimeError, match="failed: .*Mine: negative") as info:
        F.custom(library["raises"], CPU, [Tensor(-X)], [matrix])
    assert isinstance(info.value.__cause__, Mine)


def test_ctrl_c_in_a_function_is_ctrl_c(session: InferenceSession) -> None:
    library = KernelLibrary()

    @library.register("stop")
    def stop(x: Buffer, out: Buffer) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(session, graph_of(library, "stop", [tensor("float32", 2, 3)], [tensor("float32", 2, 3)]), X)


def test_operands_are_read_only(session: InferenceSession) -> None:
    library = KernelLibrary()

    @library.register("writes")
    def writes(x: Buffer, out: Buffer) -> None:
        x.to_numpy()[...] = 0

    data = X.copy()
    with pytest.raises(RuntimeError, match="custom op 'writes' of this process failed"):
        run(session, graph_of(library, "writes", [tensor("float32", 2, 3)], [tensor("float32", 2, 3)]), data)
    np.testing.assert_array_equal(data, X)


def test_a_function_may_run_models(session: InferenceSession) -> None:
    library = KernelLibrary()
    inner = session.load(Graph("inner", lambda x: x + 1, [tensor("float32", 2, 3)]))

    @library.register("nested")
    def nested(x: Buffer, out: Buffer) -> Buffer:
        return inner.execute(x)[0]

    matrix = tensor("float32", 2, 3)
    np.testing.assert_array_equal(run(session, graph_of(library, "nested", [matrix], [matrix]), X)[0], X + 1)


def test_functions_are_refused_in_captures(session: InferenceSession, template: Path) -> None:
    library = KernelLibrary(paths=[template])
    library.register("same")(lambda x, out: x.to_numpy())
    matrix = tensor("float32", 2, 3)
    for name in ("same", "leaky_relu"):
        model = session.load(graph_of(library, name, [matrix], [matrix], **({"slope_divisor": 1} if name != "same" else {})))
        with pytest.raises(RuntimeError, match=f"calls CustomOp\\('{name}' of .*so it cannot be captured"):
            model.capture(1, Buffer.from_numpy(X))


# --- functions over ops ---------------------------------------------------------------------------


def test_a_body_fuses(session: InferenceSession) -> None:
    library = KernelLibrary()
    library.elementwise("swish", lambda x, beta=1: x * ops.sigmoid(x * beta), "T[*shape] -> T[*shape]")
    matrix = tensor("float32", "n", 3)
    with Graph("g", input_types=[matrix], kernel_library=library) as graph:
        (y,) = ops.custom("swish", CPU, [graph.inputs[0] + 1], [matrix], {"beta": 3})
        graph.output(y * 2)
    model = session.load(graph)
    assert len(model.kernel_summaries) == 1
    np.testing.assert_allclose(model.execute(X)[0].to_numpy(), 2 * (X + 1) / (1 + np.exp(-3 * (X + 1))), rtol=1e-5)


def test_errors_of_a_body(session: InferenceSession) -> None:
    library = KernelLibrary()

    def raises(x: Any) -> Any:
        raise ValueError("no such x")

    library.elementwise("raises", raises)
    library.elementwise("other type", lambda x: ops.cast(x, DType.int32))
    vector = tensor("float32", 3)
    with pytest.raises(ValueError, match="no such x") as info:
        graph_of(library, "raises", [vector], [vector])
    assert isinstance(info.value.__cause__, ValueError)
    with pytest.raises(ValueError, match=r"returns \(int32\[3\]\), but its out_types are \(float32\[3\]\)"):
        graph_of(library, "other type", [vector], [vector])


# --- names, signatures and libraries --------------------------------------------------------------


def test_a_missing_op_says_where_it_was_looked_for(template: Path) -> None:
    library = KernelLibrary(paths=[template])
    library.register("mine")(lambda x, out: None)
    vector = tensor("float32", 3)
    searched = "(?s)no custom op 'other' in the libraries searched: .*libtemplate.so has 'leaky_relu', 'running_max'; this process has 'mine'"
    with pytest.raises(ValueError, match=searched):
        graph_of(library, "other", [vector], [vector])
    with pytest.raises(ValueError, match="no custom op 'other': no library of custom ops was given"):
        graph_of(KernelLibrary(), "other", [vector], [vector])
    with pytest.raises(ValueError, match=searched):
        library.verify_custom_op("other")
    library.verify_custom_op("mine")
    library.verify_custom_op(library["mine"])
    with pytest.raises(ValueError, match="there is a custom op 'mine' already"):
        library.register("mine")(lambda x, out: None)


def test_signatures_are_checked_when_the_graph_is_built() -> None:
    library = KernelLibrary()
    library.register("f", "T[n, k], float32[k] -> T[n]")(lambda x, y, out: None)
    matrix, row = tensor("int32", "a", 4), tensor("float32", 4)
    graph_of(library, "f", [matrix, row], [tensor("int32", "a")])
    for types, out_types, message in (
        ([matrix], [tensor("int32", "a")], "expected 2 operands .*, got 1"),
        ([matrix, tensor("float32", 5)], [tensor("int32", "a")], r"operand 1 must be float32\[k\] with n = a, k = 4"),
        ([matrix, row], [tensor("float32", "a")], r"result 0 must be T\[n\] .*T = int32, got float32\[a\]"),
        ([matrix, row], [tensor("int32", "b")], r"result 0 must be T\[n\] with n = a"),
        ([row, row], [tensor("int32", "a")], r"operand 0 must be T\[n, k\]"),
    ):
        with pytest.raises(ValueError, match=message):
            graph_of(library, "f", types, out_types)
    with pytest.raises(ValueError, match="'->' is missing"):
        library.register("g", "float32[n]")(lambda x: None)
    with pytest.raises(TypeError, match="a bool, an int, a str or a DType"):
        graph_of(library, "f", [matrix, row], [tensor("int32", "a")], ratio=0.5)


def test_devices_must_fit(template: Path) -> None:
    library = KernelLibrary(paths=[template])
    on_gpu = TensorType(DType.float32, [3], DeviceRef.GPU())
    with Graph("g", input_types=[tensor("float32", 3), on_gpu], kernel_library=library) as graph:
        host, gpu = graph.inputs
        with pytest.raises(ValueError, match="'leaky_relu' runs on the host only, got the device gpu:0"):
            ops.custom("leaky_relu", DeviceRef.GPU(), [gpu], [on_gpu])
        with pytest.raises(ValueError, match="operand 0 of custom op 'leaky_relu' is on gpu:0, but the op runs on cpu:0"):
            ops.custom("leaky_relu", CPU, [gpu], [on_gpu])
        with pytest.raises(ValueError, match="result 0 of custom op 'leaky_relu' is on gpu:0"):
            ops.custom("leaky_relu", CPU, [host], [on_gpu])


def test_ops_of_the_same_name_are_not_confused(session: InferenceSession) -> None:
    results = []
    for factor in (2, 3):
        library = KernelLibrary()
        library.register("scale")(lambda x, out, factor=factor: x.to_numpy() * factor)
        matrix = tensor("float32", 2, 3)
        results.append(run(session, graph_of(library, "scale", [matrix], [matrix]), X)[0])
        results.append(F.custom(library["scale"], CPU, [Tensor(X)], [matrix])[0].to_numpy())
    for result, factor in zip(results, (2, 2, 3, 3)):
        np.testing.assert_array_equal(result, X * factor)


def test_saved_graphs_find_their_ops_by_name(session: InferenceSession, template: Path, tmp_path: Path) -> None:
    path, matrix = tmp_path / "graph", tensor("float32", "n", 3)
    graph = graph_of(KernelLibrary(paths=[template]), "leaky_relu", [matrix], [matrix], slope_divisor=2)
    graph.save(path)
    want = np.where(X < 0, X / 2, X)
    for model in (
        session.load(path, custom_extensions=template),
        session.load(path, custom_extensions=[str(template)]),
        session.load(path, custom_ops_path=str(template)),
        session.load(path, custom_extensions=KernelLibrary(paths=[template])),
        InferenceSession(custom_extensions=[template]).load(path),
        session.load(Graph("g", path=path, custom_extensions=[template])),
        session.load(Graph.parse(str(graph), custom_extensions=[template])),
    ):
        np.testing.assert_array_equal(model.execute(X)[0].to_numpy(), want)
    for load in (lambda: session.load(path), lambda: Graph("g", path=path), lambda: Graph.parse(str(graph))):
        with pytest.raises((RuntimeError, ValueError), match="there is no custom op 'leaky_relu': no library"):
            load()


def test_the_same_file_gives_the_same_ops(template: Path) -> None:
    first, second = (KernelLibrary(paths=[template])["leaky_relu"] for _ in range(2))
    together = KernelLibrary(paths=[template, template])
    assert (first.name, first.library) == (second.name, str(template))
    assert together.library_paths() == [template]
    Graph("g", kernel_library=together, custom_extensions=[template])


# --- eager code and modules -----------------------------------------------------------------------


def test_eager_calls(template: Path) -> None:
    library = KernelLibrary(paths=[template])
    library.elementwise("twice", lambda x: ops.add(x, x))
    library.register("negate")(lambda x, out: -x.to_numpy())
    for rows in (1, 2, 5, 2):
        data = np.linspace(-3, 3, 3 * rows, dtype=np.float32).reshape(rows, 3)
        matrix, x = tensor("float32", rows, 3), Tensor(data)
        (y,) = F.custom(library["leaky_relu"], CPU, [x], [matrix], {"slope_divisor": 2})
        np.testing.assert_array_equal(y.to_numpy(), np.where(data < 0, data / 2, data))
        (y,) = F.custom(library["twice"], CPU, [x], [matrix])
        np.testing.assert_array_equal(y.to_numpy(), 2 * data)

        @F.functional
        def together(x: Tensor) -> Tensor:
            (y,) = F.custom(library["twice"], CPU, [x + 1], [matrix])  # noqa: B023 - called at once
            return F.custom(library["negate"], CPU, [y], [matrix])[0] * 3  # noqa: B023 - called at once

        np.testing.assert_array_equal(together(x).to_numpy(), -6 * (data + 1))


def test_modules(template: Path) -> None:
    class Leaky(Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.custom("leaky_relu", CPU, [x], [tensor("float32", "n", 3)], {"slope_divisor": 4})[0] + 1

    compiled = Leaky().compile(tensor("float32", "n", 3), custom_extensions=[template])
    np.testing.assert_array_equal(compiled(Tensor(X)).to_numpy(), np.where(X < 0, X / 4, X) + 1)
    with pytest.raises(ValueError, match="no custom op 'leaky_relu'"):
        Leaky().compile(tensor("float32", "n", 3))


# --- buffers --------------------------------------------------------------------------------------


def test_inplace_custom_needs_a_buffer() -> None:
    library = KernelLibrary()
    library.register("bump", "&T[n] ->")(lambda x: None)
    with Graph("g", input_types=[tensor("float32", 3)], kernel_library=library) as graph:
        with pytest.raises(TypeError, match="expects a buffer among its values"):
            ops.inplace_custom("bump", CPU, graph.inputs)
        with pytest.raises(ValueError, match=r"operand 0 must be &T\[n\], got float32\[3\]"):
            ops.custom("bump", CPU, graph.inputs, [])
    with Graph("g", input_types=[BufferType(DType.float32, [3], CPU)], kernel_library=library) as graph:
        assert ops.inplace_custom("bump", CPU, graph.inputs) == []
        assert "custom" in str(graph)


@pytest.fixture(scope="module")
def counters(build: Callable[[str, str], Path]) -> KernelLibrary:
    """Ops that change buffers: in Python, and in C."""
    library = KernelLibrary()

    @library.register("increment", "&float32[n] ->")
    def increment(x: Buffer) -> None:
        x.to_numpy()[...] += 1

    @library.register("decrement", "&float32[n] ->")
    def decrement(x: Buffer) -> None:
        x.to_numpy()[...] -= 1

    source = """
        #include "max_custom_op.h"
        static int32_t run(const max_call *call) {
            float *x = call->operands[0].data, *by = call->operands[1].data, *old = call->results[0].data;
            for (int64_t i = 0; i < call->operands[0].elements; i++) { old[i] = x[i]; x[i] += by[i]; }
            return 0;
        }
        static const max_op OPS[] = {{"exchange_add", "&float32[n], float32[n] -> float32[n]", run, 0}};
        static const max_op_table TABLE = {1, 1, OPS};
        const max_op_table *max_custom_ops(uint32_t version) { return &TABLE; }
    """
    library.add_path(build("counters", source))
    return library


BUFFER = BufferType(DType.float32, [3], CPU)


def test_buffers_are_changed_in_place(session: InferenceSession, counters: KernelLibrary) -> None:
    with Graph("g", input_types=[BUFFER, tensor("float32", 3)], kernel_library=counters) as graph:
        buffer, by = graph.inputs
        before = ops.buffer_load(buffer.buffer)
        ops.inplace_custom("increment", CPU, [buffer])
        between = ops.buffer_load(buffer.buffer)
        (old,) = ops.inplace_custom("exchange_add", CPU, [buffer, by.tensor * 2], [tensor("float32", 3)])
        ops.custom("increment", CPU, [buffer], [])
        graph.output(before, between, old, ops.buffer_load(buffer.buffer))
    model, state = session.load(graph), Buffer.from_numpy(np.array([1, 2, 3], np.float32))
    for start in (np.array([1, 2, 3]), np.array([23, 24, 25])):
        results = [out.to_numpy() for out in model.execute(state, np.full(3, 10, np.float32))]
        for result, want in zip(results, (start, start + 1, start + 1, start + 22)):
            np.testing.assert_array_equal(result, want)
    np.testing.assert_array_equal(state.to_numpy(), [45, 46, 47])


def test_equal_calls_on_a_buffer_are_all_made(session: InferenceSession, counters: KernelLibrary) -> None:
    with Graph("g", input_types=[BUFFER], kernel_library=counters) as graph:
        for _ in range(3):
            ops.inplace_custom("increment", CPU, graph.inputs)
        graph.output()
    state = Buffer.from_numpy(np.zeros(3, np.float32))
    session.load(graph).execute(state)
    np.testing.assert_array_equal(state.to_numpy(), [3, 3, 3])


def test_buffers_in_branches_loops_and_subgraphs(session: InferenceSession, counters: KernelLibrary) -> None:
    with Graph("g", input_types=[tensor("bool"), BUFFER], kernel_library=counters) as graph:
        flag, buffer = graph.inputs
        ops.cond(
            flag.tensor,
            None,
            lambda: ops.inplace_custom("increment", device=buffer.device, values=[buffer]) and None,
            lambda: ops.inplace_custom("decrement", device=buffer.device, values=[buffer]) and None,
        )

        def body(i: Any) -> Any:
            ops.inplace_custom("increment", CPU, [buffer])
            return i + 1

        ops.while_loop(ops.constant(0, DType.int32, CPU), lambda i: i < 4, body)
        sub = graph.add_subgraph("sub", input_types=[BUFFER])
        with sub:
            ops.inplace_custom("decrement", CPU, sub.inputs)
            sub.output()
        ops.call(sub, buffer)
        graph.output()
    model = session.load(graph)
    for flag, want in ((True, 4), (False, 2)):
        state = Buffer.from_numpy(np.zeros(3, np.float32))
        model.execute(np.array(flag), state)
        np.testing.assert_array_equal(state.to_numpy(), [want] * 3)
    with pytest.raises(RuntimeError, match="calls CustomOp.*so it cannot be captured"):
        model.capture(1, Buffer.from_numpy(np.array(True)), state)


def test_what_is_written_must_not_be_read_as_well(session: InferenceSession, counters: KernelLibrary) -> None:
    with Graph("g", input_types=[BUFFER, tensor("float32", 3)], kernel_library=counters) as graph:
        graph.output(*ops.inplace_custom("exchange_add", CPU, graph.inputs, [tensor("float32", 3)]))
    state = Buffer.from_numpy(np.ones(3, np.float32))
    with pytest.raises((RuntimeError, ValueError)):
        session.load(graph).execute(state, state)


# --- CUDA C++ -------------------------------------------------------------------------------------


def test_cuda_sources_are_declared_and_checked_without_a_gpu() -> None:
    library = KernelLibrary(paths=[EXAMPLES / "rows.cu"])
    gpu = DeviceRef.GPU()
    matrix, sums = (TensorType(DType.float32, shape, gpu) for shape in (["n", 3], ["n"]))
    with Graph("g", input_types=[matrix], kernel_library=library) as graph:
        assert ops.custom("row_sums", gpu, graph.inputs, [sums], {"shift": 1})[0].type == sums
        with pytest.raises(ValueError, match="'shift' of an op in CUDA C\\+\\+ is an int or a bool"):
            ops.custom("row_sums", gpu, graph.inputs, [sums], {"shift": "much"})
        with pytest.raises(ValueError, match=r"result 0 must be float32\[n\] with n = n, k = 3"):
            ops.custom("row_sums", gpu, graph.inputs, [matrix], {"shift": 1})
    with Graph("g", input_types=[tensor("float32", 2, 3)], kernel_library=library) as graph:
        with pytest.raises(ValueError, match="'row_sums' runs on GPUs only, got the device cpu:0"):
            ops.custom("row_sums", CPU, graph.inputs, [tensor("float32", 2)], {"shift": 1})
    for options, message in (
        ({}, "one of threads and blocks"),
        ({"threads": "n", "blocks": "n"}, "one of threads and blocks"),
        ({"threads": "m"}, "says what 'm'"),
        ({"threads": "n", "block": 4096}, "1 to 1024 threads"),
        ({"threads": "n", "function": "a b"}, "is not the name of a function"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelLibrary().register_cuda("f", "", "T[n] -> T[n]", **options)  # type: ignore[arg-type]


# --- examples -------------------------------------------------------------------------------------


def test_the_example_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(os.fspath(EXAMPLES / "in_python.py"), run_name="__main__")
    assert capsys.readouterr().out == "[[1 0 2]]\n"
