"""Shared code of the examples: choice of the device, timing, tables and plots."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oxiwarp.__main__ import steps as count  # an argument's type: a whole number of 1 or more
from oxiwarp.cli.bench.measure import timed
from oxiwarp.cli.bench.turns import in_turns

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def default_device() -> torch.device:
    """Return the GPU, or the CPU if there is no GPU. The CPU executor is slow, but it checks the kernels."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def alternating(
    calls: dict[str, Callable[[], object]], device: torch.device, rounds: int, warmup: int, title: str
) -> dict[str, float]:
    """Return the median time of each call in milliseconds, with an idle device before and after it.

    Each round times every call once, in a random order. A change of the GPU's clock then affects all calls.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    names, times = list(calls), {name: list[float]() for name in calls}
    turns = list(in_turns(range(len(names)), rounds))
    for _, at in track(turns, description=f"{title:28}", console=console):
        times[names[at]].append(timed(calls[names[at]], device)[1])
    return {name: median(values) for name, values in times.items()}


def milliseconds(call: Callable[[], object], device: torch.device, rounds: int, warmup: int, title: str) -> float:
    """Return the median time of a call in milliseconds, with an idle device before and after it."""
    return alternating({title: call}, device, rounds, warmup, title)[title]


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def plot(path: str, title: str, values: dict[str, float], unit: str) -> None:
    """Draw a bar chart with one bar per value."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.5 * len(values)), layout="constrained")
    bars = axes.barh(list(values), list(values.values()), color="#b7410e")
    axes.bar_label(bars, fmt="%.4g", padding=3)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    console.print(f"plot: {path}")


__all__ = ["alternating", "console", "count", "default_device", "milliseconds", "plot", "show"]
