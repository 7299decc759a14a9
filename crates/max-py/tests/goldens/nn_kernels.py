"""Writes `nn_kernels.npz`: what PyTorch gives for attention with masks, windows, lengths and shared heads.

Run it with PyTorch installed: `python crates/max-py/tests/goldens/nn_kernels.py`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

MASKS = [("null", -1), ("causal", -1), ("causal_alibi", -1), ("chunked_causal", 4), ("sliding_window_causal", 3)]

# Batch, tokens, heads, key heads, depth.
SIZES = [(2, 9, 4, 4, 8), (1, 13, 6, 2, 5), (3, 1, 2, 1, 3), (1, 33, 3, 3, 16)]

CASES = [
    {"size": size, "mask": mask, "window": window, "lengths": lengths}
    for size in SIZES
    for mask, window in MASKS
    for lengths in ([None] if size[0] == 1 else [None, [1, 6, 0][: size[0]]])
]


def slopes(heads: int) -> list[float]:
    """The slopes of ALiBi as its authors give them."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return own if power == heads else own + slopes(2 * power)[0::2][: heads - power]


def bias(case: dict) -> torch.Tensor:
    """What is added to the scores, `[batch, heads, tokens, tokens]`."""
    batch, tokens, heads, _, _ = case["size"]
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    mask, window = case["mask"], case["window"]
    seen = torch.ones(tokens, tokens, dtype=torch.bool) if mask == "null" else key <= query
    if mask == "chunked_causal":
        seen = seen & (key // window == query // window)
    if mask == "sliding_window_causal":
        seen = seen & (query - key < window)
    seen = seen.expand(batch, heads, -1, -1)
    if case["lengths"] is not None:
        lengths = torch.tensor(case["lengths"])[:, None, None, None]
        seen = seen & (key < lengths)
    added = torch.zeros(heads, tokens, tokens)
    if mask == "causal_alibi":
        added = torch.tensor(slopes(heads))[:, None, None] * (key - query)
    return torch.where(seen, added, -torch.inf)


def draw(i: int, case: dict) -> list[np.ndarray]:
    """The queries, keys and values of a case: few digits, which bfloat16 holds."""
    batch, tokens, heads, key_heads, depth = case["size"]
    rng = np.random.default_rng(i)
    shapes = [(batch, tokens, h, depth) for h in (heads, key_heads, key_heads)]
    return [(rng.integers(-32, 33, shape) / 16).astype(np.float32) for shape in shapes]


def main() -> None:
    values: list = []
    for i, case in enumerate(CASES):
        operands = [torch.from_numpy(x).transpose(1, 2) for x in draw(i, case)]
        y = F.scaled_dot_product_attention(*operands, attn_mask=bias(case), scale=0.3, enable_gqa=True).transpose(1, 2)
        if case["lengths"] is not None:
            inside = torch.arange(y.shape[1])[None, :] < torch.tensor(case["lengths"])[:, None]
            y = torch.where(inside[..., None, None], y, 0)
        values.append(y.numpy().ravel())
    path = Path(__file__).with_suffix(".npz")
    np.savez_compressed(path, cases=json.dumps(CASES), values=np.concatenate(values))
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
