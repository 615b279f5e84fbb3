"""Finds the coefficients of Hopper's approximate instructions, for cuda-std/src/cpu/data/approximate.rs.

    python scripts/approximate_tables.py                  # needs a Hopper GPU, torch and triton
    python scripts/approximate_tables.py --from <folder>  # reads saved results instead

The GPU computes `ex2`, `rcp`, `rsqrt` and `lg2` with a quadratic polynomial for each segment of the
mantissas. For each instruction, the script reads the results for all 2^23 mantissas, fits the three integer
coefficients of each segment, and writes them to the file. It exits with an error if the result for any
mantissa differs from the polynomial of its segment.

On a GPU, the script also compares the polynomials with the instructions in whole octaves, and for all
subnormal arguments of `rcp`, `rsqrt` and `lg2` without `.ftz`. With `--dump <folder>`, it saves the results
for the 2^23 mantissas in this folder. `--from` reads these files:

- `ex2.xz`, `rcp.xz`, `rsqrt0.xz`, `rsqrt1.xz`: int8, the result minus the correctly rounded result, in ulp.
  The arguments are from 1 to 2 in `rsqrt0`, and from 2 to 4 in `rsqrt1`.
- `lg2.xz`: float32, the results of `lg2.approx.f32` from 1 to 2.
"""

import argparse
import lzma
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

Array = NDArray[Any]
OUTPUT = Path(__file__).parents[1] / "cuda-std" / "src" / "cpu" / "data" / "approximate.rs"
MANTISSAS = 1 << 23
NAMES = ("ex2", "rcp", "rsqrt0", "rsqrt1")
SEGMENTS = {"ex2": 64, "rcp": 128, "rsqrt0": 64, "rsqrt1": 64, "lg2": 64}
# The constant term of each polynomial is `c0 * 2^14` plus this number, in units of 2^-16 ulp. For `lg2`, an
# ulp is 2^-24, so the unit is 2^-40. The results of `lg2` only show the bits from 2^-36 on, so the low four
# bits of the constant for `lg2` have no effect.
BIAS = {"ex2": 12_228, "rcp": 4_046, "rsqrt0": 16_383, "rsqrt1": 16_383, "lg2": 3_348}
EXACT: dict[str, Callable[[Array], Array]] = {
    "ex2": lambda m: np.exp2(m - 1),
    "rcp": lambda m: 1 / m,
    "rsqrt0": lambda m: 1 / np.sqrt(m),
    "rsqrt1": lambda m: 1 / np.sqrt(2 * m),
}


def mantissas() -> Array:
    """Return all float32 numbers from 1 to 2 as float64."""
    return 1 + np.arange(MANTISSAS) / MANTISSAS


def rounded(name: str) -> Array:
    """Return the bits (int32) of the correctly rounded results for all mantissas."""
    return EXACT[name](mantissas()).astype(np.float32).view(np.int32)


def square(offset: Array) -> Array:
    """Return the square of a 17-bit number as the GPU computes it, in units of 2^19.

    The square is a sum over pairs of bits i and j of `offset`. If i and j differ, the product of the two bits
    occurs twice, so its weight is 2^(i + j + 1). The GPU adds only two kinds of terms:

    - the square of the upper 8 bits (9 to 16), without the lowest bit of this square,
    - the product of one of the bits 2 to 8 and one of the upper bits, if its weight is at least 2^19.
    """
    upper = offset >> 9
    return (upper * upper >> 1) + sum((offset >> i & 1) * (offset >> 18 - i) for i in range(2, 9))


def positions(name: str) -> tuple[Array, Array, Array]:
    """Return three arrays with one element per mantissa: its segment, its offset in the segment (17 bits), and
    the square of the offset.

    The function is approximated by one quadratic polynomial per segment of the mantissas.
    """
    length = MANTISSAS // SEGMENTS[name]
    at = np.arange(MANTISSAS)
    offset = at % length * ((1 << 17) // length)
    return at // length, offset, square(offset)


def significand(name: str, bits: Array) -> Array:
    """Return results as integers, in units of their ulp: 2^-23 for `ex2`, and 2^-24 for other functions."""
    scale = 2.0**23 if name == "ex2" else 2.0**24
    return (bits.astype(np.int32).view(np.float32).astype(np.float64) * scale).astype(np.int64)


def fit(name: str, bits: Array) -> list[tuple[int, int, int]]:
    """Return the coefficients `(c0, c1, c2)` of each segment.

    The result of the instruction is `((c0 << 14) + BIAS + c1 * offset + c2 * square(offset)) >> 16`. The only
    exception is `rsqrt(1)`, which is exactly 1.
    """
    segment, offset, squared = positions(name)
    result, found = significand(name, bits), []
    for number in range(SEGMENTS[name]):
        inside = segment == number
        inside[0] &= name != "rsqrt0"
        x, q, y = offset[inside], squared[inside], result[inside]
        base = y[0]
        columns = np.stack([np.ones(len(x)), x / (1 << 17), q / (1 << 15)], 1)
        slopes = np.linalg.lstsq(columns, y - base + 0.5, rcond=None)[0]
        # In units of 2^-16 ulp, the GPU's `c2` is always even. For `ex2`, `c1` is always even too. Other
        # values need not be tried.
        c1 = round(slopes[1] / 4) * 2 if name == "ex2" else round(slopes[1] / 2)
        c2 = round(slopes[2]) * 2
        rest = (y << 16) - c1 * x - c2 * q
        low, high = int(rest.max()), int(rest.min()) + (1 << 16) - 1
        c0 = high - BIAS[name] >> 14
        if (c0 << 14) + BIAS[name] < low:
            raise SystemExit(f"{name}: no polynomial gives all results of segment {number}")
        found.append((c0, c1, c2))
    return found


def fit_lg2(from_one: Array) -> list[tuple[int, int, int]]:
    """Return the coefficients `(c0, c1, c2)` of each segment, from the results of `lg2` from 1 to 2.

    The logarithm of a mantissa is `((c0 << 14) + BIAS + c1 * offset + c2 * square(offset)) >> 4`, in units of
    2^-36. For arguments from 1 to 2, the result of `lg2` is this number, truncated to 24 significant bits.
    The only exception is `lg2(1)`, which is exactly 0.
    """
    segment, offset, squared = positions("lg2")
    start = (from_one.astype(np.float64) * 2.0**36).astype(np.int64)
    # From a result of `lg2`, the logarithm before truncation is at least `start`, and less than `end`. For
    # small results, `end` is `start` + 1, because the 24 significant bits contain all bits of the logarithm.
    end = start + np.maximum(np.spacing(from_one).astype(np.float64) * 2.0**36, 1).astype(np.int64)
    found = []
    for number in range(SEGMENTS["lg2"]):
        inside = segment == number
        inside[0] = False
        x, q, low, high = offset[inside], squared[inside], start[inside] << 4, (end[inside] << 4) - 1
        columns = np.stack([np.ones(len(x)), x / (1 << 17), q / (1 << 15)], 1)
        slopes = np.linalg.lstsq(columns, (low + high) / 2 - low[0], rcond=None)[0]
        # In units of 2^-16 ulp, the GPU's `c1` is a multiple of 4, and `c2` is a multiple of 8. Other values
        # need not be tried.
        c1 = round(slopes[1] / (1 << 17) / 4) * 4
        c2 = round(slopes[2] / (1 << 15) / 8) * 8
        rest = c1 * x + c2 * q
        c0 = int((high - rest).min()) - BIAS["lg2"] >> 14
        if (c0 << 14) + BIAS["lg2"] < int((low - rest).max()):
            raise SystemExit(f"lg2: no polynomial gives all results of segment {number}")
        found.append((c0, c1, c2))
    return found


def source(coefficients: dict[str, list[tuple[int, int, int]]]) -> Iterator[str]:
    """Yield the lines of the Rust file."""
    yield "// Made by scripts/approximate_tables.py. `approximate.rs` explains the numbers."
    for name, rows in coefficients.items():
        yield f"const {name.upper()}: [[i32; 3]; {len(rows)}] = ["
        step = 3 if name == "lg2" else 4
        for at in range(0, len(rows), step):
            yield "    " + " ".join(f"[{a}, {b}, {c}]," for a, b, c in rows[at : at + step])
        yield "];"


class Model:
    """The instructions on the CPU, from the coefficients."""

    def __init__(self, coefficients: dict[str, list[tuple[int, int, int]]]) -> None:
        self.results = {}
        for name, rows in coefficients.items():
            segment, offset, squared = positions(name)
            c0, c1, c2 = np.array(rows, np.int64).T[:, segment]
            if name == "lg2":
                # In units of 2^-36.
                self.logarithms = (c0 << 14) + BIAS[name] + c1 * offset + c2 * squared >> 4
                continue
            result = (c0 << 14) + BIAS[name] + c1 * offset + c2 * squared >> 16
            if name == "rsqrt0":
                result[0] = 1 << 24
            self.results[name] = result / (2.0**23 if name == "ex2" else 2.0**24)

    def ex2(self, x: Array) -> Array:
        """Compute `ex2.approx.ftz.f32` of finite numbers."""
        x = x.astype(np.float64)
        q = np.floor(np.minimum(np.abs(x), 256) * MANTISSAS).astype(np.int64)
        index = np.where((x < 0) & (q % MANTISSAS != 0), -q - 1, np.where(x < 0, -q, q))
        y = np.ldexp(self.results["ex2"][index % MANTISSAS], index // MANTISSAS)
        with np.errstate(over="ignore"):
            return np.where(y < 2.0**-126, 0, y).astype(np.float32)

    def rcp(self, x: Array) -> Array:
        """Compute `rcp.approx.ftz.f32` of normal numbers."""
        bits = x.view(np.uint32)
        y = np.ldexp(self.results["rcp"][bits % MANTISSAS], 127 - (bits >> 23 & 255).astype(np.int32))
        return np.copysign(np.where(y < 2.0**-126, 0, y), x).astype(np.float32)

    def ex2_subnormal(self, x: Array) -> Array:
        """Compute `ex2.approx.f32` of finite numbers, which may have subnormal results."""
        small = x < -126
        root = self.ex2(np.where(small, x * np.float32(0.5), x))
        return np.where(small, root * np.where(small, root, 1), root)

    def rcp_subnormal(self, x: Array) -> Array:
        """Compute `rcp.approx.f32` of nonzero numbers. Arguments and results may be subnormal."""
        size = np.abs(x)
        scale = np.select([size > 2.0**126, size < 2.0**-126], [0.25, 2.0**24], 1).astype(np.float32)
        with np.errstate(over="ignore"):
            return self.rcp(x * scale) * scale

    def rsqrt(self, x: Array) -> Array:
        """Compute `rsqrt.approx.f32` of positive numbers."""
        subnormal = x < 2.0**-126
        bits = (x * np.where(subnormal, 2.0**24, 1)).astype(np.float32).view(np.uint32)
        exponent = (bits >> 23).astype(np.int32) - 127
        odd, at = exponent % 2, bits % MANTISSAS
        y = np.where(odd == 1, self.results["rsqrt1"][at], self.results["rsqrt0"][at])
        return np.ldexp(y, (odd - exponent) // 2 + 12 * subnormal).astype(np.float32)

    def lg2(self, x: Array) -> Array:
        """Compute `lg2.approx.ftz.f32` of positive normal numbers."""
        bits = x.view(np.uint32)
        fixed = ((bits >> 23).astype(np.int64) - 127 << 36) + self.logarithms[bits % MANTISSAS]
        # The GPU computes the magnitude of a negative number as its ones' complement.
        size = np.where(fixed < 0, ~fixed, fixed).astype(np.float64)
        # Clearing the low 29 bits of a float64 rounds it to 24 significant bits, toward zero.
        size = (size.view(np.int64) >> 29 << 29).view(np.float64) * 2.0**-36
        return np.where(x == 1, 0, np.where(fixed < 0, -size, size)).astype(np.float32)

    def lg2_subnormal(self, x: Array) -> Array:
        """Compute `lg2.approx.f32` of positive subnormal numbers."""
        return self.lg2(x * np.float32(2.0**24)) - np.float32(24)


@triton.jit
def apply(x, y, ASM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Triton kernel that applies the instruction `ASM` to each element of `x`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    result = tl.inline_asm_elementwise(ASM, "=f,f", [tl.load(x + at)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + at, result)


def on_gpu(instruction: str, x: Array) -> Array:
    """Compute `instruction` (for example "ex2.approx.ftz") on the GPU. The length of `x` is a multiple of
    1024."""
    arguments = torch.from_numpy(np.ascontiguousarray(x, np.float32)).cuda()
    results = torch.empty_like(arguments)
    apply[(arguments.numel() // 1024,)](arguments, results, f"{instruction}.f32 $0, $1;", 1024)
    return np.asarray(results.cpu().numpy())


def octave(exponent: int) -> Array:
    """Return all float32 numbers from `2^exponent` to `2^(exponent + 1)`."""
    return np.ldexp(mantissas(), exponent).astype(np.float32)


def compare(label: str, got: Array, expected: Array) -> None:
    """Exit with an error if the bits of two arrays differ."""
    if differ := int((got.view(np.uint32) != expected.view(np.uint32)).sum()):
        raise SystemExit(f"{label}: {differ} of {got.size} results differ from the GPU")


def read_gpu() -> dict[str, Array]:
    """Read the bits of the results for all mantissas from the GPU."""
    return {
        "ex2": on_gpu("ex2.approx.ftz", mantissas() - 1).view(np.int32),
        "rcp": on_gpu("rcp.approx.ftz", octave(0)).view(np.int32),
        "rsqrt0": on_gpu("rsqrt.approx", octave(0)).view(np.int32),
        "rsqrt1": on_gpu("rsqrt.approx", octave(1)).view(np.int32),
        "lg2": on_gpu("lg2.approx.ftz", octave(0)).view(np.int32),
    }


def read_folder(folder: Path) -> dict[str, Array]:
    """Return the bits of the results for all mantissas, from the files of a folder."""
    found = {}
    for name in NAMES:
        corrections = np.frombuffer(lzma.decompress((folder / f"{name}.xz").read_bytes()), np.int8)
        found[name] = rounded(name) + corrections.astype(np.int32)
    found["lg2"] = np.frombuffer(lzma.decompress((folder / "lg2.xz").read_bytes()), np.int32)
    return found


def check_gpu(model: Model) -> None:
    """Compare the model with the GPU in whole octaves."""
    for exponent in range(-8, 8):
        for x in (octave(exponent), -octave(exponent)):
            compare(f"ex2 at exponent {exponent}", model.ex2(x), on_gpu("ex2.approx.ftz", x))
    for exponent in (*range(-126, 128, 23), -1, 0, 1, 125, 126, 127):
        for x in (octave(exponent), -octave(exponent)):
            compare(f"rcp at exponent {exponent}", model.rcp(x), on_gpu("rcp.approx.ftz", x))
        x = octave(exponent)
        compare(f"rsqrt at exponent {exponent}", model.rsqrt(x), on_gpu("rsqrt.approx", x))
    # The first argument would be 0, which is not subnormal: `rcp` and `rsqrt` of 0 are infinity. Use the
    # smallest subnormal instead.
    subnormals = np.maximum(np.arange(MANTISSAS), 1).astype(np.uint32).view(np.float32)
    for x in (octave(0), -octave(5), -octave(6), -octave(7)):
        compare(f"ex2 without .ftz from {x[0]}", model.ex2_subnormal(x), on_gpu("ex2.approx", x))
    for x in (octave(0), octave(125), octave(126), octave(127), subnormals, -subnormals):
        compare(f"rcp without .ftz from {x[0]}", model.rcp_subnormal(x), on_gpu("rcp.approx", x))
    compare("rsqrt of subnormals", model.rsqrt(subnormals), on_gpu("rsqrt.approx", subnormals))
    for exponent in range(-126, 128):
        x = octave(exponent)
        compare(f"lg2 at exponent {exponent}", model.lg2(x), on_gpu("lg2.approx.ftz", x))
    compare("lg2 of subnormals", model.lg2_subnormal(subnormals), on_gpu("lg2.approx", subnormals))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, help="read saved corrections, do not use a GPU")
    parser.add_argument("--dump", type=Path, help="save the GPU's results in this folder")
    arguments = parser.parse_args()
    if arguments.folder and arguments.dump:
        parser.error("--dump needs a GPU, so it excludes --from")
    bits = read_folder(arguments.folder) if arguments.folder else read_gpu()
    coefficients = {name: fit(name, bits[name]) for name in NAMES}
    coefficients["lg2"] = fit_lg2(bits["lg2"].view(np.float32))
    model = Model(coefficients)
    compare("lg2", model.lg2(octave(0)), bits["lg2"].view(np.float32))
    if not arguments.folder:
        check_gpu(model)
    if arguments.dump:
        arguments.dump.mkdir(parents=True, exist_ok=True)
        saved = {name: (bits[name] - rounded(name)).astype(np.int8) for name in NAMES}
        for name, table in {**saved, "lg2": bits["lg2"]}.items():
            (arguments.dump / f"{name}.xz").write_bytes(lzma.compress(table.tobytes(), preset=9))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text("\n".join(source(coefficients)) + "\n")
    print(f"{sum(map(len, coefficients.values()))} polynomials give all results; wrote {OUTPUT}", file=sys.stderr)


if __name__ == "__main__":
    main()
