"""What ops refuse, and how: the phrases users match on, and messages that name the op and the shapes."""

import numpy as np
import pytest
from max.dtype import DType
from max.graph import DeviceRef, Dim, Graph, Shape, TensorType, ops

from helpers import CPU, REFUSED, build, evaluate, mentions, shapes_of, tensor

f = tensor("float32", "a", 3)
i = tensor("int32", "a", 3)
t = tensor("bool", 3)
matrix = tensor("float32", 4, 6, 1)
zeros = np.zeros((2, 3), dtype=np.float32)


def refused(forward, *types, kind=REFUSED, match=None) -> str:
    with pytest.raises(kind, match=match) as caught:
        shapes_of(forward, *types)
    return str(caught.value)


class TestBroadcasting:
    def test_symbolic_mismatch(self) -> None:
        message = refused(
            ops.add, f, tensor("float32", "b", 3), kind=ValueError, match="neither equivalent nor broadcastable"
        )
        assert "rebind" in message

    @pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "pow", "max", "equal", "greater"])
    def test_static_mismatch_shows_the_op_and_both_shapes(self, op: str) -> None:
        message = refused(getattr(ops, op), tensor("float32", 2, 3), tensor("float32", 5, 3), kind=ValueError)
        assert mentions(message, [2, 3], [5, 3])
        assert op in message
        assert "rebind" not in message  # static sizes can never become equal

    def test_two_devices(self) -> None:
        gpu = TensorType(DType.float32, ["a", 3], DeviceRef.GPU())
        refused(ops.add, f, gpu, match="Input values must be on the same device")

    def test_shapes(self) -> None:
        assert shapes_of(ops.add, f, tensor("float32", 1, 3)) == ["a", 3]
        assert shapes_of(ops.add, f, tensor("float32", "a", 1)) == ["a", 3]
        assert shapes_of(ops.add, f, tensor("float32")) == ["a", 3]


class TestReductions:
    @pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "argmax", "argmin"])
    def test_shape_and_axis(self, op: str) -> None:
        reduce = getattr(ops, op)
        assert shapes_of(reduce, f) == ["a", 1]
        assert shapes_of(lambda v: reduce(v, axis=0), f) == [1, 3]
        for axis in (2, -3, 100):
            refused(lambda v: reduce(v, axis=axis), f, kind=ValueError, match="Invalid axis")

    @pytest.mark.parametrize("method", ["argmax", "max", "mean", "min", "stdev", "var"])
    def test_methods(self, method: str) -> None:
        assert shapes_of(lambda v: getattr(v, method)(), f) == ["a", 1]
        assert shapes_of(lambda v: getattr(v, method)(axis=0), f) == [1, 3]
        refused(lambda v: getattr(v, method)(axis=2), f, kind=ValueError, match="Invalid axis")

    @pytest.mark.parametrize("method", ["var", "stdev"])
    def test_no_variance_of_bools(self, method: str) -> None:
        refused(lambda v: getattr(v, method)(), t, kind=TypeError)


class TestRebind:
    def test_rank_is_checked_at_build_time(self) -> None:
        refused(lambda v: ops.rebind(v, ["a"]), f, match="Wrong rank for rebind")
        refused(lambda v: v.rebind(["a", 3, 1]), f, match="Wrong rank for rebind")

    @pytest.mark.parametrize("shape", [[5, 3], ["a", 4], [2, "b"]])
    def test_sizes_are_not_checked_at_build_time(self, shape: list) -> None:
        assert shapes_of(lambda v: ops.rebind(v, shape), f) == Shape(shape)

    @pytest.mark.parametrize("shape", [[5, 3], [2, 4], ["a", "a"]])
    def test_sizes_are_checked_at_run_time(self, session, shape: list) -> None:
        with pytest.raises(REFUSED, match="rebind shape check failed"):
            evaluate(session, lambda v: ops.rebind(v, shape), zeros, types=[f])

    @pytest.mark.parametrize("rebind", [ops.rebind, lambda v, *args: v.rebind(*args)])
    def test_the_users_message_is_shown(self, session, rebind) -> None:
        with pytest.raises(REFUSED, match="the batch must be five"):
            evaluate(session, lambda v: rebind(v, [5, 3], "the batch must be five"), zeros, types=[f])


class TestReshape:
    def test_inferred_dims(self) -> None:
        assert shapes_of(lambda v: v.reshape((3, -1)), f) == [3, "a"]
        assert shapes_of(lambda v: v.reshape((-1,)), f) == [Dim("a") * 3]
        assert shapes_of(lambda v: v.reshape((-1, "a")), tensor("float32", "a", "b", 2)) == [Dim("b") * 2, "a"]
        assert shapes_of(lambda v: v.reshape((2, -1)), matrix) == [2, 12]

    @pytest.mark.parametrize(
        "type_, shape, phrase",
        [
            (matrix, [-1, -1, 2], "at most one -1 dimension is allowed"),
            (matrix, [0, -1], "cannot infer -1 dimension when another dimension is 0"),
            (matrix, [5, 5], "input and output number of elements must match"),
            (f, ["b", 3], "input and output number of elements must match"),
        ],
    )
    def test_refused(self, type_, shape: list, phrase: str) -> None:
        refused(lambda v: ops.reshape(v, shape), type_, kind=ValueError, match=phrase)

    def test_mismatch_hints_at_rebind(self) -> None:
        assert "rebind" in refused(lambda v: v.reshape(["b", 3]), f, kind=ValueError)
        assert "rebind" not in refused(lambda v: v.reshape([8]), tensor("float32", 6), kind=ValueError)

    def test_minus_one_that_does_not_divide(self) -> None:
        refused(lambda v: v.reshape([5, -1]), matrix, kind=ValueError)


class TestShapeOps:
    @pytest.mark.parametrize(
        "forward, kind, phrase",
        [
            (lambda v: ops.transpose(v, 0, 3), IndexError, "out of range"),
            (lambda v: ops.transpose(v, -4, 0), IndexError, "out of range"),
            (lambda v: v.transpose(0, 5), IndexError, "out of range"),
            (lambda v: ops.permute(v, [0, 1, 1]), REFUSED, "may not contain duplicate dimensions"),
            (lambda v: ops.permute(v, [0, 1]), REFUSED, None),
            (lambda v: ops.permute(v, [0, 1, 3]), REFUSED, None),
            (lambda v: ops.squeeze(v, 0), REFUSED, "Squeeze dim must be 1"),
            (lambda v: ops.squeeze(v, 3), REFUSED, None),
            (lambda v: ops.unsqueeze(v, 4), REFUSED, "axis out of bounds"),
            (lambda v: ops.unsqueeze(v, -5), REFUSED, "axis out of bounds"),
            (lambda v: ops.flatten(v, 2, 1), REFUSED, None),
            (lambda v: ops.flatten(v, 0, 3), REFUSED, None),
            (
                lambda v: ops.broadcast_to(v, [4, 7, 1]),
                REFUSED,
                "must be either 1 or equal to corresponding output dimension",
            ),
            (lambda v: v.broadcast_to([6, 1]), REFUSED, None),
            (lambda v: ops.split(v, [1, 2]), REFUSED, "Split sizes must sum to dimension value"),
            (lambda v: ops.split(v, [2, 2], axis=3), REFUSED, None),
            (lambda v: ops.chunk(v, 3), REFUSED, None),
            (lambda v: ops.chunk(v, 0), REFUSED, None),
            (lambda v: ops.concat([]), REFUSED, None),
            (lambda v: ops.concat([v, v], axis=3), REFUSED, None),
            (lambda v: ops.concat([v, v[0]]), REFUSED, None),
            (lambda v: ops.concat([v, v[:, :2]]), REFUSED, "Concat inputs differ on non-concat axis"),
            (lambda v: ops.concat([v, v.cast(DType.float64)]), REFUSED, None),
            (lambda v: ops.stack([]), REFUSED, None),
            (lambda v: ops.stack([v, v[:2]]), REFUSED, None),
            (lambda v: ops.stack([v, v], axis=4), REFUSED, None),
        ],
    )
    def test_refused(self, forward, kind, phrase: str) -> None:
        refused(forward, matrix, kind=kind, match=phrase)

    def test_symbolic_dims(self) -> None:
        g = tensor("float32", "b", 3)
        assert shapes_of(lambda p, q: ops.concat([p, q]), f, g) == [Dim("a") + Dim("b"), 3]
        assert shapes_of(lambda p: ops.concat([p, p]), f) == [Dim("a") * 2, 3]
        refused(lambda p, q: ops.concat([p, q], axis=1), f, g, match="Concat inputs differ on non-concat axis")
        refused(lambda p: ops.chunk(p, 2), f)
        refused(lambda p: ops.broadcast_to(p, ["b", 3]), f)
        assert shapes_of(lambda p: ops.stack([p, p], axis=-1), f) == ["a", 3, 2]

    def test_tensor_valued_shapes_need_out_dims(self) -> None:
        refused(lambda v, shape: ops.broadcast_to(v, shape), tensor("float32", 1), tensor("int64", 1), kind=ValueError)


class TestMatmul:
    @pytest.mark.parametrize(
        "left, right",
        [([2, 3], [4, 5]), ([3], [4]), ([2, 3], [4]), ([7, 2, 3], [7, 4, 5]), (["a", "k"], ["b", 5])],
    )
    def test_inner_dims_must_match(self, left: list, right: list) -> None:
        message = refused(ops.matmul, tensor("float32", *left), tensor("float32", *right), match="must match")
        assert mentions(message, left, right)

    def test_batches_must_broadcast(self) -> None:
        refused(ops.matmul, tensor("float32", 2, 3, 4), tensor("float32", 5, 4, 3))

    def test_no_scalars_and_no_arrays(self) -> None:
        refused(ops.matmul, tensor("float32"), tensor("float32", 2, 2))
        refused(lambda v: ops.matmul(v, np.ones((3, 2), dtype=np.float32)), f)

    def test_shapes(self) -> None:
        assert shapes_of(ops.matmul, f, tensor("float32", 3, "b")) == ["a", "b"]
        assert shapes_of(ops.matmul, tensor("float32", 3), tensor("float32", 3)) == []
        assert shapes_of(ops.matmul, tensor("float32", 5, 1, 2, 3), tensor("float32", 7, 3, 4)) == [5, 7, 2, 4]


class TestOthers:
    @pytest.mark.parametrize("shape", [[], [3, 2]])
    def test_outer(self, shape: list) -> None:
        refused(ops.outer, tensor("float32", *shape), tensor("float32", 4), match="outer expected 1d-tensors")
        refused(ops.outer, tensor("float32", 4), tensor("float32", *shape), match="outer expected 1d-tensors")

    def test_where(self) -> None:
        refused(ops.where, i, f, f, match="Expected condition to be a boolean tensor")

    def test_gather(self, session) -> None:
        refused(lambda v, at: ops.gather(v, at, 0), f, tensor("float32", 2))
        refused(lambda v, at: ops.gather(v, at, 2), f, tensor("int64", 2))
        assert shapes_of(lambda v, at: ops.gather(v, at, 0), f, tensor("int64", 5, "n")) == [5, "n", 3]
        for position in (2, -3, 10**12):
            with pytest.raises(IndexError):
                evaluate(session, lambda v, at: ops.gather(v, at, 0), zeros, np.array([0, position]))

    @pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor"])
    def test_logical(self, op: str) -> None:
        refused(getattr(ops, op), i, i, match="Inputs must be bools")
        refused(ops.logical_not, i, match="Inputs must be bools")

    def test_gelu(self) -> None:
        refused(lambda v: ops.gelu(v, "fast"), f, kind=ValueError)

    def test_layer_norm(self) -> None:
        g3, g4 = tensor("float32", 3), tensor("float32", 4)
        refused(lambda v, g, b: ops.layer_norm(v, g, b, 1e-5), f, g4, g3, kind=ValueError)
        refused(lambda v, g, b: ops.layer_norm(v, g, b, 1e-5), f, g3, g4, kind=ValueError)
        for epsilon in (0.0, -1e-5):
            refused(lambda v, g, b: ops.layer_norm(v, g, b, epsilon), f, g3, g3, kind=ValueError)

    def test_rms_norm(self) -> None:
        g3, g4 = tensor("float32", 3), tensor("float32", 4)
        refused(lambda v, w: ops.rms_norm(v, w, 1e-5), f, g4, kind=ValueError)
        refused(lambda v, w: ops.rms_norm(v, w, -1e-5), f, g3, kind=ValueError)

    def test_layer_norm_takes_arrays(self, session) -> None:
        x = np.array([[1, 2, 3]], dtype=np.float32)
        ones = np.ones(3, dtype=np.float32)
        (out,) = evaluate(session, lambda v: ops.layer_norm(v, ones, 2 * ones, 1e-12), x)
        np.testing.assert_allclose(out, [[2 - 1.2247449, 2, 2 + 1.2247449]], rtol=1e-5)

    @pytest.mark.parametrize(
        "image, kernel, kwargs",
        [
            ([1, 5, 5, 3], [3, 3, 2, 4], {}),
            ([1, 5, 5, 4], [3, 3, 2, 3], {"groups": 2}),
            ([1, 5, 5, 3], [3, 3, 1, 3], {"groups": 2}),
            ([5, 5, 3], [3, 3, 3, 4], {}),
            ([1, 5, 5, 3], [3, 3, 3], {}),
            ([1, 2, 2, 3], [3, 3, 3, 4], {}),
            ([1, 5, 5, 3], [3, 3, 3, 4], {"stride": (0, 1)}),
            ([1, 5, 5, 3], [3, 3, 3, 4], {"dilation": (1, 0)}),
            ([1, 5, 5, 3], [3, 3, 3, 4], {"padding": (-1, 0, 0, 0)}),
            ([1, 5, 5, 3], [3, 3, 3, 4], {"groups": 0}),
        ],
    )
    def test_conv2d(self, image: list, kernel: list, kwargs: dict) -> None:
        refused(lambda x, w: ops.conv2d(x, w, **kwargs), tensor("float32", *image), tensor("float32", *kernel))

    @pytest.mark.parametrize("bad", ["text", None, object(), {"a": 1}])
    def test_operands_that_are_not_tensors(self, bad) -> None:
        refused(lambda v: ops.add(v, bad), f)
        refused(lambda v: ops.relu(bad), f)

    def test_bad_casts(self) -> None:
        refused(lambda v: v.cast("float"), f)
        refused(lambda v: v.cast(None), f)


class TestGraphs:
    def test_no_graph(self) -> None:
        with pytest.raises(LookupError, match="No graph found"):
            ops.constant(1, DType.int32, CPU)
        with Graph("g", input_types=[f]) as graph:
            (value,) = graph.inputs
        with pytest.raises(LookupError, match="No graph found"):
            ops.relu(value)
        with pytest.raises(LookupError):
            Graph.current  # noqa: B018

    def test_a_value_of_another_graph(self) -> None:
        with Graph("one", input_types=[f]) as one:
            (value,) = one.inputs
        with Graph("two", input_types=[f]) as two:
            for use in (lambda: ops.relu(value), lambda: two.inputs[0] + value, lambda: two.output(value)):
                with pytest.raises(REFUSED, match="graph"):
                    use()

    def test_no_output(self, session) -> None:
        with Graph("silent", input_types=[f]) as graph:
            ops.relu(graph.inputs[0])
        with pytest.raises(REFUSED, match="output"):
            session.load(graph)

    def test_an_error_leaves_no_graph_behind(self) -> None:
        with pytest.raises(ValueError), Graph("broken", input_types=[matrix]) as graph:
            ops.reshape(graph.inputs[0], [7])
        with pytest.raises(LookupError):
            Graph.current  # noqa: B018

    @pytest.mark.parametrize(
        "forward",
        [
            lambda v: ops.broadcast_to(v, [2**40, 2**40]),
            lambda v: ops.broadcast_to(v, [2**62]),
            lambda v: ops.broadcast_to(v, [2**33, 2**33]).reshape([-1]),
            lambda v: ops.concat([ops.broadcast_to(v, [2**62])] * 4),
        ],
    )
    def test_sizes_that_overflow(self, session, forward) -> None:
        with pytest.raises((ValueError, MemoryError, OverflowError)):
            session.load(build(forward, [tensor("float32", 1)])).execute(np.zeros(1, dtype=np.float32))
