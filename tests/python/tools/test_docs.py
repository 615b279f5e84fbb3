"""Tests of docs/: code blocks run, generated tables are up to date, link targets exist, and only standard
terms are used."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from test_readme import run_blocks

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[^)]*)?\)")

pytestmark = pytest.mark.skipif(not DOCS, reason="no docs beside these tests, as in a bundle")


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_python_blocks_run(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


FENCE = re.compile(
    r"^(?P<marker><!-- not run: .+? -->\n+)?```(?P<language>\S*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN_ELSEWHERE = {
    "python": "test_python_blocks_run",
    "rust": "documentation tests of oxiwarp-tests",
    "text": "output",
    "pycon": "test_docstring_examples.py",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_run(page):
    """Every shell block of a page runs, unless a comment before it gives a reason not to run it. Every code
    block names a known language."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in FENCE.finditer(page.read_text()):
        language = block["language"]
        if language == "sh" and not block["marker"]:
            command = ["bash", "-euc", block["code"]]
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.name}: {block['code']}{done.stdout}{done.stderr}"
        else:
            assert language == "sh" or language in RUN_ELSEWHERE, f"{page.name}: a block in {language!r}"


def script(name):
    """Import a module of scripts/."""
    if (folder := str(ROOT / "scripts")) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_tables_are_fresh():
    """The generated tables of fusions (methods that `patch` replaces) are up to date. If this test fails, run
    `python scripts/fused_chains.py`."""
    made = script("fused_chains")
    for name, parts in made.PAGES.items():
        text = (ROOT / name).read_text()
        assert script("generated").fill(text, "fused_chains", parts) == text, f"{name} is stale"


def test_operators_are_fresh():
    """docs/reference/operators.md is up to date. If this test fails, run `python scripts/operators.py`."""
    made = script("operators")
    assert made.PAGE.read_text() == made.page(), "docs/reference/operators.md is stale"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    """If a page links to a file or heading, the file or heading exists."""
    for target, heading in LINK.findall(page.read_text()):
        path = page.parent / target
        assert path.exists(), f"{page.name}: {target}"
        if heading and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
            assert heading[1:] in slugs, f"{page.name}: {target}{heading}"


OLD_TERMS = re.compile(
    r"\b(quads?|octets?|held|beside|nobody|somebody|anew|passages?|what comes back|of which|copy engine|warp groups?"
    r"|multiprocessors?|folds?|folded|meeting|waiting row|passed over)\b",
    re.IGNORECASE,
)
"""Words for which the project has a standard term. The list is in `support/retired_words.py`."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_standard_terms(page):
    found = [match[0] for match in OLD_TERMS.finditer(page.read_text())]
    assert not found, f"{page.name}: {found}"


def test_module_documentation_has_standard_terms():
    """The `//!` lines of Rust sources contain no retired word, i.e. no word that the project has replaced by
    a standard term."""
    found = []
    for folder in ("cuda-std", "cuda-builder", "kernels-gpu", "host", "py-bindings"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            lines = (line for line in path.read_text().splitlines() if line.lstrip().startswith("//!"))
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for line in lines for match in OLD_TERMS.finditer(line)]
    assert not found, "\n".join(found)
