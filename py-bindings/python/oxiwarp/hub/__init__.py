"""Writes this package as a kernel repository of Hugging Face Kernels: `python -m oxiwarp hub <folder>`.

    <folder>/build/torch-cuda/metadata.json
                              __init__.py, layers.py, ...   from repository/
                              _oxiwarp/                     a copy of the package

`kernels.get_local_kernel(Path(folder))` loads the repository. Its operators have a separate namespace in
`torch.ops`. So one process can also load an installed oxiwarp, or another version of the repository.
"""

import hashlib
import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
# Files of the package to copy: the operators and the modules that they import. These import only torch,
# because Kernels allows no other dependency.
TAKEN = ("_[a-z]*.py", "_native.*", "ops", "py.typed")
INIT = """from .ops import *  # noqa: F403
from .ops import _register

_register.register_kernels()
"""
ARCHS = ("7.5+PTX", "8.0+PTX", "9.0+PTX")


def build(folder: str | Path) -> Path:
    """Write the repository to `build/torch-cuda` in `folder`, replace an existing one, and return its path."""
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
    metadata = {
        "id": name,
        "name": "oxiwarp",
        "version": 1,
        "license": "MIT OR Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ARCHS},
    }
    (target / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return target


def copy(source: Path, target: Path, taken: tuple[str, ...]) -> None:
    """Copy the files whose first path component matches a pattern in `taken`.

    File modes are not copied, because an installed package may be read-only.
    """
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if path.is_file() and "__pycache__" not in name.parts and any(fnmatchcase(name.parts[0], t) for t in taken):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def namespace(folder: Path) -> str:
    """Return a namespace for `torch.ops` with a hash of the folder's files, so that versions have different names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return f"_oxiwarp_{digest.hexdigest()[:12]}"


__all__ = ["build"]
