"""Tests of `scripts/compare_sass.py`. This script compares the machine code of two sets of PTX files, and
ignores only symbol names.

The tests need no GPU.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from test_ptx import need_tools
from test_ptx_checks import HEADER, entry

SCRIPT = ROOT / "scripts" / "compare_sass.py"
ADD = "ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd2], %r2;"
TABLE = ".global .align 4 .b8 {name}[8] = {{1, 0, 0, 0, 2, 0, 0, 0}};\n"
LOOK_UP = "mov.u64 %rd3, {name}; ld.global.u32 %r1, [%rd3+4]; st.global.u32 [%rd2], %r1;"
NAME = "_ZN3old5TABLE17h1E"
BEFORE = HEADER + TABLE.format(name=NAME) + entry("a_f32", ADD) + entry("b_f32", LOOK_UP.format(name=NAME))


@pytest.fixture
def compare(tmp_path: Path):
    """Return a function that runs the script on `BEFORE` and another PTX text. It returns the script's exit
    code and output lines."""
    need_tools()
    if not SCRIPT.exists():
        pytest.skip("no scripts beside the tests")

    def run(after: str) -> tuple[int, list[str]]:
        for folder, text in (("before", BEFORE), ("after", after)):
            path = tmp_path / folder / "sm_90" / "op.ptx"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, SCRIPT, tmp_path / "before", tmp_path / "after"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()

    return run


def test_names_of_symbols_are_ignored(compare):
    code, lines = compare(BEFORE.replace(NAME, "_ZN3new4path5TABLE17h2E"))
    assert (code, lines) == (0, ["sm_90: 1 files with the same text, 0 same, 0 renamed, 0 changed, 0 removed, 0 added"])


def test_a_renamed_entry_keeps_its_code(compare):
    code, lines = compare(BEFORE.replace("a_f32", "a_warp_f32"))
    assert code == 0
    assert lines[0].endswith("renamed  a_f32 -> a_warp_f32")


@pytest.mark.parametrize(
    ("old", "new"),
    [("add.u32 %r2, %r1, 1", "add.u32 %r2, %r1, 2"), ("add.u32", "sub.u32"), ("[%rd3+4]", "[%rd3]")],
)
def test_other_code_is_a_change(compare, old: str, new: str):
    code, lines = compare(BEFORE.replace(old, new))
    assert code == 1
    assert any(": changed  " in line for line in lines[:-1])
    assert lines[-1].endswith("1 same, 0 renamed, 1 changed, 0 removed, 0 added")


def test_an_entry_without_counterpart_is_named(compare):
    code, lines = compare(BEFORE + entry("c_f32", "add.u32 %r2, %r1, 3; st.global.u32 [%rd2], %r2;"))
    assert code == 1
    assert lines[0].endswith("added    c_f32")


def test_data_of_a_module_is_compared(compare):
    code, _ = compare(BEFORE.replace("= {1, 0, 0, 0, 2", "= {1, 0, 0, 0, 3"))
    assert code == 1
