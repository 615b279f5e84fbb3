#!/usr/bin/env python3
"""Print the dependencies between the files and folders of each Rust crate, and the cycles among them.

File `a` depends on file `b` if `a` names an item of `b`, in a `use` declaration or in a path. If `a` uses a
re-exported name, it depends on the file that defines the item. The following are not dependencies:

- `mod b;`, because a parent may declare a child without using it.
- Names from another crate, even if this crate re-exports them.
- Names in unit tests: `mod tests` in a file, and files declared with `#[cfg(test)]`.
- Calls of methods, and names from `use other::*`, because the script does not analyse types.

A folder `x` includes its module file, which is `x/mod.rs`, or the file `x.rs` next to the folder. `lib.rs` and
`main.rs` belong to no folder.

The existing tool `cargo modules dependencies --acyclic` is not used. It analyses types, but depends on rust-analyzer,
which takes long to compile. It reads only one of the two backends (PTX and CPU) of the crate cuda-std. It does not
report folders, and has no option to permit certain cycles.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CRATES = {
    "cuda-std": "cuda-std/src/lib.rs",
    "kernels-gpu": "kernels-gpu/src/lib.rs",
    "cuda-builder": "cuda-builder/src/lib.rs",
    "host/driver": "host/driver/src/lib.rs",
    "host/runtime": "host/runtime/src/lib.rs",
    "host": "host/src/lib.rs",
    "py-bindings": "py-bindings/src/lib.rs",
    "tests/kernels": "tests/kernels/main.rs",
}
ROOTS = ("lib.rs", "main.rs")

Module = tuple[str, ...]  # from the root of the crate: ("device", "ptx")
Graph = dict[str, set[str]]

ATTRIBUTES = r"(?P<attributes>(?:#\[(?:[^\[\]]|\[[^\]]*\])*\]\s*)*)"
VISIBILITY = r"(?P<public>pub(?:\s*\([^)]*\))?\s+)?"
MOD = re.compile(ATTRIBUTES + VISIBILITY + r"\bmod\s+(?P<name>\w+)\s*;")
USE = re.compile(ATTRIBUTES + VISIBILITY + r"\buse\s+(?P<tree>[^;]+);")
INLINE = re.compile(r"\bmod\s+(\w+)\s*\{")
PATH = re.compile(r"(?<![\w:.])\$?[a-z_]\w*(?:\s*::\s*\w+)+")
# Matches a comment, a string literal or a character literal of Rust, but not a lifetime such as 'a.
BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|\b[bc]?r(?P<hashes>#*)\".*?\"(?P=hashes)|\"(?:\\.|[^\"\\])*\""
    r"|'(?:\\u\{[^}]*\}|\\x..|\\.|[^\\'\n])'",
    re.S,
)


def masked(text: str) -> str:
    """Replace comments and literals in Rust code by spaces of the same length, so that positions and line
    numbers do not change."""
    return BLANK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def leaves(tree: str) -> Iterator[tuple[list[str], str | None]]:
    """Yield each path in a `use` declaration, such as `a::b` and `a::c` in `a::{b, c}`, with its `as` name or
    None.

    A path may end with `*` or `self`.
    """
    tree, prefix = tree.strip(), []
    while not tree.startswith("{"):
        match = re.match(r"(?:::)?\s*(\$?\w+|\*)\s*(::)?\s*", tree)
        prefix.append(match[1])
        tree = tree[match.end() :]
        if not match[2]:
            alias = re.match(r"as\s+(\w+)", tree)
            yield prefix, alias and alias[1]
            return
    depth, start = 0, 1
    for at, character in enumerate(tree):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0 or depth == 1 and character == ",":
            if part := tree[start:at].strip():
                for path, alias in leaves(part):
                    yield prefix + path, alias
            start = at + 1
        if depth == 0:
            return


@dataclass
class File:
    """A source file of a crate. `path` is relative to the folder of `lib.rs` or `main.rs`."""

    path: str
    module: Module
    text: str
    children: set[str] = field(default_factory=set)

    def __post_init__(self):
        self.mask = masked(self.text)
        self.inline = []  # Start, end and name of each `mod name { ... }` in the file.
        for match in INLINE.finditer(self.mask):
            depth, end = 1, match.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(self.mask[end], 0)
                end += 1
            self.inline.append((match.end(), end, match[1]))

    def inside(self, at: int) -> Module:
        """Return the inline modules that contain position `at`, outermost first."""
        return tuple(name for start, end, name in self.inline if start <= at < end)

    def uses(self) -> Iterator[tuple[re.Match, list[str], str | None]]:
        """Yield each path of each `use` declaration outside of unit tests."""
        for match in USE.finditer(self.mask):
            if "tests" not in self.inside(match.start("tree")):
                for path, alias in leaves(match["tree"]):
                    yield match, path, alias


class Crate:
    """A crate with all of its source files. The constructor starts at the root file and follows `mod`
    declarations."""

    def __init__(self, root: Path):
        self.folder = root.parent
        self.files: dict[str, File] = {}
        # The files of each module. A module has two files if each backend (PTX, CPU) has its own.
        self.modules: dict[Module, list[str]] = defaultdict(list)
        self.foreign: set[Module] = set()  # Names that the crate re-exports from other crates.
        self.add(root.name, ())
        self.defined = dict(self.reexports())

    def add(self, path: str, module: Module, is_parent: bool = True) -> None:
        file = File(path, module, (self.folder / path).read_text())
        self.files[path] = file
        self.modules[module].append(path)
        here = Path(path).parent
        below = here if is_parent else here / Path(path).stem
        for match in MOD.finditer(file.mask):
            name, attributes = match["name"], file.text[match.start("attributes") : match.end("attributes")]
            file.children.add(name)
            if re.search(r"cfg\(test\)", attributes):
                continue
            given = [here / path for path in re.findall(r'path\s*=\s*"([^"]+)"', attributes)]
            found = [path for path in (below / f"{name}.rs", below / name / "mod.rs") if (self.folder / path).exists()]
            for child in given or found:
                self.add(str(child), (*module, name), child.name == "mod.rs" or bool(given))

    def resolve(self, file: File, at: int, path: list[str]) -> Module | None:
        """Return the module path `path`, as written at position `at` of `file`, from the root of the crate.

        Return None if `path` starts with another crate or with a local name.
        """
        first = path[0]
        if first in ("crate", "$crate"):
            return tuple(path[1:])
        if first in ("self", "super"):
            here = file.module + file.inside(at)
            named = [name for name in path if name not in ("self", "super")]
            return (*here[: len(here) - path.count("super")], *named)
        return file.module + tuple(path) if first in file.children else None

    def reexports(self) -> Iterator[tuple[Module, Module]]:
        """Yield each re-exported name and the path that it refers to."""
        for file in self.files.values():
            for match, path, alias in file.uses():
                if match["public"] and path[-1] not in ("*", "self") and not file.inside(match.start("tree")):
                    found = self.resolve(file, match.start("tree"), path)
                    name = file.module + (alias or path[-1],)
                    if found and found != name:
                        yield name, found
                    if found is None:
                        self.foreign.add(name)

    def definition(self, path: Module) -> Module:
        """Return the path at which an item is defined. `path` may be the path of a re-export of the item."""
        for _ in range(8):  # a longer sequence of re-exports would be a cycle
            for end in range(len(path), 0, -1):
                if path[:end] in self.defined and path[:end] not in self.modules:
                    path = self.defined[path[:end]] + path[end:]
                    break
        return path

    def names(self, file: File) -> Iterator[Module]:
        """Yield the path of every item and module of this crate that the code of `file` names."""
        imported, uses = {}, []
        for match, path, alias in file.uses():
            uses.append(range(*match.span()))
            named = path[:-1] if path[-1] in ("self", "*") else path
            found = self.resolve(file, match.start("tree"), named) if named else None
            if found is not None:
                yield found
                if path[-1] != "*" and self.definition(found) in self.modules:
                    imported[alias or named[-1]] = self.definition(found)
        for match in PATH.finditer(file.mask):
            if any(match.start() in use for use in uses) or "tests" in file.inside(match.start()):
                continue
            path = re.split(r"\s*::\s*", match[0])
            found = self.resolve(file, match.start(), path)
            if found is None and path[0] in imported:
                found = imported[path[0]] + tuple(path[1:])
            if found is not None:
                yield found

    def dependencies(self) -> Graph:
        """Return the files that each file depends on."""
        graph: Graph = {path: set() for path in self.files}
        for file in self.files.values():
            for path in map(self.definition, self.names(file)):
                if any(path[:end] in self.foreign for end in range(len(path) + 1)):
                    continue
                module = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in self.modules)
                if module == path and path == file.module[: len(path)]:
                    continue  # The path names an ancestor itself, as in `super::other`.
                common = {target: common_length(file.path, target) for target in self.modules[module]}
                # The named module may have two files, one for each backend (PTX, CPU). A file of one backend
                # depends only on the module's file for the same backend.
                graph[file.path] |= {target for target in common if common[target] == max(common.values())}
            graph[file.path].discard(file.path)
        return graph


def common_length(path: str, other: str) -> int:
    """Return the number of leading folders that two paths have in common."""
    pairs = list(zip(Path(path).parent.parts, Path(other).parent.parts, strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))


def folder_graph(files: Graph) -> Graph:
    """Return the folders that each folder depends on."""
    parents = {str(Path(path).parent) for path in files}

    def folder(path: str) -> str:
        beside = path.removesuffix(".rs")
        return path if path in ROOTS else beside if beside in parents else str(Path(path).parent)

    graph: Graph = defaultdict(set)
    for path, targets in files.items():
        graph[folder(path)] |= {folder(target) for target in targets} - {folder(path)}
    return dict(graph)


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components, dependencies first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components with more than one member."""
    return [component for component in components(graph) if len(component) > 1]


@cache
def dependencies(crate: str) -> Graph:
    """Return the files that each file of a crate depends on. Paths are relative to the folder of `lib.rs` or
    `main.rs`."""
    return Crate(CHECKOUT / CRATES[crate]).dependencies()


def report(crate: str, with_files: bool) -> None:
    files = dependencies(crate)
    folders = folder_graph(files)
    placed = [folder for component in components(folders) for folder in component]
    print(f"{crate}: {len(files)} files in {len(folders)} folders, dependencies first")
    for folder in placed:
        print(f"  {folder} -> {', '.join(sorted(folders[folder], key=placed.index)) or '-'}")
    up = [(a, b) for a in placed for b in folders[a] if placed.index(b) > placed.index(a)]
    print(f"  dependencies that point up: {', '.join(f'{a} -> {b}' for a, b in sorted(up)) or 'none'}")
    if with_files:
        for path, targets in sorted(files.items()):
            print(f"  {path} -> {', '.join(sorted(targets)) or '-'}")
    for cycle in cycles(files):
        print(f"  cycle of files: {', '.join(cycle)}")
        for path in cycle:
            print(f"    {path} -> {', '.join(sorted(files[path] & set(cycle)))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the dependencies of files and folders of the Rust crates.")
    parser.add_argument("crates", nargs="*", metavar="crate", help=f"one of {', '.join(CRATES)}; default: all")
    parser.add_argument("--files", action="store_true", help="print the dependencies of each file, too")
    arguments = parser.parse_args()
    if unknown := set(arguments.crates) - set(CRATES):
        parser.error(f"no such crate: {', '.join(sorted(unknown))}")
    for crate in arguments.crates or CRATES:
        report(crate, arguments.files)


if __name__ == "__main__":
    main()
