"""Tests of names in the Rust crates. A retired word is an old name for which the project now has a standard
term.

No identifier and no file name may contain a retired word. No crate may define two types with the same name.
"""

import re
import subprocess

import pytest
from checkout import ROOT
from retired_words import RETIRED

PART = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
# The check skips comments, strings and character literals.
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^\\'\n])'", re.S)
# The check for retired words skips the names of test functions, because these names are sentences, in which
# these words may have their ordinary meaning.
TEST = re.compile(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn \w+")
STANDARD = re.compile(r"\bmem::forget\b|\.(?:try_)?fold\b|\bfold_left\b")


def retired(name: str) -> list[str]:
    return [part.lower() for part in PART.findall(name) if part.lower() in RETIRED]


def words(text: str) -> list[str]:
    """Return the identifiers in a Rust source that contain a retired word, i.e. an old name for a standard term."""
    for pattern in (NO_CODE, TEST, STANDARD):
        text = pattern.sub(" ", text)
    return sorted({name for name in re.findall(r"[A-Za-z_]\w*", text) if retired(name)})


def test_the_check_finds_them():
    """`words` finds retired words (old names for standard terms) only in identifiers.

    It ignores comments, strings, names of test functions, and functions of Rust's standard library such as
    `fold`.
    """
    assert words(
        'fn held_rows() {} // forget\nlet Quad { octets } = 1; x.iter().fold(0); mem::forget(x); "a turn"'
    ) == [
        "Quad",
        "held_rows",
        "octets",
    ]
    assert words("#[test]\nfn a_thread_has_one_turn() {}") == []
    assert retired("single_buffer") == [] and retired("FoldBytes") == ["fold"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_no_retired_word():
    files = subprocess.run(
        ["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(files) > 200
    found = {file: words((ROOT / file).read_text()) + retired(file) for file in files if (ROOT / file).exists()}
    said = [f"{file}: {name} (write {RETIRED[retired(name)[0]]})" for file, names in found.items() for name in names]
    assert not said, "\n" + "\n".join(said)


TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|trait|union|type) (\w+)", re.M)
CRATES = (
    "cuda-std/src",
    "cuda-builder/src",
    "kernels-gpu/src",
    "host/src",
    "host/driver/src",
    "py-bindings/src",
    "tests/src",
    "benches/src/cases",
    "tests/kernels",
)


@pytest.mark.parametrize("crate", CRATES)
def test_no_type_is_defined_twice(crate):
    """No two types at module level have the same name in one crate. Types inside functions are not
    checked."""
    folder = ROOT / crate
    if not folder.exists():
        pytest.skip("no sources")
    defined: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.rs")):
        if "/arch/" in path.as_posix():  # each build compiles only one of the two backends
            continue
        for name in TYPE.findall(path.read_text()):
            defined.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
