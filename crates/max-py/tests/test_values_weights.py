"""Graph values, their methods and operators, weights and external constants."""

import operator

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import (
    BufferType,
    BufferValue,
    DeviceRef,
    Dim,
    Graph,
    Shape,
    TensorType,
    TensorValue,
    Value,
    Weight,
    ops,
)
from max.graph.quantization import QuantizationEncoding

from helpers import CPU, REFUSED, assert_close, build, dtype_of, evaluate, shapes_of, tensor, to_array, to_buffer

X = np.array([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)
Y = np.array([[2, 3, 3], [1, 5, -6]], dtype=np.float32)

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
names = lambda v: getattr(v, "__name__", repr(v))  # noqa: E731


class TestOperators:
    @pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS, ids=names)
    def test_two_values(self, session, op) -> None:
        (out,) = evaluate(session, op, X, Y)
        assert out.dtype == (np.bool_ if op in COMPARISONS else np.float32)
        np.testing.assert_allclose(out, op(X, Y), rtol=1e-6)

    @pytest.mark.parametrize("other", [3, 2.5, np.float32(2.5), np.int64(3), Y, Y[0], Y.astype(np.float64)], ids=names)
    @pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS, ids=names)
    def test_numbers_and_arrays_on_both_sides(self, session, op, other) -> None:
        left, right = evaluate(session, lambda v: [op(v, other), op(other, v)], X)
        weak = np.asarray(other, dtype=np.float32)
        np.testing.assert_allclose(left, op(X, weak), rtol=1e-6)
        np.testing.assert_allclose(right, op(weak, X), rtol=1e-6)
        assert left.dtype == right.dtype == (np.bool_ if op in COMPARISONS else np.float32)

    def test_arrays_do_not_swallow_values(self) -> None:
        """NumPy must leave `array + value` to the value, not make an object array of it."""
        for op in ARITHMETIC:
            assert shapes_of(lambda v: op(Y, v), tensor("float32", 2, 3)) == [2, 3]

    def test_power(self, session) -> None:
        outputs = evaluate(session, lambda v: [v**2, v**3, 2**v, v ** np.float32(2)], X)
        for out, want in zip(outputs, [X**2, X**3, 2**X, X**2]):
            np.testing.assert_allclose(out, want, rtol=2e-6)
        (out,) = evaluate(session, operator.pow, np.abs(X), Y)
        np.testing.assert_allclose(out, np.abs(X) ** Y, rtol=2e-6)

    def test_matmul(self, session) -> None:
        (out,) = evaluate(session, operator.matmul, X, Y.T.copy())
        np.testing.assert_allclose(out, X @ Y.T, rtol=1e-6)

    def test_unary(self, session) -> None:
        (negated,) = evaluate(session, operator.neg, X)
        np.testing.assert_array_equal(negated, -X)
        (inverted,) = evaluate(session, operator.invert, X > 0)
        np.testing.assert_array_equal(inverted, X <= 0)

    @pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor], ids=names)
    def test_logical(self, session, op) -> None:
        p, q = X > 0, Y > 2
        value, left, right = evaluate(session, lambda v, w: [op(v, w), op(v, True), op(False, v)], p, q)
        np.testing.assert_array_equal(value, op(p, q))
        np.testing.assert_array_equal(left, op(p, True))
        np.testing.assert_array_equal(right, op(False, p))

    @pytest.mark.parametrize("dtype", ["int32", "uint8"])
    def test_integers(self, session, dtype: str) -> None:
        x, y = np.array([7, 8, 9], dtype=dtype), np.array([2, 3, 9], dtype=dtype)
        for op in (operator.add, operator.mul, operator.floordiv, operator.mod):
            out, scalar = evaluate(session, lambda v, w: [op(v, w), op(v, 2)], x, y)
            assert out.dtype == scalar.dtype == x.dtype
            np.testing.assert_array_equal(out, op(x, y))
            np.testing.assert_array_equal(scalar, op(x, 2))


class TestTensorValue:
    def test_properties(self) -> None:
        with Graph("g", input_types=[tensor("float32", "a", 3)]) as graph:
            value = graph.inputs[0]
            assert isinstance(value, TensorValue) and isinstance(value, Value)
            assert value.type == tensor("float32", "a", 3)
            assert value.dtype == DType.float32
            assert value.shape == Shape(["a", 3])
            assert value.rank == 2
            assert value.device == DeviceRef.CPU()
            assert value.tensor.type == value.type
            assert isinstance(value * 2, TensorValue)

    @pytest.mark.parametrize(
        "method, reference",
        [
            (lambda v: v.T, lambda x: x.T),
            (lambda v: v.argmax(), lambda x: x.argmax(-1, keepdims=True)),
            (lambda v: v.argmax(axis=0), lambda x: x.argmax(0, keepdims=True)),
            (lambda v: v.max(0), lambda x: x.max(0, keepdims=True)),
            (lambda v: v.min(axis=-2), lambda x: x.min(0, keepdims=True)),
            (lambda v: v.mean(), lambda x: x.mean(-1, keepdims=True)),
            (lambda v: v.var(), lambda x: x.var(-1, keepdims=True)),
            (lambda v: v.stdev(axis=0), lambda x: x.std(0, keepdims=True)),
            (lambda v: v.broadcast_to([4, 2, 3]), lambda x: np.broadcast_to(x, (4, 2, 3))),
            (lambda v: v.cast(DType.int32), lambda x: x.astype(np.int32)),
            (lambda v: v.flatten(), lambda x: x.reshape(-1)),
            (lambda v: v.flatten(start_dim=0, end_dim=1), lambda x: x.reshape(-1)),
            (lambda v: v.permute([1, 0]), lambda x: x.T),
            (lambda v: v.rebind([2, 3], message="as it is"), lambda x: x),
            (lambda v: v.reshape((3, -1)), lambda x: x.reshape(3, -1)),
            (lambda v: v.reshape(Shape([Dim(6)])), lambda x: x.reshape(6)),
            (lambda v: v.transpose(dim_1=0, dim_2=1), lambda x: x.T),
            (lambda v: v.to(CPU), lambda x: x),
        ],
    )
    def test_methods(self, session, method, reference) -> None:
        (out,) = evaluate(session, method, X)
        want = np.asarray(reference(X))
        assert out.dtype == want.dtype
        assert_close(out, want, want.dtype.name)

    def test_from_an_array(self, session) -> None:
        (out,) = evaluate(session, lambda: TensorValue(X))
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, X)

    def test_from_a_value(self) -> None:
        assert shapes_of(lambda v: TensorValue(v), tensor("float32", "a", 3)) == ["a", 3]

    def test_same_dtype_cast_changes_nothing(self) -> None:
        with Graph("g", input_types=[tensor("float32", 3)]) as graph:
            assert graph.inputs[0].cast(DType.float32).type == graph.inputs[0].type


class TestValueKinds:
    def test_tensors(self) -> None:
        with Graph("g", input_types=[tensor("float32", 3)]) as graph:
            value = graph.inputs[0]
            assert isinstance(value.tensor, TensorValue)
            for kind in ("buffer", "opaque"):
                with pytest.raises(REFUSED):
                    getattr(value, kind)

    def test_buffers(self) -> None:
        buffer_type = BufferType(DType.int8, ["a", 3], CPU)
        with Graph("g", input_types=[buffer_type]) as graph:
            value = graph.inputs[0]
            assert isinstance(value.buffer, BufferValue) and isinstance(value, Value)
            buffer = value.buffer
            assert (buffer.dtype, buffer.shape, buffer.rank) == (DType.int8, Shape(["a", 3]), 2)
            assert (buffer.device, buffer.type) == (DeviceRef.CPU(), buffer_type)
            for kind in ("tensor", "opaque"):
                with pytest.raises(REFUSED):
                    getattr(value, kind)

    def test_values_are_not_made_by_hand(self) -> None:
        with pytest.raises(REFUSED):
            Value()


def weight(name: str = "w", dtype: DType = DType.float32, shape=(3,)) -> Weight:
    return Weight(name, dtype, list(shape), CPU)


class TestWeight:
    def test_properties(self) -> None:
        w = Weight(name="w", dtype=DType.float32, shape=[3], device=CPU)
        assert repr(w) == "Weight(w, DType.float32, [Dim(3)], cpu:0)"
        assert isinstance(w, TensorValue)
        assert (w.name, w.dtype, w.shape, w.device) == ("w", DType.float32, Shape([3]), DeviceRef.CPU())
        assert w.original_dtype_and_shape == (DType.float32, Shape([3]))
        assert (w.align, w.quantization_encoding, w.shard_idx) == (None, None, None)
        assert Weight("v", DType.int8, ["n", 2], CPU, align=16).align == 16

    def test_quantized(self) -> None:
        w = Weight("q", DType.uint8, [4, 144], CPU, quantization_encoding=QuantizationEncoding.Q4_K)
        assert w.quantization_encoding == QuantizationEncoding.Q4_K
        assert w.dtype == DType.uint8

    def test_is_added_to_the_graph_when_used(self, session) -> None:
        w = weight()
        graph = build(lambda v: v * w + w, [tensor("float32", "n", 3)])
        values = np.array([1, 10, 100], dtype=np.float32)
        model = session.load(graph, weights_registry={"w": values})
        (out,) = model.execute(X)
        np.testing.assert_array_equal(out.to_numpy(), X * values + values)

    def test_one_graph_with_two_registries(self, session) -> None:
        graph = build(lambda v: v + weight(), [tensor("float32", 3)])
        for value in (1.0, 2.0):
            model = session.load(graph, weights_registry={"w": np.full(3, value, dtype=np.float32)})
            np.testing.assert_array_equal(model.execute(X[0])[0].to_numpy(), X[0] + value)

    def test_one_weight_in_two_graphs(self, session) -> None:
        w = weight()
        for factor in (1.0, 2.0):
            graph = build(lambda v: v + w * factor, [tensor("float32", 3)])
            model = session.load(graph, weights_registry={"w": np.ones(3, dtype=np.float32)})
            np.testing.assert_array_equal(model.execute(X[0])[0].to_numpy(), X[0] + factor)

    def test_add_weight(self) -> None:
        w = weight()
        with Graph("g") as graph:
            first = graph.add_weight(w)
            assert isinstance(first, TensorValue)
            assert first.type == tensor("float32", 3)
            assert graph.add_weight(w, force_initial_weight_on_host=False).type == first.type
            with pytest.raises(ValueError, match="already exists"):
                graph.add_weight(weight())
            with pytest.raises(ValueError, match="already exists"):
                graph.add_weight(weight(dtype=DType.int8))

    @pytest.mark.parametrize(
        "use",
        [
            lambda w: w + 1,
            lambda w: 1 - w,
            lambda w: w[0],
            lambda w: w.cast(DType.int8),
            lambda w: ops.concat([w, w]),
            lambda w: F.relu(w),
            lambda w: F.add(Tensor([1.0, 2.0, 3.0]), w),
        ],
    )
    def test_outside_a_graph(self, use) -> None:
        with pytest.raises(ValueError, match="weight 'w' has no parent graph"):
            use(weight())

    @pytest.mark.parametrize(
        "registry",
        [
            None,
            {},
            {"v": np.zeros(3, dtype=np.float32)},
            {"w": np.zeros(4, dtype=np.float32)},
            {"w": np.zeros((3, 1), dtype=np.float32)},
            {"w": np.zeros(3, dtype=np.float64)},
        ],
        ids=repr,
    )
    def test_missing_and_mismatched(self, session, registry) -> None:
        graph = build(lambda v: v + weight(), [tensor("float32", 3)])
        with pytest.raises(REFUSED, match=r"\bw\b"):
            session.load(graph, weights_registry=registry)

    @pytest.mark.parametrize("kind", ["array", "read-only", "buffer", "strided"])
    def test_kinds_of_values_in_a_registry(self, session, kind: str) -> None:
        values = np.array([1, 2, 3], dtype=np.float32)
        given = {"array": values, "buffer": Buffer.from_numpy(values), "read-only": values.copy()}.get(kind)
        if kind == "read-only":
            given.flags.writeable = False
        if kind == "strided":
            given = np.repeat(values, 2)[::2]
        graph = build(lambda v: v + weight(), [tensor("float32", 3)])
        model = session.load(graph, weights_registry={"w": given})
        np.testing.assert_array_equal(model.execute(X[0])[0].to_numpy(), X[0] + values)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool"])
    def test_dtypes(self, session, dtype: str) -> None:
        values = np.array([0, 1, 1])
        graph = build(lambda: weight(dtype=dtype_of(dtype)).reshape([3, 1]), [])
        model = session.load(graph, weights_registry={"w": to_buffer(values, dtype)})
        np.testing.assert_array_equal(to_array(model.execute()[0]), values.reshape(3, 1))

    def test_symbolic_weight(self, session) -> None:
        w = Weight("w", DType.float32, ["n", 2], CPU)
        model = session.load(build(lambda: w * 2, []), weights_registry={"w": np.ones((5, 2), dtype=np.float32)})
        np.testing.assert_array_equal(model.execute()[0].to_numpy(), np.full((5, 2), 2))


class TestConstantExternal:
    def test_value_comes_from_the_registry(self, session) -> None:
        kind = tensor("float32", 3)

        def forward(v):
            return v + ops.constant_external("c", kind) * ops.constant_external("c", kind)

        model = session.load(build(forward, [kind]), weights_registry={"c": np.array([1, 2, 3], dtype=np.float32)})
        np.testing.assert_array_equal(model.execute(X[0])[0].to_numpy(), X[0] + [1, 4, 9])

    def test_type(self) -> None:
        assert shapes_of(lambda: ops.constant_external("c", tensor("int8", 2, 3))) == [2, 3]

    def test_one_name_two_types(self, session) -> None:
        def forward():
            first = ops.constant_external("c", tensor("float32", 3))
            second = ops.constant_external("c", tensor("float32", 4))
            return [first, second]

        with pytest.raises(REFUSED, match=r"\bc\b"):
            session.load(build(forward, []), weights_registry={"c": np.zeros(3, dtype=np.float32)})

    def test_missing(self, session) -> None:
        graph = build(lambda: ops.constant_external("layer.bias", tensor("float32", 3)), [])
        with pytest.raises(REFUSED, match="layer.bias"):
            session.load(graph)

    def test_other_device(self) -> None:
        kind = TensorType(DType.float32, [3], DeviceRef.GPU())
        with Graph("g"):
            assert ops.constant_external("c", kind).device == DeviceRef.GPU()
