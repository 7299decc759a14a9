"""The data of a weight, with what is known about it."""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max.driver import CPU, Buffer
from max.driver.buffer import DLPackArray
from max.dtype import DType, has_numpy
from max.graph import _building
from max.graph.quantization import QuantizationEncoding, dequantize
from max.graph.shape import Shape

if TYPE_CHECKING:
    import numpy as np

__all__ = ["WeightData"]


@dataclass(repr=False, eq=False)
class WeightData:
    """The data of a weight, with its name, type and encoding.

    It can be used wherever an array is: `Module.load_state_dict` and `InferenceSession.load` take it, and so do the
    functions `from_dlpack` of other libraries.

    >>> import numpy as np
    >>> data = WeightData.from_numpy(np.ones((2, 3), dtype=np.float32), "scale")
    >>> data.astype(DType.bfloat16)
    WeightData(DType.bfloat16, [Dim(2), Dim(3)])

    Args:
        data: The elements.
        name: The name of the weight.
        dtype: The type of the elements. If that of the array is another one, as for dtypes that NumPy lacks, its bytes
            are read as elements of this one.
        shape: The sizes of the axes.
        quantization_encoding: How the elements are encoded, if they are.
    """

    data: DLPackArray
    """The elements."""
    name: str
    """The name of the weight."""
    dtype: DType
    """The type of the elements."""
    shape: Shape
    """The sizes of the axes."""
    quantization_encoding: QuantizationEncoding | None = None
    """How the elements are encoded, if they are."""

    def __post_init__(self) -> None:
        self.shape = Shape(self.shape)

    @classmethod
    def from_numpy(cls, arr: np.ndarray[Any, Any], name: str) -> WeightData:
        """An array as the data of a weight.

        Args:
            arr: The array.
            name: The name of the weight.
        """
        return cls(arr, name, DType.from_numpy(arr.dtype), Shape(arr.shape))

    def astype(self, dtype: DType) -> WeightData:
        """The data with its elements converted to a dtype, decoded if they are encoded; the data itself if it has the dtype.

        Raises:
            ValueError: If the elements are encoded without blocks, as GPTQ does.
        """
        if dtype == self.dtype:
            return self
        if self.quantization_encoding is not None:
            blocks = self._buffer().to(CPU()).to_numpy()
            return WeightData.from_numpy(dequantize(self.quantization_encoding, blocks), self.name).astype(dtype)
        cast = copy_context().run(_cast, self._buffer(), dtype)
        data = cast.to_numpy() if has_numpy(dtype) and cast.is_host else cast
        return WeightData(data, self.name, dtype, self.shape)

    def _buffer(self) -> Buffer:
        """The elements as a buffer of the dtype and shape, which shares the memory where it can."""
        import numpy as np

        array: Any = self.data
        buffer = Buffer.from_numpy(array) if isinstance(array, np.ndarray) else Buffer.from_dlpack(array)
        sizes = [int(dim) for dim in self.shape]
        if buffer.dtype == self.dtype and list(buffer.shape) == sizes:
            return buffer
        return buffer.view(self.dtype, sizes)

    def __dlpack__(self, **options: Any) -> Any:
        return self._buffer().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._buffer().__dlpack_device__()

    def __repr__(self) -> str:
        return f"WeightData({self.dtype!s}, {self.shape})"


def _cast(buffer: Buffer, dtype: DType) -> Buffer:
    """The elements converted to a dtype, in a context of its own: at once, even while a graph is being built."""
    from max.experimental.tensor import Tensor

    _building.stack.set(())
    return Tensor(storage=buffer).cast(dtype)._read()
