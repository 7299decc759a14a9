"""Text generation on one GPU beside compiled PyTorch: a Llama of 8 billion parameters in bfloat16 whose weights mean nothing.

    cargo build --release -p max-pipelines --example decoder_speed
    python benches/llama_gpu.py [WORD...] [--example target/release/examples/decoder_speed] [--rounds 3] [--json FILE]

Run it with an interpreter that has PyTorch; this package need not be installed. Words choose rows by name (`--list` shows the names). Both
sides run in turn and decode greedily, and the best of a few rounds is kept. PyTorch has a static cache and joined projections; a layer is
compiled once for all layers, and a whole step is one CUDA graph, whose tokens never leave the GPU. Ours come to the host after each step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch
import torch.nn.functional as F

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
WIDTH, INNER, LAYERS = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_hidden_layers"]
HEADS, KEY_HEADS = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
DEPTH = WIDTH // HEADS
GENERATED = 64

# How PyTorch compiles a step.
MODE = "max-autotune-no-cudagraphs"

# The example that is measured, built; in the folder that `cargo xtask gpu` packs it lies near this script.
PACKED = Path(__file__).parent / "examples/decoder_speed"
EXAMPLE = PACKED if PACKED.exists() else Path("target/release/examples/decoder_speed")


@dataclass
class Row:
    """What is measured: a prompt of some tokens, and as many sequences that go on from there."""

    name: str
    prompt: int
    batch: int
    decodes: bool

    @property
    def unit(self) -> str:
        return "tokens/s" if self.decodes else "ms"

    def microseconds(self, figure: float) -> float:
        """The time of a prompt, or of a step of decoding, that a figure stands for."""
        return self.batch / figure * 1e6 if self.decodes else figure * 1e3


ROWS = [
    Row("decode 1", 2048, 1, True),
    Row("decode 16", 512, 16, True),
    Row("prompt 512", 512, 1, False),
    Row("prompt 2048", 2048, 1, False),
]


# --- ours -----------------------------------------------------------------------------------------------


def ours(row: Row, example: Path) -> float:
    """What the example says; it keeps the best of three rounds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        generated = GENERATED if row.decodes else 2
        command = [str(example), folder, "bfloat16", str(row.prompt), str(generated), str(row.batch)]
        environment = {**os.environ, "MAX_DEVICE": "gpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"prompt ([\d.]+) tokens/s; ([\d.]+) tokens/s", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"the example failed: {done.stdout}{done.stderr}")
    prompt, decoded = map(float, found.groups())
    return decoded if row.decodes else row.prompt / prompt * 1e3


# --- PyTorch --------------------------------------------------------------------------------------------


def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turns the halves of heads `[batch, heads, tokens, depth]` by angles `[tokens, depth / 2, 2]`."""
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.unbind(-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


def layer(x: torch.Tensor, w: list[torch.Tensor], cache: torch.Tensor, at: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """A layer over tokens `[batch, tokens, width]` at some positions, of which a prompt has all and a step has one."""
    qkv_w, out_w, both_w, down_w, norm_1, norm_2 = w
    batch, tokens, _ = x.shape
    qkv = F.linear(F.rms_norm(x, (WIDTH,), norm_1, 1e-5), qkv_w)
    qkv = qkv.view(batch, tokens, HEADS + 2 * KEY_HEADS, DEPTH).transpose(1, 2)
    q, k, v = qkv.split([HEADS, KEY_HEADS, KEY_HEADS], 1)
    q, k = turn(q, angles), turn(k, angles)
    keys, values = cache.unbind(0)
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    if tokens > 1:
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        grouped = q.view(batch, KEY_HEADS, HEADS // KEY_HEADS, DEPTH)
        scores = (grouped @ keys.transpose(-1, -2)).float() * DEPTH**-0.5
        future = torch.arange(keys.shape[2], device=x.device) > at
        attended = torch.softmax(scores.masked_fill(future, -math.inf), -1).to(x.dtype) @ values
        attended = attended.view(batch, HEADS, 1, DEPTH)
    x = x + F.linear(attended.transpose(1, 2).reshape(batch, tokens, WIDTH), out_w)
    gate, up = F.linear(F.rms_norm(x, (WIDTH,), norm_2, 1e-5), both_w).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down_w)


class Llama:
    """The model with a cache for some sequences."""

    def __init__(self, batch: int, length: int, mode: str) -> None:
        def weight(*shape: int) -> torch.Tensor:
            return torch.empty(*shape, dtype=torch.bfloat16, device="cuda").uniform_(-1 / 32, 1 / 32)

        shapes = [((HEADS + 2 * KEY_HEADS) * DEPTH, WIDTH), (WIDTH, WIDTH), (2 * INNER, WIDTH), (WIDTH, INNER), (WIDTH,), (WIDTH,)]
        self.layers = [[weight(*shape) for shape in shapes] for _ in range(LAYERS)]
        self.embedding, self.head = weight(SHAPE["vocab_size"], WIDTH), weight(SHAPE["vocab_size"], WIDTH)
        self.norm = weight(WIDTH)
        self.cache = torch.zeros(LAYERS, 2, batch, KEY_HEADS, length, DEPTH, dtype=torch.bfloat16, device="cuda")
        rates = SHAPE["rope_theta"] ** (-torch.arange(0, DEPTH, 2, device="cuda").float() / DEPTH)
        turns = torch.arange(length, device="cuda").float()[:, None] * rates
        self.angles = torch.stack([turns.cos(), turns.sin()], -1)
        self.layer = torch.compile(layer, mode=mode, dynamic=False)
        self.last = torch.compile(self.choose, mode=mode, dynamic=False)

    def choose(self, x: torch.Tensor) -> torch.Tensor:
        """The most probable next token of each sequence."""
        return F.linear(F.rms_norm(x[:, -1], (WIDTH,), self.norm, 1e-5), self.head).argmax(-1, keepdim=True)

    def __call__(self, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x, angles = F.embedding(tokens, self.embedding), self.angles[at]
        for weights, cache in zip(self.layers, self.cache):
            x = self.layer(x, weights, cache[:, : len(tokens)], at, angles)
        return self.last(x)


def best(work: Callable[[], None], rounds: int) -> float:
    """The seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def theirs(row: Row, rounds: int, mode: str) -> float:
    """PyTorch's time or speed."""
    torch._dynamo.reset()
    length = math.ceil((row.prompt + GENERATED) / 256) * 256
    # A prompt is bound by its matmuls, which the library has.
    model = Llama(row.batch, length, mode if row.decodes else "default")
    if not row.decodes:
        tokens = torch.arange(row.prompt, device="cuda")[None] % 1000
        at = torch.arange(row.prompt, device="cuda")
        for _ in range(2):
            model(tokens, at)
        return best(lambda: model(tokens, at).item(), rounds) * 1e3
    tokens = torch.full((row.batch, 1), 7, device="cuda")
    at = torch.full((1,), row.prompt, device="cuda")
    for _ in range(2):
        model(tokens, at)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens.copy_(model(tokens, at))
        at.add_(1)

    def decode() -> None:
        at.fill_(row.prompt)
        for _ in range(GENERATED):
            graph.replay()

    decode()
    return row.batch * GENERATED / best(decode, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only rows whose names contain one of these")
    parser.add_argument("--example", type=Path, default=EXAMPLE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", default=MODE, help="how PyTorch compiles a step")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    parser.add_argument("--list", action="store_true", help="list the rows")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.words or any(word in row.name for word in options.words)]
    if options.list:
        print("\n".join(row.name for row in ROWS))
        return
    if not chosen:
        parser.error(f"no row is called {' or '.join(options.words)}")
    torch.set_grad_enabled(False)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, best of {options.rounds}")
    print(f"{'':16}{'ours':>10}{'PyTorch':>10}{'ratio':>7}")
    table = []
    for row in chosen:
        mine, other = ours(row, options.example), theirs(row, options.rounds, options.mode)
        torch.cuda.empty_cache()
        ratio = mine / other if row.decodes else other / mine
        table.append({"name": row.name, "unit": row.unit, "ours": mine, "torch": other, "ratio": ratio})
        print(f"{row.name:16}{mine:10.1f}{other:10.1f}{ratio:7.2f}  {row.unit}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
