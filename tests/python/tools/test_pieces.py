"""Tests that every op has a kernel, host code, a binding, Python code, tests, benchmarks and documentation.

If one of these parts is missing, `import oxiwarp` may fail. The tests therefore only read the sources, and
report the missing part.
"""

import re
import shutil
from pathlib import Path

import pytest
from checkout import ROOT
from pieces import BENCHES, BINDING, CASES, HOST, KERNEL_TESTS, PAGE, PYTHON, PYTHON_TESTS, UNITS, missing

pytestmark = pytest.mark.skipif(not (ROOT / UNITS).exists(), reason="a bundle has no sources")
SUPPORT = PYTHON_TESTS.parent / "support"
TREES = (UNITS, HOST, KERNEL_TESTS, PYTHON, PYTHON_TESTS, SUPPORT, BENCHES)
FILES = (BINDING, PAGE, CASES, Path("README.md"), Path("CHANGELOG.md"))


def test_no_piece_is_missing():
    lacking = missing(ROOT)
    assert not lacking, "missing:\n" + "\n".join(lacking)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that `missing` reads into a temporary folder."""
    root = tmp_path_factory.mktemp("tree")
    for folder in TREES:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    return root


def without(name: str) -> str:
    """Return a regex that matches every word that contains `name`."""
    return rf"\w*{name}\w*"


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (UNITS / "softmax_backward.rs", f"softmax_backward: {UNITS}/softmax_backward.rs"),
        (HOST / "softmax_backward.rs", f"softmax_backward: {HOST}/softmax_backward.rs"),
        (KERNEL_TESTS, f"softmax: a test in {KERNEL_TESTS}"),
        (BINDING, f"softmax: its row in {BINDING}"),
        (PYTHON / "softmax.py", f"softmax: its schema in {PYTHON}"),
        (PYTHON_TESTS.parent, f"softmax: a test in {PYTHON_TESTS}"),
        (BENCHES, f"softmax: a form in {BENCHES}/ops"),
        (CASES, f"softmax: its cases in {CASES}"),
        (PAGE, f"softmax: its line in {PAGE} (python scripts/operators.py)"),
        (Path("README.md"), "softmax: a mention in README.md"),
        (Path("CHANGELOG.md"), "softmax: a mention in CHANGELOG.md"),
    ],
    ids=str,
)
def test_what_is_left_out_is_named(tree, left_out, said):
    """If a source file of an op is deleted, `missing` names this file.

    If a folder or page must mention the op but does not, `missing` names this folder or page.
    """
    path = tree / left_out
    files = [file for file in path.rglob("*") if file.suffix in (".rs", ".py")] if path.is_dir() else [path]
    texts = {file: file.read_text() for file in files}
    try:
        for file, text in texts.items():
            if left_out.stem.startswith("softmax"):
                file.unlink()
            else:
                file.write_text(re.sub(without("softmax"), "other", text))
        assert said in missing(tree)
    finally:
        for file, text in texts.items():
            file.write_text(text)
    assert missing(tree) == []
