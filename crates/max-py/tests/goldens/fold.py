"""Writes `data/fold.json`: images that PyTorch folds from blocks. Run it with PyTorch installed."""

from __future__ import annotations

import json
from pathlib import Path

import torch

CASES = [
    ((2, 12, 12), {"output_size": (4, 5), "kernel_size": (2, 2)}),
    (
        (1, 6, 8),
        {"output_size": (5, 4), "kernel_size": (3, 2), "stride": (2, 1), "padding": 1},
    ),
    (
        (1, 18, 4),
        {
            "output_size": (6, 6),
            "kernel_size": (3, 3),
            "stride": 2,
            "dilation": 2,
            "padding": 1,
        },
    ),
    (
        (1, 3, 30),
        {
            "output_size": (4, 8),
            "kernel_size": (1, 3),
            "stride": (1, 1),
            "dilation": (3, 1),
            "padding": (0, 0),
        },
    ),
    (
        (1, 4, 4),
        {"output_size": (5, 5), "kernel_size": (2, 2), "stride": 3, "padding": (1, 0)},
    ),
]


def blocks_of(options: dict) -> int:
    pair = lambda sizes: sizes if isinstance(sizes, tuple) else (sizes, sizes)  # noqa: E731
    stride, dilation, padding = (
        pair(options.get(name, usual)) for name, usual in [("stride", 1), ("dilation", 1), ("padding", 0)]
    )
    count = 1
    for side in range(2):
        reach = dilation[side] * (options["kernel_size"][side] - 1) + 1
        count *= (options["output_size"][side] + 2 * padding[side] - reach) // stride[side] + 1
    return count


def main() -> None:
    cases = []
    for shape, options in CASES:
        shape = (*shape[:2], blocks_of(options))
        count = shape[0] * shape[1] * shape[2]
        blocks = (torch.arange(count) * 37 % 101 / 8).reshape(shape)
        image = torch.nn.functional.fold(blocks, **options)
        flat = lambda x: x.reshape(-1).tolist()  # noqa: E731
        cases.append(
            {
                "options": options,
                "shape": shape,
                "blocks": flat(blocks),
                "image": flat(image),
            }
        )
    path = Path(__file__).parent.parent / "data" / "fold.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
