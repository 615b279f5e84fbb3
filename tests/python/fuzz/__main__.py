"""Call the operators with random arguments for some time, or run one of these random cases again.

    python tests/python/fuzz --seconds 3600 [--op NAME ...] [--seed N] [--device cuda]
    python tests/python/fuzz --op NAME --seed N --case K

A failing case is simplified and printed as soon as it is found. The exit code is 1 if a case fails.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if __package__ in (None, ""):  # run as `python tests/python/fuzz`
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz import OPERATORS, Tally, run_number
from fuzz.engine import arguments

SHOWN = 3  # maximum number of failing cases to print per operator and check


def run_one(name: str, seed: int, number: int, device: str) -> int:
    """Run case `number` of an operator. If it fails, print the failure, and otherwise the arguments. Return
    the exit code."""
    outcome, failure = run_number(name, seed, number, device)
    if failure:
        print(failure)
        return 1
    print(f"{name}, seed {seed}, case {number}: {outcome.refused or outcome.known or 'passed'}")
    print("\n".join(arguments(outcome)))
    return 0


def run_all(names: Sequence[str], seed: int, seconds: float, device: str, console: Console) -> list[Tally]:
    """Run one random case of each operator, then the next case of each operator, and so on until the time
    is over."""
    tallies, shown = {name: Tally(name) for name in names}, dict[tuple[str, str], int]()
    begin, number = time.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=seconds)
        while True:
            for name in names:
                passed = time.monotonic() - begin
                if passed >= seconds:
                    return list(tallies.values())
                failed = sum(tally.failures for tally in tallies.values())
                progress.update(task, completed=passed, description=f"{name}, case {number}, {failed} failures")
                outcome, _ = run_number(name, seed, number, device, smaller=False)
                tallies[name].add(outcome)
                if outcome.failure is not None:
                    kind = (name, outcome.failure.check)
                    shown[kind] = shown.get(kind, 0) + 1
                    if shown[kind] <= SHOWN:
                        console.print(
                            run_number(name, seed, number, device)[1], markup=False, highlight=False, soft_wrap=True
                        )
            number += 1


def report(tallies: Sequence[Tally], seed: int, console: Console) -> None:
    """Print a table with the counts and largest errors of all operators."""
    table = Table(title=f"seed {seed}")
    table.add_column("operator", no_wrap=True)
    for heading in ("cases", "gradients", "refused", "known", "failures", "error", "of gradients"):
        table.add_column(heading, justify="right")
    for tally in tallies:
        counts = (tally.cases, tally.gradients, tally.refused, tally.known, tally.failures)
        table.add_row(tally.operator, *map(str, counts), f"{tally.worst:.2f}", f"{tally.worst_gradient:.2f}")
    console.print(table)
    console.print("known: cases of open faults. error: the largest one, as a part of the allowed one.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("fuzz", description="Random calls of the operators, compared with float64.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (default: 60)")
    parser.add_argument("--op", action="append", choices=sorted(OPERATORS), help="an operator (default: all)")
    parser.add_argument("--seed", type=int, help="of all cases (default: another one each time)")
    parser.add_argument("--case", type=int, help="run this case of one --op and --seed alone")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args(arguments)
    if given.case is not None:
        if given.seed is None or given.op is None or len(given.op) != 1:
            parser.error("--case needs one --op and a --seed")
        return run_one(given.op[0], given.seed, given.case, given.device)
    seed = random.randrange(2**31) if given.seed is None else given.seed
    console = Console(width=None if sys.stdout.isatty() else 120)
    tallies = run_all(given.op or sorted(OPERATORS), seed, given.seconds, given.device, console)
    report(tallies, seed, console)
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
