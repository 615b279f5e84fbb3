"""oxiwarp beside torch, torch.compile, Liger and QuACK on a GPU: checked first, then timed, all in one run.

    python benches/python/bench.py [--quick] [--only rms_norm] [--out FOLDER]

Prints a table for each op and the project's goals, and leaves results.csv, results.png, results.txt and
environment.json. On a machine without a GPU it says so and ends well. The exit code is 1 where an oxiwarp result is
wrong, not where a goal is missed.
"""

import argparse
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ops import Op
    from results import Measurement, Results
    from timing import Turn

ROOT = Path(__file__).resolve().parents[2]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few shapes and few rounds: to see that it works")
    parser.add_argument("--only", metavar="OP", help="one op, and no overheads")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each provider (default: 40, quick: 10)")
    parser.add_argument("--out", type=Path, default=None, help="default: benches/results/<gpu>/<date>")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 2:
        parser.error("--rounds: 2 or more")
    return options


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:6.1f} s] {text}", flush=True)


def measure(op: "Op", rows: int, cols: int, copy: "tuple[Turn, int]", rounds: int, results: "Results") -> "Measurement":
    """Check every provider on one shape, then let those that are right take turns, with the copy among them."""
    import torch
    from ops import error_of, is_right
    from results import Measurement
    from timing import COPY, calls_for, capture_op, race, sets_for

    device = torch.device("cuda", torch.cuda.current_device())
    torch._dynamo.reset()  # each shape is compiled on its own, and never counts as a recompilation
    sets = [op.inputs(rows, cols, device) for _ in range(sets_for(op, rows, cols, device))]
    calls = calls_for(op, rows, cols, len(sets), device)
    weight = sets[0][0].new_empty(cols).uniform_(0.5, 1.5)
    providers = op.providers()
    library = error_of(op, providers["F.rms_norm"], sets[0], weight)
    turns, errors = {COPY: copy[0]}, {}
    for name, provider in providers.items():
        try:
            error = error_of(op, provider, sets[0], weight)
            if not is_right(error, library):
                text = f"{op.name} {rows} x {cols}, {name}: relative error {error[0]:.3g}, worst element {error[1]:.3g}"
                say(f"wrong: {text}")
                if name == "oxiwarp":
                    results.wrong.append(text)
                continue
            turns[name], errors[name] = capture_op(provider, sets, weight, calls), error[0]
        except Exception as failure:  # a peer that does not run on this GPU must not end the run
            if name == "oxiwarp":
                raise
            say(f"{op.name} {rows} x {cols}, {name}: not measured ({type(failure).__name__}: {failure})")
    times = race(turns, rounds)
    results.copies.append(copy[1] / times.pop(COPY).median / 1e3)
    return Measurement(op.name, rows, cols, op.bytes(rows, cols), times, errors)


def measure_ops(options: argparse.Namespace, results: "Results") -> None:
    """Every op on every shape."""
    import torch
    from ops import OPS, QUICK
    from timing import copy_turn

    rounds = options.rounds or (10 if options.quick else 40)
    copy = copy_turn(torch.device("cuda"))
    with torch.no_grad():
        for op in OPS:
            if options.only not in (None, op.name):
                continue
            for rows, cols in QUICK if options.quick else op.shapes:
                say(f"{op.name} {rows} x {cols}")
                results.measurements.append(measure(op, rows, cols, copy, rounds, results))
                torch.cuda.empty_cache()


def measure_overheads(options: argparse.Namespace, results: "Results") -> None:
    """Per call, import, first call."""
    from overhead import first_call_seconds, import_seconds, per_call

    say("cost of a call")
    results.per_call = per_call(5 if options.quick else 15)
    say("import, in fresh processes")
    results.import_seconds = import_seconds(1 if options.quick else 5)
    for op in ("rms_norm", "add_rms_norm"):
        say(f"first call of {op}, in fresh processes")
        results.first_call[op] = first_call_seconds(op, 1 if options.quick else 2)


def commit() -> str:
    """Of the checkout, or as the bundle says in OXIWARP_COMMIT."""
    if named := os.environ.get("OXIWARP_COMMIT"):
        return named
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def driver() -> str:
    """The driver's version, from nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def environment() -> dict[str, Any]:
    """Where this runs."""
    import torch

    versions = {}
    for package in ("oxiwarp", "torch", "triton", "liger-kernel", "quack-kernels"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu.name,
        "compute_capability": f"{gpu.major}.{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "driver": driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
        "command": command(),
    }


def command() -> str:
    """The command line, without the folder that the results go to: a path of this machine."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if word != "--out" or next(words, None) is None]
    return shlex.join(["benches/python/bench.py", *(word for word in kept if not word.startswith("--out="))])


def main() -> int:
    """Measure, print, write."""
    options = parse_arguments()
    try:
        import torch
    except ImportError:
        print("bench: torch is not installed: nothing measured")
        return 0
    if not torch.cuda.is_available():
        print("bench: no CUDA device: nothing measured")
        return 0
    from report import plot, show, write_csv, write_environment
    from results import Results
    from rich.console import Console

    facts, results = environment(), Results()
    torch_version = facts["versions"]["torch"]
    title = f"{facts['gpu']}, driver {facts['driver']}, torch {torch_version}, commit {facts['commit'][:12]}"
    say(title)
    measure_ops(options, results)
    if options.only is None:
        measure_overheads(options, results)
    say("done\n")
    gpu_name = re.sub(r"\W+", "-", facts["gpu"].lower())
    folder = options.out or ROOT / "benches" / "results" / gpu_name / facts["date"][:10]
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(record=True, width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(f"{title}, {facts['date']}")
    show(results, console)
    (folder / "results.txt").write_text(console.export_text())
    write_csv(results, folder / "results.csv")
    write_environment(results, facts, folder / "environment.json")
    print(plot(results, folder / "results.png", title))
    print(f"results: {folder}")
    return 1 if results.wrong else 0


STARTED = time.perf_counter()

if __name__ == "__main__":
    sys.exit(main())
