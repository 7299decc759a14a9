"""Rotary position embeddings: pairs of elements of each head, turned by angles that grow with the position.

>>> from max.dtype import DType
>>> from max.graph import DeviceRef, Graph, TensorType
>>> rope = RotaryEmbedding(dim=64, n_heads=4, theta=10000.0, max_seq_len=512, device=DeviceRef.CPU())
>>> with Graph("rope", input_types=[TensorType(DType.float32, ["batch", "sequence", 4, 16])]) as graph:
...     rope(graph.inputs[0]).shape, rope.freqs_cis.shape
([Dim('batch'), Dim('sequence'), Dim(4), Dim(16)], [Dim(1024), Dim(16)])
>>> rope.compute_scale()
0.25

A table of cosines and sines takes no memory in a graph: the rows that are used are computed there.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from max import _core
from max.graph import DeviceRef, Dim, DimLike, TensorValue, TensorValueLike, ops
from max.graph.value import call
from max.nn.layer import Module

__all__ = [
    "DeepseekYarnRopeScalingParams",
    "DeepseekYarnRotaryEmbedding",
    "DynamicRotaryEmbedding",
    "LinearScalingParams",
    "Llama3RopeScalingParams",
    "Llama3RotaryEmbedding",
    "LongRoPERotaryEmbedding",
    "LongRoPEScalingParams",
    "RotaryEmbedding",
    "YarnRotaryEmbedding",
    "YarnScalingParams",
]


class _Scaling:
    """A scaling of frequencies: the native module gets its name and its fields."""

    _name: ClassVar[str]

    def _fields(self) -> list[Any]:
        return [self._name, *astuple(self)]  # type: ignore[call-overload]


@dataclass
class LinearScalingParams(_Scaling):
    """All frequencies divided by one factor; `Llama3RotaryEmbedding` takes it as `scaling_params`."""

    _name: ClassVar[str] = "linear"

    factor: float
    """What frequencies are divided by."""


@dataclass
class Llama3RopeScalingParams(_Scaling):
    """Low frequencies divided by a factor, high ones as they are, those between by something in between."""

    _name: ClassVar[str] = "llama3"

    factor: float
    """What low frequencies are divided by."""
    low_freq_factor: float
    """Frequencies with fewer turns than this in the original context are low."""
    high_freq_factor: float
    """Frequencies with more turns than this in the original context are high."""
    orig_max_position: int
    """The length of the original context."""


@dataclass
class YarnScalingParams(_Scaling):
    """YaRN: low frequencies divided by a factor, high ones as they are, with a ramp in between."""

    _name: ClassVar[str] = "yarn"

    factor: float
    """What low frequencies are divided by."""
    beta_fast: float
    """Frequencies with more turns than this in the original context are high."""
    beta_slow: float
    """Frequencies with fewer turns than this in the original context are low."""
    original_max_position_embeddings: int
    """The length of the original context."""
    truncate: bool
    """Whether the ramp starts and ends at whole numbers of frequencies."""


@dataclass
class DeepseekYarnRopeScalingParams(_Scaling):
    """YaRN as DeepSeek's models have it, with attention scores scaled as well."""

    _name: ClassVar[str] = "deepseek_yarn"

    scaling_factor: float
    """What low frequencies are divided by."""
    original_max_position_embeddings: int
    """The length of the original context."""
    beta_fast: int
    """Frequencies with more turns than this in the original context are high."""
    beta_slow: int
    """Frequencies with fewer turns than this in the original context are low."""
    mscale: float
    """How much cosines and sines grow with the factor."""
    mscale_all_dim: float
    """How much attention scores grow with the factor, instead of cosines and sines."""


@dataclass
class LongRoPEScalingParams(_Scaling):
    """Each frequency divided by a factor of its own, of which there are two lists, as in Phi-3.5."""

    _name: ClassVar[str] = "longrope"

    short_factor: list[float]
    """The factors of positions within the original context."""
    long_factor: list[float]
    """The factors of positions beyond it."""
    original_max_position: int
    """The length of the original context."""
    max_position_embeddings: int
    """The length of the context that the model is made for."""


class RotaryEmbedding(Module):
    """Turns pairs of elements of each head by angles that depend on the position.

    Args:
        dim: The size of the hidden state.
        n_heads: The number of heads.
        theta: The base of the frequencies.
        max_seq_len: The length of the longest sequence.
        device: Where the angles are computed.
        head_dim: The size of a head; `dim // n_heads`, if it is not given.
        _freqs_cis: Another table of cosines and sines, `[rows, head_dim / 2, 2]` or `[rows, head_dim]`.
        interleaved: Whether pairs are neighbours, rather than an element of the first half and one of the second.
    """

    dim: int
    """The size of the hidden state."""
    n_heads: int
    """The number of heads."""
    theta: float
    """The base of the frequencies."""
    max_seq_len: int
    """The length of the longest sequence."""
    head_dim: int
    """The size of a head."""
    device: DeviceRef
    """Where the angles are computed."""
    interleaved: bool = True
    """Whether pairs are neighbours, rather than an element of the first half and one of the second."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        device: DeviceRef,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
    ) -> None:
        super().__init__()
        if head_dim is None and n_heads < 1:
            raise ValueError(f"the number of heads of a rotary embedding must be positive; got {n_heads}")
        self.dim = dim
        self.n_heads = n_heads
        self.theta = theta
        self.max_seq_len = max_seq_len
        self.head_dim = dim // n_heads if head_dim is None else head_dim
        self.device = device
        self.interleaved = interleaved
        self._freqs_cis = _freqs_cis

    def freqs_cis_base(self) -> TensorValue:
        """The cosines and sines of all angles, `[max_seq_len * 2, head_dim / 2, 2]`."""
        if self._freqs_cis is None:
            return self._table(self.max_seq_len * 2)
        table = ops.transfer_to(TensorValue(self._freqs_cis), self.device)
        if table.rank == 3:
            return table
        if table.rank != 2:
            raise ValueError(f"_freqs_cis must be [rows, head_dim / 2, 2] or [rows, head_dim]; got {table.shape}")
        return ops.reshape(table, [table.shape[0], table.shape[1] // 2, 2])

    @property
    def freqs_cis(self) -> TensorValue:
        """The cosines and sines of all angles, `[max_seq_len * 2, head_dim]`, each cosine before its sine."""
        table = self.freqs_cis_base()
        return ops.reshape(table, [table.shape[0], table.shape[1] * 2])

    def compute_scale(self, user_scale: float | None = None) -> float:
        """What attention scores are multiplied by: `1 / sqrt(head_dim)`, times what the scaling of frequencies needs.

        Args:
            user_scale: A number instead of `1 / sqrt(head_dim)`.
        """
        scale = 1 / self.head_dim**0.5 if user_scale is None else user_scale
        return scale * _core.rope_scale_factor(self._scaling(), self._rotary_dim(), self.theta)

    def __call__(
        self,
        x: TensorValueLike,
        start_pos: DimLike | TensorValueLike | None = None,
        seq_len: DimLike | None = None,
    ) -> TensorValue:
        """The turned input, with its dtype; the angles are applied in float32.

        Args:
            x: `[batch, sequence, heads, head_dim]`. If the table is for fewer elements, the others stay as they are.
            start_pos: The position at which the sequence starts, 0 if it is not given; or a tensor with the position of
                each element, `[sequence]` or `[batch, sequence]`.
            seq_len: The length of the sequence, if that is better known than from `x`.
        """
        x = TensorValue(x)
        if seq_len is not None and x.rank >= 3:
            shape = [*x.shape[:-3], Dim(seq_len), *x.shape[-2:]]
            x = ops.rebind(x, shape, "the seq_len of a rotary embedding")
        return call("rope", x, self.freqs_cis_base(), start_pos, self.interleaved)

    def _scaling(self) -> list[Any]:
        """How frequencies are scaled."""
        return ["none"]

    def _rotary_dim(self) -> int:
        """How many elements of a head are turned."""
        return self.head_dim

    def _table(self, rows: int, sequence: Any = None) -> TensorValue:
        return call("rope_table", self._scaling(), self._rotary_dim(), self.theta, rows, self.device, sequence)


class DynamicRotaryEmbedding(RotaryEmbedding):
    """A rotary embedding whose base grows with the length of the sequence, once that exceeds `max_seq_len`.

    >>> rope = DynamicRotaryEmbedding(64, 4, 10000.0, max_seq_len=512, device=DeviceRef.CPU())
    >>> rope.maybe_update_freqs(range(1000))
    >>> rope.max_seq_len_cached
    1000
    >>> rope.maybe_update_freqs(range(10))
    >>> rope.max_seq_len_cached
    512
    """

    max_seq_len_cached: int
    """The length of the sequence that the frequencies are for."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        device: DeviceRef,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
    ) -> None:
        super().__init__(dim, n_heads, theta, max_seq_len, device, head_dim, _freqs_cis, interleaved)
        self.max_seq_len_cached = max_seq_len
        self._length: TensorValue | None = None

    def freqs_cis_base(self) -> TensorValue:
        """The cosines and sines of all angles, for the current length of the sequence."""
        if self._freqs_cis is not None:
            return super().freqs_cis_base()
        length = self.max_seq_len_cached if self._length is None else self._length
        return self._table(self.max_seq_len_cached * 2, length)

    def maybe_update_freqs(self, position_ids: TensorValueLike) -> None:
        """Sets the frequencies for a sequence with these positions.

        Those of numbers and arrays stay until the sequence is longer, or shorter than `max_seq_len` again. Those of a
        value of a graph are computed in the graph.

        Args:
            position_ids: Positions, in any shape.
        """
        import numpy as np

        self._length = None
        if isinstance(position_ids, (int, list, tuple, range, np.ndarray, np.integer)):
            length = int(np.max(np.asarray(position_ids), initial=-1)) + 1
            if length > self.max_seq_len_cached:
                self.max_seq_len_cached = length
            elif length < self.max_seq_len:
                self.max_seq_len_cached = self.max_seq_len
        else:
            positions = ops.reshape(TensorValue(position_ids), [-1])
            self._length = ops.reshape(ops.max(positions, axis=0), []) + 1

    def _scaling(self) -> list[Any]:
        return ["dynamic", 1.0, self.max_seq_len]


class _ScaledRotaryEmbedding(RotaryEmbedding):
    """A rotary embedding with scaled frequencies."""

    scaling_params: _Scaling | None = None

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        device: DeviceRef,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
        scaling_params: Any = None,
    ) -> None:
        super().__init__(dim, n_heads, theta, max_seq_len, device, head_dim, _freqs_cis, interleaved)
        if scaling_params is not None and not isinstance(scaling_params, _Scaling):
            raise TypeError(f"scaling_params must be parameters of a scaling; got {type(scaling_params).__name__}")
        self.scaling_params = scaling_params

    def _scaling(self) -> list[Any]:
        return ["none"] if self.scaling_params is None else self.scaling_params._fields()


class Llama3RotaryEmbedding(_ScaledRotaryEmbedding):
    """A rotary embedding with frequencies scaled as in Llama 3, or all by one factor.

    >>> params = Llama3RopeScalingParams(8.0, low_freq_factor=1.0, high_freq_factor=4.0, orig_max_position=8192)
    >>> rope = Llama3RotaryEmbedding(4096, 32, 500000.0, 131072, DeviceRef.CPU(), scaling_params=params)
    """

    scaling_params: Llama3RopeScalingParams | LinearScalingParams | None = None
    """How frequencies are scaled, if they are."""


class YarnRotaryEmbedding(_ScaledRotaryEmbedding):
    """A rotary embedding with frequencies scaled by YaRN, and cosines and sines by `0.1 * log(factor) + 1`."""

    scaling_params: YarnScalingParams | None = None
    """How frequencies are scaled, if they are."""


class LongRoPERotaryEmbedding(_ScaledRotaryEmbedding):
    """A rotary embedding with frequencies scaled by LongRoPE, as in Phi-3.5.

    Positions up to `original_max_position` have the short factors, those after it the long ones. Cosines and sines are
    multiplied by `sqrt(1 + log(s) / log(original_max_position))`, where `s`, more than 1, is how much longer the
    context is. Scores of turned queries and keys are thereby adjusted, so `compute_scale` adds no factor of its own.
    """

    scaling_params: LongRoPEScalingParams | None = None
    """How frequencies are scaled, if they are."""


class DeepseekYarnRotaryEmbedding(_ScaledRotaryEmbedding):
    """A rotary embedding with frequencies and attention scores scaled by YaRN, as in DeepSeek's models.

    `dim` is the number of elements of each head that are turned, and also what `head_dim` is if it is not given.

    >>> params = DeepseekYarnRopeScalingParams(40.0, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
    >>> rope = DeepseekYarnRotaryEmbedding(64, 128, 10000.0, 163840, DeviceRef.CPU(), scaling_params=params)
    >>> round(rope.compute_scale(192**-0.5), 4)
    0.1352
    """

    scaling_params: DeepseekYarnRopeScalingParams | None = None
    """How frequencies are scaled, if they are."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        theta: float,
        max_seq_len: int,
        device: DeviceRef,
        head_dim: int | None = None,
        _freqs_cis: TensorValueLike | None = None,
        interleaved: bool = True,
        scaling_params: DeepseekYarnRopeScalingParams | None = None,
    ) -> None:
        head_dim = dim if head_dim is None else head_dim
        super().__init__(
            dim, n_heads, theta, max_seq_len, device, head_dim, _freqs_cis, interleaved, scaling_params
        )

    def freqs_cis_base(self) -> TensorValue:
        """The cosines and sines of all angles, `[max_seq_len, dim / 2, 2]`."""
        return super().freqs_cis_base() if self._freqs_cis is not None else self._table(self.max_seq_len)

    def _rotary_dim(self) -> int:
        return self.dim
