"""What a fusion is: a method of a model's class, written anew with kernels that take several of its steps at once.

A fusion replaces a method that it knows word for word. The sources of that method and of every function whose work it
does itself are hashed and compared with those that were read when it was written. Anything else, such as another
version of the library, keeps its own method, and the report says so.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from .._few import is_few
from .._register import FLOATS, PLAIN
from ..replacement import RECIPE, Maker, Unsuitable, base_of
from ..report import NO_KERNEL
from ._source import fingerprint, resolve

SOURCE = "_oxiwarp_source"  # of a replaced object's class: the fingerprint of its own method
SEQUENCES = (tuple, list)
compiling = torch.compiler.is_compiling


def nothing_against(_: Any) -> str | None:
    """The `fits` of a fusion that takes every object of its class."""
    return None


@dataclass(frozen=True)
class Fusion:
    """A method of a class, and the function that runs in its place."""

    name: str
    """Its own: "ltx.block"."""
    classes: tuple[str, ...]
    """Patterns (as for file names) of "module.Class"."""
    run: Callable[..., Any]
    """`run(self, how, *arguments of the method)`; `how` is a `FusedRecipe`, for its `mode`."""
    sources: Mapping[str, tuple[str, ...]]
    """By function, the `fingerprint`s that `run` stands for. A function is "forward", a method of the class itself,
    ":name" in the class's module, or "module:name"."""
    chains: tuple[str, ...]
    """What is done in one kernel, one line each: "norm1, modulation: ada_norm"."""
    accepts: Callable[..., bool]
    """`accepts(self, *arguments of the method)`: whether the kernels take these dtypes and shapes."""
    skips: tuple[str, ...] = ()
    """Dotted names of modules that `run` does not call. With a hook on one of them the own method runs."""
    fits: Callable[[Any], str | None] = nothing_against
    """Why an object of the class is left all the same, or None."""
    exactness: Mapping[str, str] | str = "bit-exact"
    """Against the own method in eager torch on CUDA, by mode where modes differ."""
    method: str = "forward"
    kernels: bool = True
    """False: `run` saves Python's time alone, so it takes any tensors; torch.compile traces the own method."""
    traced: bool = False
    """Without kernels: torch.compile traces `run` all the same."""
    few: str | None = None
    """The argument by whose size torch.compile traces the own method, for Inductor: see `oxiwarp/_few.py`."""

    @property
    def ops(self) -> str:
        """The operators, for the report."""
        if not self.kernels:
            return NO_KERNEL
        return ", ".join(dict.fromkeys(chain.rpartition(": ")[2] for chain in self.chains))

    def promise(self, mode: str) -> str:
        """The exactness in a mode; "fast" promises one rounding where nothing else is said."""
        if isinstance(self.exactness, str):
            return self.exactness if mode == "exact" else "one rounding"
        return self.exactness[mode]

    def difference(self, cls: type, known: type) -> str | None:
        """How the sources for `cls`, derived from `known`, differ from those that are known; None: they do not."""
        for function, fingerprints in self.sources.items():
            found = fingerprint(resolve(function, cls, known))
            if found not in fingerprints:
                return f"{function.lstrip(':')} is not the one that {self.name} knows (it is {found})"
        return None

    def check(self, x: Any, cls: type, known: type) -> None:
        """Raise `Unsuitable` unless `x` fits and its class has the method that is known."""
        why = self.difference(cls, known) or self.fits(x)
        if why is not None:
            raise Unsuitable(why)


@dataclass(frozen=True)
class FusedRecipe:
    """What an object with a fused method carries."""

    fusion: str
    mode: str
    cpu_kernels: bool = False
    attention: str | None = None
    """The compute capability at which processors call `oxiwarp.attention` where it was faster; None: nowhere."""

    @property
    def make(self) -> Maker:
        """See `replacement.Recipe`."""
        from . import FUSIONS

        return functools.partial(make, self.fusion, FUSIONS[self.fusion].method)


@functools.cache
def recipe(fusion: str, mode: str, cpu_kernels: bool, attention: bool) -> FusedRecipe:
    """One for all objects that are replaced alike: torch.compile looks into it once, and then asks whether it is it."""
    return FusedRecipe(fusion, mode, cpu_kernels, attention)


def make(name: str, method: str, base: type) -> dict[str, Any]:
    """The method of `base`'s subclass: the fused one where its kernels take the call, otherwise the own one."""
    from . import FUSIONS

    fusion, own = FUSIONS[name], getattr(base, method)
    skipped = tuple(tuple(path.split(".")) for path in fusion.skips)

    @functools.wraps(own)
    def fused(self: Any, *args: Any, **kwargs: Any) -> Any:
        if fusion.few is not None and compiling() and is_few(args[0] if args else kwargs.get(fusion.few)):
            return own(self, *args, **kwargs)
        how = self.__dict__.get(RECIPE)
        if how is not None and ready(self, fusion, skipped, how, args, kwargs):
            return fusion.run(self, how, *args, **kwargs)
        return own(self, *args, **kwargs)

    @functools.wraps(own)
    def quicker(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (fusion.traced or not compiling()) and RECIPE in self.__dict__ and fusion.accepts(self, *args, **kwargs):
            return fusion.run(self, self.__dict__[RECIPE], *args, **kwargs)
        return own(self, *args, **kwargs)

    return {method: fused if fusion.kernels else quicker, SOURCE: fingerprint(resolve(method, base, base))}


def ready(
    x: Any,
    fusion: Fusion,
    skipped: tuple[tuple[str, ...], ...],
    how: FusedRecipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """Whether this call is one for the kernels: plain tensors on a device that runs them, nothing hooked, no autocast,
    no forward-mode AD. It is asked for every block of every step, while a GPU may be waiting."""
    first = None
    for value in (*args, *kwargs.values()):
        if value is None:
            continue
        for part in value if isinstance(value, SEQUENCES) else (value,):
            if type(part) in PLAIN:
                first = part if first is None else first
            elif isinstance(part, Tensor):
                return False
    if first is None or first.dtype not in FLOATS:
        return False
    on_gpu = first.is_cuda
    if not (on_gpu or (how.cpu_kernels and first.is_cpu)):
        return False
    if torch.is_autocast_enabled("cuda" if on_gpu else "cpu") or forward_ad._current_level >= 0:
        return False
    owner = x if fusion.method != "__call__" else args[0] if args else kwargs["attn"]  # a processor's module
    for path in skipped:
        module = submodule(owner, path)
        if module is not None and not is_plain(module, first.device):
            return False
    return fusion.accepts(x, *args, **kwargs)


def submodule(x: Any, path: tuple[str, ...]) -> nn.Module | None:
    """The module with this dotted name, or None: some blocks have it and some do not."""
    module = x._modules.get(path[0])
    for name in path[1:]:
        module = getattr(module, name, None)
    return module  # type: ignore[no-any-return]


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more, or something else, than its class's forward."""
    bound = module.__dict__.get("forward")  # accelerate leaves the class's own there
    if bound is not None and getattr(bound, "__func__", None) is not type(module).forward:
        return True
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        return True
    if compiling():  # `bool` of an attribute makes no guard: as for stock modules, hooks that come later are not seen
        hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        return any([bool(held) for held in hooks])
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def idle(module: nn.Module) -> bool:
    """Whether calling the module gives what it is given: a Dropout that is not trained, to which nothing is hooked."""
    return type(module) is nn.Dropout and not module.training and not hooked(module)


def is_plain(module: nn.Module, device: torch.device) -> bool:
    """Whether another may do the module's work: nothing is hooked to it, and its parameters are there."""
    return not hooked(module) and (not module._parameters or resident(device, *module._parameters.values()))


def resident(device: torch.device, *operands: Tensor | None) -> bool:
    """Whether these are plain tensors on the device, not offloaded, sharded or quantised."""
    for tensor in operands:  # noqa: SIM110  a generator costs as much as what it asks
        if tensor is not None and (type(tensor) not in PLAIN or tensor.device != device):
            return False
    return True


def is_norm(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether the module is of this class itself, replaced or not."""
    return base_of(module) is cls


def same_dtype(x: Tensor, *operands: Tensor | None) -> bool:
    """Whether all are of `x`'s dtype."""
    dtype = x.dtype
    for tensor in operands:  # noqa: SIM110  as in `resident`
        if tensor is not None and tensor.dtype != dtype:
            return False
    return True


@functools.cache
def find(cls: type) -> tuple[Fusion, type] | None:
    """The fusion for objects of a class, and the class that it is for, from which this one may be derived.

    Where several are for classes of this name it is the one that knows the method, or the first if none does.
    """
    from . import FUSIONS

    named = [
        (fusion, known)
        for known in cls.__mro__
        for fusion in FUSIONS.values()
        if any(fnmatchcase(f"{known.__module__}.{known.__qualname__}", pattern) for pattern in fusion.classes)
    ]
    known_ones = [found for found in named if found[0].difference(cls, found[1]) is None]
    return next(iter(known_ones or named), None)


__all__ = ["SOURCE", "FusedRecipe", "Fusion", "find", "idle", "is_norm", "is_plain", "recipe", "resident", "same_dtype"]
