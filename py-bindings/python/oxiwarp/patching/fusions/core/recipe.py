"""What an object with a fused method carries, and the method that it has: the kernels' where they take a call, the own
one otherwise."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ....ops._register import FLOATS, PLAIN
from ...class_swap import RECIPE
from ...inductor import is_few
from .fusion import MODULE, SOURCE, Fusion, compiling
from .modules import Kind, hooks_everywhere, is_plain, submodule
from .registry import FUSIONS, find
from .source import fingerprint, resolve

SEQUENCES = (tuple, list)


@dataclass(frozen=True)
class FusedRecipe:
    """What an object with a fused method carries."""

    fusion: str
    mode: str
    cpu_kernels: bool = False
    attention: str | None = None
    """The compute capability at which processors call `oxiwarp.attention` where it was faster; None: nowhere."""
    kinds: tuple[Kind | None, ...] | None = None
    """What `Fusion.fits` saw under the names of `Fusion.skips`."""

    @property
    def classes(self) -> tuple[type, ...]:
        """Those of the modules that `run` does not call."""
        return tuple(kind[0] for kind in self.kinds or () if kind is not None)

    def methods(self, base: Any) -> dict[str, Any]:
        """The fused method, the fingerprint of the original one, and the module of the class that is known."""
        fusion, found = FUSIONS[self.fusion], find(base)
        run = fused(self, fusion, getattr(base, fusion.method))
        known = base if found is None else found[1]
        return {fusion.method: run, SOURCE: fingerprint(resolve(fusion.method, base, base)), MODULE: known.__module__}


def fused(how: FusedRecipe, fusion: Fusion, own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is `fusion.run` where its kernels take the call, otherwise the own one."""
    skipped = fusion.paths

    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if fusion.few is not None and compiling() and is_few(args[0] if args else kwargs.get(fusion.few)):
            return own(self, *args, **kwargs)
        if RECIPE in self.__dict__ and ready(self, fusion, skipped, how, args, kwargs):
            return fusion.run(self, how, *args, **kwargs)
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
    # torch.jit.trace records sizes as tensors, which operators do not take.
    if hooks_everywhere() or torch._C._get_tracing_state() is not None:
        return False
    owner = x if fusion.method != "__call__" else args[0] if args else kwargs["attn"]  # a processor's module
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
