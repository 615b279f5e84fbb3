"""Defines a fusion: a hand-written method that replaces a method of a model's class. In a fusion, one kernel
computes several operations.

`patch` installs a fusion only if the source code of the original method is known. `Fusion.sources` has hashes
of the source of this method and of every function that the fusion reimplements. If a source has another hash,
for example in another version of the model's library, the object keeps its original method. The report of
`patch` then gives the reason.
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

# Class attribute that contains the fingerprint (source hash) of the original method.
SOURCE = "_oxiwarp_source"
# Class attribute with the name of a Python module: the module that defines the class listed in
# `Fusion.classes`.
MODULE = "_oxiwarp_module"
compiling = torch.compiler.is_compiling


def nothing_against(_: Any) -> str | None:
    """Return None, which means that there is no reason to reject the object. This is the default of `Fusion.fits`."""
    return None


@dataclass(frozen=True)
class Fusion:
    """Describes how `patch` replaces a method: in which classes, and by which function."""

    name: str
    """Unique name, such as "ltx.block"."""
    classes: tuple[str, ...]
    """`fnmatch` patterns of "module.Class". The fusion may replace the method of classes that match one of
    them."""
    run: Callable[..., Any]
    """The fused method, `run(self, how, *arguments of the method)`; `how` is the `FusedRecipe`."""
    sources: Mapping[str, tuple[str, ...]]
    """The known fingerprints (source hashes) of each function that `run` reimplements. A key is the name of a
    method of the class, ":name" for a function of the class's module, or "module:name"."""
    chains: tuple[str, ...]
    """One line per kernel with the fused steps and the operator: "norm1, modulation: ada_norm"."""
    accepts: Callable[..., bool]
    """`accepts(self, *arguments of the method)`: whether the kernels support these dtypes and shapes."""
    skips: tuple[str, ...] = ()
    """Dotted names of submodules that `run` does not call, because it does their work itself. If one has a
    hook or was replaced by another module, the original method runs. For blocks, `Kind` (class and parameter
    names) detects a replaced module. For processors, which do not own their modules, `accepts` must detect
    it."""
    fits: Callable[[Any], str | None] = nothing_against
    """Returns the reason why an object of the class is not replaced, or None if it is."""
    exactness: Mapping[str, str] | str = "bit-exact"
    """Agreement with the original method in eager torch on CUDA; a mapping by mode if the modes differ."""
    method: str = "forward"
    kernels: bool = True
    """False: `run` only saves Python time, so it accepts any tensors. torch.compile then traces the original
    method."""
    traced: bool = False
    """True: torch.compile traces `run` although `kernels` is False."""
    few: str | None = None
    """Name of the argument whose size decides whether torch.compile traces the original method: see
    `patching/inductor.py`. None: it always traces `run`."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The names in `skips`, each split at its dots."""
        return tuple(tuple(path.split(".")) for path in self.skips)

    def kinds(self, x: Any) -> tuple[Kind | None, ...] | None:
        """Return the `Kind` (class, and names of the parameters) of each submodule that the new method does not
        call. `skips` lists these submodules. Return None if the fusion is for an attention processor."""
        return tuple(kind_of(submodule(x, path)) for path in self.paths) if self.method == "forward" else None

    @property
    def ops(self) -> str:
        """The names of the operators, for the report."""
        if not self.kernels:
            return NO_KERNEL
        return ", ".join(dict.fromkeys(chain.rpartition(": ")[2] for chain in self.chains))

    def promise(self, mode: str) -> str:
        """Return a text that says how much the results of the new method may differ from the original
        results. An example is "bit-exact".

        `mode` is "exact" or "fast". If `exactness` is a dict, it has a text for each mode. If `exactness` is
        a text, this is the text for mode "exact", and the text for mode "fast" is "one rounding".
        """
        if isinstance(self.exactness, str):
            return self.exactness if mode == "exact" else "one rounding"
        return self.exactness[mode]

    def difference(self, cls: type, known: type) -> str | None:
        """Return a text that names the first function whose source hash is not in `sources`. Return None if all hashes
        are in `sources`.

        `known` is the class whose name the fusion lists in `Fusion.classes`: `cls` itself or a base class of `cls`.
        """
        for function, fingerprints in self.sources.items():
            found = fingerprint(resolve(function, cls, known))
            if found not in fingerprints:
                return f"{function.lstrip(':')} is not the one that {self.name} knows (it is {found})"
        return None

    def check(self, x: Any, cls: type, known: type) -> None:
        """Raise `Unsuitable` if the fusion cannot replace the method of the object `x`.

        This is the case if the source of the class `cls` of `x` has a hash that `sources` does not list, or if
        `fits` rejects `x`.

        `known` is the class whose name the fusion lists in `Fusion.classes`: `cls` itself or a base class of
        `cls`.
        """
        why = self.difference(cls, known) or self.fits(x)
        if why is not None:
            raise Unsuitable(why)


def same_dtype(x: Tensor, *operands: Tensor | None) -> bool:
    """Return whether all `operands` have the dtype of `x`. An operand may be None."""
    dtype = x.dtype
    for tensor in operands:  # noqa: SIM110  a generator would double the time
        if tensor is not None and tensor.dtype != dtype:
            return False
    return True


__all__ = ["MODULE", "SOURCE", "Fusion", "compiling", "same_dtype"]
