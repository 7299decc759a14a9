"""Control flow on tensors: Python decides, unless a graph is being built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from max.experimental.tensor import Tensor
from max.graph import _building, ops
from max.graph._operators import Operators
from max.graph.dim import StaticDim
from max.graph.type import TensorType

if TYPE_CHECKING:
    from max.graph.type import Type


def cond(
    pred: Any,
    out_types: Iterable[Type[Any]] | None,
    then_fn: Callable[[], Any],
    else_fn: Callable[[], Any],
) -> list[Any]:
    """Runs one of two functions, depending on a scalar.

    While a graph is being built, both are recorded, and the graph decides: see `max.graph.ops.cond`.

    >>> from max.experimental.tensor import Tensor
    >>> x = Tensor([1.0, -2.0])
    >>> [y] = cond(x.sum()[0] > 0, [x.type], lambda: x, lambda: -x)
    >>> y.to_numpy()
    array([-1.,  2.], dtype=float32)

    Args:
        pred: A scalar of type bool.
        out_types: The types of what both functions return; None if they return nothing.
        then_fn: Runs if the scalar is true.
        else_fn: Runs if it is not.

    Returns:
        The results of the function that runs.

    Raises:
        ValueError: If it returns other types.
    """
    if _building.current() is not None:
        return _tensors(ops.cond(pred, out_types, then_fn, else_fn))
    results = _listed(then_fn() if _holds(pred) else else_fn())
    _check(results, [] if out_types is None else list(out_types))
    return results


def while_loop(initial_values: Any, predicate: Callable[..., Any], body: Callable[..., Any]) -> list[Any]:
    """Runs a function on tensors, and then on its own results, as long as a predicate of them holds.

    While a graph is being built, both are recorded, and the graph repeats: see `max.graph.ops.while_loop`.

    >>> from max.experimental.tensor import Tensor
    >>> [x] = while_loop(Tensor(1), lambda x: x < 100, lambda x: x * 2)
    >>> x.item()
    128.0

    Args:
        initial_values: What the first run is given: a tensor or several.
        predicate: Returns a scalar of type bool: whether the function runs (again).
        body: Returns tensors of the same types, which the next run is given.

    Returns:
        The tensors for which the predicate does not hold.

    Raises:
        ValueError: If there are no initial values, or a function returns other types.
    """
    if _building.current() is not None:
        return _tensors(ops.while_loop(initial_values, predicate, body))
    values = _listed(initial_values)
    if not values:
        raise ValueError("while_loop requires at least one initial value")
    types = [value.type for value in values]
    while _holds(predicate(*values)):
        values = _listed(body(*values))
        _check(values, types)
    return values


def fence(*values: Any) -> list[Any]:
    """Returns tensors unchanged. While a graph is being built, ops that follow run after all before: see
    `max.graph.ops.fence`.
    """
    if _building.current() is not None:
        return ops.fence(*values)
    if not values:
        raise ValueError("fence requires at least one value")
    return list(values)


def _tensors(values: list[Any]) -> list[Any]:
    """Results of an op in a graph, as tensors; they are if one of its operands is."""
    return [value if isinstance(value, Tensor) else Tensor.from_graph_value(value) for value in values]


def _listed(results: Any) -> list[Any]:
    """Results of a function as a list."""
    if results is None:
        return []
    many = isinstance(results, Iterable) and not isinstance(results, Operators)
    return list(results) if many else [results]


def _holds(pred: Any) -> bool:
    """Whether a scalar of type bool is true."""
    flag = pred.item() if isinstance(pred, Tensor) and pred.rank == 0 else pred
    if not isinstance(flag, bool):
        raise ValueError(f"the predicate must be a scalar of type bool; got {pred!r}")
    return flag


def _check(results: list[Any], types: list[Type[Any]]) -> None:
    """Checks the types of results; symbolic dims stand for any size."""
    if len(results) != len(types) or not all(map(_fits, results, types)):
        found = [result.type if isinstance(result, Tensor) else result for result in results]
        raise ValueError(f"Results don't match expected types: got {found}; expected {types}")


def _fits(result: Any, expected: Type[Any]) -> bool:
    if not isinstance(result, Tensor) or not isinstance(expected, TensorType):
        return False
    found = result.type
    if (found.dtype, found.device, found.rank) != (expected.dtype, expected.device, expected.rank):
        return False
    fixed = (want == dim for dim, want in zip(found.shape, expected.shape, strict=True) if isinstance(want, StaticDim))
    return all(fixed)
