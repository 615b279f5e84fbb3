"""Measures times outside of the kernels: Python time per call, import time, and the time of the first call of
an op.

Import and first call are measured in new processes. The driver caches compiled PTX in the folder
`CUDA_CACHE_PATH`. Each measurement of a first call therefore starts with a new folder.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

# Environment variables that disable the caches of the driver and of Python. The measured processes run
# without these variables, because users normally have these caches.
WITHOUT_CACHE = ("CUDA_CACHE_DISABLE", "PYTHONDONTWRITEBYTECODE")

_IMPORT = """
import time, torch
start = time.perf_counter()
import oxiwarp
print(time.perf_counter() - start)
"""

# Before the timed call, torch creates the CUDA context and runs a kernel. The measured time therefore
# contains only the op's first call.
_FIRST_CALL = """
import sys, time, torch, oxiwarp
x = torch.ones(64, 2048, device="cuda", dtype=torch.bfloat16)
arguments = [x, x][: 2 if sys.argv[1] == "add_rms_norm" else 1]
weight = torch.ones(2048, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
start = time.perf_counter()
with torch.no_grad():
    getattr(oxiwarp, sys.argv[1])(*arguments, weight)
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def per_call(rounds: int) -> dict[tuple[str, str], float]:
    """Map (grad mode, function name) to the median microseconds of a Python call on a small tensor."""
    import oxiwarp

    x = torch.randn(16, 2048, device="cuda", dtype=torch.bfloat16)
    weight, out, shape = torch.randn_like(x[0]), torch.empty_like(x), (2048,)
    calls: dict[str, Callable[[], object]] = {
        "oxiwarp.rms_norm": lambda: oxiwarp.rms_norm(x, weight, 1e-6),
        "oxiwarp.rms_norm(out=)": lambda: oxiwarp.rms_norm(x, weight, 1e-6, out=out),
        "F.rms_norm": lambda: F.rms_norm(x, shape, weight, 1e-6),
        "torch.add": lambda: torch.add(x, x),
        "torch.empty_like": lambda: torch.empty_like(x),
    }
    result: dict[tuple[str, str], float] = {}
    for mode, context in (("inference_mode", torch.inference_mode), ("no_grad", torch.no_grad)):
        with context():
            times: dict[str, list[float]] = {what: [] for what in calls}
            for turn in range(rounds + 2):  # the first two are warm-up
                for what, call in calls.items():
                    spent = _microseconds(call)
                    if turn >= 2:
                        times[what].append(spent)
        result |= {(mode, what): median(samples) for what, samples in times.items()}
    return result


def _microseconds(call: Callable[[], object], count: int = 300) -> float:
    """Return the CPU time per call in microseconds. `count` is small enough that the launch queue does not
    fill up and block the CPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / count * 1e6


def import_seconds(runs: int) -> float:
    """Return the median seconds of `import oxiwarp` after `import torch`, in new processes with cached bytecode."""
    _seconds(_IMPORT)
    return median(_seconds(_IMPORT) for _ in range(runs))


def first_call_seconds(op: str, runs: int) -> tuple[float, float]:
    """Return two times in seconds: of the first call of `op` with an empty driver cache, and with a filled
    driver cache.

    Each time is the longest of `runs` runs.
    """
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="oxiwarp-cache-") as cache:
            for times in (cold, warm):
                times.append(_seconds(_FIRST_CALL, op, cache=cache))
    return max(cold), max(warm)


def _seconds(program: str, *arguments: str, cache: str | None = None) -> float:
    """Run a Python program in a new process and return the seconds that it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in WITHOUT_CACHE}
    if cache:
        environment["CUDA_CACHE_PATH"] = cache
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise RuntimeError(f"a fresh process failed:\n{run.stderr}")
    return float(run.stdout.split()[-1])


__all__ = ["first_call_seconds", "import_seconds", "per_call"]
