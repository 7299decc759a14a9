"""Trains the model in the box on text that it makes itself (documents.py).

    python train.py --tokenizer       # makes tokenizer.json (needs the package `tokenizers`)
    python train.py --out FOLDER      # the model, as a Hugging Face folder in float32; a GPU takes five minutes
    python export.py FOLDER           # the GGUF file that is shipped
    python train.py --quick           # a small model for a few steps on a CPU, written nowhere: does it still learn?

The model learns to write stories and the answers of chats, not the questions.
"""

import argparse
import json
import math
import multiprocessing
import random
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import documents
import tokens
from model import CONFIG, Llama

HERE = Path(__file__).parent
SEED = 21
LENGTH = CONFIG["max_position_embeddings"]
NOT_LEARNED = 1 << 13  # added to the id of a token that only is read
HELD_OUT_SEED = 9_000_000  # beyond all seeds of the training text


def train_tokenizer():
    chooser = random.Random(SEED)
    pieces = (text for _ in range(40_000) for text, _ in documents.document(chooser))
    tokens.train(tokens.MARKS.sub("", piece) for piece in pieces)


def make_rows(job):
    """Rows of documents, each row beginning with a whole one."""
    seed, count, length = job
    chooser, tokenizer = random.Random(seed), tokens.Tokenizer()
    rows = np.zeros((count, length + 1), dtype=np.int16)  # no PyTorch here: its threads do not survive a fork
    for row in rows:
        ids = []
        while len(ids) <= length:
            for text, learned in documents.document(chooser):
                ids += [token if learned else token + NOT_LEARNED for token in tokenizer.encode(text)]
        row[:] = ids[: length + 1]
    return rows


def make_data(rows, length, seed, workers):
    """Rows made by several processes; what they are does not depend on how many."""
    part = min(rows, 200)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        parts = pool.map(make_rows, [(seed + number, part, length) for number in range(rows // part)], chunksize=1)
    return torch.cat([torch.from_numpy(rows) for rows in parts])


def loss_of(model, rows):
    """The mean loss of the tokens that are learned."""
    rows = rows.long()
    ids, learned = rows % NOT_LEARNED, rows < NOT_LEARNED
    logits = model(ids[:, :-1])
    targets = ids[:, 1:].masked_fill(~learned[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def save(model, folder, parts=2):
    """A Hugging Face folder, with the weights in float32 in files of less than 16 MB."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().cpu().float().contiguous() for name, weight in model.state_dict().items()}
    total, place, files = sum(weight.numel() for weight in weights.values()), 0, [{} for _ in range(parts)]
    for name, weight in weights.items():
        files[min(parts - 1, place * parts // total)][name] = weight
        place += weight.numel()
    names = [f"model-{number + 1:05}-of-{parts:05}.safetensors" for number in range(parts)]
    for name, content in zip(names, files):
        save_file(content, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 4 * total}, "weight_map": {key: name for name, content in zip(names, files) for key in content}}
    generation = {"bos_token_id": CONFIG["bos_token_id"], "eos_token_id": CONFIG["eos_token_id"], "pad_token_id": CONFIG["pad_token_id"],
                  "do_sample": True, "temperature": 0.7, "top_p": 0.95}
    for name, content in (("model.safetensors.index.json", index), ("config.json", CONFIG | {"torch_dtype": "float32"}), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(HERE / name, folder / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", action="store_true", help="make tokenizer.json and stop")
    parser.add_argument("--quick", action="store_true", help="a few steps of a small model on a CPU; writes nothing")
    parser.add_argument("--out", type=Path, help="the folder to write")
    parser.add_argument("--start", type=Path, help="a folder to continue from")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64, help="rows of a step")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end the schedule early when this time has passed")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if options.tokenizer:
        return train_tokenizer()
    config = CONFIG
    if options.quick:
        options.steps, options.batch, options.rows, options.workers = min(options.steps, 30), 2, 60, 1
        config = CONFIG | {"num_hidden_layers": 2}
    elif not options.out:
        parser.error("say where to write with --out, or try --quick")
    device = "cuda" if torch.cuda.is_available() and not options.quick else "cpu"
    lines = [" ".join(["python train.py", *sys.argv[1:]])]

    def log(line):
        print(line, flush=True)
        lines.append(line)

    torch.manual_seed(SEED)
    started = time.time()
    data = make_data(options.rows, options.length, SEED * 100_000, options.workers).to(device)
    held_out = torch.from_numpy(make_rows((HELD_OUT_SEED, 4 if options.quick else 32, LENGTH))).to(device)
    model = Llama(config).to(device)
    if options.start:
        from evaluate import load

        model.load_state_dict(load(options.start).state_dict())
    size = sum(weight.numel() for weight in model.parameters())
    log(f"seed {SEED}, {device}, PyTorch {torch.__version__}, {size:,} parameters, {data.numel():,} tokens made in {time.time() - started:.0f} s, "
        f"batches of {options.batch} x {options.length}")
    inner = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "embed" not in name]
    outer = [weight for name, weight in model.named_parameters() if weight.dim() == 1 or "embed" in name]
    optimizers = [torch.optim.Muon(inner, lr=options.rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW(outer, lr=options.rate, weight_decay=0.0, betas=(0.9, 0.95), fused=True)]
    cast = lambda: torch.autocast(device, dtype=torch.bfloat16)
    choose = torch.Generator(device=device).manual_seed(SEED)
    order, recent, step, progress, started = torch.empty(0, dtype=torch.long), [], 0, 0.0, time.time()
    while progress < 1:
        if len(order) < options.batch:
            order = torch.randperm(len(data), generator=choose, device=device)
        chosen, order = order[: options.batch], order[options.batch :]
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = options.rate * min((step + 1) / min(100, options.steps / 5), 1 - progress)
        with cast():
            loss = loss_of(model, data[chosen])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent.append(loss.detach())
        step += 1
        progress = max(step / options.steps, (time.time() - started) / options.seconds)
        if step % max(1, options.steps // (3 if options.quick else 30)) == 0 or progress >= 1:
            with torch.no_grad(), cast():
                unseen = torch.stack([loss_of(model, rows) for rows in held_out.split(4)]).mean().item()
            log(f"step {step:5}  loss {torch.stack(recent).mean().item():.4f}  held-out loss {unseen:.4f}  {time.time() - started:.0f} s")
            recent = []
    log(f"{step} steps in {time.time() - started:.0f} s")
    if not options.quick:
        save(model, options.out)
        (options.out / "train.log").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
