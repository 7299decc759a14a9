"""The functions of `max.experimental.functional`: every row of the op-case table, and what only they have."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.realization_context import EagerRealizationContext, lazy
from max.experimental.tensor import Tensor, default_device
from max.graph import Graph, TensorValue, ops

from helpers import assert_close, dtype_of, tensor, to_array, to_buffer
from op_cases import Case, Input, all_cases, expand
from reference import reference, result_dtype
from test_op_cases import call_documented, literal


@pytest.fixture(autouse=True)
def on_the_cpu():
    with default_device(CPU()):
        yield


def call(case: Case, tensors: list[Tensor]) -> list[Any]:
    values = iter(tensors)

    def leaf(value: Any) -> Any:
        if isinstance(value, Input):
            return next(values)
        return case.symbols.get(value, literal(value)) if isinstance(value, str) else value

    return call_documented(F, case, leaf)


def check(case: Case, results: list[Any], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected)
    for number, (result, want) in enumerate(zip(results, expected)):
        dtype = result_dtype(case, number)
        assert isinstance(result, Tensor)
        assert result.dtype == dtype_of(dtype)
        assert result.shape == list(want.shape)
        result.realize
        assert_close(to_array(result.driver_tensor), want, dtype, case.row.get("rtol", 0.0))


def inputs(case: Case, arrays: list[np.ndarray]) -> list[Tensor]:
    return [Tensor(storage=to_buffer(array, i.dtype)) for array, i in zip(arrays, case.inputs)]


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_a_bare_call_matches_numpy(case: Case) -> None:
    arrays = case.draw()
    results = call(case, inputs(case, arrays))
    assert all(result.real for result in results)
    check(case, results, reference(case, arrays))


@pytest.mark.parametrize("context", [EagerRealizationContext, lazy])
@pytest.mark.parametrize(
    "case", [c for c in all_cases() if c.dtype == expand(c.row["dtypes"])[0]], ids=str
)
def test_a_call_in_a_context_matches_numpy(case: Case, context: Any) -> None:
    arrays = case.draw()
    with context():
        results = call(case, inputs(case, arrays))
    check(case, results, reference(case, arrays))


WRAPPED = [name for name in dir(F) if hasattr(getattr(F, name), "__wrapped__") and hasattr(ops, name)]


class TestFunctions:
    def test_there_are_many(self) -> None:
        assert {"relu", "matmul", "max", "split", "conv2d", "layer_norm"} <= set(WRAPPED)

    @pytest.mark.parametrize("name", WRAPPED)
    def test_looks_like_its_op(self, name: str) -> None:
        function, op = getattr(F, name), getattr(ops, name)
        assert inspect.signature(function) == inspect.signature(op)
        assert function.__doc__ == op.__doc__ and function.__doc__
        assert function.__name__ == name

    def test_is_pickled_by_name(self) -> None:
        assert pickle.loads(pickle.dumps(F.relu)) is F.relu

    def test_every_op_of_graphs_on_tensors_is_a_function(self) -> None:
        no_tensors = {"InterpolationMode", "TensorType", "random", "shape_to_tensor"}
        # Their buffers and subgraphs are those of graphs.
        buffers = {"buffer_create", "buffer_load", "buffer_store", "buffer_store_slice", "inplace_custom", "call"}
        collectives = {"allgather", "allreduce", "distributed_broadcast", "distributed_scatter", "reducescatter"}
        others = no_tensors | buffers | collectives
        assert [name for name in ops.__all__ if not hasattr(F, name) and name not in others] == []

    def test_an_op_of_graphs_needs_a_scope(self) -> None:
        with pytest.raises(LookupError, match="No graph found"):
            ops.relu(Tensor([1.0]))

    def test_an_op_of_graphs_gives_tensors_in_a_context(self) -> None:
        with EagerRealizationContext():
            y = ops.relu(Tensor([-1.0, 2.0]))
        assert isinstance(y, Tensor) and y.real
        np.testing.assert_array_equal(y.to_numpy(), [0, 2])

    def test_an_error_leaves_the_next_call_alone(self) -> None:
        with pytest.raises(ValueError):
            F.add(Tensor([1.0, 2.0]), Tensor([1.0, 2.0, 3.0]))
        with pytest.raises(LookupError):
            ops.relu(Tensor([1.0]))
        assert F.add(Tensor([1.0]), 1).item() == 2

    def test_values_of_a_graph_give_values(self) -> None:
        with Graph("plain", input_types=[tensor("float32", "n")]) as graph:
            y = F.relu(graph.inputs[0])
            assert isinstance(y, TensorValue)
            assert isinstance(y + Tensor([1.0]), Tensor)
            assert isinstance(F.add(graph.inputs[0], Tensor([1.0])), Tensor)


class TestShapesAsTensors:
    def test_broadcast_to(self) -> None:
        shape = Tensor(np.array([2, 3]))
        for out_dims in (["a", "b"], [2, 3]):
            y = F.broadcast_to(Tensor([1.0, 2.0, 3.0]), shape, out_dims)
            np.testing.assert_array_equal(y.to_numpy(), [[1, 2, 3]] * 2)
            with lazy():
                z = F.broadcast_to(Tensor([1.0, 2.0, 3.0]), shape + 0, out_dims) + 1
            np.testing.assert_array_equal(z.to_numpy(), [[2, 3, 4]] * 2)

    def test_slices(self) -> None:
        x, start = np.arange(12, dtype=np.float32).reshape(3, 4), Tensor(np.array(1))
        y = Tensor(x)[:, (slice(start, None), "n")]
        assert y.shape == [3, 3]
        np.testing.assert_array_equal(y.to_numpy(), x[:, 1:])


class TestMadeFromNothing:
    @pytest.mark.parametrize(
        "made, expected",
        [
            (lambda: F.zeros([2, 2]), np.zeros((2, 2), np.float32)),
            (lambda: F.ones([3]), np.ones(3, np.float32)),
            (lambda: F.full([2], 7, dtype=DType.int8), np.full(2, 7, np.int8)),
            (lambda: F.zeros_like(Tensor([1.0, 2.0])), np.zeros(2, np.float32)),
            (lambda: F.ones_like(Tensor([1.0, 2.0])), np.ones(2, np.float32)),
            (lambda: F.full_like(Tensor([1.0, 2.0]), 5), np.full(2, 5, np.float32)),
            (lambda: F.arange(4), np.arange(4, dtype=np.float32)),
            (lambda: F.constant([1, 2], DType.int32, CPU()), np.array([1, 2], np.int32)),
            (lambda: F.constant(1.5, DType.float64, CPU()), np.array(1.5)),
        ],
    )
    def test_result(self, made: Any, expected: np.ndarray) -> None:
        actual = made().to_numpy()
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)

    def test_random_ones_have_their_shape(self) -> None:
        assert F.uniform([2, 3]).shape == F.gaussian([2, 3]).shape == F.normal([2, 3]).shape == [2, 3]


class TestClip:
    @pytest.mark.parametrize("function", [F.clip, F.clamp])
    def test_bounds(self, function: Any) -> None:
        x = Tensor([-2.0, 0.0, 2.0])
        np.testing.assert_array_equal(function(x, -1, 1).to_numpy(), [-1, 0, 1])
        np.testing.assert_array_equal(function(x, 1).to_numpy(), [1, 1, 2])
        np.testing.assert_array_equal(function(x, None, Tensor([0.0])).to_numpy(), [-2, 0, 0])

    def test_bounds_have_names(self) -> None:
        x = Tensor([-2.0, 2.0])
        assert F.clip(x, min=0).to_numpy().tolist() == F.clamp(x, lower_bound=0).to_numpy().tolist() == [0, 2]
        assert F.clip(x, max=0).to_numpy().tolist() == F.clamp(x, upper_bound=0).to_numpy().tolist() == [-2, 0]


class TestFunctional:
    def test_wraps_a_graph_op(self) -> None:
        relu = F.functional(ops.relu)
        assert relu.__name__ == "relu" and relu.__doc__ == ops.relu.__doc__
        y = relu(Tensor([-1.0, 1.0]))
        assert y.real
        np.testing.assert_array_equal(y.to_numpy(), [0, 1])

    def test_wraps_a_function_of_several_ops(self) -> None:
        seen = []

        @F.functional
        def normalized(x: Any, epsilon: float = 1e-5) -> Any:
            """Documented."""
            centred = x - ops.mean(x)
            seen.append(centred.real)
            return centred * ops.rsqrt(ops.mean(centred * centred) + epsilon)

        x = np.array([[1, 2, 3, 6]], np.float32)
        y = normalized(Tensor(x), epsilon=0.0)
        assert seen == [False] and y.real
        np.testing.assert_allclose(y.to_numpy(), (x - 3) / np.sqrt(3.5), rtol=1e-6)
        assert normalized.__doc__ == "Documented."
        assert list(inspect.signature(normalized).parameters) == ["x", "epsilon"]

    def test_decorates_methods(self) -> None:
        class Layer:
            def __init__(self, weight: Tensor) -> None:
                self.weight = weight

            @F.functional
            def __call__(self, x: Tensor) -> Tensor:
                return F.relu(x @ self.weight.T)

            @F.functional
            @classmethod
            def double(cls, x: Tensor) -> Tensor:
                return x * 2

            @F.functional
            @staticmethod
            def half(x: Tensor) -> Tensor:
                return x / 2

        layer = Layer(Tensor([[1.0, 2.0], [3.0, -4.0]]))
        np.testing.assert_array_equal(layer(Tensor([[1.0, 1.0]])).to_numpy(), [[3, 0]])
        assert Layer.double(Tensor([1.0])).item() == 2
        assert layer.half(Tensor([1.0])).item() == 0.5

    def test_wraps_callable_objects(self) -> None:
        class Twice:
            def __call__(self, x: Tensor) -> Tensor:
                return x + x

        assert F.functional(Twice())(Tensor([1.0])).item() == 2

    def test_refuses_objects_that_are_not_callable(self) -> None:
        with pytest.raises(TypeError, match="functional"):
            F.functional(3)  # type: ignore[type-var]

    def test_joins_the_scope_it_is_called_in(self) -> None:
        @F.functional
        def inner(x: Tensor) -> Tensor:
            return x + 1

        @F.functional
        def outer(x: Tensor) -> tuple[Tensor, bool]:
            y = inner(x)
            return y * 2, y.real

        y, inner_was_real = outer(Tensor([1.0]))
        assert y.item() == 4 and not inner_was_real
        with lazy():
            z = outer(Tensor([1.0]))[0]
        assert not z.real and z.item() == 4

    def test_containers_are_realized(self) -> None:
        @F.functional
        def parts(x: Tensor) -> dict[str, Any]:
            return {"sum": x + 1, "pair": [x * 2, x * 3], "plain": 5}

        found = parts(Tensor([1.0]))
        assert found["sum"].real and all(part.real for part in found["pair"]) and found["plain"] == 5

    def test_an_exception_computes_nothing(self) -> None:
        kept = []

        @F.functional
        def broken(x: Tensor) -> None:
            kept.append(x + 1)
            raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            broken(Tensor([1.0]))
        assert not kept[0].real
        assert kept[0].item() == 2
        assert (Tensor([1.0]) + 1).real

    def test_records_into_a_graph(self) -> None:
        with Graph("joined", input_types=[tensor("float32", "n")]) as graph:
            y = F.functional(lambda x: ops.relu(x) + 1)(graph.inputs[0])
            assert isinstance(y, TensorValue) and y.shape == ["n"]
