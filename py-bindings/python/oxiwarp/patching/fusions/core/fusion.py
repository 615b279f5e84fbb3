"""What a fusion is: a method of a model's class, written anew with kernels that take several of its steps at once.

A fusion replaces a method that it knows word for word. The sources of that method and of every function whose work it
does itself are hashed and compared with those that were read when it was written. Anything else, such as another
version of the library, keeps its own method, and the report says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...class_swap import Unsuitable
from ...report import NO_KERNEL
from .modules import Kind, kind_of, submodule
from .source import fingerprint, resolve

SOURCE = "_oxiwarp_source"  # of a replaced object's class: the fingerprint of its own method
MODULE = "_oxiwarp_module"  # the module of the class that the fusion knows, where the method finds its functions
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
    """Dotted names of modules that `run` does not call. With a hook on one of them, or another module in its place, the
    own method runs: for blocks by their `Kind`, for processors, which do not know their modules, `accepts` says so."""
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
    """The argument by whose size torch.compile traces the own method, for Inductor: see `patching/inductor.py`."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """`skips`, each as its names."""
        return tuple(tuple(path.split(".")) for path in self.skips)

    def kinds(self, x: Any) -> tuple[Kind | None, ...] | None:
        """Of the modules that `x` has by these names; None for a processor."""
        return tuple(kind_of(submodule(x, path)) for path in self.paths) if self.method == "forward" else None

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


def same_dtype(x: Tensor, *operands: Tensor | None) -> bool:
    """Whether all are of `x`'s dtype."""
    dtype = x.dtype
    for tensor in operands:  # noqa: SIM110  a generator costs as much as what it asks
        if tensor is not None and tensor.dtype != dtype:
            return False
    return True


__all__ = ["MODULE", "SOURCE", "Fusion", "compiling", "same_dtype"]
