"""Layers that are called one after the other."""

from __future__ import annotations

from max.nn.layer import LayerList

__all__ = ["Sequential"]


class Sequential(LayerList):
    """Layers of which each is called with the outputs of the one before.

    >>> from max.nn.layer import Module
    >>> class Add(Module):
    ...     def __init__(self, number):
    ...         self.number = number
    ...     def __call__(self, x):
    ...         return x + self.number
    >>> Sequential([Add(1), Add(2)])(3)
    6

    Args:
        layers: The layers.
    """
