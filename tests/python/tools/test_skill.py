"""Tests of the agent skill (instructions for coding agents): front matter, links, code, and generated
pages."""

import importlib
import re
import sys

import pytest
from checkout import ROOT
from test_docs import LINK
from test_readme import run_blocks

SKILL = ROOT / "skills" / "oxiwarp-kernels"

pytestmark = pytest.mark.skipif(not (ROOT / "skills").is_dir(), reason="the bundle has no skills")


def script(name):
    """Import a module of scripts/."""
    if (folder := str(ROOT / "scripts")) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_sources_are_fresh():
    """The source code that is copied into pages of the skill is up to date. If this test fails, run
    `python scripts/skill.py`."""
    for name, parts in script("skill").PAGES.items():
        text = (ROOT / name).read_text()
        assert script("generated").fill(text, "skill", parts) == text, f"{name} is stale"


def test_copies_are_fresh():
    """The references in the skill are copies of pages in docs. If this test fails, run `python
    scripts/skill.py`."""
    made = script("skill")
    for page, name in made.COPIES.items():
        assert (SKILL / "references" / name).read_text() == made.copied(page), f"{name} is stale"


def test_front_matter():
    """SKILL.md begins with the fields that tools for agents read."""
    text = (SKILL / "SKILL.md").read_text()
    front = dict(re.findall(r"^([\w-]+): (.*)$", text.split("---\n")[1], re.MULTILINE))
    assert front["name"] == SKILL.name and 50 < len(front["description"]) <= 1024
    assert {"allowed-tools", "argument-hint", "user-invocable"} <= set(front)


@pytest.mark.parametrize("page", sorted(SKILL.rglob("*.md")), ids=lambda page: page.name)
def test_links(page):
    """Relative links lead only to files of the skill, because the skill is installed without the repository.
    Links to other files of the repository are URLs."""
    text = page.read_text()
    for target, heading in LINK.findall(text):
        path = (page.parent / target).resolve()
        assert path.exists() and path.is_relative_to(SKILL), f"{page.name}: {target}"
        assert not heading or path.suffix == ".md"
    for path in re.findall(r"blob/main/([\w./-]+)", text):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_agents():
    """AGENTS.md is one page, and the make targets in it exist."""
    text = (ROOT / "AGENTS.md").read_text()
    assert text.count("\n") < 60
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_code_runs(monkeypatch, tmp_path):
    """The Python code in SKILL.md runs on this machine, with a GPU or without."""
    pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    run_blocks(SKILL / "SKILL.md")
