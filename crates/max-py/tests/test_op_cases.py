"""Every row of the shared op-case table, through the public API, against NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest
from max.dtype import DType
from max.graph import Graph, TensorType, ops
from max.graph.quantization import QuantizationEncoding
from max.graph.type import ConvInputLayout, FilterLayout

from helpers import CPU, assert_close, dtype_of, evaluate, to_array, to_buffer
from op_cases import DOMAINS, DTYPES, SMALL, Case, Input, all_cases, expand, map_leaves, read_table
from reference import OPS, reference, result_dtype

ENUMS = {"dtype": DType, "encoding": QuantizationEncoding, "layout": ConvInputLayout, "filter": FilterLayout}


def literal(value: Any) -> Any:
    """A literal of the table as an argument of the API."""
    if not isinstance(value, str) or ":" not in value:
        return value
    kind, name = value.split(":")
    return CPU if kind == "device" else getattr(ENUMS[kind], name)


def call_documented(module: Any, case: Case, leaf: Callable[[Any], Any]) -> list[Any]:
    """Calls the function of a case as it is documented, with arguments made from those of the table."""
    args, kwargs = map_leaves([case.args, case.kwargs], leaf)
    if case.op.startswith("conv"):  # its strides and paddings are documented as tuples
        args = [tuple(a) if isinstance(a, list) else a for a in args]
        kwargs = {k: tuple(v) if isinstance(v, list) else v for k, v in kwargs.items()}
    if case.op == "qmatmul":  # its matrix is documented as the rest of the arguments
        args = [*args[:-1], *args[-1]]
    result = getattr(module, case.op)(*args, **kwargs)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def call(case: Case, graph: Graph) -> list[Any]:
    values = iter(graph.inputs)
    return call_documented(ops, case, lambda v: next(values) if isinstance(v, Input) else literal(v))


def promised(dim: str, symbols: dict[str, int]) -> Optional[int]:
    """The size of a dim at run time, where it is a sum or product of known symbols."""
    names = set(re.findall(r"[A-Za-z_]\w*", dim))
    if not names <= set(symbols) or not re.fullmatch(r"[\w\s+*()-]+", dim):
        return None
    return eval(dim, {"__builtins__": {}}, dict(symbols))


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_matches_numpy(session, case: Case) -> None:
    arrays = case.draw()
    expected = reference(case, arrays)

    types = [TensorType(dtype_of(i.dtype), i.declared, CPU) for i in case.inputs]
    with Graph(case.op, input_types=types) as graph:
        values = call(case, graph)
        graph.output(*values)
    outputs = session.load(graph).execute(*(to_buffer(a, i.dtype) for a, i in zip(arrays, case.inputs)))

    assert len(values) == len(outputs) == len(expected)
    for number, (value, output, want) in enumerate(zip(values, outputs, expected)):
        dtype = result_dtype(case, number)
        assert value.dtype == dtype_of(dtype)
        assert output.dtype == dtype_of(dtype)
        assert value.rank == want.ndim
        for dim, size in zip(value.shape, want.shape):
            assert promised(str(dim), case.symbols) in (None, size)
        assert_close(to_array(output), want, dtype, case.row.get("rtol", 0.0))


def test_table_is_well_formed() -> None:
    rows = read_table()
    assert {row["op"] for row in rows} == set(OPS)
    for row in rows:
        assert set(row) <= {"op", "args", "kwargs", "dtypes", "domain", "rtol"}, row
        assert row.get("domain", "any") in DOMAINS, row
        assert set(expand(row["dtypes"])) <= {*DTYPES, *SMALL}, row


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "op, given, expected",
    [
        ("round", [0.5, 1.5, 2.5, -0.5, -1.5, -2.5], [0, 2, 2, -0.0, -2, -2]),
        ("log1p", [1e-10, -1e-10, 0.0], [1e-10, -1e-10, 0.0]),
        ("tanh", [-100, 100, 1e-12], [-1, 1, 1e-12]),
        ("sigmoid", [-80, 80, 0], [1.8048513878454153e-35, 1, 0.5]),
        ("softmax", [1000.0, 1000.0, -1000.0], [0.5, 0.5, 0.0]),
        ("logsoftmax", [1000.0, 1000.0, 0.0], [-np.log(2), -np.log(2), -1000 - np.log(2)]),
        ("gelu", [-50.0, 50.0], [0.0, 50.0]),
        ("silu", [-300.0, 300.0], [0.0, 300.0]),
        ("erf", [-9.0, 9.0, 1e-9], [-1, 1, 1.1283791670955126e-9]),
        ("exp", [-np.inf, np.inf, 0, 1e4], [0, np.inf, 1, np.inf]),
        ("log", [0.0, np.inf], [-np.inf, np.inf]),
        ("sqrt", [0.0, -1.0, np.inf], [0.0, np.nan, np.inf]),
        ("rsqrt", [0.0, np.inf, 0.25], [np.inf, 0.0, 2.0]),
        ("atanh", [0.0, 1.0, -1.0], [0.0, np.inf, -np.inf]),
        ("acos", [1.0, -1.0, 2.0], [0.0, np.pi, np.nan]),
    ],
)
def test_special_values(session, op: str, given: list, expected: list, dtype: str) -> None:
    (actual,) = evaluate(session, getattr(ops, op), np.array(given, dtype=dtype))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-38)


@pytest.mark.parametrize("op, expected", [("mean", 1000.0), ("var", 0.0), ("softmax", 1 / 100)])
def test_float16_is_computed_through_float32(session, op: str, expected: float) -> None:
    """A hundred values of 1000 sum beyond the largest float16."""
    x = np.full(100, 1000, dtype=np.float16)
    (actual,) = evaluate(session, lambda v: v.var() if op == "var" else getattr(ops, op)(v), x)
    np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("method", ["var", "stdev"])
@pytest.mark.parametrize(
    "shape, declared, axis",
    [
        ([3, 5], [3, 5], -1),
        ([3, 5], [3, 5], 0),
        ([2, 7, 3], [2, 7, 3], 1),
        ([2, 7, 3], ["n", 7, "m"], -2),
        ([4, 1], [4, 1], 1),
        ([0, 4], [0, 4], 1),
        ([131], ["n"], 0),
    ],
)
def test_var_and_stdev(session, method: str, shape: list, declared: list, axis: int, dtype: str) -> None:
    """Population variance, without Bessel's correction; the reduced dim stays as 1."""
    case = Case(0, {"op": method, "args": [f"$[{', '.join(map(str, shape))}]"]}, dtype)
    (x,) = case.draw()
    wide = x.astype(np.float64)
    expected = (np.var if method == "var" else np.std)(wide, axis=axis, keepdims=True)
    graph_type = TensorType(dtype_of(dtype), declared, CPU)
    (actual,) = evaluate(session, lambda v: getattr(v, method)(axis=axis), to_buffer(x, dtype), types=[graph_type])
    assert_close(actual, expected, dtype)
