"""This package and PyTorch side by side on one GPU, in one process.

    python benches/gpu.py [WORD...] [--rounds 5] [--no-compile] [--json FILE]

Run it with an interpreter that has both. Words choose workloads by name (`--list` shows the names). Both sides compute on
the same memory, and their results are compared once: if they differ by more than rounding, the run fails. In each round the
sides take turns, each running for a while between two device synchronizations; a cell is the median over rounds. A ratio
above 1 means that this package is faster than the better of PyTorch eager and torch.compile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional

import numpy as np
import torch
import torch.nn.functional as tF
from max.driver import Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import BufferType, DeviceRef, Graph, TensorType, TensorValue, Weight, ops
from max.graph.quantization import QuantizationEncoding, dequantize, quantize
from max.nn.attention.mask_config import MHAMaskVariant
from max.nn.float8_config import Float8InputScaleSpec, Float8ScaleGranularity, Float8ScaleOrigin, Float8WeightScaleSpec
from max.nn.kernels import dynamic_scaled_matmul, flash_attention_gpu, flash_attention_ragged, matmul_static_scaled_float8
from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection
from torch.nn.attention import SDPBackend, sdpa_kernel

GPU = DeviceRef.GPU()
DTYPES = {torch.float32: DType.float32, torch.float16: DType.float16, torch.bfloat16: DType.bfloat16}
DTYPES |= {torch.int64: DType.int64, torch.float8_e4m3fn: DType.float8_e4m3fn}
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

# How much results may differ, relative to the largest element.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float8_e4m3fn: 3e-2}

# Larger than any cache: inputs rotate through this many bytes, so that none is read from a cache.
CACHE = 256 << 20

# How long each side runs in a round.
SECONDS = 0.05


@dataclass
class Row:
    """The measurements of one workload, in microseconds."""

    name: str
    ours: float
    torch: Optional[float] = None
    compiled: Optional[float] = None
    bytes: float = 0.0
    flops: float = 0.0
    note: str = ""
    error: float = 0.0
    differs: bool = False

    @property
    def ratio(self) -> Optional[float]:
        others = [time for time in (self.torch, self.compiled) if time is not None]
        return min(others) / self.ours if others else None


@dataclass
class Case:
    """A function of tensors in both libraries. It gets several sets of inputs, so that none stays in a cache."""

    name: str
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: Callable[[], list[torch.Tensor]]
    bytes: float = 0.0
    flops: float = 0.0
    tolerance: Optional[float] = None
    compile: bool = True
    rotate: bool = True


@dataclass
class Bench:
    """What all workloads share."""

    rounds: int
    compile: bool
    device: Any = field(default_factory=Accelerator)
    copy_bandwidth: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = InferenceSession(devices=[self.device])

    # --- timing ---------------------------------------------------------------------------------------

    def times(self, sides: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """The median microseconds per call of each side; the sides take turns."""
        found: dict[str, list[float]] = {name: [] for name in sides}
        counts = {name: self._count(work) for name, work in sides.items()}
        for _ in range(self.rounds):
            for name, work in sides.items():
                found[name].append(self._run(work, counts[name]))
        return {name: statistics.median(times) * 1e6 for name, times in found.items()}

    def _count(self, work: Callable[[], Any]) -> int:
        """How many calls fill a round, after a few to warm up."""
        for _ in range(3):
            work()
        once = self._run(work, 5)
        return max(5, min(5000, math.ceil(SECONDS / once)))

    @staticmethod
    def _run(work: Callable[[], Any], count: int) -> float:
        torch.cuda.synchronize()  # waits for all streams of the device, including this package's
        start = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    # --- running --------------------------------------------------------------------------------------

    def load(self, name: str, build: Callable[..., Any], inputs: list[torch.Tensor], **weights: Any) -> Model:
        """A model of a function of inputs of these types."""
        types = [TensorType(DTYPES[x.dtype], list(x.shape), GPU) for x in inputs]
        with Graph(name, input_types=types) as graph:
            result = build(*(value.tensor for value in graph.inputs))
            graph.output(*(result if isinstance(result, (list, tuple)) else [result]))
        return self.session.load(graph, **weights)

    def case(self, case: Case) -> None:
        """Runs a case on all sides."""
        first = case.inputs()
        size = sum(x.nbytes for x in first)
        sets = [first] + [case.inputs() for _ in range(min(8, CACHE // max(size, 1)) if case.rotate else 0)]
        model = self.load(case.name, case.ours, first)
        torch.cuda.synchronize()
        buffers = itertools.cycle([[buffer_of(x) for x in inputs] for inputs in sets])
        # Results are kept as long as inputs rotate, so that each one gets different memory.
        kept: dict[str, list[Any]] = {}

        def ring(name: str, call: Callable[..., Any], arguments: Iterator[list[Any]]) -> Callable[[], Any]:
            kept[name] = [None] * len(sets)
            places = itertools.cycle(range(len(sets)))

            def work() -> None:
                kept[name][next(places)] = call(*next(arguments))

            return work

        sides = {"ours": ring("ours", model.execute, buffers)}
        sides["torch"] = ring("torch", case.torch, itertools.cycle(sets))
        if self.compile and case.compile:
            torch._dynamo.reset()
            sides["compiled"] = ring("compiled", torch.compile(case.torch), itertools.cycle(sets))
        error = difference(model.execute(*map(buffer_of, first))[0], case.torch(*first))
        tolerance = case.tolerance or TOLERANCE[first[0].dtype]
        times = self.times(sides)
        self.add(
            Row(
                case.name,
                times["ours"],
                times["torch"],
                times.get("compiled"),
                case.bytes,
                case.flops,
                error=error,
                differs=not error <= tolerance,
            )
        )

    # --- reporting ------------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Keeps and prints a row."""
        if not self.rows:
            print(f"{'':34}{'ours us':>11}{'torch us':>11}{'compiled us':>13}{'ratio':>7}")
        self.rows.append(row)
        cells = [f"{row.ours:11.2f}"]
        cells += [f"{time:{width}.2f}" if time else " " * width for time, width in ((row.torch, 11), (row.compiled, 13))]
        cells.append(f"{row.ratio:7.2f}" if row.ratio else " " * 7)
        if row.bytes:
            rate = row.bytes / row.ours / 1e6
            share = f", {100 * rate / self.copy_bandwidth:.0f}% of the copy bandwidth" if self.copy_bandwidth else ""
            row.note = f"{rate:.2f} TB/s{share} {row.note}"
        if row.flops:
            speed = f"{row.flops / row.ours / 1e6:.1f} TFLOP/s"
            row.note = f"{speed}, {row.note}" if row.note else speed
        if row.differs:
            row.note += f" RESULTS DIFFER: {row.error:.1e}"
        print(f"{row.name:34}{''.join(cells)}  {row.note}", flush=True)


def buffer_of(x: torch.Tensor) -> Buffer:
    """The same memory as a buffer; float8 is handed over as bytes."""
    if x.dtype == torch.float8_e4m3fn:
        return Buffer.from_dlpack(x.view(torch.uint8)).view(DType.float8_e4m3fn, list(x.shape))
    return Buffer.from_dlpack(x)


def difference(ours: Buffer, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest element."""
    torch.cuda.synchronize()
    ours = torch.from_dlpack(ours).double().reshape(theirs.shape)
    theirs = theirs.double()
    scale = theirs.abs().max().clamp_min(1e-30)
    return float(((ours - theirs).abs().max() / scale).nan_to_num(math.inf))


def randn(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


# --- workloads ----------------------------------------------------------------------------------------

WORKLOADS: dict[str, Callable[[Bench], None]] = {}


def workload(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
    WORKLOADS[run.__name__] = run
    return run


def copying(bench: Bench) -> None:
    """The copy bandwidth of the machine, the yardstick of memory-bound kernels."""
    x, y = (torch.empty(256 << 20, device="cuda") for _ in range(2))
    x.normal_()
    ours = [Buffer.from_dlpack(x), Buffer.from_dlpack(y)]
    times = bench.times({"torch": lambda: y.copy_(x), "ours": lambda: ours[1].inplace_copy_from(ours[0])})
    bench.copy_bandwidth = 2 * x.nbytes / times["torch"] / 1e6
    bench.add(Row("copy of 1 GiB", times["ours"], times["torch"], bytes=2 * x.nbytes))


@workload
def elementwise(bench: Bench) -> None:
    """A chain of ops that fuses."""
    for dtype in (torch.float32, torch.bfloat16):
        count = 256 << 20
        bench.case(
            Case(
                f"gelu(x*a+b)*c of 256M {SHORT[dtype]}",
                lambda x: ops.gelu(x * 1.5 + 0.25, approximate="tanh") * 0.5,
                lambda x: tF.gelu(x * 1.5 + 0.25, approximate="tanh") * 0.5,
                lambda dtype=dtype: [randn(count, dtype=dtype)],
                bytes=2 * count * dtype.itemsize,
                rotate=False,
            )
        )
        bench.case(
            Case(
                f"relu(x+y)*2 of 128M {SHORT[dtype]}",
                lambda x, y: ops.relu(x + y) * 2.0,
                lambda x, y: torch.relu(x + y) * 2.0,
                lambda dtype=dtype: [randn(count // 2, dtype=dtype), randn(count // 2, dtype=dtype)],
                bytes=1.5 * count * dtype.itemsize,
                rotate=False,
            )
        )


@workload
def rows(bench: Bench) -> None:
    """Softmax and norms along rows."""
    for dtype in (torch.float32, torch.bfloat16):
        for m, n in ((8192, 4096), (32768, 1024), (4096, 16384)):

            def inputs(parameters: int, m: int = m, n: int = n, dtype: torch.dtype = dtype) -> list[torch.Tensor]:
                return [randn(m, n, dtype=dtype), *(randn(n, dtype=dtype) for _ in range(parameters))]

            name, size = f"{m}x{n} {SHORT[dtype]}", 2 * m * n * dtype.itemsize
            softmax = Case(f"softmax {name}", ops.softmax, lambda x: torch.softmax(x, -1), lambda i=inputs: i(0), size)
            layer_norm = Case(
                f"layer_norm {name}",
                lambda x, g, b: ops.layer_norm(x, g, b, 1e-5),
                lambda x, g, b, n=n: tF.layer_norm(x, (n,), g, b, 1e-5),
                lambda i=inputs: i(2),
                size,
            )
            rms_norm = Case(
                f"rms_norm {name}",
                lambda x, g: ops.rms_norm(x, g, 1e-5),
                lambda x, g, n=n: tF.rms_norm(x, (n,), g, 1e-5),
                lambda i=inputs: i(1),
                size,
            )
            for case in (softmax, layer_norm, rms_norm):
                bench.case(case)


@workload
def movement(bench: Bench) -> None:
    """Transposes, and sums along each axis and of all elements."""
    for dtype in (torch.float32, torch.bfloat16):
        n = 8192
        size = n * n * dtype.itemsize

        def inputs(dtype: torch.dtype = dtype, n: int = n) -> list[torch.Tensor]:
            return [randn(n, n, dtype=dtype)]

        def case(name: str, ours: Any, theirs: Any, size: float, inputs: Any = inputs, dtype: Any = dtype) -> Case:
            return Case(f"{name} 8192x8192 {SHORT[dtype]}", ours, theirs, inputs, size, compile=False)

        bench.case(case("transpose", lambda x: ops.transpose(x, 0, 1), lambda x: x.t().contiguous(), 2 * size))
        bench.case(case("sum of rows", lambda x: ops.sum(x, axis=-1), lambda x: x.sum(-1), size))
        bench.case(case("sum of columns", lambda x: ops.sum(x, axis=0), lambda x: x.sum(0), size))
        total = case("sum of all", lambda x: ops.sum(x.reshape([-1])), lambda x: x.sum(), size)
        # Magnitudes, because a sum of so many signed numbers cancels down to a few digits.
        total.inputs = lambda dtype=dtype, n=n: [randn(n, n, dtype=dtype).abs_()]
        bench.case(total)


@workload
def matmul(bench: Bench) -> None:
    """Matmuls; in f32 at full precision on both sides."""
    plain = lambda a, b: ops.matmul(a, b)  # noqa: E731
    shapes = [
        (torch.bfloat16, (8192, 8192), (8192, 8192)),
        (torch.bfloat16, (4096, 4096), (4096, 4096)),
        (torch.float16, (8192, 8192), (8192, 8192)),
        (torch.float32, (4096, 4096), (4096, 4096)),
        (torch.bfloat16, (64, 1024, 1024), (64, 1024, 1024)),
        (torch.float32, (64, 1024, 1024), (64, 1024, 1024)),
        (torch.bfloat16, (16, 8192), (8192, 8192)),
    ]
    for dtype, a, b in shapes:
        flops = 2 * math.prod(a) * b[-1]
        name = f"{'x'.join(map(str, a))} @ {'x'.join(map(str, b))}" if a != b else "x".join(map(str, a))
        inputs = lambda dtype=dtype, a=a, b=b: [randn(*a, dtype=dtype), randn(*b, dtype=dtype)]  # noqa: E731
        bench.case(Case(f"matmul {name} {SHORT[dtype]}", plain, torch.matmul, inputs, flops=flops, compile=False))
    n = 4096
    square = lambda: [randn(n, n, dtype=torch.bfloat16) for _ in range(2)]  # noqa: E731
    flops = 2 * n**3
    transposed = [
        ("a @ b.T", lambda a, b: ops.matmul(a, ops.transpose(b, 0, 1)), lambda a, b: a @ b.t()),
        ("a.T @ b", lambda a, b: ops.matmul(ops.transpose(a, 0, 1), b), lambda a, b: a.t() @ b),
    ]
    for name, ours, theirs in transposed:
        bench.case(Case(f"{name} of 4096x4096 bf16", ours, theirs, square, flops=flops, compile=False))
    bench.case(
        Case(
            "relu(a @ b + bias) of 4096x4096 bf16",
            lambda a, b, bias: ops.relu(ops.matmul(a, b) + bias),
            lambda a, b, bias: torch.relu(a @ b + bias),
            lambda: [*square(), randn(n, dtype=torch.bfloat16)],
            flops=flops,
        )
    )


@workload
def float8(bench: Bench) -> None:
    """Float8 matmuls `a @ b.T` with scales of tensors and of rows, in bf16."""
    inputs = Float8InputScaleSpec(Float8ScaleGranularity.COLWISE, Float8ScaleOrigin.DYNAMIC, DType.float32)
    weights = Float8WeightScaleSpec(Float8ScaleGranularity.ROWWISE, DType.float32)

    def rowwise(a: TensorValue, b: TensorValue, x: TensorValue, y: TensorValue) -> TensorValue:
        return dynamic_scaled_matmul(a, b, ops.transpose(x, 0, 1), y, inputs, weights)

    def theirs(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y.t() if y.ndim else y
        return torch._scaled_mm(a, b.t(), scale_a=x, scale_b=y, out_dtype=torch.bfloat16)

    def operands(m: int, n: int, k: int, rows: bool) -> list[torch.Tensor]:
        a, b = (randn(count, k).to(torch.float8_e4m3fn) for count in (m, n))
        shapes = [(m, 1), (n, 1)] if rows else [(), ()]
        return [a, b, *(torch.rand(shape, device="cuda") + 0.5 for shape in shapes)]

    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (16, 8192, 8192)):
        for name, ours, rows in (("tensor", matmul_static_scaled_float8, False), ("row", rowwise, True)):
            make = lambda m=m, n=n, k=k, rows=rows: operands(m, n, k, rows)  # noqa: E731
            title = f"float8 {m}x{n}x{k}, a scale per {name}"
            bench.case(Case(title, ours, theirs, make, flops=2 * m * n * k, compile=False))


@dataclass
class Captured:
    """Equal works captured one after the other on both sides, each with memory of its own, so that none finds it in a cache."""

    name: str
    ours: Callable[[Any, str], Any]  # of the input and the name of a weight
    torch: Callable[[torch.Tensor, int], Any]  # of the input and the number of a weight
    x: torch.Tensor
    weights: dict[str, Any]
    exact: torch.Tensor  # of the first columns
    bytes: float = 0.0
    flops: float = 0.0

    def run(self, bench: Bench) -> None:
        names = list(self.weights)
        build = lambda x: [self.ours(x, name) for name in names]  # noqa: E731
        model = bench.load(self.name, build, [self.x], weights_registry=self.weights)
        inputs = buffer_of(self.x)
        result = torch.from_dlpack(model.execute(inputs)[-1])[:, : self.exact.shape[1]].float()
        error = ((result - self.exact).abs().max() / self.exact.abs().max()).item()
        model.capture(1, inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [self.torch(self.x, number) for number in range(len(names))]
        sides = {"ours": lambda: model.replay(1, inputs), "torch": graph.replay}
        times = {name: time / len(names) for name, time in bench.times(sides).items()}
        row = Row(self.name, times["ours"], times["torch"], None, self.bytes, self.flops, error=error, differs=error > 0.03)
        bench.add(row)
        del kept


COPIES = [f"w{number}" for number in range(8)]


@workload
def thin(bench: Bench) -> None:
    """Products of few rows with bf16 weights, as in decoding, several captured together."""
    for n, k in ((14336, 4096), (4096, 14336), (4096, 4096)):
        dense = [randn(n, k, dtype=torch.bfloat16) for _ in COPIES]
        for rows in (1, 4, 16):
            x = randn(rows, k, dtype=torch.bfloat16)

            def ours(x: TensorValue, name: str, n: int = n, k: int = k) -> Any:
                return ops.matmul(x, ops.transpose(Weight(name, DType.bfloat16, [n, k], GPU), 0, 1))

            Captured(
                f"{rows}x{k} @ {n}x{k}' bf16",
                ours,
                lambda x, number, dense=dense: tF.linear(x, dense[number]),
                x,
                dict(zip(COPIES, map(buffer_of, dense))),
                x.float() @ dense[-1][:256].float().T,
                bytes=2.0 * n * k,
            ).run(bench)


@workload
def quantized(bench: Bench) -> None:
    """Products with quantized weights, several captured together, beside PyTorch's with bf16."""
    for n, k in ((14336, 4096), (4096, 4096)):
        dense = [randn(n, k, dtype=torch.bfloat16) for _ in COPIES]
        for encoding in (getattr(QuantizationEncoding, name) for name in ("Q4_0", "Q4_K", "Q6_K", "Q8_0")):
            row_bytes = k // encoding.elements_per_block * encoding.block_size
            values = np.random.default_rng(0).normal(size=(256, k)).astype(np.float32)
            blocks = Buffer.from_numpy(np.tile(quantize(encoding, values), (n // 256, 1))).to(bench.device)
            wide = torch.tensor(dequantize(encoding, quantize(encoding, values)), device="cuda")
            for rows in (1, 4, 16, 512):
                x = randn(rows, k, dtype=torch.bfloat16)

                def ours(x: TensorValue, name: str, encoding: Any = encoding, shape: Any = (n, row_bytes)) -> Any:
                    weight = Weight(name, DType.uint8, shape, GPU, quantization_encoding=encoding)
                    return ops.qmatmul(encoding, None, x, weight)

                Captured(
                    f"{encoding.name} {rows}x{k} @ {n}x{k}'",
                    ours,
                    lambda x, number, dense=dense: tF.linear(x, dense[number]),
                    x,
                    {name: blocks.copy() for name in COPIES},
                    x.float() @ wide.T,
                    bytes=float(n * row_bytes) if rows <= 16 else 0.0,
                    flops=0.0 if rows <= 16 else 2.0 * rows * n * k,
                ).run(bench)


@workload
def attention(bench: Bench) -> None:
    """Attention as graphs write it, compiled to one kernel, against PyTorch's own function."""

    def ours(q: TensorValue, k: TensorValue, v: TensorValue) -> TensorValue:
        scores = ops.matmul(q, ops.transpose(k, -1, -2)) * int(q.shape[-1]) ** -0.5
        return ops.matmul(ops.softmax(scores), v)

    for shape in [(32, 12, 128, 64), (8, 16, 1024, 64), (4, 32, 2048, 128)]:
        inputs = lambda shape=shape: [randn(*shape, dtype=torch.bfloat16) for _ in range(3)]  # noqa: E731
        flops = 4 * math.prod(shape) * shape[2]
        name = f"attention {'x'.join(map(str, shape))} bf16"
        bench.case(Case(name, ours, tF.scaled_dot_product_attention, inputs, flops=flops, compile=False))


@workload
def prefill(bench: Bench) -> None:
    """Causal attention of a prompt, beside PyTorch's flash backend and, as the other column, that of cuDNN."""
    heads, depth = 32, 128

    def ours(q: TensorValue, k: TensorValue, v: TensorValue) -> TensorValue:
        return flash_attention_gpu(q, k, v, MHAMaskVariant.CAUSAL_MASK, depth**-0.5)

    for tokens in (2048, 8192):
        q, k, v = (randn(1, tokens, heads, depth, dtype=torch.bfloat16) for _ in range(3))
        model = bench.load(f"prefill {tokens}", ours, [q, k, v])
        given = [buffer_of(x) for x in (q, k, v)]
        turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        sides: dict[str, Callable[[], Any]] = {"ours": lambda m=model, g=given: m.execute(*g)}
        for name, backend in (("torch", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):

            def theirs(backend: Any = backend, turned: Any = turned) -> torch.Tensor:
                with sdpa_kernel(backend):
                    return tF.scaled_dot_product_attention(*turned, is_causal=True)

            sides[name] = theirs
        error = difference(model.execute(*given)[0], sides["torch"]().transpose(1, 2))
        times = bench.times(sides)
        flops = 2.0 * heads * tokens**2 * depth
        row = Row(f"causal attention 32x{tokens}x128 bf16", times["ours"], times["torch"], None, 0.0, flops)
        row.note, row.error = f"cuDNN {times['cudnn']:.1f} us", error
        row.differs = not error <= TOLERANCE[torch.bfloat16]
        bench.add(row)


@workload
def decode(bench: Bench) -> None:
    """Attention of one token of each sequence to keys and values in pages; its bytes are theirs."""
    heads, key_heads, depth, page = 32, 8, 128, 128
    for batch, keys in ((1, 2048), (1, 8192), (1, 32768), (16, 2048), (16, 8192)):
        pages = batch * keys // page
        count = max(1, min(8, CACHE // (pages * page * key_heads * depth * 4)))
        shape = [pages, 2, count, page, key_heads, depth]
        cache = randn(*shape, dtype=torch.bfloat16)
        q = randn(batch, heads, depth, dtype=torch.bfloat16)
        tables = [
            torch.arange(batch + 1, device="cuda"),
            torch.full([batch], keys - 1, device="cuda"),
            torch.randperm(pages, device="cuda").reshape(batch, -1),
        ]
        types = [TensorType(DType.bfloat16, list(q.shape), GPU), BufferType(DType.bfloat16, shape, GPU)]
        types += [TensorType(DType.int64, list(table.shape), GPU) for table in tables]
        with Graph(f"decode {batch}x{keys}", input_types=types) as graph:
            x, blocks, offsets, lengths, lookup = graph.inputs
            params = KVCacheParams(DType.bfloat16, key_heads, depth, page_size=page)
            collection = PagedKVCacheCollection(blocks.buffer, lengths.tensor, lookup.tensor, None)
            given = [params, x.tensor, offsets.tensor, collection]
            layers = [ops.constant(layer, DType.int64, DeviceRef.CPU()) for layer in range(count)]
            mask = MHAMaskVariant.CAUSAL_MASK
            graph.output(*(flash_attention_ragged(*given, layer, mask, depth**-0.5) for layer in layers))
        model = bench.session.load(graph)
        given = [buffer_of(x) for x in (q, cache, *tables)]
        known = cache[tables[2]].permute(3, 2, 0, 5, 1, 4, 6).reshape(count, 2, batch, key_heads, keys, depth)

        def theirs(at: int, q: torch.Tensor = q, known: torch.Tensor = known) -> torch.Tensor:
            return tF.scaled_dot_product_attention(q[:, :, None], *known[at], enable_gqa=True)

        error = difference(model.execute(*given)[0], theirs(0)[:, :, 0])
        model.capture(1, *given)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            kept = [theirs(at) for at in range(count)]
        times = bench.times({"ours": lambda: model.replay(1, *given), "torch": recorded.replay})
        size = 4.0 * batch * keys * key_heads * depth
        row = Row(f"decode attention {batch}x{keys} bf16", times["ours"] / count, times["torch"] / count, None, size)
        row.error, row.differs = error, not error <= TOLERANCE[torch.bfloat16]
        bench.add(row)
        del kept


@workload
def conv(bench: Bench) -> None:
    """Convolutions of ResNet-50 with NHWC inputs and RSCF filters; PyTorch gets the same memory order."""
    torch.backends.cudnn.benchmark = True
    narrow = [(56, 64, 3, 64, 1), (28, 128, 3, 128, 1), (14, 256, 3, 256, 1), (7, 512, 3, 512, 1)]
    narrow += [(56, 128, 3, 128, 2), (28, 256, 3, 256, 2), (14, 512, 3, 512, 2), (14, 1024, 1, 256, 1)]
    wide = [(56, 64, 3, 64, 1), (14, 256, 3, 256, 1), (14, 1024, 1, 256, 1)]
    batch = 32
    for dtype, shapes in ((torch.bfloat16, narrow), (torch.float32, wide)):
        for side, channels, taps, filters, stride in shapes:
            pad = taps // 2

            def inputs(dtype=dtype, x=(batch, side, side, channels), f=(taps, taps, channels, filters)):
                return [randn(*x, dtype=dtype), randn(*f, dtype=dtype, scale=0.05)]

            def ours(x, f, pad=pad, stride=stride):
                return ops.conv2d(x, f, stride=(stride, stride), padding=(pad, pad, pad, pad))

            def theirs(x, f, pad=pad, stride=stride):
                out = tF.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=pad, stride=stride)
                return out.permute(0, 2, 3, 1)

            name = f"conv {batch}x{side}x{side}x{channels}, {taps}x{taps} to {filters} {SHORT[dtype]}"
            name += f" by {stride}" if stride > 1 else ""
            flops = 2 * batch * (side // stride) ** 2 * channels * taps * taps * filters
            bench.case(Case(name, ours, theirs, inputs, flops=flops, compile=False))


# --- a transformer block ---------------------------------------------------------------------------

BATCH, TOKENS, DIM, HEADS, HIDDEN = 32, 128, 768, 12, 3072
SHAPES = {
    "qkv_w": (3 * DIM, DIM),
    "qkv_b": (3 * DIM,),
    "out_w": (DIM, DIM),
    "out_b": (DIM,),
    "up_w": (HIDDEN, DIM),
    "up_b": (HIDDEN,),
    "down_w": (DIM, HIDDEN),
    "down_b": (DIM,),
    "norm1_g": (DIM,),
    "norm1_b": (DIM,),
    "norm2_g": (DIM,),
    "norm2_b": (DIM,),
}


def our_block(x: TensorValue, w: dict[str, TensorValue]) -> TensorValue:
    def linear(x: TensorValue, name: str) -> TensorValue:
        return ops.matmul(x, ops.transpose(w[name + "_w"], 0, 1)) + w[name + "_b"]

    qkv = linear(x, "qkv").reshape((BATCH, TOKENS, 3, HEADS, DIM // HEADS))
    q, k, v = (qkv[:, :, part].permute([0, 2, 1, 3]) for part in range(3))
    scores = ops.matmul(q, ops.transpose(k, -1, -2)) * (DIM // HEADS) ** -0.5
    heads = ops.matmul(ops.softmax(scores), v).permute([0, 2, 1, 3]).reshape((BATCH, TOKENS, DIM))
    x = ops.layer_norm(x + linear(heads, "out"), w["norm1_g"], w["norm1_b"], 1e-5)
    return ops.layer_norm(x + linear(ops.gelu(linear(x, "up")), "down"), w["norm2_g"], w["norm2_b"], 1e-5)


class TorchBlock(torch.nn.Module):
    """The same in PyTorch. The parameters of a module are not copied for each replay."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, weight in weights.items():
            self.register_parameter(name, torch.nn.Parameter(weight, requires_grad=False))

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return tF.linear(x, getattr(self, name + "_w"), getattr(self, name + "_b"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return tF.layer_norm(x, (DIM,), getattr(self, name + "_g"), getattr(self, name + "_b"), 1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.linear(x, "qkv").reshape(BATCH, TOKENS, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        heads = tF.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(BATCH, TOKENS, DIM)
        x = self.norm(x + self.linear(heads, "out"), "norm1")
        return self.norm(x + self.linear(tF.gelu(self.linear(x, "up")), "down"), "norm2")


@workload
def block(bench: Bench) -> None:
    """A BERT-base block, 32 x 128 tokens in bf16; captured and replayed on both sides."""
    x = randn(BATCH, TOKENS, DIM, dtype=torch.bfloat16)
    weights = {name: randn(*shape, dtype=torch.bfloat16, scale=0.03) for name, shape in SHAPES.items()}
    torch.cuda.synchronize()

    def build(x: TensorValue) -> TensorValue:
        graph = Graph.current
        values = {
            name: graph.add_weight(Weight(name, DType.bfloat16, list(shape), GPU)) for name, shape in SHAPES.items()
        }
        return our_block(x, values)

    registry = {name: Buffer.from_dlpack(weight) for name, weight in weights.items()}
    model = bench.load("block", build, [x], weights_registry=registry)
    given = Buffer.from_dlpack(x)
    (captured,) = model.capture(1, given)
    model.replay(1, given)
    theirs = TorchBlock(weights)
    error = difference(captured, theirs(x))
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: model.replay(1, given),
        "executed": lambda: model.execute(given),
        "torch": lambda: theirs(x),
    }
    if bench.compile:
        torch._dynamo.reset()
        torch._dynamo.mark_static_address(x)  # so that the input is not copied either
        compiled = torch.compile(theirs, mode="reduce-overhead")
        sides["compiled"] = lambda: compiled(x)
    times = bench.times(sides)
    linear = 2 * BATCH * TOKENS * DIM * (4 * DIM + 2 * HIDDEN)
    attention = 4 * BATCH * HEADS * TOKENS**2 * (DIM // HEADS)
    kernels = len(model.kernel_summaries)
    row = Row("BERT-base block 32x128 bf16", times["ours"], times["torch"], times.get("compiled"))
    row.flops, row.error, row.differs = linear + attention, error, not error <= TOLERANCE[torch.bfloat16]
    row.note = f"{kernels} kernels, {times['executed']:.1f} us without replay"
    bench.add(row)


# --- call overhead ----------------------------------------------------------------------------------------

MANY = 500


@workload
def replay(bench: Bench) -> None:
    """Chains of 500 small kernels, captured and replayed on both sides; times are per kernel."""
    x, y = randn(1024), randn(1024, scale=0.1)
    table, order = randn(1024, 4), torch.randperm(1024, device="cuda")

    def elementwise(x: Any, y: Any, tanh: Callable[[Any], Any] = ops.tanh) -> Any:
        for step in range(MANY):
            x = tanh(x) if step % 2 else x + y
        return x

    def gathers(x: Any, order: Any, gather: Callable[[Any, Any], Any] = lambda x, i: ops.gather(x, i, axis=0)) -> Any:
        for _ in range(MANY):
            x = gather(x, order)
        return x

    alone = Bench(bench.rounds, False, bench.device)
    alone.session.set_mojo_assert_level("warn")  # with value checks on, every op is a kernel
    works = [
        ("elementwise", alone, elementwise, lambda x, y: elementwise(x, y, torch.tanh), [x, y]),
        ("gathers", bench, gathers, lambda x, i: gathers(x, i, lambda x, i: x[i]), [table, order]),
    ]
    for name, loader, ours, theirs, inputs in works:
        model = loader.load(name, ours, inputs)
        kernels = len(model.kernel_summaries)
        torch.cuda.synchronize()
        given = [Buffer.from_dlpack(x) for x in inputs]
        (captured,) = model.capture(1, *given)
        model.replay(1, *given)
        error = difference(captured, theirs(*inputs))
        theirs(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            theirs(*inputs)
        times = bench.times({"ours": lambda m=model, g=given: m.replay(1, *g), "torch": graph.replay})
        row = Row(f"one of {kernels} replayed kernels: {name}", times["ours"] / kernels, times["torch"] / MANY, error=error)
        row.differs = not error <= TOLERANCE[torch.float32]
        bench.add(row)


START = """
import sys, time
import numpy  # imported when the first graph is built, which would take longer than all of this
begin = time.perf_counter()
from max.driver import Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops
imported = time.perf_counter()
device = Accelerator()
x = Buffer(DType.float32, [256, 512], device)
device.synchronize()
opened = time.perf_counter()
with Graph("small", input_types=[TensorType(DType.float32, ["n", 512], DeviceRef.GPU())]) as graph:
    x_, = graph.inputs
    graph.output(ops.softmax(ops.gelu(x_ * 2.0 + 1.0)) * x_)
model = InferenceSession(devices=[device]).load(graph)
model.execute(x)
device.synchronize()
print(imported - begin, opened - imported, time.perf_counter() - opened)
"""


@workload
def start(bench: Bench) -> None:
    """Loading and running a small graph in a new process once the GPU is open: without and with cached kernels."""
    found: dict[str, list[float]] = {"cold": [], "warm": []}
    opening = []
    for _ in range(max(3, bench.rounds // 2)):
        with tempfile.TemporaryDirectory() as folder:
            for name, times in found.items():
                environment = {**os.environ, "MAX_CACHE_DIR": folder}
                command = [sys.executable, "-c", START]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"the {name} start failed: {done.stderr}")
                _, opened, first = map(float, done.stdout.split())
                times.append(first)
                opening.append(opened)
    for name, times in found.items():
        note = f"to load and run a small graph, after opening the GPU in {statistics.median(opening):.2f} s"
        bench.add(Row(f"{name} start", statistics.median(times) * 1e6, note=note))


@workload
def eager(bench: Bench) -> None:
    """One op on a small tensor: how long the call takes, and how long until the result is ready."""
    from max.experimental import functional as F
    from max.experimental.tensor import Tensor

    x = randn(1024)
    tensor = Tensor.from_dlpack(x)
    ours, theirs = lambda: F.relu(tensor), lambda: torch.relu(x)
    error = difference(ours().driver_tensor, theirs())

    def enqueue(work: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            work()
        return (time.perf_counter() - start) / 200 * 1e6

    def whole(work: Callable[[], Any], wait: Callable[[], Any]) -> float:
        start = time.perf_counter()
        for _ in range(200):
            work()
            wait()
        return (time.perf_counter() - start) / 200 * 1e6

    for work in (ours, theirs):
        enqueue(work)
    calls = [(enqueue(ours), enqueue(theirs)) for _ in range(bench.rounds)]
    waits = [
        (whole(ours, bench.device.synchronize), whole(theirs, torch.cuda.synchronize)) for _ in range(bench.rounds)
    ]
    for name, pairs in (("F.relu of 1024, enqueued", calls), ("F.relu of 1024, finished", waits)):
        mine, other = (statistics.median(times) for times in zip(*pairs))
        bench.add(Row(name, mine, other, error=error, differs=error > 0))


@workload
def llama(bench: Bench) -> None:
    """Text generation with a Llama of 8 billion parameters, in time per prompt and per step of decoding."""
    import llama_gpu

    for row in llama_gpu.ROWS:
        sides = llama_gpu.ours(row, llama_gpu.EXAMPLE), llama_gpu.theirs(row, min(bench.rounds, 3), llama_gpu.MODE)
        torch.cuda.empty_cache()
        mine, other = (row.microseconds(side) for side in sides)
        bench.add(Row(f"llama {row.name}", mine, compiled=other, note=f"{sides[0]:.1f} {row.unit}"))


def page(rows: list[Row], rounds: int) -> str:
    """The table as Markdown."""
    lines = [
        "Generated by `cargo xtask gpu bench --markdown FILE` on a machine with a GPU.",
        "",
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, medians of {rounds} alternating rounds, in microseconds. "
        "A ratio above 1 means that max-rs is faster than the better of PyTorch eager and `torch.compile`.",
        "",
        "| workload | max-rs | PyTorch | torch.compile | ratio | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    cell = lambda number: f"{number:.2f}" if number else ""  # noqa: E731
    for row in rows:
        cells = [row.name, *map(cell, (row.ours, row.torch, row.compiled, row.ratio)), row.note.strip()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only workloads whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    options = parser.parse_args()
    if options.list:
        for name, run in WORKLOADS.items():
            print(f"{name:12} {(run.__doc__ or '').splitlines()[0]}")
        return
    chosen = [name for name in WORKLOADS if not options.words or any(word in name for word in options.words)]
    if not chosen:
        sys.exit(f"no workload name contains {' or '.join(options.words)}; the workloads are {', '.join(WORKLOADS)}")
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    bench = Bench(options.rounds, not options.no_compile)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, medians of {options.rounds} rounds")
    failed = []
    copying(bench)
    for name in chosen:
        try:
            WORKLOADS[name](bench)
        except Exception as error:  # the other workloads still run
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump([{**vars(row), "ratio": row.ratio} for row in bench.rows], file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(page(bench.rows, options.rounds))
    differ = [row.name for row in bench.rows if row.differs]
    if failed or differ:
        sys.exit(f"failed: {', '.join(failed) or 'none'}; results differ: {', '.join(differ) or 'none'}")


if __name__ == "__main__":
    main()
