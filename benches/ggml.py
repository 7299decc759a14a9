"""Times products with quantized weights in ggml, the library of llama.cpp, for comparison with `cargo xtask bench quantized`.

    python benches/ggml.py --library path/to/folder/with/libggml-cpu.so [--threads 2] [--without AMX] [q4_0 q4_k ...]

Weights are repacked as llama.cpp does (its extra buffer types) where the library offers it, threads are kept from graph to
graph, and each graph multiplies one input by as many copies of the weights as exceed any cache. `--without` names extra
buffer types to leave out: the instructions of one may be missing on a virtual machine that claims to have them.
"""

from __future__ import annotations

import argparse
import ctypes as c
import statistics
import time
from pathlib import Path

SHAPES = [(14336, 4096), (4096, 4096)]
ROWS = [1, 4, 16, 64, 512]

# The numbers of types in ggml.h, and the elements and bytes of a block.
TYPES = {"f32": (0, 1, 4), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}


class InitParams(c.Structure):
    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class PoolParams(c.Structure):
    _fields_ = [
        ("cpumask", c.c_bool * 512),
        ("n_threads", c.c_int),
        ("prio", c.c_int),
        ("poll", c.c_uint32),
        ("strict_cpu", c.c_bool),
        ("paused", c.c_bool),
    ]


class Ggml:
    """The functions of the library that are needed."""

    def __init__(self, folder: Path, threads: int) -> None:
        base, cpu, front = (
            c.CDLL(str(folder / name), mode=c.RTLD_GLOBAL)
            for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so")
        )
        p, i64, size = c.c_void_p, c.c_int64, c.c_size_t
        self.init = self.function(base.ggml_init, p, InitParams)
        self.free = self.function(base.ggml_free, None, p)
        self.new_2d = self.function(base.ggml_new_tensor_2d, p, p, c.c_int, i64, i64)
        self.mul_mat = self.function(base.ggml_mul_mat, p, p, p, p)
        self.new_graph = self.function(base.ggml_new_graph, p, p)
        self.expand = self.function(base.ggml_build_forward_expand, None, p, p)
        self.quantize = self.function(base.ggml_quantize_chunk, size, c.c_int, p, p, i64, i64, i64, p)
        self.set = self.function(base.ggml_backend_tensor_set, None, p, p, size, size)
        self.alloc = self.function(base.ggml_backend_alloc_ctx_tensors, p, p, p)
        self.alloc_as = self.function(base.ggml_backend_alloc_ctx_tensors_from_buft, p, p, p)
        self.free_buffer = self.function(base.ggml_backend_buffer_free, None, p)
        self.compute = self.function(base.ggml_backend_graph_compute, c.c_int, p, p)
        self.backend = self.function(cpu.ggml_backend_cpu_init, p)()
        self.function(cpu.ggml_backend_cpu_set_n_threads, None, p, c.c_int)(self.backend, threads)
        params = self.function(base.ggml_threadpool_params_default, PoolParams, c.c_int)(threads)
        params.poll = 100
        pool = self.function(cpu.ggml_threadpool_new, p, p)(c.byref(params))
        self.function(cpu.ggml_backend_cpu_set_threadpool, None, p, p)(self.backend, pool)
        self.plain = self.function(
            cpu.ggml_backend_cpu_buffer_type
            if hasattr(cpu, "ggml_backend_cpu_buffer_type")
            else base.ggml_backend_cpu_buffer_type,
            p,
        )()
        registry = self.function(cpu.ggml_backend_cpu_reg, p)()
        device = self.function(base.ggml_backend_reg_dev_get, p, p, size)(registry, 0)
        address = self.function(base.ggml_backend_reg_get_proc_address, p, p, c.c_char_p)(
            registry, b"ggml_backend_dev_get_extra_bufts"
        )
        extra = c.CFUNCTYPE(c.POINTER(p), p)(address)(device) if address else None
        self.extra = []
        while extra and extra[len(self.extra)]:
            self.extra.append(extra[len(self.extra)])
        self.name = self.function(base.ggml_backend_buft_name, c.c_char_p, p)
        self.has = {n: getattr(cpu, f"ggml_cpu_has_{n}")() for n in ("avx2", "avx512", "avx512_vnni", "amx_int8")}
        del front

    @staticmethod
    def function(function, result, *arguments):
        function.restype, function.argtypes = result, arguments
        return function

    def context(self):
        return self.init(InitParams(64 << 20, None, True))


def measure(ggml: Ggml, encoding: str, n: int, k: int, m: int, buffer_type) -> float:
    """Seconds per product."""
    number, elements, size = TYPES[encoding]
    row = k // elements * size
    copies = max(1, min(24, -(-(256 << 20) // (n * row)))) if m < 64 else 1
    values = (c.c_float * (64 * k))(*[((i * 7919) % 6007) / 3003.0 - 1.0 for i in range(64 * k)])
    some = (c.c_char * (64 * row))()
    ggml.quantize(number, values, some, 0, 64, k, None)
    data = bytes(some) * (-(-n // 64))
    weights = ggml.context()
    tensors = [ggml.new_2d(weights, number, k, n) for _ in range(copies)]
    kept = [ggml.alloc_as(weights, buffer_type)]
    for tensor in tensors:
        ggml.set(tensor, data, 0, n * row)
    context = ggml.context()
    x = ggml.new_2d(context, 0, k, m)
    graph = ggml.new_graph(context)
    for tensor in tensors:
        ggml.expand(graph, ggml.mul_mat(context, tensor, x))
    kept.append(ggml.alloc(context, ggml.backend))
    ggml.set(x, (c.c_float * (k * m))(*(list(values[:k]) * m)), 0, 4 * k * m)
    times = []
    ggml.compute(ggml.backend, graph)
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < 0.5:
        start = time.perf_counter()
        ggml.compute(ggml.backend, graph)
        times.append((time.perf_counter() - start) / copies)
    for buffer in kept:
        ggml.free_buffer(buffer)
    ggml.free(context)
    ggml.free(weights)
    return min(statistics.median(times[i::3]) for i in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--without", action="append", default=[], metavar="BUFFER_TYPE")
    parser.add_argument("encodings", nargs="*", default=["q4_0", "q4_k", "q6_k", "q8_0"])
    options = parser.parse_args()
    ggml = Ggml(options.library, options.threads)
    ggml.extra = [t for t in ggml.extra if ggml.name(t).decode() not in options.without]
    names = [ggml.name(t).decode() for t in ggml.extra]
    print(f"features {ggml.has}, extra buffer types {names}")
    for n, k in SHAPES:
        for encoding in options.encodings:
            for m in options.rows:
                best = {}
                for buffer_type in [ggml.plain, *ggml.extra]:
                    seconds = measure(ggml, encoding, n, k, m, buffer_type)
                    best[ggml.name(buffer_type).decode()] = seconds
                name, seconds = min(best.items(), key=lambda item: item[1])
                _, elements, size = TYPES[encoding]
                rate = n * k // elements * size / seconds / 1e9
                print(
                    f"{m}x{k} {n}x{k} {encoding}: {seconds * 1e6:.1f} us, {rate:.2f} GB/s, "
                    f"{2 * m * n * k / seconds / 1e9:.1f} GFLOP/s ({name})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
