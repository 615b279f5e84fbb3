"""Draws the plots of a run of bench.py: one for each family of ops, and an overview of all ops.

Colours are from the palette of Okabe and Ito, which colour-blind readers can distinguish. Bars also differ in hatch,
and points in marker. An `x` marks a baseline that was not measured.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ops import FAMILIES, FAMILY_OF
from providers import EAGER, PEERS
from results import COMPILED, OURS, Measurement, Results

from oxiwarp.cli.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, YELLOW

TORCH = "F.*"
# Colour and hatch of the bars of each implementation.
BARS = {
    OURS: (BLUE, ""),
    COMPILED: (ORANGE, "//"),
    TORCH: (GREEN, ".."),
    "Liger": (SKY_BLUE, "\\\\"),
    "QuACK": (PURPLE, "xx"),
    EAGER: (YELLOW, ""),
}
WIDE = 8  # A row of panels shows about this many measured cases.
MISSING_AT = 0.02  # The mark of a missing baseline is drawn at this horizontal position.
MISSING = {"color": BLACK, "linestyle": "", "marker": "x"}
LEGEND: dict[str, Any] = {"loc": "outside lower center", "fontsize": 9, "handlelength": 2.5}


def plot(results: Results, folder: Path, title: str) -> str:
    """Write `<family>.png` for each family of ops, and `overview.png`. Return a message that names the files."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return "no plots: matplotlib is not installed"
    if not results.measurements:
        return "no plots: nothing measured"
    drawn = []
    for family in FAMILIES:
        if ops := [op for op in results.ops if FAMILY_OF[op] == family]:
            draw_family(results, ops, title).savefig(folder / f"{family}.png", dpi=110)
            drawn.append(f"{family}.png")
    draw_overview(results, title).savefig(folder / "overview.png", dpi=110)
    return f"plots in {folder}: {', '.join([*drawn, 'overview.png'])}"


def draw_family(results: Results, ops: list[str], title: str) -> Any:
    """Draw a panel for each op. A bar shows the GB/s of one implementation for one model, and a line shows
    the GB/s of a device copy."""
    from matplotlib.figure import Figure

    counts = [len(results.of(op)) for op in ops]
    width = max(8.0, min(22.0, 1.6 * sum(counts) / _rows(counts) + 1.5 * len(ops) / _rows(counts)))
    figure = Figure(figsize=(width, 4.6 * _rows(counts) + 0.4), layout="constrained")
    for row, names in zip(figure.subfigures(_rows(counts), 1, squeeze=False)[:, 0], _in_rows(ops, counts), strict=True):
        ratios = [len(results.of(op)) + 1 for op in names]
        axes = row.subplots(1, len(names), sharey=True, squeeze=False, width_ratios=ratios)[0]
        for axis, op in zip(axes, names, strict=True):
            _panel(axis, op, results)
        axes[0].set_ylabel("GB/s (inputs read once + results written once)")
    figure.suptitle(title, fontsize=10)
    figure.legend(handles=_family_legend(results, ops), ncols=8 if width > 11 else 4, **LEGEND)
    return figure


def _panel(axis: Any, op: str, results: Results) -> None:
    rows, lines = results.of(op), _lines(results, op)
    bar = 0.85 / max(1, len(lines))
    for at, line in enumerate(lines):
        color, hatch = BARS[line]
        places = [row + (at - (len(lines) - 1) / 2) * bar for row in range(len(rows))]
        rates = [m.rate(name) if (name := _provider(m, line)) else None for m in rows]
        measured = [(place, rate) for place, rate in zip(places, rates, strict=True) if rate is not None]
        for place, rate in measured:
            axis.bar(place, rate, bar, color=color, hatch=hatch, edgecolor=BLACK, linewidth=0.5)
        missing = [place for place, rate in zip(places, rates, strict=True) if rate is None]
        axis.plot(missing, [0.03 * results.copy] * len(missing), markersize=5, **MISSING)
    axis.axhline(results.copy, color=BLACK, linestyle="--", linewidth=1)
    labels = [f"{m.model}\n{m.label}" for m in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=35, ha="right", fontsize=7)
    axis.set_title(_in_lines(op), fontsize=9)
    axis.set_ylim(0, 1.1 * max(results.copy, *(m.rate(name) for m in rows for name in m.times)))
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def _lines(results: Results, op: str) -> list[str]:
    """Return the labels of an op's bars, one bar per implementation.

    A library has a bar if it was measured for this op. oxiwarp and torch.compile have a bar if they were
    measured for any op of the run. Their missing measurements are then visible in the panel.
    """
    rows, everywhere = results.of(op), (OURS, COMPILED)
    return [
        line for line in BARS if any(_provider(m, line) for m in (results.measurements if line in everywhere else rows))
    ]


def _family_legend(results: Results, ops: list[str]) -> list[Any]:
    """Return the legend entries: each implementation, the device copy, and the mark of a missing baseline."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [m for op in ops for m in results.of(op)]
    handles: list[Any] = []
    for line, (color, hatch) in BARS.items():
        if names := dict.fromkeys(name for m in rows if (name := _provider(m, line))):
            label = ", ".join(names) if line == TORCH else line
            handles.append(Patch(facecolor=color, hatch=hatch, edgecolor=BLACK, linewidth=0.5, label=label))
    copy = f"device copy, {results.copy:.0f} GB/s"
    handles.append(Line2D([], [], color=BLACK, linestyle="--", linewidth=1, label=copy))
    if any(_provider(m, line) is None for op in ops for line in _lines(results, op) for m in results.of(op)):
        handles.append(Line2D([], [], markersize=6, label="not measured", **MISSING))
    return handles


def _provider(m: Measurement, line: str) -> str | None:
    """Return the name of the implementation that a bar shows. torch.compile has up to two measured variants,
    and its bar shows the faster one."""
    if line == TORCH:
        return next((name for name in m.times if name.startswith("F.")), None)
    return m.best(line) if line in (EAGER, COMPILED, *PEERS) else line if line in m.times else None


def _in_lines(op: str) -> str:
    """Split a long op name into two lines, so that the title fits above a panel with only one bar group."""
    middle = op.find("_", len(op) // 2)
    return op if len(op) < 24 or middle < 0 else f"{op[:middle]}\n{op[middle:]}"


def _rows(counts: list[int]) -> int:
    return max(1, round(sum(counts) / WIDE / 1.5))


def _in_rows(ops: list[str], counts: list[int]) -> Iterator[list[str]]:
    """Distribute the ops over the rows of panels, with about the same number of cases per row. No row is empty."""
    rows, left = _rows(counts), list(zip(ops, counts, strict=True))
    for row in range(rows, 0, -1):
        target, taken = sum(count for _, count in left) / row, 0
        names: list[str] = []
        while left and (not names or (taken + left[0][1] / 2 <= target and len(left) >= row)):
            name, count = left.pop(0)
            names.append(name)
            taken += count
        if row == 1:
            names += [name for name, _ in left]
        yield names


def draw_overview(results: Results, title: str) -> Any:
    """Draw one row with points for the largest case of each op: bandwidth of oxiwarp and torch.compile
    relative to a device copy."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = [max(cases, key=lambda m: m.bytes) for op in results.ops if (cases := _ours(results.of(op)))][::-1]
    figure = Figure(figsize=(9, 0.22 * len(rows) + 1.6), layout="constrained")
    axis = figure.subplots()
    ours = {"color": BLUE, "linestyle": "", "marker": "o", "markersize": 6}
    theirs = {"color": ORANGE, "linestyle": "", "marker": "D", "markersize": 7}
    theirs |= {"markerfacecolor": "none", "markeredgewidth": 1.8}
    for at, m in enumerate(rows):
        share, peer = m.rate() / results.copy, _provider(m, COMPILED)
        if peer is None:
            axis.plot(MISSING_AT, at, label="missing", markersize=7, markeredgewidth=1.8, **MISSING)
        else:
            other = m.rate(peer) / results.copy
            axis.plot([share, other], [at, at], color="0.8", linewidth=1.5, zorder=1)
            axis.plot(other, at, label=COMPILED, zorder=3, **theirs)
        axis.plot(share, at, label=OURS, zorder=2, **ours)
    axis.axvline(1.0, color=BLACK, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(rows)), [f"{m.op}  {m.title}" for m in rows], fontsize=7)
    axis.set(xlabel="share of the run's copy bandwidth, by minimal bytes", xlim=(0, None), ylim=(-0.7, len(rows) - 0.3))
    axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.grid(axis="x", alpha=0.3)
    named = [(OURS, ours), (COMPILED, theirs), ("device copy", {"color": BLACK, "linestyle": "--", "linewidth": 1})]
    if any(_provider(m, COMPILED) is None for m in rows):
        named.append((f"{COMPILED} was not measured", {**MISSING, "markersize": 7, "markeredgewidth": 1.8}))
    figure.legend(handles=[Line2D([], [], label=label, **line) for label, line in named], ncols=4, **LEGEND)
    figure.suptitle(title, fontsize=10)
    return figure


def _ours(rows: list[Measurement]) -> list[Measurement]:
    return [m for m in rows if OURS in m.times]
