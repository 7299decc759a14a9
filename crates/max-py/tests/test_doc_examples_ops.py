"""The examples in the documentation of `max.graph.ops` run, and give what it shows; that of `cond` with custom ops is in
`test_custom_ops.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

CPU = DeviceRef.CPU()
SQUARE = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def run(session: Any, build: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """The results of a graph on arrays, one or a list."""
    types = [
        TensorType(DType.from_numpy(array.dtype), array.shape, CPU) for array in arrays
    ]
    with Graph("example", input_types=types) as graph:
        results = build(*(value.tensor for value in graph.inputs))
        graph.output(*results) if isinstance(results, list) else graph.output(results)
    found = [result.to_numpy() for result in session.load(graph).execute(*arrays)]
    return found if isinstance(results, list) else found[0]


def test_tensor_type(capsys) -> None:
    tensor_type = ops.TensorType(DType.float32, (2, 3))
    print(tensor_type.dtype)
    print(tensor_type.shape)
    assert capsys.readouterr().out == "DType.float32\n[Dim(2), Dim(3)]\n"


@pytest.mark.parametrize(
    "num_lower, num_upper", [(None, None), (0, None), (1, 2), (None, 0), (2, 1)]
)
def test_band_part(session, num_lower, num_upper) -> None:
    def in_band(m, n):
        return (num_lower is None or (m - n) <= num_lower) and (
            num_upper is None or (n - m) <= num_upper
        )

    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3) + 1
    expected = [
        [[x[i, m, n] * in_band(m, n) for n in range(3)] for m in range(4)]
        for i in range(2)
    ]
    np.testing.assert_array_equal(
        run(session, lambda x: ops.band_part(x, num_lower, num_upper), x), expected
    )


@pytest.mark.parametrize("pred", [True, False])
def test_cond(session, pred) -> None:
    def then_fn():
        return ops.constant(1, DType.int32, device=DeviceRef.CPU())

    def else_fn():
        return ops.constant(0, DType.int32, device=DeviceRef.CPU())

    def build(pred):
        return ops.cond(
            pred, [TensorType(DType.int32, [], device=CPU)], then_fn, else_fn
        )

    assert run(session, build, np.array(pred)) == [int(pred)]


PADDED = [[0, 0, 1, 2, 3, 0], [0, 0, 4, 5, 6, 0], [0] * 6]


def test_padding_of_conv3d(session) -> None:
    image = np.array([[1, 2, 3], [4, 5, 6]], np.float32).reshape(1, 1, 2, 3, 1)
    one = np.ones((1, 1, 1, 1, 1), np.float32)
    padded = run(
        session,
        lambda x, one: ops.conv3d(x, one, padding=(0, 0, 0, 1, 2, 1)),
        image,
        one,
    )
    np.testing.assert_array_equal(padded[0, 0, :, :, 0], PADDED)


def test_padding_of_conv2d_transpose(session) -> None:
    """Padding takes away from the output: what a 2x4 one has left with (0, 1, 2, 1) is its third element."""
    output = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32).reshape(1, 2, 4, 1)
    one = np.ones((1, 1, 1, 1), np.float32)
    left = run(
        session,
        lambda x, one: ops.conv2d_transpose(x, one, padding=(0, 1, 2, 1)),
        output,
        one,
    )
    np.testing.assert_array_equal(left, [[[[3]]]])


def test_gather_nd(capsys) -> None:
    input_shape = ["a", "b", "c", "d", "e"]
    indices_shape = ["a", "f", 3]
    input_type = TensorType(DType.bfloat16, input_shape)
    indices_type = TensorType(DType.int32, indices_shape)
    with Graph("gather_nd", input_types=[input_type, indices_type]) as graph:
        input, indices = graph.inputs
        gathered = ops.gather_nd(input, indices, batch_dims=1)
        print(gathered.type)
    assert "shape=[Dim('a'), Dim('f'), Dim('e')]" in capsys.readouterr().out


def test_print(session, capfd) -> None:
    input_type = TensorType(dtype=DType.float32, shape=(1,), device=DeviceRef.CPU())
    with Graph("simple_add_graph", input_types=(input_type, input_type)) as graph:
        lhs, rhs = graph.inputs
        out = ops.add(lhs, rhs)
        ops.print(out, label="addition_output")
        graph.output(out)
    session.load(graph).execute(
        np.array([1.0], np.float32), np.array([2.0], np.float32)
    )
    printed = capfd.readouterr()
    assert "addition_output" in printed.out + printed.err


@pytest.mark.parametrize(
    "repeats, axis, expected",
    [
        (2, 0, [[1, 2], [1, 2], [3, 4], [3, 4]]),
        (2, 1, [[1, 1, 2, 2], [3, 3, 4, 4]]),
        (np.array([2, 3]), 0, [[1, 2], [1, 2], [3, 4], [3, 4], [3, 4]]),
        (2, None, [1, 1, 2, 2, 3, 3, 4, 4]),
    ],
)
def test_repeat_interleave(session, repeats, axis, expected) -> None:
    out = run(
        session, lambda x: ops.repeat_interleave(x, repeats=repeats, axis=axis), SQUARE
    )
    np.testing.assert_array_equal(out, expected)


def test_slice_tensor(session) -> None:
    results = run(
        session,
        lambda x: [
            ops.slice_tensor(x, [slice(None, None, -1)]),
            ops.slice_tensor(x, [..., None, slice(None)]),
        ],
        SQUARE,
    )
    np.testing.assert_array_equal(results[0], SQUARE[::-1])
    np.testing.assert_array_equal(results[1], SQUARE[:, None, :])


def test_while_loop(session) -> None:
    def build():
        x = ops.constant(0, dtype=DType.int32, device=DeviceRef.CPU())

        def pred(x):
            return x < 10

        def body(x):
            return x + 1

        return list(ops.while_loop(x, pred, body))

    assert run(session, build) == [10]


def test_while_loop_with_several_values(session) -> None:
    def build():
        x = ops.constant(0, dtype=DType.int32, device=DeviceRef.CPU())
        y = ops.constant(5, dtype=DType.int32, device=DeviceRef.CPU())

        def pred(x, y):
            return ops.logical_and(x < 10, y < 15)

        def body(x, y):
            return [x + 1, y + 1]

        return list(ops.while_loop((x, y), pred, body))

    assert run(session, build) == [10, 15]
