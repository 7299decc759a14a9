"""Graphs for which the system has no memory: an exception, and the process goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """
import resource
import numpy as np
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType

KIND = TensorType(DType.float32, [4, 4], DeviceRef.CPU())
session = InferenceSession(num_threads=1)


def record(count):
    with Graph("powers", input_types=[KIND, KIND]) as graph:
        x, y = graph.inputs
        for _ in range(count):
            x = x @ y
        graph.output(x)
    return graph


def refused(megabytes, work):
    "Whether work is refused with so much memory left."
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) << 10
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), hard))
    try:
        work()
    except MemoryError as error:
        return "refused to allocate" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return False


def runs(model):
    eye = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(model.execute(eye, eye)[0].to_numpy(), eye)


runs(session.load(record(1)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
@pytest.mark.parametrize(
    "script",
    [
        "for megabytes in (20, 33, 47, 64):\n    assert refused(megabytes, lambda: record(3_000_000))",
        """
path = {path!r}
graph = record(60_000)
graph.save(path)
for megabytes in (1, 4, 12, 24):
    assert refused(megabytes, lambda: graph.save(path))
    assert refused(megabytes, lambda: session.load(graph))
    assert refused(megabytes, lambda: session.load(path))
    assert refused(megabytes, lambda: Graph("read", path=path))
assert str(Graph("read", path=path)) == str(graph)
runs(session.load(record(2)))
""",
    ],
    ids=["recording", "saving and loading"],
)
def test_large_graphs_are_refused(script: str, tmp_path: Path) -> None:
    script = SETUP + script.format(path=str(tmp_path / "large.maxgraph"))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
