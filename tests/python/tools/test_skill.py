"""Tests of the pages of skills: their generated parts are up to date."""

import importlib
import sys

import pytest
from checkout import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "skills").is_dir(), reason="the bundle has no skills")


def script(name):
    """Import a module of scripts/."""
    if (folder := str(ROOT / "scripts")) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_sources_are_fresh():
    """The source code on the pages is up to date. If this test fails, run `python scripts/skill.py`."""
    for name, parts in script("skill").PAGES.items():
        text = (ROOT / name).read_text()
        assert script("generated").fill(text, "skill", parts) == text, f"{name} is stale"
