"""The values of a module's weights: which weight gets which, and what they are until then.

What fits is decided in Rust, for modules of both languages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from max import _core
from max.driver import Buffer
from max.dtype import DType, has_numpy
from max.graph import Weight
from max.graph.weights import WeightData

Path = tuple[str, Weight]


def first_paths(paths: Iterable[Path]) -> dict[str, Weight]:
    """Each weight by its first path."""
    found: dict[str, Weight] = {}
    for path, weight in _unique(paths):
        if path in found:
            raise ValueError(f"two weights have the path '{path}': give one of them another name")
        found[path] = weight
    return found


def _unique(paths: Iterable[Path]) -> Iterator[Path]:
    seen: set[int] = set()
    for path, weight in paths:
        if id(weight) not in seen:
            seen.add(id(weight))
            yield path, weight


def value(path: str, weight: Weight, auto_initialize: bool) -> Any:
    """The value of a weight, which gets its path as its name."""
    weight.name = path
    if weight._data is None:
        if not auto_initialize:
            raise ValueError(f"Weight '{path}' was not initialized.")
        weight._data = _zeros(path, weight)
    return weight._data


def _zeros(path: str, weight: Weight) -> Any:
    import numpy as np

    try:
        sizes = [int(dim) for dim in weight.shape]
    except TypeError:
        raise ValueError(
            f"Weight '{path}' was not initialized, and zeros need static dims; it has the shape {weight.shape}"
        ) from None
    dtype = weight.dtype
    return np.zeros(sizes, dtype.to_numpy()) if has_numpy(dtype) else Buffer.zeros(sizes, dtype)


class _Given(NamedTuple):
    """What is known about a value."""

    name: str
    dtype: DType
    shape: list[int]
    encoding: str | None
    address: int


def load(
    paths: list[Path],
    state_dict: Mapping[str, Any],
    override_encoding: bool,
    alignment: int | None,
    strict: bool,
) -> None:
    """Gives weights their values and their paths as names.

    A weight with several paths may have its value under any of them; under several, that of the first counts.
    """
    weights = first_paths(paths)
    values = _by_first_path(weights, paths, state_dict)
    if not strict:
        values = {name: value for name, value in values.items() if name in weights}
    expected = [(path, w.type._native, _encoding(w), w.align) for path, w in weights.items()]
    given = [_describe(name, value, name in weights) for name, value in values.items()]
    matches = _core.match_weights(expected, given, strict, override_encoding, alignment)
    loaded = list(values.values())
    for (path, weight), match in zip(weights.items(), matches):
        weight.name = path
        if alignment is not None:
            weight.align = alignment
        if match is not None:
            value = loaded[match]
            if override_encoding and isinstance(value, WeightData) and value.quantization_encoding is not None:
                weight.quantization_encoding = value.quantization_encoding
                weight.dtype, weight.shape = value.dtype, value.shape
            weight._data = value


def _by_first_path(
    weights: Mapping[str, Weight], paths: Iterable[Path], state_dict: Mapping[str, Any]
) -> dict[str, Any]:
    first = {id(weight): path for path, weight in weights.items()}
    values = dict(state_dict)
    for path, weight in paths:
        name = first[id(weight)]
        if path != name and path in values:
            other = values.pop(path)
            values.setdefault(name, other)
    return values


def _encoding(has_encoding: Weight | WeightData) -> str | None:
    encoding = has_encoding.quantization_encoding
    return None if encoding is None else encoding.name


def _describe(name: str, value: Any, wanted: bool) -> _Given:
    """What is known about a value; of one that no weight wants, only the name matters."""
    import numpy as np

    from max.experimental.tensor import Tensor

    if not wanted:
        return _Given(name, DType.uint8, [], None, 0)
    if isinstance(value, WeightData):
        shape = [int(dim) for dim in value.shape]
        return _Given(name, value.dtype, shape, _encoding(value), _describe(name, value.data, wanted).address)
    if isinstance(value, np.ndarray):
        return _Given(name, DType.from_numpy(value.dtype), list(value.shape), None, value.ctypes.data)
    if isinstance(value, Tensor):
        return _Given(name, value.dtype, [int(dim) for dim in value.shape], None, 0)
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"the value of weight '{name}' must be an array; got {type(value).__name__}: {value!r}")
    buffer = Buffer.from_dlpack(value)
    return _Given(name, buffer.dtype, list(buffer.shape), None, buffer._native.data_ptr)


@contextmanager
def without_prefix(weights: Iterable[Weight], prefix: str) -> Iterator[list[str]]:
    """Takes a prefix off the names of weights that start with it, for a while; gives the names of all others."""
    unique = [weight for _, weight in _unique(("", weight) for weight in weights)]
    renamed = [(weight, weight._native) for weight in unique if prefix and weight.name.startswith(prefix)]
    others = [weight.name for weight in unique if not (prefix and weight.name.startswith(prefix))]
    try:
        for weight, native in renamed:
            weight.name = native.name.removeprefix(prefix)
        yield others
    finally:
        for weight, native in renamed:
            weight._native = native
