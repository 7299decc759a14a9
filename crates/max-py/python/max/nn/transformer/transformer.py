"""Blocks of transformers on one device."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from max.graph import TensorValue
from max.nn.layer import Module

__all__ = ["ReturnLogits", "TransformerBlock"]


class ReturnLogits(str, Enum):
    """The tokens whose logits a model returns."""

    LAST_TOKEN = "last_token"
    """The last of each sequence."""
    VARIABLE = "variable"
    """The last ones of each sequence, as many as an input says."""
    ALL = "all"
    """All of them."""


class TransformerBlock(Module):
    """Attention and an MLP, each of which is added to its normalized input.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> block = TransformerBlock(ops.relu, ops.silu, ops.softmax, ops.softmax)
    >>> with Graph("block", input_types=[TensorType(DType.float32, ["n", 4])]) as graph:
    ...     block(graph.inputs[0]).shape
    [Dim('n'), Dim(4)]

    The names of the parts in a state dict are `self_attn`, `mlp`, `input_layernorm` and `post_attention_layernorm`.

    Args:
        attention: What is called with the normalized input and all other arguments of the block.
        mlp: What is called with the normalized result of that.
        attention_norm: What normalizes the input of the attention.
        mlp_norm: What normalizes the input of the MLP.
        residual_multiplier: What the results of attention and MLP are multiplied by before they are added.
    """

    def __init__(
        self,
        attention: Callable[..., TensorValue],
        mlp: Callable[[TensorValue], TensorValue],
        attention_norm: Callable[[TensorValue], TensorValue],
        mlp_norm: Callable[[TensorValue], TensorValue],
        residual_multiplier: float = 1.0,
    ) -> None:
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = attention_norm
        self.post_attention_layernorm = mlp_norm
        self.residual_multiplier = residual_multiplier

    def __call__(self, *args: Any, **kwargs: Any) -> TensorValue:
        """Runs the block.

        An attention with a cache is called as `block(layer_idx, x, kv_collection, freqs_cis, input_row_offsets)`, one
        without as `block(x)`; both pass on whatever else there is.

        Args:
            *args: The number of the layer, a scalar, if the attention takes one; the input `x`; further arguments.
            **kwargs: Keyword arguments of the attention, or some of these.
        """
        head, x, rest = _arguments(args, kwargs, "x", _is_scalar)
        x = x + self._scaled(self.self_attn(*head, self.input_layernorm(x), *rest, **kwargs))
        result: TensorValue = x + self._scaled(self.mlp(self.post_attention_layernorm(x)))
        return result

    def _scaled(self, x: TensorValue) -> TensorValue:
        return x if self.residual_multiplier == 1.0 else x * self.residual_multiplier


def _is_scalar(value: Any) -> bool:
    return getattr(value, "rank", 0) == 0


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str, is_layer_idx: Callable[[Any], bool]
) -> tuple[list[Any], Any, tuple[Any, ...]]:
    """What comes before the input of a block, the input, and what comes after it."""
    head, rest = [], args
    if "layer_idx" in kwargs:
        head = [kwargs.pop("layer_idx")]
    elif rest and is_layer_idx(rest[0]):
        head, rest = [rest[0]], rest[1:]
    if name in kwargs:
        return head, kwargs.pop(name), rest
    if not rest:
        raise TypeError(f"a transformer block takes an input '{name}'")
    return head, rest[0], rest[1:]
