"""Control flow: branches, loops, calls of subgraphs, and the order of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Union

from max import _core
from max.graph import _building
from max.graph._building import current_native
from max.graph._operators import Operators
from max.graph.value import TensorValue, TensorValueLike, Value, call_many

if TYPE_CHECKING:
    from max.graph.graph import Graph
    from max.graph.type import Type

Results = Union[Iterable[Value[Any]], Value[Any], None]


def cond(
    pred: TensorValueLike,
    out_types: Iterable[Type[Any]] | None,
    then_fn: Callable[[], Results],
    else_fn: Callable[[], Results],
) -> list[TensorValue]:
    """Runs one of two functions, depending on a scalar that is known when the graph runs.

    Both functions are recorded; only one runs. They may use any value of the graph, and change its buffers.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> x = TensorType(DType.float32, ["n"])
    >>> with Graph("cond", input_types=[x, TensorType(DType.bool, [])]) as graph:
    ...     value, flag = (value.tensor for value in graph.inputs)
    ...     [result] = ops.cond(flag, [x], lambda: value * 2, lambda: ops.relu(value))
    ...     graph.output(result)

    Args:
        pred: A scalar of type bool.
        out_types: The types of what both functions return; None if they return nothing.
        then_fn: Runs if the scalar is true.
        else_fn: Runs if it is not.

    Returns:
        The results of the function that runs.

    Raises:
        ValueError: If the functions return other types.
    """
    then, otherwise = _region("then", (), then_fn), _region("else", (), else_fn)
    types = None if out_types is None else list(out_types)
    return call_many("cond", pred, types, then, otherwise)


def while_loop(
    initial_values: Iterable[Value[Any]] | Value[Any],
    predicate: Callable[..., TensorValue],
    body: Callable[..., Value[Any] | Iterable[Value[Any]]],
) -> list[TensorValue]:
    """Runs a function on values, and then on its own results, as long as a predicate of them holds.

    Both functions take as many values as there are initial ones, and may use any value of the graph.

    >>> from max.dtype import DType
    >>> from max.graph import DeviceRef, Graph, ops
    >>> with Graph("count") as graph:
    ...     zero = ops.constant(0, dtype=DType.int32, device=DeviceRef.CPU())
    ...     [ten] = ops.while_loop(zero, lambda x: x < 10, lambda x: x + 1)
    ...     graph.output(ten)

    Args:
        initial_values: What the first run is given: a tensor or several.
        predicate: Returns a scalar of type bool: whether the function runs (again).
        body: Returns values of the same types, which the next run is given.

    Returns:
        The values for which the predicate does not hold.

    Raises:
        ValueError: If there are no initial values, or a function returns other types.
        NotImplementedError: If an initial value is a buffer. The functions may use and change buffers, though.
    """
    values = [initial_values] if isinstance(initial_values, (Value, Operators)) else list(initial_values)
    values = [value if isinstance(value, Value) else TensorValue(value) for value in values]
    if not values:
        raise ValueError("while_loop requires at least one initial value")
    types = [value.type for value in values]
    return call_many(
        "while_loop", values, _region("predicate", types, predicate), _region("body", types, body)
    )


def call(graph: Graph, *args: Value[Any], prefix: str = "") -> list[Value[Any]]:
    """Runs a subgraph, made with `Graph.add_subgraph`.

    Args:
        graph: The subgraph.
        *args: Its inputs.
        prefix: Put before the names of its weights, so that each call has its own.

    Returns:
        Its outputs.
    """
    return call_many("call", graph, args, prefix, list(getattr(graph, "_unprefixed", ())))


def fence(*values: Value[Any]) -> list[Value[Any]]:
    """Makes ops that are recorded later run after all that has been recorded so far.

    Args:
        *values: One or more values; they have been computed when later ops run.

    Returns:
        The values, unchanged.

    Raises:
        ValueError: If there are no values.
    """
    _core.op(current_native(), "fence", (values,))
    return list(values)


def _region(name: str, types: Iterable[Type[Any]], function: Callable[..., Results]) -> Graph:
    """A function as a region of the current graph."""
    graph = _building.current()
    if graph is None:
        raise LookupError("No graph found: control flow needs a graph that is being built")
    region = graph._nested(name, types)
    with region:
        results = function(*region.inputs)
        if results is None:
            results = ()
        elif isinstance(results, (Value, Operators)) or not isinstance(results, Iterable):
            results = (results,)
        region.output(*results)
    return region
