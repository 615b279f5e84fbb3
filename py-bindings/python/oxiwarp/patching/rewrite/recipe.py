"""Defines the recipe (the options of `patch`) of an object whose method is rewritten, and creates that method."""

import ast
import difflib
import functools
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

import torch

from ..._cache import cache_weakly
from ..class_swap import RECIPE, base_of, recipe_of
from ..inductor import is_decoders, is_few
from ..sites import SITES, Site
from .calls import FUNCTIONS, Options, calls
from .method import Unreadable, tree_of, undecorated
from .rewriter import Found, Rewriting, Rewritten

compiling = torch.compiler.is_compiling


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
        rewritten = rewritten_from(own)
        assert isinstance(rewritten, Rewritten)
        sites = [Site(", ".join(chain.ops), chain.line, tuple(chain.functions.values())) for chain in rewritten.chains]
        new = rewritten.bind(own, calls(Options(self.mode, self.cpu_kernels), sites))

        decodes = is_decoders(base)

        @functools.wraps(own)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            few = decodes and compiling() and is_few(args[0] if args else next(iter(kwargs.values()), None))
            return (new if RECIPE in self.__dict__ and not few else own)(self, *args, **kwargs)

        return {self.method: run, SITES: sites}

    def outcome(self, base: type) -> dict[str, str]:
        """Return operators, exactness and remark for the report, as keyword arguments of `Report.add`."""
        chains = found_in(getattr(base, self.method))
        ops = dict.fromkeys(op for chain in chains for op in chain.ops)  # type: ignore[union-attr]
        exactness = "same roundings" if "add_rms_norm" in ops else "bit-exact"
        return {"op": ", ".join(ops), "exactness": exactness if self.mode == "exact" else "one rounding", "reason": ""}


def found_in(own: FunctionType) -> tuple[Found, ...] | str:
    """Return the chains of a method, or the reason why it cannot be rewritten. A method without chains gives ()."""
    rewritten = rewritten_from(own)
    return rewritten if isinstance(rewritten, str) else tuple(rewritten.chains)


@cache_weakly
def rewritten_from(own: FunctionType) -> Rewritten | str:
    """Return the rewritten method, or the reason why it cannot be rewritten."""
    try:
        rewritten = Rewriting(own).run()
        if rewritten.chains:
            rewritten.bind(own, dict.fromkeys(FUNCTIONS))
    except Unreadable as why:
        return str(why)
    return rewritten


def method_of(cls: type) -> str | None:
    """Return the name of the method of `cls` that has chains, or None."""
    if cls.__module__.partition(".")[0] in ("torch", "oxiwarp"):
        return None
    name = "forward" if hasattr(cls, "forward") else "__call__"
    own = getattr(cls, name, None)
    return name if isinstance(own, FunctionType) and found_in(own) else None


def patched_source(x: Any) -> str:
    """Return the change that `patch` made to the source of an object's method, as a unified diff.

    Args:
        x: a module or an attention processor that `patch` replaced.

    Returns:
        str, the diff between the original method and the rewritten method. Comments and layout are left out. "" if the
        object is not patched, or if its method was not made from its source.

    Raises:
        Nothing.

    Example:
        >>> oxiwarp.patched_source(torch.nn.Linear(2, 2))
        ''
    """
    recipe = recipe_of(x)
    if not isinstance(recipe, RewrittenRecipe):
        return ""
    own = getattr(base_of(x), recipe.method)
    before, after = ast.unparse(tree_of(undecorated(own))), rewritten_from(own).source  # type: ignore[union-attr]
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), "original", "patched", lineterm=""))


__all__ = ["RewrittenRecipe", "found_in", "method_of", "patched_source"]
