"""What the golden scripts share: the text they learn from and how they write records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()


def write_json(path: Path, record: dict[str, Any] | list[Any]) -> None:
    """One line for every field, and for every element of a field that is a list of objects."""

    def field(value: Any, depth: int) -> str:
        indent = "\n" + " " * depth
        if isinstance(value, dict) and depth == 1:
            rows = [json.dumps(name) + ": " + field(item, depth + 1) for name, item in value.items()]
            return "{" + ",".join(indent + row for row in rows) + "\n}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[" + ",".join(indent + json.dumps(item, ensure_ascii=False) for item in value) + indent[:-1] + "]"
        return json.dumps(value, ensure_ascii=False)

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(field(record, 1) + "\n", encoding="utf-8")
