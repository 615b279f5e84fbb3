"""`python -m oxiwarp hub <folder>`: this package as a kernel repository of Hugging Face Kernels.

    <folder>/build/torch-cuda/metadata.json
                              __init__.py, layers.py, ...   from repository/
                              _oxiwarp/                     a copy of the package

`kernels.get_local_kernel(Path(folder))` loads it. Its operators have a namespace of their own in `torch.ops`, so that
it lives beside an installed oxiwarp and beside another version of itself.
"""

import hashlib
import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
# Of the package: the operators and what they import, which is nothing but torch, as Kernels demands.
TAKEN = ("_[a-z]*.py", "_native.*", "ops", "py.typed")
INIT = """from . import _register
from .ops import *  # noqa: F403

_register.register_kernels()
"""
ARCHS = ("7.5+PTX", "8.0+PTX", "9.0+PTX")


def build(folder: str | Path) -> Path:
    """Write the repository into `folder`, in place of what is there under `build/torch-cuda`. Returns that path."""
    target = Path(folder) / "build" / "torch-cuda"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PACKAGE / "hub" / "repository", target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE, target / "_oxiwarp", ignore=left_out)
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


def left_out(folder: str, names: list[str]) -> set[str]:
    """What is not copied from a folder of the package."""
    if Path(folder) != PACKAGE:
        return {"__pycache__"}
    return {name for name in names if not any(fnmatchcase(name, pattern) for pattern in TAKEN)}


def namespace(folder: Path) -> str:
    """A name that another content does not have."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return f"_oxiwarp_{digest.hexdigest()[:12]}"


__all__ = ["build"]
