"""The self-contained examples of the documentation run on the CPU and print what it shows.

The examples omit some imports (mostly of DeviceRef), which `PRELUDE` supplies. Shapes print as lists of Dims.
"""

import contextlib
import io
import textwrap

import numpy as np
import pytest
from max import driver

PRELUDE = """
import numpy as np
from dataclasses import dataclass
from max import driver, engine
from max.dtype import DType
from max.graph import (AlgebraicDim, DeviceRef, Dim, Graph, StaticDim, SymbolicDim, TensorType, TensorValue, Value,
                       Weight, ops)
"""

MATRIX = "matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)\n"
CONSTANT = "ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())"


def on_matrix(name: str, *lines: str) -> str:
    body = "\n".join(f"    {line}" for line in (f"tensor = {CONSTANT}", *lines))
    return f'{MATRIX}with Graph("{name}") as graph:\n{body}\n'


def reduction(method: str) -> str:
    return f"""
input_type = TensorType(DType.float32, (2, 3), device=DeviceRef.CPU())
with Graph("{method}_demo", input_types=[input_type]) as graph:
    x = graph.inputs[0].tensor
    r = x.{method}(axis=1)
    print(f"Input shape: {{x.shape}}")
    print(f"Reduced shape: {{r.shape}}")
"""


REDUCED = "Input shape: [Dim(2), Dim(3)]\nReduced shape: [Dim(2), Dim(1)]"
SQUARE = "[Dim(2), Dim(2)]"

# name: (code, what it prints)
EXAMPLES: dict[str, tuple[str, str]] = {
    "driver.CPU": (
        "device = driver.CPU()\nprint(device.id, device.api, device.is_host, device.label)\nstats = device.stats",
        "0 cpu True cpu",
    ),
    "driver.Tensor": (
        "cpu_tensor = driver.Tensor(shape=[2, 3], dtype=DType.float32)\nprint(cpu_tensor.dtype)",
        "DType.float32",
    ),
    "driver.Tensor.copy": (
        "cpu_tensor = driver.Tensor(shape=[2, 3], dtype=DType.bfloat16, device=driver.CPU())\n"
        "cpu_copy = cpu_tensor.copy()\nprint(cpu_copy.dtype)",
        "DType.bfloat16",
    ),
    "driver.Tensor.is_host": (
        "cpu_tensor = driver.Tensor(shape=[2, 3], dtype=DType.bfloat16, device=driver.CPU())\n"
        "print(cpu_tensor.is_host)",
        "True",
    ),
    "dtype": (
        "tensor = np.zeros((2, 3), dtype=DType.float32.to_numpy())\n"
        "array = np.ones((4, 4), dtype=np.float16)\n"
        "max_dtype = DType.from_numpy(array.dtype)\n"
        "is_float = DType.float32.is_float()\n"
        "is_int = DType.int64.is_integral()\n"
        "size = DType.float64.size_in_bytes\n"
        "print(tensor.dtype, max_dtype, is_float, is_int, size)",
        "float32 DType.float16 True True 8",
    ),
    "graph.TensorValue": (
        on_matrix(
            "tensor_demo",
            'print(f"Shape: {tensor.shape}")',
            'print(f"Data type: {tensor.dtype}")',
            "transposed = tensor.T",
            "doubled = tensor * 2",
            'print(f"Original shape: {tensor.shape}")',
            'print(f"Transposed shape: {transposed.shape}")',
        ),
        f"Shape: {SQUARE}\nData type: DType.float32\nOriginal shape: {SQUARE}\nTransposed shape: {SQUARE}",
    ),
    **{f"graph.TensorValue.{m}": (reduction(m), REDUCED) for m in ("argmax", "max", "mean", "min", "stdev", "var")},
    "graph.TensorValue.broadcast_to": (
        on_matrix("broadcast_to_demo", "print(tensor.broadcast_to((3, 2, 2)).shape)"),
        "[Dim(3), Dim(2), Dim(2)]",
    ),
    "graph.TensorValue.cast": (
        on_matrix("cast_demo", "casted_tensor = tensor.cast(DType.int32)", "print(tensor.dtype, casted_tensor.dtype)"),
        "DType.float32 DType.int32",
    ),
    "graph.TensorValue.flatten": (on_matrix("flatten_demo", "print(tensor.flatten().shape)"), "[Dim(4)]"),
    "graph.TensorValue.rank": (on_matrix("rank_demo", 'print(f"Rank: {tensor.rank}")'), "Rank: 2"),
    "graph.TensorValue.reshape": (
        on_matrix("reshape_demo", "print(tensor.reshape((1, 4)).shape)"),
        "[Dim(1), Dim(4)]",
    ),
    "graph.TensorValue.shape": (on_matrix("shape_demo", 'print(f"Shape: {tensor.shape}")'), f"Shape: {SQUARE}"),
    "graph.TensorValue.to": (
        on_matrix(
            "to_device_example",
            "gpu_tensor = tensor.to(DeviceRef.GPU())",
            'print(f"Original device: {tensor.device}")',
            'print(f"New device: {gpu_tensor.device}")',
        ),
        "Original device: cpu:0\nNew device: gpu:0",
    ),
    "graph.TensorValue.transpose": (
        """
matrix = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)
with Graph("transpose_demo") as graph:
    tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())
    transposed_tensor = tensor.transpose(dim_1=0, dim_2=1)
    print(f"Original shape: {tensor.shape}")
    print(f"Transposed shape: {transposed_tensor.shape}")
""",
        "Original shape: [Dim(2), Dim(3)]\nTransposed shape: [Dim(3), Dim(2)]",
    ),
    "graph.Value": (
        """
with Graph("value_example") as graph:
    a = ops.constant(np.array([1, 2, 3]), dtype=DType.float32, device=DeviceRef.CPU())
    b = ops.constant(np.array([4, 5, 6]), dtype=DType.float32, device=DeviceRef.CPU())
    c = a + b
    print(f"Type of c: {type(c).__name__}")
    print(f"Is c a Value? {isinstance(c, Value)}")
""",
        "Type of c: TensorValue\nIs c a Value? True",
    ),
    "graph.dim.AlgebraicDim": (
        """
print(isinstance(Dim("batch") * 5, AlgebraicDim))
print(Dim("batch") * 5)
print(-Dim("x") - 4 == -(Dim("x") + 4))
""",
        "True\nbatch * 5\nTrue",
    ),
    "graph.dim.Dim": (
        """
tensor_type = TensorType(DType.int64, ("batch", 10), device=DeviceRef.CPU())
some_dims = [
    SymbolicDim("batch"),
    StaticDim(5),
    AlgebraicDim(Dim("batch") + 1),
]
print(tensor_type.shape, *some_dims)
""",
        "[Dim('batch'), Dim(10)] batch 5 batch + 1",
    ),
    "graph.dim.StaticDim": ("tensor = TensorType(DType.int64, (4, 5))\nprint(tensor.shape)", "[Dim(4), Dim(5)]"),
    "graph.dim.SymbolicDim": (
        """
dim = SymbolicDim("name")
tensor_type = TensorType(DType.bool, (SymbolicDim("batch"), SymbolicDim("x"), 10))
print(dim.name, tensor_type.shape)
""",
        "name [Dim('batch'), Dim('x'), Dim(10)]",
    ),
    "graph.type.DeviceRef": (
        """
gpu_device = DeviceRef.GPU()
print(gpu_device)
cpu_device = DeviceRef.CPU(id=1)
print(cpu_device)
""",
        "gpu:0\ncpu:1",
    ),
    "graph.type.TensorType": (
        "tensor_type = TensorType(DType.float32, (2, 3))\nprint(tensor_type.dtype)\nprint(tensor_type.shape)",
        "DType.float32\n[Dim(2), Dim(3)]",
    ),
    "graph.type.Type": (
        """
with Graph() as g:
    tensor_type = TensorType(DType.float32, [2, 3])
    print(f"Tensor element type: {tensor_type.dtype}")
    print(f"Tensor shape: {tensor_type.shape}")
""",
        "Tensor element type: DType.float32\nTensor shape: [Dim(2), Dim(3)]",
    ),
    "graph.quantization": (
        """
from max.graph.quantization import QuantizationEncoding
encoding = QuantizationEncoding.Q4_K
quantized_weight = Weight(
    name="linear.weight",
    dtype=DType.uint8,
    shape=[4096, 4096],
    device=DeviceRef.GPU(0),
    quantization_encoding=encoding
)
print(quantized_weight.quantization_encoding.name)
""",
        "q4_k",
    ),
    "graph.ops.slice_tensor": (
        on_matrix(
            "slices",
            "print(ops.slice_tensor(tensor, [slice(None, None, -1)]).shape)",
            "print(ops.slice_tensor(tensor, [..., None, slice(None)]).shape)",
        ),
        f"{SQUARE}\n[Dim(2), Dim(1), Dim(2)]",
    ),
    "engine.Model.input_metadata": (
        """
session = engine.InferenceSession(devices=[driver.CPU()])
with Graph("g", input_types=[TensorType(DType.float32, ("batch", 3))]) as graph:
    graph.output(graph.inputs[0])
model = session.load(graph)
for tensor in model.input_metadata:
    print(f'name: {tensor.name}, shape: {tensor.shape}, dtype: {tensor.dtype}')
for tensor in model.output_metadata:
    print(f'name: {tensor.name}, shape: {tensor.shape}, dtype: {tensor.dtype}')
""",
        "name: input0, shape: [None, 3], dtype: DType.float32\nname: output0, shape: [None, 3], dtype: DType.float32",
    ),
}


def run(code: str) -> tuple[str, dict]:
    namespace: dict = {}
    out = io.StringIO()
    exec(PRELUDE, namespace)
    with contextlib.redirect_stdout(out):
        exec(textwrap.dedent(code), namespace)
    return out.getvalue().strip(), namespace


@pytest.mark.parametrize("name", EXAMPLES)
def test_prints_what_it_documents(name: str) -> None:
    code, printed = EXAMPLES[name]
    assert run(code)[0] == printed


@pytest.mark.skipif(driver.accelerator_count() > 0, reason="an accelerator is present")
def test_device_choice() -> None:
    code = """
    device = driver.CPU() if driver.accelerator_count() == 0 else driver.Accelerator()
    print(f"Using {device} device")
    """
    assert run(code)[0] == "Using Device(type=cpu,id=0) device"


def test_linear_graph(session) -> None:
    """The example of the Graph class, compiled and run."""
    _, namespace = run(
        """
    @dataclass
    class Linear:
        weight: np.ndarray
        bias: np.ndarray
        def __call__(self, x: TensorValue) -> TensorValue:
            weight_tensor = ops.constant(self.weight, dtype=DType.float32, device=DeviceRef.CPU())
            bias_tensor = ops.constant(self.bias, dtype=DType.float32, device=DeviceRef.CPU())
            return ops.matmul(x, weight_tensor) + bias_tensor
    linear_graph = Graph(
        "linear",
        Linear(np.ones((2, 2)), np.ones((2,))),
        input_types=[TensorType(DType.float32, (2,))]
    )
    """
    )
    (out,) = session.load(namespace["linear_graph"]).execute(np.array([3, 4], dtype=np.float32))
    np.testing.assert_array_equal(out.to_numpy(), [8, 8])


def test_padding_of_conv2d(session) -> None:
    """The picture in the documentation of conv2d: padding (0, 1, 2, 1) around a 2x3 image."""
    code = """
    image = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32).reshape(1, 2, 3, 1)
    with Graph("pad") as graph:
        x = ops.constant(image, dtype=DType.float32, device=DeviceRef.CPU())
        one = ops.constant(np.ones((1, 1, 1, 1)), dtype=DType.float32, device=DeviceRef.CPU())
        graph.output(ops.conv2d(x, one, padding=(0, 1, 2, 1)))
    """
    (out,) = session.load(run(code)[1]["graph"]).execute()
    np.testing.assert_array_equal(out.to_numpy()[0, :, :, 0], [[0, 0, 1, 2, 3, 0], [0, 0, 4, 5, 6, 0], [0] * 6])
