"""Tests that comments in Rust and Python sources are at most 110 columns wide, which is the width in rustfmt.toml."""

import io
import re
import subprocess
import tokenize

from checkout import ROOT

MAX_COLUMNS = 110
RUST_COMMENT = re.compile(r"^\s*//")
UNBREAKABLE = re.compile(r"^\s*(?:///?|//!|#) ?(?:\||\S+$)")
"""Matches a comment line that cannot be broken: a table row, or a single word such as a link."""


def tracked(pattern):
    """Return the files that match `pattern` and that git tracks. Outside of a git repository, return an
    empty list."""
    done = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def test_rust_comments_fit():
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.rs")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS and RUST_COMMENT.match(line) and not UNBREAKABLE.match(line)
    ]
    assert not wide, "comments wider than 110 columns:\n" + "\n".join(wide)


def test_python_comments_fit():
    wide = []
    for path in tracked("*.py"):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            own_line = token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
            if own_line and token.end[1] > MAX_COLUMNS and not UNBREAKABLE.match(token.line):
                wide.append(f"{path.relative_to(ROOT)}:{token.start[0]}")
    assert not wide, "comments wider than 110 columns:\n" + "\n".join(wide)
