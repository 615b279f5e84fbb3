"""Times every op on a GPU for increasing sizes, from one token to tensors of more than 2^32 elements.

    python benches/python/curve.py [--only ada_norm,rope] [--seconds N] [--out FOLDER]

Each op has the number of columns that one model uses. The program compares an op with two baselines. The first baseline
is the time of an element-wise kernel that moves as many bytes as the op. The second baseline is this number of bytes,
divided by the bandwidth of a large device copy. Small tensors stay in the L2 cache between graph replays, so the times
of small calls show latency instead of memory bandwidth.

To detect overflows of 32-bit offsets, the program checks the first, a middle and the last token of each result. For
each of these tokens, it calls the op again with only this token, and compares the results. If an op combines several
tokens, the program prints "not compared". The program updates curve.csv after each size. It also draws curve.png, with
a panel for each family of ops (e.g. norms). The y axis is the bandwidth relative to a device copy, and the x axis the
number of bytes.
"""

import argparse
import csv
import gc
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from clock import Clock, add_seconds
from curve_plot import ELEMENTS, plot
from environment import begin, title_of
from forms import DTYPE, Form, Inputs, Source, bytes_of, prepare, token_dimension, tuple_of
from ops import OPS, check_names, selected
from providers import has_ours
from timing import calls_for, capture, copy_turn, race, sets_for

POINTS = 12
SETS = 64  # maximum number of input sets
ROUNDS = 5
ROOM = 0.9  # The inputs and results of a call take at most this fraction of the GPU memory.


@dataclass(frozen=True)
class Point:
    """Measurement of one op at one number of tokens."""

    op: str
    tokens: int
    elements: int
    bytes: int
    us: float
    kernel_us: float
    """Microseconds of an element-wise kernel that moves the same bytes."""
    alone: bool | None
    """True if the results for three tokens equal calls on only one token. None if the tokens were not
    compared."""

    @property
    def verdict(self) -> str:
        """Return the result of the comparison of single tokens, as text."""
        return {True: "same bits", False: "FAIL", None: "not compared"}[self.alone]


def tokens_of(form: Form, shape: tuple[int, ...]) -> list[int]:
    """Return numbers of tokens, each larger than the previous number by about the same factor.

    With the last number of tokens, the largest tensor has more than `ELEMENTS` elements.
    """
    single = form.inputs(Source(torch.device("cpu")), (1, 1, *shape[2:]))
    most = ELEMENTS // max(x.numel() for x in single.values()) + 1
    steps = (most ** (at / (POINTS - 1)) for at in range(POINTS))
    return sorted({_grained(min(most, round(step)), form.grains) for step in steps})


def _grained(tokens: int, grains: tuple[int, ...]) -> int:
    grain = max((grain for grain in grains if grain <= tokens), default=1)
    return -(-tokens // grain) * grain


def tokens_alone(form: Form, inputs: Inputs, tokens: int) -> bool | None:
    """Return True if the op's results for three tokens equal the results of three calls with one token each.

    Return None if the op combines several tokens, so that a call with one token gives other results.
    """
    if not form.chunked and form.token is None:
        return None
    ours = form.call(form.modes[0])
    results = tuple_of(ours(**inputs))
    for at in (0, tokens // 2, tokens - 1):
        token = {name: _token(x, tokens, at) for name, x in inputs.items()}
        alone = tuple_of(form.token(**token, at=at, tokens=tokens) if form.token else ours(**token))
        if not all(torch.equal(_token(x, tokens, at), y) for x, y in zip(results, alone, strict=True)):
            return False
    return True


def _token(x: torch.Tensor, tokens: int, at: int) -> torch.Tensor:
    dim = token_dimension(x, tokens)
    return x if dim is None else x.narrow(dim, at, 1)


def points_of(form: Form, device: torch.device) -> Iterator[Point]:
    """Yield the measurement of one op for each number of tokens, up to the largest number that fits into GPU
    memory."""
    _, shape = form.cases[0]
    source, ours = Source(device), form.call(form.modes[0])
    room, per_token = ROOM * torch.cuda.get_device_properties(device).total_memory, 0.0
    for tokens in tokens_of(form, shape):
        # Count the results twice: the results of an eager call and the results of the CUDA graph exist at the
        # same time.
        if 2 * per_token * tokens > room:
            return
        torch.cuda.empty_cache()
        make = partial(form.inputs, source, (1, tokens, *shape[2:]))
        first = make()
        results = tuple_of(ours(**first))
        read, written = bytes_of(*first.values()), bytes_of(*results)
        elements = max(x.numel() for x in first.values())
        del results
        alone = tokens_alone(form, first, tokens)
        count = min(SETS, sets_for(read, device)) if read + written < 2**30 else 1
        sets = [first, *(make() for _ in range(count - 1))]
        calls = calls_for(written, count, device) if count > 1 else 1
        us = race({"ours": capture(partial(prepare, form, ours), sets, calls)}, ROUNDS)["ours"].median
        del first, sets
        torch.cuda.empty_cache()
        yield Point(form.op, tokens, elements, read + written, us, kernel_us(read + written, device), alone)
        per_token = (read + written) / tokens


def kernel_us(moved: int, device: torch.device) -> float:
    """Return the time of `torch.neg` on a tensor of such a size that the kernel moves `moved` bytes.

    `copy_` is not used, because CUDA graphs capture it as a copy node instead of a kernel.
    """
    size = max(1, moved // 2 // DTYPE.itemsize)
    count = max(1, min(SETS, math.ceil(2**28 / moved)))
    sets = [{"x": torch.randn(size, device=device, dtype=DTYPE)} for _ in range(count)]
    turn = capture(lambda inputs: partial(torch.neg, inputs["x"]), sets, count)
    return race({"copy": turn}, ROUNDS)["copy"].median


def copy_bandwidth(device: torch.device) -> float:
    """Return the bandwidth of a large device-to-device copy in GB/s."""
    turn, copied = copy_turn(device)
    return copied / race({"copy": turn}, ROUNDS)["copy"].median / 1e3


COLUMNS = ("op", "tokens", "elements", "bytes", "us", "gb_per_s", "of_copy", "same_bytes_us", "tokens_alone")


def fields_of(p: Point, copy: float) -> tuple[object, ...]:
    """Return the line of one measurement for the CSV file. `copy` is the bandwidth of a large device copy in GB/s."""
    rate = p.bytes / p.us / 1e3
    figures = (f"{p.us:.3f}", f"{rate:.1f}", f"{rate / copy:.4f}", f"{p.kernel_us:.3f}")
    return (p.op, p.tokens, p.elements, p.bytes, *figures, p.verdict)


def measured(only: list[str] | None, device: torch.device, clock: Clock) -> Iterator[Point | str]:
    """Yield every measurement.

    Also yield a message for each op that fails or is skipped because time or memory is not sufficient.
    """
    for op in OPS:
        form = next(form for form in selected([op]) if form.timed)
        if form.backward or not has_ours(form) or (only is not None and op not in only):
            continue
        largest = 0
        try:
            for point in points_of(form, device):
                yield point
                largest = point.elements
                if clock.is_over:
                    break
        except Exception as error:  # continue with the other ops
            yield f"FAIL {op}: {type(error).__name__}: {error}"
        if largest <= ELEMENTS:
            yield f"{op}: {'no time' if clock.is_over else 'no memory'} beyond {largest} elements"


def main() -> int:
    """Measure all ops, print the points and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="only these ops")
    add_seconds(parser)
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    options = parser.parse_args()
    check_names(options.only)
    if not torch.cuda.is_available():
        print("curve: no CUDA device: nothing measured")
        return 0
    clock, device, points, failed = Clock(options.seconds), torch.device("cuda"), list[Point](), 0
    facts, folder = begin(options.out)
    copy = copy_bandwidth(device)
    gc.freeze()  # exclude existing objects from the garbage collection before each capture
    with torch.no_grad(), (folder / "curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for found in measured(options.only, device, clock):
            if isinstance(found, str):
                print(found, flush=True)
                failed += found.startswith("FAIL")
                continue
            points.append(found)
            writer.writerow(fields_of(found, copy))
            file.flush()
            failed += found.alone is False
            rate = f"{found.us:.1f} µs, {found.bytes / found.us / 1e3:.0f} GB/s"
            print(f"{found.op} {found.tokens}: {rate}, tokens alone: {found.verdict}", flush=True)
    if points:
        print(plot(points, copy, folder / "curve.png", f"{title_of(facts)}; copy {copy:.0f} GB/s"))
    print(f"{len(points)} points, {failed} failed, {clock.spent:.0f} s; results: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
