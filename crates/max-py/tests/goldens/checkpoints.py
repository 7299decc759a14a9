"""Writes checkpoints of PyTorch for `test_weights_files.py`, and what PyTorch reads from them.

Run it with PyTorch and NumPy installed: `python crates/max-py/tests/goldens/checkpoints.py` writes `checkpoints/`.
"""

from __future__ import annotations

import shutil
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent / "checkpoints"

# Dtypes whose elements NumPy lacks are kept as the bits of an integer of the same size.
BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
    torch.float8_e4m3fnuz: torch.int8,
    torch.float8_e5m2fnuz: torch.int8,
}

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    *list(BITS)[1:],
]


def of_modules() -> dict[str, torch.Tensor]:
    """The state dict of a model: an ordered dict with attributes."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        OrderedDict(
            embedding=torch.nn.Embedding(5, 4),
            norm=torch.nn.BatchNorm1d(4),
            head=torch.nn.Linear(4, 3),
        )
    )
    return model.state_dict()


def of_dtypes() -> dict[str, torch.Tensor]:
    """A tensor of each dtype."""
    values = torch.tensor([[0.0, 1.0, 2.5], [3.0, 0.0, 100.0]])
    return {str(dtype).removeprefix("torch."): values.to(dtype) for dtype in DTYPES}


def of_views() -> dict[str, torch.Tensor]:
    """Tensors that share a storage and select from it in all ways."""
    whole = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    return {
        "whole": whole,
        "again": whole,
        "slice": whole[1, 1:],
        "column": whole[:, :, 1],
        "turned": whole.permute(2, 0, 1),
        "steps": whole[:, ::2, 1::2],
        "repeated": torch.tensor([7.0]).expand(2, 3),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }


def of_training() -> dict[str, object]:
    """What training saves: dicts in dicts, and much that is no tensor."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "loss": 0.25,
        "big": 1 << 100,
        "note": "größer",
        "flags": (True, None, b"bytes"),
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }


def tensors(value: object, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors, by the keys that lead to them."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, torch.Size):
        return {}
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    found: dict[str, torch.Tensor] = {}
    for key, item in entries:
        found |= tensors(item, f"{name}.{key}" if name else str(key))
    return found


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for maker in (of_modules, of_dtypes, of_views, of_training):
        name = maker.__name__.removeprefix("of_")
        state = maker()
        torch.save(state, FOLDER / f"{name}.pt")
        torch.save(state, FOLDER / f"{name}-4.bin", pickle_protocol=4)
        arrays = {}
        for key, tensor in tensors(torch.load(FOLDER / f"{name}.pt", weights_only=True)).items():
            tensor = tensor.detach()
            arrays[key] = tensor.view(BITS[tensor.dtype]).numpy() if tensor.dtype in BITS else tensor.numpy()
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    old = FOLDER / "old.pth"
    torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    sys.stdout.write(f"written by PyTorch {torch.__version__}\n")


if __name__ == "__main__":
    main()
