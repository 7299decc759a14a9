"""Data types of tensor elements.

>>> import numpy as np
>>> DType.float32.size_in_bytes
4
>>> DType.from_numpy(np.dtype("float16"))
float16
>>> np.zeros(3, dtype=DType.int8.to_numpy()).dtype
dtype('int8')
"""

from __future__ import annotations

import builtins
from enum import Enum
from typing import TYPE_CHECKING, Any

from max import _core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = ["DType"]


class DType(Enum):
    """The type of a tensor's elements. The value of a member is its numeric code.

    Functions that take a `DType` also take its name, a NumPy dtype or a NumPy scalar type.

    >>> print(DType.bfloat16, DType.bfloat16.value, DType(71).is_half())
    DType.bfloat16 71 True
    >>> from max.graph import TensorType
    >>> TensorType("int8", [3]).dtype
    int8
    """

    bool = 1

    float8_e8m0fnu = 62
    float6_e3m2fn = 63
    float4_e2m1fn = 64
    float6_e2m3fn = 65
    float8_e4m3fn = 66
    float8_e4m3fnuz = 67
    float8_e5m2 = 68
    float8_e5m2fnuz = 69
    float16 = 70
    bfloat16 = 71
    float32 = 72
    float64 = 73

    uint8 = 134
    int8 = 135
    uint16 = 136
    int16 = 137
    uint32 = 138
    int32 = 139
    uint64 = 140
    int64 = 141

    _native: _core.DType

    def __init__(self, code: int) -> None:
        self._native = _core.DType(code)

    @property
    def size_in_bytes(self) -> int:
        """The size of one element in bytes; an element of fewer than eight bits has a byte of its own."""
        return self._native.size_in_bytes

    @property
    def size_in_bits(self) -> int:
        """The number of bits of one element that have a meaning.

        >>> DType.float4_e2m1fn.size_in_bits, DType.float4_e2m1fn.size_in_bytes
        (4, 1)
        """
        return self._native.size_in_bits

    @property
    def align(self) -> int:
        """The alignment of an element in memory, in bytes."""
        return self._native.align

    def is_float(self) -> builtins.bool:
        """Whether it is a floating-point type of any width."""
        return self._native.is_float()

    def is_float8(self) -> builtins.bool:
        """Whether it is one of the 8-bit floating-point types."""
        return self._native.is_float8()

    def is_half(self) -> builtins.bool:
        """Whether it is float16 or bfloat16."""
        return self._native.is_half()

    def is_integral(self) -> builtins.bool:
        """Whether it is an integer type; bool is not."""
        return self._native.is_integral()

    def is_signed_integral(self) -> builtins.bool:
        """Whether it is a signed integer type."""
        return self._native.is_signed_integral()

    def is_unsigned_integral(self) -> builtins.bool:
        """Whether it is an unsigned integer type."""
        return self._native.is_unsigned_integral()

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """The member for a NumPy dtype.

        Raises:
            ValueError: If there is none: strings, objects, complex numbers, foreign byte orders.
        """
        import numpy as np

        try:
            known = None if dtype is None else np.dtype(dtype)
        except TypeError:
            known = None
        if known is None:
            raise ValueError(f"{dtype!r} is not a NumPy dtype")
        return wrap(_core.DType.like(known))

    def to_numpy(self) -> np.dtype[Any]:
        """The NumPy dtype for this member.

        Raises:
            ValueError: If NumPy has none: bfloat16 and the floats of at most 8 bits.
        """
        import numpy as np

        if not has_numpy(self):
            raise ValueError(f"NumPy has no dtype for {self}; view the data as another dtype, or use DLPack")
        return np.dtype(self.name)

    @classmethod
    def from_torch(cls, dtype: torch.dtype) -> DType:
        """The member for a PyTorch dtype.

        Raises:
            ValueError: If there is none.
        """
        name = str(dtype).removeprefix("torch.")
        if name not in cls.__members__:
            raise ValueError(f"there is no DType for the PyTorch dtype {dtype}")
        return cls[name]

    def to_torch(self) -> torch.dtype:
        """The PyTorch dtype for this member.

        Raises:
            ValueError: If the installed PyTorch has none.
        """
        import torch

        dtype = getattr(torch, self.name, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"this PyTorch has no dtype for {self}")
        return dtype

    def __repr__(self) -> str:
        return self.name


_BY_CODE: dict[int, DType] = {dtype.value: dtype for dtype in DType}


def wrap(native: _core.DType) -> DType:
    """The member for a native dtype."""
    return _BY_CODE[native.code]


def has_numpy(dtype: DType) -> bool:
    """Whether NumPy has such a dtype."""
    return not (dtype is DType.bfloat16 or dtype._native.is_small_float())


def as_dtype(dtype: Any) -> DType:
    """The member for a dtype, its name, a NumPy dtype or a NumPy scalar type.

    Raises:
        TypeError: If it is none of these.
        ValueError: If there is no such dtype.
    """
    return dtype if isinstance(dtype, DType) else wrap(_core.DType.like(dtype))
