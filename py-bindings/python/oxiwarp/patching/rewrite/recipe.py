"""Defines the recipe (the options of `patch`) of an object whose method is rewritten, and creates that method."""

import functools
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from ..._cache import cache_weakly
from ..class_swap import RECIPE
from .calls import FUNCTIONS, Options, Site, calls
from .method import Unreadable
from .rewriter import Found, Rewriting


@dataclass(frozen=True)
class RewrittenRecipe:
    """The options of `patch` for an object whose method is rewritten from its source."""

    method: str
    """Name of the method, "forward" or "__call__"."""
    mode: str
    cpu_kernels: bool = False

    classes: ClassVar[tuple[type, ...]] = ()

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the rewritten method of a subclass of `base`, under its name."""
        own = getattr(base, self.method)
        chains = Rewriting(own).run().chains
        sites = [Site(", ".join(chain.ops), chain.line, tuple(chain.functions.values())) for chain in chains]
        new = Rewriting(own).run().bind(calls(Options(self.mode, self.cpu_kernels), sites))

        @functools.wraps(own)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (new if RECIPE in self.__dict__ else own)(self, *args, **kwargs)

        run._oxiwarp_sites = sites  # type: ignore[attr-defined]
        return {self.method: run}


    def outcome(self, base: type) -> dict[str, str]:
        """Return operators, exactness and remark for the report, as keyword arguments of `Report.add`."""
        chains = found_in(getattr(base, self.method))
        ops = dict.fromkeys(op for chain in chains for op in chain.ops)  # type: ignore[union-attr]
        exactness = "same roundings" if "add_rms_norm" in ops else "bit-exact"
        return {"op": ", ".join(ops), "exactness": exactness if self.mode == "exact" else "one rounding", "reason": ""}


@cache_weakly
def found_in(own: FunctionType) -> tuple[Found, ...] | str:
    """Return the chains of a method, or the reason why it cannot be rewritten. A method without chains gives ()."""
    try:
        rewritten = Rewriting(own).run()
        if rewritten.chains:
            rewritten.bind(dict.fromkeys(FUNCTIONS))
        return tuple(rewritten.chains)
    except Unreadable as why:
        return str(why)


def method_of(cls: type) -> str | None:
    """Return the name of the method of `cls` that has chains, or None."""
    if cls.__module__.partition(".")[0] in ("torch", "oxiwarp"):
        return None
    name = "forward" if hasattr(cls, "forward") else "__call__"
    own = getattr(cls, name, None)
    return name if isinstance(own, FunctionType) and found_in(own) else None


__all__ = ["RewrittenRecipe", "found_in", "method_of"]
