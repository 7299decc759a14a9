"""The shared table of op cases (`cases/ops.json`): reading it, and drawing values for its inputs.

Needs NumPy only, so that the table and the reference can be exercised without the package under test.

A row has `op`, `args`, optional `kwargs`, `dtypes` (names or groups), optional `domain` and `rtol`. A string such as
`"$[n=3, 2]"` is an input of the row's dtype, `"int64[4]<5"` one of a fixed dtype with values in 0..5, `"int64[4]<±5"`
in -5..5; `"dtype:int32"`, `"layout:NCHW"` and `"filter:FCRS"` name enum members, `"dtype:$"` the row's dtype and
`"device:cpu"` a device; everything else is a literal, and a bare name inside a shape is a symbolic dim.

Values are passed as NumPy arrays of the dtype itself, except bfloat16 and the floats of at most eight bits: float32
arrays of their values.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Optional
from zlib import crc32

import numpy as np

# The values of all codes of the floats of at most eight bits, as `goldens/small_floats.py` has found them.
_, *_LINES = [
    line
    for line in (Path(__file__).parent / "goldens" / "small_floats.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
SMALL = {
    name: np.array([int(word, 16) for word in values.split()], dtype=np.uint32).view(np.float32)
    for name, values in zip(_LINES[::3], _LINES[1::3])
}

TABLE = Path(__file__).resolve().parents[3] / "cases" / "ops.json"

GROUPS = {
    "float": ["float32", "float64"],
    "half": ["float16", "bfloat16"],
    "int": ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    "bool": ["bool"],
    "small": list(SMALL),
}
DTYPES = [name for group in GROUPS.values() for name in group if name not in SMALL]
FLOATS = GROUPS["float"] + GROUPS["half"]
INTS = GROUPS["int"]
DOMAINS = {"any", "positive", "unit", "nonzero", "nan"}

INPUT = re.compile(r"(\$|" + "|".join([*DTYPES, *SMALL]) + r")\[([^\]]*)\](?:<(±?)(\d+))?$")


@dataclass(frozen=True)
class Input:
    """A tensor input of a case: its dtype, its dims as (symbol or None, run-time size), its value range."""

    dtype: str
    dims: tuple[tuple[Optional[str], int], ...]
    low: Optional[int] = None
    high: Optional[int] = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.dims)

    @property
    def declared(self) -> list[Any]:
        """The shape as written in a TensorType: names for symbolic dims, sizes for static ones."""
        return [name or size for name, size in self.dims]


def parse_input(text: Any, row_dtype: str) -> Optional[Input]:
    match = INPUT.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    dtype, dims, sign, bound = match.groups()
    parsed = []
    for dim in filter(None, (part.strip() for part in dims.split(","))):
        name, _, size = dim.rpartition("=")
        parsed.append((name or None, int(size)))
    high = int(bound) if bound else None
    low = None if high is None else (-high if sign else 0)
    return Input(row_dtype if dtype == "$" else dtype, tuple(parsed), low, high)


def map_leaves(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, list):
        return [map_leaves(item, leaf) for item in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(item, leaf) for key, item in tree.items()}
    return leaf(tree)


@dataclass(frozen=True)
class Case:
    """One row of the table at one dtype."""

    index: int
    row: dict[str, Any]
    dtype: str

    def __str__(self) -> str:
        return f"{self.row['op']}-{self.index}-{self.dtype}"

    @property
    def op(self) -> str:
        return self.row["op"]

    @property
    def args(self) -> list[Any]:
        return map_leaves(self.row["args"], self._leaf)

    @property
    def kwargs(self) -> dict[str, Any]:
        return map_leaves(self.row.get("kwargs", {}), self._leaf)

    def _leaf(self, value: Any) -> Any:
        if value == "dtype:$":
            return f"dtype:{self.dtype}"
        return parse_input(value, self.dtype) or value

    @property
    def inputs(self) -> list[Input]:
        found: list[Input] = []
        map_leaves([self.args, self.kwargs], lambda v: found.append(v) if isinstance(v, Input) else None)
        return found

    @property
    def symbols(self) -> dict[str, int]:
        return {name: size for i in self.inputs for name, size in i.dims if name}

    def draw(self) -> list[np.ndarray]:
        """The values of the inputs: always the same for the same row and dtype."""
        rng = np.random.default_rng(crc32(f"{json.dumps(self.row)}{self.dtype}".encode()))
        return [draw(rng, i, self.row.get("domain", "any")) for i in self.inputs]


def read_table(path: Path = TABLE) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def expand(names: Iterable[str]) -> list[str]:
    return [dtype for name in names for dtype in GROUPS.get(name, [name])]


def all_cases() -> list[Case]:
    return [Case(i, row, dtype) for i, row in enumerate(read_table()) for dtype in expand(row["dtypes"])]


def draw(rng: np.random.Generator, spec: Input, domain: str) -> np.ndarray:
    shape = spec.sizes
    if spec.dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if spec.high is not None:
        return narrow(np.asarray(rng.integers(spec.low, spec.high, shape)), spec.dtype)
    if spec.dtype in INTS:
        signed = not spec.dtype.startswith("u")
        values = np.asarray(rng.integers(1 if domain in ("positive", "nonzero") else 0, 4, shape))
        if signed and domain != "positive":
            values = values * rng.choice([-1, 1], shape)
        return np.asarray(values).astype(spec.dtype)
    if domain == "positive":
        values = rng.uniform(0.1, 3, shape)
    elif domain == "unit":
        values = rng.uniform(-0.99, 0.99, shape)
    elif domain == "nonzero":
        values = rng.uniform(0.1, 3, shape) * rng.choice([-1, 1], shape)
    else:
        values = rng.uniform(-3, 3, shape)
    values = np.asarray(values, dtype=np.float64)
    if domain == "nan":
        flat = values.reshape(-1)
        special = [np.nan, np.inf, -np.inf, 0.0]
        for i in rng.permutation(flat.size)[: (flat.size + 1) // 2]:
            flat[i] = special[rng.integers(len(special))]
    return narrow(values, spec.dtype)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """The bfloat16 bit patterns nearest to `values` (ties to even), as uint16."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.asarray(np.where(np.isnan(values), np.uint64(0x7FC0), rounded)).astype(np.uint16)


def from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    wide = np.asarray(bits).astype(np.uint32) << np.uint32(16)
    return np.asarray(wide, dtype=np.uint32).view(np.float32)


def small_codes(values: np.ndarray, dtype: str) -> np.ndarray:
    """The codes nearest to `values`, as uint8: ties to even, but up where all numbers are positive and others are NaN."""
    values, table = np.asarray(values, dtype=np.float64), SMALL[dtype].astype(np.float64)
    distances = np.abs(values[..., None] - np.where(np.isfinite(table), table, 1e99))
    same_sign = np.signbit(values)[..., None] == np.signbit(table)
    distances = np.where(same_sign, distances, np.where(table == 0, distances * (1 + 1e-9) + 1e-99, 1e99))
    positive = not (table <= 0).any()
    # The first of the nearest is taken.
    numbers = np.arange(table.size)
    order = numbers[::-1] if positive else np.argsort(numbers % 2, kind="stable")
    codes = order[np.argmin(distances[..., order], axis=-1)]
    if np.isnan(table).any():
        out = np.isnan(values) | ((values <= 0) & positive)
        codes = np.where(out, np.flatnonzero(np.isnan(table))[0], codes)
    return np.asarray(codes).astype(np.uint8)


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds once to `dtype` (those that NumPy lacks are stored as float32); floats become ints by truncation."""
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        if dtype in SMALL:
            return SMALL[dtype][small_codes(values, dtype)]
        if dtype == "bfloat16":
            return from_bfloat16_bits(bfloat16_bits(values))
        if dtype == "bool":
            return values != 0
        if dtype in INTS and values.dtype.kind == "f":
            values = np.trunc(values)
        return values.astype(dtype)


def widen(values: np.ndarray) -> np.ndarray:
    """Floats as float64, for the reference; other dtypes as they are."""
    return values.astype(np.float64) if values.dtype.kind == "f" else values
