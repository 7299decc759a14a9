"""What all sources of weights have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from max.graph.type import DeviceRef

if TYPE_CHECKING:
    from max.driver.buffer import DLPackArray
    from max.dtype import DType
    from max.graph.quantization import QuantizationEncoding
    from max.graph.shape import ShapeLike
    from max.graph.weight import Weight
    from max.graph.weights.weight_data import WeightData

__all__ = ["Weights"]

_Self = TypeVar("_Self", bound="Weights")


@runtime_checkable
class Weights(Protocol):
    """Weights by their names, which are paths: `weights.model.layers[0].weight` has the name `model.layers.0.weight`.

    An attribute or an index leads one step deeper, whether there is anything or not; `exists` tells. What an attribute
    cannot name, because it is a method or no identifier, an index can: `weights["data"]`.
    """

    @property
    def name(self) -> str:
        """The name so far: that of a weight, or the beginning of some."""
        ...

    def items(self: _Self) -> Iterator[tuple[str, _Self]]:
        """All weights whose names begin with this one, by the rest of their names."""
        ...

    def data(self) -> WeightData:
        """The value of the weight with this name.

        Raises:
            KeyError: If there is none.
        """
        ...

    def exists(self) -> bool:
        """Whether there is a weight with exactly this name."""
        ...

    def allocate(
        self,
        dtype: DType | None = None,
        shape: ShapeLike | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef = DeviceRef.CPU(),
    ) -> Weight:
        """The weight with this name, to be added to a graph. Its value becomes one of `allocated_weights`.

        Args:
            dtype: The dtype that it must have.
            shape: The shape that it must have.
            quantization_encoding: That it must be encoded. Files mix encodings, so which one does not matter.
            device: The device on which the weight is used.

        Raises:
            KeyError: If there is none.
            ValueError: If it is another one than wanted.
        """
        ...

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that were allocated, by their names: the `weights_registry` of a model."""
        ...

    def __getattr__(self: _Self, attr: str) -> _Self: ...

    def __getitem__(self: _Self, idx: int | str) -> _Self: ...
