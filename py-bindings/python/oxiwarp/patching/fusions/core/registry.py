"""Finds the fusion (the method that replaces a model's method) of a class, by the class name and the
source."""

import functools
import sys
from fnmatch import fnmatchcase

from ...._cache import cache_weakly
from .fusion import Fusion

TRANSFORMERS = "transformers.models."
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3")
"""Packages of `transformers.models` with the decoders that the fusions are written for.

Many other packages of transformers have copies of this code."""

FUSIONS: dict[str, Fusion] = {}
"""All fusions by name, in the order in which `find` tries them. `patching/fusions/__init__.py` fills it."""


def find(cls: type) -> tuple[Fusion, type] | None:
    """Return the fusion (rewritten method) for `cls`, and the class whose name the fusion lists: `cls` or a base class.

    If several fusions list the name, return the first fusion that has the hash of the class's source. If no fusion has
    this hash, return the first fusion for which `is_meant` is true.
    """
    found = found_for(cls)
    return None if found is None else (found[0], cls.__mro__[found[1]])


@cache_weakly
def found_for(cls: type) -> tuple[Fusion, int] | None:
    """Return the fusion (rewritten method) for `cls`, and the `cls.__mro__` index of the class that the fusion lists.

    The result is cached. It has an index instead of a class, because a cached reference would keep the class alive.
    """
    named = named_like(cls)
    known_ones = [found for found in named if found[0].difference(cls, found[1]) is None]
    found = next(iter(known_ones or (found for found in named if is_meant(*found))), None)
    return None if found is None else (found[0], cls.__mro__.index(found[1]))


def named_like(cls: type) -> list[tuple[Fusion, type]]:
    """Return the fusions (rewritten methods) that match `cls` or a base class, each with the matching class."""
    return [
        (fusion, known)
        for known in cls.__mro__
        for fusion in FUSIONS.values()
        if any(fnmatchcase(dotted(known), pattern) for pattern in fusion.classes)
    ]


def is_meant(fusion: Fusion, cls: type) -> bool:
    """Return whether a fusion (rewritten method) is meant for a class, although the hash of the class's
    source is unknown.

    If the fusion is meant for the class, the report gives the reason why the class is not replaced. The class patterns
    for decoders also match other classes of transformers, such as `T5Attention`. So for a class of transformers, one of
    these conditions must hold:

    - The fusion lists the exact name of the class.
    - The package of the class is in `DECODERS`.
    - The module of the class has another class whose source is known.
    """
    module = cls.__module__
    if not module.startswith(TRANSFORMERS) or dotted(cls) in fusion.classes:
        return True
    return module.split(".")[2] in DECODERS or has_known(module)


@functools.cache
def has_known(module: str) -> bool:
    """Return whether the Python module `module` has a class whose source hash a general fusion knows.

    A general fusion is a replacement for a method that copies in several models share.
    """
    return any(
        dotted(known) not in fusion.classes and fusion.difference(cls, known) is None
        for cls in vars(sys.modules[module]).values()
        if isinstance(cls, type) and cls.__module__ == module
        for fusion, known in named_like(cls)
    )


def dotted(cls: type) -> str:
    """Return the module path and the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


__all__ = ["FUSIONS", "dotted", "find"]
