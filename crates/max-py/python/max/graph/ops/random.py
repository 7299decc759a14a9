"""Random numbers in graphs.

A number is a function of a seed and of its position in the tensor, so a model draws the same numbers from the same seed
on any machine and with any number of threads. Each draw of a graph has its own numbers. The seed may be a tensor: an
input of the graph, which can change with each execution.

>>> from max.dtype import DType
>>> from max.graph import DeviceRef, Graph, TensorType, ops
>>> with Graph("noise", input_types=[ops.random.SeedType(DeviceRef.CPU())]) as graph:
...     ops.random.set_seed(graph.inputs[0])
...     graph.output(ops.random.gaussian(TensorType(DType.float32, [2, 3], DeviceRef.CPU())))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max import _core
from max.dtype import DType
from max.graph._building import current_native
from max.graph.type import TensorType
from max.graph.value import TensorValue, TensorValueLike, call

if TYPE_CHECKING:
    from max.driver import Device
    from max.graph.type import DeviceRef

__all__ = ["SeedType", "gaussian", "normal", "set_seed", "uniform"]


def SeedType(device: Device | DeviceRef) -> TensorType:
    """The type of an input that is a seed: one uint64 on a device, which can change with each execution.

    >>> from max.graph import DeviceRef
    >>> SeedType(DeviceRef.CPU())
    TensorType(dtype=uint64, shape=[Dim(1)], device=cpu:0)
    """
    return TensorType(DType.uint64, [1], device)


def set_seed(seed: TensorValueLike = 0) -> None:
    """Sets the seed of the random numbers that the graph draws from now on.

    Args:
        seed: An integer from 0 to 2**64 - 1, or a tensor of the type `SeedType`.

    Raises:
        ValueError: If the number is out of range, or the tensor does not hold exactly one integer.
    """
    _core.op(current_native(), "random_set_seed", (seed,))


def uniform(like: TensorType, range: tuple[TensorValueLike, TensorValueLike] = (0, 1)) -> TensorValue:
    """Numbers drawn uniformly between two bounds.

    Args:
        like: The type of the result; its dtype must be a float.
        range: The lower bound, which is included, and the upper bound, which is not: numbers or scalar tensors.

    Raises:
        RuntimeError: If no seed is set in the graph.
        ValueError: If the range is empty or the dtype is not a float.
    """
    low, high = range
    return call("random_uniform", like, low, high)


def gaussian(like: TensorType, mean: TensorValueLike = 0, std: TensorValueLike = 1) -> TensorValue:
    """Numbers drawn from a normal distribution.

    Args:
        like: The type of the result; its dtype must be a float.
        mean: The mean: a number or a scalar tensor.
        std: The standard deviation, which must be positive.

    Raises:
        RuntimeError: If no seed is set in the graph.
        ValueError: If the standard deviation is not positive or the dtype is not a float.
    """
    return call("random_gaussian", like, mean, std)


normal = gaussian
