"""Attention modules of diffusers, with a `forward` that inspects the signature of its processor once instead
of at every call.

The original `forward` calls `inspect.signature` to drop keyword arguments that the processor does not accept.
`inspect.signature` takes as much Python time as several kernel launches, and runs once or twice per block.
The `forward` in this file calls the processor directly if the processor accepts all arguments of the call.
"""

import inspect
from inspect import Parameter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...._cache import cache_weakly
from ..core.fusion import Fusion
from ..core.recipe import FusedRecipe

PROCESSOR = "diffusers.models.attention_processor"
MODELS = "diffusers.models.transformers.transformer"
FORWARDS = (
    *("52757ae59bd5", "f7591fc2704c", "da955de3cf32", "34680a2e00e6", "35553156b0d7", "f3b637f914f2"),
    *("55719bfef25a", "775053703060", "709e71bfbc64", "de5760aa6cb4", "a94d1e5bf50f"),  # of diffusers 0.36
)


class Signature(NamedTuple):
    """The calls that a module can pass to its processor unchanged."""

    names: frozenset[str]
    """Names of the keyword arguments that the processor accepts."""
    needed: tuple[tuple[int, str], ...]
    """Position and name of each argument that the caller must pass, because module and processor have
    different defaults."""
    most: int
    """Maximum number of positional arguments."""


NONE = Signature(frozenset(), (), -1)


def signature(module: type[Any], processor: type[Any]) -> Signature:
    """Return a description of the calls of a module's `forward` whose arguments the processor can get
    unchanged.

    The processor must accept all arguments of the module's `forward`. Both must have the arguments in the
    same order, unless the module passes them by name. If these conditions are not met, return `NONE`, which
    describes no call.
    """
    try:
        _, *own = inspect.signature(module.forward).parameters.values()
        _, _, *theirs = inspect.signature(processor.__call__).parameters.values()
    except (TypeError, ValueError):  # The processor has no signature, or too few arguments.
        return NONE
    own = [parameter for parameter in own if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    named = {b.name: b for b in theirs if b.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    alike = 0
    for a, b in zip(own, theirs, strict=False):
        if (a.name, a.kind) != (b.name, b.kind):
            break
        alike += 1
    if alike < len(own) and not (hands_on_by_name(module) and all(a.name in named for a in own)):
        return NONE
    needed = tuple((at, a.name) for at, a in enumerate(own) if a.default is not named[a.name].default)
    return Signature(frozenset(named), needed, alike)


def hands_on_by_name(module: type[Any]) -> bool:
    """Return whether the module's `forward` passes its arguments to the processor by name.

    The forward of diffusers' general class `Attention` passes them by name. The forward of a class for one
    model, such as `FluxAttention`, passes them by position.
    """
    return any((cls.__module__, cls.__name__) == (PROCESSOR, "Attention") for cls in module.__mro__)


@cache_weakly
def signatures(module: type) -> WeakKeyDictionary[type, Signature]:
    """Return the cache for the class `module`. The cache maps the class of a processor to the result of
    `signature` for `module` and this class."""
    return WeakKeyDictionary()


def call(self: Any, how: FusedRecipe, *args: Any, **kwargs: Any) -> Any:
    """Call the processor directly, without the inspection of its signature."""
    return self.processor(self, *args, **kwargs)


def accepts(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the processor can get the arguments of this call unchanged.

    If not, the original `forward` must run: it drops an argument with a warning, or passes a default value
    that differs from the default value of the processor.
    """
    module: type = type(self)
    processor: type = type(self.processor)
    known = signatures(module)
    found = known.get(processor)
    if found is None:
        found = known[processor] = signature(module, processor)
    names, needed, most = found
    if len(args) > most:
        return False
    for name in kwargs:
        if name not in names:
            return False
    for at, name in needed:  # noqa: SIM110  a generator would double the time
        if at >= len(args) and name not in kwargs:
            return False
    return True


FUSIONS = (
    Fusion(
        name="attention_module",
        classes=(
            f"{PROCESSOR}.Attention",
            f"{MODELS}_bria_fibo.BriaFiboAttention",
            f"{MODELS}_flux.FluxAttention",
            f"{MODELS}_flux2.Flux2Attention",
            f"{MODELS}_flux2.Flux2ParallelSelfAttention",
            f"{MODELS}_longcat_image.LongCatImageAttention",
            f"{MODELS}_ltx.LTXAttention",
            f"{MODELS}_ltx2.LTX2Attention",
            f"{MODELS}_ovis_image.OvisImageAttention",
        ),
        run=call,
        accepts=accepts,
        kernels=False,
        sources={"forward": FORWARDS},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("arguments of the processor, looked up once",),
    ),
)
