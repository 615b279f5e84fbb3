"""Finds missing files and entries of ops (host code, tests, schema, docs) in a source tree, without a build.

An op of the kernels (a unit) is a file of `kernels-gpu/src/ops`. An op of Python is a module of
`py-bindings/python/oxiwarp/ops`.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

UNITS, HOST = Path("kernels-gpu/src/ops"), Path("host/src/ops")
KERNEL_TESTS, BINDING = Path("tests/kernels"), Path("py-bindings/src/ops.rs")
PYTHON, PYTHON_TESTS = Path("py-bindings/python/oxiwarp/ops"), Path("tests/python/ops")
BENCHES, PAGE = Path("benches/python"), Path("docs/reference/operators.md")
CASES = Path("benches/src/cases/ops.rs")


def says(text: str, name: str) -> bool:
    """Return whether the name occurs as a word in the text."""
    return name in words(text)


@functools.cache
def words(text: str) -> frozenset[str]:
    """Return the words of a text. The words are cached, because most texts are the same in each call of
    `missing`."""
    return frozenset(re.findall(r"\w+", text))


def texts(folder: Path, suffix: str) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob(f"*{suffix}"))}


def schemas(text: str) -> list[str]:
    """Return the names of the operators whose schemas a module defines. A name may be a constant of the module."""
    constants = dict(re.findall(r'^([A-Z]+) = "(\w+)"', text, re.MULTILINE))
    names = re.findall(r'\bdefine\(\s*f?"(\w+|\{[A-Z]+\})\(', text)
    return [constants[name.strip("{}")] if name[0] == "{" else name for name in names]


def public(text: str) -> list[str]:
    """Return `__all__` of a module."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def missing(root: Path) -> list[str]:
    """Return one line per missing part. The line names the op and the missing part."""
    return [*of_kernels(root), *of_operators(root), *of_functions(root)]


def of_kernels(root: Path) -> Iterator[str]:
    """Yield the missing parts of kernel units: host code, tests and benchmarks in Rust.

    A kernel unit is a file in `kernels-gpu/src/ops`. The test file `test_module_lists.py` checks lists of all
    units, so this function does not check them.
    """
    units = sorted(path.stem for path in (root / UNITS).glob("*.rs") if path.stem != "mod")
    tests, host = texts(root / KERNEL_TESTS, ".rs"), texts(root / HOST, ".rs")
    tested = {path: text for path, text in tests.items() if path.stem not in ("main", "mod")}
    cases = (root / CASES).read_text()
    for path in host:
        # An op that has only kernels for Hopper may divide them into several units.
        only_hopper = any(unit.startswith(f"{path.stem}_") and unit.endswith("_hopper") for unit in units)
        if path.stem not in (*units, "mod") and not only_hopper:
            yield f"{path.stem}: {UNITS}/{path.stem}.rs"
    for unit in units:
        launched = unit.endswith("_hopper") and any(says(text, unit) for text in host.values())
        if root / HOST / f"{unit}.rs" not in host and not launched:
            yield f"{unit}: {HOST}/{unit}.rs"
        # The file of a Hopper kernel needs no separate test. The tests of an op also run its Hopper kernel.
        if unit.endswith("_hopper"):
            continue
        if not any(says(text, unit) for text in tested.values()):
            yield f"{unit}: a test in {KERNEL_TESTS}"
        if not says(cases, unit):
            yield f"{unit}: its cases in {CASES}"


def of_operators(root: Path) -> Iterator[str]:
    """Yield the missing parts of torch operators.

    The parts are a schema in Python, and an entry in the macro call `operators!` of the Rust binding.
    """
    table = re.search(r"^operators! \{\n(.*?)^\}", (root / BINDING).read_text(), re.MULTILINE | re.DOTALL)[1]
    rows = re.findall(r"\w+", "".join(re.findall(r"^    ([\w, ]+)=>", table, re.MULTILINE)))
    defined = [name for text in texts(root / PYTHON, ".py").values() for name in schemas(text)]
    for name in sorted(set(defined) - set(rows)):
        yield f"{name}: its row in {BINDING}"
    for name in sorted(set(rows) - set(defined)):
        yield f"{name}: its schema in {PYTHON}"
    for unit in sorted(path.stem for path in (root / UNITS).glob("*.rs")):
        # Some kernel units (source files of ops) need no torch operator of the same name, because another
        # operator launches their kernels.
        serves = (
            unit == "mod"
            or unit.endswith(("_hopper", "_positions"))
            or (unit not in rows and f"oxiwarp::{unit}," in table)
        )
        if not serves and unit not in {*defined, *rows}:
            yield f"{unit}: an operator of this name, in {PYTHON} and {BINDING}"


def of_functions(root: Path) -> Iterator[str]:
    """Yield missing parts of public functions: documentation, tests and benchmarks."""
    # A function also counts as tested if a file in `support` names it. The file `op_info.py` is ignored,
    # because it names all functions.
    support = texts(root / PYTHON_TESTS.parent / "support", ".py")
    beside = [text for path, text in support.items() if path.stem != "op_info"]
    tests = "".join([*texts(root / PYTHON_TESTS, ".py").values(), *beside])
    benches = "".join(texts(root / BENCHES / "ops", ".py").values())
    pages = {name: (root / name).read_text() for name in ("README.md", "CHANGELOG.md")}
    page = (root / PAGE).read_text()
    for path in sorted((root / PYTHON).glob("[a-z]*.py")):
        text, op = path.read_text(), path.stem
        names = public(text)
        functions = [name for name in re.findall(r"^def ([a-z]\w*)\(", text, re.MULTILINE) if name in names]
        if not op.endswith("_backward") and not functions:
            yield f"{op}: a public function in its __all__"
        for name in functions:
            if not says(tests, name):
                yield f"{name}: a test in {PYTHON_TESTS}"
            if f'"{name}"' not in benches and not (root / BENCHES / f"{name}.py").exists():
                yield f"{name}: a form in {BENCHES}/ops"
            if f"\n| `{name}(" not in page:
                yield f"{name}: its line in {PAGE} (python scripts/operators.py)"
        for title, content in pages.items():
            if functions and not any(says(content, name) for name in functions):
                yield f"{op}: a mention in {title}"


__all__ = ["missing"]
