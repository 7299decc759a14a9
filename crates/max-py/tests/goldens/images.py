"""What PyTorch gives for pooling and resizing. Run with PyTorch to write `data/images.npz` anew."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).resolve().parents[1] / "data" / "images.npz"

POOLS: list[dict[str, Any]] = [
    # Every remainder of the stride, with and without room for a last window.
    *(
        {
            "size": (size, 3),
            "kernel": (kernel, 2),
            "stride": stride,
            "padding": padding,
            "ceil": ceil,
        }
        for size, (kernel, padding), stride, ceil in product((5, 6, 7, 8), ((2, 0), (3, 1)), (2, 3, 4), (False, True))
    ),
    {
        "size": (6, 6),
        "kernel": (3, 2),
        "stride": (2, 1),
        "padding": (1, 0),
        "ceil": False,
    },
    {"size": (9, 8), "kernel": (4, 4), "stride": 1, "padding": 2, "ceil": False},
    {"size": (1, 1), "kernel": (1, 1), "stride": 1, "padding": 0, "ceil": True},
]
DILATED: list[dict[str, Any]] = [
    {
        "size": (9, 8),
        "kernel": (3, 2),
        "stride": stride,
        "padding": 1,
        "ceil": ceil,
        "dilation": (2, 3),
    }
    for stride, ceil in product((1, 2, 3), (False, True))
]
RESIZES = [
    ((5, 7), (10, 14)),
    ((5, 7), (9, 4)),
    ((8, 6), (3, 13)),
    ((7, 9), (1, 1)),
    ((1, 3), (4, 1)),
    ((4, 4), (4, 9)),
]
MODES = [
    "nearest",
    "nearest-exact",
    "bilinear",
    "bilinear-corners",
    "bilinear-antialias",
    "bicubic",
]


def image(height: int, width: int) -> np.ndarray:
    """A batch of images: batch, channels, height, width."""
    return np.random.default_rng(height * 100 + width).standard_normal((1, 2, height, width)).astype(np.float32)


def keys() -> list[tuple[str, dict[str, Any]]]:
    """A name and what it was made with, for each result."""
    found: list[tuple[str, dict[str, Any]]] = []
    for number, pool in enumerate(POOLS + DILATED):
        found.append((f"max{number}", pool))
        if "dilation" not in pool:
            found.extend((f"avg{number}-{counted}", {**pool, "counted": counted}) for counted in (False, True))
    for mode, (number, (size, to)) in product(MODES, enumerate(RESIZES)):
        found.append((f"{mode}{number}", {"mode": mode, "size": size, "to": to}))
    return found


def main() -> None:
    import torch
    from torch.nn import functional

    results = {}
    for name, case in keys():
        x = torch.from_numpy(image(*case["size"]))
        if "to" in case:
            mode, _, kind = case["mode"].partition("-")
            if case["mode"] == "nearest-exact":
                mode, kind = case["mode"], ""
            options = {} if mode.startswith("nearest") else {"align_corners": kind == "corners"}
            y = functional.interpolate(x, case["to"], mode=mode, antialias=kind == "antialias", **options)
        elif name.startswith("max"):
            move = (
                case["kernel"],
                case["stride"],
                case["padding"],
                case.get("dilation", 1),
            )
            y = functional.max_pool2d(x, *move, ceil_mode=case["ceil"])
        else:
            move = (case["kernel"], case["stride"], case["padding"])
            y = functional.avg_pool2d(x, *move, ceil_mode=case["ceil"], count_include_pad=case["counted"])
        results[name] = y.numpy()
    shapes = np.array([result.shape for result in results.values()], dtype=np.int32)
    values = np.concatenate([result.ravel() for result in results.values()])
    np.savez_compressed(FILE, names=np.array(list(results)), shapes=shapes, values=values)


def load() -> dict[str, np.ndarray]:
    """Every result by its name."""
    with np.load(FILE) as file:
        names, shapes, values = file["names"], file["shapes"], file["values"]
    ends = np.cumsum(shapes.prod(axis=1))
    parts = np.split(values, ends[:-1])
    return {str(name): part.reshape(shape) for name, shape, part in zip(names, shapes, parts)}


if __name__ == "__main__":
    main()
