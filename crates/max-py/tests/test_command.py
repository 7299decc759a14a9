"""The wheel has the `max` command, and `python -m max` is the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / ("max.exe" if os.name == "nt" else "max")
WAYS = pytest.mark.parametrize("way", [[str(SCRIPT)], [sys.executable, "-m", "max"]], ids=["max", "python -m max"])
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "no such cache"}
STORY = ["generate", "--prompt", "Once upon a time", "--max-new-tokens", "20", "--seed", "1"]


def run(way, *arguments, given=""):
    return subprocess.run([*way, *arguments], input=given, capture_output=True, text=True, env=OFFLINE, timeout=120)  # noqa: S603


@WAYS
def test_results_go_to_standard_output(way):
    done = run(way, "--version")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("max 0.")
    done = run(way, *STORY, "--output", "json")
    assert done.returncode == 0 and done.stderr.startswith("This is a toy of "), done.stderr
    assert len(json.loads(done.stdout)["tokens"]) == 20
    done = run(way, "encode", "--file", "-", "--output", "json", given="Zürich is small.\nSo is Köln.\n")
    assert len(json.loads(done.stdout)["embeddings"]) == 2


def test_both_are_the_same():
    ways = [[str(SCRIPT)], [sys.executable, "-m", "max"]]
    one, other = [run(way, *STORY) for way in ways]
    assert (one.stdout, one.stderr) == (other.stdout, other.stderr) and one.stdout


@WAYS
def test_failures_have_a_status(way):
    done = run(way, "inspect", "/no/such/file.gguf")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("max: ") and done.stderr.count("\n") == 1
    done = run(way, "frobnicate")
    assert done.returncode == 2 and "frobnicate" in done.stderr and "Usage: max" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals are those of Unix")
@WAYS
def test_a_second_ctrl_c_ends_the_program(way):
    streams = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    with subprocess.Popen([*way, "generate", "--interactive"], **streams, env=OFFLINE) as child:  # noqa: S603
        assert child.stderr.readline().startswith(b"This is a toy")
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            child.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert child.wait(1) == 130
        assert b"Traceback" not in child.stderr.read()


def test_a_process_can_run_several_commands(tmp_path):
    source = """
import sys
from max.__main__ import main
for _ in range(2):
    sys.argv = ["max", "generate", "--prompt", "What is 1 + 1?", "--temperature", "0"]
    assert main() == 0
sys.argv = ["max", "nonsense"]
sys.exit(main())
"""
    done = run([sys.executable], "-c", source)
    assert done.returncode == 2
    first, second = done.stdout.splitlines()
    assert first == second
