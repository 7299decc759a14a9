"""Writes the tokenizers of `decoders/llama2` and `decoders/llama3`, and what they and their models make of strings.

Run it after `decoders.py` and with the same packages: `python crates/max-pipelines/tests/goldens/tokens.py`. Both
vocabularies are learned from `corpus.txt`: one has letters, a mark for spaces and bytes to fall back on, as Llama 2's;
the other has bytes, as Llama 3's.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from architectures import ARCHITECTURES
from decoders import decode, margin
from records import CORPUS, HERE, write_json

# How Llama 3 splits text into words.
SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

TEXTS = [
    "",
    " ",
    "   ",
    "a",
    "The river is wide.",
    " leading space",
    "trailing space ",
    "two  spaces   and three",
    "  both ends  ",
    "line\nbreak",
    "\n\n\n",
    "tabs\tand\r\nwindows lines\r\n",
    "no\u00a0break, thin\u2009space, ideographic\u3000space",
    "I'll say it's what they've done, I'd think; WE'RE sure",
    "1234567890 3.14159 -17 1e10 0x2A",
    "don't_split_snake_case or camelCase",
    "def f(x):\n    return x ** 2  # squares\n\n\nprint(f(3))",
    "Straße, Brücke, naïve, façade, Ångström",
    "e\u0301 decomposed and é composed",
    "Река широкая, мост старый.",
    "河很宽，桥很旧。",
    "川は広く、橋は古い。",
    "강은 넓고 다리는 오래되었다.",
    "النهر واسع والجسر قديم.",
    "😀",
    "cats 🐈🐈 and 👩\u200d💻👍🏽🇫🇷!",
    "\U0001f9d1\u200d\U0001f680 astronaut",
    "zero\u200bwidth and \ufeffbyte order mark",
    "<s> is it special? </s> <unk> <0x41>",
    "<|begin_of_text|>and<|eot_id|> these <|start_header_id|>user<|end_header_id|>",
    "▁already marked ▁▁ text",
    "nul\u0000byte and bell\u0007",
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 ∑∫√ ½ ²",
    "a" * 70,
    "!?.,;:-_(){}[]<>@#$%^&*+=~`|\\/\"'",
]


PROMPTS = ["The river is wide", "a", "How many words?", "Eine Brücke 🐈"]
CHATS = [
    [{"role": "user", "content": "How wide is the river?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it old?"}],
]


def sentencepiece(vocab_size: int) -> Tokenizer:
    """Merges within words that start with the mark of a space; what is no token is spelled in bytes."""
    text = ["▁" + line.replace(" ", "▁") for line in CORPUS if line.isascii() or "Brücke" in line or "Où" in line]
    counts = Counter("".join(text))
    # Rare letters are none of the vocabulary's. (The trainer could choose them too, but not twice the same.)
    common = sorted(counts, key=lambda letter: (-counts[letter], letter))[:48]
    text = ["".join(letter for letter in line if letter in common) for line in text]
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 3 - 256 - 1, show_progress=False)
    learned.train_from_iterator(text, trainer)
    model = json.loads(learned.to_str())["model"]
    # Two marks in a row are a token too, as in Llama 2's vocabulary; it is merged last.
    merges = [tuple(pair) for pair in model["merges"]] + [("▁", "▁")]
    fixed = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    merged = ["".join(pair) for pair in merges]
    letters = sorted(set(model["vocab"]) - set(merged))
    vocab = {token: id for id, token in enumerate(fixed + merged + letters)}
    assert len(vocab) == vocab_size, len(vocab)
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [AddedToken(token, normalized=False, special=True) for token in fixed[:3]]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def byte_level(vocab_size: int) -> Tokenizer:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = Tokenizer(BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", 0)],
    )
    return tokenizer


def stream(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    """What each token adds to the text, a character only when it is whole."""
    shown, parts = "", []
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end], skip_special_tokens=True)
        part = "" if text.endswith("\ufffd") else text[len(shown) :]
        shown += part
        parts.append(part)
    return parts


def goldens(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        record = {
            "text": text,
            "ids": ids,
            "ids_without_special": tokenizer.encode(text, add_special_tokens=False),
            "decoded": tokenizer.decode(ids, skip_special_tokens=True),
            "decoded_with_special": tokenizer.decode(ids, skip_special_tokens=False),
            "stream": stream(tokenizer, ids),
        }
        assert "".join(record["stream"]) == record["decoded"]
        texts.append(record)
    emoji = tokenizer.encode("😀", add_special_tokens=False)
    letter = tokenizer.encode("b", add_special_tokens=False)[-1:]
    broken = [
        emoji[-3:-1],
        emoji[-4:-1] + letter,
        emoji[-1:],
        emoji[-4:-2] + emoji[-4:],
        letter + emoji[-4:-3] + letter,
    ]
    records = [{"ids": ids, "decoded": tokenizer.decode(ids)} for ids in broken]
    write_json(folder / "tokens.json", {"texts": texts, "broken": records})
    print(folder.name, len(tokenizer), [len(record["ids"]) for record in texts], [r["decoded"] for r in records])


def generations(tokenizer: PreTrainedTokenizerFast, folder: Path, chats: list[list[dict[str, str]]]) -> None:
    """Greedy decoding of text: 32 tokens, end tokens ignored."""
    records = []
    for prompt in PROMPTS:
        records.append({"prompt": prompt, "ids": tokenizer.encode(prompt)})
    for messages in chats:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        records.append({"messages": messages, "ids": tokenizer.encode(text, add_special_tokens=False)})
    for record in records:
        tokens, logits = decode(folder, record["ids"], 32)
        record["generated"] = tokens[len(record["ids"]) :]
        record["text"] = tokenizer.decode(record["generated"], skip_special_tokens=True)
        record["margin"] = margin(logits, len(record["ids"]) - 1)
        assert record["margin"] > 1e-3, f"the next token after {record} depends on rounding"
    write_json(folder / "generate.json", {"generations": records})


def main() -> None:
    template = {name: (HERE / f"templates/{name}.jinja").read_text(encoding="utf-8") for name in ("headers", "inst")}
    llama2, llama3 = HERE / "decoders/llama2", HERE / "decoders/llama3"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=sentencepiece(ARCHITECTURES["llama2"].config["vocab_size"]),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
        chat_template=template["inst"],
    )
    tokenizer.save_pretrained(llama2)
    goldens(tokenizer, llama2)
    generations(tokenizer, llama2, CHATS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(ARCHITECTURES["llama3"].config["vocab_size"]),
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
        chat_template=template["headers"],
    )
    # As older folders have it: the template is a field of the config.
    tokenizer.save_pretrained(llama3, save_jinja_files=False)
    goldens(tokenizer, llama3)
    # Its chat template depends on the date.
    generations(tokenizer, llama3, [])


if __name__ == "__main__":
    main()
