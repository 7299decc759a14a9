"""Writes `encoders/`: tiny BERT and MPNet checkpoints and what Sentence Transformers computes with them.

Run it with PyTorch, Transformers, Tokenizers and Sentence Transformers installed:
`python crates/max-pipelines/tests/goldens/encoders.py`. README.md describes the files.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from itertools import combinations
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import normalizers, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    MPNetConfig,
    MPNetModel,
    MPNetTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from records import CORPUS, HERE, write_json

FOLDER = HERE / "encoders"

SENTENCES = [
    "",
    "   ",
    "bridge",
    "The",
    "a",
    "?",
    "The old bridge is wide.",
    "THE OLD BRIDGE IS WIDE.",
    "The river runs slowly under the old bridge, and nobody is in a hurry.",
    'Wait... what?! (No, really: "what" -- and why; how/when?) & so on, #1 @home, 50% off!',
    "Die Straße führt über die Brücke nach Köln; façade, naïve, coöperate, Ångström.",
    "Où est la gare ? À côté de l'école, près du café.",
    "Decomposed: cafe\u0301, ni\u00f1o, nin\u0303o, Zu\u0308rich.",
    "Река широкая, а мост старый.",
    "河很宽，桥很旧。",
    "川は広く、mixed with English 橋は古い。",
    "강은 넓고 다리는 오래되었다.",
    "النهر واسع والجسر قديم.",
    "Good morning! 😀☕🐈 👩\u200d💻 🇫🇷",
    "tabs\tand\nnew lines\r\nand\u00a0other\u2003spaces \u200b zero\u0000width \ufffd",
    "[CLS] not special? [SEP] <s> </s> [MASK] <mask> [UNK]",
    "for index in range(10): print(index ** 2, 0x2A, 3.14e-10)",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "supercalifragilistic" * 12,
    " ".join(CORPUS[:12]),
    "water " * 200,
]

Model = PreTrainedModel
Tokens = PreTrainedTokenizerBase


def vocabulary(special: list[str], size: int, lowercase: bool) -> dict[str, int]:
    """A WordPiece vocabulary: special tokens, the letters, then the pieces that save most tokens in the corpus.

    (The trainer of the `tokenizers` package gives another order at every run.)
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    # Some scripts stay out of the vocabulary, so that some words are unknown.
    text = [line for line in CORPUS if not any("\u0600" <= c <= "\u06ff" or "\uac00" <= c <= "\ud7a3" for c in line)]
    words = [word for line in text for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line))]
    counts: Counter[str] = Counter()
    for word in words:
        for start, end in combinations(range(len(word) + 1), 2):
            counts["##" * (start > 0) + word[start:end]] += 1
    saved = {piece: (count - 1) * (len(piece.removeprefix("##")) - 1) for piece, count in counts.items()}
    is_letter = {piece: len(piece.removeprefix("##")) == 1 for piece in counts}
    pieces = sorted(counts, key=lambda piece: (not is_letter[piece], -saved[piece], piece))
    return {token: id for id, token in enumerate((special + pieces)[:size])}


def fill(model: Model, seed: int) -> None:
    """Random parameters large enough that every one of them matters, unlike an untrained model's."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            is_table = "embeddings" in name or "attention_bias" in name
            scale = 1.0 if is_table else 1.5 / parameter.shape[1] ** 0.5
            parameter.data = scale * noise
        else:
            is_gain = name.endswith("LayerNorm.weight")
            parameter.data = 0.2 * noise + (1.0 if is_gain else 0.0)


def goldens(folder: Path) -> None:
    """Token ids, embeddings and, for one sentence, the hidden states after every layer."""
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"torch_dtype": torch.float32})
    encoder, tokenizer = model[0].auto_model, model.tokenizer
    limit = model.max_seq_length
    ids = [tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in SENTENCES]
    batched = model.encode(SENTENCES, batch_size=8)
    # One at a time there is no padding: this is what a batch must give too.
    embeddings = np.concatenate([model.encode([text]) for text in SENTENCES])
    assert np.abs(batched - embeddings).max() < 1e-5
    shown = SENTENCES.index("The river runs slowly under the old bridge, and nobody is in a hurry.")
    with torch.no_grad():
        states = encoder(input_ids=torch.tensor([ids[shown]]), output_hidden_states=True).hidden_states
    record = {"max_length": limit, "sentences": [{"text": t, "ids": i} for t, i in zip(SENTENCES, ids)], "shown": shown}
    write_json(folder / "goldens.json", record)
    tensors = {f"hidden_states.{i}": state[0].contiguous() for i, state in enumerate(states)}
    save_file({"embeddings": torch.from_numpy(embeddings)} | tensors, folder / "goldens.safetensors")
    lengths = [len(row) for row in ids]
    angle = embeddings @ embeddings.T / np.outer(*[np.linalg.norm(embeddings, axis=1)] * 2)
    print(folder.name, embeddings.shape, "lengths", min(lengths), "to", max(lengths), "mean cosine", angle.mean())


def save(folder: Path, model: Model, tokenizer: Tokens) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def bert() -> None:
    """As all-MiniLM-L6-v2 is published: mean pooling, normalized, and a tokenizer that pads and truncates otherwise."""
    folder = FOLDER / "bert"
    vocab = vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 420, lowercase=True)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=101,
        max_position_embeddings=64,
    )
    model = BertModel(config)
    fill(model, 1)
    tokenizer = BertTokenizer(vocab=vocab, model_max_length=64)
    tokenizer.backend_tokenizer.enable_truncation(32)
    tokenizer.backend_tokenizer.enable_padding(length=32, pad_id=0, pad_token="[PAD]")
    save(folder, model, tokenizer)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    pooling = {
        "word_embedding_dimension": 48,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    write_json(folder / "1_Pooling/config.json", pooling)
    goldens(folder)


def mpnet() -> None:
    """As Sentence Transformers writes it today: the first token is the embedding, not normalized, cased."""
    folder = FOLDER / "mpnet"
    vocab = vocabulary(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"], 400, lowercase=False)
    config = MPNetConfig(
        vocab_size=len(vocab),
        hidden_size=40,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=77,
        max_position_embeddings=66,
    )
    model = MPNetModel(config)
    fill(model, 2)
    save(folder, model, MPNetTokenizer(vocab=vocab, do_lower_case=False, strip_accents=False, model_max_length=64))
    transformer = Transformer(str(folder), max_seq_length=64)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="cls")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder), create_model_card=False)
    goldens(folder)


def plain() -> None:
    """A folder without the files of Sentence Transformers, in float16, the weights those of a masked language model."""
    folder = FOLDER / "bert-plain"
    vocab = vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 420, lowercase=True)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=75,
        max_position_embeddings=64,
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
    )
    model = BertForMaskedLM(config)
    fill(model, 3)
    save(folder, model.half(), BertTokenizer(vocab=vocab, model_max_length=64))
    goldens(folder)


def mix(states: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64."""
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))


def uniform(name: str, count: int) -> np.ndarray:
    """Numbers in [-1, 1) that any language can make: SplitMix64 seeded with the 64-bit FNV-1a hash of a name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = mix(np.uint64(seed) + steps)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def scale(name: str, shape: torch.Size) -> float:
    """Powers of two, so that scaling is exact."""
    if len(shape) == 1:
        return 2.0**-3
    if "embeddings" in name:
        return 1.0
    if "query" in name or "key" in name:
        return 2.0**-3
    return 2.0**-4 if shape[1] < 1000 else 2.0**-5


def minilm_shape() -> None:
    """The shape of all-MiniLM-L6-v2 without weights: README.md says how a test makes them."""
    folder = FOLDER / "minilm-shape"
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    config.architectures = ["BertModel"]
    config.save_pretrained(folder)
    model = BertModel(config, add_pooling_layer=False).eval()
    for name, parameter in model.named_parameters():
        values = uniform(name, parameter.numel()) * np.float32(scale(name, parameter.shape))
        offset = np.float32(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        parameter.data = torch.from_numpy(values + offset).reshape(parameter.shape)
    lengths = [1, 2, 16, 61, 128, 256, 512]
    tensors = {}
    for length in lengths:
        ids = ((uniform(f"ids.{length}", length) + 1) * np.float32(15261)).astype(np.int32)
        with torch.no_grad():
            states = model(input_ids=torch.from_numpy(ids)[None].long()).last_hidden_state[0]
        mean = states.mean(0)
        tensors[f"ids.{length}"] = torch.from_numpy(ids)
        tensors[f"mean.{length}"] = mean
        tensors[f"normalized.{length}"] = mean / mean.norm()
    save_file(tensors, folder / "goldens.safetensors")
    first = model.embeddings.word_embeddings.weight[0, :4].tolist()
    print(folder.name, len(tensors), "tensors; the first weights are", first)


def main() -> None:
    torch.manual_seed(0)
    shutil.rmtree(FOLDER, ignore_errors=True)
    bert()
    mpnet()
    plain()
    minilm_shape()
    for path in sorted(FOLDER.rglob("*.safetensors")):
        print(path.relative_to(FOLDER), {name: tuple(t.shape) for name, t in list(load_file(path).items())[:4]})


if __name__ == "__main__":
    main()
