"""Identifies a function by a hash of its source tokens."""

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
    """Return the function that a key of `Fusion.sources` names, or None."""
    module, colon, name = function.rpartition(":")
    found: Any = importlib.import_module(module or known.__module__) if colon else cls
    for part in name.split("."):
        found = getattr(found, part, None)
    return unwrapped(found)


def unwrapped(found: Any) -> Any:
    """If `found` is a layer of Hugging Face Kernels, return the function that it wraps, or None. Return any
    other object unchanged.

    If the package `kernels` is installed, transformers wraps functions in layers of Hugging Face Kernels.
    """
    if not isinstance(found, nn.Module):
        return found
    inside = [cell.cell_contents for cell in type(found).forward.__closure__ or ()]
    functions = [cell for cell in inside if inspect.isfunction(cell)]
    return functions[0] if len(functions) == 1 else None


@cache_weakly
def fingerprint(function: Any) -> str:
    """Return the fingerprint of a function's source, or "unknown" if the source is not available."""
    try:
        return fingerprint_of(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # the file may have changed since the import
        return "unknown"


def fingerprint_of(source: str) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a source. Layout and comments of the source do not
    change the result."""
    text = "".join(word + " " for word in words(textwrap.dedent(source)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def words(source: str) -> Iterator[str]:
    """Yield the Python tokens of a source without comments and layout, in a form that is the same in every version of
    Python.

    From Python 3.12 on, `tokenize` splits an f-string into several tokens. This function joins the parts of
    an f-string to one token, as Python 3.11 does.
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
    """Return the text between the positions `begin` and `end`. A position is (row, column); rows count from 1
    and columns from 0."""
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])


__all__ = ["fingerprint", "fingerprint_of", "resolve"]
