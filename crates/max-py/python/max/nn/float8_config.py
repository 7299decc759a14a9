"""How float8 weights and inputs are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from max.dtype import DType

__all__ = [
    "Float8Config",
    "Float8InputScaleSpec",
    "Float8ScaleGranularity",
    "Float8ScaleOrigin",
    "Float8WeightScaleSpec",
]


class Float8ScaleGranularity(Enum):
    """What shares a scale: a tensor, a row, a column or a block of a matrix."""

    TENSOR = "tensor"
    ROWWISE = "rowwise"
    COLWISE = "colwise"
    BLOCK = "block"


class Float8ScaleOrigin(Enum):
    """Whether scales are known beforehand, or computed from what they scale."""

    STATIC = "static"
    DYNAMIC = "dynamic"


class _Granular:
    """What both specs of scales have."""

    granularity: Float8ScaleGranularity
    block_size: tuple[int, int] | None

    def __post_init__(self) -> None:
        if self.granularity is not Float8ScaleGranularity.BLOCK:
            return
        if self.block_size is None:
            raise ValueError("block_size must be specified for block-wise scaling")
        if len(self.block_size) != 2:
            raise ValueError("block_size must be a tuple of two integers")
        if min(self.block_size) < 1:
            raise ValueError(f"the sizes of a block must be positive; got {self.block_size}")

    @property
    def is_tensor(self) -> bool:
        """Whether there is one scale."""
        return self.granularity is Float8ScaleGranularity.TENSOR

    @property
    def is_rowwise(self) -> bool:
        """Whether each row has a scale."""
        return self.granularity is Float8ScaleGranularity.ROWWISE

    @property
    def is_colwise(self) -> bool:
        """Whether each column has a scale."""
        return self.granularity is Float8ScaleGranularity.COLWISE

    @property
    def is_block(self) -> bool:
        """Whether each block has a scale."""
        return self.granularity is Float8ScaleGranularity.BLOCK


@dataclass
class Float8WeightScaleSpec(_Granular):
    """How weights are scaled.

    Attributes:
        granularity: What shares a scale.
        dtype: The dtype of the scales.
        block_size: The rows and columns of a block, if these have scales.
    """

    granularity: Float8ScaleGranularity
    dtype: DType
    block_size: tuple[int, int] | None = None


@dataclass
class Float8InputScaleSpec(_Granular):
    """How inputs are scaled.

    Inputs whose granularity is `COLWISE` have a scale for each token: the matrix of scales, `[1, tokens]`, has these in
    its columns.

    Attributes:
        granularity: What shares a scale.
        origin: Whether scales are known beforehand.
        dtype: The dtype of the scales.
        activation_scale_ub: The largest magnitude that scales are for, if it is bounded.
        block_size: The tokens and elements of a block, if these have scales.
    """

    granularity: Float8ScaleGranularity
    origin: Float8ScaleOrigin
    dtype: DType
    activation_scale_ub: float | None = None
    block_size: tuple[int, int] | None = None


@dataclass
class Float8Config:
    """The float8 quantization of a model.

    Attributes:
        input_scale: How inputs are scaled.
        weight_scale: How weights are scaled.
        mlp_in_float8: The layers whose MLP is in float8.
        attn_qkv_in_float8: The layers whose projections of attention are in float8.
        embedding_output_dtype: The dtype of the output layer's weights, if it is another one.
        bias_dtype: The dtype of biases, if it is another one.
        quant_method: The name of the quantization method of the checkpoint.
    """

    input_scale: Float8InputScaleSpec
    weight_scale: Float8WeightScaleSpec
    mlp_in_float8: set[int]
    attn_qkv_in_float8: set[int]
    embedding_output_dtype: DType | None = None
    bias_dtype: DType | None = None
    quant_method: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the scales of inputs are known beforehand."""
        return self.input_scale.origin is Float8ScaleOrigin.STATIC

    @property
    def is_dynamic(self) -> bool:
        """Whether the scales of inputs are computed from them."""
        return self.input_scale.origin is Float8ScaleOrigin.DYNAMIC

    @property
    def scales_granularity_mnk(self) -> tuple[int, int, int]:
        """How many tokens, output channels and elements along the depth share a scale; -1 for all of them."""
        inputs, weights = self.input_scale, self.weight_scale
        if inputs.is_block and inputs.block_size is not None:
            m, k = inputs.block_size
        elif inputs.is_colwise or inputs.is_tensor:
            m, k = (1 if inputs.is_colwise else -1), -1
        else:
            raise ValueError("unsupported input scale granularity")
        if weights.is_block and weights.block_size is not None:
            return m, weights.block_size[0], k
        if weights.is_rowwise or weights.is_tensor:
            return m, (1 if weights.is_rowwise else -1), k
        raise ValueError("unsupported weight scale granularity")
