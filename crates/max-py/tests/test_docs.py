"""The Python of the pages in docs/ runs, and prints what they say it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import compiler, pytorch

# The one about speed has no Python.
ALL = sorted((Path(__file__).resolve().parents[3] / "docs").glob("*.md"))
PAGES = [page for page in ALL if page.stem != "speed"]
END = "end of a block"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page):
    """Each page is a program of its own: it may decide what holds for a whole process, such as what its devices are."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if any("import torch" in block for _, block in blocks):
        pytorch()
    if any("torch.compile" in block for _, block in blocks):
        compiler()
    programs = [(at, block) for at, (language, block) in enumerate(blocks) if language == "python"]
    assert programs
    source = "".join(f"{block}print({END!r})\n" for _, block in programs)
    child = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)  # noqa: S603
    assert child.returncode == 0, child.stderr
    printed = child.stdout.split(f"{END}\n")
    assert len(printed) == len(programs) + 1
    for (at, block), lines in zip(programs, printed):
        shown = blocks[at + 1][1] if blocks[at + 1 : at + 2] and blocks[at + 1][0] == "text" else ""
        assert lines == shown, f"the page must show what this block prints:\n{block}"


def test_there_are_pages():
    assert PAGES
