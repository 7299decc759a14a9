"""Writes `vision.npz`: what PyTorch gives for transposed and three-dimensional convolutions and for reflections.

Run it with PyTorch installed: `python crates/max-py/tests/goldens/vision.py`.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

CASES = {
    "conv2d_transpose": [
        {"stride": s, "dilation": d, "padding": p, "output_padding": o, "kernel": k}
        for s, d, p, o, k in product(
            [(1, 1), (2, 2), (3, 2), (1, 4)],
            [(1, 1), (2, 3)],
            [(0, 0), (1, 2)],
            [(0, 0), (1, 0)],
            [(1, 2), (3, 3), (4, 5)],
        )
        if all(o[i] < max(s[i], d[i]) for i in (0, 1))
        and all(3 * s[i] - 2 * p[i] + d[i] * (k[i] - 1) + 1 + o[i] > 0 for i in (0, 1))
    ],
    "conv3d": [
        {"stride": s, "dilation": d, "padding": p, "groups": g}
        for s, d, p, g in product(
            [(1, 1, 1), (2, 1, 3)],
            [(1, 1, 1), (2, 1, 2)],
            [(0, 0, 0), (1, 2, 1)],
            [1, 2],
        )
    ],
    "pad": [{"padding": p, "mode": m} for p in [(1, 2, 0, 3), (3, 0, 2, 1)] for m in ["reflect", "replicate"]],
}


def main() -> None:
    torch.manual_seed(0)
    rounded = lambda *shape: (torch.randn(*shape) * 8).round() / 8
    arrays: list = []
    places = {}
    for name, cases in CASES.items():
        for i, case in enumerate(cases):
            if name == "conv2d_transpose":
                x, w, b = (
                    rounded(1, 2, 4, 4),
                    rounded(2, 3, *case["kernel"]),
                    rounded(3),
                )
                options = {k: case[k] for k in ("stride", "padding", "output_padding", "dilation")}
                y = F.conv_transpose2d(x, w, b, **options)
            elif name == "conv3d":
                x, w, b = (
                    rounded(1, 2, 5, 5, 6),
                    rounded(4, 2 // case["groups"], 3, 2, 3),
                    rounded(4),
                )
                y = F.conv3d(x, w, b, **case)
            else:
                x, w, b = rounded(1, 2, 4, 5), torch.zeros(0), torch.zeros(0)
                y = F.pad(x, case["padding"], mode=case["mode"])
            # The inputs are multiples of 1/8, so the sums are exact in float32.
            for part, value in zip("xwby", (x, w, b, y)):
                places[f"{name}.{i}.{part}"] = (sum(map(np.size, arrays)), list(value.shape))
                arrays.append(value.numpy().ravel())
    path = Path(__file__).with_suffix(".npz")
    np.savez_compressed(path, cases=json.dumps(CASES), places=json.dumps(places), values=np.concatenate(arrays))
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
