"""Eager tensors: every op gives its result right away, with graphs running underneath.

>>> from max.experimental import functional as F
>>> from max.experimental.tensor import Tensor
>>> x = Tensor([[1.0, -2.0], [3.0, -4.0]])
>>> F.relu(x).sum(axis=0).to_numpy()
array([[4., 0.]], dtype=float32)

These names may still change.
"""

from __future__ import annotations

from max.experimental import functional as functional
from max.experimental import nn as nn
from max.experimental import random as random
from max.experimental import realization_context as realization_context
from max.experimental import tensor as tensor
