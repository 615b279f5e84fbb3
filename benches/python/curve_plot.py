"""Draws the plot of curve.py, with a panel for each family of ops. The y axis is the bandwidth relative to a
device copy, and the x axis the number of bytes."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ops import FAMILIES, FAMILY_OF

from oxiwarp.cli.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION

ELEMENTS = 2**32  # larger tensors need offsets of more than 32 bits
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY_BLUE, BLACK)
MARKERS = "os^Dv"
# An op's colour and marker depend on its index in the panel. The first 35 ops of a panel have different pairs
# of colour and marker.
COLUMNS = 3
BINS = 2  # number of bins per factor of ten in bytes, for the curve of the element-wise kernel
FLOOR = "element-wise kernel that moves the same bytes"


class Point(Protocol):
    """Measurement of one op at one number of tokens."""

    op: str
    elements: int
    bytes: int
    us: float
    kernel_us: float


def plot(points: Sequence[Point], copy: float, path: Path, title: str) -> str:
    """Write the plot to a file. Return a message with the file's path, or with the reason why there is no plot."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return "no plot: matplotlib is not installed"
    draw(points, copy, title).savefig(path, dpi=110)
    return f"plot: {path}"


def draw(points: Sequence[Point], copy: float, title: str) -> Any:
    """Draw a panel for each family of ops, with a line per op. `copy` is the bandwidth of a large device
    copy in GB/s."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    families = [family for family in FAMILIES if any(FAMILY_OF[p.op] == family for p in points)]
    columns = min(COLUMNS, len(families))
    rows = -(-len(families) // columns)
    figure = Figure(figsize=(max(9.0, 5.2 * columns), 5.0 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    floor = _floor(points, copy)
    for axis, family in zip(axes.flat, families, strict=False):
        _panel(axis, family, [p for p in points if FAMILY_OF[p.op] == family], floor, copy)
    for axis in axes.flat[len(families) :]:
        axis.remove()
    figure.supylabel("share of the bandwidth of a large copy", fontsize=10)
    figure.suptitle(title, fontsize=10)
    ring = {"color": BLACK, "linestyle": "", "marker": "o", "markersize": 10, "markerfacecolor": "none"}
    named = [
        ("large copy", {"color": BLACK, "linestyle": "--", "linewidth": 1}),
        (FLOOR, {"color": "0.75", "linewidth": 5}),
        ("a tensor has more than 2³² elements", ring),
    ]
    handles = [Line2D([], [], label=label, **line) for label, line in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _panel(axis: Any, family: str, points: list[Point], floor: list[tuple[float, float]], copy: float) -> None:
    axis.plot(*zip(*floor, strict=True), color="0.75", linewidth=5, zorder=1)
    axis.axhline(1.0, color=BLACK, linestyle="--", linewidth=1, zorder=1)
    by_op = defaultdict[str, list[Point]](list)
    for p in points:
        by_op[p.op].append(p)
    for number, (op, own) in enumerate(by_op.items()):
        color, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        style = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1.2, "label": op}
        axis.plot([p.bytes for p in own], [_share(p.bytes, p.us, copy) for p in own], **style)
        far = [p for p in own if p.elements > ELEMENTS]
        ring = {"color": BLACK, "marker": "o", "markersize": 10, "markerfacecolor": "none", "linestyle": ""}
        axis.plot([p.bytes for p in far], [_share(p.bytes, p.us, copy) for p in far], **ring)
    axis.set_xscale("log")
    axis.set_ylim(0, None)
    axis.tick_params(labelbottom=True, labelleft=True)
    axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.set_title(family, fontsize=10)
    axis.set_xlabel("bytes: inputs read once + results written once", fontsize=8)
    axis.grid(alpha=0.3)
    handles = [line for line in axis.lines if line.get_label() in by_op]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)


def _share(moved: float, us: float, copy: float) -> float:
    return moved / us / 1e3 / copy


def _floor(points: Iterable[Point], copy: float) -> list[tuple[float, float]]:
    """Return pairs (bytes, bandwidth relative to a device copy) of the element-wise kernel. Each pair is the
    median over similar numbers of bytes."""
    bins = defaultdict[int, list[Point]](list)
    for p in points:
        bins[round(BINS * math.log10(p.bytes))].append(p)
    return [
        (median(p.bytes for p in alike), median(_share(p.bytes, p.kernel_us, copy) for p in alike))
        for _, alike in sorted(bins.items())
    ]


__all__ = ["draw", "plot"]
