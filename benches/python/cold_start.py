"""Measures the first step of a model in a new process, with an empty and with a filled cache of compiled PTX.

    python benches/python/cold_start.py [--model flux --model ltx] [--out <folder>] [--small]

The driver compiles the PTX of a kernel at its first launch and caches the result on disk. Each case runs in a
separate process with a separate cache folder:

- `stock`: the unpatched model.
- `empty`: the patched model, with an empty cache.
- `full`: the patched model, with the cache that the case `empty` has filled.
- `warmup`: the patched model, after `python -m oxiwarp warmup` with an empty cache.

`seconds` is the time from `import oxiwarp` to the end of the first step: import, `patch` and step. The import
of torch, the creation of the CUDA context and the construction of the model are not included. For `stock`,
`seconds` is the time of the step only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = """
import json, sys, time
import torch

device = torch.device(sys.argv[3])
torch.zeros(1, device=device)
started = time.perf_counter()
import oxiwarp
imported = time.perf_counter() - started
from oxiwarp.cli.bench.measure import build, run_step, synchronize
from oxiwarp.cli.bench.workloads import WORKLOADS

model, patched, small = WORKLOADS[sys.argv[1]], sys.argv[2] == "patched", sys.argv[4] == "small"
dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
with torch.no_grad():
    module = build(model, small, device, dtype)
    arguments = model.arguments(module, small, device, dtype)
    synchronize(device)
    started = time.perf_counter()
    if patched:
        oxiwarp.patch(module, cpu_kernels=device.type == "cpu")
    patching = time.perf_counter() - started
    steps = []
    for _ in range(3):
        started = time.perf_counter()
        run_step(model, module, arguments)
        synchronize(device)
        steps.append(time.perf_counter() - started)
print(json.dumps({"import": imported if patched else 0.0, "patch": patching if patched else 0.0, "steps": steps}))
"""


def child(model: str, state: str, cache: Path, device: str, small: bool) -> dict[str, Any]:
    """Run a case in a new process and return its times in seconds."""
    command = [sys.executable, "-c", CHILD, model, state, device, "small" if small else "published"]
    environment = {**os.environ, "CUDA_CACHE_PATH": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model}, {state}: {done.stderr.strip()}")
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seconds": times["import"] + times["patch"] + times["steps"][0], **times}


def warmup(cache: Path) -> float | None:
    """Run `python -m oxiwarp warmup` and return the seconds that this command prints, or None without a
    GPU."""
    environment = {**os.environ, "CUDA_CACHE_PATH": str(cache)}
    done = subprocess.run([sys.executable, "-m", "oxiwarp", "warmup"], env=environment, capture_output=True, text=True)
    if done.returncode:
        return None
    return float(done.stdout.partition("kernels ready, ")[2].partition(" s,")[0])


def measure(model: str, device: str, small: bool) -> list[dict[str, Any]]:
    """Measure all cases of a model. Return for each case its times, and how many seconds longer it takes
    than the unpatched model."""
    with tempfile.TemporaryDirectory() as folder:
        stock, one, all_kernels = (Path(folder) / name for name in ("stock", "one", "all"))
        cases = [{"case": "stock", **child(model, "stock", stock, device, small)}]
        cases += [{"case": name, **child(model, "patched", one, device, small)} for name in ("empty", "full")]
        if (spent := warmup(all_kernels)) is not None:
            times = child(model, "patched", all_kernels, device, small)
            cases.append({"case": "warmup", "warmup_seconds": spent, **times})
    return [{"model": model, **case, "more_than_stock": case["seconds"] - cases[0]["seconds"]} for case in cases]


def main() -> None:
    from environment import environment
    from rich.console import Console
    from rich.table import Table

    from oxiwarp.__main__ import default_device

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--small", action="store_true", help="small models, for a test")
    options = parser.parse_args()
    device = default_device()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    table = Table("model", "case", "seconds", "more than stock", "import", "patch", "first step", "third step")
    cases: list[dict[str, Any]] = []
    for model in options.model or ["flux", "ltx"]:
        with console.status(model):
            cases += measure(model, device, options.small)
    for case in cases:
        times = (
            case["seconds"],
            case["more_than_stock"],
            case["import"],
            case["patch"],
            case["steps"][0],
            case["steps"][2],
        )
        table.add_row(case["model"], case["case"], *(f"{seconds:.2f}" for seconds in times))
    console.print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = json.dumps({**environment(), "cases": cases}, indent=1)
        (options.out / "cold_start.json").write_text(record + "\n")


if __name__ == "__main__":
    main()
