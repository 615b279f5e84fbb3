"""Results that are kept as long as what they were made from."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Result = TypeVar("Result")


def cache_weakly(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """`functools.cache` for a function of one argument, which the cache does not keep alive.

    A result must not refer to its argument, or both live as long as the cache. No result is kept for an argument that
    has no hash or no weak references.
    """
    results: WeakKeyDictionary[Any, Result] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(argument: Any) -> Result:
        try:
            return results[argument]
        except TypeError:
            return function(argument)
        except KeyError:
            return results.setdefault(argument, function(argument))

    cached.cache_clear = results.clear  # type: ignore[attr-defined]
    return cached


__all__ = ["cache_weakly"]
