"""Finds the fusion for a class of a model, by the class name and a hash of its source. A fusion replaces a
method of the class."""

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
    """Return the fusion (replacement method) for `cls`, and the class whose name the fusion lists: `cls` or a
    base class of `cls`.

    If several fusions list this name, return the first one that lists the hash of the class's source. If none lists it,
    return the first fusion for which `is_meant` is true.
    """
    found = found_for(cls)
    return None if found is None else (found[0], cls.__mro__[found[1]])


@cache_weakly
def found_for(cls: type) -> tuple[Fusion, int] | None:
    """Return the fusion (replacement method) for `cls`, and the index in `cls.__mro__` of the class that the
    fusion lists.

    The result is cached. It contains the index of the class instead of the class, because the cache would keep the
    class alive.
    """
    named = named_like(cls)
    known_ones = [found for found in named if found[0].difference(cls, found[1]) is None]
    found = next(iter(known_ones or (found for found in named if is_meant(*found))), None)
    return None if found is None else (found[0], cls.__mro__.index(found[1]))


def named_like(cls: type) -> list[tuple[Fusion, type]]:
    """Return the fusions (replacement methods) whose name patterns match `cls` or a base class of `cls`, each
    with the matching class."""
    return [
        (fusion, known)
        for known in cls.__mro__
        for fusion in FUSIONS.values()
        if any(fnmatchcase(dotted(known), pattern) for pattern in fusion.classes)
    ]


def is_meant(fusion: Fusion, cls: type) -> bool:
    """Return whether a fusion (replacement method) is probably written for another version of the class `cls`, whose
    source hash is not listed by any fusion.

    If so, the report of `patch` says why the class is not replaced. The name patterns of the fusions for decoders also
    match unrelated classes of the library transformers, such as `T5Attention`. For a class of transformers, one of
    these conditions must therefore hold:

    - The fusion lists the exact name of `cls`.
    - The package of `cls` is in `DECODERS`.
    - The Python module of `cls` also defines a class whose source is known.
    """
    module = cls.__module__
    if not module.startswith(TRANSFORMERS) or dotted(cls) in fusion.classes:
        return True
    return module.split(".")[2] in DECODERS or has_known(module)


@functools.cache
def has_known(module: str) -> bool:
    """Return whether the Python module `module` defines a class whose source hash is listed by a general fusion.

    A general fusion replaces a method that several models have in identical copies.
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
