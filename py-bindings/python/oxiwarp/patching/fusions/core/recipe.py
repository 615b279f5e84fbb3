"""Defines the recipe of a patched object, and creates its fused method. The recipe contains the options of
`patch` for this object.

A fused method replaces the `forward` or `__call__` of a model's class. It runs oxiwarp kernels if the kernels
support the arguments. Otherwise it calls the original method.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ....ops._register import FLOATS, PLAIN
from ...class_swap import RECIPE
from ...inductor import is_few
from ...sites import RAN, SITES, UNSUPPORTED, Site
from .fusion import MODULE, SOURCE, Fusion, compiling
from .modules import Kind, hooks_everywhere, is_plain, submodule
from .registry import FUSIONS, find
from .source import fingerprint, resolve

SEQUENCES = (tuple, list)


def linear_site() -> Site:
    """Return a `Site` (a counter for the report) for linears."""
    return Site("linear", optional=True)


@dataclass(frozen=True)
class FusedRecipe:
    """The options of `patch` for one patched object, and the name of its fusion. The fusion is the method
    that replaces a method of the object."""

    fusion: str
    mode: str
    cpu_kernels: bool = False
    attention: str | None = None
    """Compute capability of the GPU, such as "9.0", or None if processors must never call
    `oxiwarp.attention`.

    Measurements on such a GPU decide for which sizes they call it."""
    kinds: tuple[Kind | None, ...] | None = None
    """`Kind` (class and parameter names) that each module in `Fusion.skips` had at `patch`. None for a
    processor."""
    linears: Site = field(default_factory=linear_site, compare=False, repr=False)
    """Counts the linears that the method may compute together with the operations after them, for the report."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the counts, which belong to this process."""
        return {name: value for name, value in self.__dict__.items() if name != "linears"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, linears=linear_site())

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes of the submodules in `Fusion.skips`. The fused method does not call these submodules,
        because it computes their results itself."""
        return tuple(kind[0] for kind in self.kinds or () if kind is not None)

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the attributes of the subclass of `base` that becomes the class of the patched object.

        The attributes are the fused method, the fingerprint (source hash) of the original method, the name of the
        Python module that defines the class of the fusion, and the `Site`. The `Site` counts how often the kernels and
        the original method ran.

        If an older version of oxiwarp pickled the recipe, its fusion may not exist any more. The object then runs
        its original method until `patch` is called again.
        """
        if self.fusion not in FUSIONS:
            return {SITES: []}
        fusion, found = FUSIONS[self.fusion], find(base)
        site = Site(fusion.ops)
        run = fused(self, fusion, getattr(base, fusion.method), site)
        known = base if found is None else found[1]
        mark = fingerprint(resolve(fusion.method, base, base))
        sites = [*([site] if fusion.kernels else []), self.linears]
        return {fusion.method: run, SOURCE: mark, MODULE: known.__module__, SITES: sites}


def fused(how: FusedRecipe, fusion: Fusion, own: Callable[..., Any], site: Site) -> Callable[..., Any]:
    """Return the new method of an object. It calls `fusion.run`, which runs the kernels, if the kernels
    support the arguments. Otherwise it calls the original method `own`."""
    skipped = fusion.paths

    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if fusion.few is not None and compiling() and is_few(args[0] if args else kwargs.get(fusion.few)):
            return own(self, *args, **kwargs)
        if RECIPE in self.__dict__ and ready(self, fusion, skipped, how, args, kwargs):
            site.note(RAN)
            return fusion.run(self, how, *args, **kwargs)
        site.note(UNSUPPORTED)
        return own(self, *args, **kwargs)

    @functools.wraps(own)
    def quicker(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (fusion.traced or not compiling()) and RECIPE in self.__dict__ and fusion.accepts(self, *args, **kwargs):
            return fusion.run(self, how, *args, **kwargs)
        return own(self, *args, **kwargs)

    return run if fusion.kernels else quicker


def ready(
    x: Any,
    fusion: Fusion,
    skipped: tuple[tuple[str, ...], ...],
    how: FusedRecipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """Return whether the oxiwarp kernels may run for this call of a fused method (a method that replaces the
    original one).

    The tensor arguments must be plain tensors on a supported device. Autocast and forward-mode AD must be off. The
    submodules in `Fusion.skips` must have no hooks, because the fused method computes their results without calling
    them. This check runs for every block in every step, possibly while the GPU is idle, so it must be fast.
    """
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
    # Under torch.jit.trace, sizes are tensors, which the operators reject.
    if hooks_everywhere() or torch._C._get_tracing_state() is not None:
        return False
    owner = x if fusion.method != "__call__" else args[0] if args else kwargs["attn"]  # the attention module
    kinds, device = how.kinds, first.device
    for at, path in enumerate(skipped):
        module, kind = submodule(owner, path), None if kinds is None else kinds[at]
        if module is None:
            if kind is not None:
                return False
        elif (kind is None and kinds is not None) or not is_plain(module, device, kind):
            return False
    return fusion.accepts(x, *args, **kwargs)


__all__ = ["FusedRecipe", "fused", "ready"]
