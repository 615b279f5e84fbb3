"""Tests of the benchmark plots with invented measurements.

They check the names, colours and marks in the plots, and that legends cover nothing.
"""

import csv
import json
import sys

import pytest
from checkout import ROOT
from pictures import assert_legends_cover_nothing, colors_of, labels_of

pytest.importorskip("matplotlib")
sys.path.append(str(ROOT / "benches" / "python"))

import curve_plot  # noqa: E402
import plots  # noqa: E402
import redraw  # noqa: E402
from ops import FAMILIES, OPS  # noqa: E402
from report import write_csv  # noqa: E402

from oxiwarp.cli.palette import OKABE_ITO  # noqa: E402

RESULTS = ("op", "chain", "model", "shape", "provider", "bytes", "us", "us_p10", "us_p90", "gb_per_s", "of_copy")
CURVE = ("op", "tokens", "elements", "bytes", "us", "gb_per_s", "of_copy", "same_bytes_us", "tokens_alone")
COPY = 4000.0
PROVIDERS = ("eager", "oxiwarp", "oxiwarp fast", "torch.compile(chain)")


def write(path, columns, lines):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(lines)


def result(op, model, provider, us):
    rate = 4e8 / us / 1e3
    return (op, "chain", model, "2×4096×64", provider, 4 * 10**8, us, us, us, f"{rate:.1f}", f"{rate / COPY:.4f}")


@pytest.fixture
def folder(tmp_path):
    """Write invented results of every op for two models, and return the results folder.

    Two baselines have no results: torch.compile for softmax, and `F.cross_entropy` for the second model.
    """
    lines = []
    for number, op in enumerate(OPS):
        for model in ("a model", "another"):
            for at, provider in enumerate(PROVIDERS):
                if op != "softmax" or "compile" not in provider:
                    lines.append(result(op, model, provider, 95 + 2 * number + 40 * at))
    lines.append(result("cross_entropy", "a model", "F.cross_entropy", 300.0))
    write(tmp_path / "results.csv", RESULTS, lines)
    points = []
    for op in OPS:
        for tokens in (1, 10**3, 10**6):
            moved, us = 8192 * tokens, 1 + tokens / 500
            rate = moved / us / 1e3
            figures = (f"{us:.3f}", f"{rate:.1f}", f"{rate / COPY:.4f}", f"{2 * us:.3f}", "same bits")
            points.append((op, tokens, 5000 * tokens, moved, *figures))
    write(tmp_path / "curve.csv", CURVE, points)
    facts = {"gpu": "a GPU", "commit": "0" * 40, "versions": {"torch": "2.11.0"}}
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    return tmp_path


def family(folder, name="losses"):
    results = redraw.read_results(folder / "results.csv")
    return plots.draw_family(results, [op for op in results.ops if plots.FAMILY_OF[op] == name], "title")


def overview(folder):
    return plots.draw_overview(redraw.read_results(folder / "results.csv"), "title")


def curve(folder):
    return curve_plot.draw(*redraw.read_curve(folder / "curve.csv"), "title")


@pytest.mark.parametrize("draw", [family, lambda folder: family(folder, "modulation"), overview, curve])
def test_nothing_is_covered(draw, folder):
    """No legend covers a line, bar or mark."""
    assert_legends_cover_nothing(draw(folder))


@pytest.mark.parametrize("draw", [family, overview, curve])
def test_colours(draw, folder):
    """Plots use the palette of Okabe and Ito. They use grey only for baselines and for lines that connect
    points."""
    greys = {"#CCCCCC", "#BFBFBF"}
    found = colors_of(draw(folder)) - greys
    assert found <= set(OKABE_ITO) and len(found) > 2


def test_a_family_names_its_bars_and_lines(folder):
    """The plot of a family of ops has a legend entry for each implementation. No two entries have the same
    colour and hatch.

    The entry for a single torch function has its name, e.g. `F.cross_entropy`. An `x` marks each baseline
    that was not measured.
    """
    figure = family(folder)
    named = labels_of(figure)
    assert {"oxiwarp", "torch.compile", "F.cross_entropy", "eager", "not measured"} <= set(named)
    assert f"device copy, {COPY:.0f} GB/s" in named
    softmax, cross_entropy = figure.subfigs[0].axes
    assert len(softmax.containers) == 2 * 2 and len(cross_entropy.containers) == 2 * 4 - 1
    marks = {
        axis: [round(at) for line in axis.lines if line.get_marker() == "x" for at in line.get_xdata()]
        for axis in (softmax, cross_entropy)
    }
    assert marks == {softmax: [0, 1], cross_entropy: [1]}  # the missing baselines
    looks = {(bars[0].get_facecolor(), bars[0].get_hatch() or "") for bars in cross_entropy.containers}
    assert len(looks) == 4 and len({hatch for _, hatch in looks}) >= 3


def test_the_overview_marks_a_missing_baseline(folder):
    (axis,) = overview(folder).axes
    names = [label.get_text().split()[0] for label in axis.get_yticklabels()]
    missing = [names[int(line.get_ydata()[0])] for line in axis.lines if line.get_label() == "missing"]
    assert missing == ["softmax"]
    markers = {line.get_label(): line.get_marker() for line in axis.lines}
    assert len({markers[label] for label in ("missing", "oxiwarp", "torch.compile")}) == 3
    assert "torch.compile was not measured" in labels_of(overview(folder))


def test_an_overview_without_gaps_names_none(folder):
    """If all baselines were measured, the overview plot has no legend entry "not measured"."""
    lines = redraw.lines_of(folder / "results.csv")
    write(folder / "results.csv", RESULTS, [line.values() for line in lines if line["op"] != "softmax"])
    assert not any("not measured" in label for label in labels_of(overview(folder)))


def test_the_curve_is_the_share_of_copy_by_family(folder):
    """The plot of curve.py shows bandwidth relative to a device copy, with a panel per family and a line per op.

    All lines of a panel differ in colour or marker. A ring marks each point at which a tensor has more than
    2^32 elements.
    """
    figure = curve(folder)
    assert [axis.get_title() for axis in figure.axes] == list(FAMILIES)
    (losses,) = (axis for axis in figure.axes if axis.get_title() == "losses")
    assert losses.get_xscale() == "log" and losses.get_yscale() == "linear"
    softmax, other = (
        next(line for line in losses.lines if line.get_label() == op) for op in ("softmax", "cross_entropy")
    )
    assert list(softmax.get_ydata()) == pytest.approx(
        [8192 * n / (1 + n / 500) / 1e3 / COPY for n in (1, 1e3, 1e6)], 1e-3
    )
    assert softmax.get_marker() != other.get_marker() and softmax.get_color() != other.get_color()
    rings = [line for line in losses.lines if line.get_markersize() == 10]
    assert all(list(line.get_xdata()) == [8192 * 10**6] for line in rings) and len(rings) == 2
    for axis in figure.axes:
        looks = {(line.get_color(), line.get_marker()) for line in axis.lines if line.get_label() in OPS}
        assert len(looks) == sum(line.get_label() in OPS for line in axis.lines)


def test_redraw(folder, monkeypatch, capsys, tmp_path):
    """`redraw.py` draws all plots from the files of a run. If results are written to a CSV file and read
    again, they do not change."""
    monkeypatch.setattr(sys, "argv", ["redraw.py", str(folder), "--out", str(tmp_path / "new")])
    assert redraw.main() == 0
    drawn = {path.name for path in (tmp_path / "new").iterdir()}
    assert drawn == {"overview.png", "curve.png", *(f"{name}.png" for name in FAMILIES)}
    results = redraw.read_results(folder / "results.csv")
    write_csv(results, tmp_path / "again.csv")
    again = redraw.read_results(tmp_path / "again.csv")
    assert again.measurements == results.measurements and again.copy == pytest.approx(COPY, rel=1e-3)
