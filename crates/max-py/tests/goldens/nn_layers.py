"""Writes `nn_layers.npz`: what PyTorch gives for layers, in float32 and in bfloat16 (as bits).

Run it with PyTorch installed: `python crates/max-py/tests/goldens/nn_layers.py`.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}

LINEAR = [
    {"in_dim": 5, "out_dim": 7, "has_bias": True, "x": [3, 5]},
    {"in_dim": 33, "out_dim": 17, "has_bias": False, "x": [2, 3, 33]},
    {"in_dim": 1, "out_dim": 1, "has_bias": True, "x": [1, 1]},
    {"in_dim": 6, "out_dim": 3, "has_bias": True, "clip_weight": 0.5, "x": [4, 6]},
]
MLP = [{"activation_function": name, "has_bias": name in ("silu", "relu")} for name in ACTIVATIONS]
LAYER_NORM = [{"use_bias": bias, "eps": eps} for bias in (True, False) for eps in (1e-5, 0.1)]
RMS_NORM = [{"weight_offset": o, "multiply_before_cast": m} for o, m in product([0.0, 1.0], [True, False])]
GROUP_NORM = [
    {"num_groups": g, "affine": a, "x": x} for g, a in product([1, 3], [True, False]) for x in ([2, 6, 4, 5], [2, 6, 3])
]
CONV = [
    [{"stride": s, "padding": p, "dilation": d, "num_groups": g, "has_bias": b} for s, p, d, g, b in rows]
    for rows in (
        [(1, 0, 1, 1, False), (2, 1, 1, 2, True), (3, 2, 2, 1, True)],
        [
            ([1, 1], [0, 0, 0, 0], [1, 1], 1, False),
            ([2, 1], [1, 1, 2, 2], [1, 2], 2, True),
            ([1, 3], [0, 2, 1, 0], [2, 1], 1, True),
        ],
        [
            ([1, 1, 1], [0] * 6, [1, 1, 1], 1, False),
            ([2, 1, 3], [1, 1, 2, 2, 1, 1], [2, 1, 1], 2, True),
        ],
    )
]
MOE = [{"has_shared_experts": s, "apply_router_weight_first": f} for s, f in product([False, True], [False, True])]


def eighths(*shape: int) -> torch.Tensor:
    """Multiples of 1/8, which both dtypes hold exactly."""
    return (torch.randn(*shape) * 8).round() / 8


def linear(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    w = {"weight": eighths(case["out_dim"], case["in_dim"])}
    if case["has_bias"]:
        w["bias"] = eighths(case["out_dim"])
    bound = case.get("clip_weight", float("inf"))
    w["x"] = eighths(*case["x"])
    return w, lambda x, weight, bias=None: F.linear(x, weight.clamp(-bound, bound), bias)


def perceptron(
    x: torch.Tensor, w: Tensors, prefix: str = "", act: Callable[[torch.Tensor], torch.Tensor] = F.silu
) -> torch.Tensor:
    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, w[f"{prefix}{name}.weight"], w.get(f"{prefix}{name}.bias"))

    return layer(act(layer(x, "gate_proj")) * layer(x, "up_proj"), "down_proj")


def mlp(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    w = {}
    for name, sizes in [("gate_proj", (11, 5)), ("up_proj", (11, 5)), ("down_proj", (5, 11))]:
        w[f"{name}.weight"] = eighths(*sizes)
        if case["has_bias"]:
            w[f"{name}.bias"] = eighths(sizes[0])
    w["x"] = eighths(3, 5)
    return w, lambda x, **w: perceptron(x, w, act=ACTIVATIONS[case["activation_function"]])


def layer_norm(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    w = {"weight": eighths(7), "x": eighths(2, 3, 7)}
    if case["use_bias"]:
        w["bias"] = eighths(7)
    return w, lambda x, weight, bias=None: F.layer_norm(x, [7], weight, bias, case["eps"])


def rms_norm(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        scale = weight + case["weight_offset"]
        return (wide * scale.float()).to(x.dtype) if case["multiply_before_cast"] else wide.to(x.dtype) * scale

    return {"weight": eighths(9), "x": eighths(2, 3, 9)}, norm


def group_norm(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    w = {"weight": eighths(6), "bias": eighths(6)} if case["affine"] else {}
    w["x"] = eighths(*case["x"])
    return w, lambda x, weight=None, bias=None: F.group_norm(x, case["num_groups"], weight, bias)


def conv(axes: int) -> Callable[[dict[str, Any]], tuple[Tensors, Callable[..., torch.Tensor]]]:
    def make(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
        groups = case["num_groups"]
        w = {"weight": eighths(6, 4 // groups, *[3, 2, 3][:axes]), "x": eighths(2, 4, *[6, 7, 8][-axes:])}
        if case["has_bias"]:
            w["bias"] = eighths(6)
        padding = case["padding"] if axes > 1 else [case["padding"]] * 2
        sides = [side for pair in reversed(list(zip(padding[0::2], padding[1::2]))) for side in pair]
        convolve = [F.conv1d, F.conv2d, F.conv3d][axes - 1]
        options = {"stride": case["stride"], "dilation": case["dilation"], "groups": groups}
        return w, lambda x, weight, bias=None: convolve(F.pad(x, sides), weight, bias, **options)

    return make


def moe(case: dict[str, Any]) -> tuple[Tensors, Callable[..., torch.Tensor]]:
    sizes = {"gate_proj": (10, 6), "up_proj": (10, 6), "down_proj": (6, 10)}
    w = {f"experts.{e}.{name}.weight": eighths(*shape) / 2 for e in range(5) for name, shape in sizes.items()}
    if case["has_shared_experts"]:
        w |= {f"shared_experts.{name}.weight": eighths(*shape) for name, shape in sizes.items()}
    w["gate.gate_score.weight"] = torch.randn(5, 6).bfloat16().float()
    w["x"] = eighths(7, 6)

    def mixture(x: torch.Tensor, **w: torch.Tensor) -> torch.Tensor:
        scores, experts = F.linear(x, w["gate.gate_score.weight"]).topk(2)
        rows = []
        for token, own, numbers in zip(x, scores, experts):
            total = torch.zeros(6)
            for score, expert in zip(own, numbers.tolist()):
                first = case["apply_router_weight_first"]
                y = perceptron(token * score if first else token, w, f"experts.{expert}.")
                total += y.float() if first else y.float() * score.float()
            rows.append(total.to(x.dtype))
        y = torch.stack(rows)
        return y + perceptron(x, w, "shared_experts.") if case["has_shared_experts"] else y

    return w, mixture


LAYERS = {
    "Linear": (LINEAR, linear),
    "MLP": (MLP, mlp),
    "LayerNorm": (LAYER_NORM, layer_norm),
    "RMSNorm": (RMS_NORM, rms_norm),
    "GroupNorm": (GROUP_NORM, group_norm),
    "Conv1D": (CONV[0], conv(1)),
    "Conv2d": (CONV[1], conv(2)),
    "Conv3D": (CONV[2], conv(3)),
    "MoE": (MOE, moe),
}


def main() -> None:
    torch.manual_seed(0)
    arrays: dict[str, list[np.ndarray]] = {"float32": [], "bfloat16": []}
    places: dict[str, Any] = {}

    def store(key: str, dtype: str, value: torch.Tensor) -> None:
        places[key] = (dtype, sum(map(np.size, arrays[dtype])), list(value.shape))
        flat = value.contiguous().ravel()
        arrays[dtype].append((flat.view(torch.uint16) if dtype == "bfloat16" else flat).numpy())

    for name, (cases, make) in LAYERS.items():
        for i, case in enumerate(cases):
            tensors, layer = make(case)
            for part, value in tensors.items():
                store(f"{name}.{i}.{part}", "float32", value)
            for dtype in arrays:
                given = {part: value.to(getattr(torch, dtype)) for part, value in tensors.items()}
                store(f"{name}.{i}.{dtype}", dtype, layer(**given))
    path = Path(__file__).with_suffix(".npz")
    cases = {name: cases for name, (cases, _) in LAYERS.items()}
    values = {dtype: np.concatenate(parts) for dtype, parts in arrays.items()}
    np.savez_compressed(path, cases=json.dumps(cases), places=json.dumps(places), **values)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
