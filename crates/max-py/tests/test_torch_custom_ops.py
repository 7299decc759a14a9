"""Custom ops called from PyTorch code."""

from __future__ import annotations

import numpy as np
import pytest
from max.graph import KernelLibrary, TensorType, ops

from helpers import pytorch

torch = pytorch()

from max.torch import CustomOpLibrary, graph_op  # noqa: E402 - only where there is PyTorch


def pictures() -> KernelLibrary:
    library = KernelLibrary()

    @library.register("grayscale", "uint8[h, w, 3] -> uint8[h, w]")
    def grayscale(picture, result):
        result.to_numpy()[:] = picture.to_numpy() @ np.array([0.21, 0.71, 0.07])

    @library.register("extrema", "T[n] -> T[], T[]")
    def extrema(x, lowest, highest):
        lowest.to_numpy()[...], highest.to_numpy()[...] = x.to_numpy().min(), x.to_numpy().max()

    @library.register("total")
    def total(*arguments, scale=1):
        *terms, result = (argument.to_numpy() for argument in arguments)
        result[:] = sum(terms) * scale

    return library


def test_the_documented_example() -> None:
    op_library = CustomOpLibrary(pictures())
    grayscale_op = op_library.grayscale

    def grayscale(pic: torch.Tensor) -> torch.Tensor:
        result = pic.new_empty(pic.shape[:-1])
        grayscale_op(result, pic)
        return result

    img = (torch.rand(64, 64, 3) * 255).to(torch.uint8)
    wanted = torch.from_numpy((img.numpy() @ np.array([0.21, 0.71, 0.07])).astype(np.uint8))
    assert torch.equal(grayscale(img), wanted)
    compiled = torch.compile(grayscale, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(img), wanted)
    assert op_library.grayscale is grayscale_op


def test_several_results() -> None:
    lowest, highest = torch.empty((), dtype=torch.int32), torch.empty((), dtype=torch.int32)
    CustomOpLibrary(pictures()).extrema(lowest, highest, torch.tensor([3, 1, 2], dtype=torch.int32))
    assert (lowest.item(), highest.item()) == (1, 3)


def test_parameters_and_any_number_of_inputs() -> None:
    total, result, one = CustomOpLibrary(pictures()).total, torch.empty(2), torch.ones(2)
    total(result, one, one, one)
    assert result.tolist() == [3, 3]
    total[{"scale": 10}](result, one, one)
    assert result.tolist() == [20, 20]
    total(result, one)
    assert result.tolist() == [1, 1]


def test_a_name_that_no_op_has() -> None:
    library = CustomOpLibrary(pictures())
    with pytest.raises(AttributeError, match="(?s)greyscale.*grayscale"):
        library.greyscale  # noqa: B018
    assert not hasattr(library, "__wrapped__")


def test_tensors_that_the_signature_refuses() -> None:
    with pytest.raises(ValueError, match="grayscale"):
        CustomOpLibrary(pictures()).grayscale(torch.empty(2, 2), torch.empty(2, 2, 3, dtype=torch.uint8))


def test_in_a_graph() -> None:
    def brightness(picture):
        gray = TensorType(picture.dtype, picture.shape[:2], picture.device)
        return ops.max(ops.custom("grayscale", picture.device, [picture], [gray])[0].reshape([-1]))

    result = torch.empty(1, dtype=torch.uint8)
    graph_op(brightness, kernel_library=pictures())(result, torch.full((4, 4, 3), 100, dtype=torch.uint8))
    assert result.item() == 99
