"""Loading weights from files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from max.graph.weights.files import GGUFWeights, PytorchWeights, SafetensorWeights
from max.graph.weights.format import WeightsFormat, weights_format
from max.graph.weights.weights import Weights

__all__ = ["load_weights"]

_READERS = {
    WeightsFormat.gguf: GGUFWeights,
    WeightsFormat.pytorch: PytorchWeights,
    WeightsFormat.safetensors: SafetensorWeights,
}


def load_weights(paths: Sequence[str | os.PathLike[str]]) -> Weights:
    """Loads the weights of files.

    Files are mapped: loading takes no time, and a weight takes memory when it is used. So the files must not be written
    to meanwhile; another file may be renamed over them.

    Args:
        paths: The files, all of one format: `.safetensors`, `.gguf`, or `.bin`, `.pt` and `.pth` of PyTorch. An index,
            such as `model.safetensors.index.json`, stands for all files that it names.

    Raises:
        ValueError: If a file does not exist or is not what its name says, or the formats differ.
    """
    return _READERS[weights_format(paths)](paths)  # type: ignore[abstract,arg-type]
