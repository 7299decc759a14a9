"""The parameters of a tree of modules, and new values for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from max.driver import Buffer
from max.experimental.nn._tree import Place, below, type_text
from max.experimental.tensor import Tensor

if TYPE_CHECKING:
    from max.experimental.nn.module import Module
    from max.graph import TensorType


class Parameter(NamedTuple):
    """A parameter, and the attribute that holds it."""

    name: str
    """The qualified name."""
    module: Module
    attribute: str
    tensor: Tensor

    def assign(self, tensor: Tensor) -> None:
        """Replaces it by another tensor."""
        setattr(self.module, self.attribute, tensor)


def parameters(module: Module) -> Iterator[Parameter]:
    """The parameters of a module and of all modules inside."""
    seen: set[str] = set()
    for place in (Place("", "", module), *below(module)):
        for attribute, tensor in place.module.local_parameters:
            name = place.prefix + attribute
            if name in seen:
                raise ValueError(f"two parameters of {type(module).__name__} are called {name!r}")
            seen.add(name)
            yield Parameter(name, place.module, attribute, tensor)


def load(module: Module, state: Mapping[str, Any] | Callable[[str], Any], strict: bool, auto_cast: bool) -> None:
    """`Module.load_state_dict`."""
    found = list(parameters(module))
    given = look_up(found, state)
    if strict:
        tied = {id(parameter.tensor) for parameter in found if parameter.name in given}
        missing = [parameter.name for parameter in found if id(parameter.tensor) not in tied]
        if missing:
            raise ValueError(f"Missing required weights for {type(module).__name__}: {', '.join(missing)}")
        unexpected = [str(name) for name in state if name not in given] if isinstance(state, Mapping) else []
        if unexpected:
            raise ValueError(
                f"Unexpected keys in state_dict: {', '.join(unexpected)} (no parameters of {type(module).__name__})"
            )
    fitted = fit_all(found, given, auto_cast)
    for parameter in found:
        if parameter.name in fitted:
            parameter.assign(fitted[parameter.name])


def look_up(found: Iterable[Parameter], state: Mapping[str, Any] | Callable[[str], Any]) -> dict[str, Any]:
    """The available values for parameters, by name."""
    if not isinstance(state, Mapping) and not callable(state):
        raise TypeError(f"expected values by name, or a function that finds them; got {type(state).__name__}")
    given: dict[str, Any] = {}
    for parameter in found:
        try:
            given[parameter.name] = state[parameter.name] if isinstance(state, Mapping) else state(parameter.name)
        except KeyError:
            continue
    return given


def fit_all(found: Iterable[Parameter], given: Mapping[str, Any], auto_cast: bool) -> dict[str, Tensor]:
    """Values converted to tensors that fit their parameters, by name.

    A tensor that several parameters share needs a value for only one of its names, and the others share that too.
    """
    fitted: dict[str, Tensor] = {}
    shared: dict[int, Tensor] = {}
    for parameter in found:
        if parameter.name in given:
            tensor = _fit(parameter.name, parameter.tensor.type, given[parameter.name], auto_cast)
            fitted[parameter.name] = tensor
            shared.setdefault(id(parameter.tensor), tensor)
    for parameter in found:
        if parameter.name not in fitted and id(parameter.tensor) in shared:
            fitted[parameter.name] = shared[id(parameter.tensor)]
    return fitted


def _fit(name: str, expected: TensorType, value: Any, auto_cast: bool) -> Tensor:
    """A value converted to a tensor that fits its parameter.

    Raises:
        TypeError: If it is not an array.
        ValueError: If its dtype or shape differs from that of the parameter.
    """
    tensor = _as_tensor(name, value)
    got = tensor.type
    if got.shape != expected.shape or (got.dtype != expected.dtype and not auto_cast):
        hint = "" if got.shape != expected.shape else "; with auto_cast=True it is cast"
        raise ValueError(
            f"the value of parameter {name!r} is not assignable: "
            f"expected {type_text(expected)}, got {type_text(got)}{hint}"
        )
    if got.device != expected.device:
        tensor = tensor.to(expected.device.to_device())
    return tensor.cast(expected.dtype)


def _as_tensor(name: str, value: Any) -> Tensor:
    import numpy as np

    if isinstance(value, Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        value = Buffer.from_numpy(np.asarray(value))
    if isinstance(value, Buffer):
        return Tensor(storage=value)
    if hasattr(value, "__dlpack__"):
        return Tensor.from_dlpack(value)
    raise TypeError(
        f"the value of parameter {name!r} must be a Tensor, a Buffer, a NumPy array or a DLPack array; "
        f"got {type(value).__name__}"
    )
