"""Writes box.gguf from the folder that train.py made: Q8_0 weights, the tokenizer and the chat template, under llama.cpp's names.

    python export.py FOLDER [box.gguf]
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch

from documents import SPECIAL, TEMPLATE
from model import CONFIG

HERE = Path(__file__).parent
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.N.input_layernorm.weight": "attn_norm.weight",
    "model.layers.N.self_attn.q_proj.weight": "attn_q.weight",
    "model.layers.N.self_attn.k_proj.weight": "attn_k.weight",
    "model.layers.N.self_attn.v_proj.weight": "attn_v.weight",
    "model.layers.N.self_attn.o_proj.weight": "attn_output.weight",
    "model.layers.N.post_attention_layernorm.weight": "ffn_norm.weight",
    "model.layers.N.mlp.gate_proj.weight": "ffn_gate.weight",
    "model.layers.N.mlp.up_proj.weight": "ffn_up.weight",
    "model.layers.N.mlp.down_proj.weight": "ffn_down.weight",
}
HALF = CONFIG["head_dim"] // 2


def permuted(name, weight):
    """Rows of queries and keys in the order of GGUF: what rotates together are neighbours, not half a head apart."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    return weight.reshape(-1, 2, HALF, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def unpermuted(name, weight):
    """The other way."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    return weight.reshape(-1, HALF, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write(weights, generation, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("max-rs box")
    writer.add_description("A toy: small stories, sums and questions about max-rs")
    writer.add_license("Apache-2.0 WITH LLVM-exception")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_rope_dimension_count(CONFIG["head_dim"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    tokenizer = json.loads((HERE / "tokenizer.json").read_text())["model"]
    names = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # single digits, then the words of GPT-2
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL if name in SPECIAL else gguf.TokenType.NORMAL for name in names])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(CONFIG["bos_token_id"])
    writer.add_eos_token_id(CONFIG["eos_token_id"])
    writer.add_pad_token_id(CONFIG["pad_token_id"])
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    writer.add_sampling_temp(generation["temperature"])
    writer.add_sampling_top_p(generation["top_p"])
    for name, weight in weights.items():
        parts = name.split(".")
        number = parts[2] if name.startswith("model.layers.") else None
        target = NAMES[name.replace(f".{number}.", ".N.", 1)] if number else NAMES[name]
        values = permuted(name, weight).numpy().astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"blk.{number}.{target}" if number else target, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    from evaluate import load

    folder, path = sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else HERE / "box.gguf"
    weights = load(folder).state_dict()
    write(weights, json.loads((Path(folder) / "generation_config.json").read_text()), path)
    again = load(path).state_dict()
    worst = max(((again[name] - weight).norm() / weight.norm()).item() for name, weight in weights.items())
    assert worst < 0.02, worst
    print(f"{path}: {path.stat().st_size:,} bytes, largest relative error of a weight {worst:.4f}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
