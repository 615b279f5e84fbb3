"""Tests of `scripts/module_lists.py`, which generates lists of modules. The lists are up to date, and a new
source file changes one of them."""

import shutil
import sys

import pytest
from checkout import ROOT

SCRIPTS = ROOT / "scripts"
pytestmark = pytest.mark.skipif(not (SCRIPTS / "module_lists.py").exists(), reason="a bundle has no sources")
if (SCRIPTS / "module_lists.py").exists():
    sys.path.append(str(SCRIPTS))
    import module_lists


def stale(root):
    return {str(path.relative_to(root)) for path, text in module_lists.lists(root) if path.read_text() != text}


def test_lists_are_fresh():
    assert not stale(ROOT), "run `make lists`"


@pytest.mark.parametrize(
    ("source", "new", "list_of_it"),
    [
        ("kernels-gpu/src/ops/rope.rs", "added_by_a_test.rs", "kernels-gpu/src/ops/mod.rs"),
        ("host/src/ops/rope.rs", "added_by_a_test.rs", "host/src/ops/mod.rs"),
        ("tests/kernels/loss/softmax.rs", "added_by_a_test.rs", "tests/kernels/loss/mod.rs"),
        (
            "py-bindings/python/oxiwarp/ops/softmax.py",
            "added_by_a_test.py",
            "py-bindings/python/oxiwarp/ops/__init__.py",
        ),
    ],
)
def test_a_new_file_makes_its_list_stale(tmp_path, source, new, list_of_it):
    for folder in ("kernels-gpu/src/ops", "host/src/ops", "tests/kernels", "py-bindings/python/oxiwarp/ops"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert not stale(tmp_path)
    file = tmp_path / source
    shutil.copy(file, file.with_name(new))
    assert stale(tmp_path) == {list_of_it}
