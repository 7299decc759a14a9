"""Writes `rotary.npz`: what Transformers gives for rotary position embeddings, scaled in every way, and applied.

Run it with PyTorch and Transformers installed: `python crates/max-py/tests/goldens/rotary.py`.

PyTorch's float32 powers depend on the processor: about one in a hundred is not the nearest float, and this is another
angle at large positions. So they are computed in float64 and rounded here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import DeepseekV3Config, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding, yarn_apply_mscale
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

POSITIONS = [0, 1, 2, 63, 64, 4095, 4096, 8191, 100000]
FACTORS = {"short": [1.0 + 0.02 * i for i in range(48)], "long": [1.05 * 1.09**i for i in range(48)]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA32 = {**LLAMA3, "factor": 32.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
GPT_OSS = {**YARN, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
DEEPSEEK = {
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LONGROPE = {
    "short_factor": FACTORS["short"],
    "long_factor": FACTORS["long"],
    "original_max_position_embeddings": 4096,
}

CASES = [
    {"type": "default", "dim": 2, "theta": 10000.0},
    {"type": "default", "dim": 64, "theta": 10000.0},
    {"type": "default", "dim": 128, "theta": 500000.0},
    {"type": "default", "dim": 80, "theta": 1000000.0},
    {"type": "linear", "dim": 64, "theta": 10000.0, "parameters": {"factor": 3.0}},
    {"type": "linear", "dim": 128, "theta": 1000000.0, "parameters": {"factor": 8.0}},
    {"type": "llama3", "dim": 128, "theta": 500000.0, "parameters": LLAMA3},
    {"type": "llama3", "dim": 64, "theta": 500000.0, "parameters": LLAMA32},
    {"type": "yarn", "dim": 128, "theta": 1000000.0, "parameters": YARN},
    {"type": "yarn", "dim": 64, "theta": 150000.0, "parameters": GPT_OSS},
    {"type": "longrope", "dim": 96, "theta": 10000.0, "parameters": LONGROPE},
    {"type": "deepseek", "dim": 64, "theta": 10000.0, "parameters": DEEPSEEK},
    {"type": "deepseek", "dim": 64, "theta": 10000.0, "parameters": DEEPSEEK | {"mscale": 0.5, "mscale_all_dim": 0.25}},
    {"type": "dynamic", "dim": 64, "theta": 10000.0, "max": 4096, "length": 4096},
    {"type": "dynamic", "dim": 64, "theta": 10000.0, "max": 4096, "length": 8192},
    {"type": "dynamic", "dim": 128, "theta": 500000.0, "max": 2048, "length": 100001},
]


def exact_power(exponent: torch.Tensor, base: float) -> torch.Tensor:
    return torch.pow(torch.tensor(base, dtype=torch.float32).double(), exponent.double()).float()


def embedding(case: dict) -> torch.nn.Module:
    dim, parameters = case["dim"], dict(case.get("parameters", {}))
    if case["type"] == "dynamic":
        parameters["factor"] = 1.0
    kind = "yarn" if case["type"] == "deepseek" else case["type"]
    parameters |= {"rope_type": kind, "rope_theta": case["theta"]}
    longest = case.get("max", 131072)
    if case["type"] == "deepseek":
        config = DeepseekV3Config(qk_rope_head_dim=dim, max_position_embeddings=longest, rope_parameters=parameters)
        return DeepseekV3RotaryEmbedding(config)
    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, max_position_embeddings=longest, rope_parameters=parameters
    )
    return LlamaRotaryEmbedding(config)


def table(case: dict) -> np.ndarray:
    """The cosines and sines at all positions of a case."""
    rope = embedding(case)
    positions = [p for p in POSITIONS if p < case.get("length", 1 << 30)]
    ranges = [positions]
    if case["type"] == "longrope":
        original = case["parameters"]["original_max_position_embeddings"]
        ranges = [[p for p in positions if p < original], [p for p in positions if p >= original]]
    if case["type"] == "dynamic":
        # The length is given as an int, because bases are float32 where it is a tensor.
        rope.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](rope.config, "cpu", seq_len=case["length"])
        rope.max_seq_len_cached = case["length"]
    rows = [torch.stack(rope(torch.zeros(1), torch.tensor([r])), -1)[0, :, : case["dim"] // 2] for r in ranges]
    return torch.cat(rows).numpy()


def main() -> None:
    torch.set_num_threads(1)
    torch.Tensor.__rpow__ = exact_power
    torch.manual_seed(0)
    arrays = {}
    for number, case in enumerate(CASES):
        arrays[f"table{number}"] = table(case)
    x = (torch.randn(2, 5, 3, 16) * 64).round() / 64
    arrays["x"] = x.numpy()
    case = {"type": "default", "dim": 16, "theta": 10000.0}
    cos, sin = embedding(case)(x, torch.arange(7, 12)[None])
    cis = torch.complex(cos[..., :8], sin[..., :8])
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        y = x.to(dtype)
        halves, _ = apply_rotary_pos_emb(y, y, cos.to(dtype), sin.to(dtype), unsqueeze_dim=2)
        heads_first = y.transpose(1, 2)
        neighbours, _ = apply_rotary_emb(heads_first, heads_first, cis)
        arrays[f"halves_{name}"] = halves.float().numpy()
        arrays[f"interleaved_{name}"] = neighbours.transpose(1, 2).float().numpy()
    scales = [
        yarn_apply_mscale({**case["parameters"], "rope_type": "yarn"}, 192**-0.5)
        for case in CASES
        if case["type"] == "deepseek"
    ]
    arrays["deepseek_scales"] = np.array(scales)
    arrays["cases"] = np.frombuffer(json.dumps({"positions": POSITIONS, "cases": CASES}).encode(), np.uint8)
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
