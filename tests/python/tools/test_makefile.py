"""Tests of the rules in the Makefile with `make --dry-run`."""

import shutil
import subprocess
import sys

import pytest
from checkout import ROOT


@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="the bundle has no Makefile")
@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")
@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "test-python",
        "bench-gpu",
        "exactness",
        "curve",
        "hub",
        "bundle",
        "lint",
        "check",
        "test-op",
        "test-ptx",
        "test-extra",
    ],
)
def test_what_imports_the_package_has_torch(target, tmp_path):
    """If the virtual environment is new, every make target that imports oxiwarp also installs torch.

    This is necessary because the Makefile installs the oxiwarp wheel without dependencies.
    """
    command = ["make", "--dry-run", f"VENV={tmp_path}/venv", target]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m pip" in steps and "install --no-compile torch" in steps


@pytest.mark.skipif(not (ROOT / "scripts").exists(), reason="the bundle has no scripts")
def test_examples_of_the_gpu_selection():
    subprocess.run([sys.executable, "-m", "doctest", ROOT / "scripts" / "gpu.py"], check=True)
