"""Writes `decoders/`: tiny checkpoints of every decoder architecture and the logits that Transformers computes.

Run it with PyTorch and Transformers 5 installed: `python crates/max-pipelines/tests/goldens/decoders.py [NAME ...]`.
With Transformers 4 it writes no checkpoints but the configs as that version spells them (`config.v4.json`), which most
published folders have, and checks that they give the same logits. README.md describes the files.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from architectures import ARCHITECTURES, Architecture
from records import HERE, write_json

FOLDER = HERE / "decoders"
IS_OLD = transformers.__version__.startswith("4.")


def random_model(architecture: Architecture, seed: int) -> transformers.PreTrainedModel:
    """Parameters so large that each of them matters, unlike those of an untrained model."""
    kind = getattr(transformers, architecture.kind + "ForCausalLM")
    model = kind(kind.config_class(**architecture.config))
    config, is_gemma = model.config, architecture.kind.startswith("Gemma")
    root = config.hidden_size**0.5
    table = (0.08 if config.tie_word_embeddings else 0.4) / (
        root if is_gemma else getattr(config, "embedding_multiplier", 1.0)
    )
    head = table if config.tie_word_embeddings else 1 / root
    last_gain = 2 * getattr(config, "logits_scaling", 1.0) / (head * root)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            tables = {"model.embed_tokens.weight": table, "lm_head.weight": head}
            parameter.data = tables.get(name, 1.2 / parameter.shape[1] ** 0.5) * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        else:
            gain = last_gain if name == "model.norm.weight" else 1.2 if "q_norm" in name or "k_norm" in name else 1.0
            # Gemma adds 1 to its gains.
            parameter.data = gain * (1 + 0.2 * noise) - (1 if is_gemma else 0)
    return model.to(getattr(torch, architecture.dtype))


def reads_again(config: Any, tokens: list[int]) -> bool:
    """Whether `generate` starts over with an empty cache: where the factors of longrope change."""
    original = getattr(config, "original_max_position_embeddings", None)
    return original is not None and len(tokens) == original + 1


def decode(folder: Path, prompt: list[int], steps: int) -> tuple[list[int], torch.Tensor]:
    """The prompt and what greedy decoding adds to it, and the logits after every token but the last."""
    # A new model for every prompt, because dynamic rope scaling remembers the longest sequence.
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    dtype = {"torch_dtype" if IS_OLD else "dtype": torch.float32}
    model = kind.from_pretrained(folder, attn_implementation="eager", **dtype).eval()
    tokens, logits = list(prompt), torch.empty(0, model.config.vocab_size)
    cache, fed = None, 0
    with torch.no_grad():
        while len(tokens) < len(prompt) + steps + 1:
            if cache is not None and reads_again(model.config, tokens):
                cache, fed = None, 0
            output = model(input_ids=torch.tensor([tokens[fed:]]), past_key_values=cache, use_cache=True)
            new = output.logits[0, len(logits) - fed :]
            cache, fed = output.past_key_values, len(tokens)
            logits = torch.cat([logits, new])
            tokens.append(int(new[-1].argmax()))
    return tokens[:-1], logits


def prompt_of(name: str, length: int, vocab: int) -> list[int]:
    generator = torch.Generator().manual_seed(sum(name.encode()) + length)
    return torch.randint(3, vocab, (length,), generator=generator).tolist()


def margin(logits: torch.Tensor, first: int) -> float:
    """How far the best token is from the second best, at least, where tokens are chosen."""
    best = logits[first:].topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def make(name: str, architecture: Architecture, seed: int, folder: Path) -> tuple[float, int]:
    """Writes a checkpoint and its goldens; returns the smallest margin and the number of different tokens decoded."""
    random_model(architecture, seed).save_pretrained(folder)
    cases, tensors, margins, variety = [], {}, [], 0
    for case, (length, steps) in architecture.prompts.items():
        tokens, logits = decode(folder, prompt_of(name + case, length, architecture.config["vocab_size"]), steps)
        cases.append({"name": case, "prompt": tokens[:length], "generated": tokens[length:]})
        tensors[case + ".logits"] = logits.contiguous()
        margins.append(margin(logits, length - 1))
        variety = max(variety, len(set(tokens[length:])))
    write_json(folder / "goldens.json", {"seed": seed, "margin": min(margins), "cases": cases})
    save_file(tensors, folder / "goldens.safetensors")
    return min(margins), variety


def write(name: str) -> None:
    """The first seed with which greedy decoding depends on no rounding and does not repeat itself too soon."""
    architecture, folder = ARCHITECTURES[name], FOLDER / name
    for seed in range(200):
        with tempfile.TemporaryDirectory() as made:
            smallest, variety = make(name, architecture, seed, Path(made))
            if smallest > 0.01 and variety >= 16:
                # What the tokenizers' script has written stays.
                shutil.copytree(made, folder, dirs_exist_ok=True)
                break
    else:
        raise RuntimeError(f"no seed is good for {name}")
    largest = load_file(folder / "goldens.safetensors")["main.logits"].abs().max()
    print(f"{name}: seed {seed}, margin {smallest:.3f}, {variety} different tokens, logits up to {largest:.1f}")


def compare(name: str) -> None:
    """Writes the config as Transformers 4 does and decodes with it."""
    architecture, folder = ARCHITECTURES[name], FOLDER / name
    expected = load_file(folder / "goldens.safetensors")
    with tempfile.TemporaryDirectory() as made:
        random_model(architecture, 0).save_pretrained(made)
        shutil.copy(Path(made) / "config.json", folder / "config.v4.json")
        shutil.copy(folder / "model.safetensors", made)
        for case in json.loads((folder / "goldens.json").read_text())["cases"]:
            tokens, logits = decode(Path(made), case["prompt"], len(case["generated"]))
            error = float((logits - expected[case["name"] + ".logits"]).abs().max())
            print(f"{name} {case['name']}: {error:.1e}, tokens {tokens[len(case['prompt']) :] == case['generated']}")


def main() -> None:
    for name in sys.argv[1:] or ARCHITECTURES:
        (compare if IS_OLD else write)(name)


if __name__ == "__main__":
    main()
