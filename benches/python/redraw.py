"""Draws the plots of an earlier run again, from its results.csv, curve.csv and environment.json. The program
needs no GPU.

python benches/python/redraw.py benches/results/latest/<gpu> [--out FOLDER]
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from statistics import median

from curve import Point
from curve_plot import plot as plot_curve
from environment import title_of
from plots import plot
from results import Measurement, Results
from timing import Time

ALONE = {"same bits": True, "FAIL": False, "not compared": None}
# The CSV files store ratios with four decimals. Ratios of at least this value are accurate to 0.1 %.
EXACT_SHARE = 0.1


def lines_of(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file as dictionaries."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def copy_of(lines: list[dict[str, str]]) -> float:
    """Compute the bandwidth of a device copy in GB/s. Each line of the CSV file has the bandwidth of an op,
    and the ratio of this bandwidth to the copy's."""
    shares = [(float(line["gb_per_s"]), float(line["of_copy"])) for line in lines]
    exact = [(rate, share) for rate, share in shares if share >= EXACT_SHARE]
    return median(rate / share for rate, share in exact or shares if share > 0)


def read_results(path: Path) -> Results:
    """Read a results.csv that bench.py wrote. This file lacks the size of the largest tensor, but the plots
    do not need it."""
    lines = lines_of(path)
    cases: dict[tuple[str, ...], Measurement] = {}
    for line in lines:
        key = (line["op"], line["chain"], line["model"], line["shape"])
        shape = tuple(int(size) for size in line["shape"].split("×"))
        empty = Measurement(*key[:3], shape, int(line["bytes"]), 0, {}, {})
        m = cases.setdefault(key, empty)
        m.times[line["provider"]] = Time(float(line["us"]), float(line["us_p10"]), float(line["us_p90"]))
    return Results(list(cases.values()), [copy_of(lines)] if lines else [])


def read_curve(path: Path) -> tuple[list[Point], float]:
    """Read a curve.csv that curve.py wrote. Return its measurements and its bandwidth of a device copy in GB/s."""
    lines = lines_of(path)
    sizes = ("tokens", "elements", "bytes")
    points = [
        Point(
            line["op"],
            *(int(line[name]) for name in sizes),
            float(line["us"]),
            float(line["same_bytes_us"]),
            ALONE[line["tokens_alone"]],
        )
        for line in lines
    ]
    return points, copy_of(lines)


def main() -> int:
    """Draw the plots of each CSV file that exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="results folder of a run")
    parser.add_argument("--out", type=Path, default=None, help="default: the folder of the run")
    options = parser.parse_args()
    out = options.out or options.folder
    out.mkdir(parents=True, exist_ok=True)
    title = title_of(json.loads((options.folder / "environment.json").read_text()))
    if (path := options.folder / "results.csv").exists():
        print(plot(read_results(path), out, title))
    if (path := options.folder / "curve.csv").exists():
        points, copy = read_curve(path)
        print(plot_curve(points, copy, out / "curve.png", f"{title}; copy {copy:.0f} GB/s"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
