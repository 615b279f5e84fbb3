"""Prints tables on the terminal, and writes CSV files and environment.json to a folder."""

import csv
import json
from pathlib import Path
from typing import Any

from ops import selected
from providers import EAGER, FLOOR, PEERS, absent
from results import COMPILED, FAST, OURS, Measurement, Results, goals
from rich.console import Console
from rich.table import Table


def table_of(op: str, results: Results) -> Table:
    """Return the table of one op. It shows oxiwarp's time and bandwidth, and each baseline's time divided by
    oxiwarp's time."""
    rows, forms = results.of(op), selected([op])
    libraries = sorted({form.library[0] for form in forms if form.library})
    peers = [EAGER, *libraries, COMPILED, *(name for name in PEERS if any(m.best(name) for m in rows))]
    table = Table(title=f"{op}, bfloat16; copy {results.copy:.0f} GB/s", title_justify="left")
    table.add_column("model")
    fast = ["exact/fast"] if any(FAST in m.times for m in rows) else []
    for heading in ("shape", "MB", "µs", "GB/s", "of copy", *fast, *(f"x {peer}" for peer in peers)):
        table.add_column(heading, justify="right")
    for m in rows:
        cost = [_figure(m.ratio(FAST), inverse=True)] if fast else []
        table.add_row(
            m.model, m.label, f"{m.bytes / 1e6:.1f}", *_own(m, results), *cost, *(_ratio(m, p) for p in peers)
        )
    if lines := absent(forms):
        table.caption, table.caption_justify = "; ".join(lines), "left"
    return table


def _own(m: Measurement, results: Results) -> list[str]:
    if OURS not in m.times:
        return ["–", "", ""]
    return [f"{m.times[OURS].median:.2f}", f"{m.rate():.0f}", f"{m.rate() / results.copy:.1%}"]


def _figure(ratio: float | None, inverse: bool = False) -> str:
    if ratio is None:
        return "–"
    return f"{1 / ratio if inverse else ratio:.2f}"


def _ratio(m: Measurement, peer: str) -> str:
    """Format the ratio of a baseline's time to oxiwarp's time, e.g. `1.08`. If torch.compile was timed in
    two variants, name the faster variant."""
    several = peer == COMPILED and sum(name.startswith(COMPILED) for name in m.times) > 1
    return _figure(m.ratio(peer)) + (f" ({(m.best(peer) or '')[14:-1]})" if several and m.ratio(peer) else "")


def show(results: Results, console: Console) -> None:
    """Print all tables and the performance goals."""
    for op in results.ops:
        console.print(table_of(op, results))
    if results.measurements:
        console.print(
            "x: how many times as fast as the peer (medians of one run); MB: inputs read once, results written once"
        )
    for op in results.missing:
        console.print(f"{op}: not in this build")
    if results.left_out:
        console.print(f"left out: {', '.join(results.left_out)}")
    for peer in results.dropped:
        console.print(f"not in the tables: {peer}", markup=False)
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


COLUMNS = ("op", "chain", "model", "shape", "provider", "bytes", "us", "us_p10", "us_p90")
RATES = ("gb_per_s", "of_copy", "relative_error")


def write_csv(results: Results, path: Path) -> None:
    """Write one line for each op, model and implementation."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, *RATES))
        for m in results.measurements:
            for name, time in m.times.items():
                figures = (f"{time.median:.3f}", f"{time.low:.3f}", f"{time.high:.3f}")
                rate, error = m.rate(name), m.errors.get(name)
                shares = (f"{rate:.1f}", f"{rate / results.copy:.4f}", "" if error is None else f"{error:.3e}")
                writer.writerow((m.op, m.chain, m.model, m.label, name, m.bytes, *figures, *shares))


def write_overheads(results: Results, path: Path) -> None:
    """Write a CSV file with the overheads in µs: Python calls, import, and first calls of ops."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("what", "of", "us"))
        for (mode, what), microseconds in results.per_call.items():
            writer.writerow((f"call, {mode}", what, f"{microseconds:.3f}"))
        if results.import_seconds is not None:
            writer.writerow(("import beyond torch", "oxiwarp", f"{results.import_seconds * 1e6:.1f}"))
        for op, times in results.first_call.items():
            for state, seconds in zip(("cold", "warm"), times, strict=True):
                writer.writerow((f"first call, {state}", op, f"{seconds * 1e6:.1f}"))


def write_goals(results: Results, path: Path) -> None:
    """Write a CSV file with each performance goal, whether it is met, and the measured figure."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("goal", "met", "figure"))
        for goal in goals(results):
            writer.writerow((goal.text, {True: "pass", False: "FAIL", None: "not measured"}[goal.met], goal.figure))


def write_environment(results: Results, facts: dict[str, Any], path: Path) -> None:
    """Write environment.json. It contains the GPU, versions and command line, the results of the performance
    goals, and the skipped cases.
    """
    met = [{"goal": goal.text, "met": goal.met, "figure": goal.figure} for goal in goals(results)]
    copies = {"median": results.copy, "all": results.copies} if results.copies else None
    absences = {"missing": results.missing, "left_out": results.left_out, "dropped": results.dropped}
    everything = {**facts, "copy_gb_per_s": copies, **absences, "goals": met}
    path.write_text(json.dumps(everything, indent=2, ensure_ascii=False) + "\n")


__all__ = ["FLOOR", "show", "table_of", "write_csv", "write_environment", "write_goals", "write_overheads"]
