"""Writes `gguf/`: GGUF files as llama.cpp reads them, quantized by it, and the logits that it computes with them.

Run it after `decoders.py` and `tokens.py`, with `gguf` and `llama-cpp-python` installed besides what those need:
`python crates/max-pipelines/tests/goldens/gguf_files.py`. README.md describes the files.
"""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from architectures import LLAMA3, TINY, Architecture, longrope
from decoders import margin, prompt_of, random_model
from records import HERE, write_json

FOLDER = HERE / "gguf"

# Small enough for many files; what llama.cpp fixes (patterns, scales) is as it fixes it.
SMALL = TINY | {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 16}
MODELS = {
    "qwen2": Architecture("Qwen2", SMALL | {"rope_theta": 1e6, "tie_word_embeddings": True}, "float16"),
    "qwen3": Architecture("Qwen3", SMALL | {"rope_theta": 1e6, "head_dim": 24}, "float16"),
    "gemma2": Architecture(
        "Gemma2", SMALL | GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 7.5}, "float16"
    ),
    "gemma3": Architecture(
        "Gemma3",
        SMALL
        | GEMMA
        | {
            "num_hidden_layers": 6,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "float16",
    ),
    "phi3": Architecture(
        "Phi3", SMALL | {"original_max_position_embeddings": 32, "rope_scaling": longrope(8)}, "float16"
    ),
    "granite": Architecture(
        "Granite",
        SMALL
        | {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 1.5,
            "tie_word_embeddings": True,
        },
        "float16",
    ),
    "olmo2": Architecture("Olmo2", SMALL | {"rope_theta": 500000.0}, "float16"),
    "smollm3": Architecture(
        "SmolLM3", SMALL | {"num_hidden_layers": 4, "rope_theta": 2e6, "tie_word_embeddings": True}, "float16"
    ),
}
# A row of 256 is what the K quantizations need.
QUANTIZED = Architecture(
    "Llama",
    TINY
    | {
        "vocab_size": 384,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": [1, 4],
    },
    "float32",
)
TYPES = {
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "q5_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
}
# The names of families in GGUF whose queries and keys are rotated in neighbouring pairs.
INTERLEAVED = ("llama", "granite", "smollm3")
# llama.cpp rounds the length of a cache up to this.
CONTEXT = 256


def interleave(weight: np.ndarray, heads: int, back: bool = False) -> np.ndarray:
    """Reorders the rows of each head from halves to pairs, or back."""
    split = (heads, -1, 2) if back else (heads, 2, -1)
    return weight.reshape(*split, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def heads_of(config: Any, name: str) -> int | None:
    """How many heads a matrix of queries or keys has."""
    if name.endswith("q_proj.weight"):
        return config.num_attention_heads
    return config.num_key_value_heads if name.endswith("k_proj.weight") else None


def add_tokens(writer: gguf.GGUFWriter, folder: Path | None) -> None:
    """The tokenizer of a folder, or 64 tokens for a model that is never shown text."""
    kinds = gguf.TokenType
    if folder is None:
        letters = [chr(ord("a") + i) for i in range(26)]
        words = ["▁" + letter for letter in letters] + ["▁th", "▁the", "in", "er", "an", "on", "re", "nd"]
        tokens = (["<unk>", "<s>", "</s>", "▁"] + letters + words)[:64]
        types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.NORMAL] * 61
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([float(-i) for i in range(64)])
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        return
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    merges = tokenizer["model"]["merges"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    types = [kinds.CONTROL if token in special else kinds.NORMAL for token in vocab]
    if tokenizer["model"]["byte_fallback"]:
        ranks = {"".join(pair): -float(rank) for rank, pair in enumerate(merges)}
        types = [kinds.BYTE if token.startswith("<0x") else kind for token, kind in zip(vocab, types)]
        types[vocab.index("<unk>")] = kinds.UNKNOWN
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(vocab)
        lowest = -float(len(merges))
        writer.add_token_scores([0.0 if i < 259 else ranks.get(token, lowest) for i, token in enumerate(vocab)])
        writer.add_unk_token_id(vocab.index("<unk>"))
        writer.add_add_space_prefix(True)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(vocab)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_types(types)
    writer.add_bos_token_id(vocab.index(config["bos_token"]))
    writer.add_eos_token_id(vocab.index(config["eos_token"]))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    template = folder / "chat_template.jinja"
    writer.add_chat_template(template.read_text(encoding="utf-8") if template.exists() else config["chat_template"])


def add_rope(writer: gguf.GGUFWriter, config: Any, head: int) -> None:
    """The base, and scalings as llama.cpp knows them: by a factor, or by tensors of factors."""
    rope = config.rope_parameters
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "llama3":
        # Each frequency is divided by a factor: 1 where waves are short, the whole one where they are long.
        original, low, high = (
            rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        turns = original * rope["rope_theta"] ** (-np.arange(0, head, 2) / head) / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        writer.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32))
    elif rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[kind + "_factor"], dtype=np.float32))


def family_of(config: Any) -> str:
    return {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)


def write_gguf(model: transformers.PreTrainedModel, path: Path, tokens: Path | None) -> None:
    """Matrices in the dtype of the model, vectors in float32."""
    config, family = model.config, family_of(model.config)
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(path, family)
    # Not the file's name: of a model called Phi-3, llama.cpp expects certain tokens.
    writer.add_name("tiny")
    is_half = model.dtype == torch.float16
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if is_half else gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_rope(writer, config, head)
    if family.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    add_tokens(writer, tokens)
    for name, array in arrays_of(model).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def names_of(config: Any) -> gguf.TensorNameMap:
    family = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family_of(config))
    return gguf.get_tensor_name_map(family, config.num_hidden_layers)


def arrays_of(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    config, names, arrays = model.config, names_of(model.config), {}
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        heads = heads_of(config, name)
        if heads and family_of(config) in INTERLEAVED:
            array = interleave(array, heads)
        if array.ndim == 1:
            array = array.astype(np.float32) + (1 if family_of(config).startswith("gemma") else 0)
        arrays[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return arrays


def exact_model(path: Path, model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A model in float32 with the weights of a file, dequantized."""
    config, names = model.config, names_of(model.config)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    exact = type(model)(config).eval()
    exact.set_attn_implementation("eager")
    for name, parameter in exact.named_parameters():
        tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(parameter.shape)
        heads = heads_of(config, name)
        if heads and family_of(config) in INTERLEAVED:
            array = interleave(array, heads, back=True)
        if array.ndim == 1 and family_of(config).startswith("gemma"):
            array = array - 1
        parameter.data = torch.from_numpy(array.copy())
    return exact


def run_transformers(model: transformers.PreTrainedModel, prompt: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([prompt])).logits[0].numpy()


def run_llama_cpp(path: Path, prompt: list[int], chunk: int, half: bool) -> np.ndarray:
    """The logits of a prompt fed in chunks, with a cache in float16 (as it is if nothing is said) or in float32."""
    kind = llama_cpp.GGML_TYPE_F16 if half else llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path),
        n_ctx=CONTEXT,
        n_batch=chunk,
        n_ubatch=chunk,
        n_threads=1,
        n_threads_batch=1,
        type_k=kind,
        type_v=kind,
        flash_attn=False,
        logits_all=True,
        verbose=False,
    )
    model.eval(prompt)
    logits = np.array(model.scores[: len(prompt)], dtype=np.float32)
    model.close()
    return logits


def quantize(source: Path, target: Path, kind: int) -> None:
    """Every matrix in the same type."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.pure, parameters.nthread = kind, True, 1
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    assert failed == 0, f"llama.cpp cannot write {target.name}"


def distance(left: np.ndarray, right: np.ndarray) -> dict[str, float]:
    difference = np.abs(left.astype(np.float64) - right)
    return {"max": float(difference.max()), "rms": float(np.sqrt((difference**2).mean()))}


def compare_tokens(path: Path, folder: Path) -> None:
    """Reports strings that llama.cpp splits in another way."""
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for record in json.loads((folder / "tokens.json").read_text(encoding="utf-8"))["texts"]:
        ids = model.tokenize(record["text"].encode(), add_bos=True, special=True)
        if ids != record["ids"]:
            print(f"  {path.name} splits {record['text']!r} into {ids}, not {record['ids']}")
    model.close()


def golden(path: Path, model: transformers.PreTrainedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a file and its logits: all of a small vocabulary, else the last eight."""
    vocab = model.config.vocab_size
    prompt = prompt_of("gguf", 40, vocab)
    rows = slice(None) if vocab == 64 else slice(-8, None)
    exact = run_transformers(exact_model(path, model), prompt)
    theirs = run_llama_cpp(path, prompt, 512, half=False)

    def error(logits: np.ndarray) -> dict[str, float]:
        return distance(logits[rows], exact[rows])

    record = {
        "file": path.name,
        "prompt": prompt,
        "rows": len(exact[rows]),
        "margin": margin(torch.from_numpy(exact[rows]), 0),
        "llama_cpp": error(theirs),
        "llama_cpp_steps": error(run_llama_cpp(path, prompt, 1, half=False)),
        "llama_cpp_half_cache": error(run_llama_cpp(path, prompt, 512, half=True)),
        "bytes": path.stat().st_size,
    }
    print(record)
    logits = {"exact": exact, "llama_cpp": theirs}
    return record, {f"{path.stem}.{name}": torch.from_numpy(rows_of[rows].copy()) for name, rows_of in logits.items()}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    records, tensors = [], {}

    def keep(record: dict[str, Any], logits: dict[str, Any], **more: Any) -> None:
        records.append(record | more)
        tensors.update(logits)

    for name, architecture in MODELS.items():
        model, path = random_model(architecture, 1), FOLDER / f"{name}.gguf"
        write_gguf(model, path, None)
        keep(*golden(path, model))
    source = HERE / "decoders/llama2"
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    write_gguf(model, FOLDER / "llama2-f16.gguf", source)
    keep(*golden(FOLDER / "llama2-f16.gguf", model), source="decoders/llama2")
    compare_tokens(FOLDER / "llama2-f16.gguf", source)
    source = HERE / "decoders/llama3"
    with tempfile.TemporaryDirectory() as made:
        model, whole = random_model(QUANTIZED, 1), Path(made) / "llama3.gguf"
        write_gguf(model, whole, source)
        compare_tokens(whole, source)
        record, _ = golden(whole, model)
        unquantized = run_transformers(model.eval(), record["prompt"])
        for name, kind in TYPES.items():
            path = FOLDER / f"llama3-{name}.gguf"
            quantize(whole, path, kind)
            types = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
            exact = run_transformers(exact_model(path, model), record["prompt"])
            keep(*golden(path, model), types=sorted(types), quantization=distance(exact[-8:], unquantized[-8:]))
    write_json(FOLDER / "goldens.json", {"files": records})
    save_file(tensors, FOLDER / "goldens.safetensors")


if __name__ == "__main__":
    main()
