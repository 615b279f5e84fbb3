"""Tests of the dependencies inside each Rust crate: there is no dependency cycle of folders, and only one
(permitted) cycle of files."""

import importlib.util

import pytest
from checkout import ROOT

SCRIPT = ROOT / "scripts" / "rust_modules.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the bundle has no Rust sources")

# The files of the only permitted dependency cycle, which form the scheduler of the CPU executor. The module
# documentation of these files gives the reason for the cycle.
SCHEDULER = [
    f"cpu/{name}.rs"
    for name in (
        *("block", "bulk", "cluster", "copies", "matrix", "mbarrier", "multiplication"),
        *("named", "operands", "race", "registers", "tma", "warp", "wgmma"),
    )
]


def script():
    spec = importlib.util.spec_from_file_location("rust_modules", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rust_modules = script() if SCRIPT.exists() else None
CRATES = list(rust_modules.CRATES) if rust_modules else []


@pytest.mark.parametrize("crate", CRATES)
def test_folders_depend_one_way(crate):
    assert rust_modules.cycles(rust_modules.folder_graph(rust_modules.dependencies(crate))) == []


@pytest.mark.parametrize("crate", CRATES)
def test_files_have_no_other_cycle(crate):
    cycles = rust_modules.cycles(rust_modules.dependencies(crate))
    assert cycles == ([SCHEDULER] if crate == "cuda-std" else [])


def test_the_root_of_the_kernels_has_one_file():
    assert [path.name for path in (ROOT / "kernels-gpu" / "src").glob("*.rs")] == ["lib.rs"]


@pytest.fixture
def crate(tmp_path):
    """Return a function that writes a small Rust crate into a folder, and returns the dependencies of the
    crate's files.

    In this crate, folder `high` refers to folder `low` by every kind of path that the script recognises.
    Keyword arguments of the function replace the contents of files.
    """

    def write(**changed):
        files = {
            "lib.rs": "mod high;\nmod low;\npub use low::item::Item;\n",
            "low/mod.rs": "pub mod item;\npub mod other;\npub use other::renamed as Other;\n",
            "low/item.rs": "pub struct Item;\n",
            "low/other.rs": "pub struct renamed;\n",
            "high/mod.rs": "mod by_path;\nmod by_root;\nmod by_use;\n",
            "high/by_path.rs": "fn f() { crate::low::item::g(); }\n",
            "high/by_root.rs": "use crate::Item;\n",
            "high/by_use.rs": "use crate::low::{item::{self}, Other};\nfn f() { item::g() }\n",
        } | changed
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        return rust_modules.Crate(tmp_path / "lib.rs").dependencies()

    return write


def test_dependencies(crate):
    files = crate()
    assert files["high/by_path.rs"] == files["high/by_root.rs"] == {"low/item.rs"}
    assert files["high/by_use.rs"] == {"low/item.rs", "low/other.rs"}
    assert files["low/mod.rs"] == {"low/other.rs"} and files["high/mod.rs"] == set()
    assert rust_modules.folder_graph(files) == {"lib.rs": {"low"}, "high": {"low"}, "low": set()}
    assert rust_modules.cycles(files) == []


@pytest.mark.parametrize(
    ("text", "is_cycle"),
    [
        ("use crate::high::by_use::f;\n", True),
        ("use super::super::high::{by_use::*};\n", True),
        ("fn f() -> crate::high::by_use::T { }\n", True),
        ("macro_rules! m { () => { $crate::high::by_use::f() } }\n", True),
        ('// use crate::high::by_use::f;\nconst A: &str = "crate::high::by_use::f";\n', False),
        ('const A: &str = r#"" crate::high::by_use::f"#; const B: char = \'"\';\n', False),
        ("mod tests {\n    use crate::high::by_use::f;\n    fn t() { crate::high::by_use::f() }\n}\n", False),
    ],
)
def test_a_cycle_is_found(crate, text, is_cycle):
    files = crate(**{"low/item.rs": text})
    cycle = ["high/by_use.rs", "low/item.rs"]
    assert rust_modules.cycles(files) == ([cycle] if is_cycle else [])
    assert rust_modules.cycles(rust_modules.folder_graph(files)) == ([["high", "low"]] if is_cycle else [])


def test_a_file_for_each_backend(tmp_path):
    """A crate may have one folder per backend (PTX, CPU) for its module `arch`. In a source file of a backend,
    `crate::arch` means this backend.

    In all other files, a use of `crate::arch` is a dependency on every backend.
    """
    for path, text in {
        "lib.rs": '#[cfg_attr(a, path = "arch/a/mod.rs")]\n#[cfg_attr(b, path = "arch/b/mod.rs")]\nmod arch;\nmod c;\n',
        "arch/a/mod.rs": "mod part;\n",
        "arch/a/part.rs": "use crate::arch::f;\n",
        "arch/b/mod.rs": "",
        "c.rs": "use crate::arch::f;\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    files = rust_modules.Crate(tmp_path / "lib.rs").dependencies()
    assert files["arch/a/part.rs"] == {"arch/a/mod.rs"}
    assert files["c.rs"] == {"arch/a/mod.rs", "arch/b/mod.rs"}
