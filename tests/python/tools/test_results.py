"""Tests of the folder benches/results: cited files exist, each file is cited or listed, and the folder is small."""

import re
import subprocess

import pytest
from checkout import ROOT

RESULTS = ROOT / "benches" / "results"
CITED = re.compile(r"results/((?:latest/[\w-]+|decisions)/[\w.-]*\w)")
MAX_FILES, MAX_BYTES = 80, 4_000_000
THIS = "tests/python/tools/test_results.py"  # contains the old paths as a regex

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="no results beside these tests, as in a bundle")


def files():
    """Return all files in benches/results as a dictionary. Its keys are the paths relative to
    benches/results."""
    return {str(path.relative_to(RESULTS)): path for path in RESULTS.rglob("*") if path.is_file()}


def citations():
    """Map each cited results file to a page or source file that cites it."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in tracked.splitlines():
        if name.endswith((".md", ".py", ".rs", ".sh", ".toml")) and not name.startswith("benches/results"):
            path = ROOT / name
            if path.exists():
                found |= dict.fromkeys(CITED.findall(path.read_text()), name)
    return found


def test_cited_files_exist():
    missing = {path: by for path, by in citations().items() if not (RESULTS / path).exists()}
    assert not missing, f"cited, but missing: {missing}"


def test_files_are_cited():
    """Every plot, and every file of benches/results/decisions, is cited by a page or a source file.

    All other results files need only be listed in a table, which `test_tables_list_the_files` checks.
    """
    cited = citations()
    for name in files():
        if name.startswith("decisions/") or name.endswith(".png"):
            assert name in cited, f"nothing cites {name}"


def test_tables_list_the_files():
    """benches/results/README.md has a section for each folder of results. The section has a table with a row
    for each file in the folder."""
    listed = {"README.md"}
    for section in (RESULTS / "README.md").read_text().split("\n## ")[1:]:
        folder, _, text = section.partition("\n")
        listed |= {f"{folder}/{name}" for name in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)}
    assert listed == set(files())


def test_comments_name_files_that_exist():
    """If a source file of cuda-std, kernels-gpu or host names a `.csv` or `.txt` file, a results file with
    this name exists.

    These crates do not read or write such files, so the name can only be a citation.
    """
    names = {name.rpartition("/")[2] for name in files()}
    for crate in ("cuda-std", "kernels-gpu", "host"):
        for path in (ROOT / crate / "src").rglob("*.rs"):
            for name in re.findall(r"(?<![\w-])[\w-]+\.(?:csv|txt)\b", path.read_text()):
                assert name in names, f"{path.relative_to(ROOT)} cites {name}"


def test_the_folder_is_small():
    found = files()
    assert len(found) <= MAX_FILES
    assert sum(path.stat().st_size for path in found.values()) <= MAX_BYTES


def test_old_paths_are_gone():
    """No tracked file names a folder of the earlier layout `benches/results/<gpu>/<date>/<commit>`."""
    tracked = subprocess.run(
        ["git", "grep", "-lE", r"benches/results/(nvidia-|cpu|ptxas)|(nvidia-h[12]00|cpu|ptxas)/20[0-9]{2}-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert [name for name in tracked if not name.startswith("benches/results/") and name != THIS] == []
