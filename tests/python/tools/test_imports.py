"""Tests of imports inside the package oxiwarp. A layer (a group of modules) imports only lower layers, and
imports have no cycles except those in `CYCLES`.

py-bindings/pyproject.toml lists the layers, e.g. `patching` above `ops`. Imports inside functions count too.
"""

import sys

import pytest
from checkout import ROOT

grimp = pytest.importorskip("grimp")
cli = pytest.importorskip("importlinter.cli")

CONFIG = ROOT / "py-bindings" / "pyproject.toml"
# The docstring of hub/repository/__init__.py gives the reason for these cycles.
CYCLES = {("oxiwarp.hub.repository", f"oxiwarp.hub.repository.{name}") for name in ("activation", "layers")}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("oxiwarp", exclude_type_checking_imports=True, cache_dir=None)


def imports(graph):
    """Return all direct imports in the package, as pairs (importing module, imported module)."""
    return [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]


@pytest.mark.skipif(not CONFIG.exists(), reason="the bundle has no pyproject.toml")
def test_layers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", sys.path[:])  # import-linter adds the working directory to sys.path
    assert cli.lint_imports(config_filename=str(CONFIG), no_cache=True, no_logo=True) == 0, capsys.readouterr().out


def test_cycles(graph):
    """The package has only the import cycles in the set `CYCLES`. Unlike `test_layers`, this test also checks
    `__init__.py` files."""
    cycles = {tuple(sorted(pair)) for pair in imports(graph) if len({*pair}) == 2 and graph.chain_exists(*pair[::-1])}
    assert cycles == CYCLES


def test_internals_of_operators_import_none(graph):
    """An internal module of ops/ imports no module that defines an operator.

    A module is internal if its name starts with an underscore. The only exception is `_modulation_backward`,
    which calls operators.
    """
    for module, other in imports(graph):
        internal = module.startswith("oxiwarp.ops._") and module != "oxiwarp.ops._modulation_backward"
        operator = other == "oxiwarp.ops" or other.startswith("oxiwarp.ops.") and "._" not in other
        assert not (internal and operator), f"{module} imports {other}"
