"""Padding, transposed and three-dimensional convolutions, regions of images, boxes and spectra."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.tensor import Tensor
from max.graph import Graph, TensorType, ops
from max.graph.ops.spectral import Normalization
from max.graph.type import ConvInputLayout, FilterLayout

from helpers import CPU, evaluate

GOLDENS = np.load(Path(__file__).parent / "goldens" / "vision.npz")
CASES = json.loads(str(GOLDENS["cases"]))
PLACES = json.loads(str(GOLDENS["places"]))
VALUES = GOLDENS["values"]


def golden(name: str) -> list:
    return [pytest.param(i, case, id=f"{i}") for i, case in enumerate(CASES[name])]


def arrays(name: str, number: int) -> list[np.ndarray]:
    places = [PLACES[f"{name}.{number}.{part}"] for part in "xwby"]
    return [VALUES[start : start + int(np.prod(shape))].reshape(shape) for start, shape in places]


def ends(padding: list[int]) -> tuple[int, ...]:
    return tuple(size for size in padding for _ in (0, 1))


def built(function, *types: TensorType):
    with Graph("built", input_types=types) as graph:
        return function(*(value.tensor for value in graph.inputs))


def image(*shape, dtype: DType = DType.float32) -> TensorType:
    return TensorType(dtype, shape, CPU)


@pytest.mark.parametrize("number, case", golden("conv2d_transpose"))
def test_conv2d_transpose_is_that_of_pytorch(session, number: int, case: dict) -> None:
    x, w, b, y = arrays("conv2d_transpose", number)
    options = {
        "stride": tuple(case["stride"]),
        "dilation": tuple(case["dilation"]),
        "padding": ends(case["padding"]),
        "output_paddings": tuple(case["output_padding"]),
    }
    planar = {"input_layout": ConvInputLayout.NCHW, "filter_layout": FilterLayout.FCRS}
    (actual,) = evaluate(
        session,
        lambda x, w, b: ops.conv2d_transpose(x, w, bias=b, **options, **planar),
        x,
        w,
        b,
    )
    np.testing.assert_array_equal(actual, y)
    channels_last = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), b
    (actual,) = evaluate(
        session,
        lambda x, w, b: ops.conv2d_transpose(x, w, bias=b, **options),
        *channels_last,
    )
    np.testing.assert_array_equal(actual.transpose(0, 3, 1, 2), y)


@pytest.mark.parametrize("number, case", golden("conv3d"))
def test_conv3d_is_that_of_pytorch(session, number: int, case: dict) -> None:
    x, w, b, y = arrays("conv3d", number)
    options = {
        "stride": tuple(case["stride"]),
        "dilation": tuple(case["dilation"]),
        "padding": ends(case["padding"]),
        "groups": case["groups"],
    }
    planar = {"input_layout": ConvInputLayout.NCHW, "filter_layout": FilterLayout.FCQRS}
    (actual,) = evaluate(session, lambda x, w, b: ops.conv3d(x, w, bias=b, **options, **planar), x, w, b)
    np.testing.assert_array_equal(actual, y)
    channels_last = x.transpose(0, 2, 3, 4, 1), w.transpose(2, 3, 4, 1, 0), b
    (actual,) = evaluate(session, lambda x, w, b: ops.conv3d(x, w, bias=b, **options), *channels_last)
    np.testing.assert_array_equal(actual.transpose(0, 4, 1, 2, 3), y)


@pytest.mark.parametrize("number, case", golden("pad"))
def test_pad_is_that_of_pytorch(session, number: int, case: dict) -> None:
    x, _, _, y = arrays("pad", number)
    left, right, top, bottom = case["padding"]
    paddings = [0, 0, 0, 0, top, bottom, left, right]
    (actual,) = evaluate(session, lambda x: ops.pad(x, paddings, mode=case["mode"]), x)
    np.testing.assert_array_equal(actual, y)


def test_pad_of_a_size_known_at_run_time(session) -> None:
    with Graph("reflect", input_types=[image("n")]) as graph:
        graph.output(ops.pad(graph.inputs[0], [2, 1], mode="reflect"))
    model = session.load(graph)
    (y,) = model.execute(np.arange(3, dtype=np.float32))
    np.testing.assert_array_equal(y.to_numpy(), [2, 1, 0, 1, 2, 1])
    for size in (0, 1, 2):
        with pytest.raises(ValueError, match="out of range for axis 0"):
            model.execute(np.zeros(size, np.float32))


def test_pad_of_no_elements_by_repetition(session) -> None:
    with Graph("edge", input_types=[image("n")]) as graph:
        graph.output(ops.pad(graph.inputs[0], [0, 1], mode="edge"))
    with pytest.raises(ValueError, match="out of range for axis 0"):
        session.load(graph).execute(np.zeros(0, np.float32))


@pytest.mark.parametrize(
    "paddings, options, message",
    [
        ([0, -1, 0, 0], {}, "padding values must be non-negative"),
        ([0, 0, 0], {}, "pad needs two values for each of the 2 axes"),
        ([0, 0, 0, 0], {"mode": "wrap"}, "unsupported padding mode 'wrap'"),
        ([3, 0, 0, 0], {"mode": "reflect"}, "less padding than elements"),
        ([0, 0, 0, 4], {"mode": "reflect"}, "less padding than elements"),
        ([1, 0, 0, 0], {"value": [1.0, 2.0]}, "pad value must be a scalar"),
        ([2**62, 2**62, 0, 0], {}, "64 bits"),
    ],
)
def test_pad_errors(paddings: list, options: dict, message: str) -> None:
    value = np.array(options.pop("value"), np.float32) if "value" in options else 0
    with pytest.raises(ValueError, match=message):
        built(lambda x: ops.pad(x, paddings, value=value, **options), image(3, 4))


def test_pad_value_keeps_the_dtype() -> None:
    assert built(lambda x: ops.pad(x, [1, 1], value=7), image(3, dtype=DType.int32)).dtype == DType.int32
    assert built(lambda x: ops.pad(x, [1, 1]), image(3, dtype=DType.bool)).dtype == DType.bool
    with pytest.raises(ValueError, match="Unsafe cast"):
        built(lambda x: ops.pad(x, [1, 1], value=2.5), image(3, dtype=DType.int32))
    with pytest.raises(ValueError, match="Unsafe cast"):
        built(
            lambda x, v: ops.pad(x, [1, 1], value=v),
            image(3),
            image(dtype=DType.float64),
        )


def test_no_padding_is_the_input() -> None:
    with Graph("same", input_types=[image(3)]) as graph:
        ops.pad(graph.inputs[0], [0, 0])
        assert "concat" not in str(graph)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stride": (0, 1)}, "conv2d_transpose stride must be from 1"),
        ({"stride": (2**62, 1)}, "conv2d_transpose stride must be from 1"),
        ({"dilation": (1, -1)}, "conv2d_transpose dilation must be from 1"),
        ({"padding": (0, 0, -1, 0)}, "conv2d_transpose padding must be from 0"),
        ({"padding": (0, 0, 9, 9)}, "conv2d_transpose has no result"),
        (
            {"stride": (2, 2), "output_paddings": (2, 0)},
            "output padding must be smaller than either stride or dilation",
        ),
        ({"stride": (1,)}, "conv2d_transpose stride must be 2 integers"),
        (
            {"filter_layout": FilterLayout.QRSCF},
            "conv2d_transpose needs a filter with four axes",
        ),
        (
            {"bias": np.zeros(5, np.float32)},
            "conv2d_transpose bias must have the shape",
        ),
    ],
)
def test_conv2d_transpose_errors(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(
            lambda x, w: ops.conv2d_transpose(x, w, **options),
            image(1, 5, 5, 2),
            image(3, 3, 4, 2),
        )


def test_conv2d_transpose_of_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="must be rank 4"):
        built(ops.conv2d_transpose, image(5, 5, 2), image(3, 3, 4, 2))
    with pytest.raises(ValueError, match="channels"):
        built(ops.conv2d_transpose, image(1, 5, 5, 3), image(3, 3, 4, 2))
    with pytest.raises(ValueError, match="known size with at least one tap"):
        built(ops.conv2d_transpose, image(1, 5, 5, 2), image("r", 3, 4, 2))
    with pytest.raises(ValueError, match="convolutions"):
        built(
            lambda x, w: ops.conv2d_transpose(x, w, stride=(2**20, 1)),
            image(1, 5, 5, 2),
            image(2**20, 1, 0, 2),
        )


def test_a_long_stride_is_mostly_zeros(session) -> None:
    x = np.array([[[[2.0]], [[3.0]]]], np.float32)
    w = np.array([[[[5.0]]]], np.float32)
    (y,) = evaluate(session, lambda x, w: ops.conv2d_transpose(x, w, stride=(1000, 1)), x, w)
    assert y.shape == (1, 1001, 1, 1)
    assert (y[0, 0, 0, 0], y[0, 1000, 0, 0], y.sum()) == (10, 15, 25)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stride": (1, 0, 1)}, "conv3d stride must be from 1"),
        ({"padding": (2**62, 0, 0, 0, 0, 0)}, "conv3d padding must be from 0"),
        ({"groups": 2}, "conv3d input channels"),
        ({"dilation": (9, 1, 1)}, "does not fit into the padded depth"),
        ({"filter_layout": FilterLayout.RSCF}, "conv3d needs a filter with five axes"),
        ({"bias": np.zeros(5, np.float32)}, "conv3d bias must have the shape"),
    ],
)
def test_conv3d_errors(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(
            lambda x, w: ops.conv3d(x, w, **options),
            image(1, 5, 5, 5, 2),
            image(3, 3, 3, 2, 4),
        )


def test_conv3d_of_wrong_ranks() -> None:
    with pytest.raises(ValueError, match="rank 5"):
        built(ops.conv3d, image(1, 5, 5, 2), image(3, 3, 3, 2, 4))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 96, 1000, 1021])
@pytest.mark.parametrize("norm", list(Normalization))
def test_irfft_is_that_of_numpy(session, n: int, norm: Normalization, dtype: str, tolerance: float) -> None:
    parts = np.random.default_rng(n).standard_normal((3, n // 2 + 1, 2)).astype(dtype)
    wanted = np.fft.irfft(parts[..., 0] + 1j * parts[..., 1].astype(dtype), n, norm=norm.value)
    (y,) = evaluate(
        session,
        lambda x: ops.irfft(x, n, normalization=norm, input_is_complex=True),
        parts,
    )
    np.testing.assert_allclose(y, wanted, atol=tolerance * np.abs(wanted).max(), rtol=0)
    assert y.dtype == dtype


def test_irfft_does_not_depend_on_threads() -> None:
    parts = np.random.default_rng(0).standard_normal((7, 1500, 5, 2)).astype(np.float32)
    with Graph("spectra", input_types=[image(*parts.shape)]) as graph:
        graph.output(ops.irfft(graph.inputs[0], axis=1, input_is_complex=True))
    results = [InferenceSession(num_threads=n).load(graph).execute(parts)[0].to_numpy() for n in (1, 3)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n": 0}, "irfft needs a size of at least 1"),
        ({"n": -(2**62)}, "irfft needs a size of at least 1"),
        ({"axis": 2}, "irfft axis 2 is out of range"),
        ({"normalization": "both"}, "'both' is not a normalization"),
        ({"input_is_complex": True}, "needs a last dimension of 2"),
    ],
)
def test_irfft_errors(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(lambda x: ops.irfft(x, **options), image(4, 3))


def test_irfft_needs_floats() -> None:
    with pytest.raises(ValueError, match="irfft needs floats"):
        built(ops.irfft, image(4, dtype=DType.int32))


@pytest.mark.parametrize("n", [2**62, 2**52, 2**40])
def test_irfft_that_is_too_large(session, n: int) -> None:
    with pytest.raises((MemoryError, ValueError), match="64 bits|refused to allocate"):
        evaluate(session, lambda x: ops.irfft(x, n), np.zeros(3, np.float32))


@pytest.mark.parametrize("paddings", [[2**62, 0, 2**62, 0], [2**60, 0, 0, 0], [0, 0, 0, 2**45]])
def test_pad_that_is_too_large(session, paddings: list) -> None:
    with pytest.raises((MemoryError, ValueError), match="64 bits|refused to allocate"):
        evaluate(session, lambda x: ops.pad(x, paddings), np.zeros((3, 4), np.float32))


def test_irfft_of_a_size_known_at_run_time(session) -> None:
    with Graph("spectrum", input_types=[image("n")]) as graph:
        graph.output(ops.irfft(graph.inputs[0]))
    model = session.load(graph)
    np.testing.assert_allclose(model.execute(np.array([4, 0, 0], np.float32))[0].to_numpy(), [1, 1, 1, 1])
    with pytest.raises(ValueError):
        model.execute(np.zeros(1, np.float32))


def region(*numbers: float) -> np.ndarray:
    return np.array([numbers], np.float32)


def test_roi_align_of_a_gradient(session) -> None:
    """Interpolation of what grows evenly gives the centres of the bins."""
    y, x = np.mgrid[0:8, 0:8].astype(np.float32)
    pixels = np.stack([y, x], axis=-1)[None]
    (bins,) = evaluate(session, lambda x, r: ops.roi_align(x, r, 2, 2), pixels, region(0, 1, 2, 5, 6))
    np.testing.assert_allclose(bins[0], [[[3, 2], [3, 4]], [[5, 2], [5, 4]]])
    (bins,) = evaluate(
        session,
        lambda x, r: ops.roi_align(x, r, 2, 2, aligned=True),
        pixels,
        region(0, 1, 2, 5, 6),
    )
    np.testing.assert_allclose(bins[0], [[[2.5, 1.5], [2.5, 3.5]], [[4.5, 1.5], [4.5, 3.5]]])


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["AVG", "MAX"])
@pytest.mark.parametrize(
    "edges",
    [
        (-1e30, -1e30, 1e30, 1e30),
        (np.nan, 0, 3, 3),
        (0, 0, np.inf, np.inf),
        (9, 9, -9, -9),
        (1e9, 1e9, 2e9, 2e9),
    ],
)
def test_roi_align_of_any_region_ends(session, edges: tuple, mode: str, aligned: bool) -> None:
    (y,) = evaluate(
        session,
        lambda x, r: ops.roi_align(x, r, 2, 2, aligned=aligned, mode=mode),
        np.ones((1, 4, 4, 1), np.float32),
        region(0, *edges),
    )
    assert np.isfinite(y).all() and y.max() <= 1


@pytest.mark.parametrize("number", [-1, 2, np.nan, np.inf, 1e30])
def test_roi_align_of_an_image_that_does_not_exist(session, number: float) -> None:
    with pytest.raises(IndexError, match="out of range for axis 0 with size 2"):
        evaluate(
            session,
            lambda x, r: ops.roi_align(x, r, 1, 1),
            np.ones((2, 3, 3, 1), np.float32),
            region(number, 0, 0, 1, 1),
        )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "MIN"}, "roi_align mode must be 'AVG' or 'MAX', got 'MIN'"),
        ({"output_height": -1}, "roi_align output_height must be from 0"),
        ({"output_width": 2**62}, "roi_align output_width must be from 0"),
        ({"sampling_ratio": 1.5}, "roi_align sampling_ratio must be a whole number"),
        (
            {"sampling_ratio": 2.0**62},
            "roi_align sampling_ratio must be a whole number",
        ),
        ({"spatial_scale": float("nan")}, "roi_align spatial_scale must be finite"),
    ],
)
def test_roi_align_errors(options: dict, message: str) -> None:
    sizes = {"output_height": 2, "output_width": 2}
    with pytest.raises(ValueError, match=message):
        built(
            lambda x, r: ops.roi_align(x, r, **{**sizes, **options}),
            image(1, 4, 4, 1),
            image("m", 5),
        )


def test_roi_align_of_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="rank-4 input"):
        built(lambda x, r: ops.roi_align(x, r, 1, 1), image(4, 4, 1), image(1, 5))
    with pytest.raises(ValueError, match=r"roi_align expects rank-2 rois \[M, 5\], got rank 0"):
        built(lambda x, r: ops.roi_align(x, r, 1, 1), image(1, 4, 4, 1), image())
    with pytest.raises(ValueError, match="five numbers"):
        built(lambda x, r: ops.roi_align(x, r, 1, 1), image(1, 4, 4, 1), image(1, 4))


BOXES = np.array(
    [
        [
            [0, 0, 1, 1],
            [0, 0.1, 1, 1.1],
            [0, -0.1, 1, 0.9],
            [1.1, 10, 0, 11],
            [0, 10.1, 1, 11.1],
            [0, 100, 1, 101],
        ]
    ],
    np.float32,
)
SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3], [0.5, 0.5, 0.5, np.nan, 0.5, 0.5]]], np.float32)


def test_suppression(session) -> None:
    def select(boxes, scores, most, overlap):
        return ops.non_maximum_suppression(boxes, scores, most, overlap, 0.0)

    limits = np.array(3, np.int64), np.array(0.5, np.float32)
    (y,) = evaluate(session, select, BOXES, SCORES, *limits)
    np.testing.assert_array_equal(y, [[0, 0, 3], [0, 0, 0], [0, 0, 5], [0, 1, 0], [0, 1, 4], [0, 1, 5]])
    for most in (0, -1, -(2**62)):
        (y,) = evaluate(session, select, BOXES, SCORES, np.array(most, np.int64), limits[1])
        assert y.shape == (0, 3)
    (y,) = evaluate(session, select, BOXES, SCORES, np.array(2**62, np.int64), limits[1])
    assert len(y) == 6


def test_suppression_names_its_size(session) -> None:
    with Graph("boxes", input_types=[image(1, "n", 4), image(1, 2, "n")]) as graph:
        boxes, scores = (value.tensor for value in graph.inputs)
        rows = ops.non_maximum_suppression(boxes, scores, 10, 0.5, 0.55, out_dim="k")
        assert [str(dim) for dim in rows.shape] == ["k", "3"]
        assert rows.dtype == DType.int64
        graph.output(ops.gather(boxes, rows[:, 2], axis=1))
    (y,) = session.load(graph).execute(BOXES, SCORES)
    np.testing.assert_array_equal(y.to_numpy(), BOXES[:, [3, 0]])


def test_suppression_of_tensors() -> None:
    rows = F.non_maximum_suppression(Tensor(BOXES), Tensor(SCORES), 1, 0.5, 0.0)
    np.testing.assert_array_equal(rows.to_numpy(), [[0, 0, 3], [0, 1, 0]])


def test_suppression_errors() -> None:
    with pytest.raises(ValueError, match=r"needs boxes \[batches, boxes, 4\]"):
        built(
            lambda b, s: ops.non_maximum_suppression(b, s, 1, 0.5, 0.0),
            image(6, 4),
            image(1, 2, 6),
        )
    with pytest.raises(ValueError, match=r"needs boxes \[batches, boxes, 4\]"):
        built(
            lambda b, s: ops.non_maximum_suppression(b, s, 1, 0.5, 0.0),
            image(1, 6, 4),
            image(1, 2, 7),
        )
    with pytest.raises(ValueError, match="max_output_boxes_per_class must be a scalar of type int64"):
        built(
            lambda b, s, m: ops.non_maximum_suppression(b, s, m, 0.5, 0.0),
            image(1, 6, 4),
            image(1, 2, 6),
            image(3, dtype=DType.int64),
        )
    with pytest.raises(ValueError, match="floats"):
        built(
            lambda b, s: ops.non_maximum_suppression(b, s, 1, 0.5, 0.0),
            image(1, 6, 4, dtype=DType.int32),
            image(1, 2, 6, dtype=DType.int32),
        )


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_narrow_floats(dtype: DType) -> None:
    """They are computed in float32 and rounded once."""
    x = F.cast(Tensor(np.ones((1, 2, 2, 1), np.float32)), dtype)
    w = F.cast(Tensor(np.ones((2, 2, 1, 1), np.float32)), dtype)
    assert F.conv2d_transpose(x, w).dtype == dtype
    assert F.irfft(x, axis=1).dtype == dtype
    rois = Tensor(np.array([[0, 0, 0, 1, 1]], np.float32))
    y = F.roi_align(x, rois, 1, 1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(F.cast(y, DType.float32).to_numpy(), [[[[1]]]])
