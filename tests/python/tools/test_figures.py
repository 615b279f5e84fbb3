"""Tests of measured figures in README and docs.

A figure must be in a table that is generated from results files, or its section must cite a results file.
"""

import re

import pytest
from checkout import ROOT
from test_docs import script

DOCS = sorted((ROOT / "docs").rglob("*.md"))
UNIT = re.compile(r"\d ?(?:µs|ms|TFLOP/s|TB/s|GB/s|dB)\b")
GENERATED = re.compile(r"<!-- [^\n]*, made by scripts/\w+\.py -->.*?<!-- end -->", re.DOTALL)
HAS_FILE = re.compile(r"\]\([^)]*benches/results/[^)]+\)")
LATER_THAN_TABLES = ("decisions.md", "executor.md")
"""Pages whose measurements are not from the last complete benchmark run. Each section of these pages links
its results file."""
HARDWARE = {
    "internals/attention.md": ("989 TFLOP/s",),
    "internals/launch-configuration.md": ("0.6 µs",),
    "performance.md": ("20 µs", "360 GB/s"),
}
"""Figures from data sheets and assumptions, which are not measurements."""

pytestmark = pytest.mark.skipif(not DOCS, reason="no docs beside these tests, as in a bundle")


@pytest.mark.parametrize("name", script("figures").PAGES if DOCS else [])
def test_tables_are_fresh(name):
    """The tables of measured figures in the docs equal their results files.

    If this test fails, run `python scripts/figures.py`.
    """
    figures, generated = script("figures"), script("generated")
    text = (ROOT / name).read_text()
    assert generated.fill(text, "figures", figures.PAGES[name]) == text, f"{name} is stale"


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_prose_has_no_figure_without_a_file(page):
    """Each time, rate or PSNR on a page is in a generated table, or in a section that links to the results
    file."""
    text = GENERATED.sub("", page.read_text())
    for allowed in HARDWARE.get(str(page.relative_to(ROOT / "docs")) if page in DOCS else "", ()):
        text = text.replace(allowed, "")
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE):
        found = UNIT.search(section)
        measured_elsewhere = page.name in LATER_THAN_TABLES and HAS_FILE.search(section)
        assert not found or measured_elsewhere, f"{page.name}: {found[0]!r} in {section.splitlines()[0]!r}"


def test_the_claim_of_the_readme():
    """The README says "x to y % less time". x and y follow from the results files of FLUX.1 and LTX-Video."""
    claim = re.search(r"takes (\d+) to (\d+) % less time than with `torch.compile`", (ROOT / "README.md").read_text())
    assert claim, "README has no claim"
    model = script("figures").model
    less = []
    for name in ("flux", "ltx161"):
        variants = model(name)["variants"]
        less.append(100 * (1 - variants["patched"]["in_a_row"] / variants["compiled"]["in_a_row"]))
        assert variants["patched"]["equal"] == 1, f"{name}: not every value is equal"
    assert [int(claim[1]), int(claim[2])] == sorted(round(percent) for percent in less)


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 130
