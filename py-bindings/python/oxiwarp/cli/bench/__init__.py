"""Benchmarks a whole model in several variants: `python -m oxiwarp bench --model ltx`. Examples of variants
are the unpatched, the compiled and the patched model.

The command measures the wall-clock time of a step of the model, for example of a denoising step. It compares
the output of each variant with the output of the unpatched model. A profile shows how much GPU time matrix
products, attention, oxiwarp kernels and other kernels take. The weights are random, because the times do not
depend on their values.
"""

import gc
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .measure import Result, compile_one, measure, stages_of
from .progress import Stages
from .variants import COMPILED, STOCK, VARIANTS
from .workloads import WORKLOADS, Workload


def bench(
    models: list[str], variants: list[str], rounds: int, device: str, small: bool, graphs: bool, out: str | None
) -> int:
    """Measure the models and print tables. Write `<out>/<model>.json` after each stage of a measurement:
    after the times, the profiles and the CUDA graphs.

    Returns: 0, or 1 if a model or variant failed. The reason for the failure is printed, and the measurement
    continues with the next model or variant.
    """
    try:
        from rich.console import Console
    except ImportError as error:
        print(f"bench: {error}: pip install rich diffusers transformers accelerate", file=sys.stderr)
        return 1
    place, dtype = place_and_dtype(device)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    failed = 0
    chosen = [variant for variant in VARIANTS if variant.name in (STOCK, *variants)]
    for name in models:
        workload = WORKLOADS[name]
        console.print(f"\n{workload.title}, {str(dtype)[6:]}, {where(place)}", style="bold")
        try:
            with Stages(stages_of(chosen, place, graphs)) as progress:
                for results in measure(workload, chosen, place, dtype, rounds, small, graphs, progress):
                    if out is not None:
                        save(workload, results, place, dtype, Path(out) / f"{name}.json")
        except Exception as failure:
            console.print(f"{name}: not measured: {type(failure).__name__}: {failure}", markup=False)
            failed = 1
            continue
        finally:
            forget()
        show(results, console)
        failed |= any(result.error for result in results)
    return int(failed)


def compile_only(models: list[str], variants: list[str], device: str, small: bool) -> int:
    """Execute the first step of each compiled variant, which compiles the model and fills Inductor's cache. Print how
    long each step took.

    Returns: 0, or 1 if a variant failed. The reason for the failure is printed.
    """
    from rich.console import Console

    place, dtype = place_and_dtype(device)
    chosen = [variant for variant in VARIANTS if variant.compiled and variant.name in variants]
    failed, console = 0, Console(stderr=True, highlight=False)
    for number, name in enumerate(models):
        for at, variant in enumerate(chosen, number * len(chosen) + 1):
            try:
                with console.status(f"{at} of {len(models) * len(chosen)}: {name}, {variant.name}"):
                    seconds = compile_one(WORKLOADS[name], variant, place, dtype, small)
                print(f"{name}, {variant.name}: {seconds:.1f} s", flush=True)
            except Exception as failure:
                print(f"{name}, {variant.name}: not compiled: {type(failure).__name__}: {failure}", flush=True)
                failed = 1
            finally:
                forget()
    return failed


def place_and_dtype(device: str) -> tuple[torch.device, torch.dtype]:
    """Return the device, and the dtype in which models are measured on it: float32 on the CPU, bfloat16 on a
    GPU.
    """
    place = torch.device(device)
    return place, torch.float32 if place.type == "cpu" else torch.bfloat16


def forget() -> None:
    """Free the memory of the model that was measured last, and its compiled code.

    The caller has no reference to this model, but reference cycles may keep it alive.
    """
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def where(device: torch.device) -> str:
    """Return the name of the GPU, or "CPU executor"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU executor"


def show(results: list[Result], console: Any) -> None:
    """Print tables with the times and the profiles of the variants, and with the agreement between the output
    of each variant and the output of the unpatched model.
    """
    from rich.table import Table

    for result in results:
        if result.error:
            console.print(f"{result.variant.name}: not measured: {result.error}", markup=False)
    results = [result for result in results if not result.error]
    base = {result.variant.name: median(result.milliseconds) for result in results}
    table = Table(
        "",
        "ms a step",
        "x eager",
        "x torch.compile",
        "in a row, ms",
        "launching, ms",
        "replayed, ms",
        "equal values",
        "PSNR, dB",
        "first step, s",
    )
    for result in results:
        time = base[result.variant.name]
        compiled = f"{time / base[COMPILED]:.3f}" if COMPILED in base else ""
        table.add_row(
            result.variant.name,
            f"{time:.2f}",
            f"{time / base[STOCK]:.3f}",
            compiled,
            "" if result.in_a_row is None else f"{result.in_a_row:.2f}",
            f"{median(result.launching):.1f}",
            f"{median(result.replayed):.2f}" if result.replayed else "",
            f"{result.equal:.2%}",
            f"{result.psnr:.1f}",
            f"{result.warmup:.1f}",
        )
    console.print(table)
    profiled = [result for result in results if result.profile is not None]
    if profiled:
        table = Table(
            "GPU time of a step, ms", "GEMM", "attention", "oxiwarp", "other", "kernels", "longest other kernels"
        )
        for result in profiled:
            p = result.profile
            assert p is not None
            longest = ", ".join(f"{name[:40]} {time:.2f}" for name, time in list(p.named.items())[:3])
            table.add_row(
                result.variant.name,
                *(f"{time:.2f}" for time in (p.gemm, p.attention, p.ours, p.other)),
                str(p.kernels),
                longest,
            )
        console.print(table)
    for result in results:
        if result.patch_seconds is not None:
            console.print(
                f"{result.variant.name}: patch() took {result.patch_seconds:.2f} s; {result.report.splitlines()[0]}"
            )


def save(workload: Workload, results: list[Result], device: torch.device, dtype: torch.dtype, file: Path) -> None:
    """Write the results to a JSON file, with the command and the versions of hardware and software."""
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"model": workload.title, **machine(device, dtype), "results": [figures(result) for result in results]}
    file.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the part of a results file that describes the command, the device and the software."""
    return {
        "command": command(sys.argv[1:]),
        "commit": os.environ.get("OXIWARP_COMMIT"),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": where(device),
        "driver": driver() if device.type == "cuda" else None,
        "dtype": str(dtype)[6:],
        "versions": versions(),
    }


def figures(result: Result) -> dict[str, Any]:
    """Return the result of a variant as a dict for JSON. Infinite and NaN values are replaced by None.

    The reference is the output of the unpatched model. If the output of the variant equals the reference, the
    PSNR is infinite, so `psnr` is None. If the reference is not finite, `equal` and `psnr` are None.
    """
    return {**asdict(result), "median": result.median, **figures_of_agreement(result.equal, result.psnr)}


def figures_of_agreement(equal: float | None, psnr: float | None) -> dict[str, float | None]:
    """Return a dict for JSON with two entries: `equal`, the fraction of equal values, and `psnr`.

    Infinite and NaN values are replaced by None.
    """
    return {name: x if x is not None and math.isfinite(x) else None for name, x in (("equal", equal), ("psnr", psnr))}


def command(arguments: list[str]) -> str:
    """Return the command line without the option `--out` and its path, because the path only exists on this
    machine.
    """
    words = iter(arguments)
    kept = [word for word in words if word != "--out" or next(words, None) is None]
    return shlex.join(["python", "-m", "oxiwarp", *(word for word in kept if not word.startswith("--out="))])


def driver() -> str:
    """Return the version of the NVIDIA driver from nvidia-smi, or "unknown"."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of Python, CUDA and the packages that influence the results."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for package in ("torch", "oxiwarp", "diffusers", "transformers", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


__all__ = ["COMPILED", "bench"]
