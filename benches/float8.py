"""Matmuls with float8 weights on the CPU, beside the same with wider weights.

    python benches/float8.py [--size 8192] [--rows 1 4 512]

The weights are those of a model, so they are packed once and read as they are stored: with one row, the bytes per second
say how close a product is to the bandwidth of the memory. A cell is the least time of several runs.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops

HOST = DeviceRef.CPU()

# The dtypes of the weights, of the product and of the input.
KINDS = [
    (DType.float32, DType.float32, DType.float32),
    (DType.bfloat16, DType.float32, DType.float32),
    (DType.float8_e4m3fn, DType.float32, DType.float32),
    (DType.float8_e5m2, DType.float32, DType.float32),
    (DType.float8_e4m3fn, DType.float32, DType.float8_e4m3fn),
    (DType.bfloat16, DType.bfloat16, DType.bfloat16),
    (DType.float8_e4m3fn, DType.bfloat16, DType.bfloat16),
]


def numbers(dtype: DType, *shape: int) -> Buffer:
    """Positive numbers of any magnitude up to about one."""
    rng, size = np.random.default_rng(len(shape)), dtype.size_in_bytes
    if size == 4:
        return Buffer.from_numpy(rng.random(shape, dtype=np.float32))
    high = {DType.bfloat16: 0x3F80, DType.float8_e4m3fn: 0x38, DType.float8_e5m2: 0x3C}[dtype]
    codes = rng.integers(0, high, shape, dtype=np.uint16).astype(f"u{size}")
    return Buffer.from_numpy(codes).view(dtype, list(shape))


def measure(session: InferenceSession, m: int, n: int, k: int, weight: DType, wide: DType, given: DType) -> None:
    with Graph("product", input_types=[TensorType(given, [m, k], HOST)]) as graph:
        right = ops.constant_external("weight", TensorType(weight, [n, k], HOST))
        right = ops.transpose(ops.cast(right, wide), 0, 1)
        graph.output(ops.matmul(ops.cast(graph.inputs[0].tensor, wide), right))
    model = session.load(graph, weights_registry={"weight": numbers(weight, n, k)})
    x, times = numbers(given, m, k), []
    for _ in range(4 + (20 if m < 64 else 6)):
        start = time.perf_counter()
        model.execute(x)
        times.append(time.perf_counter() - start)
    best = min(times[4:])
    rates = f"{n * k * weight.size_in_bytes / best / 1e9:7.1f} GB/s {2 * m * n * k / best / 1e9:8.1f} GFLOP/s"
    print(f"{m:5} rows of {given.name:13} x {weight.name:13} in {wide.name:8} {best * 1e3:9.3f} ms {rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192, help="the rows and columns of the weights")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 512])
    options = parser.parse_args()
    session = InferenceSession(devices=[CPU()])
    for m in options.rows:
        for kind in KINDS:
            measure(session, m, options.size, options.size, *kind)


if __name__ == "__main__":
    main()
