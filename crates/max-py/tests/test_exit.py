"""The end of the interpreter while daemon threads are still in native code."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each defines what threads do again and again.
WORK = {
    "models": """
a = np.ones((600, 600), np.float32)
with Graph("powers", input_types=[TensorType(DType.float32, [600, 600], DeviceRef.CPU())]) as graph:
    x = graph.inputs[0]
    graph.output(x @ x @ x @ x)
model = InferenceSession().load(graph)
work = lambda: model.execute(a)
""",
    "tensors": """
x = Tensor.from_dlpack(np.ones((600, 600), np.float32))
work = lambda: x @ x @ x @ x
""",
    "prints": """
with Graph("prints", input_types=[TensorType(DType.float32, [1], DeviceRef.CPU())]) as graph:
    for _ in range(100):
        ops.print("still here")
    graph.output(graph.inputs[0])
model = InferenceSession().load(graph)
a = np.zeros(1, np.float32)
work = lambda: model.execute(a)
""",
    "callbacks": """
class Endless:
    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        while True:
            time.sleep(0.001)

work = lambda: Buffer.from_dlpack(Endless())
""",
}

SCRIPT = """
import sys, threading, time
import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental.tensor import Tensor
from max.graph import DeviceRef, Graph, TensorType, ops
{work}
def loop():
    while True:
        work()

for _ in range(16):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.1)
sys.exit(3)
"""


@pytest.mark.parametrize("kind", WORK)
def test_daemon_threads_end_quietly(kind: str) -> None:
    script = SCRIPT.format(work=WORK[kind])
    for _ in range(4):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stderr) == (3, "")
        assert set(run.stdout.splitlines()) <= {"still here"}
