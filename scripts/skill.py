"""Writes pages of the agent skill: `python scripts/skill.py`.

A skill is installed as one folder, and its pages cannot link to files outside of this folder. Some of its pages are
therefore copies of pages in docs. Another page contains the source code of the skill's kernel templates.
`tests/python/tools/test_skill.py` fails if a page is out of date.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import partial

from generated import ROOT, Part, write

SKILL = "skills/oxiwarp-kernels"
TEMPLATES = f"{SKILL}/templates"
REPOSITORY = "https://github.com/oxiwarp/oxiwarp/blob/main"
COPIES = {
    "docs/guide/patching.md": "diffusers-integration.md",
    "docs/guide/transformers.md": "transformers-integration.md",
    "docs/guide/huggingface-kernels.md": "hub-kernels.md",
    "docs/guide/gpus/h100-h200.md": "gpu-h100-h200.md",
    "docs/guide/gpus/a100.md": "gpu-a100.md",
    "docs/guide/gpus/t4.md": "gpu-t4.md",
    "docs/guide/profiling.md": "profiling.md",
    "docs/guide/troubleshooting.md": "troubleshooting.md",
}
"""The pages in docs that the skill copies, and the names of the copies."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def copied(page: str) -> str:
    """Return the text of a page in docs, changed for use as a reference page of the skill.

    Links to pages that the skill copies lead to the copies, and all other relative links lead to the
    repository. A line at the top names the original page.
    """

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found[1]))
        return f"]({COPIES.get(target, f'{REPOSITORY}/{target}')}{found[2] or ''})"

    text = LINK.sub(link, (ROOT / page).read_text())
    return f"<!-- a copy of {page}, made by scripts/skill.py -->\n{text}"


def source(path: str) -> Iterator[str]:
    """Yield the content of a Rust file as a fenced code block. The first line of the block is a comment with
    the name of the file."""
    yield "```rust"
    yield f"// {path.removeprefix(TEMPLATES + '/')}"
    yield from (ROOT / path).read_text().splitlines()
    yield "```"


def function(path: str, name: str) -> Iterator[str]:
    """Yield a top-level function of a Rust file, with its doc comment, as a fenced code block."""
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
    """Map the names of code blocks to functions that yield the source of these blocks.

    A template has three blocks: its kernel, its host function, and the function `check` of its test.
    """
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
    for page, name in COPIES.items():
        (ROOT / SKILL / "references" / name).write_text(copied(page))
