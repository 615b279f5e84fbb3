"""Tests of the scripts of the agent skill, and of the example notebook.

Each script runs on a small model and prints the expected output.
"""

import json
import subprocess
from pathlib import Path

import pytest
import warm
from checkout import ROOT

EXAMPLES = ROOT / "skills" / "oxiwarp-kernels" / "scripts"
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
SMALL_VIDEO = "--small --num-frames 9 --height 64 --width 64 --steps 2"
RUNS = {
    "generate_video": (
        f"{SMALL_VIDEO} --warmup-iterations 0 --batch-size 1 --compile --use-optimized-kernels "
        "--output videos/video.gif",
        "kernels + torch.compile: 9",
    ),
    "ltx_kernel_injection": ("--small --rounds 2", "qk_norm_rope"),
    "benchmark_rmsnorm": ("--rows 4 8 --cols 64 --rounds 3", "GB/s"),
    "transformers_injection": (
        "--small --prompt-tokens 8 --new-tokens 3 --rounds 2",
        "100% of the tokens are the same",
    ),
    "huggingface_kernels": ("--rows 4 --cols 64 --rounds 3", "kernelized layer"),
}


pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the bundle has no examples")


def run(name: str, options: list[str], folder: Path, python=warm.run) -> subprocess.CompletedProcess:
    """Run an example with `folder` as its working and temporary directory."""
    pytest.importorskip("kernels" if name == "huggingface_kernels" else "diffusers")
    return python(EXAMPLES / f"{name}.py", *options, cwd=folder, TMPDIR=str(folder))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--no-optimized-kernels --warmup-iterations 0", "stock: 9 frames"),
        ("--no-optimized-kernels --compile --warmup-iterations 0", "torch.compile: 9 frames"),
        ("--mode fast --batch-size 2 --warmup-iterations 1 --compile", "kernels + torch.compile: 9 frames"),
    ],
)
def test_generate_video(options, expected, tmp_path):
    """`generate_video.py` runs with several combinations of options. It calls `patch` only without the option
    `--no-optimized-kernels`."""
    ran = run("generate_video", [*SMALL_VIDEO.split(), *options.split()], tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert expected in ran.stdout and ("oxiwarp.patch(mode='fast')" in ran.stdout) is ("--mode fast" in options)
    assert (tmp_path / "video.gif").stat().st_size > 0


@pytest.mark.parametrize("python", [warm.run, pytest.param(warm.plain, marks=pytest.mark.extra)])
@pytest.mark.parametrize("name", RUNS)
def test_example(name, python, tmp_path):
    """Each example script runs. A test with the marker `extra` runs it in a new Python process that has not
    imported any package before."""
    options, expected = RUNS[name]
    ran = run(name, [*options.split(), "--plot", f"plots/{name}.png"], tmp_path, python)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert expected in ran.stdout
    assert (tmp_path / "plots" / f"{name}.png").stat().st_size > 0
    assert not list(tmp_path.glob("oxiwarp-*")), "a folder of its own is left behind"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("generate_video", "--small --steps 0", "argument --steps: '0', expected a whole number of 1 or more"),
        ("benchmark_rmsnorm", "--rows 4 -1", "argument --rows: '-1'"),
        ("transformers_injection", "--small --new-tokens 1", "--new-tokens: 2 or more"),
    ],
)
def test_odd_arguments(name, options, complaint, tmp_path):
    ran = run(name, options.split(), tmp_path)
    assert ran.returncode == 2 and complaint in ran.stderr, ran.stderr[-2000:]


def test_notebook(monkeypatch, tmp_path, capsys):
    """The cells of the notebook run in order. The notebook file contains no outputs."""
    pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None
            exec("".join(cell["source"]), names)  # noqa: S102
    assert names["report"].left == 0 and "modules restored" in capsys.readouterr().out
