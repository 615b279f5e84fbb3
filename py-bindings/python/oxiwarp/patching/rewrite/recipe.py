"""Defines the recipe (the options of `patch`) of an object whose methods `patch` rewrites from their source.

The recipe also creates the rewritten methods.
"""

import ast
import difflib
import functools
import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import nn

from ..._cache import cache_weakly
from ..class_swap import RECIPE, Unsuitable, base_of, recipe_of
from ..inductor import is_decoders, is_few
from ..report import NO_KERNEL
from ..sites import SITES, Site
from .calls import FUNCTIONS, Options, calls
from .deferred import LaterSum
from .direct_calls import DIRECT, traced
from .factor_norms import probe
from .layer_calls import OPEN, has_plain_call
from .method import Unreadable, tree_of, undecorated
from .operands import activation_of, plain_activation, unknown_norm
from .rewriter import ATTENTION, Found, Rewriting, Rewritten
from .sums import returned
from .traced import Traced

COPIES, SIGNATURES = "operations that return a copy, left out", "signature of the processor, looked up once"
MASKS = "no mask where it is causal and attention knows it"
tracing = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class RewrittenRecipe:
    """The options of `patch` for one object whose methods are rewritten from their source."""

    method: str
    """Name of the main rewritten method. Other methods of the class are rewritten too if a kernel may compute
    a part."""
    mode: str
    cpu_kernels: bool = False
    attention: str | None = None
    """Compute capability of the GPU if the method may call `oxiwarp.attention`."""
    remark: str = ""
    """For the report: why the method that oxiwarp has for this class (its fusion) cannot be used."""
    ops: tuple[str, ...] = ()
    """For the report: names of the operators that may run."""
    left: str = ""
    """For the report: how many chains no kernel computes, and why. A chain is an expression that one kernel could
    compute."""

    classes: ClassVar[tuple[type, ...]] = ()

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the rewritten methods of a subclass of `base`, by name."""
        made: dict[str, Any] = {}
        held: list[Site] = []
        late: list[Site] = []
        for name in dict.fromkeys((self.method, *methods_of(base))):
            own = getattr(base, name)
            rewritten = rewritten_from(own)
            assert isinstance(rewritten, Rewritten)
            sites = [site_of(chain) for chain in rewritten.chains]
            linears = [Site("linear", line, optional=True) for line in rewritten.linears]
            held += [*sites, *linears]
            found = opened_from(own) if name == "forward" and has_plain_call(base) else None
            opened = None
            if found is not None:
                known = {place_of(chain): site for chain, site in zip(rewritten.chains, sites, strict=True)}
                others = [known.get(place_of(chain)) or site_of(chain) for chain in found.chains]
                late += [site for site in others if site not in sites]
                opened = made[OPEN] = found.bind(own, self.functions(own, found, others, linears))
            functions = self.functions(own, rewritten, sites, linears)
            made[name] = self.rewritten(base, own, rewritten, functions, opened)
        return {**made, SITES: [*held, *late]}

    def functions(
        self, own: FunctionType, rewritten: Rewritten, sites: list[Site], linears: list[Site]
    ) -> dict[str, Any]:
        """Return the functions that the rewritten version of the method `own` calls, by name."""
        how = Options(self.mode, self.cpu_kernels, self.attention)
        return calls(how, sites, linears, Traced(undecorated(own), rewritten.rotary))

    def rewritten(
        self, base: type, own: FunctionType, rewritten: Rewritten, functions: dict[str, Any], opened: Any
    ) -> Any:
        """Return the rewritten version of `own`, which is a method of the class `base`. `functions` are the functions
        that it calls. `opened` is its version for calls with a placeholder, or None."""
        decodes, masks, inlined = is_decoders(base), rewritten.masks, tuple(rewritten.inlined.items())
        new = rewritten.bind(own, functions)
        compiled = rewritten.bind(own, {**functions, DIRECT: traced}) if decodes else new

        @functools.wraps(own)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if opened is not None and type(args[0] if args else None) is LaterSum:
                return opened(self, *args, **kwargs)
            made = new
            if decodes and tracing():
                # If the method makes attention masks, its first argument has token ids.
                few = not masks and is_few(args[0] if args else next(iter(kwargs.values()), None))
                made = own if few else compiled
            return (made if RECIPE in self.__dict__ else own)(self, *args, **kwargs)

        @functools.wraps(own)
        def run_if_known(self: Any, *args: Any, **kwargs: Any) -> Any:
            cls, held = type(self), self.__dict__
            for name, method in inlined:
                if getattr(cls, name, None) is not method or name in held:
                    return own(self, *args, **kwargs)
            return run(self, *args, **kwargs)

        return run_if_known if inlined else run

    def outcome(self) -> dict[str, str]:
        """Return operators, exactness and remark for the report of `patch`, as keyword arguments of
        `Report.add`."""
        ops = self.ops
        # Only `add_rms_norm` adds the terms of a sum in another order than torch.
        exactness = "same roundings" if "add_rms_norm" in ops else "bit-exact"
        exactness = exactness if self.mode == "exact" else "one rounding"
        exactness += ", but for the attention" if "attention" in ops else ""
        remark = "; ".join(filter(None, (self.remark, self.left)))
        return {"op": ", ".join(ops) or NO_KERNEL, "exactness": exactness, "reason": remark}


def recipe_for(
    x: Any, mode: str, cpu_kernels: bool, attention: str | None, remark: str, owner: Any
) -> RewrittenRecipe | None:
    """Return the recipe (the options of `patch`) of `x`, or None if no method of `x` has a chain.

    A chain is an expression that one kernel may compute. If `x` is an attention processor, `owner` is the
    module that owns it. Raise `Unsuitable` with the reason if the methods cannot be rewritten, or if no
    kernel supports any of the chains.
    """
    method = method_of(base_of(x))
    if method is None:
        return None
    chains = chains_of(base_of(x))
    if not chains:
        raise Unsuitable(str(found_in(getattr(base_of(x), method))))
    reasons = [impossible(x, chain, attention, owner) for chain in chains]
    ops = [operators(x, chain, owner) for chain, reason in zip(chains, reasons, strict=True) if reason is None]
    if not ops:
        raise Unsuitable("; ".join(dict.fromkeys(filter(None, reasons))))
    # Without attention=True, all calls of attention would count as left.
    why = [reason for chain, reason in zip(chains, reasons, strict=True) if reason and chain.ops != (ATTENTION,)]
    left = f"{len(why)} of {len(chains)} chains left: {', '.join(dict.fromkeys(why))}" if why else ""
    made = tuple(dict.fromkeys(sum(ops, ())))
    if not made:
        idle = SIGNATURES if all("signature(" in chain.source for chain in chains) else COPIES
        idle = MASKS if all("mask(" in chain.source for chain in chains) else idle
        remark = "; ".join(filter(None, (remark, idle)))
    return RewrittenRecipe(method, mode, cpu_kernels, attention, remark, made, left)


def operators(x: Any, chain: Found, owner: Any) -> tuple[str, ...]:
    """Return the operators that may compute `chain` (an expression of a method of `x`), for the report.

    `chain.ops` lists the operators for all possible activations and norms. Of these, only those for the
    activation or norm of `x` can run.
    """
    if chain.act:
        return (activation(x, chain, owner).__name__,)
    if chain.norm and "add_rms_norm" in chain.ops and not chain.owner:
        is_layer_norm = isinstance(getattr(x, chain.norm), nn.LayerNorm)
        return ("gated_residual_ada_norm",) if is_layer_norm else ("add_rms_norm",)
    return chain.ops


def impossible(x: Any, chain: Found, attention: str | None, owner: Any) -> str | None:
    """Return the reason why no kernel computes `chain` (an expression of a method of `x`), or None if one
    may.

    This function checks only the norm and the activation in the expression, and the options of `patch`.
    """
    if chain.reason:
        return chain.reason
    if chain.ops == (ATTENTION,) and attention is None:
        return "patch was called without attention=True"
    if chain.owner and chain.norm:
        return unknown_norm(getattr(owner, chain.norm, None)) if isinstance(owner, nn.Module) else None
    if chain.factor:
        return probe(getattr(x, chain.norm, None))
    if chain.norm and (why := unknown_norm(getattr(x, chain.norm, None))):
        return why
    op = activation(x, chain, owner) if chain.act else None
    return op if isinstance(op, str) else None


def activation(x: Any, chain: Found, owner: Any) -> Any:
    """Return the operator that computes `chain`, which is `act(gate) * up` or `act(x)`, or a reason why there
    is none.

    `chain.act` is the name of the activation: an attribute of the object `x`, or of the module `owner` that
    has the attention processor `x`.
    """
    act = getattr(owner if chain.owner else x, chain.act, None)
    return activation_of(act, "") if "gelu_and_mul" in chain.ops else plain_activation(act)


def chains_of(cls: type) -> list[Found]:
    """Return the chains (expressions that one kernel may compute) of all methods of `cls` that `patch`
    rewrites."""
    found = [found_in(getattr(cls, name)) for name in methods_of(cls)]
    return [chain for chains in found if not isinstance(chains, str) for chain in chains]


def found_in(own: FunctionType) -> tuple[Found, ...] | str:
    """Return the chains (expressions that one kernel may compute) of the method `own`. If there are none,
    return ().

    If the method cannot be rewritten, return the reason as a `str`.
    """
    rewritten = rewritten_from(own)
    return rewritten if isinstance(rewritten, str) else tuple(rewritten.chains)


@cache_weakly
def rewritten_from(own: FunctionType) -> Rewritten | str:
    """Return the rewritten version of the method `own`, or the reason why `own` cannot be rewritten."""
    try:
        rewritten = Rewriting(own).run()
        if rewritten.chains:
            rewritten.bind(own, dict.fromkeys(FUNCTIONS))
    except Unreadable as why:
        return str(why)
    return rewritten


@cache_weakly
def opened_from(own: FunctionType) -> Rewritten | None:
    """Return the version of the rewritten method `own` that may get and return placeholders for sums: see `layers.py`.

    Return None if placeholders would not save a kernel.
    """
    rewritten = rewritten_from(own)
    if isinstance(rewritten, str) or rewritten.inlined or not returned(rewritten.tree.body[-1]):
        return None
    opened = Rewriting(own, opened=True).run()
    return opened if opened.opens else None


def site_of(chain: Found) -> Site:
    """Return a new `Site` (a counter for the report) for a chain."""
    return Site(", ".join(chain.ops), chain.line, tuple(chain.functions.values()))


def place_of(chain: Found) -> tuple[int, str]:
    """Return the place of a chain in the source of its method."""
    return chain.line, chain.source


def method_of(cls: type) -> str | None:
    """Return the name of the first method of `cls` with chains (expressions that one kernel may compute), or
    None.

    If no method has chains, and `forward` or `__call__` cannot be rewritten, return "forward" or "__call__".
    The report can then give the reason.
    """
    main = main_method(cls)
    names = methods_of(cls)
    return names[0] if names else main if main is not None and found_in(getattr(cls, main)) else None


def main_method(cls: type) -> str | None:
    """Return "forward" if `cls` has this method, otherwise "__call__". Return None if torch, oxiwarp or peft
    defines the method."""
    name = "forward" if hasattr(cls, "forward") else "__call__"
    return name if is_own(getattr(cls, name, None)) else None


def is_own(function: Any) -> bool:
    """Return whether `function` is a Python function that is not defined in torch, oxiwarp or peft.

    The Python module of the method is checked, and not that of the class, because a tool such as FSDP2 may have derived
    the class. Methods of peft are excluded because the gate in its LoRA layers is a number, which no kernel supports.
    """
    known = isinstance(function, FunctionType)
    return known and (function.__module__ or "").partition(".")[0] not in ("torch", "oxiwarp", "peft")


def methods_of(cls: type) -> tuple[str, ...]:
    """Return the names of the methods of `cls` that have chains (expressions that one kernel may compute).

    `forward` or `__call__` comes first. Other methods are only included if they are defined in the file of
    `cls` or in the file of its `forward`. Methods whose source was inserted into another method of the class
    are omitted.
    """
    main = main_method(cls)
    if main is None:
        return ()
    files = {cls.__module__, next(base.__module__ for base in cls.__mro__ if main in vars(base))}
    near = [base for base in cls.__mro__ if base.__module__ in files]
    names = [main, *(name for base in near for name in vars(base) if not name.startswith("__"))]
    methods = {name: inspect.getattr_static(cls, name) for name in dict.fromkeys(names)}
    found = {name: found_in(own) for name, own in methods.items() if is_own(own)}
    chains = {name: made for name, made in found.items() if made and not isinstance(made, str)}
    inlined = [part for made in chains.values() for chain in made for part in chain.functions.values()]
    for name in chains:
        inlined += rewritten_from(methods[name]).inlined.values()  # type: ignore[union-attr]
    return tuple(name for name in chains if not any(methods[name] is part for part in inlined))


def patched_source(x: Any) -> str:
    """Return the change that `patch` made to the source of an object's methods, as a unified diff.

    Args:
        x: a module or an attention processor that `patch` replaced.

    Returns:
        str, the diff between the original methods and the rewritten methods, without comments and layout. ""
        if `patch` has not rewritten methods of the object from their source.

    Raises:
        Nothing.

    Example:
        >>> oxiwarp.patched_source(torch.nn.Linear(2, 2))
        ''
    """
    recipe = recipe_of(x)
    if not isinstance(recipe, RewrittenRecipe):
        return ""
    base = base_of(x)
    lines: list[str] = []
    for name in dict.fromkeys((recipe.method, *methods_of(base))):
        own = getattr(base, name)
        rewritten = rewritten_from(own)
        assert isinstance(rewritten, Rewritten)
        changed = [(own, rewritten.tree), *rewritten.helpers.values()]
        for before, after in ((tree_of(undecorated(function)), tree) for function, tree in changed):
            first, second = (ast.unparse(one).splitlines() for one in (before, after))
            lines += difflib.unified_diff(first, second, "original", "patched", lineterm="")
    return "\n".join(lines)


__all__ = ["RewrittenRecipe", "found_in", "method_of", "methods_of", "patched_source", "recipe_for"]
