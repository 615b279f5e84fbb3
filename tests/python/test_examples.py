"""The examples run, on small models, and say what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "generate_video": (
        "--small --num-frames 9 --height 64 --width 64 --steps 2 --warmup-iterations 0 --batch-size 1 --compile "
        "--use-optimized-kernels",
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


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the bundle has no examples")
@pytest.mark.parametrize("name", RUNS)
def test_example(name, tmp_path):
    pytest.importorskip("kernels" if name == "huggingface_kernels" else "diffusers")
    options, expected = RUNS[name]
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *options.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert expected in run.stdout
    assert (tmp_path / f"{name}.png").stat().st_size > 0
