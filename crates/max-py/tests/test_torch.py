"""Graphs called from PyTorch code, on the CPU; the tests on CUDA tensors are in test_gpu_torch.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import DeviceRef, Dim, TensorType, ops

from helpers import compiler, pytorch

torch = pytorch()

import max.torch  # noqa: E402 - only where there is PyTorch
from max.torch import graph_op  # noqa: E402


@graph_op
def plus(x, y):
    return x + y


def doubled(x):
    return x * 2


def vector(*dims: Any, dtype: DType = DType.float32) -> TensorType:
    return TensorType(dtype, list(dims))


def applied(op: Any, like: Any, *inputs: Any) -> Any:
    output = torch.empty_like(like)
    assert op(output, *inputs) is None
    return output


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """The names of the graphs that are compiled during a test."""
    seen: list[str] = []
    load = InferenceSession.load
    monkeypatch.setattr(InferenceSession, "load", lambda self, graph: seen.append(graph.name) or load(self, graph))
    return seen


# --- What is documented -------------------------------------------------------------------------------------------------


def test_the_documented_example() -> None:
    compiler()

    @max.torch.graph_op
    def max_grayscale(pic: max.graph.TensorValue):
        scaled = pic.cast(DType.float32) * np.array([0.21, 0.71, 0.07])
        grayscaled = ops.sum(scaled, axis=-1).cast(pic.dtype)
        # max reductions don't remove the dimension, need to squeeze
        return ops.squeeze(grayscaled, axis=-1)

    @torch.compile
    def grayscale(pic: torch.Tensor):
        output = pic.new_empty(pic.shape[:-1])  # Remove color channel dimension
        max_grayscale(output, pic)  # Call as destination-passing style
        return output

    img = (torch.rand(64, 64, 3) * 255).to(torch.uint8)
    result = grayscale(img)
    assert result.shape == (64, 64) and result.dtype == torch.uint8
    expected = (img.float() * torch.tensor([0.21, 0.71, 0.07])).sum(-1).to(torch.uint8)
    assert (result.int() - expected.int()).abs().max() <= 1
    assert result.float().std() > 0


def test_the_operator_is_pytorchs() -> None:
    assert isinstance(plus, torch._library.custom_ops.CustomOpDef)
    schema = str(plus._opoverload._schema)
    assert schema.endswith("(Tensor(a0!) __out0, Tensor x, Tensor y) -> ()"), schema
    checks = torch.library.opcheck(plus, (torch.empty(3), torch.ones(3), torch.ones(3)))
    assert set(checks.values()) == {"SUCCESS"}


def test_arguments() -> None:
    x, y = torch.arange(3.0), torch.ones(3)
    assert applied(plus, x, x, y).tolist() == [1, 2, 3]
    output = torch.empty(3)
    plus(output, y=y, x=x)
    assert output.tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="missing value for argument 'y'"):
        plus(output, x)
    with pytest.raises(RuntimeError, match="type 'float'"):
        plus(output, x, 1.0)


def test_defaults_and_varargs() -> None:
    def power(x, exponent=3, *, scale=1):
        return x**exponent * scale

    def total(*terms):
        return sum(terms[1:], terms[0])

    x = torch.tensor([1.0, 2.0])
    assert applied(graph_op(power), x, x).tolist() == [1, 8]
    two = graph_op(power, input_types=[vector(2), vector(2)])
    assert applied(two, x, x, torch.tensor([5.0, 2.0])).tolist() == [1, 4]
    assert applied(graph_op(total, input_types=[vector(2)] * 3), x, x, x, x).tolist() == [3, 6]
    with pytest.raises(TypeError, match=r"'total' takes any number of tensors \(\*terms\): give input_types"):
        graph_op(total)
    with pytest.raises(TypeError, match=r"'doubled'\(x\) cannot be called with 2 tensors by position: too many"):
        graph_op(doubled, input_types=[vector(2)] * 2)
    with pytest.raises(TypeError, match="missing a required argument: 'scale'"):
        graph_op(lambda x, *, scale: x * scale)


def test_several_outputs() -> None:
    @graph_op(num_outputs=2)
    def both(x, y):
        return [x + y, (x < y)]

    sums, less = torch.empty(2), torch.empty(2, dtype=torch.bool)
    both(sums, less, torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]))
    assert sums.tolist() == [3, 3] and less.tolist() == [True, False]


def test_an_operator_without_outputs(capfd) -> None:
    @graph_op(num_outputs=0)
    def show(x):
        ops.print(x)

    show(torch.ones(2))
    assert "1.0, 1.0" in capfd.readouterr().out


def test_names() -> None:
    first = graph_op(doubled)
    second = graph_op(lambda x: x * 3, name="doubled")
    odd = graph_op(lambda x: x * 4)
    x = torch.ones(2)
    assert [applied(op, x, x)[0].item() for op in (first, second, odd, first)] == [2, 3, 4, 2]
    names = [str(op._qualname) for op in (first, second, odd)]
    assert len(set(names)) == 3 and all(name.startswith("max_torch::") for name in names)

    class Scale:
        def __call__(self, x):
            return x * 5

    assert applied(graph_op(Scale()), x, x).tolist() == [5, 5]


DTYPES = [*"float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()]


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name: str) -> None:
    x = torch.tensor([[0, 1, 3], [2, 0, 1]]).to(getattr(torch, name))
    swapped = graph_op(lambda x: ops.transpose(x, 0, 1))
    output = torch.empty(3, 2, dtype=x.dtype)
    swapped(output, x)
    assert torch.equal(output, x.T)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 3.0)
    assert torch.equal(applied(graph_op(doubled), x, x), x * 2)


# --- Memory -------------------------------------------------------------------------------------------------------------


def test_nothing_is_copied(monkeypatch) -> None:
    given: list[list[int]] = []
    execute = Model.execute
    monkeypatch.setattr(
        Model, "execute", lambda self, *args: given.append([b._native.data_ptr for b in args]) or execute(self, *args)
    )
    output, x, y = torch.empty(1000), torch.rand(1000), torch.rand(1000, requires_grad=True)
    plus(output, x, y)
    assert given == [[tensor.data_ptr() for tensor in (output, x, y)]]
    assert torch.equal(output, x + y.detach())


def test_strided_tensors() -> None:
    x, y = torch.arange(6.0).reshape(2, 3).T, torch.ones(3, 1).expand(3, 2)
    whole = torch.zeros(3, 4)
    plus(whole[:, ::2], x, y)
    assert whole.tolist() == [[1, 0, 4, 0], [2, 0, 5, 0], [3, 0, 6, 0]]


def test_a_slice_of_a_larger_tensor() -> None:
    whole = torch.zeros(3, 2)
    plus(whole[1], torch.arange(9.0)[4:6], torch.ones(2))
    assert whole.tolist() == [[0, 0], [5, 6], [0, 0]]


def test_outputs_that_overlap_inputs() -> None:
    reverse = graph_op(lambda x: x[::-1], name="reverse")
    x = torch.arange(1000.0)
    reverse(x, x)
    assert torch.equal(x, torch.arange(1000.0).flip(0))
    shifted = torch.arange(1000.0)
    graph_op(doubled)(shifted[1:], shifted[:-1])
    assert torch.equal(shifted[1:], torch.arange(999.0) * 2)
    plus(x, x, x)
    assert x[0] == 2 * 999


def test_gradients_do_not_flow() -> None:
    x = torch.ones(3, requires_grad=True)
    output = applied(plus, x.detach(), x, x)
    assert output.tolist() == [2, 2, 2] and not output.requires_grad
    parameter = torch.nn.Parameter(torch.zeros(3))
    with torch.no_grad():
        plus(parameter, x, x)
    assert parameter.tolist() == [2, 2, 2]


# --- Models -------------------------------------------------------------------------------------------------------------


def test_a_model_per_signature(loads) -> None:
    op = graph_op(doubled)
    for size in (2, 3, 2, 3):
        applied(op, torch.ones(size), torch.ones(size))
    assert len(loads) == 2
    applied(op, torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32))
    assert len(loads) == 3


def test_few_models_are_kept(loads) -> None:
    op = graph_op(doubled)
    sizes = range(1, 66)
    for size in [*sizes, 65]:
        applied(op, torch.ones(size), torch.ones(size))
    assert len(loads) == len(sizes)
    assert applied(op, torch.ones(1), torch.ones(1)).item() == 2
    assert len(loads) == len(sizes) + 1, "the model used longest ago is dropped"


def test_symbolic_types_need_one_model(loads) -> None:
    op = graph_op(
        lambda x: ops.concat([x, x]), "twice", input_types=[vector("n", 2)], output_types=[vector(Dim("n") * 2, 2)]
    )
    for size in (1, 5, 3):
        output = torch.empty(2 * size, 2)
        op(output, torch.ones(size, 2))
        assert output.sum() == 4 * size
    assert loads == ["twice"]
    with pytest.raises(ValueError, match="n"):
        op(torch.empty(3, 2), torch.ones(2, 2))


def test_some_types_given(loads) -> None:
    op = graph_op(doubled, input_types=[vector("n")])
    for size in (2, 4):
        assert applied(op, torch.ones(size), torch.ones(size)).tolist() == [2] * size
    with pytest.raises(ValueError, match="rebind"):
        applied(op, torch.ones(2), torch.ones(3))
    op = graph_op(doubled, output_types=[vector("n")])
    assert applied(op, torch.ones(5), torch.ones(5)).tolist() == [2] * 5


def test_threads() -> None:
    op = graph_op(lambda x: ops.softmax(x @ x), name="threads")
    inputs = [torch.rand(size, size) for size in (8, 16, 8, 24) * 8]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: applied(op, x, x), inputs))
    for x, output in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(output, torch.softmax(x @ x, -1))


# --- Mistakes -----------------------------------------------------------------------------------------------------------


def test_wrong_outputs() -> None:
    x = torch.ones(3)
    for wrong, words in [
        (torch.empty(4), r"shape=\[Dim\(4\)\]"),
        (torch.empty(3, 1), r"shape=\[Dim\(3\), Dim\(1\)\]"),
        (torch.empty(3, dtype=torch.int32), "dtype=int32"),
    ]:
        message = rf"output 0 of 'plus' is a TensorType\(dtype=float32, shape=\[Dim\(3\)\].*must be written to .*{words}"
        with pytest.raises(ValueError, match=message):
            plus(wrong, x, x)
    with pytest.raises(ValueError, match="'two' returns 2 tensors, but has num_outputs=1"):
        applied(graph_op(lambda x: (x, x), name="two"), x, x)
    with pytest.raises(ValueError, match="'nothing' returns 0 tensors, but has num_outputs=1"):
        applied(graph_op(lambda x: None, name="nothing"), x, x)
    with pytest.raises(TypeError, match="'number' must return tensors of its graph; got a int"):
        applied(graph_op(lambda x: [3], name="number"), x, x)
    assert applied(plus, x, x, x).tolist() == [2, 2, 2], "a failed call leaves nothing behind"


def test_tensors_that_do_not_fit_the_types() -> None:
    op = graph_op(doubled, input_types=[vector("n", 3)], output_types=[vector("n", 3)])
    x = torch.ones(2, 3)
    for output, given, role in [
        (x.double(), x, "output 0"),
        (torch.empty(2, 4), x, "output 0"),
        (torch.empty(2, 3), x.double(), "input 0"),
        (torch.empty(2, 3), x[0], "input 0"),
    ]:
        with pytest.raises(ValueError, match=rf"{role} of 'doubled' must be a TensorType\(dtype=float32"):
            op(output, given)
    with pytest.raises(ValueError, match="'n'"):
        op(torch.empty(4, 3), x)


def test_types_on_a_device_that_is_not_there() -> None:
    op = graph_op(doubled, input_types=[vector(3).to(DeviceRef.GPU(250))])
    with pytest.raises((RuntimeError, ValueError), match="(?i)gpu|cuda"):
        applied(op, torch.ones(3), torch.ones(3))


def test_definitions_that_contradict() -> None:
    with pytest.raises(ValueError, match="num_outputs is 2, expected 1, the number of output_types"):
        graph_op(doubled, output_types=[vector(3)], num_outputs=2)
    with pytest.raises(ValueError, match="num_outputs is -1, expected 0 or more"):
        graph_op(doubled, num_outputs=-1)


def test_tensors_that_have_no_type() -> None:
    with pytest.raises(ValueError, match="complex64"):
        applied(graph_op(doubled), torch.ones(2), torch.ones(2, dtype=torch.complex64))
    with pytest.raises((ValueError, RuntimeError, BufferError)):
        applied(graph_op(doubled), torch.ones(2), torch.ones(2).to_sparse())


def test_errors_of_the_function_are_its_own() -> None:
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        applied(graph_op(broken), torch.ones(2), torch.ones(2))


# --- torch.compile ------------------------------------------------------------------------------------------------------


def model(x: Any) -> Any:
    hidden = torch.relu(x - 1)
    output = torch.empty_like(hidden)
    plus(output, hidden, x)
    return output * 2


def expected(x: Any) -> Any:
    return (torch.relu(x - 1) + x) * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_backend(dynamic: bool) -> None:
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for size in (3, 5, 8):
        x = torch.rand(size, size) * 3
        torch.testing.assert_close(compiled(x), expected(x))


def test_compiled_by_inductor() -> None:
    compiler()
    compiled = torch.compile(model, fullgraph=True)
    for x in (torch.rand(6) * 3, torch.rand(6) * 3, torch.rand(9, 2) * 3):
        torch.testing.assert_close(compiled(x), expected(x))


def test_in_a_module_with_parameters() -> None:
    project = graph_op(lambda x, weight: x @ ops.transpose(weight, 0, 1), name="project")

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(4, 3))

        def forward(self, x):
            output = x.new_empty(x.shape[0], 4)
            project(output, x, self.weight)
            return torch.relu(output)

    layer, x = Layer(), torch.rand(5, 3)
    wanted = torch.relu(x @ layer.weight.detach().T)
    torch.testing.assert_close(layer(x), wanted)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), wanted)
