"""Graphs called from PyTorch code, on CUDA tensors; skipped without a GPU or PyTorch."""

from __future__ import annotations

import time
from typing import Any

import pytest
from max.dtype import DType
from max.engine import Model
from max.graph import DeviceRef, TensorType, ops

from helpers import accelerator, compiler, pytorch

DEVICE = accelerator()
torch = pytorch()
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU", allow_module_level=True)

from max.torch import graph_op  # noqa: E402 - only where there is PyTorch


@graph_op
def plus(x, y):
    return x + y


def applied(op: Any, *inputs: Any) -> Any:
    output = torch.empty_like(inputs[0])
    op(output, *inputs)
    return output


def test_nothing_is_copied(monkeypatch) -> None:
    given: list[list[int]] = []
    execute = Model.execute
    monkeypatch.setattr(
        Model, "execute", lambda self, *args: given.append([b._native.data_ptr for b in args]) or execute(self, *args)
    )
    output, x, y = (torch.rand(1000, device="cuda") for _ in range(3))
    plus(output, x, y.requires_grad_())
    assert given == [[tensor.data_ptr() for tensor in (output, x, y)]]
    assert torch.equal(output, x + y.detach())


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_work_is_done_in_the_order_of_pytorchs_stream(side: bool) -> None:
    """Each side enqueues work on what the other has not computed yet, in memory that PyTorch reuses."""
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    step = torch.rand(2048, 2048, device="cuda") / 2048
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(10):
            x = torch.eye(2048, device="cuda")
            for _ in range(10):
                x = x @ step
            y = applied(plus, x, step)
            twice = y * 2
            wanted = (x + step) * 2
            del x, y
            torch.full((2048, 2048), -1.0, device="cuda")
            torch.full((2048, 2048), -2.0, device="cuda")
            assert torch.equal(twice, wanted)


def test_a_call_does_not_wait() -> None:
    x = torch.rand(8192, 8192, device="cuda")
    output = torch.empty_like(x)
    plus(output, x, x)
    torch.cuda.synchronize()
    for _ in range(20):
        x @ x  # several milliseconds each
    pending = torch.cuda.Event()
    pending.record()
    start = time.perf_counter()
    plus(output, x, x)
    seconds = time.perf_counter() - start
    assert not pending.query(), f"the call waited for earlier work: it took {seconds:.3f} s"
    assert torch.equal(output, x + x)


def test_strided_and_overlapping_tensors() -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3).T
    whole = torch.zeros(3, 4, device="cuda")
    plus(whole[:, ::2], x, torch.ones(3, 1, device="cuda").expand(3, 2))
    assert whole.tolist() == [[1, 0, 4, 0], [2, 0, 5, 0], [3, 0, 6, 0]]
    line = torch.arange(1000.0, device="cuda")
    graph_op(lambda x: x[::-1], name="reverse")(line, line)
    assert torch.equal(line.cpu(), torch.arange(1000.0).flip(0))


def test_types_and_constants_on_the_gpu() -> None:
    rows = TensorType(DType.bfloat16, ["rows", 64], DeviceRef.GPU())
    op = graph_op(lambda x: ops.softmax(x * 2), "softened", input_types=[rows], output_types=[rows])
    for size in (1, 7, 33):
        x = torch.randn(size, 64, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(applied(op, x), torch.softmax(x.float() * 2, -1).bfloat16(), rtol=2e-2, atol=2e-2)
    with pytest.raises(ValueError, match="output 0 of 'softened' must be .*device=gpu:0.*got .*device=cpu:0"):
        applied(op, torch.ones(2, 64, dtype=torch.bfloat16))


def test_tensors_on_two_devices() -> None:
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    with pytest.raises(ValueError, match="must be on the same device"):
        applied(plus, there, here)
    with pytest.raises(ValueError, match="output 0 of 'plus' is .*device=gpu:0.*must be written to .*device=cpu:0"):
        plus(here, there, there)
    moved = graph_op(lambda x, y: x + y.to(x.device), name="moved")
    assert applied(moved, there, here).tolist() == [2, 2, 2]


def test_a_result_on_the_host_is_there_when_the_call_returns() -> None:
    square = graph_op(lambda x: (x @ x).to(DeviceRef.CPU()), name="square")
    x = torch.full((4096, 4096), 0.5, device="cuda")
    for output in (torch.zeros(4096, 4096), torch.zeros(4096, 4096).pin_memory()):
        square(output, x)
        assert output[-1, -1].item() == output[0, 0].item() == 1024


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode: str) -> None:
    compiler()

    def model(x: Any) -> Any:
        return applied(plus, torch.relu(x - 1), x) * 2

    compiled = torch.compile(model, mode=mode)
    for _ in range(4):
        x = torch.rand(1000, device="cuda") * 3
        torch.testing.assert_close(compiled(x), (torch.relu(x - 1) + x) * 2)


def test_a_cuda_graph_of_pytorch_refuses_it() -> None:
    x = torch.ones(3, device="cuda")
    applied(plus, x, x)
    with pytest.raises(RuntimeError, match="'plus' cannot be recorded in a CUDA graph of PyTorch"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            applied(plus, x, x)
    assert applied(plus, x, x).tolist() == [2, 2, 2]
