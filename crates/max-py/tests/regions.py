"""What the tests of branches, loops and buffers share."""

import contextlib
import io

import numpy as np
from max.dtype import DType
from max.graph import BufferType, TensorValue, ops

from helpers import CPU, tensor

TRUE, FALSE = np.array(True), np.array(False)
X = np.array([1, -2, 3], dtype=np.float32)
FLAG, INT, FLOAT, VECTOR = tensor("bool"), tensor("int32"), tensor("float32"), tensor("float32", 3)
MISMATCH = "Results don't match expected types"


def const(value, dtype: DType = DType.int32) -> TensorValue:
    return ops.constant(value, dtype, CPU)


def real(value) -> TensorValue:
    return const(value, DType.float32)


def scalar(value, dtype: str = "int32") -> np.ndarray:
    return np.array(value, dtype=dtype)


def buffer(dtype: str, *dims) -> BufferType:
    return tensor(dtype, *dims).as_buffer()


def lines_of(model, *arrays) -> list[str]:
    """What an execution prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        model.execute(*arrays)
    return out.getvalue().splitlines()
