"""Prints which versions of a library the fusions support: `python scripts/known_versions.py diffusers 0.40.0 0.42.1`.

A fusion replaces functions of the library. It supports only sources whose fingerprints (hashes) it lists. The
script downloads the wheels, reads their sources without importing them, and compares the fingerprints. If a
version is not supported, the script prints the first function that differs, with its fingerprint. Read this
function before you add the fingerprint to the fusion.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

from oxiwarp.patching.fusions import FUSIONS, fingerprint_of


def functions(wheel: Path, package: str) -> dict[str, dict[str, str]]:
    """Return the sources of all functions and methods in a wheel's `models` folder, by module and by name."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{package}/models/") and name.endswith(".py") and "/modular_" not in name:
                text = archive.read(name).decode()
                found[name.removesuffix(".py").replace("/", ".")] = dict(members(text))
    return found


def members(text: str):
    """Yield the name and the source of every function and method of a module. The source includes decorators."""
    lines = text.splitlines(keepends=True)

    def source(node):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return "".join(lines[first - 1 : node.end_lineno])

    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, source(node)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                yield f"{node.name}.{inner.name}", source(inner)


def difference(fusion, module: str, cls: str, sources: dict[str, dict[str, str]], package: str) -> str | None:
    """Return the first function whose fingerprint the fusion does not list, with this fingerprint, or None."""
    for function, known in fusion.sources.items():
        owner, colon, name = function.rpartition(":")
        if owner and not owner.startswith(package):
            continue
        found = sources.get(owner or module, {}).get(name if colon else f"{cls}.{name}")
        mark = "missing" if found is None else fingerprint_of(found)
        if mark not in known:
            return f"{function} is {mark}"
    return None


def report(package: str, version: str, sources: dict[str, dict[str, str]]) -> None:
    """Print one line for each class that a fusion supports."""
    print(f"\n{package} {version}")
    for module, own in sources.items():
        for cls in sorted({name.split(".")[0] for name in own if "." in name}):
            named = [f for f in FUSIONS.values() if any(fnmatchcase(f"{module}.{cls}", p) for p in f.classes)]
            for fusion in (f for f in named if f"{cls}.{f.method}" in own):
                why = difference(fusion, module, cls, sources, package)
                if why is None or len(named) == 1:
                    print(f"  {cls:36} {fusion.name:24} {why or 'known'}")


def main() -> None:
    """Download the wheels and print a report for each version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("versions", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for version in options.versions:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", folder, f"{options.package}=={version}"], check=True)
            wheel = next(Path(folder).glob(f"{options.package}-{version}-*.whl"))
            report(options.package, version, functions(wheel, options.package))


if __name__ == "__main__":
    main()
