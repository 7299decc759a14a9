"""The inverse Fourier transform of the spectra of real signals."""

from __future__ import annotations

from enum import Enum

from max.graph.value import TensorValue, TensorValueLike, call


class Normalization(Enum):
    """What an inverse Fourier transform divides its results by."""

    BACKWARD = "backward"
    """The size of the signal."""
    ORTHO = "ortho"
    """The square root of the size of the signal."""
    FORWARD = "forward"
    """Nothing."""


def irfft(
    input_tensor: TensorValueLike,
    n: int | None = None,
    axis: int = -1,
    normalization: Normalization | str = Normalization.BACKWARD,
    input_is_complex: bool = False,
    buffer_size_mb: int = 512,
) -> TensorValue:
    """The inverse Fourier transform of spectra of real signals, of which the first halves are given.

    The imaginary parts of the constant and, if `n` is even, of the highest frequency are ignored.

    >>> from max.experimental import functional as F
    >>> from max.experimental.tensor import Tensor
    >>> F.irfft(Tensor([4.0, 0.0, 0.0])).to_numpy()
    array([1., 1., 1., 1.], dtype=float32)

    Args:
        input_tensor: The spectra: real, or complex as `input_is_complex` says.
        n: The size of the signals, by default `2 * (size - 1)`. The spectra are padded with zeros or cut to
            `n // 2 + 1` elements.
        axis: The axis to transform.
        normalization: What the results are divided by: `"backward"` for `n`, `"ortho"` for its square root,
            `"forward"` for nothing.
        input_is_complex: Whether the last axis, of size 2, has the real and the imaginary parts. It is not among those
            that `axis` counts.
        buffer_size_mb: Accepted, and not needed: there is no persistent buffer.
    """
    name = normalization.value if isinstance(normalization, Normalization) else normalization
    return call("irfft", input_tensor, n, axis, name, input_is_complex, buffer_size_mb)
