"""What the tests of buffers in graphs share."""

import numpy as np
from helpers import CPU, build, tensor
from max.dtype import DType
from max.graph import BufferType, TensorValue, ops

X = np.array([1, -2, 3, 4], dtype=np.float32)
M = np.arange(24, dtype=np.float32).reshape(4, 6)
s = slice


def buffer(dtype: str, *dims) -> BufferType:
    return tensor(dtype, *dims).as_buffer()


VECTOR, MATRIX = buffer("float32", 4), buffer("float32", 4, 6)


def real(value) -> TensorValue:
    return ops.constant(value, DType.float32, CPU)


def execute(session, forward, types, *arrays) -> list[np.ndarray]:
    """Runs `forward`, which may return nothing; the arrays for buffer inputs are changed in place."""

    def outputs(*values):
        result = forward(*values)
        return [] if result is None else result

    return [out.to_numpy() for out in session.load(build(outputs, types)).execute(*arrays)]
