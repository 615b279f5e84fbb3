"""Checks wheels before a release: `python scripts/check_wheel.py dist/*.whl`.

The script checks the following, and exits with 1 if a check fails:

- the size of the wheel
- the shared libraries and the glibc version that the extension module needs (auditwheel)
- the architectures for which the wheel has kernels, if the wheel is for this machine's processor
- Python's stable ABI (abi3audit)
- the metadata (twine)
- the files (check-wheel-contents)
"""

import argparse
import importlib.util
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 40 * 2**20
GLIBC = 28
"""The wheel must run with glibc 2.28 and newer, because the Hugging Face Hub requires this of kernels."""
CONSISTENT = re.compile(r'platform tag: "manylinux_2_(\d+)_')
NEEDED = re.compile(r"(libc|libgcc_s|libpthread|libdl|libm|librt|ld-linux-\w+|ld-linux-x86-64)\.so\.\d")
"""Libraries that every Linux system with this glibc has. torch and CUDA are not in the list: the extension
module opens them at run time."""

ARCHES = {"sm_75", "sm_80", "sm_90", "sm_90a"}


def problems(wheel: Path) -> Iterator[str]:
    """Yield one message for each fault of a wheel."""
    if wheel.stat().st_size > MAX_BYTES:
        yield f"{wheel.stat().st_size / 2**20:.1f} MiB, expected at most {MAX_BYTES / 2**20:.0f}"
    if f"-manylinux_2_{GLIBC}_" not in wheel.name:
        yield f"the name has no manylinux_2_{GLIBC}"
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        if len(modules) != 1:
            yield f"{len(modules)} shared objects, expected one"
        for name in modules:
            module = Path(archive.extract(name, folder))
            yield from problems_of_module(module)
            if platform.machine() in wheel.name:
                yield from problems_of_kernels(module)
    yield from failures("twine", "check", "--strict", str(wheel))
    yield from problems_of_glibc(wheel)
    yield from failures("abi3audit", "--strict", str(wheel))
    yield from failures("check_wheel_contents", str(wheel))


def problems_of_module(module: Path) -> Iterator[str]:
    """Yield one message for each shared library that the extension module needs and that a Linux system may
    lack."""
    from auditwheel.elfutils import elf_read_dt_needed  # type: ignore[import-untyped,unused-ignore]

    yield from (f"needs {name}" for name in elf_read_dt_needed(module) if not NEEDED.fullmatch(name))


def problems_of_kernels(module: Path) -> Iterator[str]:
    """Yield one message for each architecture for which the extension module has no kernels."""
    spec = importlib.util.spec_from_file_location("_native", module)
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    yield from (f"has no kernels for {arch}" for arch in sorted(ARCHES - {row["arch"] for row in native.kernel_info()}))


def problems_of_glibc(wheel: Path) -> Iterator[str]:
    """Yield a message if the wheel needs a glibc that is newer than `GLIBC` permits.

    auditwheel finds the needed version in the symbol versions of the extension module.
    """
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    found = CONSISTENT.search(" ".join(done.stdout.split()))
    if done.returncode or found is None:
        yield f"auditwheel: {(done.stdout + done.stderr).strip()}"
    elif int(found[1]) > GLIBC:
        yield f"needs glibc 2.{found[1]}, expected 2.{GLIBC} at most"


def failures(program: str, *arguments: str) -> Iterator[str]:
    """Run a Python program that checks wheels, and yield its output if its exit code is not 0."""
    done = subprocess.run([sys.executable, "-m", program, *arguments], capture_output=True, text=True)
    if done.returncode:
        yield f"{program}: {(done.stdout + done.stderr).strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    failed = False
    for wheel in parser.parse_args().wheels:
        found = list(problems(wheel))
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, {'; '.join(found) if found else 'all checks passed'}")
        failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
