"""Knowing a function word for word: a hash of its source."""

import hashlib
import importlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...._cache import cache_weakly

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)


def resolve(function: str, cls: type, known: type) -> Any:
    """The function with that name in `Fusion.sources`; None where there is none."""
    module, colon, name = function.rpartition(":")
    found: Any = importlib.import_module(module or known.__module__) if colon else cls
    for part in name.split("."):
        found = getattr(found, part, None)
    return unwrapped(found)


def unwrapped(found: Any) -> Any:
    """The function that Hugging Face Kernels made a layer of, which transformers asks for where it is installed."""
    if not isinstance(found, nn.Module):
        return found
    inside = [cell.cell_contents for cell in type(found).forward.__closure__ or ()]
    functions = [cell for cell in inside if inspect.isfunction(cell)]
    return functions[0] if len(functions) == 1 else None


@cache_weakly
def fingerprint(function: Any) -> str:
    """That of a function's source; "unknown" where there is no source."""
    try:
        return fingerprint_of(inspect.getsource(function))
    except (OSError, TypeError):
        return "unknown"


def fingerprint_of(source: str) -> str:
    """A hash of a function's source, whatever its layout and comments."""
    text = "".join(word + " " for word in words(textwrap.dedent(source)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def words(source: str) -> Iterator[str]:
    """The tokens of a source but for its layout, the same in all versions of Python.

    From 3.12 on an f-string comes in parts: it is put together again, as it stands in the source.
    """
    marks = {tokenize.INDENT: "{", tokenize.DEDENT: "}", tokenize.NEWLINE: ";"}
    lines = source.splitlines(keepends=True)
    begin, depth = (0, 0), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            begin, depth = begin if depth else token.start, depth + 1
        elif kind.endswith("STRING_END"):
            depth -= 1
            if depth == 0:
                yield between(lines, begin, token.end)
        elif depth == 0 and token.type not in LAYOUT:
            yield marks.get(token.type, token.string)


def between(lines: list[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one position (row from 1, column) to another."""
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])


__all__ = ["fingerprint", "fingerprint_of", "resolve"]
