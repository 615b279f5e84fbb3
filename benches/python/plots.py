"""Plots the results of a run: one plot per family of ops, and an overview of all ops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ops import FAMILIES, FAMILY_OF
from providers import EAGER, PEERS
from results import COMPILED, OURS, Measurement, Results

COLOURS = {OURS: "C3", COMPILED: "C2", "F.*": "C1", "Liger": "C0", "QuACK": "C4", EAGER: "0.7"}
WIDE = 8  # approximate number of cases in a row of panels


def plot(results: Results, folder: Path, title: str) -> str:
    """Write `<family>.png` and `overview.png`. Return a message about the result."""
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        return "no plots: matplotlib is not installed"
    if not results.measurements:
        return "no plots: nothing measured"
    drawn = []
    for family in FAMILIES:
        if ops := [op for op in results.ops if FAMILY_OF[op] == family]:
            _family(results, ops, folder / f"{family}.png", title)
            drawn.append(f"{family}.png")
    _overview(results, folder / "overview.png", title)
    return f"plots in {folder}: {', '.join([*drawn, 'overview.png'])}"


def _family(results: Results, ops: list[str], path: Path, title: str) -> None:
    """Plot one panel per op, with the GB/s of every provider by model and a line for the copy."""
    import matplotlib.pyplot as plt

    counts = [len(results.of(op)) for op in ops]
    width = max(8.0, min(22.0, 1.6 * sum(counts) / _rows(counts) + 1.5 * len(ops) / _rows(counts)))
    figure = plt.figure(figsize=(width, 4.6 * _rows(counts)), layout="constrained")
    for row, names in zip(figure.subfigures(_rows(counts), 1, squeeze=False)[:, 0], _in_rows(ops, counts), strict=True):
        ratios = [len(results.of(op)) + 1 for op in names]
        axes = row.subplots(1, len(names), sharey=True, squeeze=False, width_ratios=ratios)[0]
        for axis, op in zip(axes, names, strict=True):
            _panel(axis, op, results)
        axes[0].set_ylabel("GB/s (inputs read once + results written once)")
        axes[0].legend(fontsize=8, loc="upper left", ncols=2)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, op: str, results: Results) -> None:
    rows = results.of(op)
    lines = [line for line in COLOURS if any(_provider(m, line) for m in rows)]
    bar = 0.85 / max(1, len(lines))
    for at, line in enumerate(lines):
        rates = [m.rate(name) if (name := _provider(m, line)) else 0.0 for m in rows]
        places = [row + (at - (len(lines) - 1) / 2) * bar for row in range(len(rows))]
        axis.bar(places, rates, width=bar, color=COLOURS[line], label=line)
    axis.axhline(results.copy, color="black", linestyle="--", linewidth=1, label="copy")
    labels = [f"{m.model}\n{m.label}" for m in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=35, ha="right", fontsize=7)
    axis.set_title(_in_lines(op), fontsize=9)
    axis.set_ylim(0, 1.25 * results.copy)
    axis.grid(axis="y", alpha=0.3)


def _provider(m: Measurement, line: str) -> str | None:
    """Return the provider for a colour: the faster variant of torch.compile; torch's function for `F.*`."""
    if line == "F.*":
        return next((name for name in m.times if name.startswith("F.")), None)
    return m.best(line) if line in (EAGER, COMPILED, *PEERS) else line if line in m.times else None


def _in_lines(op: str) -> str:
    """Split a long name into two lines, for a panel with one case."""
    middle = op.find("_", len(op) // 2)
    return op if len(op) < 24 or middle < 0 else f"{op[:middle]}\n{op[middle:]}"


def _rows(counts: list[int]) -> int:
    return max(1, round(sum(counts) / WIDE / 1.5))


def _in_rows(ops: list[str], counts: list[int]) -> Iterator[list[str]]:
    """Yield rows of ops with about equal numbers of cases. Every row has at least one op."""
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


def _overview(results: Results, path: Path, title: str) -> None:
    """Plot the fraction of the copy bandwidth for the largest case of each op, for oxiwarp and torch.compile."""
    import matplotlib.pyplot as plt

    largest = [max(results.of(op), key=lambda m: m.bytes) for op in results.ops]
    rows = [m for m in largest if OURS in m.times][::-1]
    figure, axis = plt.subplots(figsize=(9, 0.2 * len(rows) + 1.4), layout="constrained")
    for at, m in enumerate(rows):
        shares = {line: m.rate(name) / results.copy for line in (OURS, COMPILED) if (name := _provider(m, line))}
        axis.plot(list(shares.values()), [at] * len(shares), color="0.8", linewidth=1.5, zorder=1)
        for line, share in shares.items():
            axis.scatter(share, at, color=COLOURS[line], s=18, zorder=2, label=line if at == 0 else None)
    axis.axvline(1.0, color="black", linestyle="--", linewidth=1, label="copy")
    axis.set_yticks(range(len(rows)), [f"{m.op}  {m.title}" for m in rows], fontsize=7)
    axis.set(xlabel="share of the run's copy bandwidth, by minimal bytes", xlim=(0, None), ylim=(-0.7, len(rows) - 0.3))
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8, loc="lower left")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
