"""Attention with rotary embeddings and a cache.

>>> from max.nn.kv_cache import KVCacheParams
>>> cpu = DeviceRef.CPU()
>>> rope = RotaryEmbedding(dim=64, n_heads=4, theta=10000.0, max_seq_len=512, device=cpu)
>>> params = KVCacheParams(DType.float32, n_kv_heads=2, head_dim=16, page_size=128)
>>> layer = AttentionWithRope(
...     rope=rope, num_attention_heads=4, num_key_value_heads=2, hidden_size=64, kv_params=params, devices=[cpu]
... )
>>> {name: [int(dim) for dim in weight.shape] for name, weight in layer.raw_state_dict().items()}
{'q_proj.weight': [64, 64], 'k_proj.weight': [32, 64], 'v_proj.weight': [32, 64], 'o_proj.weight': [64, 64]}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from max.dtype import DType
from max.graph import BufferValue, DeviceRef, TensorValue, TensorValueLike, Weight, ops
from max.graph.quantization import QuantizationConfig, QuantizationEncoding
from max.graph.value import call
from max.graph.weight import ShardingStrategy
from max.nn._cached import _place
from max.nn._sharding import strategy_of, unsupported
from max.nn.attention.interfaces import AttentionImpl, AttentionImplQKV, DistributedAttentionImpl
from max.nn.layer import Module
from max.nn.linear import GPTQLinear, Linear, gptq_rows
from max.nn.rotary_embedding import RotaryEmbedding
from max.nn.transformer.distributed_transformer import distribute_value

if TYPE_CHECKING:
    from max.nn.float8_config import Float8Config
    from max.nn.kv_cache import KVCacheParams, PagedKVCacheCollection

__all__ = [
    "AttentionWithRope",
    "AttentionWithRopeNoOpaque",
    "AttentionWithRopeQKV",
    "AttentionWithRopeV1",
    "DistributedAttentionWithRope",
    "GGUFQAttentionWithRope",
    "GPTQAttentionWithRope",
    "distribute_value",
]


class AttentionWithRope(Module):
    """Attention of tokens to those of their sequences, with rotary embeddings and a cache.

    The weights are those of the layers `q_proj`, `k_proj` and `v_proj`, or of one layer `qkv_proj` for all of them, and
    of `o_proj`.

    Args:
        rope: What turns queries and keys.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like.
        devices: Where the layer runs: the first of them counts.
        dtype: The dtype of the weights.
        linear_cls: What makes the layer `o_proj`.
        stacked_qkv: Whether queries, keys and values have one weight.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
        has_bias: Whether queries, keys and values have a bias.
        float8_config: How float8 weights and inputs are scaled.
        clip_qkv: The largest magnitude of weights of queries, keys and values: larger ones are clipped.

    Raises:
        ValueError: If sizes or options do not fit each other.
    """

    rope: RotaryEmbedding
    """What turns queries and keys."""
    n_heads: int
    """The number of heads of queries."""
    num_key_value_heads: int
    """The number of heads of keys and values."""
    kv_params: KVCacheParams
    """What the cache is like."""
    devices: list[DeviceRef]
    """Where the layer runs."""
    _strategy: ShardingStrategy | None = None

    def __init__(
        self,
        *,
        rope: RotaryEmbedding,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        devices: Sequence[DeviceRef] | None = None,
        dtype: DType = DType.float32,
        linear_cls: Callable[..., Linear] = Linear,
        stacked_qkv: bool = False,
        scale: float | None = None,
        has_bias: bool = False,
        float8_config: Float8Config | None = None,
        clip_qkv: float | None = None,
    ) -> None:
        super().__init__()
        _set_sizes(self, num_attention_heads, num_key_value_heads, kv_params, devices)
        self.rope = rope
        self.scale = rope.compute_scale(scale)
        self.stacked_qkv = stacked_qkv
        self.float8_config = float8_config
        options: dict[str, Any] = {"dtype": dtype, "device": self.devices[0], "float8_config": float8_config}
        self._add_projections(Linear, hidden_size, options | {"has_bias": has_bias, "clip_weight": clip_qkv})
        self.o_proj = linear_cls(in_dim=self._q_dim, out_dim=hidden_size, **options)

    def _add_projections(self, kind: Callable[..., Linear], hidden_size: int, options: dict[str, Any]) -> None:
        if self.stacked_qkv:
            self.qkv_proj = kind(in_dim=hidden_size, out_dim=self._q_dim + 2 * self._kv_dim, **options)
            return
        self.q_proj = kind(in_dim=hidden_size, out_dim=self._q_dim, **options)
        self.k_proj = kind(in_dim=hidden_size, out_dim=self._kv_dim, **options)
        self.v_proj = kind(in_dim=hidden_size, out_dim=self._kv_dim, **options)

    @property
    def _q_dim(self) -> int:
        return self.n_heads * self.kv_params.head_dim

    @property
    def _kv_dim(self) -> int:
        return self.num_key_value_heads * self.kv_params.head_dim

    @property
    def _projections(self) -> list[Linear]:
        return [self.qkv_proj] if self.stacked_qkv else [self.q_proj, self.k_proj, self.v_proj]

    @property
    def wqkv(self) -> TensorValue:
        """The weights of queries, keys and values, one after the other.

        Float8 weights whose scales are of whole tensors are rounded again, for the largest of the scales.
        """
        weights = [TensorValue(layer.weight) for layer in self._projections]
        clip = self._projections[0].clip_weight
        if clip is not None:
            weights = [call("clamp", weight, -clip, clip) for weight in weights]
        if len(weights) > 1 and self._has_single_scales:
            shared = self.qkv_weight_scale
            scales = [ops.reshape(scale, []) for scale in self._weight_scales]
            weights = [
                (weight.cast(DType.float32) * (scale / shared)).cast(weight.dtype)
                for weight, scale in zip(weights, scales, strict=True)
            ]
        return ops.concat(weights, 0) if len(weights) > 1 else weights[0]

    @property
    def _weight_scales(self) -> list[TensorValue]:
        return [TensorValue(layer.weight_scale) for layer in self._projections if layer.weight_scale is not None]

    @property
    def _has_single_scales(self) -> bool:
        return self.float8_config is not None and self.float8_config.weight_scale.is_tensor

    @property
    def wqkv_bias(self) -> TensorValue | None:
        """The biases of queries, keys and values, one after the other, if there are any."""
        biases = [layer.bias for layer in self._projections if layer.bias is not None]
        return ops.concat([TensorValue(bias) for bias in biases], 0) if biases else None

    @property
    def qkv_weight_scale(self) -> TensorValue:
        """The scales of float8 weights: the largest one, or those of all rows or blocks, one after the other."""
        scales = self._weight_scales
        if not scales:
            raise ValueError("only float8 weights have scales")
        return _largest(scales) if self._has_single_scales else ops.concat(scales, 0)

    @property
    def qkv_input_scale(self) -> TensorValue | None:
        """The largest scale of inputs, if these are known beforehand."""
        scales = [TensorValue(layer.input_scale) for layer in self._projections if layer.input_scale is not None]
        return _largest(scales) if scales else None

    def _project(self, x: TensorValue) -> list[TensorValue]:
        """Queries, keys and values of tokens."""
        return _split([layer(x) for layer in self._projections], self._q_dim, self._kv_dim)

    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens, `[tokens, hidden_size]`; their keys and values are stored in the cache.

        Args:
            layer_idx: The number of the layer, a uint32 scalar.
            x: Tokens, `[tokens, hidden_size]`.
            kv_collection: The cache.
            freqs_cis: The cosines and sines of positions: `rope.freqs_cis`.
            input_row_offsets: Where each sequence starts, and the last one ends: uint32 `[sequences + 1]`.
        """
        place = _place(kv_collection, input_row_offsets, layer_idx)
        return self.o_proj(_attend(self._project(x), place, self.scale, freqs_cis, self.rope.interleaved))

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is divided among devices: `tensor_parallel`, where the results add up to the whole, or `replicate`."""
        return self._strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        count = strategy.num_devices
        rows = columns = strategy
        if strategy.is_tensor_parallel:
            if self.num_key_value_heads % count:
                raise ValueError(
                    f"{count} devices cannot share {self.num_key_value_heads} heads of keys and values equally"
                )
            columns = ShardingStrategy.columnwise(count)
            rows = ShardingStrategy.rowwise(count)
            if self.stacked_qkv:
                rows = ShardingStrategy.stacked_qkv(count, self.n_heads, self.kv_params.head_dim)
        elif not strategy.is_replicate:
            raise unsupported(type(self).__name__, "tensor_parallel or replicate", strategy)
        for layer in self._projections:
            layer.sharding_strategy = rows
        self.o_proj.sharding_strategy = columns
        self._strategy = strategy

    def shard(self, devices: Iterable[DeviceRef]) -> list[Any]:
        """The layer's part for each device.

        Args:
            devices: As many devices as the strategy is for.
        """
        devices, strategy = list(devices), strategy_of(self)
        names = ["qkv_proj"] if self.stacked_qkv else ["q_proj", "k_proj", "v_proj"]
        parts = {name: getattr(self, name).shard(devices) for name in [*names, "o_proj"]}
        shares = strategy.num_devices if strategy.is_tensor_parallel else 1
        shards = []
        for index, device in enumerate(devices):
            shard = copy.copy(self)
            shard.devices = [device]
            shard.n_heads, shard.num_key_value_heads = self.n_heads // shares, self.num_key_value_heads // shares
            for name, layers in parts.items():
                setattr(shard, name, layers[index])
            shards.append(shard)
        return shards


class AttentionWithRopeNoOpaque(Module):
    """As `AttentionWithRope` with one weight `qkv_proj` for queries, keys and values, and without its options.

    Args:
        rope: What turns queries and keys; its own table is used.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like.
        devices: Where the layer runs: the first of them counts.
        dtype: The dtype of the weights.
        linear_cls: What makes the layer `o_proj`.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
    """

    rope: RotaryEmbedding
    """What turns queries and keys."""
    devices: list[DeviceRef]
    """Where the layer runs."""

    def __init__(
        self,
        *,
        rope: RotaryEmbedding,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        devices: Sequence[DeviceRef] | None = None,
        dtype: DType = DType.float32,
        linear_cls: Callable[..., Linear] = Linear,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        _set_sizes(self, num_attention_heads, num_key_value_heads, kv_params, devices)
        self.rope = rope
        self.scale = rope.compute_scale(scale)
        self._dims = (num_attention_heads * kv_params.head_dim, num_key_value_heads * kv_params.head_dim)
        q_dim, kv_dim = self._dims
        self.qkv_proj = Linear(hidden_size, q_dim + 2 * kv_dim, dtype, self.devices[0])
        self.o_proj = linear_cls(in_dim=q_dim, out_dim=hidden_size, dtype=dtype, device=self.devices[0])

    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens: see `AttentionWithRope`."""
        place, qkv = _place(kv_collection, input_row_offsets, layer_idx), _split([self.qkv_proj(x)], *self._dims)
        return self.o_proj(_attend(qkv, place, self.scale, self.rope.freqs_cis, self.rope.interleaved))


class GGUFQAttentionWithRope(AttentionWithRope):
    """As `AttentionWithRope`, with weights in an encoding of GGUF files.

    Args:
        rope: What turns queries and keys.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like.
        dtype: Must be uint8.
        quantization_encoding: How the weights are encoded; each may get another encoding when it is loaded.
        devices: Where the layer runs: the first of them counts.
        linear_cls: What makes the layer `o_proj`.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
        has_bias: Must be False.
        clip_qkv: Must be None.
    """

    rope: RotaryEmbedding
    """What turns queries and keys."""

    def __init__(
        self,
        *,
        rope: RotaryEmbedding,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        dtype: DType,
        quantization_encoding: QuantizationEncoding,
        devices: list[DeviceRef] | None = None,
        linear_cls: Callable[..., Linear] = Linear,
        scale: float | None = None,
        has_bias: bool = False,
        clip_qkv: float | None = None,
    ) -> None:
        Module.__init__(self)
        if dtype != DType.uint8:
            raise ValueError(f"GGUFQAttentionWithRope only supports uint8 dtype weights but got {dtype}")
        if has_bias:
            raise ValueError("GGUFQAttentionWithRope does not support bias")
        if clip_qkv is not None:
            raise ValueError("clip_qkv is not supported for GGUFQAttentionWithRope")
        _set_sizes(self, num_attention_heads, num_key_value_heads, kv_params, devices)
        self.rope = rope
        self.scale = rope.compute_scale(scale)
        self.stacked_qkv = False
        self.float8_config = None
        options: dict[str, Any] = {"dtype": dtype, "device": self.devices[0]}
        options["quantization_encoding"] = quantization_encoding
        self._add_projections(Linear, hidden_size, options)
        self.o_proj = linear_cls(in_dim=self._q_dim, out_dim=hidden_size, **options)

    @property
    def wqkv(self) -> TensorValue:
        """The blocks of queries, keys and values, one after the other, if they have one encoding."""
        encodings = {layer.weight.quantization_encoding for layer in self._projections}
        if len(encodings) > 1:
            raise ValueError(f"weights in several encodings are not one tensor; got {sorted(map(str, encodings))}")
        return ops.concat([TensorValue(layer.weight) for layer in self._projections], 0)

    @property
    def wqkv_bias(self) -> TensorValue | None:
        """None: there is no bias."""
        return None


class _GPTQProjection(Module):
    """A weight in the format of GPTQ, in two parts as in the files of such models."""

    perm_idx: Weight | None = None

    def __init__(self, in_dim: int, out_dim: int, config: QuantizationConfig, has_order: bool) -> None:
        super().__init__()
        codes, host = in_dim * config.bits // 8, DeviceRef.CPU()
        scales = gptq_rows(config, in_dim) - codes
        self.qweight = Weight("qweight", DType.uint8, [codes, out_dim], host)
        self.scales = Weight("scales", DType.uint8, [scales, out_dim], host)
        if has_order:
            self.perm_idx = Weight("perm_idx", DType.int32, [in_dim], host)

    @property
    def weight(self) -> TensorValue:
        """Codes, and scales below them."""
        return ops.concat([TensorValue(self.qweight), TensorValue(self.scales)], 0)


class GPTQAttentionWithRope(AttentionWithRope):
    """As `AttentionWithRope`, with weights in the format of GPTQ: see `GPTQLinear`.

    The codes of queries, keys and values are weights `qweight`, and the bytes of their float16 scales are weights
    `scales`, both with a column for each output. With `desc_act`, they have one order of inputs, `q_proj.perm_idx`.

    Args:
        quantization_config: The number of bits and the size of groups.
        rope: What turns queries and keys.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like.
        devices: Where the layer runs: the first of them counts.
        dtype: The dtype of a bias; there is none.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
        linear_cls: What makes the layer `o_proj`; by default, a `GPTQLinear`.
    """

    def __init__(
        self,
        quantization_config: QuantizationConfig,
        rope: RotaryEmbedding,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        devices: list[DeviceRef] | None = None,
        dtype: DType = DType.float32,
        scale: float | None = None,
        linear_cls: Callable[..., Linear] = Linear,
    ) -> None:
        Module.__init__(self)
        _set_sizes(self, num_attention_heads, num_key_value_heads, kv_params, devices)
        self.rope = rope
        self.scale = rope.compute_scale(scale)
        self.stacked_qkv = False
        self.float8_config = None
        self.quantization_config = quantization_config
        config, order = quantization_config, bool(quantization_config.desc_act)
        self.q_proj = _GPTQProjection(hidden_size, self._q_dim, config, order)  # type: ignore[assignment]
        self.k_proj = _GPTQProjection(hidden_size, self._kv_dim, config, False)  # type: ignore[assignment]
        self.v_proj = _GPTQProjection(hidden_size, self._kv_dim, config, False)  # type: ignore[assignment]
        kind = GPTQLinear if linear_cls is Linear else linear_cls
        self.o_proj = kind(
            in_dim=self._q_dim,
            out_dim=hidden_size,
            dtype=dtype,
            device=self.devices[0],
            quantization_encoding=QuantizationEncoding.GPTQ,
            quantization_config=quantization_config,
        )

    @property
    def wqkv(self) -> TensorValue:
        """The columns of queries, keys and values, one after the other."""
        return ops.concat([layer.weight for layer in self._projections], 1)

    @property
    def wqkv_bias(self) -> TensorValue | None:
        """None: there is no bias."""
        return None

    def _project(self, x: TensorValue) -> list[TensorValue]:
        config, gptq = list(self.quantization_config), QuantizationEncoding.GPTQ
        order = self.q_proj.perm_idx  # type: ignore[attr-defined]
        return [call("quantized_linear", x, layer.weight, gptq, config, order) for layer in self._projections]

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is divided among devices: it is not."""
        return None

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        raise ValueError(f"a GPTQAttentionWithRope layer is on one device; got {strategy}")


class DistributedAttentionWithRope(AttentionWithRope, DistributedAttentionImpl):
    """`AttentionWithRope` over several devices: each has some of the heads, and all get the sum of the results.

    Args:
        rope: What turns queries and keys.
        num_attention_heads: The number of heads of queries.
        num_key_value_heads: The number of heads of keys and values.
        hidden_size: The size of a token.
        kv_params: What the cache is like, for as many devices.
        devices: The devices, at least two.
        dtype: The dtype of the weights.
        linear_cls: What makes the layer `o_proj`.
        stacked_qkv: Whether queries, keys and values have one weight.
        scale: What scores are multiplied by; `1 / sqrt(head_dim)`, if it is not given.
        has_bias: Whether queries, keys and values have a bias.
        float8_config: How float8 weights and inputs are scaled.
        clip_qkv: The largest magnitude of weights of queries, keys and values.
    """

    def __init__(
        self,
        *,
        rope: RotaryEmbedding,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        kv_params: KVCacheParams,
        devices: Sequence[DeviceRef] | None = None,
        dtype: DType = DType.float32,
        linear_cls: Callable[..., Linear] = Linear,
        stacked_qkv: bool = False,
        scale: float | None = None,
        has_bias: bool = False,
        float8_config: Float8Config | None = None,
        clip_qkv: float | None = None,
    ) -> None:
        count = 0 if devices is None else len(devices)
        if count < 2:
            raise ValueError(f"DistributedAttentionWithRope needs at least 2 devices; got {count}")
        if kv_params.n_devices != count:
            raise ValueError(f"the cache is for {kv_params.n_devices} devices, but there are {count}")
        super().__init__(
            rope=rope,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            hidden_size=hidden_size,
            kv_params=kv_params,
            devices=devices,
            dtype=dtype,
            linear_cls=linear_cls,
            stacked_qkv=stacked_qkv,
            scale=scale,
            has_bias=has_bias,
            float8_config=float8_config,
            clip_qkv=clip_qkv,
        )
        self.sharding_strategy = ShardingStrategy.tensor_parallel(count)

    def __call__(  # type: ignore[override]
        self,
        layer_idx: TensorValue,
        x: Sequence[TensorValue],
        signal_buffers: Sequence[BufferValue],
        kv_collections: Sequence[PagedKVCacheCollection],
        freqs_cis: Sequence[TensorValue],
        input_row_offsets: Sequence[TensorValue],
    ) -> list[TensorValue]:
        """The results for tokens, on each device: see `DistributedAttentionImpl`."""
        given = zip(self.shard(self.devices), x, kv_collections, freqs_cis, input_row_offsets, strict=True)
        parts = [
            AttentionWithRope.__call__(layer, layer_idx, own, cache, table, offsets)
            for layer, own, cache, table, offsets in given
        ]
        return ops.allreduce.sum(parts, signal_buffers)


@dataclass
class AttentionWithRopeV1(AttentionImpl):
    """Attention with rotary embeddings and given weights. Use `AttentionWithRope` instead."""

    rope: RotaryEmbedding
    """What turns queries and keys."""
    bias: TensorValue | None = None
    """What is added to queries, keys and values."""
    perm_idx: TensorValue | None = None
    """The order of inputs of weights in the format of GPTQ."""
    quantization_config: QuantizationConfig | None = None
    """The number of bits and the size of groups of such weights."""

    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens: see `AttentionWithRope`."""
        if self.quantization_config is None:
            projected = call("linear", x, self.wqkv, self.bias)
        else:
            options = (QuantizationEncoding.GPTQ, list(self.quantization_config), self.perm_idx, self.bias)
            projected = call("quantized_linear", x, self.wqkv, *options)
        params = self.kv_params
        qkv = _split([projected], self.n_heads * params.head_dim, params.n_kv_heads_per_device * params.head_dim)
        place = _place(kv_collection, input_row_offsets, layer_idx)
        return self.wo(_attend(qkv, place, self.scale, freqs_cis, self.rope.interleaved))


@dataclass
class AttentionWithRopeQKV(AttentionImplQKV):
    """Attention with rotary embeddings and three given weights. Use `AttentionWithRope` instead."""

    rope: RotaryEmbedding
    """What turns queries and keys."""

    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedKVCacheCollection,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """The results for tokens: see `AttentionWithRope`."""
        qkv = [call("linear", x, weight) for weight in (self.wq, self.wk, self.wv)]
        place = _place(kv_collection, input_row_offsets, layer_idx)
        return self.wo(_attend(qkv, place, self.scale, freqs_cis, self.rope.interleaved))


def _set_sizes(
    layer: Any, heads: int, kv_heads: int, kv_params: KVCacheParams, devices: Sequence[DeviceRef] | None
) -> None:
    """Gives a layer what all attention layers have."""
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads of keys and values are shared by equally many others; got {heads} and {kv_heads}")
    if kv_heads != kv_params.n_kv_heads:
        raise ValueError(f"a cache of {kv_params.n_kv_heads} heads does not fit num_key_value_heads={kv_heads}")
    layer.n_heads = heads
    layer.num_key_value_heads = kv_heads
    layer.kv_params = kv_params
    layer.devices = [DeviceRef.CPU()] if devices is None else list(devices)
    if not layer.devices:
        raise ValueError("attention needs a device")


def _split(projected: list[TensorValue], q_dim: int, kv_dim: int) -> list[TensorValue]:
    """Queries, keys and values, if they are one tensor."""
    if len(projected) > 1:
        return projected
    return ops.split(projected[0], [q_dim, kv_dim, kv_dim], -1)


def _attend(
    qkv: list[TensorValue], place: list[Any], scale: float, table: TensorValueLike | None, interleaved: bool
) -> TensorValue:
    """Attention, whose keys and values are stored."""
    return call("cached_self_attention", *qkv, place, scale, table, interleaved)


def _largest(scales: list[TensorValue]) -> TensorValue:
    largest = ops.reshape(scales[0], [])
    for scale in scales[1:]:
        largest = ops.max(largest, ops.reshape(scale, []))
    return largest
