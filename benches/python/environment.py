"""Collects the facts about a measurement: GPU, driver, versions, commit, command line."""

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("OXIWARP_ARCH", "OXIWARP_OVERLAP")
PACKAGES = ("oxiwarp", "torch", "triton", "diffusers", "transformers", "liger-kernel", "quack-kernels")


def environment() -> dict[str, Any]:
    """Return the facts about this run: GPU (or "CPU executor"), versions, commit and command line."""
    import torch

    versions = {package: _version(package) for package in PACKAGES}
    facts: dict[str, Any] = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "gpu": gpu.name,
            "compute_capability": f"{gpu.major}.{gpu.minor}",
            "multiprocessors": gpu.multi_processor_count,
            "l2_bytes": gpu.L2_cache_size,
            "driver": _driver(),
            "cuda": torch.version.cuda,
        }
    else:
        facts["gpu"] = "CPU executor"
    return {
        **facts,
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
        "command": _command(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
    }


def title_of(facts: dict[str, Any]) -> str:
    """Return a title for headings and plots."""
    driver = f", driver {facts['driver']}" if "driver" in facts else ""
    return f"{facts['gpu']}{driver}, torch {facts['versions']['torch']}, commit {facts['commit'][:12]}"


def results_folder(facts: dict[str, Any]) -> Path:
    """Return the default folder for results: `out/<gpu>/<date>` of the checkout."""
    name = re.sub(r"\W+", "-", facts["gpu"].lower())
    return ROOT / "out" / name / facts["date"][:10]


def begin(out: Path | None) -> tuple[dict[str, Any], Path]:
    """Print the GPU, versions and commit, and create the results folder. Return the facts of `environment`
    and the folder."""
    facts = environment()
    folder = out or results_folder(facts)
    folder.mkdir(parents=True, exist_ok=True)
    print(title_of(facts), flush=True)
    return facts, folder


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    """Return the commit in the environment variable OXIWARP_COMMIT, or the commit of the checkout."""
    if named := os.environ.get("OXIWARP_COMMIT"):
        return named
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return _first_line(git)


def _driver() -> str:
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _first_line(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _command() -> str:
    """Return the command line of the program. Omit the option `--out`, because it contains a path on this machine."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if word != "--out" or next(words, None) is None]
    program = os.path.relpath(sys.argv[0], ROOT)
    return shlex.join([program, *(word for word in kept if not word.startswith("--out="))])
