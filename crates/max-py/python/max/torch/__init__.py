"""Graphs and custom ops, called from PyTorch code.

The tensors are PyTorch's, on the CPU or a CUDA device, and their memory is used in place. PyTorch itself is not installed
with this package.

>>> import torch
>>> from max.graph import ops
>>> from max.torch import graph_op
>>> @graph_op
... def scaled_relu(x):
...     return ops.relu(x) * 2
>>> x = torch.tensor([-1.0, 0.5, 3.0])
>>> result = torch.empty_like(x)
>>> scaled_relu(result, x)
>>> result
tensor([0., 1., 6.])
"""

from __future__ import annotations

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    message = "max.torch needs PyTorch, which is not installed: pip install torch"
    raise ModuleNotFoundError(message, name="torch") from None

if not hasattr(_torch.Tag, "cudagraph_unsafe"):
    message = f"max.torch needs PyTorch 2.9 or newer, but {_torch.__version__} is installed: pip install -U torch"
    raise ImportError(message)

from max.torch.graph_ops import graph_op
from max.torch.library import CustomOpLibrary

__all__ = ["CustomOpLibrary", "graph_op"]
