"""Makes small_floats.txt: what `ml_dtypes` makes of every code of the floats of at most eight bits, and of many numbers.

Needs `ml_dtypes` (the file says which version made it): `python small_floats.py`.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

NAMES = {
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
    "float8_e8m0fnu": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
}


def codes(name: str) -> np.ndarray:
    """The values of all codes."""
    return np.arange(1 << NAMES[name], dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float32)


def inputs() -> np.ndarray:
    """Numbers at, between and next to the values of all formats, and others of any magnitude."""
    values = np.unique(np.concatenate([codes(name) for name in NAMES if name != "float8_e8m0fnu"]))
    values = values[np.isfinite(values)].astype(np.float64)
    ties = (values[1:] + values[:-1]) / 2
    small = np.unique(np.concatenate([codes(name) for name in NAMES if NAMES[name] < 8])).astype(np.float64)
    near = np.concatenate([ties[:: len(ties) // 97], (small[1:] + small[:-1]) / 2]).astype(np.float32)
    scales = np.float32(2.0) ** np.array([-126, -125, -30, -1, 0, 1, 2, 30, 126, 127], dtype=np.float32)
    near = np.concatenate([near, scales, scales * np.float32(1.5)])
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    bits = np.random.default_rng(1).integers(0, 1 << 32, 300, dtype=np.uint64).astype(np.uint32)
    subnormal = [1, 0x80000001, 0x200000, 0x400000, 0x5FFFFF, 0x600000]
    special = [0, 0x80000000, *subnormal, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000]
    limits = np.array([6, 7, 5, 7.5, 7.75, 8, 28, 30, 31, 448, 464, 465, 240, 248, 57344, 61440], dtype=np.float32)
    return np.concatenate(
        [near, limits, -limits, bits.view(np.float32), np.array(special, dtype=np.uint32).view(np.float32)]
    )


def line(numbers: np.ndarray) -> str:
    """Unsigned integers in hexadecimal."""
    return " ".join(f"{number:x}" for number in numbers.tolist())


def main() -> None:
    """Writes the file."""
    given = inputs()
    lines = [
        f"# Made by small_floats.py with ml_dtypes {ml_dtypes.__version__}. The first line has the bits of float32",
        "# numbers; then, for each dtype, its name, the float32 bits of all codes and the codes of the numbers.",
        line(given.view(np.uint32)),
    ]
    for name in NAMES:
        with np.errstate(all="ignore"):
            rounded = given.astype(getattr(ml_dtypes, name)).view(np.uint8)
        lines += [name, line(codes(name).view(np.uint32)), line(rounded)]
    Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
