"""Buffers: arrays in the memory of a device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

from max import _core
from max import dtype as _dtype
from max._native import native
from max.driver.device import CPU, Device, DeviceStream, named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from max.dtype import DType


_HOST = (1, 0)
"""The DLPack protocol's number for the CPU."""


@runtime_checkable
class DLPackArray(Protocol):
    """Any array that can be shared through the DLPack protocol: NumPy's, PyTorch's, `Buffer` and many more."""

    def __dlpack__(self) -> Any:
        """A capsule that hands over the memory."""

    def __dlpack_device__(self) -> Any:
        """The type and number of the device that holds the memory."""


class Buffer:
    """An array in the memory of a device.

    Indexing works as in NumPy and returns views that share the memory and keep it alive. Host buffers and NumPy
    arrays share memory in both directions.

    >>> import numpy as np
    >>> from max.dtype import DType
    >>> buffer = Buffer(DType.int32, [2, 3])
    >>> buffer[1, ::-1][0] = 7
    >>> buffer.to_numpy()
    array([[0, 0, 0],
           [0, 0, 7]], dtype=int32)
    >>> Buffer.from_numpy(np.arange(3.0))
    max.driver.Buffer(DType.float64, (3,), cpu[0])

    Args:
        dtype: The type of the elements.
        shape: The sizes of the axes. An array passed here or as `dtype` is copied to the device instead.
        device: The device of the memory; by default the CPU.
        pinned: Whether to use page-locked host memory instead, for asynchronous copies to and from an accelerator.
            Without an accelerator it is ordinary memory; the `pinned` property of the buffer tells. Reading and writing
            such a buffer waits for its copies, but a NumPy array made from it does not: synchronize the device first.
        stream: Instead of `device`: the stream that the memory is bound to.
    """

    __slots__ = ("__weakref__", "_native")
    _native: _core.Buffer

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            dtype: DType,
            shape: Sequence[int],
            device: Device | DeviceStream | None = None,
            pinned: bool = False,
        ) -> None: ...
        @overload
        def __init__(
            self, dtype: DType, shape: Sequence[int], *, stream: DeviceStream, pinned: bool = False
        ) -> None: ...
        @overload
        def __init__(self, dtype: npt.NDArray[Any], shape: Device, /) -> None: ...
        @overload
        def __init__(self, *, shape: npt.NDArray[Any], device: Device) -> None: ...

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = None,
        device: Any = None,
        pinned: bool = False,
        *,
        stream: DeviceStream | None = None,
    ) -> None:
        if isinstance(shape, (Device, str)) and device is None:  # Buffer(array, device)
            dtype, shape, device = None, dtype, shape
        place = _place(stream, device, CPU())
        if dtype is None:
            self._native = _core.Buffer.from_numpy(shape).copy(place)
        else:
            self._native = _core.Buffer(dtype, shape, place, pinned)

    @staticmethod
    def _wrap(native: _core.Buffer) -> Buffer:
        buffer = object.__new__(Buffer)
        buffer._native = native
        return buffer

    @staticmethod
    def zeros(shape: Sequence[int], dtype: DType, device: Device | DeviceStream | None = None) -> Buffer:
        """A buffer filled with zeros."""
        return Buffer._wrap(_core.Buffer(dtype, shape, _place(device, CPU())))

    @staticmethod
    def scalar(value: float, dtype: DType, device: Device | DeviceStream | None = None) -> Buffer:
        """A buffer of rank zero that holds one number.

        >>> from max.dtype import DType
        >>> Buffer.scalar(1.5, DType.bfloat16).item()
        1.5
        """
        return Buffer._wrap(_core.Buffer.scalar(value, dtype, _place(device, CPU())))

    @staticmethod
    def from_numpy(arr: npt.NDArray[Any]) -> Buffer:
        """A host buffer that shares the memory of a NumPy array; an array that is not contiguous is copied."""
        return Buffer._wrap(_core.Buffer.from_numpy(arr))

    @staticmethod
    def from_dlpack(array: Any, *, copy: bool | None = None) -> Buffer:
        """A buffer that shares the memory of an array of another library; a buffer is returned as it is.

        Args:
            array: A contiguous array that supports the DLPack protocol, or a DLPack capsule of one, which is used up.
            copy: Whether to copy the data instead.
        """
        if isinstance(array, Buffer) and not copy:
            return array
        return Buffer._wrap(_core.Buffer.from_dlpack(array, copy))

    @staticmethod
    def mmap(
        filename: str | os.PathLike[str],
        dtype: DType,
        shape: Sequence[int] | int,
        mode: str = "copyonwrite",
        offset: int = 0,
    ) -> Buffer:
        """A host buffer over the contents of a file, which are read on first access.

        While the buffer is used, others must not write to the file or make it shorter: models may have packed copies of
        some of its elements, and reading beyond its end kills the process. Replace such a file by renaming another one.

        Args:
            filename: The file.
            dtype: The type of the elements.
            shape: The sizes of the axes, or the number of elements.
            mode: `"c"` or `"copyonwrite"`, and also `"r"` or `"readonly"`: writes stay in memory, and the file never
                changes; `"r+"` or `"readwrite"`: writes go to the file; `"w+"` or `"write"`: the same, for a new file
                of zeros.
            offset: The position of the first element in the file, in bytes.

        Raises:
            OSError: If the file cannot be opened.
            ValueError: If it is too short.
        """
        path = os.fspath(filename)  # refuses file descriptors, which would be closed
        if mode not in ("w+", "write"):
            open(path, "rb").close()  # Python's own exceptions about files
        if offset < 0:
            raise ValueError(f"the offset in a file cannot be negative: {offset}")
        sizes = shape if isinstance(shape, Iterable) else [shape]
        return Buffer._wrap(_core.Buffer.mmap(path, dtype, sizes, mode, offset))

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return _dtype.wrap(self._native.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._native.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each axis, in elements."""
        return self._native.strides

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self._native.rank

    @property
    def num_elements(self) -> int:
        """The number of elements; 1 for rank zero."""
        return self._native.num_elements

    @property
    def element_size(self) -> int:
        """The size of one element in bytes."""
        return self._native.element_size

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in row-major order."""
        return self._native.is_contiguous

    @property
    def is_host(self) -> bool:
        """Whether the memory is host memory."""
        return self._native.is_host

    @property
    def pinned(self) -> bool:
        """Whether the memory is page-locked."""
        return self._native.pinned

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return Device._wrap(self._native.device)

    @property
    def stream(self) -> DeviceStream:
        """The stream that the memory is bound to."""
        return DeviceStream._wrap(self._native.stream)

    def view(self, dtype: DType, shape: Sequence[int] | None = None) -> Buffer:
        """The same memory as another dtype, in another shape or both.

        Without a shape, the last axis is resized to fit.

        Raises:
            ValueError: If the bytes do not fit.
        """
        return Buffer._wrap(self._native.view(dtype, shape))

    def contiguous(self) -> Buffer:
        """A contiguous copy."""
        return Buffer._wrap(self._native.contiguous())

    def copy(
        self, stream: DeviceStream | Device | None = None, device: Device | None = None
    ) -> Buffer:
        """A copy.

        Args:
            stream: The stream to bind the copy to; a device is accepted too.
            device: The device to copy to; by default that of this buffer.
        """
        return Buffer._wrap(self._native.copy(_place(stream, device)))

    if TYPE_CHECKING:

        @overload
        def to(self, device: Device | DeviceStream) -> Buffer: ...
        @overload
        def to(self, device: Sequence[Device | DeviceStream]) -> list[Buffer]: ...

    def to(self, device: Any) -> Any:
        """This buffer on a device or stream: itself if it is there, else a copy.

        >>> from max.dtype import DType
        >>> buffer = Buffer.zeros([2], DType.float32)
        >>> [copy is buffer for copy in buffer.to([CPU(), CPU()])]
        [True, True]

        Args:
            device: The device or stream; a list of them returns a list of buffers.
        """
        if isinstance(device, Sequence) and not isinstance(device, str):
            return [self._to(named(place)) for place in device]
        return self._to(named(device))

    def _to(self, place: Device | DeviceStream) -> Buffer:
        if isinstance(place, Device) and place == self.device:
            return self
        return Buffer._wrap(self._native.to(place))

    def inplace_copy_from(self, src: Buffer) -> None:
        """Overwrites the elements with those of another buffer of the same dtype and shape, on any device."""
        self._native.inplace_copy_from(native(src, _core.Buffer))

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self._native.item()

    def to_numpy(self) -> npt.NDArray[Any]:
        """A NumPy array that shares the memory; read-only if this buffer is.

        Raises:
            ValueError: If the memory is not host memory, or NumPy has no such dtype.
        """
        import numpy as np

        if not self._native.is_host:
            raise ValueError(f"{self!r} is not in host memory: copy it with to(CPU()) first")
        dtype = self.dtype.to_numpy()
        try:
            return np.from_dlpack(self, copy=False)
        except TypeError:  # older than NumPy 2.1: supports neither `copy` nor bools and read-only arrays
            return np.asarray(_HostMemory(self._native, dtype))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        import numpy as np

        array = self.to_numpy()
        return np.asarray(array, dtype) if copy is None else np.array(array, dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Hands the memory to another library: see the DLPack protocol.

        Args:
            stream: The stream on which the consumer will use accelerator memory: its handle, 1 or None for the default
                stream, -1 if the consumer orders its work itself.
            max_version: The newest version of the protocol that the consumer supports.
            dl_device: The device that the consumer asks for: this one, or the CPU for a copy.
            copy: Whether to hand over a copy.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) != _HOST or copy is False:
                raise BufferError(f"{self!r} cannot be exported to another device: copy it there first")
            return self.to(CPU()).__dlpack__(max_version=max_version)
        return self._native.dlpack(max_version, bool(copy), stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._native.dlpack_device()

    def __getitem__(self, index: Any) -> Buffer:
        return Buffer._wrap(self._native.get(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._native.set(index, value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a buffer of rank zero has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Buffer]:
        return map(self.__getitem__, range(len(self)))

    __contains__ = None  # buffers cannot be searched: they have no comparisons

    def __bool__(self) -> bool:
        return bool(self._native.convert("bool"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        size = self.num_elements * self.element_size
        data = self.to(CPU()).contiguous().view(_dtype.DType.uint8, [size])
        return _unpickle, (self.dtype, self.shape, data.to_numpy().tobytes())

    def __repr__(self) -> str:
        return repr(self._native)

    def __str__(self) -> str:
        return str(self._native)


def _unpickle(dtype: DType, shape: tuple[int, ...], data: bytes) -> Buffer:
    """A host buffer with the elements stored in bytes."""
    import numpy as np

    return Buffer.from_numpy(np.frombuffer(data, dtype=np.uint8)).view(dtype, shape).copy()


Tensor = Buffer
"""The old name of `Buffer`."""


class _HostMemory:
    """NumPy's array interface for a buffer; the array keeps it alive, and it keeps the memory alive."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: _core.Buffer, dtype: np.dtype[Any]) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": owner.shape,
            "strides": tuple(stride * dtype.itemsize for stride in owner.strides),
            "data": (owner.data_ptr, owner.is_read_only),
        }


def _place(*places: Device | DeviceStream | None) -> Any:
    """The first argument that is not None; native code accepts both devices and streams."""
    return next((named(place) for place in places if place is not None), None)


_core.set_shell(_core.Buffer, Buffer)


def batch_inplace_copy(dsts: Iterable[Buffer], srcs: Iterable[Buffer]) -> None:
    """Overwrites each buffer of a list with its counterpart in another: see `Buffer.inplace_copy_from`.

    Raises:
        ValueError: If the lists differ in length; then nothing is copied.
    """
    targets, sources = list(dsts), list(srcs)
    if len(targets) != len(sources):
        raise ValueError(f"{len(targets)} buffers cannot be overwritten with {len(sources)}")
    for target, source in zip(targets, sources, strict=True):
        target.inplace_copy_from(source)
