"""Control flow on tensors."""

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.realization_context import lazy
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType

VECTOR = TensorType(DType.float32, [3])
TRUE, FALSE = (Tensor(np.array(flag)) for flag in (True, False))


def test_only_one_branch_runs() -> None:
    ran = []
    x = Tensor([1.0, 2.0, 3.0])
    for flag in (TRUE, FALSE):
        (y,) = F.cond(
            flag, [VECTOR], lambda: ran.append("then") or x * 2, lambda: ran.append("else") or x + 10
        )
        np.testing.assert_array_equal(y.to_numpy(), [2, 4, 6] if flag is TRUE else [11, 12, 13])
    assert ran == ["then", "else"]


def test_without_results() -> None:
    assert F.cond(Tensor([1.0]).sum()[0] > 0, None, lambda: None, lambda: None) == []


@pytest.mark.parametrize("pred", [Tensor(np.array([True, False])), Tensor(1), 1, None])
def test_predicates_that_do_not_decide(pred) -> None:
    with pytest.raises(ValueError, match="scalar of type bool"):
        F.cond(pred, None, lambda: None, lambda: None)


@pytest.mark.parametrize(
    "result", [None, Tensor([1.0, 2.0]), Tensor(np.array([1, 2, 3])), [Tensor([1.0, 2.0, 3.0])] * 2, 1.0, Tensor(1.0)]
)
def test_results_of_other_types(result) -> None:
    with pytest.raises(ValueError, match="Results don't match expected types"):
        F.cond(TRUE, [VECTOR], lambda: result, lambda: result)


def test_symbolic_dims_stand_for_any_size() -> None:
    kind = TensorType(DType.float32, ["n"])
    for size in (0, 1, 5):
        (y,) = F.cond(TRUE, [kind], lambda size=size: Tensor.ones([size]), lambda: None)
        assert [int(dim) for dim in y.shape] == [size]


def test_loops_repeat() -> None:
    step, total = F.while_loop(
        [Tensor(0), Tensor(0.0)], lambda i, total: i < 10, lambda i, total: (i + 1, total + i.cast(DType.float32))
    )
    assert (step.item(), total.item()) == (10, 45.0)
    (same,) = F.while_loop(Tensor(5), lambda x: x < 0, lambda x: x + 1)
    assert same.item() == 5


def test_loops_in_a_lazy_region() -> None:
    with lazy():
        (x,) = F.while_loop(Tensor(1), lambda x: x < 100, lambda x: x * 3)
    assert x.item() == 243


def test_loops_that_change_types() -> None:
    with pytest.raises(ValueError, match="Results don't match expected types"):
        F.while_loop(Tensor(1), lambda x: x < 3, lambda x: x.cast(DType.int32))
    with pytest.raises(ValueError, match="at least one initial value"):
        F.while_loop([], lambda: FALSE, lambda: ())


def test_a_graph_decides_when_it_runs() -> None:
    with Graph("g", input_types=[TensorType(DType.bool, []), VECTOR]) as graph:
        flag, x = (Tensor.from_graph_value(value.tensor) for value in graph.inputs)
        (y,) = F.cond(flag, [VECTOR], lambda: x * 2, lambda: F.relu(x))
        (z,) = F.while_loop(y, lambda v: v[0] < 100, lambda v: v * 2)
        graph.output(*F.fence(z))
    model = InferenceSession().load(graph)
    x = np.array([1, -1, 3], dtype=np.float32)
    np.testing.assert_array_equal(model.execute(np.array(True), x)[0].to_numpy(), [128, -128, 384])
    np.testing.assert_array_equal(model.execute(np.array(False), x)[0].to_numpy(), [128, 0, 384])


def test_fence_needs_values() -> None:
    x = Tensor([1.0])
    assert F.fence(x)[0] is x
    with pytest.raises(ValueError, match="at least one value"):
        F.fence()
