"""Times matrix products in long windows, with the clock and the power of the GPU.

    python benches/python/products.py [--only TEXT] [--rounds N] [--seconds N] [--out FOLDER]

A GPU runs large matrix products at its power limit, so the clock depends on what ran before. Therefore every
case first runs for two seconds. Then each round has one window for each implementation, in a random order. The
first third of a window is not timed. The calls of a window rotate through several sets of operands.

The program times the implementations that `bench.py` times for the ops `linear` and `linear_fp8`. It also times
`product`, which is `F.linear` without the epilogue, or `torch._scaled_mm` with the same accumulation. The program
compares the bits of oxiwarp's results with the results of the eager code, and prints the name of the slowest
kernel of each implementation. It writes products.csv and products.json.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from attention import write
from clock import Clock, add_seconds
from environment import begin
from forms import Chain, Form, Shape, Source, bytes_of, tuple_of
from ops import FORMS
from providers import is_ours, ours_of, providers_of
from results import COMPUTE_BOUND, label_of
from timing import COPY, Turn, calls_for, capture, copy_turn, rotated, sets_for
from torch import Tensor

from oxiwarp.cli.bench.pipeline_run import GpuState

PRODUCT = "product"
WARM_SECONDS = 2.0
WINDOW_SECONDS = 0.09
"""Length of a window. A third of it is not timed."""


@dataclass(frozen=True)
class Row:
    """Result of one implementation of one case. Times are in microseconds, medians of the rounds."""

    case: str
    shape: str
    provider: str
    us: float
    low_us: float
    high_us: float
    tflops: float
    of_product: float
    """Time of `product`, divided by this time."""
    of_copy: float
    """Bandwidth of the operands and the result, divided by that of a device copy."""
    equal: float
    """Share of the values that have the bits of the eager code."""
    clock_mhz: float
    watts: float
    """Medians over all implementations of the case."""
    kernel: str
    """The slowest kernel."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: object) -> Tensor:
    """Compute the matrix product without its epilogue."""
    return F.linear(x, weight, bias)


def providers_with_product(form: Form) -> dict[str, Chain]:
    """Return the implementations to time, by name. torch.compile gives the same call of a product without an
    epilogue, so it is not timed."""
    if form.op == "linear_fp8":
        others = {name: call for name, call in providers_of(form).items() if name in {*ours_of(form), *form.peers}}
        return {PRODUCT: form.eager, **others}
    return {PRODUCT: product, **(ours_of(form) if form.eager is F.linear else providers_of(form))}


def slowest_kernel(call: Callable[[], object]) -> str:
    """Return the name of the kernel that takes most of the time of `call`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda event: event.device_time_total)
    return str(kernels[-1].key) if kernels else ""


def windows(turns: dict[str, Turn], rounds: int) -> dict[str, list[float]]:
    """Return a dict that maps the name of each implementation to its times per call, one per round, in microseconds."""
    once = {name: seconds_of(turn, 2) / 2 for name, turn in turns.items()}
    repeats = {name: max(1, math.ceil(WINDOW_SECONDS / 3 / seconds)) for name, seconds in once.items()}
    names, times, warm = list(turns), {name: list[float]() for name in turns}, 0.0
    while warm < WARM_SECONDS:
        warm += sum(seconds_of(turns[name], repeats[name]) for name in names)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            for _ in range(repeats[name]):
                turns[name].run()
            seconds = seconds_of(turns[name], 2 * repeats[name])
            times[name].append(seconds * 1e6 / (2 * repeats[name] * turns[name].calls))
    return times


def seconds_of(turn: Turn, repeats: int) -> float:
    """Run a CUDA graph several times, and return the GPU time in seconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        turn.run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def equal_share(result: object, expected: object) -> float:
    """Return the share of the values with equal bits."""
    pairs = list(zip(tuple_of(result), tuple_of(expected), strict=True))
    equal = sum(int((a.view(torch.int16) == b.view(torch.int16)).sum()) for a, b in pairs)
    return equal / sum(a.numel() for a, _ in pairs)


def measure(form: Form, model: str, shape: Shape, rounds: int) -> list[Row]:
    """Measure all implementations of one case."""
    device = torch.device("cuda")
    source = Source(device, torch.bfloat16)
    first = form.inputs(source, shape)
    sets = rotated(lambda: form.inputs(source, shape), sets_for(bytes_of(*first.values()), device))
    providers = providers_with_product(form)
    expected = form.eager(**first)
    rows, depth = math.prod(first["x"].shape[:-1]), first["x"].shape[-1]
    operations = 2.0 * rows * depth * first["weight"].shape[0]
    bytes_moved = bytes_of(*first.values(), expected)
    calls = calls_for(bytes_of(expected), len(sets), device)
    turns, equal, kernels = {}, {}, {}
    for name, provider in providers.items():
        try:
            result = provider(**first)
        except RuntimeError as failure:
            print(f"{model}, {name}: not measured ({str(failure).strip()[:200]})")
            continue
        equal[name] = equal_share(result, expected) if name != PRODUCT else float("nan")
        kernels[name] = slowest_kernel(lambda provider=provider: provider(**first))
        turns[name] = capture(lambda x, provider=provider: lambda: provider(**x), sets, calls)
    copy, copied = copy_turn(device)
    with GpuState(device) as state:
        times = windows({**turns, COPY: copy}, rounds)
    clock, watts = (median(column) for column in zip(*state.samples, strict=True)) if state.samples else [math.nan] * 2
    copy_rate = copied / median(times.pop(COPY))
    least = median(times[PRODUCT])
    return [
        Row(
            case=f"{model}, {form.chain}",
            shape=label_of(shape),
            provider=name,
            us=(us := median(samples)),
            low_us=min(samples),
            high_us=max(samples),
            tflops=operations / us * 1e-6,
            of_product=least / us,
            of_copy=bytes_moved / us / copy_rate,
            equal=equal[name],
            clock_mhz=clock,
            watts=watts,
            kernel=kernels[name],
        )
        for name, samples in times.items()
    ]


def cases(only: list[str] | None) -> list[tuple[Form, str, Shape]]:
    """Return the benchmark cases of matrix products. If `only` is given, return only the cases in which the
    name of the model or of the torch code contains one of these texts."""
    found = [(form, *case) for form in FORMS if form.op in COMPUTE_BOUND for case in form.cases]
    return [case for case in found if only is None or any(part in f"{case[1]}, {case[0].chain}" for part in only)]


def show(rows: list[Row]) -> None:
    """Print the results of a case."""
    first = rows[0]
    print(f"{first.case}: {first.shape}, {first.clock_mhz:.0f} MHz, {first.watts:.0f} W", flush=True)
    for row in rows:
        bits = "" if math.isnan(row.equal) else f", {100 * row.equal:.4g} % equal"
        print(
            f"    {row.provider:32} {row.us:9.2f} us {row.tflops:6.1f} TFLOP/s {row.of_product:6.3f} x product,"
            f" {row.of_copy:5.2f} of copy{bits}  {row.kernel[:60]}",
            flush=True,
        )


def main() -> int:
    """Measure all cases, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="only cases whose model or chain contains this text; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=7, help="windows for each implementation (default: 7)")
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    add_seconds(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("products: no CUDA device: nothing measured")
        return 0
    clock = Clock(options.seconds)
    facts, out = begin(options.out)
    torch.manual_seed(0)
    rows = list[Row]()
    for form, model, shape in cases(options.only):
        if clock.is_over:
            print(f"products: the time is over; not measured: {model}, {form.chain}")
            continue
        found = measure(form, model, shape, options.rounds)
        show(found)
        rows += found
        write(out / "products.csv", Row, rows)
        torch.cuda.empty_cache()
    (out / "products.json").write_text(json.dumps(facts, indent=2) + "\n")
    ratios = sorted(row.of_product for row in rows if is_ours(row.provider))
    if ratios:
        print(f"oxiwarp, time of product / own time: {ratios[0]:.3f} to {ratios[-1]:.3f}, median {median(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
