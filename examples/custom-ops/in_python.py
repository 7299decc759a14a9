"""Custom ops in Python: a function on buffers, and a function over other ops."""

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, KernelLibrary, TensorType, TensorValue, ops

library = KernelLibrary()


@library.register("rank_rows", "float32[n, k] -> int64[n, k]")
def rank_rows(x: Buffer, ranks: Buffer) -> None:
    """The place of each element in its sorted row."""
    order = np.argsort(x.to_numpy(), axis=1, kind="stable")
    np.put_along_axis(ranks.to_numpy(), order, np.arange(order.shape[1])[np.newaxis], axis=1)


def swish(x: TensorValue, beta: int = 1) -> TensorValue:
    """Fuses with its neighbours, like the ops that it consists of."""
    return x * ops.sigmoid(x * beta)


library.elementwise("swish", swish, "T[*shape] -> T[*shape]")


def main() -> None:
    """Ranks the elements of swish(x)."""
    matrix = TensorType(DType.float32, ["n", 3])
    with Graph("ranks", input_types=[matrix], kernel_library=library) as graph:
        (y,) = ops.custom("swish", DeviceRef.CPU(), graph.inputs, [matrix], {"beta": 2})
        ranks = TensorType(DType.int64, ["n", 3])
        graph.output(*ops.custom("rank_rows", DeviceRef.CPU(), [y], [ranks]))
    model = InferenceSession().load(graph)
    print(model.execute(np.array([[0.5, -1, 2]], np.float32))[0].to_numpy())


if __name__ == "__main__":
    main()
