"""Shared code of the examples: choice of the device, timing, tables and plots."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oxiwarp.__main__ import steps as count  # an argument's type: a whole number of 1 or more
from oxiwarp.cli.bench.measure import synchronize

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU, whose executor checks the kernels but is slow."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def milliseconds(call: Callable[[], object], device: torch.device, rounds: int, warmup: int, title: str) -> float:
    """Return the median time of a call in milliseconds, with an idle device before and after it."""
    for _ in range(warmup):
        call()
    times = []
    for _ in track(range(rounds), description=f"{title:28}", console=console):
        synchronize(device)
        started = perf_counter()
        call()
        synchronize(device)
        times.append((perf_counter() - started) * 1e3)
    return median(times)


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


__all__ = ["console", "count", "default_device", "milliseconds", "plot", "show"]
