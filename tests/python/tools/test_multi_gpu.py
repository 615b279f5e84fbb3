"""Runs scripts/multi_gpu.py on the CPU, with small models and two processes with the gloo backend."""

import json
import subprocess
import sys

import pytest
from checkout import ROOT

SCRIPT = ROOT / "scripts" / "multi_gpu.py"
CHECKS = ("collectives", "language", "fsdp", "context", "flux")


@pytest.mark.extra
def test_it_runs_on_the_cpu(tmp_path):
    """Every check of the script that runs without GPUs passes.

    The script's check `tests` is left out, because it runs tests that are part of this test suite anyway.
    """
    options = [part for check in CHECKS for part in ("--check", check)]
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--out", str(tmp_path), *options],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checks = json.loads((tmp_path / "multi_gpu.json").read_text())["checks"]
    assert tuple(checks) == CHECKS
    for check, rows in checks.items():
        assert rows and not any(row["failure"] for row in rows), check
        assert all(row["figures"] for row in rows) or check == "collectives"
