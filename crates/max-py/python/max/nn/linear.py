"""Fully connected layers, and multi-layer perceptrons of them.

>>> from max.dtype import DType
>>> from max.graph import DeviceRef, Graph, TensorType
>>> layer = Linear(4, 3, DType.float32, DeviceRef.CPU(), has_bias=True)
>>> with Graph("layer", input_types=[TensorType(DType.float32, ["n", 4])]) as graph:
...     layer(graph.inputs[0].tensor).shape
[Dim('n'), Dim(3)]
>>> sorted(layer.state_dict())
['bias', 'weight']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight, ops
from max.graph.quantization import QuantizationConfig, QuantizationEncoding
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._linear_v1 import GPTQLinearV1, LinearV1, MLPV1, QLinearV1
from max.nn._sharding import block_columns, on_devices, parts, signals, strategy_of, unsupported
from max.nn.layer import Module

if TYPE_CHECKING:
    from max.graph import BufferValue
    from max.nn.float8_config import Float8Config

__all__ = [
    "MLP",
    "ColumnParallelLinear",
    "DistributedGemmConfig",
    "GPTQLinear",
    "GPTQLinearV1",
    "Linear",
    "LinearV1",
    "MLPV1",
    "QLinearV1",
]


class Linear(Module):
    """`x @ weight.T + bias`, along the last axis.

    Weights are on the CPU, and move to the device of the input. The weight of an encoding is uint8, with the blocks of
    `in_dim` elements in each row. A float8 weight has a scale for itself, for each row or for each block, and a static
    scale of inputs if the config says so.

    Args:
        in_dim: The size of the last axis of the input.
        out_dim: The size of the last axis of the result.
        dtype: The dtype of the weight and of the bias. If it is no float that a bias can have, that is float32, or what
            the config says.
        device: Where the layer runs.
        has_bias: Whether there is a bias.
        quantization_encoding: How the weight is encoded, if it is.
        float8_config: How a float8 weight and the input are scaled.
        name: What the names of the weights start with.
        clip_weight: The largest magnitude of elements of the weight: larger ones are clipped.

    Raises:
        ValueError: If the sizes do not fit the blocks of an encoding, or options contradict each other.
    """

    device: DeviceRef
    """Where the layer runs."""
    weight: Weight
    """The matrix, `[out_dim, in_dim]`."""
    bias: Weight | None = None
    """The bias, `[out_dim]`, if there is one."""
    weight_scale: Weight | None = None
    """The scale of a float8 weight: a scalar, `[out_dim, 1]`, or one for each block."""
    input_scale: Weight | None = None
    """The scale of inputs, if it is known beforehand."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dtype: DType,
        device: DeviceRef,
        has_bias: bool = False,
        quantization_encoding: QuantizationEncoding | None = None,
        float8_config: Float8Config | None = None,
        name: str | None = None,
        clip_weight: float | None = None,
    ) -> None:
        super().__init__()
        if clip_weight is not None and (quantization_encoding is not None or float8_config is not None):
            raise ValueError("clip_weight is for weights that are not quantized")
        if quantization_encoding is not None and float8_config is not None:
            raise ValueError("a Linear layer has a quantization_encoding or a float8_config, not both")
        prefix = f"{name}." if name else ""
        self.device = device
        self.clip_weight = clip_weight
        self.float8_config = float8_config
        columns, stored = in_dim, dtype
        if quantization_encoding is not None:
            columns, stored = encoded_columns(quantization_encoding, in_dim), DType.uint8
        host = DeviceRef.CPU()
        self.weight = Weight(f"{prefix}weight", stored, [out_dim, columns], host, quantization_encoding)
        if has_bias:
            self.bias = Weight(f"{prefix}bias", _bias_dtype(dtype, float8_config), [out_dim], host)
        if float8_config is not None:
            self._add_scales(prefix, in_dim, out_dim, dtype, float8_config)

    def _add_scales(self, prefix: str, in_dim: int, out_dim: int, dtype: DType, config: Float8Config) -> None:
        if not dtype.is_float8():
            raise ValueError(f"a Linear layer with a float8_config has float8 weights; got {dtype}")
        weights, inputs, host = config.weight_scale, config.input_scale, DeviceRef.CPU()
        if weights.is_colwise or inputs.is_rowwise:
            raise ValueError(
                "float8 weights have a scale for the tensor, each row or each block, and inputs one for the tensor, "
                f"each token (colwise) or each block; got {weights.granularity.value} and {inputs.granularity.value}"
            )
        if config.is_static and not (inputs.is_tensor and not weights.is_block):
            raise ValueError(
                "a static scale of inputs is one number, with weights that have no blocks; got "
                f"{inputs.granularity.value} inputs and {weights.granularity.value} weights"
            )
        shape: list[int] = []
        if weights.is_rowwise:
            shape = [out_dim, 1]
        elif weights.is_block and weights.block_size is not None:
            shape = [-(-size // block) for size, block in zip((out_dim, in_dim), weights.block_size)]
        self.weight_scale = Weight(f"{prefix}weight_scale", weights.dtype, shape, host)
        if config.is_static:
            self.input_scale = Weight(f"{prefix}input_scale", inputs.dtype, [], host)

    def __call__(self, x: TensorValue) -> TensorValue:
        """The matmul, plus the bias."""
        encoding = self.weight.quantization_encoding
        if encoding is not None:
            return call("quantized_linear", x, self.weight, encoding, None, None, self.bias)
        if self.weight_scale is not None and self.float8_config is not None:
            config, scales = self.float8_config, (self.weight_scale, self.input_scale)
            bound = config.input_scale.activation_scale_ub
            return call("float8_linear", x, self.weight, *scales, self.bias, _block(config), bound)
        return call("linear", x, self.weight, self.bias, self.clip_weight)

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the weight is divided among devices.

        Rowwise shards have some of the outputs each. Columnwise ones take some of the inputs, and their results add up
        to the whole: only the first has the bias.
        """
        return self.weight.sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        rows = strategy.is_rowwise or strategy.is_stacked_qkv
        columns = strategy.is_colwise or strategy.is_head_aware_colwise
        if not (rows or columns or strategy.is_replicate):
            expected = "rowwise, columnwise, stacked_qkv, head_aware_columnwise or replicate"
            raise unsupported("Linear", expected, strategy)
        whole = ShardingStrategy.replicate(strategy.num_devices)
        encoding = self.weight.quantization_encoding
        if columns and encoding is not None:
            block_columns("weight", self.weight.shape[1], encoding.block_size, strategy)
        self.weight.sharding_strategy = strategy
        if self.bias is not None:
            self.bias.sharding_strategy = strategy if rows else whole
        if self.weight_scale is not None and self.float8_config is not None:
            scales = self.float8_config.weight_scale
            cut = (rows and scales.is_rowwise) or (scales.is_block and (rows or columns))
            if scales.is_block and scales.block_size is not None and (rows or columns):
                axis = 0 if rows else 1
                block_columns("weight", self.weight.shape[axis], scales.block_size[axis], strategy)
            self.weight_scale.sharding_strategy = strategy if cut else whole
        if self.input_scale is not None:
            self.input_scale.sharding_strategy = whole

    @property
    def _kind_of_shards(self) -> type[Linear]:
        return type(self)

    def shard(self, devices: Iterable[DeviceRef]) -> list[Linear]:
        """The layer's part for each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy, shards = strategy_of(self), parts(self, list(devices), self._kind_of_shards)
        if strategy.is_colwise or strategy.is_head_aware_colwise:
            for shard in shards[1:]:
                shard.bias = None
        return shards


class GPTQLinear(Linear):
    """A `Linear` layer whose weight is in the format of GPTQ.

    The weight is uint8, with a column for each output: the codes of `in_dim` elements, the first in the lowest bits,
    then a float16 scale for each group of them. With `desc_act` there is a weight `perm_idx` too, the order of the
    inputs.

    Args:
        in_dim: The size of the last axis of the input.
        out_dim: The size of the last axis of the result.
        dtype: The dtype of the bias, if it is a float.
        device: Where the layer runs.
        has_bias: Whether there is a bias.
        quantization_encoding: `QuantizationEncoding.GPTQ`.
        quantization_config: The number of bits and the size of groups.
        float8_config: Must be None.
    """

    perm_idx: Weight | None = None
    """The input that each row of the weight belongs to, `[in_dim]`, if they are in another order."""
    _strategy: ShardingStrategy | None = None

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dtype: DType,
        device: DeviceRef,
        has_bias: bool = False,
        quantization_encoding: QuantizationEncoding | None = None,
        quantization_config: QuantizationConfig | None = None,
        float8_config: Float8Config | None = None,
    ) -> None:
        Module.__init__(self)
        if float8_config is not None:
            raise ValueError("a GPTQLinear layer has no float8_config")
        if quantization_encoding not in (None, QuantizationEncoding.GPTQ):
            raise ValueError(f"a GPTQLinear layer has the encoding GPTQ; got {quantization_encoding}")
        if quantization_config is None:
            raise ValueError("a GPTQLinear layer needs a quantization_config")
        self.device = device
        self.clip_weight = None
        self.float8_config = None
        self.quantization_config = quantization_config
        rows = gptq_rows(quantization_config, in_dim)
        host, encoding = DeviceRef.CPU(), QuantizationEncoding.GPTQ
        self.weight = Weight("weight", DType.uint8, [rows, out_dim], host, encoding)
        if has_bias:
            self.bias = Weight("bias", _bias_dtype(dtype, None), [out_dim], host)
        if quantization_config.desc_act:
            self.perm_idx = Weight("perm_idx", DType.int32, [in_dim], host)

    def __call__(self, x: TensorValue) -> TensorValue:
        """The matmul, plus the bias."""
        config = list(self.quantization_config)
        return call("quantized_linear", x, self.weight, QuantizationEncoding.GPTQ, config, self.perm_idx, self.bias)

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the outputs are divided among devices."""
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        if not (strategy.is_rowwise or strategy.is_replicate):
            raise unsupported("GPTQLinear", "rowwise or replicate", strategy)
        # An output is a column of the weight.
        columns = ShardingStrategy.columnwise(strategy.num_devices) if strategy.is_rowwise else strategy
        self.weight.sharding_strategy = columns
        if self.bias is not None:
            self.bias.sharding_strategy = strategy
        if self.perm_idx is not None:
            self.perm_idx.sharding_strategy = ShardingStrategy.replicate(strategy.num_devices)
        self._strategy = strategy


class ColumnParallelLinear(Linear):
    """A `Linear` layer of several devices: each computes some of the outputs, and all get the whole result.

    Args:
        in_dim: The size of the last axis of the input.
        out_dim: The size of the last axis of the result.
        dtype: The dtype of the weight and of the bias.
        devices: The devices.
        tied_weight: A weight to use instead of one of its own, such as the table of an embedding.
        **kwargs: Other arguments of `Linear`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dtype: DType,
        devices: Sequence[DeviceRef],
        tied_weight: Weight | None = None,
        **kwargs: Any,
    ) -> None:
        if not devices:
            raise ValueError("a ColumnParallelLinear layer needs at least one device")
        if tied_weight is not None and kwargs.get("float8_config") is not None:
            raise ValueError("a ColumnParallelLinear layer with a tied weight has no float8_config")
        super().__init__(in_dim, out_dim, dtype, devices[0], **kwargs)
        self.devices = list(devices)
        if tied_weight is not None:
            self.set_shared_weight("weight", tied_weight)
        self.sharding_strategy = ShardingStrategy.rowwise(len(self.devices))

    @property
    def _kind_of_shards(self) -> type[Linear]:
        return Linear

    def __call__(  # type: ignore[override]
        self, x: TensorValue | Sequence[TensorValue], signal_buffers: Iterable[BufferValue] | None = None
    ) -> list[TensorValue]:
        """The whole result, on each device.

        Args:
            x: The input on each device, or one that is copied to them.
            signal_buffers: A buffer on each device, if the graph has them.
        """
        inputs = on_devices(x, self.devices)
        outputs = [shard(x) for shard, x in zip(self.shard(self.devices), inputs)]
        if len(outputs) == 1:
            return outputs
        return ops.allgather(outputs, signals(self.devices, signal_buffers), axis=-1)


@dataclass
class DistributedGemmConfig:
    """How products on several devices run.

    Attributes:
        enable_matmul_allreduce: Whether the sum over devices may be computed together with the product before it. It
            makes no difference here.
    """

    enable_matmul_allreduce: bool

    @staticmethod
    def generate() -> DistributedGemmConfig | None:
        """The default config: None, as there is nothing to choose."""
        return None


class MLP(Module):
    """`down_proj(activation(gate_proj(x)) * up_proj(x))`, a gated multi-layer perceptron.

    Args:
        dtype: The dtype of the weights.
        quantization_encoding: How the weights are encoded, if they are.
        hidden_dim: The size of the last axis of the input and of the result.
        feed_forward_length: The size in between.
        devices: Where the layer runs: the first of them counts.
        linear_cls: What makes the three layers.
        has_bias: Whether these have biases.
        activation_function: `"silu"`, `"gelu"`, `"gelu_tanh"`, `"gelu_quick"`, `"relu"`, `"tanh"` or `"sigmoid"`.
        float8_config: How float8 weights and inputs are scaled.
        dist_gemm_config: How products on several devices run.
    """

    _strategy: ShardingStrategy | None = None

    def __init__(
        self,
        dtype: DType,
        quantization_encoding: QuantizationEncoding | None,
        hidden_dim: int,
        feed_forward_length: int,
        devices: Sequence[DeviceRef],
        linear_cls: Callable[..., Linear] = Linear,
        has_bias: bool = False,
        activation_function: str = "silu",
        float8_config: Float8Config | None = None,
        dist_gemm_config: DistributedGemmConfig | None = None,
    ) -> None:
        super().__init__()
        if not devices:
            raise ValueError("an MLP needs a device")

        def linear(in_dim: int, out_dim: int) -> Linear:
            return linear_cls(
                in_dim=in_dim,
                out_dim=out_dim,
                dtype=dtype,
                device=devices[0],
                has_bias=has_bias,
                quantization_encoding=quantization_encoding,
                float8_config=float8_config,
            )

        self.gate_proj = linear(hidden_dim, feed_forward_length)
        self.down_proj = linear(feed_forward_length, hidden_dim)
        self.up_proj = linear(hidden_dim, feed_forward_length)
        self.activation_function = activation_function
        self.dist_gemm_config = dist_gemm_config

    def __call__(self, x: TensorValue) -> TensorValue:
        """The result, with the shape of the input."""
        return self.down_proj(call("gated", self.gate_proj(x), self.up_proj(x), self.activation_function))

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is divided among devices: `tensor_parallel`, where the results add up to the whole, or `replicate`."""
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        rows = columns = strategy
        if strategy.is_tensor_parallel:
            rows = ShardingStrategy.rowwise(strategy.num_devices)
            columns = ShardingStrategy.columnwise(strategy.num_devices)
        elif not strategy.is_replicate:
            raise unsupported("MLP", "tensor_parallel or replicate", strategy)
        self.gate_proj.sharding_strategy = rows
        self.up_proj.sharding_strategy = rows
        self.down_proj.sharding_strategy = columns
        self._strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[MLP]:
        """The layer's part for each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        strategy_of(self)
        return parts(self, list(devices), type(self))


def encoded_columns(encoding: QuantizationEncoding, elements: int) -> int:
    """The bytes of a row of elements."""
    if encoding is QuantizationEncoding.GPTQ:
        raise ValueError("weights in the format of GPTQ are those of a GPTQLinear layer")
    per_block, size = encoding.block_parameters
    if elements % per_block:
        raise ValueError(f"rows of {encoding.name} have a multiple of {per_block} elements; got {elements}")
    return elements // per_block * size


def gptq_rows(config: QuantizationConfig, in_dim: int) -> int:
    """The bytes of a column of a GPTQ matrix: codes and scales."""
    group = in_dim if config.group_size == -1 else config.group_size
    if config.bits not in (4, 8):
        raise ValueError(f"codes of GPTQ have 4 or 8 bits; got {config.bits}")
    if group < 1 or in_dim % group or in_dim * config.bits % 8:
        raise ValueError(f"{in_dim} inputs cannot be divided into groups of {config.group_size}")
    return in_dim * config.bits // 8 + 2 * (in_dim // group)


def _bias_dtype(dtype: DType, config: Float8Config | None) -> DType:
    """The dtype of a bias: that of the weight, unless it is a quantized one."""
    if config is not None and config.bias_dtype is not None:
        return config.bias_dtype
    return dtype if dtype.is_float() and not dtype.is_float8() else DType.float32


def _block(config: Float8Config) -> list[int]:
    """The rows and columns of the blocks that share a scale, if there are blocks."""
    for scales in (config.weight_scale, config.input_scale):
        if scales.is_block and scales.block_size is not None:
            return list(scales.block_size)
    return []
