"""Tables on the terminal; CSV, plot and environment in a folder."""

import csv
import json
from pathlib import Path
from typing import Any

from results import COMPILED, Measurement, Results, goals
from rich.console import Console
from rich.table import Table

PEERS = ("eager", "F.rms_norm", "torch.compile", "Liger", "QuACK")
LINES = {"oxiwarp": "C3", "Liger": "C0", "QuACK": "C4", "torch.compile": "C2", "F.rms_norm": "C1", "eager": "C7"}


def table_of(op: str, results: Results) -> Table:
    """One op: our time and rate, and how many times as fast as each peer we are."""
    table = Table(title=f"{op}, bfloat16, forward; copy {results.copy:.0f} GB/s", title_justify="left")
    for heading in ("rows x columns", "MB", "µs", "GB/s", "of copy", *(f"x {peer}" for peer in PEERS)):
        table.add_column(heading, justify="right")
    for m in results.measurements:
        if m.op != op:
            continue
        if "oxiwarp" in m.times:
            rate = m.rate("oxiwarp")
            own = [f"{m.times['oxiwarp'].median:.2f}", f"{rate:.0f}", f"{rate / results.copy:.1%}"]
        else:
            own = ["wrong", "", ""]
        table.add_row(f"{m.rows} x {m.cols}", f"{m.bytes / 1e6:.1f}", *own, *(_ratio(m, peer) for peer in PEERS))
    return table


def _ratio(m: Measurement, peer: str) -> str:
    """As `1.08`; for torch.compile with the form that was the faster."""
    compiled = m.compiled() if peer == "torch.compile" else None
    ratio = m.ratio(compiled or peer)
    if ratio is None:
        return "–"
    return f"{ratio:.2f}" + (f" ({compiled[14:-1]})" if compiled else "")


def show(results: Results, console: Console) -> None:
    """All tables and the goals."""
    for op in dict.fromkeys(m.op for m in results.measurements):
        console.print(table_of(op, results))
    if results.measurements:
        console.print("x: how many times as fast as the peer (medians of one run); MB: read once + written once\n")
    if results.per_call:
        table = Table("call, tiny tensor", title="µs per Python call", title_justify="left")
        modes = list(dict.fromkeys(mode for mode, _ in results.per_call))
        for mode in modes:
            table.add_column(mode, justify="right")
        for what in dict.fromkeys(what for _, what in results.per_call):
            table.add_row(what, *(f"{results.per_call[mode, what]:.2f}" for mode in modes))
        console.print(table)
    console.print("goals", style="bold")
    for goal in goals(results):
        mark = {True: "pass", False: "FAIL", None: "  – "}[goal.met]
        console.print(f"  {mark}  {goal.text}: {goal.figure}")


def write_csv(results: Results, path: Path) -> None:
    """A line for each op, shape and provider; then overheads, in the same columns as far as they apply."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("what", "rows", "cols", "provider", "us", "us_p10", "us_p90", "gb_per_s", "of_copy", "relative_error")
        )
        for m in results.measurements:
            for name, time in m.times.items():
                rate = m.rate(name)
                figures = (f"{time.median:.3f}", f"{time.low:.3f}", f"{time.high:.3f}", f"{rate:.1f}")
                share, error = f"{rate / results.copy:.4f}", f"{m.errors[name]:.3e}"
                writer.writerow((m.op, m.rows, m.cols, name, *figures, share, error))
        for copy in results.copies:
            writer.writerow(("copy", "", "", "torch", "", "", "", f"{copy:.1f}", "", ""))
        for (mode, what), microseconds in results.per_call.items():
            writer.writerow((f"call, {mode}", "", "", what, f"{microseconds:.3f}"))
        if results.import_seconds is not None:
            writer.writerow(("import beyond torch", "", "", "oxiwarp", f"{results.import_seconds * 1e6:.1f}"))
        for op, times in results.first_call.items():
            for state, seconds in zip(("cold", "warm"), times, strict=True):
                writer.writerow((f"first call, {state}", "", "", op, f"{seconds * 1e6:.1f}"))


def plot(results: Results, path: Path, title: str) -> str:
    """GB/s by shape, a panel for each op. Returns what to say about it."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return "no plot: matplotlib is not installed"
    ops = list(dict.fromkeys(m.op for m in results.measurements))
    size = (7.5 * len(ops), 5)
    figure, axes = plt.subplots(1, len(ops), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, op in zip(axes[0], ops, strict=True):
        rows = [m for m in results.measurements if m.op == op]
        for name, colour in LINES.items():
            rates = [_rate(m, name) for m in rows]
            if any(rate is not None for rate in rates):
                width = 2.4 if name == "oxiwarp" else 1.2
                values = [float("nan") if rate is None else rate for rate in rates]
                axis.plot(values, "o-", color=colour, linewidth=width, markersize=4, label=name)
        axis.axhline(results.copy, color="black", linestyle="--", linewidth=1, label="copy")
        axis.set_xticks(range(len(rows)), [f"{m.rows}×{m.cols}" for m in rows], rotation=45, ha="right")
        axis.set(title=f"{op}, bf16, forward", ylabel="GB/s (read once + written once)", ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return f"plot: {path}"


def _rate(m: Measurement, name: str) -> float | None:
    """GB/s of a line of the plot; torch.compile's is its faster form's."""
    provider = m.compiled() if name == "torch.compile" else name
    return m.rate(provider) if provider and provider in m.times else None


def write_environment(results: Results, facts: dict[str, Any], path: Path) -> None:
    """Where and how this was measured, with the goals."""
    met = [{"goal": goal.text, "met": goal.met, "figure": goal.figure} for goal in goals(results)]
    path.write_text(json.dumps({**facts, "goals": met}, indent=2, ensure_ascii=False) + "\n")


__all__ = ["COMPILED", "plot", "show", "write_csv", "write_environment"]
