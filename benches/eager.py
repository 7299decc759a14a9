"""Eager code on small and large tensors: this package, NumPy and PyTorch side by side.

    python benches/eager.py [--torch PYTHON] [--rounds 5]

Run it with an interpreter that has this package and NumPy; `--torch` names one that has PyTorch. Each round runs every
side once, so that noise affects all alike; a cell is the median over rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

SMALL, LARGE, THREADS = 5, 1_000_000, 2


def expression(x, y, relu, exp, tanh):
    """Twenty elementwise ops."""
    z = x * 1.5 + y
    z = relu(z) - x * 0.25
    z = tanh(z) * y + z
    z = z * z - x
    z = exp(z * -0.5) + y * 2.0
    z = relu(z - 1.0) * x
    return z * 0.125 + y - x


def sides(name):
    """Named functions without arguments, each of which leaves its result in memory."""
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = {size: [rng.standard_normal(size).astype(np.float32) for _ in range(2)] for size in (SMALL, LARGE)}
    if name == "max":
        from max.experimental import functional as F
        from max.experimental.tensor import Tensor

        arrays = {size: [Tensor(array) for array in pair] for size, pair in arrays.items()}
        relu, exp, tanh, wrap = F.relu, F.exp, F.tanh, F.functional
    elif name == "numpy":

        def relu(x):
            return np.maximum(x, 0)

        exp, tanh = np.exp, np.tanh
        wrap = lambda function: function  # noqa: E731
    else:
        import torch

        torch.set_grad_enabled(False)
        torch.set_num_threads(THREADS)
        arrays = {size: [torch.from_numpy(array) for array in pair] for size, pair in arrays.items()}
        relu, exp, tanh = torch.relu, torch.exp, torch.tanh
        wrap = lambda function: function  # noqa: E731
    (a, b), (x, y) = arrays[SMALL], arrays[LARGE]
    region = wrap(lambda x, y: expression(x, y, relu, exp, tanh))
    work = {
        "relu of 5": lambda: relu(a),
        "add 5 and 5": lambda: a + b,
        "5 times a number": lambda: a * 2.0,
        "20 ops on 5": lambda: region(a, b),
        "20 ops on 1M": lambda: region(x, y),
        "20 ops on 1M, one by one": lambda: expression(x, y, relu, exp, tanh),
    }
    if name == "numpy":
        work["20 ops on 1M"] = numpy_at_its_best(np, x, y)
    return work


def numpy_at_its_best(np, x, y):
    """The same in place and in blocks that stay in the cache: as fast as NumPy gets."""
    out, step = np.empty_like(x), 16_384
    z, t = np.empty(step, np.float32), np.empty(step, np.float32)

    def run():
        for at in range(0, x.size, step):
            u, v = x[at : at + step], y[at : at + step]
            a, b = z[: u.size], t[: u.size]
            np.multiply(u, 1.5, out=a)
            np.add(a, v, out=a)
            np.maximum(a, 0, out=a)
            np.multiply(u, 0.25, out=b)
            np.subtract(a, b, out=a)
            np.tanh(a, out=b)
            np.multiply(b, v, out=b)
            np.add(b, a, out=a)
            np.multiply(a, a, out=a)
            np.subtract(a, u, out=a)
            np.multiply(a, -0.5, out=a)
            np.exp(a, out=a)
            np.multiply(v, 2.0, out=b)
            np.add(a, b, out=a)
            np.subtract(a, 1.0, out=a)
            np.maximum(a, 0, out=a)
            np.multiply(a, u, out=a)
            np.multiply(a, 0.125, out=a)
            np.add(a, v, out=a)
            np.subtract(a, u, out=out[at : at + step])
        return out

    return run


def measure(name):
    """Microseconds per call, and a checksum that must agree on all sides."""
    import numpy as np

    results = {}
    for what, work in sides(name).items():
        checksum = float(np.abs(np.asarray(work(), dtype=np.float64)).sum())
        for _ in range(3):
            work()
        times, begin = [], time.perf_counter()
        while time.perf_counter() - begin < 0.5:
            start = time.perf_counter()
            for _ in range(count := 1 if "1M" in what else 200):
                work()
            times.append((time.perf_counter() - start) / count)
        results[what] = [statistics.median(times) * 1e6, checksum]
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
    pythons = {"max": sys.executable, "numpy": sys.executable}
    if options.torch:
        pythons["torch"] = options.torch
    rounds = {name: [] for name in pythons}
    for _ in range(options.rounds):
        for name, python in pythons.items():
            done = subprocess.run([python, __file__, "--side", name], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            rounds[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'':26}" + "".join(f"{name + ' us':>14}{'ratio':>8}" for name in rounds))
    for what in rounds["max"][0]:
        times = {name: statistics.median(run[what][0] for run in runs) for name, runs in rounds.items()}
        sums = [run[what][1] for runs in rounds.values() for run in runs]
        cells = "".join(f"{times[name]:14.2f}{times[name] / times['max']:8.2f}" for name in rounds)
        off = max(abs(value - sums[0]) for value in sums) / abs(sums[0])
        print(f"{what:26}{cells}" + ("" if off < 1e-4 else f"  results differ: {off:.1e}"))


if __name__ == "__main__":
    main()
