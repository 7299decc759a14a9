"""Trains the sentence encoder of this folder on sentences that it makes itself (grammar.py).

    python train.py --tokenizer     # the vocabulary: tokenizer.json (needs the package `tokenizers`)
    python train.py                 # the model; a GPU takes two minutes
    python train.py --quick         # a few steps of a small batch on a CPU, written nowhere: does it still learn?

Two ways to say one meaning are pulled together, all other sentences of the batch pushed away, among them some for each
sentence that share a part of its meaning.
"""

import argparse
import json
import math
import multiprocessing
import re
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch.nn import functional as F

import grammar
from evaluate import report
from model import CONFIG, Encoder, WordPiece

HERE = Path(__file__).parent
SEED = 20
TEMPERATURE = 0.05
SHORT, LONG = 24, 128
TEXTS = 2 + grammar.OTHERS
LONG_EVERY = 12
PIECES = 1800


def train_tokenizer():
    """WordPiece over a sample of the generated sentences: pieces that any word can be made of, and the most frequent words whole."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    speaker = grammar.Speaker(SEED)
    words = Counter()
    for _ in range(120_000):
        for text in grammar.example(speaker)[1:]:
            words.update(re.findall("[a-z]+", text))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces.train_from_iterator(words, trainers.WordPieceTrainer(vocab_size=PIECES, special_tokens=special, initial_alphabet=letters))
    vocabulary = dict(sorted(pieces.get_vocab().items(), key=lambda item: item[1]))
    inner = [f"##{letter}" for letter in letters if letter.isalnum()]
    for token in inner + [word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))]:
        if len(vocabulary) < CONFIG["vocab_size"]:
            vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends)
    tokenizer.enable_truncation(CONFIG["max_position_embeddings"])
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    print(f"tokenizer.json: {tokenizer.get_vocab_size()} pieces; {sum(word in vocabulary for word in words)} of {len(words)} words are whole")


def make_rows(job):
    """Rows (anchor, paraphrase, others) as ids, and keys: `count` short ones, or paragraphs of several meanings."""
    seed, count, long = job
    speaker, encode = grammar.Speaker(seed), WordPiece(HERE, LONG if long else SHORT)
    keys, rows = [], torch.zeros(count, TEXTS, LONG if long else SHORT, dtype=torch.int16)
    for row in rows:
        parts = [grammar.example(speaker) for _ in range(speaker.random.randint(2, 8) if long else 1)]
        for target, texts in zip(row, list(zip(*parts))[1:]):
            ids = encode(" ".join(texts))
            target[: len(ids)] = torch.tensor(ids)
        keys.append(hash_of(" ".join(part[0] for part in parts)))
    return torch.tensor(keys).numpy(), rows.numpy()


def hash_of(text):
    """A number for a meaning, the same in every process."""
    number = 1469598103934665603
    for byte in text.encode():
        number = (number ^ byte) * 1099511628211 & (2**63 - 1)
    return number


def make_data(short, long, workers):
    """All rows, made by several processes; what they are does not depend on how many."""
    part = 2000
    jobs = [(SEED * 1_000_000 + i, part, False) for i in range(short // part)]
    jobs += [(SEED * 1_000_000 + 500_000 + i, part // 10, True) for i in range(max(1, long * 10 // part))]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        parts = pool.map(make_rows, jobs, chunksize=1)
    join = lambda parts: tuple(torch.cat([torch.from_numpy(array) for array in arrays]) for arrays in zip(*parts))
    return join(parts[: short // part]), join(parts[short // part :])


def loss_of(model, keys, rows):
    """InfoNCE: which of all paraphrases and other sentences is this sentence's paraphrase, and the other way round."""
    count = len(rows)
    vectors = model(rows.transpose(0, 1).reshape(TEXTS * count, -1).long())
    anchors, paraphrases, others = vectors.split([count, count, (TEXTS - 2) * count])
    same = (keys[:, None] == keys[None, :]) & ~torch.eye(count, dtype=torch.bool, device=keys.device)
    scores = (anchors @ paraphrases.T / TEMPERATURE).masked_fill(same, float("-inf"))
    against = anchors @ others.T / TEMPERATURE
    targets = torch.arange(count, device=keys.device)
    forth = F.cross_entropy(torch.cat([scores, against], 1), targets)
    back = F.cross_entropy(torch.cat([scores.T, paraphrases @ others.T / TEMPERATURE], 1), targets)
    return (forth + back) / 2


def save(model):
    """The folder in the layout of sentence-transformers; weights as 16-bit floats."""
    from safetensors.torch import save_file

    weights = {name: weight.detach().cpu().half().contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, HERE / "model.safetensors", metadata={"format": "pt"})
    pooling = {"word_embedding_dimension": CONFIG["hidden_size"], "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
               "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)]
    limits = {"max_seq_length": CONFIG["max_position_embeddings"], "do_lower_case": True}
    special = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True, "model_max_length": CONFIG["max_position_embeddings"],
               "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    files = {"config.json": CONFIG | {"torch_dtype": "float16"}, "modules.json": modules, "1_Pooling/config.json": pooling,
             "sentence_bert_config.json": limits, "tokenizer_config.json": special}
    for name, content in files.items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="store_true", help="make tokenizer.json and stop")
    parser.add_argument("--quick", action="store_true", help="a few steps on a CPU; writes nothing")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end the schedule early when this time has passed")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if options.tokenizer:
        return train_tokenizer()
    if options.quick:
        options.steps, options.batch, options.rows, options.workers = min(options.steps, 40), 32, 4_000, 2
    device = "cuda" if torch.cuda.is_available() and not options.quick else "cpu"
    lines = []

    def log(line):
        print(line, flush=True)
        lines.append(line)

    torch.manual_seed(SEED)
    started = time.time()
    short, long = make_data(options.rows, options.rows // 50, options.workers)
    short, long = ([tensor.to(device) for tensor in data] for data in (short, long))
    model = Encoder().to(device)
    size = sum(weight.numel() for weight in model.parameters())
    log(f"seed {SEED}, {device}, PyTorch {torch.__version__}, {size:,} parameters, {len(short[0]):,} rows and {len(long[0]):,} "
        f"paragraphs made in {time.time() - started:.0f} s, batches of {options.batch}")
    rare = [weight for weight in model.parameters() if weight.dim() > 1]
    plain = [weight for weight in model.parameters() if weight.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": rare, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=options.rate, betas=(0.9, 0.98), fused=device == "cuda")
    choose = torch.Generator(device=device).manual_seed(SEED)
    started, recent, step, progress = time.time(), [], 0, 0.0
    while progress < 1:
        data, batch = (long, options.batch // 8) if step % LONG_EVERY == LONG_EVERY - 1 else (short, options.batch)
        chosen = torch.randint(len(data[0]), (batch,), generator=choose, device=device)
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min((step + 1) / min(300, options.steps / 5), 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(model, data[0][chosen], data[1][chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.detach())
        step += 1
        if step % max(1, options.steps // 30) == 0:
            log(f"step {step:5}  loss {torch.stack(recent).mean().item():.4f}  {time.time() - started:.0f} s")
            recent = []
        progress = max(step / options.steps, (time.time() - started) / options.seconds)
    log(f"{step} steps in {time.time() - started:.0f} s")
    model = model.cpu().eval()
    if not options.quick:
        save(model)
    for line in report(model.half().float(), WordPiece(HERE)):
        log(line)
    if not options.quick:
        (HERE / "train.log").write_text(" ".join(["python train.py", *sys.argv[1:]]) + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
