"""Realization contexts: where ops on tensors go, and when they run."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType
from max.experimental import functional as F
from max.experimental import random, realization_context
from max.experimental.realization_context import (
    EagerRealizationContext,
    GraphRealizationContext,
    LazyRealizationContext,
    clear_compile_cache,
    compile_cache_stats,
    ensure_context,
    in_graph_context,
    lazy,
    set_default_realization_context,
)
from max.experimental.tensor import ComputeGraph, Tensor, default_device
from max.experimental.tensor import realization_context as use
from max.graph import Graph, TensorType, TensorValue, ops

from helpers import tensor

VECTOR = tensor("float32", "n")


@pytest.fixture(autouse=True)
def on_the_cpu():
    with default_device(CPU()):
        yield


class TestTheLaterSurface:
    """Names and parameters on which the documentation relies."""

    @pytest.mark.parametrize(
        "thing, parameters",
        [
            (EagerRealizationContext, "executor use_interpreter"),
            (LazyRealizationContext, "executor use_interpreter"),
            (GraphRealizationContext, "graph signal_buffers prefix"),
            (EagerRealizationContext.create_unrealized, "self values mapping"),
            (GraphRealizationContext.create_unrealized, "self values mapping"),
            (EagerRealizationContext.add_source, "self tensor"),
            (GraphRealizationContext.add_mutable_source, "self tensor"),
            (EagerRealizationContext.finalize_graph, "self"),
            (GraphRealizationContext.realize_all, "self"),
            (set_default_realization_context, "fn"),
            (ensure_context, ""),
            (Tensor, "data dtype device storage state value"),
            (Tensor.arange, "start stop step out_dim dtype device"),
            (Tensor.full_like, "input value renamed"),
            (Tensor.split, "self split_size_or_sections axis"),
            (Tensor.clip, "self min max"),
        ],
    )
    def test_parameters(self, thing: Any, parameters: str) -> None:
        assert list(inspect.signature(thing).parameters) == parameters.split()

    def test_what_is_not_supported_raises(self) -> None:
        for refused in (
            lambda: EagerRealizationContext(object()),
            lambda: GraphRealizationContext(Graph("g"), signal_buffers=[1]),
            lambda: EagerRealizationContext().add_mutable_source(Tensor([1.0])),
            lambda: EagerRealizationContext().create_unrealized(Tensor([1.0]), mapping=1),
            lambda: ComputeGraph(context=object()),
        ):
            with pytest.raises(NotImplementedError):
                refused()
        with pytest.raises(TypeError):
            GraphRealizationContext("graph")  # type: ignore[arg-type]


@pytest.mark.parametrize("enter", [lambda ctx: ctx, use], ids=["with ctx", "realization_context(ctx)"])
class TestEager:
    def test_realizes_at_the_end(self, enter: Any) -> None:
        with enter(EagerRealizationContext()) as ctx:
            x = Tensor([1.0, 2.0]) + 1
            y = x * x
            assert not x.real and not y.real and y.state is not None and y.storage is None
            assert ctx.finalize_graph() != []
        assert x.real and y.real and y.state is None
        np.testing.assert_array_equal(y.to_numpy(), [4, 9])

    def test_types_are_known_before(self, enter: Any) -> None:
        with enter(EagerRealizationContext()):
            y = (Tensor.ones([2, 3]) @ Tensor.ones([3, 4])).cast(DType.int32)
            assert (y.shape, y.dtype, y.device, y.rank, y.num_elements()) == ([2, 4], DType.int32, CPU(), 2, 8)
            assert not y.real

    def test_an_exception_computes_nothing(self, enter: Any) -> None:
        with pytest.raises(RuntimeError), enter(EagerRealizationContext()):
            y = Tensor([1.0]) + 1
            raise RuntimeError
        assert not y.real
        assert y.item() == 2 and y.real

    def test_can_be_entered_again(self, enter: Any) -> None:
        ctx = EagerRealizationContext()
        with enter(ctx), enter(ctx):
            x = Tensor([1.0]) + 1
        with enter(ctx):
            y = x + 1
            assert not y.real
        assert (x.item(), y.item()) == (2, 3)


class TestLazy:
    @pytest.mark.parametrize("context", [lazy, LazyRealizationContext, F.lazy])
    def test_realizes_nothing_at_the_end(self, context: Any) -> None:
        with context():
            x = Tensor([1.0, 2.0]) + 1
            y = x * 2
        assert not x.real and not y.real
        x.realize
        assert x.real and not y.real
        assert y[0].item() == 4

    def test_fills_take_no_memory(self) -> None:
        with lazy():
            huge = Tensor.zeros([1 << 20, 1 << 20])
            weight = Tensor.full([1 << 20, 1 << 20], 2.0)
            noise = random.uniform([1 << 20, 1 << 20])
            corner = weight[0, :3]
        assert not huge.real and not weight.real and not noise.real
        np.testing.assert_array_equal(corner.to_numpy(), [2, 2, 2])
        assert not weight.real

    @pytest.mark.parametrize("made", [Tensor.zeros, Tensor.ones, random.uniform, random.gaussian])
    def test_new_tensors_are_pending(self, made: Any) -> None:
        with lazy():
            x = made([2, 3])
        assert not x.real
        assert x.to_numpy().shape == (2, 3) and x.real

    def test_realize_all(self) -> None:
        with lazy() as ctx:
            x, y = Tensor([1.0]) + 1, Tensor([2.0]) + 1

        async def wait() -> list:
            return await ctx.realize_all()

        assert sorted(t.item() for t in asyncio.run(wait())) == [2, 3]
        assert x.real and y.real


class TestGraphs:
    def test_code_for_tensors_builds_graphs(self, session: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            return F.relu(x @ Tensor([[1.0, -1.0], [2.0, 1.0]])) + Tensor.ones([2])

        graph = Graph("model", input_types=[TensorType(DType.float32, ["batch", 2], CPU())])
        with GraphRealizationContext(graph) as ctx:
            assert ctx.graph is graph and in_graph_context() and Graph.current is graph
            y = forward(Tensor.from_graph_value(graph.inputs[0]))
            assert isinstance(y, Tensor) and y.shape == ["batch", 2]
            graph.output(y)
        x = np.array([[1, 2], [-3, 0.5]], np.float32)
        (out,) = session.load(graph).execute(x)
        np.testing.assert_array_equal(out.to_numpy(), forward(Tensor(x)).to_numpy())

    def test_values_cannot_be_read(self) -> None:
        with Graph("g", input_types=[VECTOR]) as graph:
            x = Tensor.from_graph_value(graph.inputs[0])
            y = x + 1
            assert not y.real and y.state is not None and isinstance(y.state.value, TensorValue)
            assert y.state.value.shape == ["n"]
            for read in (
                lambda: y.realize,
                lambda: y.item(),
                lambda: y.to_numpy(),
                lambda: bool(y),
                lambda: float(y),
                lambda: np.from_dlpack(y),
                lambda: y.driver_tensor,
                lambda: len(y),
            ):
                with pytest.raises(TypeError):
                    read()
            assert "float32" in repr(y)

    def test_reading_a_graph_value_explains_why_it_fails(self) -> None:
        with Graph("g", input_types=[VECTOR]) as graph:
            with pytest.raises(TypeError, match="graph"):
                Tensor(value=graph.inputs[0].tensor).to_numpy()

    def test_both_constructors_of_values(self) -> None:
        graph = Graph("g", input_types=[VECTOR])
        for make in (Tensor.from_graph_value, Tensor.from_tensor_value, lambda v: Tensor(value=v)):
            assert make(graph.inputs[0]).type == VECTOR
        with pytest.raises(TypeError):
            Tensor.from_graph_value(3)  # type: ignore[arg-type]

    def test_fills_may_have_symbolic_dims(self, session: Any) -> None:
        graph = Graph("g", input_types=[VECTOR])
        with GraphRealizationContext(graph):
            x = Tensor.from_graph_value(graph.inputs[0])
            filled = Tensor.full([x.shape[0], 2], 3)
            size = Tensor.from_dim(x.shape[0])
            assert filled.shape == ["n", 2] and not filled.real and size.dtype is DType.int64
            graph.output(filled, size, Tensor.zeros_like(x))
        filled, size, zeros = session.load(graph).execute(np.ones(4, np.float32))
        assert filled.to_numpy().tolist() == [[3, 3]] * 4
        assert size.item() == 4 and zeros.to_numpy().tolist() == [0] * 4

    def test_symbolic_dims_need_a_graph(self) -> None:
        with pytest.raises((TypeError, ValueError)):
            Tensor.zeros(["n", 2])

    def test_sources_and_results(self) -> None:
        graph = Graph("g", input_types=[VECTOR])
        ctx = GraphRealizationContext(graph)
        source = ctx.add_source(Tensor([1.0, 2.0]))
        assert isinstance(source, TensorValue) and source.shape == [2]
        for values in (graph.inputs[0], [graph.inputs[0]]):
            assert ctx.create_unrealized(values).type == VECTOR
        with pytest.raises(TypeError):
            ctx.create_unrealized(Tensor([1.0]))
        with pytest.raises(TypeError, match="'g'"):
            ctx.realize_all()

    def test_tensor_values_of_tensors(self) -> None:
        with Graph("g", input_types=[VECTOR]) as graph:
            x = Tensor.from_graph_value(graph.inputs[0])
            assert isinstance(TensorValue(x), TensorValue) and TensorValue(x).shape == ["n"]
            assert x.__tensorvalue__().type == VECTOR
            assert TensorValue(Tensor([1.0])).shape == [1]
        with lazy(), pytest.raises(TypeError, match="graph"):
            TensorValue(Tensor([1.0]))

    def test_a_graph_may_be_a_function_of_tensors(self) -> None:
        graph = Graph("g", lambda x: F.relu(Tensor.from_graph_value(x)), input_types=[VECTOR])
        assert graph.output_types == [VECTOR]


class TestScopes:
    def test_the_innermost_decides(self) -> None:
        with Graph("outer", input_types=[VECTOR]) as graph:
            assert in_graph_context()
            with EagerRealizationContext():
                assert not in_graph_context()
                with pytest.raises(LookupError):
                    Graph.current
                y = Tensor([1.0]) + 1
                with GraphRealizationContext(graph):
                    assert Graph.current is graph
                    assert isinstance(ops.relu(graph.inputs[0]), TensorValue)
            assert y.real and Graph.current is graph
        assert not in_graph_context()

    def test_an_eager_block_in_a_lazy_one(self) -> None:
        with lazy():
            x = Tensor([1.0]) + 1
            with EagerRealizationContext():
                y = x * 2
            assert y.real and y.item() == 4
            z = y + 1
        assert not z.real and z.item() == 5

    def test_ensure_context(self) -> None:
        with ensure_context():
            x = Tensor([1.0]) + 1
            assert not x.real
        assert x.real
        with lazy() as outer, ensure_context() as inner:
            assert inner is outer
        with pytest.raises(RuntimeError), ensure_context():
            y = x + 1
            raise RuntimeError
        assert not y.real

    def test_a_default_context_can_be_chosen(self) -> None:
        set_default_realization_context(LazyRealizationContext)
        try:
            x = F.relu(Tensor([1.0]))
            y, z = x + 1, F.functional(lambda t: t * 2)(x)
            parts = y.split(1)
            with ensure_context():
                w = x + 5
            ones = Tensor.ones([1])
            assert not any(t.real for t in (x, y, z, w, ones, *parts))
            assert (x.item(), y.item(), z.item(), w.item(), parts[0].item()) == (1, 2, 2, 6, 2)
        finally:
            set_default_realization_context(None)
        assert F.relu(Tensor([1.0])).real
        with pytest.raises(TypeError):
            set_default_realization_context(3)  # type: ignore[arg-type]

    def test_a_realized_context_gives_its_results(self) -> None:
        ctx = EagerRealizationContext()
        x = Tensor([1.0])
        assert ctx.add_source(x) is x
        with ctx:
            y = x + 1
            assert ctx.create_unrealized([y]) is y
        with pytest.raises(TypeError):
            ctx.create_unrealized(3)


class TestComputeGraph:
    def test_evaluates(self) -> None:
        compute = ComputeGraph()
        with compute.graph:
            x, y = Tensor([1.0]) + 1, Tensor([2.0]) + 1
            assert len(compute.unrealized) == 2
            asyncio.run(compute.evaluate(x))
            assert x.real and y.real and list(compute.unrealized) == []
        assert x.item() == 2

    def test_keeps_sources(self) -> None:
        source = Tensor([1.0])
        compute = ComputeGraph(sources={"a": source})
        compute.add_source(Tensor([2.0]))
        assert compute.sources["a"] is source and len(compute.sources) == 2
        with lazy(), pytest.raises(TypeError):
            compute.add_source(source + 1)


class TestCache:
    def test_counts(self) -> None:
        clear_compile_cache()
        assert compile_cache_stats().size == 0
        x = Tensor([1.0, 2.0, 3.0])
        with EagerRealizationContext():
            first = F.tanh(x) * 2 + 1
        before = compile_cache_stats()
        with EagerRealizationContext():
            second = F.tanh(x) * 2 + 1
        after = compile_cache_stats()
        assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)
        assert before.size == after.size > 0
        np.testing.assert_array_equal(first.to_numpy(), second.to_numpy())

    def test_making_tensors_of_data_runs_nothing(self) -> None:
        before = compile_cache_stats()
        array = np.array([1.0, 2.0], np.float32)
        made = [Tensor([1, 2]), Tensor([[1.5]], dtype=DType.bfloat16), Tensor(array), F.constant(array)]
        made += [Tensor.zeros([2]), F.full([2], 3), F.constant(1, DType.int8, CPU())]
        assert compile_cache_stats() == before and all(tensor.real for tensor in made)
        array[:] = 5
        assert made[2].to_numpy().tolist() == made[3].to_numpy().tolist() == [1, 2]

    def test_stats_are_plain_data(self) -> None:
        stats = compile_cache_stats()
        assert [f.name for f in dataclasses.fields(stats)] == ["hits", "misses", "size"]
        with pytest.raises(dataclasses.FrozenInstanceError):
            stats.hits = 3  # type: ignore[misc]


def test_the_modules_public_names() -> None:
    assert [name for name in realization_context.__all__ if not hasattr(realization_context, name)] == []
