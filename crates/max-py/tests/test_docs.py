"""The Python of the pages in docs/ runs, and prints what they say it prints."""

import re
from pathlib import Path

import pytest

from helpers import compiler, pytorch

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, capsys):
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert any(language == "python" for language, _ in blocks)
    if any("import torch" in block for _, block in blocks):
        pytorch()
    if any("torch.compile" in block for _, block in blocks):
        compiler()
    scope: dict[str, object] = {}
    printed = ""
    for language, block in blocks:
        if language == "text":
            assert printed == block
            printed = ""
        else:
            assert printed == "", "the page must show what the block above prints"
            exec(compile(block, str(page), "exec"), scope)  # noqa: S102 - the documentation is the test
            printed = capsys.readouterr().out
    assert printed == ""


def test_there_are_pages():
    assert PAGES
