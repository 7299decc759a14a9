"""The native module. The public API is in the modules of `max`; nothing here is documented for users."""

import os
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

# --- dtypes ---------------------------------------------------------------------------------------

@final
class DType:
    """A dtype by its numeric code. All `dtype` arguments below accept whatever `like` accepts."""

    def __new__(cls, code: int) -> DType: ...
    @staticmethod
    def all() -> list[tuple[str, int]]:
        """Names and codes of all dtypes, in order of the codes."""
    @staticmethod
    def like(dtype: Any) -> DType:
        """The dtype for a DType, an object whose `_native` is one, a name, a NumPy dtype or a NumPy scalar type. Raises
        TypeError for anything else, and ValueError if there is no such dtype."""
    name: str
    code: int
    size_in_bytes: int
    size_in_bits: int
    align: int
    def is_float(self) -> bool: ...
    def is_float8(self) -> bool: ...
    def is_small_float(self) -> bool: ...
    def is_half(self) -> bool: ...
    def is_integral(self) -> bool: ...
    def is_signed_integral(self) -> bool: ...
    def is_unsigned_integral(self) -> bool: ...

# --- dims, shapes, types --------------------------------------------------------------------------
# "DimLike" arguments are ints, strings (symbol names) or objects whose `_native` is a Dim.

@final
class Dim:
    """A canonical dim; arithmetic is checked, and its results are normalized."""

    def __new__(cls, value: Any) -> Dim: ...
    @staticmethod
    def parse(text: str) -> Dim:
        """A dim from its printed form."""
    kind: str  # "static", "symbolic" or "algebraic"
    size: int | None  # of a static dim
    name: str | None  # of a symbolic dim
    parameters: list[str]
    def add(self, other: Any) -> Dim: ...
    def sub(self, other: Any) -> Dim: ...
    def mul(self, other: Any) -> Dim: ...
    def floor_div(self, other: Any) -> Dim: ...
    def modulo(self, other: Any) -> Dim: ...
    def neg(self) -> Dim: ...
    def substitute(self, replace: dict[str, Any]) -> Dim: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __str__(self) -> str: ...  # x + 4
    def __repr__(self) -> str: ...  # Dim('x') + Dim(4)

@final
class Shape:
    """A list of dims as one object, so that a shape can be passed where an op expects a tensor."""

    def __new__(cls, dims: Sequence[Any]) -> Shape: ...

@final
class DeviceRef:
    """A symbolic device."""

    def __new__(cls, kind: str, id: int) -> DeviceRef: ...
    @staticmethod
    def parse(name: str) -> DeviceRef: ...
    kind: str
    id: int

@final
class Type:
    """The type of a graph value. Static sizes are checked on creation."""

    @staticmethod
    def tensor(dtype: Any, shape: Sequence[Any], device: DeviceRef, layout: str | None) -> Type: ...
    @staticmethod
    def buffer(dtype: Any, shape: Sequence[Any], device: DeviceRef) -> Type: ...
    @staticmethod
    def opaque(name: str) -> Type: ...
    kind: str  # "tensor", "buffer" or "opaque"
    dtype: DType  # this and the following: of tensors and buffers
    shape: list[Dim]
    device: DeviceRef
    layout: str | None
    name: str  # of opaque types
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class WeightFiles:
    """All weights of one or several files of one format, mapped."""

    def __new__(cls, paths: Sequence[str | os.PathLike[str]]) -> WeightFiles: ...
    format: str
    def names(self) -> list[str]: ...
    def contains(self, name: str) -> bool: ...
    def info(self, name: str) -> tuple[DType, list[int], str | None]:
        """Dtype, sizes and encoding; raises KeyError if there is no such weight."""
    def get(self, name: str) -> Buffer: ...
    def metadata(self) -> dict[str, Any]: ...

def weights_format(paths: Sequence[str | os.PathLike[str]], /) -> str: ...

@final
class QuantizationEncoding:
    """An encoding by its lowercase name. As an argument of an op it is its name."""

    def __new__(cls, name: str) -> QuantizationEncoding: ...
    @staticmethod
    def all() -> list[str]: ...
    is_gguf: bool
    def block_parameters(self) -> tuple[int, int]:
        """The elements and bytes of a block; raises ValueError if there are no fixed blocks."""
    def quantize(self, array: np.ndarray) -> np.ndarray:
        """The blocks of a float32 array along its last axis, as uint8."""
    def dequantize(self, array: np.ndarray) -> np.ndarray:
        """The float32 elements of blocks along the last axis of a uint8 array."""

# --- graphs ---------------------------------------------------------------------------------------

@final
class Value:
    """A value of a graph."""

    type: Type
    def __repr__(self) -> str: ...
    def is_same(self, other: Value) -> bool:
        """Whether both are the same value of the same graph."""

@final
class Weight:
    """A weight, which is added to the current graph when it is used."""

    def __new__(cls, name: str, dtype: Any, shape: Sequence[Any], device: DeviceRef) -> Weight: ...
    name: str
    type: Type
    def rename(self, name: str) -> None:
        """Changes the name of this weight and of its shards; graphs that it is in keep the old one."""
    def shard(self, strategy: Sequence[str | int], devices: Sequence[DeviceRef]) -> list[Weight]:
        """Its parts for devices: see the op function `shard`. The strategy is its name and its numbers."""
    def __repr__(self) -> str: ...

@final
class Graph:
    """A graph being built."""

    def __new__(cls, name: str, input_types: Sequence[Any], library: KernelLibrary) -> Graph:
        """Input types are Types, or objects whose `_native` is one."""
    @staticmethod
    def load(path: str | os.PathLike[str], library: KernelLibrary) -> Graph:
        """Its custom ops are those of the library."""
    @staticmethod
    def parse(text: str, library: KernelLibrary) -> Graph: ...
    def nested(self, name: str, input_types: Sequence[Any]) -> Graph:
        """A graph that becomes a region of an op of this one, and may use values of this one."""
    name: str
    def inputs(self) -> list[Value]: ...
    def output(self, outputs: Sequence[Any]) -> None:
        """Takes anything that ops accept as operands."""
    has_output: bool
    def output_types(self) -> list[Type]: ...
    def add_weight(self, weight: Weight) -> Value: ...
    def merge_device_chains(self) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def text(self) -> str:
        """The text form with all constants, which `parse` reads."""
    def __str__(self) -> str: ...  # the text form with long constants elided

@final
class CustomOp:
    """A custom op; ops take it in place of its name."""

    name: str
    library: str
    num_results: int | None  # None without a signature

@final
class KernelLibrary:
    """Custom ops by name; graphs share it."""

    def __new__(cls) -> KernelLibrary: ...
    def load(self, path: str | os.PathLike[str]) -> None:
        """Adds the ops of a file."""
    def extend(self, other: KernelLibrary) -> None: ...
    def find(self, name: str) -> CustomOp:
        """Raises ValueError if there is none; the message lists those there are."""
    def ops(self) -> list[CustomOp]: ...
    def register(self, name: str, signature: str | None, function: Callable[..., Any]) -> CustomOp:
        """A function on Buffers."""
    def register_body(self, name: str, signature: str | None, function: Callable[..., Any]) -> CustomOp:
        """A function on Values, called when the op is recorded."""
    def register_cuda(
        self,
        name: str,
        code: str,
        signature: str,
        threads: str | None,
        blocks: str | None,
        block: int,
        function: str | None,
        parameters: list[str],
    ) -> CustomOp: ...

def op(scope: Graph | Region | None, name: str, args: tuple[Any, ...], /) -> Any:
    """Calls an op function by name. Returns an object that stands for a Value or a Tensor, a list of them, or None.

    In a graph the op is recorded, and the results are Values, or Tensors if there is one among the arguments. In a
    region the results are Tensors. Raises LookupError outside any scope.

    Arguments are converted to what the op's parameters expect: None, bool, int, float, str, slice, Ellipsis, lists and
    tuples of these, NumPy arrays, scalars, dtypes and scalar types, objects with `__tensorvalue__()`, native objects,
    and any object whose `_native` attribute is a native object (Value, Weight, Dim, Shape, DType, DeviceRef, Device,
    Type, Buffer, Graph).
    """

def set_shell(native: type[Any], shell: type[Any]) -> None:
    """Sets the class that stands for a native one, which is Buffer, Tensor or Value.

    Its instances hold the native object as `_native`; functions that return objects of the shell make them without
    `__init__`.
    """

def op_params(name: str) -> list[str]:
    """The parameter names of an op function."""

def rope_scale_factor(scaling: list[Any], dim: int, theta: float) -> float:
    """What a scaling of a rotary embedding, the list of its name and its fields, multiplies the scale of attention by."""

# --- tensors --------------------------------------------------------------------------------------

@final
class Region:
    """Where ops on tensors are recorded before they run.

    Kinds: "bare" (an op has run when its call returns), "eager" (ops are recorded, and run when somebody reads a result
    or at `realize_all`), "lazy" (like "eager", but only what is read ever runs).
    """

    def __new__(cls, kind: str) -> Region: ...
    kind: str
    pending: list[Tensor]  # tensors of this region that somebody holds and that have not been realized
    def realize_all(self) -> None:
        """Computes all pending tensors of the region in one program. Releases the GIL; Ctrl-C interrupts it."""

@final
class Tensor:
    """A tensor: real (it has memory), pending (recorded in a region), or a value of a graph that is being built."""

    @staticmethod
    def from_buffer(buffer: Any) -> Tensor: ...
    @staticmethod
    def from_value(value: Any) -> Tensor: ...
    type: Type
    dtype: DType
    shape: tuple[int, ...]  # TypeError for a graph value with symbolic dims
    rank: int
    device: Device
    state: str  # "real", "pending" or "value"
    def realize(self) -> None:
        """Computes it if pending; raises TypeError for a graph value. Releases the GIL; Ctrl-C interrupts it."""
    buffer: Buffer | None  # if it is real
    value: Value | None  # if it is one
    def item(self) -> float | int | bool:
        """The only element; realizes. Raises ValueError if there are more or none."""
    def convert(self, to: str) -> float | int | bool:
        """Like `item`, for a conversion to something such as "bool", which the ValueError names."""
    def __repr__(self) -> str: ...  # values like NumPy's, shape, dtype and device; realizes

@final
class Trace:
    """Records all realizations, in all threads, from its creation until `stop`."""

    def __new__(cls) -> Trace: ...
    def stop(self) -> None: ...
    # Reason, location (file, line), numbers of ops and tensors, whether compiled, seconds to prepare and run, kernels.
    realizations: list[tuple[str, tuple[str, int] | None, int, int, bool, float, float, list[str]]]
    def text(self) -> str: ...
    def html(self) -> str: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...

def tensor_cache_stats() -> tuple[int, int, int]:
    """The hits, the misses and the size of the cache of compiled regions."""

def clear_tensor_cache() -> None: ...
def next_seed() -> int:
    """The seed of the next random tensor: determined by `set_seed` and the number of draws since."""

def set_seed(seed: int) -> None: ...

# --- driver ---------------------------------------------------------------------------------------

@final
class Device:
    @staticmethod
    def cpu() -> Device: ...
    @staticmethod
    def accelerator(id: int | None) -> Device: ...
    @staticmethod
    def from_ref(ref: DeviceRef) -> Device: ...
    id: int
    label: str
    api: str
    architecture_name: str
    model_name: str
    max_single_alloc_size: int
    is_host: bool
    is_host_unified: bool
    is_compatible: bool
    stats: dict[str, Any]
    ref: DeviceRef
    def can_access(self, other: Device) -> bool: ...
    def default_stream(self) -> Stream: ...
    def synchronize(self) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __str__(self) -> str: ...

@final
class Stream:
    def __new__(cls, device: Device) -> Stream: ...
    device: Device
    handle: int | None  # for other libraries; None for the host
    def synchronize(self) -> None: ...
    def wait_for(self, stream: Stream) -> None: ...
    def __eq__(self, other: object) -> bool: ...

def accelerator_count() -> int: ...
def accelerator_api() -> str: ...
def accelerator_architecture_name() -> str: ...
def set_virtual_device_count(count: int) -> None: ...
def get_virtual_device_count() -> int: ...

@final
class Buffer:
    """A strided array on a device. `place` is a Device or a Stream, or the Python object of one.

    A new buffer holds zeros.
    """

    def __new__(cls, dtype: Any, shape: Sequence[int], place: Any, pinned: bool = False) -> Buffer: ...
    @staticmethod
    def scalar(value: float | int | bool, dtype: Any, place: Any) -> Buffer: ...
    @staticmethod
    def from_dlpack(array: Any, copy: bool | None) -> Buffer:
        """NumPy arrays are read directly, others through the DLPack protocol. Refuses non-contiguous sources.

        Takes a DLPack capsule too, whose GPU memory must be ready on the default stream of its device.
        """
    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any]) -> Buffer:
        """Zero-copy for contiguous arrays, else a contiguous copy."""
    @staticmethod
    def mmap(path: str | os.PathLike[str], dtype: Any, shape: Sequence[int], mode: str, offset: int) -> Buffer: ...
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    rank: int
    num_elements: int
    element_size: int
    is_contiguous: bool
    is_host: bool
    is_read_only: bool
    pinned: bool
    device: Device
    stream: Stream
    data_ptr: int
    def get(self, index: Any) -> Buffer:
        """A view by an index: an int, a slice, an ellipsis, None or a tuple of these."""
    def set(self, index: Any, value: Any) -> None:
        """Assigns a number, a Buffer, a NumPy array or a DLPack array to a view. Raises ValueError for a number if the
        index consists only of ints, and too few to select one element."""
    def view(self, dtype: Any, shape: Sequence[int] | None) -> Buffer: ...
    def contiguous(self) -> Buffer: ...
    def copy(self, place: Any) -> Buffer: ...
    def to(self, place: Any) -> Buffer: ...
    def inplace_copy_from(self, src: Buffer) -> None: ...
    def item(self) -> float | int | bool: ...
    def convert(self, to: str) -> float | int | bool:
        """Like `item`, for a conversion to something such as "bool", which the ValueError names."""
    def dlpack(self, max_version: tuple[int, int] | None, copy: bool, stream: int | None) -> Any:
        """A DLPack capsule: versioned if `max_version` is 1 or more, else unversioned (BufferError if read-only).

        GPU memory is made ready for the consumer's stream, numbered as in the protocol.
        """
    def give_back(self) -> None:
        """Gives borrowed GPU memory back to its owner without waiting for our work on it.

        The owner must use the memory only after that work, and this buffer must not be used any more.
        """
    def dlpack_device(self) -> tuple[int, int]: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...  # the data, like NumPy

# --- engine ---------------------------------------------------------------------------------------

@final
class Session:
    def __new__(cls, devices: Sequence[Device], num_threads: int | None) -> Session: ...
    devices: list[Device]
    num_threads: int
    def load(self, model: Graph | str | os.PathLike[str], weights: dict[str, Any]) -> Model:
        """A graph or the path of a saved one; weights are Buffers or DLPack arrays by name."""
    # Settings by name; ValueError lists the known ones.
    def set_log_level(self, level: str) -> None: ...
    def set_assert_level(self, level: str) -> None: ...
    def set_split_k_reduction_precision(self, precision: str) -> None: ...
    def set_profiling(self, mode: str) -> None: ...
    def set_allow_tf32(self, allow: bool) -> None: ...
    def use_old_top_k_kernel(self, mode: str) -> None: ...

@final
class Model:
    name: str
    devices: list[Device]
    inputs: list[tuple[str, list[int | None], DType, DeviceRef]]
    outputs: list[tuple[str, list[int | None], DType, DeviceRef]]
    kernels: list[tuple[str, str, list[str], str]]  # names, kinds, ops and texts
    # Inputs are Buffers, NumPy arrays, DLPack arrays and numbers; the GIL is released while a model runs.
    def execute(self, inputs: tuple[Any, ...]) -> list[Any]: ...  # of the class that stands for buffers
    def capture(self, key: int, inputs: tuple[Any, ...]) -> list[Any]: ...
    def replay(self, key: int, inputs: tuple[Any, ...]) -> None: ...
    def debug_verify_replay(self, key: int, inputs: tuple[Any, ...]) -> None: ...
    def release_captured_graph(self, key: int) -> None: ...
    def memory_report(self, inputs: tuple[Any, ...]) -> tuple[int, int, int]:
        """The bytes of temporaries, their bytes without reuse, and the bytes of packed constants."""
    def picture(self) -> str:
        """An SVG document."""
    def fusion_summary(self) -> str: ...
    def profile_table(self) -> str: ...
    def save_trace(self, path: str | os.PathLike[str]) -> None: ...

def program_cache_stats() -> tuple[int, int, int]:
    """The hits, the misses and the size of the cache of compiled programs."""

def clear_program_cache() -> None: ...

def match_weights(
    expected: Sequence[tuple[str, Type, str | None, int | None]],
    given: Sequence[tuple[str, Any, Sequence[int], str | None, int]],
    strict: bool,
    override_encoding: bool,
    alignment: int | None,
    /,
) -> list[int | None]:
    """For each weight (name, type, encoding, alignment) the number of its value (name, dtype, sizes, encoding, address); None
    for one that is missing, if that is no error. A ValueError names everything that does not fit."""

# --- the command ----------------------------------------------------------------------------------

def command(arguments: Sequence[str], /) -> int:
    """Runs the command with arguments, of which the first is its name; the result is the exit status."""
