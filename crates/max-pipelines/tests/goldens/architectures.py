"""The tiny decoders that `decoders.py` makes: a class of Transformers, the arguments of its config, and a dtype.

The arguments are spelled as in published configs (`rope_theta`, `rope_scaling`), which Transformers 4 and 5 understand.
Everything that changes with length (windows, original lengths) is so small that the goldens go past it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Architecture(NamedTuple):
    kind: str  # `Llama` for `LlamaForCausalLM`
    config: dict[str, Any]
    dtype: str = "bfloat16"
    prompts: dict[str, tuple[int, int]] = {"main": (28, 64)}  # name: number of tokens given, number of tokens fed after


TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def longrope(count: int) -> dict[str, Any]:
    short, long = [1.0 + 0.125 * i for i in range(count)], [1.0 + 0.75 * i for i in range(count)]
    return {"type": "longrope", "short_factor": short, "long_factor": long}


# Prompts for three sequences of one batch.
RAGGED = {"main": (28, 64), "ragged.0": (1, 24), "ragged.1": (17, 24), "ragged.2": (40, 24)}
# Prompts that stay below the original length of 32, start above it, and cross it.
LONGROPE = {"main": (40, 64), "short": (8, 23), "crossing": (24, 24)}

ARCHITECTURES = {
    "llama2": Architecture(
        "Llama",
        TINY | {"vocab_size": 352, "intermediate_size": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
        "float16",
    ),
    "llama3": Architecture(
        "Llama",
        TINY
        | {
            "vocab_size": 384,
            "rope_theta": 10000.0,
            "rope_scaling": LLAMA3,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 0,
            "eos_token_id": [1, 4],
        },
        prompts=RAGGED,
    ),
    "llama-linear": Architecture(
        "Llama", TINY | {"num_hidden_layers": 1, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}, "float32"
    ),
    # Past 32 tokens every new one is rotated by other frequencies; a prompt longer than that, all of it by the same.
    "llama-dynamic": Architecture(
        "Llama",
        TINY | {"max_position_embeddings": 32, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        prompts={"main": (28, 64), "long": (40, 24)},
    ),
    "llama-yarn": Architecture("Llama", TINY | {"rope_scaling": YARN}),
    "mistral": Architecture("Mistral", TINY | {"head_dim": 24, "sliding_window": 16, "rms_norm_eps": 1e-5}),
    "qwen2": Architecture(
        "Qwen2", TINY | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "rope_theta": 1e6}
    ),
    "qwen2.5": Architecture("Qwen2", TINY | {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen3": Architecture(
        "Qwen3", TINY | {"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1, "rope_theta": 1e6}
    ),
    "gemma2": Architecture(
        "Gemma2",
        TINY
        | {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 7.5,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
        },
    ),
    "gemma3": Architecture(
        "Gemma3",
        TINY
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 16,
            "sliding_window_pattern": 3,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
        },
        prompts=RAGGED,
    ),
    "phi3": Architecture(
        "Phi3",
        TINY
        | {
            "num_key_value_heads": 4,
            "original_max_position_embeddings": 32,
            "rope_scaling": longrope(8),
            "pad_token_id": 2,
        },
        prompts=LONGROPE,
    ),
    "phi3-window": Architecture(
        "Phi3",
        TINY
        | {"num_key_value_heads": 4, "sliding_window": 16, "original_max_position_embeddings": 128, "pad_token_id": 2},
    ),
    "phi4": Architecture(
        "Phi3", TINY | {"rope_theta": 250000.0, "original_max_position_embeddings": 128, "pad_token_id": 2}
    ),
    "phi4-mini": Architecture(
        "Phi3",
        TINY
        | {
            "hidden_size": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 32,
            "rope_scaling": longrope(6),
            "pad_token_id": 2,
        },
        prompts=LONGROPE,
    ),
    "granite": Architecture(
        "Granite",
        TINY
        | {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 1.5,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": Architecture("Olmo2", TINY | {"pad_token_id": 1, "rope_theta": 500000.0}),
    "smollm": Architecture(
        "Llama",
        TINY | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "smollm3": Architecture(
        "SmolLM3",
        TINY
        | {
            "intermediate_size": 24,
            "num_hidden_layers": 4,
            "no_rope_layer_interval": 2,
            "tie_word_embeddings": True,
            "rope_theta": 2e6,
            "pad_token_id": 3,
        },
    ),
}
