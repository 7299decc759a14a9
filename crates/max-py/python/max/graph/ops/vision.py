"""Ops on regions of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max.graph.value import TensorValue, TensorValueLike, call

if TYPE_CHECKING:
    from max.graph.dim import DimLike


def roi_align(
    input: TensorValueLike,
    rois: TensorValueLike,
    output_height: int,
    output_width: int,
    spatial_scale: float = 1.0,
    sampling_ratio: float = 0.0,
    aligned: bool = False,
    mode: str = "AVG",
) -> TensorValue:
    """Regions of images, resampled to a common size.

    A region is divided into a grid of bins, and a bin is sampled at some points, each interpolated from four pixels. A
    sample more than a pixel away from the image contributes zero.

    >>> from max.dtype import DType
    >>> from max.graph import Graph, TensorType, ops
    >>> types = [TensorType(DType.float32, [1, 64, 64, 256]), TensorType(DType.float32, ["m", 5])]
    >>> with Graph("regions", input_types=types) as graph:
    ...     ops.roi_align(*graph.inputs, 7, 7, spatial_scale=1 / 16).shape
    [Dim('m'), Dim(7), Dim(7), Dim(256)]

    Args:
        input: The images, `[N, H, W, C]`.
        rois: The regions, `[M, 5]`: the number of the image, then the left, upper, right and lower edge.
        output_height: The number of bins along the height.
        output_width: The number of bins along the width.
        spatial_scale: What coordinates are multiplied by.
        sampling_ratio: The samples of a bin along an axis; 0 for one for each pixel that it extends over.
        aligned: Whether coordinates are moved by half a pixel. Otherwise a region extends over at least one pixel.
        mode: `"AVG"` for the mean of all samples, `"MAX"` for the largest contribution of a pixel to a sample.

    Raises:
        IndexError: At run time, if a region is of an image that does not exist.
    """
    ratios = float(spatial_scale), float(sampling_ratio)
    return call("roi_align", input, rois, output_height, output_width, *ratios, aligned, mode)


def non_maximum_suppression(
    boxes: TensorValueLike,
    scores: TensorValueLike,
    max_output_boxes_per_class: TensorValueLike,
    iou_threshold: TensorValueLike,
    score_threshold: TensorValueLike,
    out_dim: DimLike = "num_selected",
) -> TensorValue:
    """The boxes with the best scores, without those that overlap a better one of the same class too much.

    For each batch and class the box with the best score is selected, and all boxes that overlap it are dropped; then
    the best of those left, and so on. Of equal scores the first is best. A score of NaN is never selected.

    >>> from max.experimental import functional as F
    >>> from max.experimental.tensor import Tensor
    >>> boxes = Tensor([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [0.0, 5.0, 1.0, 6.0]]])
    >>> F.non_maximum_suppression(boxes, Tensor([[[0.9, 0.8, 0.7]]]), 10, 0.5, 0.0).to_numpy()
    array([[0, 0, 0],
           [0, 0, 2]])

    Args:
        boxes: The boxes, `[batches, boxes, 4]`: two opposite corners each, in any order.
        scores: The scores, `[batches, classes, boxes]`.
        max_output_boxes_per_class: The most boxes to select for a batch and a class, an integer.
        iou_threshold: A box overlaps another if their intersection is more than this share of their union.
        score_threshold: Boxes whose score is not above it are not selected.
        out_dim: The dim of the result, the number of selected boxes.

    Returns:
        A row for each selected box, as int64: its batch, its class and its number.
    """
    limits = max_output_boxes_per_class, iou_threshold, score_threshold
    return call("non_maximum_suppression", boxes, scores, *limits, out_dim)
