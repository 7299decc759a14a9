"""Modules as graphs and as compiled programs."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.experimental import functional as F
from max.experimental.nn import Embedding, Linear, Module, ModuleList, RMSNorm, Sequential, module_dataclass
from max.experimental.realization_context import lazy
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType, TensorValue, Weight, ops

from helpers import tensor


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class MLP(Module):
    def __init__(self, dim: int = 8, hidden: int = 32, out: int = 5) -> None:
        self.first = Linear(dim, hidden)
        self.second = Linear(hidden, hidden)
        self.third = Linear(hidden, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(F.gelu(self.second(F.relu(self.first(x)))))


def explicit_mlp(x: Any, weights: dict[str, Tensor]) -> Any:
    """The ops of `MLP` on graph values."""
    value = {name: Weight(name, w.dtype, w.shape, w.type.device) for name, w in weights.items()}
    hidden = ops.relu(x @ value["first.weight"].T + value["first.bias"])
    hidden = ops.gelu(hidden @ value["second.weight"].T + value["second.bias"])
    return hidden @ value["third.weight"].T


class Scaled(Module):
    def __init__(self, factor: Any) -> None:
        self.factor = Tensor(np.asarray(factor, dtype=np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# --- what a compiled module returns -----------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_eager_compiled_and_explicit_give_the_same_bits(batch: int, session: InferenceSession) -> None:
    mlp = MLP()
    x = normal(batch, 8)
    eager = mlp(Tensor(x)).to_numpy()
    compiled = mlp.compile(tensor("float32", "batch", 8))
    weights = dict(mlp.parameters)
    with Graph("mlp", input_types=[tensor("float32", "batch", 8)]) as graph:
        graph.output(explicit_mlp(graph.inputs[0], weights))
    explicit = session.load(graph, weights_registry={name: w.driver_tensor for name, w in weights.items()})
    np.testing.assert_array_equal(compiled(Tensor(x)).to_numpy(), eager)
    np.testing.assert_array_equal(explicit(x)[0].to_numpy(), eager)
    assert eager.shape == (batch, 5)


def test_one_program_for_all_sizes() -> None:
    traced = []

    class Counted(Module):
        def forward(self, x: Tensor) -> Tensor:
            traced.append(x.shape)
            return x * 2

    compiled = Counted().compile(tensor("float32", "rows", "columns"))
    assert [str(shape) for shape in traced] == ["[Dim('rows'), Dim('columns')]"]
    for shape in ((1, 1), (3, 5), (0, 4)):
        np.testing.assert_array_equal(compiled(normal(*shape)).to_numpy(), normal(*shape) * 2)
    assert len(traced) == 1


def test_inputs_of_all_kinds() -> None:
    class Plus(Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    compiled = Plus().compile(tensor("float32", "n"), tensor("float32"))
    x = normal(4)
    with lazy():
        pending = Tensor(x) * 1
    for given in (x, Tensor(x), Buffer.from_numpy(x), pending):
        result = compiled(given, 2.0)
        assert isinstance(result, Tensor) and result.real
        np.testing.assert_array_equal(result.to_numpy(), x + 2)
    with pytest.raises(ValueError):
        compiled(x)
    with pytest.raises(ValueError):
        compiled(x.astype(np.float64), 2.0)
    with pytest.raises(TypeError):
        compiled("text", 2.0)


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Output:
    logits: Tensor
    hidden: list[Tensor]
    extra: Any = None


def test_the_structure_of_results_is_kept() -> None:
    class Many(Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return {"sum": x + y, "point": Point(x, y * 2), "both": (x, [y]), "out": Output(x - y, [x, y])}

    many = Many()
    compiled = many.compile(tensor("float32", "n"), tensor("float32", "n"))
    x, y = normal(3), normal(3, seed=1)
    result = compiled(x, y)
    assert list(result) == ["sum", "point", "both", "out"]
    assert type(result["point"]) is Point and type(result["both"]) is tuple and type(result["both"][1]) is list
    assert type(result["out"]) is Output and result["out"].extra is None
    np.testing.assert_array_equal(result["sum"].to_numpy(), x + y)
    np.testing.assert_array_equal(result["point"].y.to_numpy(), y * 2)
    np.testing.assert_array_equal(result["both"][1][0].to_numpy(), y)
    np.testing.assert_array_equal(result["out"].logits.to_numpy(), x - y)
    np.testing.assert_array_equal(result["out"].hidden[1].to_numpy(), y)


@pytest.mark.parametrize(
    "returned, message",
    [
        (3, "got int: 3"),
        ("text", "got str"),
        (np.ones(2), "got ndarray"),
        (None, "got None"),
        ([], r"got \[\]"),
        ({"a": [1.5]}, r"got float at \['a'\]\[0\]: 1.5"),
    ],
)
def test_results_that_are_not_tensors(returned: Any, message: str) -> None:
    class Odd(Module):
        def forward(self, x: Tensor) -> Any:
            return returned

    with pytest.raises(TypeError, match=f"forward of Odd must return tensors.*{message}"):
        Odd().compile(tensor("float32", 2))


def test_what_a_compiled_module_shows() -> None:
    session = InferenceSession(devices=[CPU()])
    types = tensor("float32", "batch", 8)
    compiled = MLP().compile(types, session=session, name="net")
    assert isinstance(compiled.model, Model) and isinstance(compiled.graph, Graph)
    assert compiled.input_types == (types,)
    assert compiled.model.name == compiled.graph.name == "net"
    assert "net" in repr(compiled)
    assert MLP().compile(types).model.name == "MLP"


def test_a_module_without_parameters_or_inputs() -> None:
    class Constant(Module):
        def forward(self) -> Tensor:
            return Tensor.ones([3]) * 2

    np.testing.assert_array_equal(Constant().compile()().to_numpy(), [2, 2, 2])


def test_a_layer_is_one_program() -> None:
    kernels = Linear(4, 4).compile(tensor("float32", "n", 4)).model.kernel_summaries
    assert [kernel.kind for kernel in kernels] == ["matmul"]


def test_nested_modules_and_integer_inputs() -> None:
    class Net(Module):
        def __init__(self) -> None:
            self.tokens = Embedding(11, dim=6)
            self.layers = ModuleList(Sequential(RMSNorm(6), Linear(6, 6)) for _ in range(2))

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            x = self.tokens(tokens)
            for layer in self.layers:
                x = x + layer(x)
            return x, x.argmax(axis=-1)

    net = Net()
    compiled = net.compile(TensorType(DType.int64, ["batch", "length"], CPU()))
    tokens = np.random.default_rng(0).integers(0, 11, (3, 5))
    for actual, expected in zip(compiled(tokens), net(Tensor(tokens)), strict=True):
        np.testing.assert_allclose(actual.to_numpy(), expected.to_numpy(), rtol=1e-6, atol=1e-6)


# --- weights --------------------------------------------------------------------------------------


def test_weights_have_qualified_names() -> None:
    text = str(MLP().trace(tensor("float32", "batch", 8), name="traced"))
    for name in ("first.weight", "first.bias", "second.weight", "second.bias", "third.weight", "traced", "batch"):
        assert name in text, name


def test_a_trace_can_be_loaded_by_a_session(session: InferenceSession) -> None:
    mlp = MLP()
    graph = mlp.trace(tensor("float32", "batch", 8))
    model = session.load(graph, weights_registry={name: w.driver_tensor for name, w in mlp.parameters})
    x = normal(3, 8)
    np.testing.assert_array_equal(model(x)[0].to_numpy(), mlp(Tensor(x)).to_numpy())


def test_a_trace_computes_no_parameters() -> None:
    with lazy():
        big = Linear(50_000, 50_000)
    assert "float32[50000, 50000]" in str(big.trace(tensor("float32", "n", 50_000)))
    assert not big.weight.real


def test_lazy_parameters_are_computed_to_compile() -> None:
    with lazy():
        linear = Linear(3, 2)
    x = normal(4, 3)
    result = linear.compile(tensor("float32", "n", 3))(x).to_numpy()
    np.testing.assert_allclose(result, x @ linear.weight.to_numpy().T, rtol=1e-6, atol=1e-6)


def test_given_weights() -> None:
    with lazy():
        linear = Linear(3, 2)
    weight, bias, x = normal(2, 3), normal(2, seed=1), normal(4, 3, seed=2)
    given = {"weight": weight, "bias": Tensor(bias), "unused": normal(1)}
    compiled = linear.compile(tensor("float32", "n", 3), weights=given)
    np.testing.assert_allclose(compiled(x).to_numpy(), x @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert not linear.weight.real  # the module keeps its own


def test_given_weights_that_do_not_fit() -> None:
    linear, types = Linear(3, 2), tensor("float32", "n", 3)
    with pytest.raises(KeyError, match="'bias' is missing"):
        linear.compile(types, weights={"weight": normal(2, 3)})
    with pytest.raises(ValueError, match=r"'bias' is not assignable: expected float32\[2\], got float32\[3\]"):
        linear.compile(types, weights={"weight": normal(2, 3), "bias": normal(3)})
    double = {"weight": normal(2, 3).astype(np.float64), "bias": normal(2)}
    with pytest.raises(ValueError, match=r"'weight' is not assignable: expected float32\[2, 3\], got float64"):
        linear.compile(types, weights=double)
    compiled = linear.compile(types, weights=double, auto_cast=True)
    np.testing.assert_allclose(
        compiled(normal(1, 3)).to_numpy(), normal(1, 3) @ normal(2, 3).T + normal(2), rtol=1e-5, atol=1e-6
    )


def test_a_shared_tensor_is_one_weight() -> None:
    class Tied(Module):
        def __init__(self) -> None:
            self.tokens = Embedding(5, dim=2)
            self.head = Linear(2, 5, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.tokens(tokens))

    tied, types = Tied(), tensor("int64", "n")
    graph = tied.trace(types)
    assert "tokens.weight" in str(graph) and "head.weight" not in str(graph)
    table = normal(5, 2)
    tokens = np.arange(5)
    for name in ("tokens.weight", "head.weight"):
        result = tied.compile(types, weights={name: table})(tokens)
        np.testing.assert_allclose(result.to_numpy(), table @ table.T, rtol=1e-5, atol=1e-6)


def test_compiled_modules_keep_their_weights() -> None:
    scaled = Scaled([1.0, 2.0])
    compiled = scaled.compile(tensor("float32", 2))
    scaled.load_state_dict({"factor": np.array([5, 5], dtype=np.float32)})
    np.testing.assert_array_equal(compiled(np.ones(2, np.float32)).to_numpy(), [1, 2])
    np.testing.assert_array_equal(scaled(Tensor.ones([2])).to_numpy(), [5, 5])


def test_modules_reached_through_other_objects() -> None:
    class Hidden(Module):
        def __init__(self) -> None:
            self.layers = ModuleList([Scaled(2), Scaled(3)])
            self.backwards = list(reversed(self.layers))
            self.fixed = [Tensor(np.float32(10))]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.backwards:
                x = layer(x)
            return x + self.fixed[0]

    compiled = Hidden().compile(
        tensor("float32"), weights={"layers.0.factor": np.float32(5).reshape(()), "layers.1.factor": Tensor(7.0)}
    )
    assert compiled(1.0).item() == 45  # the same weights; a tensor outside any module is used as it is


def test_parameters_can_be_walked_in_forward() -> None:
    class Norms(Module):
        def __init__(self) -> None:
            self.layers = ModuleList([Scaled([1.0, 2.0]), Scaled([3.0, 4.0])])

        def forward(self) -> Tensor:
            return F.concat([(p * p).sum() for _, p in self.parameters])

    norms = Norms()
    np.testing.assert_array_equal(norms().to_numpy(), [5, 25])
    given = {f"layers.{at}.factor": np.ones(2, np.float32) for at in range(2)}
    np.testing.assert_array_equal(norms.compile(weights=given)().to_numpy(), [2, 2])


# --- what goes wrong ------------------------------------------------------------------------------


def assert_unchanged(module: Module, before: dict[str, Tensor]) -> None:
    after = dict(module.parameters)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("look", [lambda x: x.item(), bool, float, lambda x: x.to_numpy()])
def test_looking_at_data(look: Any) -> None:
    class Curious(Module):
        def __init__(self) -> None:
            self.weight = Tensor.ones([1])

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight if look(x * self.weight) > 0 else x

    curious = Curious()
    before = dict(curious.parameters)
    np.testing.assert_array_equal(curious(Tensor.ones([1])).to_numpy(), [1])
    with pytest.raises(TypeError, match="no elements to read"):
        curious.compile(tensor("float32", 1))
    assert_unchanged(curious, before)
    np.testing.assert_array_equal(curious(Tensor.ones([1])).to_numpy(), [1])


def test_a_failing_forward_changes_nothing() -> None:
    class Failing(Module):
        def __init__(self) -> None:
            self.inner = Linear(2, 2)
            self.fails = True

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            if self.fails:
                raise RuntimeError("on purpose")
            return x

    failing = Failing()
    before = dict(failing.parameters)
    with pytest.raises(RuntimeError, match="on purpose"):
        failing.compile(tensor("float32", "n", 2))
    assert_unchanged(failing, before)
    failing.fails = False
    x = normal(3, 2)
    compiled = failing.compile(tensor("float32", "n", 2))
    np.testing.assert_array_equal(compiled(x).to_numpy(), failing(Tensor(x)).to_numpy())


def test_a_forward_that_sets_tensors() -> None:
    class Remembering(Module):
        def __init__(self) -> None:
            self.scale = Tensor.ones([1])
            self.last = None

        def forward(self, x: Tensor) -> Tensor:
            self.scale = self.scale * 2
            self.last = self.new = x * self.scale
            return self.last

    remembering = Remembering()
    scale = remembering.scale
    with pytest.raises(TypeError, match=r"sets Remembering\.scale, Remembering\.last, Remembering\.new"):
        remembering.compile(tensor("float32", 1))
    assert remembering.scale is scale and remembering.last is None and not hasattr(remembering, "new")
    assert remembering(Tensor.ones([1])).item() == 2


def test_cached_properties_are_not_parameters() -> None:
    class Cached(Module):
        def __init__(self) -> None:
            self.weight = Tensor.full([2], 3.0)

        @functools.cached_property
        def square(self) -> Tensor:
            return self.weight * self.weight

        def forward(self, x: Tensor) -> Tensor:
            return x * self.square

    cached = Cached()
    compiled = cached.compile(tensor("float32", 2), weights={"weight": np.full(2, 5, np.float32)})
    np.testing.assert_array_equal(compiled(np.ones(2, np.float32)).to_numpy(), [25, 25])
    np.testing.assert_array_equal(cached(Tensor.ones([2])).to_numpy(), [9, 9])
    assert [name for name, _ in cached.parameters] == ["weight"]
    again = cached.compile(tensor("float32", 2), weights={"weight": np.full(2, 5, np.float32)})
    np.testing.assert_array_equal(again(np.ones(2, np.float32)).to_numpy(), [25, 25])


def test_cached_properties_are_computed_once_for_a_trace_and_not_kept() -> None:
    computed: list[str] = []

    class Cached(Module):
        def __init__(self) -> None:
            self.weight = Tensor.full([2], 3.0)

        @functools.cached_property
        def powers(self) -> tuple[Tensor, Tensor]:
            computed.append("powers")
            return self.weight, self.weight * self.weight

        @functools.cached_property
        def inner(self) -> Linear:
            return Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * self.powers[0] + self.powers[1])

    cached, x = Cached(), Tensor.ones([2])
    inner = cached.inner
    compiled = cached.compile(tensor("float32", 2))
    assert computed == ["powers"] and "powers" not in vars(cached)
    np.testing.assert_array_equal(compiled(x).to_numpy(), cached(x).to_numpy())
    assert cached.inner is inner


def test_a_cached_property_may_extend_another() -> None:
    class Double(Module):
        def __init__(self) -> None:
            self.weight = Tensor.full([1], 3.0)

        @functools.cached_property
        def factor(self) -> Tensor:
            return self.weight * 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    class More(Double):
        @functools.cached_property
        def factor(self) -> Tensor:
            return super().factor + 1

    more = More()
    assert more.compile(tensor("float32", 1))(np.ones(1, np.float32)).item() == 7
    assert "factor" not in vars(more) and more(Tensor.ones([1])).item() == 7


def test_ops_without_operands_give_tensors_in_a_trace_too() -> None:
    class Windowed(Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            positions = F.range(0, 4, 1, dtype=DType.float32, device=CPU()).unsqueeze(0)
            bound = F.constant(2.0, DType.float32, CPU()).reshape([1]).sum()
            size = Tensor.from_dim(x.shape[0])
            rows = F.range(size - size, size, size // size, x.shape[0], dtype=DType.int64, device=CPU())
            return F.hann_window(4, device=CPU()), (x + positions).clip(max=bound), rows

    x = Tensor.ones([3, 4])
    compiled = Windowed().compile(tensor("float32", "n", 4))
    for eager, result in zip(Windowed()(x), compiled(x)):
        np.testing.assert_array_equal(result.to_numpy(), eager.to_numpy())


def test_forward_may_return_graph_values() -> None:
    class Explicit(Module):
        def forward(self, x: Tensor) -> TensorValue:
            return ops.relu(TensorValue(x))

    assert Explicit().compile(tensor("float32", 1))(np.ones(1, np.float32)).item() == 1


def test_a_parameter_that_is_not_used() -> None:
    class Idle(Module):
        def __init__(self) -> None:
            self.used, self.unused = Tensor.ones([1]), Tensor.ones([7])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.used

    assert Idle().compile(tensor("float32", 1))(np.zeros(1, np.float32)).item() == 1


def test_a_compiled_module_inside_a_trace() -> None:
    inner = Scaled([2.0]).compile(tensor("float32", 1))

    class Outer(Module):
        def forward(self, x: Tensor) -> Tensor:
            return inner(x)

    assert Outer()(Tensor.ones([1])).item() == 2
    with pytest.raises(TypeError, match="no elements to read"):
        Outer().compile(tensor("float32", 1))

    class Making(Module):
        def forward(self, x: Tensor) -> Tensor:
            return Linear(1, 1).compile(tensor("float32", 1))(x)

    with pytest.raises(TypeError, match="no elements to read"):
        Making().compile(tensor("float32", 1))


def test_wrong_shapes_are_found_when_tracing() -> None:
    with pytest.raises(ValueError, match="must match"):
        Linear(3, 2).compile(tensor("float32", "n", 4))


def test_inputs_that_are_not_types() -> None:
    for wrong in (np.ones(2), DType.float32, [tensor("float32", 2)]):
        with pytest.raises(TypeError, match="input 1 must be a TensorType"):
            Linear(2, 2).compile(tensor("float32", 2), wrong)


def test_what_is_not_supported_yet() -> None:
    for options in ({"is_device_graph": True}, {"signal_buffer_index": 0}, {"custom_extensions": ["ops.mojo"]}):
        with pytest.raises(NotImplementedError):
            Scaled(1).compile(tensor("float32"), **options)
        with pytest.raises(NotImplementedError):
            Scaled(1).trace(tensor("float32"), **options)


# --- nesting and threads --------------------------------------------------------------------------


def test_compiling_while_tracing() -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = Scaled([3.0])
            self.inside: Any = None

        def forward(self, x: Tensor) -> Tensor:
            before = self.inner(x)
            self.inside = self.inner.compile(tensor("float32", 1))
            return before + self.inner(x)

    outer = Outer()
    compiled = outer.compile(tensor("float32", "n"), weights={"inner.factor": np.array([5], dtype=np.float32)})
    np.testing.assert_array_equal(compiled(np.ones(2, np.float32)).to_numpy(), [10, 10])
    np.testing.assert_array_equal(outer.inside(np.ones(1, np.float32)).to_numpy(), [3])


def test_compiling_in_a_lazy_block() -> None:
    with lazy():
        scaled = Scaled([2.0])
        compiled = scaled.compile(tensor("float32", "n"))
        result = compiled(np.ones(3, np.float32))
        later = result + scaled(result)
    np.testing.assert_array_equal(result.to_numpy(), [2, 2, 2])
    np.testing.assert_array_equal(later.to_numpy(), [6, 6, 6])


def run_together(jobs: list[Any]) -> None:
    """Runs functions on threads that start at the same time, and raises what they raise."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def work(job: Any) -> None:
        try:
            start.wait(30)
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_compile_and_run_one_module() -> None:
    mlp = MLP()
    x = normal(4, 8)
    expected = mlp(Tensor(x)).to_numpy()

    def compile_and_run() -> None:
        for _ in range(10):
            compiled = mlp.compile(tensor("float32", "batch", 8))
            np.testing.assert_array_equal(compiled(x).to_numpy(), expected)

    def run_eagerly() -> None:
        for _ in range(30):
            np.testing.assert_array_equal(mlp(Tensor(x)).to_numpy(), expected)

    run_together([compile_and_run, compile_and_run, run_eagerly])


def test_a_thread_sees_no_trace_of_another() -> None:
    inside, checked = threading.Event(), threading.Event()

    class Waiting(Module):
        def __init__(self) -> None:
            self.scale = Tensor.full([2], 3.0)

        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert checked.wait(30)
            return x * self.scale

    waiting = Waiting()

    def look() -> None:
        try:
            assert inside.wait(30)
            assert waiting.scale.real
            np.testing.assert_array_equal(waiting.scale.to_numpy(), [3, 3])
        finally:
            checked.set()

    run_together([lambda: waiting.compile(tensor("float32", 2)), look])


def test_one_compiled_module_on_threads() -> None:
    compiled = Scaled(2.0).compile(tensor("float32", "n"))

    def run(size: int) -> None:
        for _ in range(50):
            np.testing.assert_array_equal(compiled(normal(size)).to_numpy(), normal(size) * 2)

    run_together([lambda: run(3), lambda: run(1000)])


def test_dataclass_modules_compile() -> None:
    @module_dataclass
    class Affine(Module):
        weight: Tensor
        bias: Tensor

        @F.functional
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + self.bias

    weight, bias, x = normal(3, 2), normal(3, seed=1), normal(4, 2, seed=2)
    affine = Affine(Tensor(weight), Tensor(bias))
    compiled = affine.compile(tensor("float32", "n", 2))
    np.testing.assert_array_equal(compiled(x).to_numpy(), affine(Tensor(x)).to_numpy())
