"""Writes `cases/quantized.txt`: blocks that the `gguf` package encodes and decodes. Run it with `gguf` installed.

A line is a block: the name of its encoding, the float32 values it was made of (`-` if the package has no quantizer), its
bytes, and the float32 values that they decode to, all in hexadecimal.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import gguf
import numpy as np

ENCODED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]

# The bytes where a block has a float16; all others may have any bits.
DECODED = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}

HEAD = """\
# Blocks of quantized weights: encoding, float32 values before ('-': any bytes), bytes, float32 values after, in hexadecimal.
# Made by crates/max-py/tests/goldens/quantization.py.
"""


def inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    normal = rng.normal(size=32)
    zeros = np.zeros(32)
    pair = rng.uniform(-1, 1, 32)
    pair[[5, 9]] = [-1, 1]
    return {
        "normal": normal,
        "weights": rng.normal(size=32) * 0.02,
        "positive": rng.uniform(1, 2, 32),
        "negative": -rng.uniform(1, 2, 32),
        "ties": rng.integers(-30, 31, 32) / 2,
        "small integers": rng.integers(-8, 8, 32).astype(float),
        "both extremes": pair,
        "zeros": zeros,
        "negative zeros": -zeros,
        "both zeros": np.where(np.arange(32) % 3 == 0, zeros, -zeros),
        "zeros above": np.where(np.arange(32) % 3 == 0, -zeros, zeros),
        "zeros among others": np.where(np.arange(32) % 3 == 0, np.abs(normal), -zeros * (np.arange(32) % 2)),
        "equal": zeros + 0.7,
        "large": normal * 1e5,
        "huge": normal * 1e37,
        "small": normal * 1e-6,
        "tiny": normal * 1e-30,
        "subnormal": normal * 1e-41,
        "of all magnitudes": normal * 10.0 ** rng.integers(-6, 6, 32),
        "one": np.where(np.arange(32) == 17, -3.25, 0),
    }


def line(name: str, values: np.ndarray | None, block: np.ndarray) -> str:
    encoding = gguf.GGMLQuantizationType[name]
    decoded = gguf.quants.dequantize(block, encoding)
    before = "-" if values is None else values.astype("<f4").tobytes().hex()
    return f"{name.lower()} {before} {block.tobytes().hex()} {decoded.astype('<f4').tobytes().hex()}\n"


def main() -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(7)
    text = HEAD
    for name in ENCODED:
        encoding = gguf.GGMLQuantizationType[name]
        for kind, values in inputs(rng).items():
            # The package lets the exponents of such blocks wrap around.
            if name == "MXFP4" and kind == "subnormal":
                continue
            values = values.astype(np.float32)
            text += line(name, values, gguf.quants.quantize(values, encoding))
    for name, halves in DECODED.items():
        _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        for _ in range(3):
            block = rng.integers(0, 256, size).astype(np.uint8)
            for at in halves:
                block[at : at + 2] = (rng.normal(size=1) * 0.01).astype("<f2").view(np.uint8)
            text += line(name, None, block)
    (Path(__file__).parents[4] / "cases" / "quantized.txt").write_text(text)


if __name__ == "__main__":
    main()
