"""Compiles the PTX of every kernel in advance, for the GPUs of this machine: `python -m oxiwarp warmup`.

Without this command, the driver compiles a kernel at its first launch. The driver stores compiled kernels in
a cache on disk. After `warmup`, later processes of the same user load the kernels from this cache.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from .. import _native

CACHE = "~/.nv/ComputeCache"


def warmup(ops: list[str] | None = None, console: Any = None) -> int:
    """Compile the kernels for every GPU of this machine in several CPU threads, and show the progress.

    If `ops` is not None, compile only the kernels of these operators.

    Returns: 0, or 1 if there is no GPU or if a kernel did not compile. The reason is printed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = console or Console(highlight=False)
    try:
        devices = _native.devices()
    except RuntimeError as error:
        print(f"warmup: {error}", file=sys.stderr)
        return 1
    if os.environ.get("CUDA_CACHE_DISABLE") == "1":
        print("warmup: CUDA_CACHE_DISABLE=1 disables the cache of the driver, expected 0 or unset", file=sys.stderr)
        return 1
    failed = not devices
    if failed:
        print("warmup: no CUDA GPU", file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    for device in devices:
        if device["error"]:
            print(f"warmup: {device['error']}", file=sys.stderr)
            failed = True
            continue
        index, started = device["index"], time.perf_counter()
        names = selected(_native.kernel_names(index), ops)
        with Progress(*columns, console=console, transient=True) as progress, ThreadPoolExecutor() as pool:
            task = progress.add_task(device["name"], total=len(names))
            jobs = {pool.submit(_native.prepare_kernel, index, name): name for name in names}
            for job in as_completed(jobs):
                if (failure := job.exception()) is not None:
                    print(f"warmup: {jobs[job]}: {failure}", file=sys.stderr)
                    failed = True
                progress.advance(task)
        spent = time.perf_counter() - started
        console.print(f"{device['name']}: {len(names)} kernels ready, {spent:.1f} s, cache in {cache()}", markup=False)
    return int(failed)


def selected(names: list[str], ops: list[str] | None) -> list[str]:
    """Return the kernel names in `names` that belong to the operators `ops`. If `ops` is None, return all of
    them.

    Raise ValueError for an unknown operator.
    """
    if ops is None:
        return names
    entries = {
        op: {entry for kernel in _native.kernel_info() if kernel["op"] == op for entry in kernel["entries"]}
        for op in ops
    }
    for op, found in entries.items():
        if not found:
            known = ", ".join(sorted({kernel["op"] for kernel in _native.kernel_info()}))
            raise ValueError(f"warmup: there are no kernels of {op!r}, expected one of {known}")
    return [name for name in names if any(name in found for found in entries.values())]


def cache() -> str:
    """Return the folder in which the driver caches compiled kernels."""
    return os.environ.get("CUDA_CACHE_PATH", CACHE)


__all__ = ["warmup"]
