"""Imports of the package go one way. The layers are in py-bindings/pyproject.toml; imports in functions count too."""

import sys

import pytest
from checkout import ROOT

grimp = pytest.importorskip("grimp")
cli = pytest.importorskip("importlinter.cli")

CONFIG = ROOT / "py-bindings" / "pyproject.toml"
# By the docstring of hub/repository/__init__.py.
CYCLES = {("oxiwarp.hub.repository", f"oxiwarp.hub.repository.{name}") for name in ("activation", "layers")}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("oxiwarp", exclude_type_checking_imports=True, cache_dir=None)


def imports(graph):
    """Pairs of a module and one that it imports."""
    return [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]


@pytest.mark.skipif(not CONFIG.exists(), reason="the bundle has no pyproject.toml")
def test_layers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", sys.path[:])  # to which import-linter adds the working directory
    assert cli.lint_imports(config_filename=str(CONFIG), no_cache=True, no_logo=True) == 0, capsys.readouterr().out


def test_cycles(graph):
    """Of files, with the `__init__.py` of folders, which the layers leave out."""
    cycles = {tuple(sorted(pair)) for pair in imports(graph) if len({*pair}) == 2 and graph.chain_exists(*pair[::-1])}
    assert cycles == CYCLES


def test_internals_of_operators_import_none(graph):
    """What operators are made of, the modules of ops/ with an underscore; but for one, which is made of operators."""
    for module, other in imports(graph):
        internal = module.startswith("oxiwarp.ops._") and module != "oxiwarp.ops._modulation_backward"
        operator = other == "oxiwarp.ops" or other.startswith("oxiwarp.ops.") and "._" not in other
        assert not (internal and operator), f"{module} imports {other}"
