"""The formats of files of weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum

from max import _core

__all__ = ["WeightsFormat", "weights_format"]


class WeightsFormat(str, Enum):
    """A format of files of weights.

    >>> WeightsFormat("gguf") is WeightsFormat.gguf
    True
    """

    gguf = "gguf"
    """`.gguf`: models with all that is known about them, quantized for the most part."""
    safetensors = "safetensors"
    """`.safetensors`: tensors by name, in one file or several."""
    pytorch = "pytorch"
    """`.bin`, `.pt` or `.pth`: state dicts that `torch.save` wrote. Nothing in them is executed."""


def weights_format(weight_paths: Sequence[str | os.PathLike[str]]) -> WeightsFormat:
    """The format of files, which their names tell. All of them must have the same.

    >>> weights_format(["model-1.safetensors", "model-2.safetensors"])
    <WeightsFormat.safetensors: 'safetensors'>

    Args:
        weight_paths: The files. An index, such as `model.safetensors.index.json`, has the format of its files.

    Raises:
        ValueError: If there are no files, files of several formats, or names that tell no format.
    """
    return WeightsFormat(_core.weights_format(list(weight_paths)))
