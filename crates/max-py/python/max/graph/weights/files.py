"""Weights in files. The files are read in Rust; the classes here are ways to name what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from max import _core
from max.driver import Buffer
from max.dtype import DType
from max.graph.quantization import QuantizationEncoding
from max.graph.shape import Shape, ShapeLike
from max.graph.type import DeviceRef
from max.graph.weight import Weight
from max.graph.weights.weight_data import WeightData

if TYPE_CHECKING:
    from max.driver.buffer import DLPackArray

__all__ = ["GGUFWeights", "PytorchWeights", "SafetensorWeights"]

_Self = TypeVar("_Self", bound="_Files")
_Path = str | os.PathLike[str]


class _Files:
    """The weights of files below a name."""

    __slots__ = ("_allocated", "_files", "_name", "_only")

    _files: _core.WeightFiles
    _name: str
    _allocated: dict[str, DLPackArray]
    _only: frozenset[str] | None
    """The names that count, if not all do."""

    def _load(
        self,
        paths: _Path | Sequence[_Path],
        only: Iterable[str] | None,
        prefix: str,
        allocated: dict[str, DLPackArray] | None,
    ) -> None:
        several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self._files = _core.WeightFiles(several)
        self._name = prefix
        self._allocated = {} if allocated is None else allocated
        self._only = None if only is None else frozenset(only)

    def __getattr__(self: _Self, attr: str) -> _Self:
        # Python looks for special methods like this, and for slots that are not filled yet.
        if attr in _Files.__slots__ or (attr.startswith("__") and attr.endswith("__")):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{attr}'")
        return self[attr]

    def __getitem__(self: _Self, idx: int | str) -> _Self:
        return self._named(f"{self._name}.{idx}" if self._name else str(idx))

    __iter__ = None
    """There is an accessor for every index, so iterating would have no end; `items` has one."""

    def _named(self: _Self, name: str) -> _Self:
        other = object.__new__(type(self))
        other._files, other._allocated, other._only = self._files, self._allocated, self._only
        other._name = name
        return other

    @property
    def name(self) -> str:
        """The name so far: that of a weight, or the beginning of some."""
        return self._name

    @property
    def metadata(self) -> dict[str, Any]:
        """What the files say about themselves, by name."""
        return self._files.metadata()

    def items(self: _Self) -> Iterator[tuple[str, _Self]]:
        """All weights whose names begin with this one, by the rest of their names."""
        start = f"{self._name}." if self._name else ""
        for name in self._files.names():
            if self._counts(name) and (name.startswith(start) or name == self._name):
                yield name[len(start) :], self._named(name)

    def exists(self) -> bool:
        """Whether there is a weight with exactly this name."""
        return self._files.contains(self._name) and self._counts(self._name)

    def _counts(self, name: str) -> bool:
        return self._only is None or name in self._only

    def _info(self) -> tuple[DType, list[int], QuantizationEncoding | None]:
        if not self._counts(self._name):
            raise KeyError(f"'{self._name}' is not among the weights that were asked for")
        dtype, shape, encoding = self._files.info(self._name)
        return DType(dtype.code), shape, None if encoding is None else QuantizationEncoding(encoding.upper())

    def _value(self) -> Buffer:
        return Buffer._wrap(self._files.get(self._name))

    def data(self) -> WeightData:
        """The value of the weight with this name. It shares memory with the file; writes to it stay in memory.

        Raises:
            KeyError: If there is none.
        """
        dtype, shape, encoding = self._info()
        return WeightData(self._value(), self._name, dtype, Shape(shape), encoding)

    def allocate(
        self,
        dtype: DType | None = None,
        shape: ShapeLike | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef = DeviceRef.CPU(),
    ) -> Weight:
        """The weight with this name, to be added to a graph. Its value becomes one of `allocated_weights`.

        Args:
            dtype: The dtype that it must have; uint8 if it is encoded.
            shape: The shape that it must have. If it is encoded, this counts either elements or bytes.
            quantization_encoding: That it must be encoded. Files mix encodings, so which one does not matter.
            device: The device on which the weight is used.

        Raises:
            KeyError: If there is none.
            ValueError: If it is another one than wanted.
        """
        actual, sizes, encoding = self._info()
        what = f"Value provided to weight '{self._name}' had different"
        if dtype is not None and dtype != actual:
            raise ValueError(f"{what} dtype (expected={dtype!s}, actual={actual!s})")
        shapes = [sizes]
        if encoding is not None:
            elements, block = encoding.block_parameters
            shapes.append([*sizes[:-1], sizes[-1] // block * elements])
        if shape is not None and Shape(shape) not in [Shape(known) for known in shapes]:
            raise ValueError(f"{what} shape (expected={Shape(shape)}, actual={Shape(shapes[-1])})")
        if quantization_encoding is not None and encoding is None:
            raise ValueError(
                f"Expected quantized weight but checkpoint contained unquantized weight for {self._name}:"
                f" it has the dtype {actual!s}, and not the encoding {quantization_encoding.name}"
            )
        weight = Weight(self._name, actual, sizes, device, encoding)
        self._allocated[self._name] = self._value()
        return weight

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that were allocated, by their names: the `weights_registry` of a model."""
        return self._allocated

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


class SafetensorWeights(_Files):
    """The weights of safetensors files.

    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> header = b'{"layers.0.scale": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    >>> _ = path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    >>> weights = SafetensorWeights([path])
    >>> weights.layers[0].scale.exists(), weights.layers[0].bias.exists()
    (True, False)
    >>> weights.layers[0].scale.allocate()
    Weight(layers.0.scale, DType.float32, [Dim(2)], cpu:0)
    >>> weights.allocated_weights["layers.0.scale"].to_numpy()
    array([1., 2.], dtype=float32)

    Args:
        filepaths: The files, or the index that names them.
        tensors: The names that count, if not all do.
        tensors_to_file_idx: Not needed: every file knows what is in it.
        prefix: Where names begin.
        allocated: Where the values of allocated weights go.
    """

    __slots__ = ()

    def __init__(
        self,
        filepaths: _Path | Sequence[_Path],
        *,
        tensors: Iterable[str] | None = None,
        tensors_to_file_idx: Mapping[str, int] | None = None,
        prefix: str = "",
        allocated: dict[str, DLPackArray] | None = None,
        _st_weight_map: Any = None,
        _st_file_handles: Any = None,
    ) -> None:
        self._load(filepaths, tensors, prefix, allocated)

    def allocate_as_bytes(self, dtype: DType | None = None) -> Weight:
        """The weight with this name as bytes: the last axis has a byte for each byte of its elements.

        Args:
            dtype: The dtype that the elements must have.

        Raises:
            KeyError: If there is none.
            ValueError: If its elements are of another dtype.
        """
        actual, sizes, _ = self._info()
        if dtype is not None and dtype != actual:
            raise ValueError(
                f"Value provided to weight '{self._name}' had different dtype (expected={dtype!s}, actual={actual!s})"
            )
        *outer, last = sizes or [1]
        shape = [*outer, last * actual.size_in_bytes]
        weight = Weight(self._name, DType.uint8, shape)
        self._allocated[self._name] = self._value().view(DType.uint8, shape)
        return weight


class GGUFWeights(_Files):
    """The weights of a GGUF file.

    Encoded weights have the dtype uint8 and a last axis that counts bytes; `WeightData.astype` decodes them.

    Args:
        source: The file, several of them, or a `GGUFReader` of the `gguf` package.
        tensors: The names that count, if not all do.
        prefix: Where names begin.
        allocated: Where the values of allocated weights go.
    """

    __slots__ = ()

    def __init__(
        self,
        source: Any,
        tensors: Iterable[str] | None = None,
        prefix: str = "",
        allocated: dict[str, DLPackArray] | None = None,
    ) -> None:
        mapped = getattr(source, "data", None)  # a GGUFReader has mapped its file
        self._load(getattr(mapped, "filename", source), tensors, prefix, allocated)


class PytorchWeights(_Files):
    """The weights of a checkpoint of PyTorch. Tensors in nested dicts have the keys that lead to them as their names.

    Nothing in the file is executed: what is more than a state dict is refused.

    Args:
        filepath: The file, or several of them.
        tensor_infos: The names that count, if not all do.
        prefix: Where names begin.
        allocated: Where the values of allocated weights go.
    """

    __slots__ = ()

    def __init__(
        self,
        filepath: _Path | Sequence[_Path],
        tensor_infos: Iterable[str] | None = None,
        prefix: str = "",
        allocated: dict[str, DLPackArray] | None = None,
    ) -> None:
        self._load(filepath, tensor_infos, prefix, allocated)

    @property
    def dtype(self) -> DType:
        """The type of the weight's elements."""
        return self._info()[0]

    @property
    def shape(self) -> Shape:
        """The sizes of the weight's axes."""
        return Shape(self._info()[1])

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """How the weight's elements are encoded: in no checkpoint of PyTorch they are."""
        return self._info()[2]
