"""Ops that are no loops, beside PyTorch: sorting, scattering, scanning, pooling, resizing, convolutions.

    python benches/ops.py --torch PYTHON [--rounds 5] [--markdown] [NAME ...]

Run it with an interpreter that has this package and NumPy; `--torch` names one that has PyTorch. NAMEs choose the rows
that contain one of them. Each round runs every side once per row, in a process of its own, on two threads. A cell is the
least over the rounds, in milliseconds, of the median of a round. Where PyTorch has two layouts of images, its cell is the
faster one. Both sides return a checksum, and rows on which they differ are marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

SECONDS = 0.7
THREADS = 2


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def indices(limit, *shape):
    return np.random.default_rng(7).integers(0, limit, shape)


def images(x):
    """NHWC as NCHW, in PyTorch."""
    return x.permute(0, 3, 1, 2)


def volumes(x):
    return x.permute(0, 4, 1, 2, 3)


# Each row: the inputs, the graph as a function of `ops` and values, and PyTorch's functions of `torch` and tensors. Images
# are NHWC, as documented; PyTorch takes them in memory as they are ("channels last") and, from the second function on, in
# its own layout, as `prepared` makes it.
def rows():
    def pool(shape, size, stride, padding, kind):
        # PyTorch averages over the padding too, as is the default on both sides.
        def ours(ops, x):
            return getattr(ops, f"{kind}_pool2d")(
                x, (size, size), stride=stride, padding=padding
            )

        def theirs(torch, x):
            return getattr(torch.nn.functional, f"{kind}_pool2d")(
                x, size, stride, padding
            )

        return (
            [normal(*shape)],
            ours,
            theirs,
            images,
            lambda torch, y: y.permute(0, 2, 3, 1),
        )

    def conv3d(shape, filter, stride=(1, 1, 1), padding=(0, 0, 0)):
        def ours(ops, x, w):
            return ops.conv3d(
                x,
                w,
                stride=stride,
                padding=[p for side in padding for p in (side, side)],
            )

        def theirs(torch, x, w):
            return torch.nn.functional.conv3d(x, w, stride=stride, padding=padding)

        def prepare(x):
            return x.permute(4, 3, 0, 1, 2) if tuple(x.shape) == filter else volumes(x)

        inputs = [normal(*shape), normal(*filter) * 0.05]
        return inputs, ours, theirs, prepare, lambda torch, y: y.permute(0, 2, 3, 4, 1)

    def transposed(shape, filter, stride, padding):
        def ours(ops, x, w):
            return ops.conv2d_transpose(
                x, w, stride=(stride, stride), padding=(padding,) * 4
            )

        def theirs(torch, x, w):
            return torch.nn.functional.conv_transpose2d(
                x, w, stride=stride, padding=padding
            )

        def prepare(x):
            return x.permute(3, 2, 0, 1) if tuple(x.shape) == filter else images(x)

        return (
            [normal(*shape), normal(*filter) * 0.05],
            ours,
            theirs,
            prepare,
            lambda torch, y: y.permute(0, 2, 3, 1),
        )

    def resize(shape, size, mode, **options):
        def ours(ops, x):
            target = (*shape[:2], *size)
            if options.get("antialias"):
                return ops.resize_linear(x, target, antialias=True)
            return ops.resize(x, target, ops.InterpolationMode(mode))

        def theirs(torch, x):
            return torch.nn.functional.interpolate(x, size, mode=mode, **options)

        return [normal(*shape)], ours, theirs, None, None

    def top_k(shape, k):
        return (
            [normal(*shape)],
            lambda ops, x: ops.top_k(x, k)[0],
            lambda torch, x: x.topk(k)[0],
            None,
            None,
        )

    def argsort(x):
        return (
            [x],
            lambda ops, x: ops.argsort(x),
            lambda torch, x: torch.argsort(x, stable=True),
            None,
            None,
        )

    def cumsum(shape, axis):
        return (
            [normal(*shape)],
            lambda ops, x: ops.cumsum(x, axis),
            lambda torch, x: x.cumsum(axis),
            None,
            None,
        )

    def scatter(shape, count, axis, name):
        limit, part = shape[axis], list(shape)
        part[axis] = count
        where, kinds = (
            indices(limit, *part),
            {"scatter_max": "amax", "scatter_mul": "prod"},
        )

        def ours(ops, x, u, i):
            return getattr(ops, name)(x, u, i, axis)

        def theirs(torch, x, u, i):
            if name in kinds:
                return x.scatter_reduce(axis, i, u, kinds[name])
            return getattr(torch, name)(x, axis, i, u)

        # Which of several updates stays is not said by PyTorch, so that assignments have distinct targets.
        if name == "scatter":
            rng = np.random.default_rng(3)
            where = np.stack(
                [rng.permutation(limit) for _ in range(where.size // count)]
            )[:, :count]
            where = (
                where.reshape(part)
                if axis == len(shape) - 1
                else where.T.reshape(part).copy()
            )
        return [normal(*shape), normal(*part) * 0.5, where], ours, theirs, None, None

    def scatter_rows(shape, count, add):
        def ours(ops, x, u, i):
            return (ops.scatter_nd_add if add else ops.scatter_nd)(x, u, i)

        def theirs(torch, x, u, i):
            return x.index_add(0, i[:, 0], u) if add else x.index_put((i[:, 0],), u)

        where = (
            indices(shape[0], count, 1)
            if add
            else np.random.default_rng(5).permutation(shape[0])[:count, None]
        )
        return (
            [normal(*shape), normal(count, *shape[1:]), where],
            ours,
            theirs,
            None,
            None,
        )

    def gather_nd(shape, count):
        where = np.stack([indices(size, count) for size in shape[:2]], 1)

        def theirs(torch, x, i):
            return x[i[:, 0], i[:, 1]]

        return (
            [normal(*shape), where],
            lambda ops, x, i: ops.gather_nd(x, i),
            theirs,
            None,
            None,
        )

    def nonzero(x):
        return (
            [x],
            lambda ops, x: ops.nonzero(x, "found"),
            lambda torch, x: x.nonzero(),
            None,
            None,
        )

    def pad(shape, by):
        paddings = [0, 0, by, by, by, by, 0, 0]

        def theirs(torch, x):
            return torch.nn.functional.pad(x, (0, 0, by, by, by, by))

        return [normal(*shape)], lambda ops, x: ops.pad(x, paddings), theirs, None, None

    def fold(shape, size, kernel, stride):
        def ours(ops, x):
            return ops.fold(x, size, kernel, stride)

        def theirs(torch, x):
            return torch.nn.functional.fold(x, size, kernel, stride=stride)

        return [normal(*shape)], ours, theirs, None, None

    million = normal(1_000_000)
    return {
        "argsort 1M f32": argsort(million),
        "argsort 1M i64": argsort(indices(1 << 40, 1_000_000)),
        "argsort 1000 f32": argsort(normal(1000)),
        "top_k 1 of 64x32000": top_k((64, 32000), 1),
        "top_k 50 of 64x32000": top_k((64, 32000), 50),
        "top_k 100 of 1x128256": top_k((1, 128256), 100),
        "top_k 8 of 4096x128": top_k((4096, 128), 8),
        "top_k 2048 of 8x32000": top_k((8, 32000), 2048),
        "nonzero 1M, half": nonzero(million > 0),
        "cumsum 2048x2048, last axis": cumsum((2048, 2048), 1),
        "cumsum 2048x2048, first axis": cumsum((2048, 2048), 0),
        "cumsum 4M": cumsum((1 << 22,), 0),
        "scatter 1M into 1M": scatter((1_000_000,), 1_000_000, 0, "scatter"),
        "scatter_add 1M into 1M": scatter((1_000_000,), 1_000_000, 0, "scatter_add"),
        "scatter_add 1M into 1000": scatter((1000,), 1_000_000, 0, "scatter_add"),
        "scatter 4096x1024, last axis": scatter((4096, 1024), 512, 1, "scatter"),
        "scatter_add 4096x1024, last axis": scatter(
            (4096, 1024), 512, 1, "scatter_add"
        ),
        "scatter_add 4096x1024, first axis": scatter(
            (4096, 1024), 2048, 0, "scatter_add"
        ),
        "scatter_max 4096x1024, last axis": scatter(
            (4096, 1024), 512, 1, "scatter_max"
        ),
        "scatter_nd 4096 rows of 1024": scatter_rows((8192, 1024), 4096, False),
        "scatter_nd_add 4096 rows of 1024": scatter_rows((8192, 1024), 4096, True),
        "gather_nd 100k of 512x512": gather_nd((512, 512), 100_000),
        "gather_nd 10k rows of 64": gather_nd((512, 128, 64), 10_000),
        "max_pool2d 8x56x56x64 k3 s2 p1": pool((8, 56, 56, 64), 3, 2, 1, "max"),
        "avg_pool2d 8x56x56x64 k3 s2 p1": pool((8, 56, 56, 64), 3, 2, 1, "avg"),
        "max_pool2d 1x112x112x64 k2 s2": pool((1, 112, 112, 64), 2, 2, 0, "max"),
        "avg_pool2d 16x7x7x512 k7": pool((16, 7, 7, 512), 7, 1, 0, "avg"),
        "max_pool2d 8x224x224x3 k2 s2": pool((8, 224, 224, 3), 2, 2, 0, "max"),
        "max_pool2d 4x128x128x1 k5 s1 p2": pool((4, 128, 128, 1), 5, 1, 2, "max"),
        "conv3d 1x16x56x56x32 k3 p1 to 64": conv3d(
            (1, 16, 56, 56, 32), (3, 3, 3, 32, 64), padding=(1, 1, 1)
        ),
        "conv3d 1x8x112x112x3 k3,7,7 s1,2,2 to 64": conv3d(
            (1, 8, 112, 112, 3), (3, 7, 7, 3, 64), (1, 2, 2), (1, 3, 3)
        ),
        "conv3d 2x16x28x28x64 k3 p1 to 64": conv3d(
            (2, 16, 28, 28, 64), (3, 3, 3, 64, 64), padding=(1, 1, 1)
        ),
        "conv3d 2x8x28x28x64 k1 to 128": conv3d((2, 8, 28, 28, 64), (1, 1, 1, 64, 128)),
        "conv2d_transpose 1x32x32x128 k4 s2 p1 to 64": transposed(
            (1, 32, 32, 128), (4, 4, 64, 128), 2, 1
        ),
        "conv2d_transpose 1x56x56x64 k3 s1 p1 to 64": transposed(
            (1, 56, 56, 64), (3, 3, 64, 64), 1, 1
        ),
        "resize nearest 1x3x256x256 to 512": resize(
            (1, 3, 256, 256), (512, 512), "nearest"
        ),
        "resize bilinear 1x3x256x256 to 512": resize(
            (1, 3, 256, 256), (512, 512), "bilinear"
        ),
        "resize bicubic 1x3x256x256 to 512": resize(
            (1, 3, 256, 256), (512, 512), "bicubic"
        ),
        "resize nearest 8x64x56x56 to 112": resize(
            (8, 64, 56, 56), (112, 112), "nearest"
        ),
        "resize bilinear 8x64x56x56 to 112": resize(
            (8, 64, 56, 56), (112, 112), "bilinear"
        ),
        "resize bicubic 8x64x56x56 to 112": resize(
            (8, 64, 56, 56), (112, 112), "bicubic"
        ),
        "resize antialias 1x3x1024x1024 to 224": resize(
            (1, 3, 1024, 1024), (224, 224), "bilinear", antialias=True
        ),
        "pad 8x56x56x64 by 1": pad((8, 56, 56, 64), 1),
        "fold 8x576x3136 k3": fold((8, 576, 54 * 54), (56, 56), (3, 3), 1),
    }


def timed(work):
    """Milliseconds per call: the median of a while."""
    work()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < SECONDS or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def checksum(x):
    x = np.ascontiguousarray(x).ravel().astype(np.float64)
    return float((x * (1 + np.arange(x.size) % 97)).sum())


def ours(inputs, build):
    from max.driver import CPU, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession
    from max.graph import DeviceRef, Graph, TensorType, ops

    types = [
        TensorType(DType.from_numpy(x.dtype), x.shape, DeviceRef.CPU()) for x in inputs
    ]
    with Graph("row", input_types=types) as graph:
        graph.output(build(ops, *graph.inputs))
    model = InferenceSession([CPU()], num_threads=THREADS).load(graph)
    buffers = [Buffer.from_numpy(x) for x in inputs]
    return timed(lambda: model.execute(*buffers)), checksum(
        model.execute(*buffers)[0].to_numpy()
    )


def theirs(inputs, work, prepare, restore):
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(THREADS)
    tensors = [torch.from_numpy(x) for x in inputs]
    if prepare is None:
        return timed(lambda: work(torch, *tensors)), checksum(
            work(torch, *tensors).numpy()
        )
    as_they_are = [prepare(x) for x in tensors]
    own = [x.contiguous() for x in as_they_are]
    least = min(
        timed(lambda: work(torch, *as_they_are)), timed(lambda: work(torch, *own))
    )
    return least, checksum(restore(torch, work(torch, *own)).contiguous().numpy())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true", help="print a table")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = {
        name: row
        for name, row in rows().items()
        if not options.names or any(part in name for part in options.names)
    }
    if options.side:
        for name, (inputs, build, work, prepare, restore) in chosen.items():
            done = (
                ours(inputs, build)
                if options.side == "max"
                else theirs(inputs, work, prepare, restore)
            )
            print(json.dumps([name, *done]), flush=True)
        return
    pythons = {"max": sys.executable} | (
        {"torch": options.torch} if options.torch else {}
    )
    least: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in chosen}
    for _ in range(options.rounds):
        for side, python in pythons.items():
            command = [python, __file__, "--side", side, *options.names]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{side}: {done.stderr}")
            for line in done.stdout.splitlines():
                name, milliseconds, total = json.loads(line)
                least[name][side] = min(
                    least[name].get(side, (milliseconds, total)), (milliseconds, total)
                )
    if options.markdown:
        print("| op | max-rs, ms | PyTorch, ms | times as fast |\n|---|---|---|---|")
    for name, sides in least.items():
        own, own_sum = sides["max"]
        torch, torch_sum = sides.get("torch", (float("nan"), own_sum))
        differs = abs(own_sum - torch_sum) > 1e-3 * (abs(torch_sum) + 1000)
        note = " (results differ)" if differs else ""
        if options.markdown:
            print(f"| {name}{note} | {own:.3f} | {torch:.3f} | {torch / own:.2f} |")
        else:
            print(f"{name + note:48}{own:10.3f}{torch:10.3f}{torch / own:8.2f}")


if __name__ == "__main__":
    main()
