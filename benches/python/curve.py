"""Cost grows with bytes: the time of every op from one token to more than 2^32 elements, on a GPU.

    python benches/python/curve.py [--only ada_norm,rope] [--out FOLDER]

For each op one model's width, with more and more tokens. Beside it an element-wise kernel that moves the same bytes,
and a line for the bytes over the bandwidth of a large copy. A call whose tensors are smaller than the L2 cache finds
them there after the first replays: what it costs there is latency. The last token of each result is compared with a
call on that token alone, which a 32-bit offset would not survive. Writes curve.csv and curve.png.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from environment import environment, results_folder, title_of
from forms import DTYPE, Form, Inputs, Source, bytes_of, prepare, token_dimension, tuple_of
from ops import OPS, selected
from providers import has_ours
from timing import calls_for, capture, copy_turn, race, sets_for

POINTS = 12
ELEMENTS = 2**32  # of an op's largest tensor, exceeded by the last point
SETS = 64  # of inputs, at most
ROUNDS = 5
ROOM = 0.9  # of the free memory, for one set of inputs and its results


@dataclass(frozen=True)
class Point:
    """One op at one number of tokens."""

    op: str
    tokens: int
    elements: int
    bytes: int
    us: float
    kernel_us: float
    """Of an element-wise kernel that moves the same bytes."""
    last_token: bool
    """Whether it has the bits of a call on it alone."""


def tokens_of(form: Form, shape: tuple[int, ...]) -> list[int]:
    """From 1 to past `ELEMENTS`, in equal factors."""
    single = form.inputs(Source(torch.device("cpu")), (1, 1, *shape[2:]))
    most = ELEMENTS // max(x.numel() for x in single.values()) + 1
    steps = (most ** (at / (POINTS - 1)) for at in range(POINTS))
    return sorted({_grained(min(most, round(step)), form.grain) for step in steps})


def _grained(tokens: int, grain: int) -> int:
    return tokens if tokens < min(grain, 32) else -(-tokens // grain) * grain


def last_token_is_its_own(form: Form, inputs: Inputs, tokens: int) -> bool:
    """Where a token does not depend on its position."""
    if not form.chunked or tokens == 1:
        return True
    alone = {name: _last(x, tokens) for name, x in inputs.items()}
    ours = form.call(form.modes[0])
    together = [_last(x, tokens) for x in tuple_of(ours(**inputs))]
    return all(torch.equal(x, y) for x, y in zip(together, tuple_of(ours(**alone)), strict=True))


def _last(x: torch.Tensor, tokens: int) -> torch.Tensor:
    dim = token_dimension(x, tokens)
    return x if dim is None else x.narrow(dim, tokens - 1, 1)


def points_of(form: Form, device: torch.device) -> Iterator[Point]:
    """One op's curve, as far as the memory reaches."""
    _, shape = form.cases[0]
    source, ours = Source(device), form.call(form.modes[0])
    room, per_token = ROOM * torch.cuda.get_device_properties(device).total_memory, 0.0
    for tokens in tokens_of(form, shape):
        if 2 * per_token * tokens > room:  # the results of a call before the graph's, and the graph's
            return
        torch.cuda.empty_cache()
        make = partial(form.inputs, source, (1, tokens, *shape[2:]))
        first = make()
        results = tuple_of(ours(**first))
        read, written = bytes_of(*first.values()), bytes_of(*results)
        elements = max(x.numel() for x in first.values())
        del results
        last = last_token_is_its_own(form, first, tokens)
        count = min(SETS, sets_for(read, device)) if read + written < 2**30 else 1
        sets = [first, *(make() for _ in range(count - 1))]
        calls = calls_for(written, count, device) if count > 1 else 1
        us = race({"ours": capture(partial(prepare, form, ours), sets, calls)}, ROUNDS)["ours"].median
        del first, sets
        torch.cuda.empty_cache()
        yield Point(form.op, tokens, elements, read + written, us, kernel_us(read + written, device), last)
        per_token = (read + written) / tokens


def kernel_us(moved: int, device: torch.device) -> float:
    """Time of torch.neg on so large a tensor that it moves `moved` bytes; a copy in a graph would be no kernel."""
    size = max(1, moved // 2 // DTYPE.itemsize)
    count = max(1, min(SETS, math.ceil(2**28 / moved)))
    sets = [{"x": torch.randn(size, device=device, dtype=DTYPE)} for _ in range(count)]
    turn = capture(lambda inputs: partial(torch.neg, inputs["x"]), sets, count)
    return race({"copy": turn}, ROUNDS)["copy"].median


def copy_bandwidth(device: torch.device) -> float:
    """GB/s of a large device-to-device copy."""
    turn, copied = copy_turn(device)
    return copied / race({"copy": turn}, ROUNDS)["copy"].median / 1e3


def write_csv(points: list[Point], copy: float, path: Path) -> None:
    """A line for each op and number of tokens."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("op", "tokens", "elements", "bytes", "us", "gb_per_s", "of_copy", "same_bytes_us", "last_token")
        )
        for p in points:
            rate = p.bytes / p.us / 1e3
            figures = (f"{p.us:.3f}", f"{rate:.1f}", f"{rate / copy:.4f}", f"{p.kernel_us:.3f}")
            writer.writerow((p.op, p.tokens, p.elements, p.bytes, *figures, "same bits" if p.last_token else "FAIL"))


def plot(points: list[Point], copy: float, path: Path, title: str) -> str:
    """A panel for each op. Returns what to say about it."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return "no plot: matplotlib is not installed"
    ops = list(dict.fromkeys(p.op for p in points))
    columns = min(5, len(ops))
    rows = -(-len(ops) // columns)
    size = (3.2 * columns, 2.7 * rows + 0.5)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    ends = [min(p.bytes for p in points), max(p.bytes for p in points)]
    for axis, op in zip(axes.flat, ops, strict=False):
        own = [p for p in points if p.op == op]
        axis.loglog([p.bytes for p in own], [p.kernel_us for p in own], color="0.6", label="element-wise, same bytes")
        axis.loglog([p.bytes for p in own], [p.us for p in own], "o-", color="C3", markersize=3, label="oxiwarp")
        axis.loglog(ends, [end / copy / 1e3 for end in ends], "k--", linewidth=1, label="large copy")
        axis.axvspan(*_past_32_bits(own), color="C0", alpha=0.12)
        axis.set_title(op, fontsize=8 if len(op) < 30 else 6)
        axis.grid(alpha=0.3)
        axis.set(xlim=(ends[0] / 2, ends[1] * 2), ylim=(1, None))
    for axis in axes.flat[len(ops) :]:
        axis.axis("off")
    axes[0, 0].legend(fontsize=7)
    figure.supxlabel(
        "bytes: inputs read once + results written once; shaded: a tensor of more than 2³² elements", fontsize=9
    )
    figure.supylabel("µs", fontsize=9)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return f"plot: {path}"


def _past_32_bits(own: list[Point]) -> tuple[float, float]:
    """The bytes of 2^32 elements of this op's largest tensor, and beyond."""
    last = own[-1]
    begin = last.bytes * ELEMENTS / last.elements
    return begin, 4 * begin


def measured(only: list[str] | None, device: torch.device) -> Iterator[Point | str]:
    """Every point, and a line for each op that fails to run."""
    for op in OPS:
        form = next(form for form in selected([op]) if form.timed)
        if form.backward or not has_ours(form) or (only is not None and op not in only):
            continue
        try:
            yield from points_of(form, device)
        except Exception as error:  # one op that does not run must not hide the others
            yield f"FAIL {op}: {type(error).__name__}: {error}"


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="these ops")
    parser.add_argument("--out", type=Path, default=None, help="default: benches/results/<gpu>/<date>")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("curve: no CUDA device: nothing measured")
        return 0
    facts, device, points, failed = environment(), torch.device("cuda", torch.cuda.current_device()), list[Point](), 0
    copy = copy_bandwidth(device)
    with torch.no_grad():
        for found in measured(options.only, device):
            if isinstance(found, str):
                print(found, flush=True)
                failed += 1
                continue
            points.append(found)
            failed += not found.last_token
            rate = f"{found.us:.1f} µs, {found.bytes / found.us / 1e3:.0f} GB/s"
            print(f"{found.op} {found.tokens}: {rate}{'' if found.last_token else ', FAIL: last token'}", flush=True)
    folder = options.out or results_folder(facts)
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(points, copy, folder / "curve.csv")
    if points:
        print(plot(points, copy, folder / "curve.png", f"{title_of(facts)}; copy {copy:.0f} GB/s"))
    print(f"{len(points)} points, {failed} failed; results: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
