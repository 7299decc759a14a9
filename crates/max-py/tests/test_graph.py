"""The Graph object: building, nesting, printing and parsing."""

import threading

import numpy as np
import pytest
from max.dtype import DType
from max.graph import Graph, KernelLibrary, TensorValue, ops

from helpers import CPU, REFUSED, build, tensor

vector = tensor("float32", 3)
X = np.array([1, -2, 3], dtype=np.float32)


def run(session, graph: Graph, *arrays: np.ndarray) -> list:
    return [out.to_numpy() for out in session.load(graph).execute(*arrays)]


def test_kernel_libraries() -> None:
    library = KernelLibrary()
    assert library.library_paths() == []
    graph = Graph("g", kernel_library=library)
    assert (graph.name, graph.kernel_libraries_paths) == ("g", [])
    with pytest.raises(TypeError, match="KernelLibrary"):
        Graph("g", kernel_library="library.mojopkg")
    with pytest.raises(TypeError, match="by its name"):
        library.verify_custom_op(object())


def test_as_a_context_manager() -> None:
    with Graph("g", input_types=[vector, tensor("int32", "n")]) as graph:
        assert Graph.current is graph
        assert [v.type for v in graph.inputs] == [vector, tensor("int32", "n")]
        assert all(isinstance(v, TensorValue) for v in graph.inputs)
        graph.output(graph.inputs[1], graph.inputs[0] * 2)
    assert graph.output_types == [tensor("int32", "n"), vector]


@pytest.mark.parametrize(
    "forward, want",
    [
        (lambda x: ops.relu(x), [[1, 0, 3]]),
        (lambda x: [x, x + 1], [[1, -2, 3], [2, -1, 4]]),
        (lambda x: (x * 2,), [[2, -4, 6]]),
    ],
)
def test_forward(session, forward, want: list) -> None:
    for graph in (Graph("g", forward, [vector]), Graph("g", forward=forward, input_types=[vector])):
        assert len(graph.output_types) == len(want)
        for out, expected in zip(run(session, graph, X), want):
            np.testing.assert_array_equal(out, expected)


def test_forward_that_takes_several_inputs(session) -> None:
    graph = Graph("g", forward=lambda x, y: x - y, input_types=(vector, vector))
    np.testing.assert_array_equal(run(session, graph, X, X[::-1].copy())[0], X - X[::-1])


def test_current_is_per_context_and_nests() -> None:
    with Graph("outer") as outer:
        with Graph("inner") as inner:
            assert Graph.current is inner
        assert Graph.current is outer
    with pytest.raises(LookupError):
        Graph.current  # noqa: B018


def test_threads_build_independently(session) -> None:
    """Each thread has its own current graph."""
    results: dict[int, np.ndarray] = {}
    barrier = threading.Barrier(4)

    def work(k: int) -> None:
        with Graph(f"g{k}", input_types=[vector]) as graph:
            barrier.wait()
            y = graph.inputs[0]
            for _ in range(50):
                y = y + k
            graph.output(y)
        results[k] = run(session, graph, X)[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k in range(4):
        np.testing.assert_array_equal(results[k], X + 50 * k)


def test_inputs_as_outputs_and_repeats(session) -> None:
    outputs = run(session, build(lambda x: [x, x, x + 1, x], [vector]), X)
    for out, want in zip(outputs, [X, X, X + 1, X]):
        np.testing.assert_array_equal(out, want)


def test_no_inputs(session) -> None:
    graph = build(lambda: ops.constant([1.0, 2.0], DType.float32, CPU) * 3, [])
    np.testing.assert_array_equal(run(session, graph)[0], [3, 6])


def test_output_takes_arrays_beside_values(session) -> None:
    with Graph("g", input_types=[vector]) as graph:
        graph.output(graph.inputs[0], X * 2)
    np.testing.assert_array_equal(run(session, graph, X)[1], X * 2)


def test_bad_outputs() -> None:
    with Graph("g", input_types=[vector]) as graph:
        for bad in ("text", None, object()):
            with pytest.raises(REFUSED):
                graph.output(bad)


def test_bad_input_types() -> None:
    for bad in ([DType.float32], ["float32"], [None]):
        with pytest.raises(REFUSED):
            Graph("g", input_types=bad)


FORWARDS = {
    "arithmetic": (lambda x: (x * 2 + 1) / x - ops.exp(x), [vector]),
    "symbolic": (lambda x: ops.reshape(x, [-1]), [tensor("float32", "n", "m")]),
    "constants": (lambda x: x + ops.constant(np.arange(3), DType.float32, CPU), [vector]),
    "slices": (lambda x: [x[1:, ::-1], x[..., None], x[-1]], [tensor("int32", 4, 5)]),
    "reductions": (lambda x: [ops.sum(x), ops.softmax(x), ops.argmax(x, 0)], [tensor("float64", 2, 3)]),
    "matmul": (ops.matmul, [tensor("float16", "n", 3), tensor("float16", 3, 4)]),
    "layers": (lambda x, g: ops.layer_norm(ops.gelu(x, "tanh"), g, g, 1e-5), [tensor("float32", 2, 3), vector]),
    "convolution": (
        lambda x, w: ops.conv2d(x, w, stride=(2, 1), padding=(1, 0, 0, 1)),
        [tensor("float32", 1, 5, 5, 2), tensor("float32", 3, 3, 2, 4)],
    ),
    "joins": (lambda x: [ops.concat([x, x]), *ops.split(x, [1, 2])], [tensor("bool", 3, 2)]),
    "odd constants": (
        lambda x: ops.where(ops.is_nan(x), ops.constant(float("inf"), DType.float32, CPU), -0.0),
        [vector],
    ),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_text_round_trip(name: str) -> None:
    """Parsing what a graph prints gives a graph that prints the same."""
    forward, types = FORWARDS[name]
    graph = build(forward, types, name="printed")
    text = str(graph)
    assert "printed" in text
    parsed = Graph.parse(text)
    assert str(parsed) == text
    assert parsed.output_types == graph.output_types


def test_parsed_graphs_run(session) -> None:
    graph = build(lambda x: ops.relu(x) * 2 + ops.constant(X, DType.float32, CPU), [vector])
    np.testing.assert_array_equal(run(session, Graph.parse(str(graph)), X)[0], run(session, graph, X)[0])


@pytest.mark.parametrize("text", ["", "graph", "nonsense {", "\x00", "(" * 100_000])
def test_bad_text(text: str) -> None:
    with pytest.raises(REFUSED):
        Graph.parse(text)


def test_damaged_text_never_crashes() -> None:
    """Every prefix, and the text without any one line, is either a graph or a clean error."""
    text = str(build(FORWARDS["slices"][0], FORWARDS["slices"][1]))
    lines = text.splitlines(keepends=True)
    damaged = [text[:n] for n in range(len(text) - 1)]
    damaged += ["".join(lines[:n] + lines[n + 1 :]) for n in range(len(lines))]
    for piece in damaged:
        try:
            Graph.parse(piece)
        except REFUSED:
            pass
