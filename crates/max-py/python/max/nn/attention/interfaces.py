"""What attention layers of transformers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from max.graph import TensorValue
from max.nn.layer import Module

__all__ = ["DistributedAttentionImpl"]


class DistributedAttentionImpl(Module, ABC):
    """The base of attention over several devices: it takes and returns a tensor for each of them."""

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> list[TensorValue]:
        """The results, one for each device."""
