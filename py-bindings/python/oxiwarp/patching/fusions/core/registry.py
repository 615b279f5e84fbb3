"""Which fusion a class has, by its name and its source."""

import functools
import sys
from fnmatch import fnmatchcase

from ...._cache import cache_weakly
from .fusion import Fusion

TRANSFORMERS = "transformers.models."
DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3")
"""Its modules that the fusions of decoders are for, besides copies."""

FUSIONS: dict[str, Fusion] = {}
"""By name, in the order in which they are asked; `patching/fusions/__init__.py` fills it."""


def find(cls: type) -> tuple[Fusion, type] | None:
    """The fusion for objects of a class, and the class that it is for, from which this one may be derived.

    If several are for classes of this name, the one that knows the method, or the first that is meant for the class.
    """
    found = found_for(cls)
    return None if found is None else (found[0], cls.__mro__[found[1]])


@cache_weakly
def found_for(cls: type) -> tuple[Fusion, int] | None:
    """The same, with the position of the class that the fusion is for in `cls.__mro__`: results name no class."""
    named = named_like(cls)
    known_ones = [found for found in named if found[0].difference(cls, found[1]) is None]
    found = next(iter(known_ones or (found for found in named if is_meant(*found))), None)
    return None if found is None else (found[0], cls.__mro__.index(found[1]))


def named_like(cls: type) -> list[tuple[Fusion, type]]:
    """The fusions that are for classes of this name or one that it is derived from, and these."""
    return [
        (fusion, known)
        for known in cls.__mro__
        for fusion in FUSIONS.values()
        if any(fnmatchcase(dotted(known), pattern) for pattern in fusion.classes)
    ]


def is_meant(fusion: Fusion, cls: type) -> bool:
    """Whether a fusion that does not know a class's source should: the class is called as those of decoders are, and
    so are many that are none (`T5Attention`), but its model is known by name, or something in its module by source."""
    module = cls.__module__
    if not module.startswith(TRANSFORMERS) or dotted(cls) in fusion.classes:
        return True
    return module.split(".")[2] in DECODERS or has_known(module)


@functools.cache
def has_known(module: str) -> bool:
    """Whether a fusion for classes of many models knows one in this module."""
    return any(
        dotted(known) not in fusion.classes and fusion.difference(cls, known) is None
        for cls in vars(sys.modules[module]).values()
        if isinstance(cls, type) and cls.__module__ == module
        for fusion, known in named_like(cls)
    )


def dotted(cls: type) -> str:
    """Module path and name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


__all__ = ["FUSIONS", "dotted", "find"]
