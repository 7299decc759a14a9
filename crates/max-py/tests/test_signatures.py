"""The public API against a committed copy of the documented signatures.

Every documented name either exists and takes the documented parameters under their names with their defaults, or is
listed in `data/to_come.txt`. That list may only shrink: a listed name that exists is an error, and so is a line that
matches nothing.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import inspect
import json
from pathlib import Path
from typing import Any, Optional

import pytest

from helpers import pytorch

DATA = Path(__file__).parent / "data"
DOCUMENTED: dict[str, dict[str, Any]] = json.loads((DATA / "signatures.json").read_text(encoding="utf-8"))
TO_COME = [
    line
    for line in map(str.strip, (DATA / "to_come.txt").read_text(encoding="utf-8").splitlines())
    if line and not line.startswith("#")
]

ENUM_MACHINERY = "(value, names=<not given>"
REQUIRED = inspect.Parameter.empty
MISSING = object()


def listed(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in TO_COME)


def member(thing: Any, name: str) -> Any:
    """An attribute, found without running properties; None for one that only instances have."""
    found = inspect.getattr_static(thing, name, MISSING)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if found is not MISSING:
        return found
    for base in getattr(thing, "__mro__", ()):
        if name in getattr(base, "__annotations__", {}) or name in getattr(base, "__slots__", ()):
            return None
    return getattr(thing, name, MISSING)


def find(name: str) -> tuple[bool, Any]:
    """Whether a dotted name exists, and what it is (None for an attribute that only instances have)."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = member(thing, part)
            if thing is MISSING:
                return False, None
        return True, thing
    return False, None


def cut(text: str, separator: str, limit: int = -1) -> list[str]:
    """The parts of `text` between separators outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        if char == separator and depth == 0 and not quote and len(parts) != limit:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def documented_parameters(signature: str) -> dict[str, Any]:
    """The defaults of a documented signature by name (as text; REQUIRED if there is none), without `self`."""
    found: dict[str, Any] = {}
    for part in cut(signature.split("→")[0].strip()[1:-1], ","):
        declared, *default = cut(part, "=", limit=2)
        name = cut(declared, ":")[0]
        if name and name[0] not in "*/" and (name not in ("self", "cls") or default):
            found[name] = default[0] if default else REQUIRED
    return found


def same_default(text: str, actual: Any) -> bool:
    if text.startswith("<"):  # <factory>, <class ...>: nothing to compare
        return True
    if text in ("[]", "()"):  # an empty collection, or a None that stands for one
        return actual is None or (isinstance(actual, (list, tuple)) and len(actual) == 0)
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text in (repr(actual), str(actual), f"{type(actual).__name__}.{getattr(actual, 'name', '')}")
    return literal == actual and (literal is None) == (actual is None)


def mismatch(documented: dict[str, Any], actual: inspect.Signature, overload: bool = False) -> Optional[str]:
    """What is wrong with the actual signature, or None. If there are several overloads, only the names must match."""
    parameters = actual.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    order = [n for n in parameters if n in documented]
    if not overload and order != [n for n in documented if n in parameters]:
        return f"parameters in another order: {order}"
    for name, default in documented.items():
        if name not in parameters:
            if open_ended:
                continue
            return f"no parameter {name!r}"
        have = parameters[name].default
        if not overload and default is not REQUIRED:
            if have is REQUIRED:
                return f"{name!r} has no default, documented {default}"
            if not same_default(default, have):
                return f"{name!r} defaults to {have!r}, documented {default}"
    return None


@pytest.mark.parametrize("name", [n for n in DOCUMENTED if not listed(n)])
def test_exists_as_documented(name: str) -> None:
    if name.startswith("max.torch."):
        pytorch()
    exists, thing = find(name)
    assert exists, f"{name} is documented, but does not exist and is not in to_come.txt"
    entry = DOCUMENTED[name]
    if entry["kind"] == "class":
        assert inspect.isclass(thing), f"{name} is documented as a class"
    signatures = [s for s in entry["sig"] if s and not s.startswith(ENUM_MACHINERY)]
    wanted = [documented_parameters(s) for s in signatures]
    if entry["kind"] not in ("class", "function", "method") or not any(wanted):
        return
    try:
        actual = inspect.signature(thing)
    except (TypeError, ValueError):
        pytest.fail(f"{name} has no signature that Python can read")
    for documented in wanted:
        problem = mismatch(documented, actual, overload=len(wanted) > 1)
        assert problem is None, f"{name}{actual}: {problem}"


def test_the_list_only_shrinks() -> None:
    here_already = [name for name in DOCUMENTED if listed(name) and find(name)[0]]
    assert here_already == [], "these exist: remove them from to_come.txt"
    idle = [pattern for pattern in TO_COME if not fnmatch.filter(DOCUMENTED, pattern)]
    assert idle == [], "these lines of to_come.txt match no documented name"


@pytest.mark.parametrize(
    "text, actual, same",
    [
        ("-1", -1, True),
        ("-1", 0, False),
        ("'none'", "none", True),
        ("None", None, True),
        ("None", 0, False),
        ("[]", (), True),
        ("()", [1], False),
        ("(1, 1)", (1, 1), True),
        ("False", True, False),
    ],
)
def test_defaults_are_compared(text: str, actual: Any, same: bool) -> None:
    assert same_default(text, actual) is same


def test_mismatches_are_found() -> None:
    documented = documented_parameters("(self, x: int, axis: int = -1, *, mode='a') → Tensor")
    assert documented == {"x": REQUIRED, "axis": "-1", "mode": "'a'"}
    tricky = documented_parameters("(a: 'b[c, d]' = <factory>, e: x[y=False], f=(1, 1), /, *args, **kwargs)")
    assert tricky == {"a": "<factory>", "e": REQUIRED, "f": "(1, 1)"}

    def check(function: Any) -> Optional[str]:
        return mismatch(documented, inspect.signature(function))

    assert check(lambda x, axis=-1, *, mode="a", more=None: 0) is None
    assert check(lambda x, axis=-1: 0)
    assert check(lambda x, axis=0, mode="a": 0)
    assert check(lambda x, axis, mode="a": 0)
    assert check(lambda axis, x=1, mode="a": 0)
