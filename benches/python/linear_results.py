"""Adds the results of `linear_tables.py` to the tables of the package oxiwarp."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from environment import ROOT

from oxiwarp.patching.fusions.core.linear_tables import EQUAL_BITS, LAUNCHES

TABLES = ROOT / "py-bindings" / "python" / "oxiwarp" / "patching" / "fusions" / "core"


def adopt(folder: Path) -> None:
    """Add the results in `folder` to the tables of the package. They replace earlier results of the same sizes."""
    facts = json.loads((folder / "linear_tables.json").read_text())
    bits, speeds = (
        list(csv.DictReader((folder / f"linear_{name}.csv").read_text().splitlines())) for name in ("bits", "speed")
    )
    equal, launches = (json.loads((TABLES / name).read_text()) for name in (EQUAL_BITS, LAUNCHES))
    add_bits(equal.setdefault(facts["environment"], {}), bits)
    add_speeds(launches.setdefault(facts["capability"], {}), speeds)
    launches[facts["capability"]]["measured"] = {
        "date": facts["date"][:10],
        "gpu": facts["gpu"],
        "driver": facts["driver"],
        "torch": facts["versions"]["torch"],
        "commit": facts["commit"],
    }
    for name, table in ((EQUAL_BITS, equal), (LAUNCHES, launches)):
        (TABLES / name).write_text(text_of(table) + "\n")


def add_bits(table: dict[str, dict[str, list[int]]], rows: Iterable[dict[str, str]]) -> None:
    """Update the table of sizes with equal bits, for one environment. Add the sizes at which all bits were
    equal, and remove the sizes at which some bits differed.
    """
    for row in rows:
        sizes = table.setdefault(row["dtype"] + ", bias" * (row["bias"] == "True"), {})
        name, m = f"{row['n']}x{row['k']}", int(row["m"])
        kept = {*sizes.pop(name, []), m} - (set() if row["different"] == "0" else {m})
        if kept:
            sizes[name] = sorted(kept)


def add_speeds(table: dict[str, Any], rows: Iterable[dict[str, str]]) -> None:
    """Add times to the launch table of a compute capability."""
    for row in rows:
        sizes = table.setdefault(row["kind"], {})
        name, m = f"{row['n']}x{row['k']}", int(row["m"])
        times = [float(row[f"{way}_us"]) if row[f"{way}_us"] else None for way in ("fused", "separate", "library")]
        sizes[name] = sorted(
            [*(old for old in sizes.get(name, []) if old[0] != m), [m, *times]], key=lambda one: one[0]
        )


def text_of(value: Any, depth: int = 0) -> str:
    """Return JSON with one line for each size."""
    if depth == 3 or not isinstance(value, dict) or not value:
        return json.dumps(value)
    indent = " " * (depth + 1)
    lines = (f"{indent}{json.dumps(key)}: {text_of(inner, depth + 1)}" for key, inner in sorted(value.items()))
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
