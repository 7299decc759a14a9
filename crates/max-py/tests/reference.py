"""A NumPy reference for each op of the table.

Float inputs are computed in float64 and rounded once to the result's dtype. Ops that make no sense on integers (exp,
softmax, mean, ...) are computed in float64 and truncated to the same dtype.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable, Optional

import numpy as np

from op_cases import FLOATS, Case, Input, map_leaves, narrow, widen

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray, approximate: str = "none") -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    if approximate == "quick":
        return sigmoid(1.702 * x) * x
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def shifted(x: np.ndarray) -> np.ndarray:
    return x - np.max(x, axis=-1, keepdims=True, initial=-np.inf)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(shifted(x))
    return e / e.sum(axis=-1, keepdims=True)


def logsoftmax(x: np.ndarray) -> np.ndarray:
    s = shifted(x)
    return s - np.log(np.exp(s).sum(axis=-1, keepdims=True))


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray,
    epsilon: float,
    weight_offset: float = 0.0,
    multiply_before_cast: bool = False,
) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + epsilon) * (weight + weight_offset)


def axes(axis: Any) -> Any:
    """The axes of a reduction, for NumPy."""
    return tuple(axis) if isinstance(axis, list) else axis


def reduce_sum(x: np.ndarray, axis: Any = -1) -> np.ndarray:
    if x.dtype == bool:
        return np.any(x, axis=axes(axis), keepdims=True)
    return np.sum(x, axis=axes(axis), keepdims=True, dtype=x.dtype)


def reduce_prod(x: np.ndarray, axis: Any = -1) -> np.ndarray:
    return np.prod(x, axis=axes(axis), keepdims=True, dtype=x.dtype)


def cumsum(x: np.ndarray, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    forward = np.flip(x, axis) if reverse else x
    wide = np.float64 if forward.dtype.kind == "f" else forward.dtype
    sums = np.cumsum(forward, axis=axis, dtype=wide)
    if exclusive:
        first = np.zeros_like(np.take(sums, [], axis=axis)) if sums.shape[axis] == 0 else np.take(sums, [0], axis=axis) * 0
        sums = np.concatenate([first, np.take(sums, range(max(sums.shape[axis] - 1, 0)), axis=axis)], axis=axis)
    return (np.flip(sums, axis) if reverse else sums).astype(x.dtype)


def gather_nd(x: np.ndarray, indices: np.ndarray, batch_dims: int = 0) -> np.ndarray:
    y = np.zeros(indices.shape[:-1] + x.shape[batch_dims + indices.shape[-1] :], x.dtype)
    for at in np.ndindex(indices.shape[:-1]):
        y[at] = x[at[:batch_dims]][tuple(indices[at])]
    return y


def combined(x: np.ndarray, updates: np.ndarray, places: Any, combine: Optional[np.ufunc]) -> np.ndarray:
    y = x.copy()
    for at in np.ndindex(updates.shape):  # in order, so that without a combiner the last one stays
        place = tuple(place[at] for place in places)
        y[place] = updates[at] if combine is None else combine(y[place], updates[at])
    return y


def scatter(combine: Optional[np.ufunc] = None) -> Callable:
    def along(x: np.ndarray, updates: np.ndarray, indices: np.ndarray, axis: int = -1) -> np.ndarray:
        places = list(np.indices(indices.shape))
        places[axis] = indices.astype(np.int64)
        return combined(x, updates, tuple(places), combine)

    return along


def scatter_nd(combine: Optional[np.ufunc] = None) -> Callable:
    def by_vectors(x: np.ndarray, updates: np.ndarray, indices: np.ndarray) -> np.ndarray:
        picks, axes = indices.shape[:-1], indices.shape[-1]
        rest = np.indices(updates.shape)[len(picks) :]
        column = (*picks, *[1] * (x.ndim - axes))
        firsts = [np.broadcast_to(indices[..., axis].reshape(column), updates.shape) for axis in range(axes)]
        return combined(x, updates, (*firsts, *rest), combine)

    return by_vectors


def masked_scatter(x: np.ndarray, mask: np.ndarray, updates: np.ndarray, out_dim: Any) -> np.ndarray:
    y, mask = x.copy(), np.broadcast_to(mask, x.shape)
    y[mask] = updates.reshape(-1)[: np.count_nonzero(mask)]
    return y


def fold(
    x: np.ndarray, output_size: Any, kernel_size: Any, stride: Any = 1, dilation: Any = 1, padding: Any = 0
) -> np.ndarray:
    pair = lambda sizes: (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)  # noqa: E731
    (height, width), (rows, columns) = output_size, kernel_size
    stride, dilation, padding = pair(stride), pair(dilation), pair(padding)
    down = (height + 2 * padding[0] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    across = (width + 2 * padding[1] - dilation[1] * (columns - 1) - 1) // stride[1] + 1
    channels = x.shape[1] // (rows * columns)
    blocks = x.reshape(x.shape[0], channels, rows, columns, down, across)
    image = np.zeros((x.shape[0], channels, height + 2 * padding[0], width + 2 * padding[1]), x.dtype)
    for r, c, i, j in np.ndindex(rows, columns, down, across):
        image[:, :, i * stride[0] + r * dilation[0], j * stride[1] + c * dilation[1]] += blocks[:, :, r, c, i, j]
    return image[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width]


def extremum(pairwise: Callable, reduce: Callable) -> Callable:
    def either(x: Any, y: Any = None, axis: Any = -1) -> np.ndarray:
        return reduce(x, axis=axes(axis), keepdims=True) if y is None else pairwise(x, y)

    return either


def flatten(x: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    merged = math.prod(x.shape[start : end + 1])
    return x.reshape(*x.shape[:start], merged, *x.shape[end + 1 :])


def split(x: np.ndarray, split_sizes: list[int], axis: int = 0) -> list[np.ndarray]:
    return np.split(x, np.cumsum(split_sizes)[:-1], axis)


def in_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The positions of elements in sorted order; equal ones keep their order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    turned = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(turned, axis)


def first_k(descending: bool) -> Callable:
    def select(x: np.ndarray, k: int, axis: int = -1) -> list[np.ndarray]:
        places = np.take(in_order(x, axis, descending), np.arange(k), axis=axis)
        return [np.take_along_axis(x, places, axis), places]

    return select


def conv2d(
    x: np.ndarray,
    filter: np.ndarray,
    stride=(1, 1),
    dilation=(1, 1),
    padding=(0, 0, 0, 0),
    groups: int = 1,
    bias: Any = None,
    input_layout: str = "layout:NHWC",
    filter_layout: str = "filter:RSCF",
) -> np.ndarray:
    if input_layout == "layout:NCHW":
        x = x.transpose(0, 2, 3, 1)
    if filter_layout == "filter:FCRS":
        filter = filter.transpose(2, 3, 1, 0)
    top, bottom, left, right = padding
    x = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)])
    rows, cols, group_in, channels_out = filter.shape
    group_out = channels_out // groups
    height = (x.shape[1] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    width = (x.shape[2] - dilation[1] * (cols - 1) - 1) // stride[1] + 1
    out = np.zeros((x.shape[0], height, width, channels_out))
    for i, j in np.ndindex(height, width):
        for r, s in np.ndindex(rows, cols):
            pixel = x[:, i * stride[0] + r * dilation[0], j * stride[1] + s * dilation[1], :]
            for g in range(groups):
                a, b = g * group_in, g * group_out
                out[:, i, j, b : b + group_out] += pixel[:, a : a + group_in] @ filter[r, s, :, b : b + group_out]
    if bias is not None:
        out = out + bias
    return out.transpose(0, 3, 1, 2) if input_layout == "layout:NCHW" else out


def blocks_q4_0(blocks: np.ndarray) -> np.ndarray:
    scale, codes = blocks[:, :2].copy().view("<f2").astype(np.float32), blocks[:, 2:]
    return scale * (np.concatenate([codes % 16, codes // 16], axis=1).astype(np.float32) - 8)


def blocks_q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, :2].copy().view("<f2").astype(np.float32) * blocks[:, 2:].view(np.int8).astype(np.float32)


def blocks_q4_k(blocks: np.ndarray) -> np.ndarray:
    """Eight groups of 32, whose multipliers have 6 bits: the upper two of the last four are in the bytes of the first."""
    scale, least = (blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) for at in (0, 2))
    packed, codes = blocks[:, 4:16], blocks[:, 16:].reshape(-1, 4, 32)
    scales = np.concatenate([packed[:, :4] % 64, packed[:, 8:] % 16 + packed[:, :4] // 64 * 16], axis=1)
    mins = np.concatenate([packed[:, 4:8] % 64, packed[:, 8:] // 16 + packed[:, 4:8] // 64 * 16], axis=1)
    codes = np.stack([codes % 16, codes // 16], axis=2).reshape(-1, 8, 32).astype(np.float32)
    values = (scale * scales.astype(np.float32))[..., None] * codes - (least * mins.astype(np.float32))[..., None]
    return values.reshape(len(blocks), 256)


def blocks_q6_k(blocks: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16. Each half of the elements has 64 bytes of the lower four bits and 32 of the upper two."""
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 32)
    low = np.concatenate([low % 16, low // 16], axis=2)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    codes = (low.astype(np.float32) + 16 * high.astype(np.float32) - 32).reshape(-1, 16, 16)
    scales = blocks[:, 208:].copy().view("<f2").astype(np.float32) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[..., None] * codes).reshape(len(blocks), 256)


BLOCKS = {
    "Q4_0": (18, 32, blocks_q4_0),
    "Q8_0": (34, 32, blocks_q8_0),
    "Q4_K": (144, 256, blocks_q4_k),
    "Q6_K": (210, 256, blocks_q6_k),
}


def dequantize(encoding: str, x: np.ndarray) -> np.ndarray:
    size, elements, decode = BLOCKS[encoding.removeprefix("encoding:")]
    shape = (*x.shape[:-1], x.shape[-1] // size * elements)
    return decode(x.astype(np.uint8).reshape(-1, size)).reshape(shape)


def quantized_rows(x: np.ndarray) -> np.ndarray:
    """What remains of rows that are quantized to signed bytes, a block of 32 at a time."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True, initial=0)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, 0).astype(np.float32)
    codes = np.rint(blocks * inverse).astype(np.float32)
    return (codes * (largest / np.float32(127))).reshape(x.shape)


def gptq(config: list, x: np.ndarray) -> np.ndarray:
    """Codes above half of their range, then a float16 per group; a column of bytes for each row."""
    _, bits, size, _, _ = config
    x = np.ascontiguousarray(x.astype(np.uint8).T)
    if size == -1:
        size = (x.shape[1] - 2) * 8 // bits
    groups = x.shape[1] // (size * bits // 8 + 2)
    codes, scales = x[:, : groups * size * bits // 8], np.ascontiguousarray(x[:, groups * size * bits // 8 :])
    if bits == 4:
        codes = np.stack([codes % 16, codes // 16], axis=-1)
    codes = codes.reshape(len(x), groups, size).astype(np.float32) - 2 ** (bits - 1)
    return (codes * scales.view("<f2").astype(np.float32)[..., None]).reshape(len(x), -1)


def mxfp4(codes: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Two codes per byte, and an exponent for each 32."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([values, -values])
    codes = np.stack([codes.astype(np.uint8) % 16, codes.astype(np.uint8) // 16], axis=-1)
    rows = values[codes].reshape(*exponents.shape, 32)
    return (rows * np.exp2(exponents.astype(np.float32) - 127)[..., None]).reshape(len(exponents), -1)


def qmatmul(encoding: str, config: Any, lhs: np.ndarray, rhs: list[np.ndarray]) -> np.ndarray:
    if encoding == "encoding:GPTQ":
        weights = gptq(config, rhs[0])
        lhs = lhs[..., rhs[1].astype(np.int64)] if len(rhs) > 1 else lhs
    elif len(rhs) > 1:
        weights = mxfp4(*rhs)
    else:
        weights = dequantize(encoding, rhs[0])
    return quantized_rows(lhs).astype(np.float64) @ weights.T.astype(np.float64)


def conv2d_transpose(
    x: np.ndarray,
    filter: np.ndarray,
    stride=(1, 1),
    dilation=(1, 1),
    padding=(0, 0, 0, 0),
    output_paddings=(0, 0),
    bias: Any = None,
    input_layout: str = "layout:NHWC",
    filter_layout: str = "filter:RSCF",
) -> np.ndarray:
    if input_layout == "layout:NCHW":
        x = x.transpose(0, 2, 3, 1)
    filter = filter.transpose({"filter:RSCF": (0, 1, 2, 3), "filter:FCRS": (2, 3, 1, 0), "filter:CFRS": (2, 3, 0, 1)}[filter_layout])
    rows, cols, channels_out, _ = filter.shape
    full = [(x.shape[1 + i] - 1) * stride[i] + dilation[i] * (filter.shape[i] - 1) + 1 + output_paddings[i] for i in (0, 1)]
    out = np.zeros((x.shape[0], *full, channels_out))
    for i, j in np.ndindex(*x.shape[1:3]):
        for r, s in np.ndindex(rows, cols):
            out[:, i * stride[0] + r * dilation[0], j * stride[1] + s * dilation[1]] += x[:, i, j] @ filter[r, s].T
    out = out[:, padding[0] : full[0] - padding[1], padding[2] : full[1] - padding[3]]
    if bias is not None:
        out = out + bias
    return out.transpose(0, 3, 1, 2) if input_layout == "layout:NCHW" else out


def conv3d(
    x: np.ndarray,
    filter: np.ndarray,
    stride=(1, 1, 1),
    dilation=(1, 1, 1),
    padding=(0, 0, 0, 0, 0, 0),
    groups: int = 1,
    bias: Any = None,
    input_layout: str = "layout:NHWC",
    filter_layout: str = "filter:QRSCF",
) -> np.ndarray:
    """The sum over the depth of the filter of two-dimensional convolutions."""
    if input_layout == "layout:NCHW":
        x = x.transpose(0, 2, 3, 4, 1)
    if filter_layout == "filter:FCQRS":
        filter = filter.transpose(2, 3, 4, 1, 0)
    x = np.pad(x, [(0, 0), tuple(padding[:2]), (0, 0), (0, 0), (0, 0)])
    depth = (x.shape[1] - dilation[0] * (filter.shape[0] - 1) - 1) // stride[0] + 1
    images = [
        sum(
            conv2d(x[:, i * stride[0] + q * dilation[0]], filter[q], stride[1:], dilation[1:], padding[2:], groups)
            for q in range(filter.shape[0])
        )
        for i in range(depth)
    ]
    out = np.stack(images, axis=1)
    if bias is not None:
        out = out + bias
    return out.transpose(0, 4, 1, 2, 3) if input_layout == "layout:NCHW" else out


def pad(x: np.ndarray, paddings: list, mode: str = "constant", value: Any = 0) -> np.ndarray:
    ends = list(zip(paddings[::2], paddings[1::2]))
    if not ends:
        return x
    if mode == "constant":
        return np.pad(x, ends, constant_values=value)
    return np.pad(x, ends, mode="edge" if mode == "replicate" else mode)


def irfft(
    x: np.ndarray,
    n: Any = None,
    axis: int = -1,
    normalization: str = "backward",
    input_is_complex: bool = False,
    buffer_size_mb: int = 512,
) -> np.ndarray:
    spectrum = x[..., 0] + 1j * x[..., 1] if input_is_complex else x
    if spectrum.size == 0:
        shape = list(spectrum.shape)
        shape[axis] = 2 * (shape[axis] - 1) if n is None else n
        return np.zeros(shape)
    return np.fft.irfft(spectrum, n, axis, normalization)


def roi_samples(
    start: Any, extent: Any, bins: int, size: int, samples: int
) -> list[list[Any]]:
    """For each bin, the weighted pixels of each sample: none for one outside of the image."""
    step = extent / bins
    count = samples or max(int(np.ceil(step)), 0)
    result = []
    for i in range(bins):
        found = []
        for k in range(count):
            y = start + i * step + (k + start.dtype.type(0.5)) * step / count
            if -1 <= y <= size:
                y = max(y, 0)
                low = min(int(y), size - 1)
                found.append([(low, 1 - (y - low)), (min(low + 1, size - 1), y - low)])
            else:
                found.append([])
        result.append(found)
    return result


def roi_align(
    x: np.ndarray,
    rois: np.ndarray,
    output_height: int,
    output_width: int,
    spatial_scale: float = 1.0,
    sampling_ratio: float = 0.0,
    aligned: bool = False,
    mode: str = "AVG",
) -> np.ndarray:
    real = np.float64
    out = np.zeros((len(rois), output_height, output_width, x.shape[3]))
    for m, (image, *edges) in enumerate(rois):
        left, upper, right, lower = (
            real(e) * real(spatial_scale) - real(0.5 if aligned else 0) for e in edges
        )
        height, width = lower - upper, right - left
        if not aligned:
            height, width = max(height, real(1)), max(width, real(1))
        down = roi_samples(
            upper, height, output_height, x.shape[1], int(sampling_ratio)
        )
        across = roi_samples(left, width, output_width, x.shape[2], int(sampling_ratio))
        for i, j in np.ndindex(output_height, output_width):
            terms = [
                [x[int(image), y, z] * (v * w) for y, v in a for z, w in b]
                or [np.zeros(x.shape[3])]
                for a in down[i]
                for b in across[j]
            ]
            if mode == "AVG" and terms:
                out[m, i, j] = sum(sum(sample) for sample in terms) / len(terms)
            elif terms:
                out[m, i, j] = np.max(
                    [term for sample in terms for term in sample], axis=0
                )
    return out


def non_maximum_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    most: int,
    overlap: float,
    least: float,
    out_dim: Any = None,
) -> np.ndarray:
    rows = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        corners = np.sort(boxes[batch].reshape(-1, 2, 2), axis=1)
        areas = np.prod(corners[:, 1] - corners[:, 0], axis=1)
        score = scores[batch, kind]
        chosen: list[int] = []
        for at in np.argsort(-score, kind="stable"):
            if len(chosen) == most or not score[at] > least:
                continue
            common = [
                np.prod(
                    np.clip(
                        np.minimum(corners[at, 1], corners[o, 1])
                        - np.maximum(corners[at, 0], corners[o, 0]),
                        0,
                        None,
                    )
                )
                for o in chosen
            ]
            if all(
                c / (areas[at] + areas[o] - c) <= overlap
                for c, o in zip(common, chosen)
            ):
                chosen.append(at)
        rows += [[batch, kind, at] for at in chosen]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def arange(start: Any, stop: Any, step: Any = 1, out_dim: Any = None, *, dtype: str, device: str) -> np.ndarray:
    return np.arange(start, stop, step)


def repeat_interleave(x: np.ndarray, repeats: int, axis: Any = None, out_dim: Any = None) -> np.ndarray:
    return np.repeat(x, repeats, axis)


def band_part(x: np.ndarray, num_lower: Any = None, num_upper: Any = None, exclude: bool = False) -> np.ndarray:
    rows, cols = np.indices(x.shape[-2:])
    inside = np.ones(x.shape[-2:], dtype=bool)
    if num_lower is not None:
        inside &= rows - cols <= num_lower
    if num_upper is not None:
        inside &= cols - rows <= num_upper
    return np.where(inside != exclude, x, x.dtype.type(0))


def hann_window(length: int, device: str, periodic: bool = True, dtype: str = "dtype:float32") -> np.ndarray:
    if length == 1:
        return np.ones(1)
    return np.hanning(length + 1)[:-1] if periodic else np.hanning(length)


def complex_mul(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    (a, b), (c, d) = np.moveaxis(lhs, -1, 0), np.moveaxis(rhs, -1, 0)
    return np.stack([a * c - b * d, a * d + b * c], axis=-1)


def clamp(x: np.ndarray, lower_bound: Any = None, upper_bound: Any = None) -> np.ndarray:
    x = x if lower_bound is None else np.maximum(x, lower_bound)
    return x if upper_bound is None else np.minimum(x, upper_bound)


def group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, num_groups: int, epsilon: float) -> np.ndarray:
    rows = x.reshape(x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups)
    normal = layer_norm(rows, np.ones(1), np.zeros(1), epsilon).reshape(x.shape)
    per_channel = (-1,) + (1,) * (x.ndim - 2)
    return normal * gamma.reshape(per_channel) + beta.reshape(per_channel)


def windows(size: int, kernel: int, stride: int, dilation: int, padding: int, ceil: bool) -> list[list[int]]:
    """The positions of the elements of each window on an axis; those in the padding are outside of it."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # a window must start before the end of the padding
    return [[i * stride + tap * dilation - padding for tap in range(kernel)] for i in range(count)]


def pool(x: np.ndarray, kernel_size, stride, dilation, padding, ceil: bool, combine: Callable) -> np.ndarray:
    pair = lambda value: value if isinstance(value, (list, tuple)) else (value, value)  # noqa: E731
    moves = zip(x.shape[1:3], kernel_size, pair(stride), pair(dilation), pair(padding))
    rows, columns = (windows(*axis, ceil) for axis in moves)
    out = np.empty((x.shape[0], len(rows), len(columns), x.shape[3]), dtype=x.dtype)
    for i, j in np.ndindex(len(rows), len(columns)):
        inside = [[at for at in taps if 0 <= at < size] for taps, size in zip((rows[i], columns[j]), x.shape[1:3])]
        padded = [
            [at for at in taps if at < size + pad]
            for taps, size, pad in zip((rows[i], columns[j]), x.shape[1:3], pair(padding))
        ]
        taken = len(inside[0]) * len(inside[1])
        patch = x[:, inside[0]][:, :, inside[1]].reshape(x.shape[0], taken, x.shape[3])
        out[:, i, j] = combine(patch, len(padded[0]) * len(padded[1]))
    return out


def max_pool2d(x: np.ndarray, kernel_size, stride=1, dilation=1, padding=0, ceil_mode: bool = False) -> np.ndarray:
    if x.dtype.kind == "f":
        least: Any = -np.inf
    else:
        least = False if x.dtype == bool else np.iinfo(x.dtype).min
    combine = lambda patch, _: np.max(patch, axis=1, initial=least)  # noqa: E731
    return pool(x, kernel_size, stride, dilation, padding, ceil_mode, combine)


def avg_pool2d(
    x: np.ndarray,
    kernel_size,
    stride=1,
    dilation=1,
    padding=0,
    ceil_mode: bool = False,
    count_boundary: bool = True,
) -> np.ndarray:
    def combine(patch: np.ndarray, padded: int) -> np.ndarray:
        return patch.sum(axis=1) / max(padded if count_boundary else patch.shape[1], 1)

    return pool(x, kernel_size, stride, dilation, padding, ceil_mode, combine)


def coordinates(size: int, count: int, mode: int) -> list[Fraction]:
    """Where the elements of a resized axis are on its source."""
    if mode in (1, 3) and count == 1:
        return [Fraction(0)]
    if mode == 1:
        return [Fraction(i * (size - 1), count - 1) for i in range(count)]
    if mode == 2:
        return [Fraction(i * size, count) for i in range(count)]
    return [Fraction((2 * i + 1) * size - count, 2 * count) for i in range(count)]


def cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def interpolated(
    x: np.ndarray,
    shape,
    mode: int,
    kernel: Callable,
    reach: int,
    antialias: bool = False,
) -> np.ndarray:
    """Every axis as the product with a matrix of weights."""
    for axis, count in enumerate(shape):
        size = x.shape[axis]
        if size == count:
            continue
        matrix = np.zeros((count, size))
        for i, at in enumerate(coordinates(size, count, mode)):
            if antialias and size > count:
                matrix[i] = [max(0.0, 1 - abs(j - float(at)) * count / size) for j in range(size)]
                matrix[i] /= matrix[i].sum()
                continue
            for j in range(math.floor(at) - reach + 1, math.floor(at) + reach + 1):
                matrix[i, min(max(j, 0), size - 1)] += kernel(float(at - j))
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


def settled(x: np.ndarray) -> np.ndarray:
    """Numbers that are integers but for rounding errors become these, before they are truncated for integer dtypes."""
    near = np.rint(x)
    return np.where(np.abs(x - near) <= 1e-12 * np.maximum(np.abs(near), 1), near, x)


def resize_linear(x: np.ndarray, size, coordinate_transform_mode: int = 0, antialias: bool = False) -> np.ndarray:
    tent = lambda distance: max(0.0, 1 - abs(distance))  # noqa: E731
    return settled(interpolated(x, size, coordinate_transform_mode, tent, 1, antialias))


def resize_bicubic(x: np.ndarray, size) -> np.ndarray:
    return settled(interpolated(x, size, 0, cubic, 2))


def resize_nearest(x: np.ndarray, size, coordinate_transform_mode: int = 0, round_mode: int = 0) -> np.ndarray:
    half = Fraction(1, 2)
    roundings: list[Callable] = [
        lambda at: math.ceil(at - half),
        lambda at: math.floor(at + half),
        math.floor,
        math.ceil,
    ]
    for axis, count in enumerate(size):
        places = [roundings[round_mode](at) for at in coordinates(x.shape[axis], count, coordinate_transform_mode)]
        x = np.take(x, np.clip(np.array(places, dtype=int), 0, x.shape[axis] - 1), axis=axis)
    return x


def resize(x: np.ndarray, shape, interpolation: str = "bilinear") -> np.ndarray:
    if interpolation == "nearest" or list(x.shape) == list(shape):
        return resize_nearest(x, shape)
    wide = x.astype(np.float64)
    return resize_bicubic(wide, shape) if interpolation == "bicubic" else resize_linear(wide, shape)


PREDICATES: dict[str, Callable] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
}

# Computed in float64 whatever the dtype.
REAL: dict[str, Callable] = {
    "div": np.true_divide,
    "gelu": gelu,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "erf": erf,
    "atanh": np.arctanh,
    "acos": np.arccos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "mean": lambda x, axis=-1: np.mean(x, axis=axes(axis), keepdims=True),
    "softmax": softmax,
    "logsoftmax": logsoftmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "conv3d": conv3d,
    "irfft": irfft,
    "roi_align": roi_align,
    "non_maximum_suppression": non_maximum_suppression,
    "group_norm": group_norm,
    "hann_window": hann_window,
    "avg_pool2d": avg_pool2d,
    "resize_bicubic": resize_bicubic,
    "resize_linear": resize_linear,
}

EXACT: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "max": extremum(np.maximum, np.max),
    "min": extremum(np.minimum, np.min),
    "abs": np.abs,
    "negate": np.negative,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "where": np.where,
    "cast": lambda x, dtype: x,
    "prod": reduce_prod,
    "sum": reduce_sum,
    "argmax": lambda x, axis=-1: np.argmax(x, axis=axis, keepdims=True),
    "argmin": lambda x, axis=-1: np.argmin(x, axis=axis, keepdims=True),
    "reshape": np.reshape,
    "rebind": lambda x, shape, message="": x,
    "transpose": np.swapaxes,
    "pad": pad,
    "permute": np.transpose,
    "flatten": flatten,
    "squeeze": np.squeeze,
    "unsqueeze": np.expand_dims,
    "broadcast_to": np.broadcast_to,
    "concat": np.concatenate,
    "stack": np.stack,
    "split": split,
    "chunk": np.split,
    "matmul": np.matmul,
    "range": arange,
    "tile": np.tile,
    "repeat_interleave": repeat_interleave,
    "band_part": band_part,
    "outer": np.outer,
    "as_interleaved_complex": lambda x: x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2),
    "complex_mul": complex_mul,
    "clamp": clamp,
    "cumsum": cumsum,
    "max_pool2d": max_pool2d,
    "resize": resize,
    "resize_nearest": resize_nearest,
    "gather": lambda x, indices, axis=-1: np.take(x, indices, axis=axis),
    "top_k": first_k(descending=True),
    "bottom_k": first_k(descending=False),
    "argsort": lambda x, ascending=True: in_order(x, 0, not ascending),
    "nonzero": lambda x, out_dim: np.argwhere(x != 0),
    "gather_nd": gather_nd,
    "scatter": scatter(),
    "scatter_add": scatter(np.add),
    "scatter_max": scatter(np.maximum),
    "scatter_min": scatter(np.minimum),
    "scatter_mul": scatter(np.multiply),
    "scatter_nd": scatter_nd(),
    "scatter_nd_add": scatter_nd(np.add),
    "scatter_nd_max": scatter_nd(np.maximum),
    "scatter_nd_min": scatter_nd(np.minimum),
    "scatter_nd_mul": scatter_nd(np.multiply),
    "masked_scatter": masked_scatter,
    "fold": fold,
    "dequantize": dequantize,
    "qmatmul": qmatmul,
}

OPS = {**PREDICATES, **REAL, **EXACT}


def result_dtype(case: Case, number: int) -> str:
    if case.op in PREDICATES:
        return "bool"
    positions = ("argmax", "argmin", "argsort", "nonzero", "non_maximum_suppression")
    if case.op in positions or (case.op in ("top_k", "bottom_k") and number == 1):
        return "int64"
    if case.op == "div" and case.dtype not in FLOATS:
        return "float64"
    if case.op == "cast":
        return case.args[1].removeprefix("dtype:")
    return case.dtype


def reference(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The expected outputs of `case` for `arrays`, rounded to the result's dtype."""
    values = iter(arrays)
    symbols = case.symbols

    def leaf(value: Any) -> Any:
        if isinstance(value, Input):
            array = widen(next(values))
            return array.astype(np.float64) if case.op in REAL else array
        return symbols.get(value, value) if isinstance(value, str) else value

    args, kwargs = map_leaves([case.args, case.kwargs], leaf)
    with np.errstate(all="ignore"):
        result = OPS[case.op](*args, **kwargs)
    outputs = result if isinstance(result, list) else [result]
    return [narrow(output, result_dtype(case, number)) for number, output in enumerate(outputs)]
