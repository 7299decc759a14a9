"""PyTorch's side of the kernel benchmark: reads one request per line, and answers each with a line of JSON.

    {"threads": 2}                          how many threads to use; the answer has PyTorch's version
    {"work": "matmul", "operands": ...}     makes the operands of a kernel; the answer has the sum of its results
    {"seconds": 0.1}                        times every way to compute it; the answer has the median of each
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any, Callable

PERIOD = 6007

Function = Callable[[], Any]


def operand(torch: Any, dtype: Any, shape: list[int], seed: int) -> Any:
    """Made-up numbers between -1 and 1, the same as on the other side."""
    period = (torch.arange(seed, seed + PERIOD) * 7919 % PERIOD).to(torch.float64) / 3003.0 - 1.0
    count = 1
    for size in shape:
        count *= size
    return period.to(dtype).repeat(-(-count // PERIOD))[:count].reshape(shape).contiguous()


def products(torch: Any, row: dict[str, Any], x: Any, w: Any) -> dict[str, Function]:
    """A matmul; constant weights may also be stored as a linear layer stores them."""
    left = x.t() if row["left"] else x
    right = w.t() if row["right"] else w
    ways: dict[str, Function] = {"matmul": lambda: torch.matmul(left, right)}
    if row["constant"]:
        weight = right.t().contiguous()
        ways["linear"] = lambda: torch.nn.functional.linear(left, weight)
    return ways


def convolutions(torch: Any, row: dict[str, Any], x: Any, w: Any) -> dict[str, Function]:
    """The convolution with channels last and channels first."""
    options = {name: row[name] for name in ("stride", "padding", "groups")}
    image, taps = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)
    last = [t.contiguous(memory_format=torch.channels_last) for t in (image, taps)]
    first = [t.contiguous() for t in (image, taps)]
    conv = torch.nn.functional.conv2d
    return {"channels last": lambda: conv(*last, **options), "channels first": lambda: conv(*first, **options)}


def attentions(torch: Any, row: dict[str, Any], q: Any, k: Any, v: Any) -> dict[str, Function]:
    """Attention as one function, and op by op."""
    groups = q.shape[1] // k.shape[1]
    shared = groups > 1
    mask = torch.full((q.shape[2], k.shape[2]), -torch.inf, dtype=q.dtype).triu(1) if row["causal"] else None

    def by_ops() -> Any:
        query = q.unflatten(1, (-1, groups)) if shared else q
        key, value = (k.unsqueeze(2), v.unsqueeze(2)) if shared else (k, v)
        scores = query @ key.transpose(-1, -2) * q.shape[-1] ** -0.5
        return torch.softmax(scores if mask is None else scores + mask, -1) @ value

    whole = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": row["causal"], **({"enable_gqa": True} if shared else {})}
    return {"sdpa": lambda: whole(q, k, v, **options), "by ops": by_ops}


WORK = {"matmul": products, "conv": convolutions, "attention": attentions}


def prepare(torch: Any, row: dict[str, Any]) -> dict[str, list[Function]]:
    """Every way to compute a kernel, with one function per copy of the operands."""
    dtype = getattr(torch, row["dtype"])
    ways: dict[str, list[Function]] = {}
    for copy in range(row["copies"]):
        operands = [operand(torch, dtype, shape, copy + at) for at, shape in enumerate(row["operands"])]
        for name, function in WORK[row["work"]](torch, row, *operands).items():
            ways.setdefault(name, []).append(function)
    for function in (function for functions in ways.values() for function in functions):
        function()
    return ways


def median(functions: list[Function], seconds: float) -> float:
    """The median time of as many runs as fit in a time, at least one and at most ten thousand."""
    times: list[float] = []
    clock = time.perf_counter
    begin = clock()
    while not times or clock() - begin < seconds and len(times) < 10_000:
        function = functions[len(times) % len(functions)]
        start = clock()
        function()
        times.append(clock() - start)
    return statistics.median(times)


def main() -> None:
    """Answers until there are no more requests."""
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"error": f"cannot import PyTorch: {error}"}), flush=True)
        return
    ways: dict[str, list[Function]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with torch.inference_mode():
                if "threads" in request:
                    torch.set_num_threads(request["threads"])
                    answer: dict[str, Any] = {"version": torch.__version__}
                elif "work" in request:
                    ways.clear()
                    ways = prepare(torch, request)
                    first = next(iter(ways.values()))[0]
                    answer = {"sum": first().to(torch.float64).abs().sum().item()}
                else:
                    times = {name: median(functions, request["seconds"]) for name, functions in ways.items()}
                    answer = {"times": times}
        except Exception as error:  # the other side reports it with the row
            answer = {"error": f"{type(error).__name__}: {error}"}
        # Idle threads spin for a while; the other side's turn begins after that.
        time.sleep(0.01)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
