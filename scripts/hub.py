"""`make hub`: the wheel as a kernel repository of Hugging Face Kernels, in dist/hub.

    dist/hub/build/torch-cuda/metadata.json
                              __init__.py, layers.py, ...   py-bindings/hub
                              _oxiwarp/                     the package, from the wheel

`get_local_kernel("dist/hub")` loads it. Its operators have a namespace of their own in `torch.ops`, so that it lives
beside an installed oxiwarp and beside another version of itself.
"""

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HUB, BUILD = ROOT / "dist" / "hub", ROOT / "dist" / "hub" / "build" / "torch-cuda"
PYTHON_ONLY = ("demo.py", "picture.py", "doctor.py", "__main__.py", "bench/", "py.typed", "_native.pyi")


def main() -> int:
    wheels = sorted((ROOT / "dist").glob("oxiwarp-*.whl"))
    if len(wheels) != 1:
        print(f"hub: expected one dist/oxiwarp-*.whl, found {len(wheels)}: run make wheel", file=sys.stderr)
        return 1
    shutil.rmtree(HUB, ignore_errors=True)
    shutil.copytree(ROOT / "py-bindings" / "hub", BUILD, ignore=shutil.ignore_patterns("__pycache__"))
    unpack(wheels[0])
    digests = {str(path.relative_to(BUILD)): digest(path) for path in sorted(BUILD.rglob("*")) if path.is_file()}
    namespace = f"_oxiwarp_{hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]}"
    (BUILD / "_oxiwarp" / "_namespace.py").write_text(
        f'"""The namespace of this build\'s operators in `torch.ops`."""\n\nNAMESPACE = "{namespace}"\n'
    )
    (BUILD / "metadata.json").write_text(json.dumps(metadata(wheels[0], namespace), indent=2) + "\n")
    print(f"{HUB.relative_to(ROOT)}: {sum(1 for path in BUILD.rglob('*') if path.is_file())} files, ops in {namespace}")
    return 0


def unpack(wheel: Path) -> None:
    """The package without what only a command line needs; Kernels forbids to import more than torch."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            inner = name.removeprefix("oxiwarp/")
            if name.startswith("oxiwarp/") and not inner.startswith(PYTHON_ONLY):
                target = BUILD / "_oxiwarp" / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metadata(wheel: Path, namespace: str) -> dict[str, object]:
    """What Kernels reads before it loads the build."""
    return {
        "id": namespace,
        "name": "oxiwarp",
        "version": 1,
        "license": "MIT OR Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ["7.5+PTX", "8.0+PTX", "9.0+PTX"]},
        "source": {"wheel": wheel.name},
    }


if __name__ == "__main__":
    sys.exit(main())
