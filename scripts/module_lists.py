"""Writes lists of modules into source files. Run `make lists` after you add, rename or remove a file.

- `kernels-gpu/src/ops/mod.rs`: the modules of the kernels, and the table `KERNELS` of each module.
  `cuda_builder` compiles each module separately.
- `host/src/ops/mod.rs`: the modules of the host crate, and the re-export of their public items.
- `tests/kernels/<family>/mod.rs`: the modules of the tests, and the constant `TESTS` of each module.
- `py-bindings/python/oxiwarp/ops/__init__.py`: one import for each module that has public functions.

No macro generates these lists, because rustfmt, rust-analyzer and mypy follow only plain declarations.
`tests/python/tools/test_module_lists.py` fails if a list is out of date.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNELS, HOST, TESTS = Path("kernels-gpu/src/ops"), Path("host/src/ops"), Path("tests/kernels")
PYTHON = Path("py-bindings/python/oxiwarp/ops")
FAMILIES = ("attention", "elementwise", "gemm", "heads", "loss", "norm")
MADE = """// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file."""
IMPORTS = re.compile(r"(?:^from \.\w+ import \*.*\n)+", re.MULTILINE)


def modules(folder: Path, suffix: str = ".rs") -> list[Path]:
    """Return the module files of a folder, sorted by name."""
    return sorted(path for path in folder.glob(f"*{suffix}") if path.stem != "mod" and path.stem[0] != "_")


def kernels(root: Path) -> str:
    """Return the text of `kernels-gpu/src/ops/mod.rs`. A build for the CPU compiles all modules of this file,
    and a build of PTX compiles only one of them."""
    ops = modules(root / KERNELS)
    declared = "".join(f'#[cfg(any(not(unit), unit = "{op.stem}"))]\npub mod {op.stem};\n' for op in ops)
    tables = "".join(f"    {op.stem}::KERNELS,\n" for op in ops)
    return f"""//! The entry points of the kernels. Each op has one file. The builder compiles each file to PTX
//! separately, with `--cfg unit="<op>"`.
{MADE}
{declared}
/// The kernels of each op.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) static KERNELS: &[&[cuda_std::launch::Entry]] = &[
{tables}];
"""


def host(root: Path) -> str:
    """Return the text of `host/src/ops/mod.rs`, which declares the modules and re-exports their public items."""
    ops = [path.stem for path in modules(root / HOST)]
    public = [
        op
        for op in ops
        if re.search(r"^\s*pub (?:fn|struct|enum|trait)\b", (root / HOST / f"{op}.rs").read_text(), re.M)
    ]
    return f"""//! The host functions of the ops. Each op has one file, which checks the arguments, chooses the launch
//! configuration and launches the kernel.
{MADE}
{"".join(f"mod {op};" + chr(10) for op in ops)}
{"".join(f"pub use {op}::*;" + chr(10) for op in public)}"""


def tests(root: Path, family: str) -> str:
    """Return the text of `tests/kernels/<family>/mod.rs`. Its first line, the module documentation, stays as it is."""
    files = modules(root / TESTS / family)
    title = (root / TESTS / family / "mod.rs").read_text().split("\n")[0]
    with_tests = [path.stem for path in files if re.search(r"^pub const TESTS\b", path.read_text(), re.M)]
    return f"""{title}
{MADE}
{"".join(f"pub(crate) mod {path.stem};" + chr(10) for path in files)}
use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
{"".join(f"    {name}::TESTS,{chr(10)}" for name in with_tests)}];
"""


def has_functions(path: Path) -> bool:
    """Return whether a Python module defines a function whose name is in its `__all__`."""
    body = ast.parse(path.read_text()).body
    named = [
        node.value for node in body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    public = {name for value in named for name in ast.literal_eval(value)}
    return any(isinstance(node, ast.FunctionDef) and node.name in public for node in body)


def python(root: Path) -> str:
    """Return the text of `ops/__init__.py` with updated imports."""
    imported = [path.stem for path in modules(root / PYTHON, ".py") if has_functions(path)]
    lines = "".join(f"from .{name} import *  # noqa: F403\n" for name in imported)
    return IMPORTS.sub(lines, (root / PYTHON / "__init__.py").read_text(), count=1)


def lists(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of every list and its correct text."""
    yield root / KERNELS / "mod.rs", kernels(root)
    yield root / HOST / "mod.rs", host(root)
    for family in FAMILIES:
        yield root / TESTS / family / "mod.rs", tests(root, family)
    yield root / PYTHON / "__init__.py", python(root)


def main() -> None:
    """Write every module list that is out of date, and print the path of each written file."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in lists(ROOT):
        if path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
