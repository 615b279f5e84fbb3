"""Prints random passages of the repository's prose, for a reader who has not seen the project.

    python scripts/passages.py --seed 1 [--rust 10] [--python 8] [--docs 8]

A passage is one Rust comment, one Python docstring or comment, or one paragraph of a page. Use a new seed each time.
The reader gets the passages and nothing else, and marks each sentence: understood at the first reading, at the second,
or not at all.
"""

import argparse
import ast
import io
import random
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIN_WORDS = 12
GENERATED = re.compile(r"<!-- [^\n]* -->.*?<!-- end -->|```.*?```", re.DOTALL)

Passage = tuple[str, str]
"""The location of a passage (path and line), and its text."""


def rust(path: Path, text: str) -> Iterator[Passage]:
    """Yield each block of consecutive comment lines."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = re.match(r"\s*//[/!]? ?(.*)", line)
        if match:
            block.append(match[1])
        elif block:
            yield f"{path}:{number - len(block)}", "\n".join(block)
            block = []


def python(path: Path, text: str) -> Iterator[Passage]:
    """Yield each docstring and each block of consecutive comment lines."""
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and (doc := ast.get_docstring(node)):
            yield f"{path}:{node.body[0].lineno}", doc
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    for first in comments:
        if first - 1 not in comments:
            last = first
            while last + 1 in comments:
                last += 1
            yield f"{path}:{first}", "\n".join(comments[line] for line in range(first, last + 1))


def markdown(path: Path, text: str) -> Iterator[Passage]:
    """Yield each paragraph and list, except generated parts."""
    for paragraph in re.split(r"\n\s*\n", GENERATED.sub("", text)):
        if not re.match(r"\s*(#|\||<!--)", paragraph):
            yield str(path), paragraph.strip()


KINDS = {
    "rust": (rust, ("*.rs",)),
    "python": (python, ("py-bindings/*.py", "benches/*.py", "scripts/*.py", "tests/*.py")),
    "docs": (markdown, ("README.md", "CONTRIBUTING.md", "docs/*.md")),
}


def passages(kind: str) -> list[Passage]:
    """Return all passages of a kind with at least `MIN_WORDS` words."""
    split, patterns = KINDS[kind]
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = (passage for name in names.splitlines() for passage in split(Path(name), (ROOT / name).read_text()))
    return [passage for passage in found if len(passage[1].split()) >= MIN_WORDS]


def main() -> None:
    """Print the drawn passages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="a new number each time")
    for kind, number in (("rust", 10), ("python", 8), ("docs", 8)):
        parser.add_argument(f"--{kind}", type=int, default=number, help=f"number of passages (default: {number})")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for kind in KINDS:
        for number, (where, text) in enumerate(draw.sample(passages(kind), getattr(options, kind)), 1):
            print(f"--- {kind} {number}: {where}\n{text}\n")


if __name__ == "__main__":
    main()
