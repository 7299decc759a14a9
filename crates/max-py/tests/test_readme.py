"""The Python of README.md runs, and prints what the README says it prints."""

import re
from pathlib import Path

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_tensor_prints(capsys):
    code, _, _, _ = blocks("python")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - the documentation is the test
    assert capsys.readouterr().out == "Tensor([1. 1. 1. 1. 1.], shape=[5], dtype=float32, device=cpu:0)\n"


def test_the_tour_runs_and_its_graph_prints_as_shown(capsys):
    _, code, _, _ = blocks("python")
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)  # noqa: S102 - the documentation is the test
    assert capsys.readouterr().out.split() == ["[[0.33333334", "0.33333334", "0.33333334]", "[0.33333334", "0.33333334", "0.33333334]]"]
    assert str(scope["graph"]) in blocks("text")


def test_an_op_runs_on_a_gpu_or_without_one(capsys):
    _, _, code, _ = blocks("python")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - the documentation is the test
    assert capsys.readouterr().out == "[2. 0. 6.]\n"


def test_looking_inside_shows_what_the_readme_says(capsys):
    _, _, _, code = blocks("python")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - the documentation is the test
    printed = capsys.readouterr().out
    assert printed.startswith("['matmul+add+gelu', 'softmax']\nMemoryReport(peak_bytes=2048,")
    assert "matmul+add+gelu" in printed.split("kernel\n")[1]
