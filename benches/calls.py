"""Small calls, where the work is nothing and the way there is everything: ops and models on five elements.

    python benches/calls.py [--torch PYTHON] [--rounds 5]

Run it with an interpreter that has this package and NumPy; `--torch` names one that has PyTorch. Each round runs every
side once, in a process of its own. A cell is the least and the median over the rounds, in microseconds per call, of the
median of a round. `cargo run --release --example eager` times the same calls from Rust.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import repeat

OPS = 100
"""The length of the chains that are recorded."""


def timed(work, count):
    """Seconds per call of a function, called in a loop."""

    def run():
        start = time.perf_counter()
        for _ in repeat(None, count):
            work()
        return (time.perf_counter() - start) / count

    return run


def max_calls():
    """What is timed on the side of this package: functions that return the seconds of one call."""
    import numpy as np
    from max import _core
    from max.driver import CPU, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession
    from max.experimental import functional as F
    from max.experimental.tensor import Tensor
    from max.graph import DeviceRef, Graph, TensorType, ops

    array = np.array([1, -2, 3, -4, 5], np.float32)
    a, b = Tensor(array), Tensor(array)
    graph = Graph("relu5", ops.relu, input_types=[TensorType(DType.float32, [5], DeviceRef.CPU())])
    model = InferenceSession([CPU()]).load(graph)
    buffer = Buffer.from_numpy(array.copy())
    bare, relu = _core.Region("bare"), F.relu

    def record(step):
        """Seconds per op to record a chain; to free it is not counted."""

        def run():
            with F.lazy():
                y = a
                start = time.perf_counter()
                for _ in repeat(None, OPS):
                    y = step(y)
                return (time.perf_counter() - start) / OPS

        return run

    @F.functional
    def together():
        y = a
        start = time.perf_counter()
        for _ in repeat(None, OPS):
            y = relu(y)
        return (time.perf_counter() - start) / OPS

    return {
        "F.relu(a), bare": timed(lambda: relu(a), 1000),
        "a + b, bare": timed(lambda: a + b, 1000),
        "a * 2.0, bare": timed(lambda: a * 2.0, 1000),
        "a + array, bare": timed(lambda: a + array, 1000),
        "_core.op of relu, bare": timed(lambda: _core.op(bare, "relu", (a,)), 1000),
        "relu in lazy()": record(relu),
        "y + a in lazy()": record(lambda y: y + a),
        "relu in F.functional": together,
        "model.execute(buffer), relu": timed(lambda: model.execute(buffer), 1000),
        "model.execute(array), relu": timed(lambda: model.execute(array), 1000),
        "_core execute of relu": timed(lambda: model._native.execute((buffer,)), 1000),
    }


def torch_calls():
    """The same in PyTorch, which has no regions: a model is its eager code."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    a, b = (torch.tensor([1.0, -2, 3, -4, 5]) for _ in range(2))
    relu = torch.relu
    return {
        "F.relu(a), bare": timed(lambda: relu(a), 1000),
        "a + b, bare": timed(lambda: a + b, 1000),
        "a * 2.0, bare": timed(lambda: a * 2.0, 1000),
        "model.execute(buffer), relu": timed(lambda: relu(a), 1000),
    }


def measure(side):
    """Microseconds per call, the median of half a second."""
    results = {}
    for what, run in (max_calls if side == "max" else torch_calls)().items():
        times, begin = [], time.perf_counter()
        while time.perf_counter() - begin < 0.5:
            times.append(run())
        results[what] = statistics.median(times) * 1e6
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side)))
        return
    pythons = {"max": sys.executable} | ({"torch": options.torch} if options.torch else {})
    rounds = {side: [] for side in pythons}
    for _ in range(options.rounds):
        for side, python in pythons.items():
            done = subprocess.run([python, __file__, "--side", side], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{side}: {done.stderr}")
            rounds[side].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'':30}" + "".join(f"{side + ' least':>14}{'median':>8}" for side in rounds))
    for what in rounds["max"][0]:
        cells = ""
        for runs in rounds.values():
            times = [run[what] for run in runs if what in run]
            cells += f"{min(times):14.2f}{statistics.median(times):8.2f}" if times else f"{'-':>14}{'-':>8}"
        print(f"{what:30}{cells}")


if __name__ == "__main__":
    main()
