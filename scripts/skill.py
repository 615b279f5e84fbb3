"""Writes the source code of the kernel templates into the pages of skills: `python scripts/skill.py`.

`tests/python/tools/test_skill.py` fails if a page differs from the sources.
"""

from collections.abc import Iterator
from functools import partial

from generated import ROOT, Part, write

SKILL = "skills/oxiwarp-kernels"
TEMPLATES = f"{SKILL}/templates"


def source(path: str) -> Iterator[str]:
    """Yield a Rust source of the repository as a fenced code block. The block starts with the name of the file."""
    yield "```rust"
    yield f"// {path.removeprefix(TEMPLATES + '/')}"
    yield from (ROOT / path).read_text().splitlines()
    yield "```"


def function(path: str, name: str) -> Iterator[str]:
    """Yield a top-level function of a Rust source as a fenced code block, with its documentation."""
    lines = (ROOT / path).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith((f"fn {name}(", f"fn {name}<")))
    end = lines.index("}", start)
    while lines[start - 1].startswith(("///", "#[")):
        start -= 1
    yield "```rust"
    yield f"// {path.removeprefix(TEMPLATES + '/')}"
    yield from lines[start : end + 1]
    yield "```"


def template(name: str) -> dict[str, Part]:
    """Return the parts of a template: its kernel, its host function, and the core of its test."""
    return {
        name: partial(source, f"{TEMPLATES}/kernels/src/{name}.rs"),
        f"{name}, host": partial(source, f"{TEMPLATES}/src/{name}.rs"),
        f"{name}, test": partial(function, f"{TEMPLATES}/tests/{name}.rs", "check"),
    }


PAGES: dict[str, dict[str, Part]] = {
    f"{SKILL}/references/kernel-templates.md": {
        **template("softplus"),
        **template("log_sum_exp"),
        **template("transpose"),
        **template("matmul"),
    },
}

if __name__ == "__main__":
    write("skill", PAGES)
