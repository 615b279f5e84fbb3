"""Compares `oxiwarp.linear` with cuBLAS (the bits of the product, and the time with an epilogue), and writes two tables
that `oxiwarp.patch` reads.

    python benches/python/linear_tables.py [--size MxKxN:KIND] [--model NAME] [--rounds N] [--out FOLDER]
        measures; writes linear_bits.csv, linear_speed.csv and linear_tables.json
    python benches/python/linear_tables.py --from FOLDER    adds these results to the package's tables

Without `--size` and `--model`, the sizes come from published models.

The bits of `oxiwarp.linear` and `F.linear` are compared for several random inputs: in bfloat16 and float16, with and
without a bias, with two and with three dimensions. A size counts as equal only if all bits of all results are equal.

The time of `oxiwarp.linear` with an epilogue is compared with the time of two kernels: `F.linear` and a separate
oxiwarp kernel. For a GELU with tanh, the time of a cuBLASLt product with this GELU is measured too. The exit code is 1
if `oxiwarp.linear` with an epilogue gives other bits than the separate kernels of oxiwarp.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from environment import begin
from forms import Inputs
from linear_results import adopt
from linear_sizes import SIZES, Size, of_model, parsed, with_rows
from timing import race_calls
from torch import Tensor

import oxiwarp
from oxiwarp.patching.fusions.core.linear import have_same_bits
from oxiwarp.patching.fusions.core.linear_tables import (
    DTYPES,
    GATED_RESIDUAL,
    capability_of,
    environment_of,
    has_default_settings,
)

SCALES = (1.0, 1.0, 0.0)
"""One random input for each scale. 0 stands for an input with magnitudes of many orders."""


@dataclass(frozen=True)
class Bits:
    """Comparison of the bits of `oxiwarp.linear` and `F.linear`. `different` is the number of values with other bits,
    over all inputs.
    """

    dtype: str
    bias: bool
    m: int
    n: int
    k: int
    different: int


@dataclass(frozen=True)
class Speed:
    """Times in microseconds. `library_us` is None if cuBLASLt has no such epilogue."""

    kind: str
    m: int
    n: int
    k: int
    fused_us: float
    separate_us: float
    library_us: float | None
    exact: bool


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    """Return normally distributed values. If `scale` is 0, each value is also multiplied by a random power of 2."""
    made = torch.randn(*shape, device="cuda", dtype=dtype)
    return made * (scale or torch.randn_like(made).mul_(3).round_().clamp_(-6, 6).exp2_())


def bits_of(size: Size, dtype: str, bias: bool) -> Bits:
    """Compare the bits of `oxiwarp.linear` and `F.linear`."""
    m, k, n, _ = size
    different = 0
    for scale in SCALES:
        x = random(m, k, dtype=DTYPES[dtype], scale=scale)
        weight = random(n, k, dtype=DTYPES[dtype]) * k**-0.5
        vector = random(n, dtype=DTYPES[dtype]) if bias else None
        # This tensor of NaN is freed at once, and the result then gets its memory. An element that is not
        # written therefore stays NaN.
        torch.full((m, n), torch.nan, device="cuda", dtype=DTYPES[dtype])
        made = oxiwarp.linear(x, weight, vector)
        for right in (F.linear(x, weight, vector), F.linear(x[None], weight, vector)[0]):
            if not have_same_bits(made, right):
                different += int((made.view(torch.int16) != right.view(torch.int16)).sum())
    return Bits(dtype, bias, m, n, k, different)


def inputs_of(size: Size) -> Inputs:
    """Return normally distributed inputs of a product and of the operations after it."""
    m, k, n, kind = size
    inputs = {"x": random(1, m, k), "weight": random(n, k) * k**-0.5, "bias": random(n)}
    if kind == GATED_RESIDUAL:
        inputs |= {"residual": random(1, m, n), "gate": random(1, 1, n)}
    return inputs


def fused(kind: str) -> Callable[[Inputs], Tensor]:
    """Return a function that computes product and epilogue in one kernel."""
    if kind == GATED_RESIDUAL:
        return lambda x: oxiwarp.linear(x["x"], x["weight"], x["bias"], residual=x["residual"], gate=x["gate"])
    return lambda x: oxiwarp.linear(x["x"], x["weight"], x["bias"], epilogue=kind)


def separate(kind: str, linear: Callable[..., Tensor] = F.linear) -> Callable[[Inputs], Tensor]:
    """Return a function that computes the product with `linear`, and the operations after it with a separate kernel."""
    op = getattr(oxiwarp, kind)
    if kind == GATED_RESIDUAL:
        return lambda x: op(x["residual"], linear(x["x"], x["weight"], x["bias"]), x["gate"])
    return lambda x: op(linear(x["x"], x["weight"], x["bias"]))


def library(x: Inputs) -> Tensor:
    """Compute product and tanh GELU with cuBLASLt, as `mode="fast"` of `patch` does."""
    return torch._addmm_activation(x["bias"], x["x"][0], x["weight"].t(), use_gelu=True)


def speed_of(size: Size, rounds: int) -> Speed:
    """Time the product with an epilogue and its alternatives, in alternation."""
    m, k, n, kind = size
    assert kind is not None
    first = inputs_of(size)
    exact = have_same_bits(fused(kind)(first), separate(kind, oxiwarp.linear)(first))
    ways = {"fused": fused(kind), "separate": separate(kind)} | ({"library": library} if kind == "gelu_tanh" else {})
    calls = {name: lambda x, way=way: lambda: way(x) for name, way in ways.items()}
    results = 2 * m * n  # bytes of the result in a 16-bit dtype
    raced = race_calls(calls, first, lambda: inputs_of(size), results, rounds)
    times = {name: round(time.median, 2) for name, time in raced.items()}
    return Speed(kind, m, n, k, times["fused"], times["separate"], times.get("library"), exact)


def write_rows(path: Path, cls: type, rows: Iterable[Any]) -> list[Any]:
    """Write the results to a CSV file as they come, and return them."""
    done = []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(cls)])
        writer.writeheader()
        for row in rows:
            print(row, flush=True)
            writer.writerow(asdict(row))
            file.flush()
            done.append(row)
    return done


def all_bits(sizes: Iterable[Size]) -> Iterator[Bits]:
    """Compare the bits of all sizes."""
    for m, k, n in dict.fromkeys(size[:3] for size in sizes):
        for dtype, bias in product(DTYPES, (True, False)):
            yield bits_of(Size(m, k, n), dtype, bias)
        torch.cuda.empty_cache()


def all_speeds(sizes: Iterable[Size], rounds: int) -> Iterator[Speed]:
    """Time all sizes that have an epilogue."""
    for size in sizes:
        yield speed_of(size, rounds)
        torch.cuda.empty_cache()


def measure(sizes: list[Size], rounds: int, out: Path | None) -> int:
    """Measure the sizes and write the results. Return the exit code."""
    facts, folder = begin(out)
    index = torch.cuda.current_device()
    facts |= {"environment": environment_of(index), "capability": capability_of(index)}
    if facts["environment"] is None or not has_default_settings():
        print("linear_tables: torch's settings for cuBLAS are not the defaults, or its version is not known")
        return 1
    (folder / "linear_tables.json").write_text(json.dumps(facts, indent=2) + "\n")
    torch.manual_seed(0)
    timed = with_rows(sizes)
    bits = write_rows(folder / "linear_bits.csv", Bits, all_bits([*sizes, *timed]))
    speeds = write_rows(folder / "linear_speed.csv", Speed, all_speeds(timed, rounds))
    print(f"{sum(row.different == 0 for row in bits)} of {len(bits)} products have the bits of cuBLAS")
    wrong = [row for row in speeds if not row.exact]
    for row in wrong:
        print(f"WRONG: {row}")
    return min(len(wrong), 1)


def main() -> int:
    """Measure the sizes and write the results. With `--from`, only add existing results to the package's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parsed, action="append", help="MxKxN or MxKxN:kind; may be given again")
    parser.add_argument("--model", action="append", help="workload of `python -m oxiwarp bench`; may be given again")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds; each round has every alternative once")
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    parser.add_argument("--from", type=Path, default=None, dest="source", help="results for the package's tables")
    options = parser.parse_args()
    if options.source is not None:
        adopt(options.source)
        return 0
    if not torch.cuda.is_available():
        print("linear_tables: no CUDA device: nothing measured")
        return 0
    sizes = [*(options.size or ()), *(size for name in options.model or () for size in of_model(name))]
    return measure(sizes or list(SIZES), options.rounds, options.out)


if __name__ == "__main__":
    sys.exit(main())
