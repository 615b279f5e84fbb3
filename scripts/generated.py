"""Updates generated sections of Markdown pages.

A section starts with `<!-- <mark>, made by scripts/<script>.py -->` and ends with `<!-- end -->`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
Part = Callable[[], Iterable[str]]


def fill(text: str, script: str, parts: dict[str, Part]) -> str:
    """Return the page `text` with new content in its generated sections. The keys of `parts` are the marks in
    the first lines of the sections, and the values are functions that return the new lines.

    Raises:
        ValueError: the page does not contain a mark, or contains it more than once.
    """
    for mark, lines in parts.items():
        between = re.compile(
            rf"(<!-- {re.escape(mark)}, made by scripts/{script}.py -->\n).*?(<!-- end -->)", re.DOTALL
        )
        made = "\n".join(lines()) + "\n"
        text, found = between.subn(lambda match, made=made: match[1] + made + match[2], text)
        if found != 1:
            raise ValueError(f"expected one place for {mark!r}, found {found}")
    return text


def write(script: str, pages: dict[str, dict[str, Part]]) -> None:
    """Update the generated sections of pages. The keys of `pages` are paths relative to the repository's
    root."""
    for name, parts in pages.items():
        page = ROOT / name
        page.write_text(fill(page.read_text(), script, parts))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield "| --- " * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
