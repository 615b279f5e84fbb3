"""Compare the machine code of two folders of PTX: `python scripts/compare_sass.py <before> <after>`.

Each folder has the layout of `target/ptx/<crate>`: `<arch>/<op>.ptx`. If the PTX text of a file differs
between the folders, ptxas assembles both versions. For each kernel entry, the script compares the SASS
(instructions, encodings, number of registers) and the constant data of the file. It ignores the names of Rust
symbols, because they contain the paths of Rust modules. An entry with the same code and a different name is
"renamed".

The script prints a line for each entry that changed, was added, removed or renamed. Then it prints a summary
for each architecture. The exit code is 1 if an entry changed, was added or was removed. The script needs
ptxas, cuobjdump and nvdisasm from py-bindings/requirements-ptx.txt.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python" / "support"))
from ptx_checks import find_tool

FUNCTION = re.compile(r"^\s*Function : (\S+)$", re.M)
ADDRESS = re.compile(r"/\*[0-9a-f]{4,}\*/")
# Matches the mangled name of a Rust symbol, which contains the path of the Rust module and a hash of the
# crate.
SYMBOL = re.compile(r"\b_(?:ZN|R)[\w$.]+")
# Matches a declaration of constant or global data in a PTX file. The script reads this data from the PTX,
# because cuobjdump does not print it.
DATA = re.compile(r"^\s*(?:\.visible\s+)?\.(?:global|const)\s[^;]*;", re.M)
REGISTERS = re.compile(r"Function properties for (\w+)\s.*?Used (\d+) registers", re.S)


class Code(NamedTuple):
    """The machine code of a kernel entry: a hash of its SASS and constant data, and the numbers of
    instructions and registers."""

    digest: str
    instructions: int
    registers: int


def normalised(text: str) -> str:
    """Replace the names of Rust symbols by numbers, in the order of their first occurrence. Remove the debug
    lines that name source files."""
    numbers: dict[str, str] = {}
    text = re.sub(r"^\s*\.(?:file|loc)\s.*\n", "", text, flags=re.M)
    return SYMBOL.sub(lambda match: numbers.setdefault(match[0], f"symbol_{len(numbers)}"), text)


def assemble(source: Path) -> dict[str, Code]:
    """Assemble `<arch>/<op>.ptx` for the architecture `<arch>`, and return the machine code of each kernel entry."""
    ptxas, cuobjdump, nvdisasm = (find_tool(name) for name in ("ptxas", "cuobjdump", "nvdisasm"))
    if not ptxas or not cuobjdump or not nvdisasm:
        raise SystemExit(
            "compare_sass: ptxas, cuobjdump or nvdisasm is missing: install py-bindings/requirements-ptx.txt"
        )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "module.cubin"
        command = [ptxas, "-v", f"-arch={source.parent.name}", source, "-o", cubin]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise SystemExit(f"compare_sass: ptxas refuses {source}:\n{run.stderr}")
        path = {"PATH": f"{nvdisasm.parent}:/usr/bin:/bin"}  # cuobjdump looks for nvdisasm on the PATH
        dump = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True, env=path).stdout
    data = sorted(normalised(match[0]) for match in DATA.finditer(source.read_text()))
    registers = {name: int(count) for name, count in REGISTERS.findall(run.stderr)}
    _, *functions = FUNCTION.split(dump)
    codes = {}
    for name, body in zip(functions[::2], functions[1::2], strict=True):
        # cuobjdump prints two lines per 16-byte instruction. The first has its address, its text and the
        # first half of its encoding. The second has the other half. The number of spaces in a line depends on
        # the longest line of the file, so runs of spaces become one space.
        lines = [" ".join(ADDRESS.sub("", line).split()) for line in normalised(body).splitlines() if "/* 0x" in line]
        digest = hashlib.sha256("\n".join(data + lines).encode()).hexdigest()
        codes[name] = Code(digest, sum(";" in line for line in lines), registers.get(name, 0))
    return codes


class Comparison:
    """Differences between the entries of two versions of a file."""

    def __init__(self, before: dict[str, Code], after: dict[str, Code]) -> None:
        self.same = [name for name in before if before[name] == after.get(name)]
        self.changed = [name for name in before if name in after and before[name] != after[name]]
        removed = [name for name in before if name not in after]
        added = [name for name in after if name not in before]
        self.renamed: list[tuple[str, str]] = []
        for old in list(removed):
            new = next((name for name in added if after[name] == before[old]), None)
            if new is not None:
                self.renamed.append((old, new))
                removed.remove(old)
                added.remove(new)
        self.removed, self.added = removed, added
        self.before, self.after = before, after

    def lines(self) -> list[str]:
        """Return a line for each entry that differs."""
        figures = "{0.instructions} instructions, {0.registers} registers".format
        return [
            *(f"changed  {name}: {figures(self.before[name])} -> {figures(self.after[name])}" for name in self.changed),
            *(f"renamed  {old} -> {new}" for old, new in self.renamed),
            *(f"removed  {name}" for name in self.removed),
            *(f"added    {name}" for name in self.added),
        ]


def compare(before: Path, after: Path) -> Comparison | None:
    """Compare two PTX files. If their texts differ only in the names of Rust symbols, return None without
    assembling them."""
    if before.exists() and after.exists() and normalised(before.read_text()) == normalised(after.read_text()):
        return None
    codes = [assemble(path) if path.exists() else {} for path in (before, after)]
    return Comparison(*codes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--arch", action="append", help="only this architecture; may be repeated")
    options = parser.parse_args()
    files = sorted(
        {path.relative_to(root) for root in (options.before, options.after) for path in root.glob("*/*.ptx")}
    )
    files = [path for path in files if not options.arch or path.parent.name in options.arch]
    if not files:
        raise SystemExit(f"compare_sass: no <arch>/<op>.ptx in {options.before} or {options.after}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: compare(options.before / path, options.after / path), files))
    failed = False
    for arch in sorted({path.parent.name for path in files}):
        counts = dict.fromkeys(("files with the same text", "same", "renamed", "changed", "removed", "added"), 0)
        for path, result in zip(files, results, strict=True):
            if path.parent.name != arch:
                continue
            if result is None:
                counts["files with the same text"] += 1
                continue
            for kind in ("same", "renamed", "changed", "removed", "added"):
                counts[kind] += len(getattr(result, kind))
            failed |= bool(result.changed or result.removed or result.added)
            for line in result.lines():
                print(f"{path}: {line}")
        print(f"{arch}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
