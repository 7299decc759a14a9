"""GPU memory shared with PyTorch, in both directions and without copies; skipped without a GPU or PyTorch."""

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import DeviceRef, TensorType, ops

from helpers import accelerator, build, pytorch

DEVICE = accelerator()
GPU = DeviceRef.GPU()
torch = pytorch()
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU", allow_module_level=True)

DTYPES = {
    torch.float32: DType.float32,
    torch.float64: DType.float64,
    torch.float16: DType.float16,
    torch.bfloat16: DType.bfloat16,
    torch.int32: DType.int32,
    torch.int64: DType.int64,
    torch.uint8: DType.uint8,
    torch.bool: DType.bool,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_ways_without_copies(dtype) -> None:
    x = torch.arange(24, device="cuda").reshape(2, 3, 4).to(dtype)
    buffer = Buffer.from_dlpack(x)
    assert buffer.device == DEVICE and buffer.dtype == DTYPES[dtype] and tuple(buffer.shape) == (2, 3, 4)
    back = torch.from_dlpack(buffer)
    assert back.data_ptr() == x.data_ptr() and back.dtype == dtype and back.device == x.device
    assert torch.equal(back, x)


def test_strided_memory_can_be_exported_but_not_imported() -> None:
    buffer = Buffer.from_dlpack(torch.arange(24.0, device="cuda").reshape(4, 6))[:, ::2]
    shared = torch.from_dlpack(buffer)
    assert shared.stride() == (6, 2)
    assert torch.equal(shared.cpu(), torch.arange(24.0).reshape(4, 6)[:, ::2])
    with pytest.raises(ValueError):
        Buffer.from_dlpack(shared)


def test_a_write_shows_on_the_other_side() -> None:
    x = torch.zeros(4, device="cuda")
    buffer = Buffer.from_dlpack(x)
    x += 3
    torch.cuda.synchronize()
    np.testing.assert_array_equal(buffer.to(CPU()).to_numpy(), np.full(4, 3, np.float32))


def test_memory_outlives_either_side() -> None:
    buffer = Buffer.from_dlpack(torch.full([1000], 7.0, device="cuda"))
    torch.empty(1000, device="cuda").fill_(1)
    assert torch.equal(torch.from_dlpack(buffer).cpu(), torch.full([1000], 7.0))
    shared = torch.from_dlpack(F.relu(Tensor(np.full(1000, 5, np.float32), device=DEVICE)))
    Tensor(np.zeros(1000, np.float32), device=DEVICE)
    assert torch.equal(shared.cpu(), torch.full([1000], 5.0))


def test_models_on_torch_memory() -> None:
    model = InferenceSession(devices=[DEVICE]).load(
        build(lambda a, b: ops.relu(a @ b), [TensorType(DType.float32, ["n", 64], GPU), TensorType(DType.float32, [64, 64], GPU)])
    )
    a, b = torch.randn(10, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    (out,) = model.execute(a, b)
    torch.testing.assert_close(torch.from_dlpack(out), torch.relu(a @ b), rtol=1e-4, atol=1e-4)


def test_pending_work_is_waited_for() -> None:
    """Each side enqueues work on the results of the other, which may still be pending."""
    x = torch.randn(2048, 2048, device="cuda") / 64
    model = InferenceSession(devices=[DEVICE]).load(
        build(lambda x: ops.relu(x) + 1, [TensorType(DType.float32, [2048, 2048], GPU)])
    )
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(5):
                y = x
                for _ in range(20):
                    y = y @ x
                (ours,) = model.execute(Buffer.from_dlpack(y))
                theirs = torch.from_dlpack(ours) * 2
                assert torch.equal(theirs, (torch.relu(y) + 1) * 2)


def test_tensors() -> None:
    x = torch.randn(5, 3, device="cuda")
    tensor = Tensor.from_dlpack(x)
    assert tensor.device == DEVICE and tensor.dtype == DType.float32
    assert torch.from_dlpack(tensor).data_ptr() == x.data_ptr()
    torch.testing.assert_close(torch.from_dlpack(F.relu(tensor)), torch.relu(x))
    own = Tensor(x)
    assert torch.from_dlpack(own).data_ptr() != x.data_ptr(), "a tensor made from data has its own memory"
    assert tensor.__dlpack_device__() == x.__dlpack_device__()
    np.testing.assert_array_equal(tensor.to_numpy(), x.cpu().numpy())
