"""Prints what `patch` replaces in library versions: `python scripts/versions.py diffusers 0.36.0 0.40.0`.

The script downloads the wheel of each version, unpacks it to a temporary folder, and imports its models in a
process with this folder first on `sys.path`. It calls no model. For each class it prints:

- The chains (sequences of operations for one kernel) that `patch` rewrites in the class, with their lines and
  operators. If `patch` cannot rewrite the class's method, the reason.
- The fusion of the class: the method with which oxiwarp replaces a method of the class. If the fusion does
  not apply, the script prints the first function whose source hash (fingerprint) is unknown. Read this
  function before you add its fingerprint to the fusion.

`loose_chains.py` finds chains independently of `patch`. The totals say how many of these chains a rewritten method or a
fusion computes. A chain whose norm module `patch` may replace is not counted: without a model, the script does not know
the class of this module.
"""

import argparse
import importlib
import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
import tempfile
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from generated import table

NO_MODELS = ("auto", "deprecated", "modular_", "flax", "onnx")
"""Strings in the paths of files that contain no models for torch."""


def pip(*arguments: str) -> None:
    """Download wheels, without the packages that they require."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--only-binary", ":all:", *arguments], check=True)


def unpack(package: str, requirement: str, folder: Path) -> None:
    """Download a version of a library, and unpack it to `folder`.

    For transformers, also download each required package whose installed version does not fit. diffusers uses
    the installed packages.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pending, seen = [Requirement(requirement)], set()
    with tempfile.TemporaryDirectory() as wheels:
        while pending:
            wanted = pending.pop()
            seen.add(canonicalize_name(wanted.name))
            for old in Path(wheels).iterdir():
                old.unlink()
            pip("--dest", wheels, f"{wanted.name}{wanted.specifier}")
            (wheel,) = Path(wheels).iterdir()
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
                (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            if package != "transformers":
                return
            for text in importlib.metadata.PathDistribution(folder / Path(path).parent).requires or ():
                needed = Requirement(text)
                known = canonicalize_name(needed.name) in seen or is_installed(needed)
                if not known and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
                    pending.append(needed)


def is_installed(requirement: Any) -> bool:
    """Return whether the installed packages satisfy a requirement."""
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def modules(package: str) -> Iterator[types.ModuleType]:
    """Import and yield the Python modules of a library that define models. Skip modules whose import fails,
    for example because a package is missing."""
    # Replace the library's module `dependency_versions_check` by an empty one. It would raise an error if
    # installed packages have other versions than the library expects.
    checks: Any = types.ModuleType(f"{package}.dependency_versions_check")
    checks.dep_version_check = lambda *arguments: None
    sys.modules[checks.__name__] = checks
    # Hide the optional package `kernels`, because the installed version may not fit the version of the
    # library.
    sys.modules["kernels"] = None  # type: ignore[assignment]
    root = Path(importlib.import_module(package).__file__ or "").parent
    for path in sorted((root / "models").rglob("*.py")):
        name = path.relative_to(root.parent).with_suffix("").as_posix()
        if any(part in name for part in NO_MODELS) or (package == "transformers" and "/modeling_" not in name):
            continue
        try:
            yield importlib.import_module(name.replace("/", "."))
        except Exception as error:
            print(f"  cannot import {name}: {type(error).__name__}: {error}".splitlines()[0])


def classes(module: types.ModuleType) -> Iterator[tuple[type, FunctionType]]:
    """Yield the classes that a module defines, each with the method that `patch` may replace: `forward` or
    `__call__`.

    Classes that inherit this method are skipped.
    """
    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            own = vars(cls).get("forward" if hasattr(cls, "forward") else "__call__")
            if isinstance(own, FunctionType):
                yield cls, own


def describe(cls: type, own: FunctionType, covers: Any) -> list[str]:
    """Return the lines of the report about a class. Record in `covers` what `patch` computes in the method
    `own` of the class."""
    from chain_coverage import Cover, add_rewritten, code_of

    from oxiwarp.patching.fusions import find
    from oxiwarp.patching.fusions.core.source import resolve
    from oxiwarp.patching.rewrite.recipe import found_in

    lines = []
    found = find(cls)
    if found is not None:
        fusion, known = found
        why = fusion.difference(cls, known)
        lines.append(f"fusion {fusion.name}: {why or fusion.ops}")
        if why is None and fusion.kernels:
            for name in (fusion.method, *fusion.sources):
                if isinstance(function := resolve(name, cls, known), FunctionType):
                    covers.functions.setdefault(code_of(function), []).append(Cover("fusion", None))
    try:
        chains = found_in(own)
    except Exception as error:  # Such an error is a defect of the rewriter.
        chains = f"{type(error).__name__}: {error}"
    if isinstance(chains, str):
        return [*lines, f"not rewritten: {chains}"]
    if chains:
        add_rewritten(covers, own, [Cover("rewritten", None)] * len(chains))
    return [*lines, *(f"line {chain.line}: {', '.join(chain.ops)}: {chain.source}" for chain in chains)]


def scan(package: str, quiet: bool) -> dict[str, Any]:
    """Print what `patch` replaces in the classes of a library, and return the totals."""
    import loose_chains
    from chain_coverage import Covers, Trace, found_for

    warnings.simplefilter("ignore")
    covers, files, totals = Covers(), {}, Counter()
    for module in modules(package):
        lines = []
        for cls, own in classes(module):
            made = describe(cls, own, covers)
            totals["classes"] += bool(made)
            lines += [f"  {cls.__name__}", *(f"    {line[:200]}" for line in made)] if made else []
        files[module.__file__] = module.__name__
        if lines and not quiet:
            print(module.__name__, *lines, sep="\n")
    loose: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    callers = callers_of(covers)
    for path in files:
        for first, function in loose_chains.functions_of(path, path).items():
            for chain in loose_chains.loose_in(path, path, first):
                found = found_for(chain, path, first, None, Trace(), covers) or callers.get((path, first))
                loose[chain.kind] += 1
                covered[chain.kind] += bool(found)
                if not found and not quiet:
                    print(f"missed: {files[path]}:{chain.line}: {function.owner}: {chain.kind}: {chain.source}")
    totals["rewritten chains"] = sum(len(regions) for regions in covers.regions.values())
    library: Any = sys.modules[package]
    return {
        "package": package,
        "version": library.__version__,
        "classes": totals["classes"],
        "rewritten chains": totals["rewritten chains"],
        "folder": os.path.dirname(inspect.getfile(library)),
        "loose": loose,
        "covered": covered,
    }


def callers_of(covers: Any) -> dict[Any, list[Any]]:
    """Return the functions that a rewritten chain includes, with the `Cover` objects of their chains.

    A `Cover` says how `patch` computes a chain.
    """
    callers: dict[Any, list[Any]] = {}
    for regions in covers.regions.values():
        for region in regions:
            for function in region.functions:
                callers.setdefault(function, []).append(region.cover)
    return callers


def rows(results: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """Yield one row for each version in the table of totals."""
    for result in results:
        loose, covered = Counter(result["loose"]), Counter(result["covered"])
        whole = loose.total()
        kinds = ", ".join(f"{kind} {covered[kind]}/{loose[kind]}" for kind in sorted(loose))
        yield [
            f"{result['package']} {result['version']}",
            result["classes"],
            result["rewritten chains"],
            f"{covered.total()} of {whole} ({100 * covered.total() / max(whole, 1):.1f} %)",
            kinds,
        ]


def main() -> None:
    """Download the wheels, and print a report for each version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=("diffusers", "transformers"))
    parser.add_argument("versions", nargs="*", help="default: the newest")
    parser.add_argument("--totals", action="store_true", help="print only the totals")
    # This option is only for the process that imports the library.
    parser.add_argument("--scan", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scan:
        Path(options.scan).write_text(json.dumps(scan(options.package, options.totals)))
        return
    results = []
    for version in options.versions or [""]:
        with tempfile.TemporaryDirectory() as folder:
            unpack(options.package, f"{options.package}=={version}" if version else options.package, Path(folder))
            path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
            command = [sys.executable, __file__, options.package, "--scan", f"{folder}/result.json"]
            command += ["--totals"] if options.totals else []
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
            result = json.loads(Path(folder, "result.json").read_text())
            assert Path(result["folder"]).is_relative_to(folder), f"{result['folder']} is not the downloaded version"
            results.append(result)
    head = ["version", "classes", "rewritten chains", "loose chains that are fused", "by kind"]
    print("\n".join(table(head, rows(results))))


if __name__ == "__main__":
    main()
