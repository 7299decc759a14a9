"""Tensors of random numbers.

The numbers depend on the seed (`set_seed`) and on how many tensors were drawn since.

>>> from max.driver import CPU
>>> from max.dtype import DType
>>> set_seed(1)
>>> x = uniform((2, 3), range=(-1, 1), dtype=DType.float32, device=CPU())
>>> x.shape, bool(((x >= -1) & (x < 1)).reshape([-1]).min().item())
([Dim(2), Dim(3)], True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max import _core
from max.experimental._defaults import defaults, driver_tensor_type
from max.experimental.realization_context import set_seed
from max.experimental.tensor import Tensor, call
from max.graph.shape import dims
from max.graph.type import TensorType

if TYPE_CHECKING:
    from max.driver import Device
    from max.dtype import DType
    from max.experimental.tensor import Like
    from max.graph.shape import ShapeLike
    from max.graph.type import DeviceRef

__all__ = ["gaussian", "gaussian_like", "normal", "normal_like", "set_seed", "uniform", "uniform_like"]


def uniform(
    shape: ShapeLike = (),
    range: tuple[float, float] = (0, 1),
    *,
    dtype: DType | None = None,
    device: Device | DeviceRef | None = None,
) -> Tensor:
    """Numbers drawn uniformly between two bounds.

    Args:
        shape: The sizes of the axes.
        range: The lower bound, which is included, and the upper bound, which is not.
        dtype: The type of the elements; by default that of `defaults`.
        device: The device of the tensor; by default that of `defaults`.

    Raises:
        ValueError: If there are not two bounds, or the first is not below the second.
    """
    dtype, device = defaults(dtype, device)
    return uniform_like(TensorType(dtype, dims(shape), device), range)


def uniform_like(like: Like, range: tuple[Any, Any] = (0, 1)) -> Tensor:
    """Numbers drawn uniformly between two bounds, with the dtype, shape and device of a tensor or a type.

    >>> uniform_like(Tensor.zeros([2, 3]), range=(5, 6)).shape
    [Dim(2), Dim(3)]
    """
    if len(range) != 2:
        raise ValueError(f"a range has a minimum and a maximum; got {len(range)} values: {range}")
    low, high = range
    if _known(low) and _known(high) and not low < high:
        raise ValueError(f"the minimum of a range must be below its maximum; got {range}")
    return call("random_uniform", _type(like), low, high, _core.next_seed())


def gaussian(
    shape: ShapeLike = (),
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: DType | None = None,
    device: Device | DeviceRef | None = None,
) -> Tensor:
    """Numbers drawn from a normal distribution.

    Args:
        shape: The sizes of the axes.
        mean: The mean of the distribution.
        std: Its standard deviation.
        dtype: The type of the elements; by default that of `defaults`.
        device: The device of the tensor; by default that of `defaults`.

    Raises:
        ValueError: If the standard deviation is not positive.
    """
    dtype, device = defaults(dtype, device)
    return gaussian_like(TensorType(dtype, dims(shape), device), mean, std)


def gaussian_like(like: Like, mean: Any = 0, std: Any = 1) -> Tensor:
    """Numbers drawn from a normal distribution, with the dtype, shape and device of a tensor or a type.

    >>> gaussian_like(Tensor.zeros([2, 3]), mean=10).shape
    [Dim(2), Dim(3)]
    """
    if _known(std) and not std > 0:
        raise ValueError(f"a standard deviation must be positive; got {std}")
    return call("random_gaussian", _type(like), mean, std, _core.next_seed())


normal = gaussian
"""Another name for `gaussian`."""

normal_like = gaussian_like
"""Another name for `gaussian_like`."""


def _type(like: Like) -> TensorType:
    return like if isinstance(like, TensorType) else driver_tensor_type(like)  # type: ignore[arg-type]


def _known(number: Any) -> bool:
    """Whether a parameter is a number rather than a tensor."""
    return isinstance(number, (int, float))
