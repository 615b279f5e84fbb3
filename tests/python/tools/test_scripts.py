"""Tests of `run.sh`, which runs tests and benchmarks from a bundle. A bundle contains compiled programs and
wheels for a GPU machine.

The tests check the steps of `run.sh`, its exit codes and its log files. A fake `python` prints its arguments,
and a fake `compute-sanitizer` reports faults.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from checkout import ROOT

SCRIPT = ROOT / "scripts" / "run.sh"
PYTHON = """#!/bin/sh
echo "commit $OXIWARP_COMMIT: $*"
case "$*" in *"--fail"*) exit 3 ;; esac
"""
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a bundle has run.sh elsewhere")


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "a bundle"
    (folder / "wheels").mkdir(parents=True)
    shutil.copy(SCRIPT, folder)
    (folder / "COMMIT").write_text("0123abc\n")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    return folder


def run(bundle: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run `run.sh` from the parent folder of the bundle.

    The environment variable `CDPATH` is set, so that `cd` prints a path. `run.sh` must work in spite of this
    output.
    """
    temporary = bundle.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    names = {"PYTHON": str(bundle / "python"), "OUT": "the results", "CDPATH": ".", "TMPDIR": str(temporary)}
    ran = subprocess.run(
        ["bash", f"{bundle.name}/run.sh", *arguments],
        cwd=bundle.parent,
        env={**os.environ, **names},
        capture_output=True,
        text=True,
    )
    assert not list(temporary.iterdir()), "it leaves its folder behind"
    return ran


PROGRAM = """#!/bin/sh
[ "$1" = --list ] && printf '%s: test\\n' sm_90::a::clean sm_90::a::racy sm_90::b::slow sm_90::b::no_test | grep "$2"
"""
SANITIZER = """#!/bin/sh
case "$*" in
*::racy) echo "========= RACECHECK SUMMARY: 1 hazard displayed"; exit 99 ;;
*::slow) exec sleep 60 ;;
*::clean) echo "test result: ok. 1 passed; 0 failed" ;;
esac
"""


@pytest.fixture
def sanitizer(bundle, monkeypatch):
    """Add two fake programs to the bundle: a test program that lists kernel tests, and a compute-sanitizer
    that reports faults."""
    for name, text in {"bin/test-kernels": PROGRAM, "tools/compute-sanitizer": SANITIZER}.items():
        (bundle / name).parent.mkdir()
        (bundle / name).write_text(text)
        (bundle / name).chmod(0o755)
    with tarfile.open(bundle / "programs.tar.xz", "w:xz") as archive:
        archive.add(bundle / "bin", "bin")
    (bundle / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setenv("PATH", f"{bundle / 'tools'}:{os.environ['PATH']}")
    monkeypatch.setenv("SANITIZE_SECONDS", "2")


def test_sanitize(bundle, sanitizer):
    """`run.sh sanitize` runs each kernel test in a separate process under compute-sanitizer.

    If a test fails, hangs or does not exist, `run.sh` reports it and runs the next test.
    """
    out = bundle.parent / "the results"
    ran = run(bundle, "sanitize", "sm_90::a::clean")
    assert ran.returncode == 0 and "== racecheck: 1 of 1 tests clean" in ran.stdout, ran.stderr
    ran = run(bundle, "sanitize")
    assert ran.returncode == 1 and "== memcheck: 1 of 4 tests clean" in ran.stdout
    progress = [line for line in ran.stderr.splitlines() if line.startswith("memcheck, ")]
    assert [line.partition(": ")[0] for line in progress] == [f"memcheck, {number} of 4" for number in range(1, 5)]
    assert {line.split(": ")[1] for line in progress} >= {"sm_90::a::clean", "sm_90::b::slow"}
    lines = (out / "sanitize-memcheck.log").read_text().splitlines()
    assert [line.partition(", ")[0] for line in lines] == [
        "sm_90::a::clean: clean",
        "sm_90::a::racy: FAILED (99)",
        "sm_90::b::no_test: FAILED (0)",
        "sm_90::b::slow: FAILED (124)",
    ]
    assert "RACECHECK SUMMARY: 1 hazard" in lines[1] and (out / "sanitize-memcheck-sm_90-a-racy.log").exists()
    assert not (out / "sanitize-memcheck-sm_90-a-clean.log").exists()
    ran = run(bundle, "sanitize", "sm_90::none")
    assert ran.returncode == 1 and "== memcheck: 0 of 0 tests clean" in ran.stdout


@pytest.mark.parametrize(
    ("step", "program"),
    [
        ("models", "-m oxiwarp bench --out {out}/bench --model flux"),
        ("attention", "{bundle}/benches/python/attention.py --out {out}/bench --model flux"),
        ("python", "-m pytest -p xdist.plugin {bundle}/tests/python --model flux"),
        ("multi-gpu", "{bundle}/scripts/multi_gpu.py --out {out} --model flux"),
        ("demo", "-m oxiwarp demo --out {out}/demo.png --model flux"),
    ],
)
def test_steps(bundle, step, program):
    """Each step of `run.sh` runs a program. The step passes its options and the commit to this program, and
    logs the program's output.

    If the program fails, the step fails.
    """
    out = bundle.parent / "the results"
    ran = run(bundle, step, "--model", "flux")
    said = f"commit 0123abc: {program.format(bundle=bundle, out=out)}\n"
    assert ran.returncode == 0 and f"== {step}: ok" in ran.stdout, ran.stderr
    assert said in ran.stdout and (out / f"{step}.log").read_text() == said
    ran = run(bundle, step, "--fail")
    assert ran.returncode == 1 and f"== {step}: FAILED with exit code 3" in ran.stdout


def test_usage(bundle):
    """The usage text has a line for every step."""
    ran = run(bundle, "no-such-step")
    steps = {line.split()[1] for line in ran.stderr.splitlines() if "./run.sh" in line}
    cases = SCRIPT.read_text().partition("case $command in")[2]
    named = {
        name for line in cases.splitlines() if line.endswith(")") and line[0] != " " for name in line[:-1].split(" | ")
    }
    assert ran.returncode == 2 and steps == named - {"*"}
