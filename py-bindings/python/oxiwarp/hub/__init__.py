"""Writes a copy of this package as a kernel repository for Hugging Face Kernels:
`python -m oxiwarp hub <folder>`.

    <folder>/README.md, CARD.md                              the repository card, made from card.md
             build.toml                                      name and version, for `kernel-builder upload`
             build/torch-cuda/metadata.json
                              __init__.py, layers.py, ...    copied from repository/
                              _ops.py                        the namespace of the operators
                              oxiwarp/__init__.py            the same names for old versions of Kernels
                              _oxiwarp/                      a copy of the package

`kernels.get_local_kernel(Path(folder))` loads the repository. The operators of each repository version have a
separate namespace in `torch.ops`. Therefore one process can load the repository together with an installed
oxiwarp, or with another version of the repository.
"""

import ast
import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
# These patterns select the files of the package that are copied to the repository: the operators, and the
# modules that they import. The copied files import only torch and the standard library, because Hugging Face
# Kernels allows no other dependency.
TAKEN = ("_[a-z]*.py", "_native.*", "ops", "py.typed")
INIT = """from .ops import *  # noqa: F403
from .ops import _register

_register.register_kernels()
"""
OPS = '''"""The operators of this repository: `ops` is their namespace in `torch.ops`."""

import torch

from . import _oxiwarp  # noqa: F401  registers the operators

ops = torch.ops.{name}


def add_op_namespace_prefix(op_name: str) -> str:
    """Return the name of an operator with its namespace, for functions of `torch.library`."""
    return f"{name}::{{op_name}}"
'''
COMPATIBLE = '''"""The names of the repository, at the path where old versions of Kernels look for them."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

if "{name}" not in sys.modules:
    spec = spec_from_file_location("{name}", Path(__file__).parent.parent / "__init__.py")
    sys.modules["{name}"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["{name}"])
__all__ = sys.modules["{name}"].__all__
globals().update({{each: getattr(sys.modules["{name}"], each) for each in __all__}})
'''
ARCHS = ("7.5+PTX", "8.0+PTX", "9.0+PTX")
VERSION = 1
"""The major version of the repository's interface. The library Kernels loads the branch `v<version>`."""
LICENSE = "Apache-2.0"
"""One of the two licences of oxiwarp. The Hugging Face Hub accepts only one identifier."""


def build(folder: str | Path, repo_id: str = "oxiwarp/oxiwarp") -> Path:
    """Write a kernel repository for Hugging Face Kernels to `folder`. Return the path of its subfolder
    `build/torch-cuda`.

    If this subfolder exists, it is deleted first.

    `repo_id` is the name of the repository on the Hugging Face Hub. The function writes it into the
    repository card and into build.toml.
    """
    target = Path(folder) / "build" / "torch-cuda"
    if target.exists():
        shutil.rmtree(target)
    copy(PACKAGE / "hub" / "repository", target, ("*",))
    copy(PACKAGE, target / "_oxiwarp", TAKEN)
    (target / "_oxiwarp" / "__init__.py").write_text(INIT)
    name = namespace(target)
    (target / "_oxiwarp" / "_namespace.py").write_text(
        f'"""The namespace of this copy\'s operators in `torch.ops`."""\n\nNAMESPACE = "{name}"\n'
    )
    (target / "_ops.py").write_text(OPS.format(name=name))
    (target / "oxiwarp").mkdir()
    (target / "oxiwarp" / "__init__.py").write_text(COMPATIBLE.format(name=name))
    metadata = {
        "id": name,
        "name": "oxiwarp",
        "version": VERSION,
        "license": LICENSE,
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ARCHS},
        "digest": {"algorithm": "sha256", "files": digests(target)},
    }
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    card = (PACKAGE / "hub" / "card.md").read_text()
    functions, layers = (
        listed(target / file, how) for file, how in (("__init__.py", exported), ("layers.py", classes))
    )
    for old, new in {"{repo_id}": repo_id, "{functions}": functions, "{layers}": layers}.items():
        card = card.replace(old, new)
    for file in ("README.md", "CARD.md"):
        (Path(folder) / file).write_text(card)
    (Path(folder) / "build.toml").write_text(
        f'[general]\nname = "oxiwarp"\nversion = {VERSION}\nlicense = "{LICENSE}"\nbackends = ["cuda"]\n\n'
        f'[general.hub]\nrepo-id = "{repo_id}"\n\n[torch-noarch]\n'
    )
    return target


def digests(folder: Path) -> dict[str, str]:
    """Return a dict that maps the path of each file in `folder` to the SHA-256 of the file in base64. The
    paths are relative to `folder`.
    """
    return {
        path.relative_to(folder).as_posix(): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def listed(path: Path, names: Callable[[ast.Module], Iterator[str]]) -> str:
    """Return a Markdown list of the names that the function `names` finds in the Python file `path`."""
    return "\n".join(f"- `{name}`" for name in sorted(names(ast.parse(path.read_text()))))


def exported(module: ast.Module) -> Iterator[str]:
    """Yield the names of the functions that a parsed Python file lists in `__all__`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            yield from (name for name in ast.literal_eval(node.value) if name not in ("layers", "ops"))


def classes(module: ast.Module) -> Iterator[str]:
    """Yield the names of the layer classes in a parsed Python file.

    The file defines a class by a `class` statement, or by an assignment such as `Silu = _applying(...)`.
    """
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id


def copy(source: Path, target: Path, taken: tuple[str, ...]) -> None:
    """Copy files from `source` to `target`, if the first component of their path in `source` matches a
    pattern in `taken`.

    File permissions are not copied: if the installed package is read-only, the copies must still be writable.
    """
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if path.is_file() and "__pycache__" not in name.parts and any(fnmatchcase(name.parts[0], t) for t in taken):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def namespace(folder: Path) -> str:
    """Return the name of the namespace in `torch.ops` for the operators of a repository.

    The name ends with a hash of all files in `folder`, so each version of the repository has a different
    namespace.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return f"_oxiwarp_{digest.hexdigest()[:12]}"


__all__ = ["build"]
