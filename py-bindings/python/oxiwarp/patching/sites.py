"""Counts how often a kernel ran in place of a chain of operations, and how often the original code ran instead, and
why.

A chain is a sequence of operations that one kernel can replace.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

SITES = "_oxiwarp_sites"
"""Name of a class attribute.

The attribute is a list of `Site` objects, one per sequence of operations that a kernel replaces.
"""
RAN = "kernel"
"""The outcome of a call that ran a kernel.

Any other outcome is a text that says why the original code ran instead.
"""
UNSUPPORTED = "the kernels do not support the call"

compiling = torch.compiler.is_compiling
tracing = torch.compiler.is_dynamo_compiling


class Site:
    """Describes a chain of operations in a method, that is, a sequence that one kernel can replace. A `Site` also
    counts the outcomes of the chain's calls.

    The outcome of a call is `RAN` if the kernel ran, or else the reason why the original code ran. `op` has the names
    of the oxiwarp operators that replace the chain. `line` is the source line of the chain, or 0 if the chain is a
    whole method. `functions` has the functions whose source is part of the chain. If `optional` is True, the report
    omits this `Site` as long as no call was counted.
    """

    def __init__(self, op: str, line: int = 0, functions: tuple[Any, ...] = (), optional: bool = False) -> None:
        self.op, self.line, self.functions, self.optional = op, line, functions, optional
        self.outcomes: Counter[str] = Counter()

    def ran(self) -> None:
        """Count a call that ran the kernel."""
        if not tracing():
            self.outcomes[RAN] += 1

    def note(self, outcome: str) -> None:
        """Count the outcome of one call.

        Under torch.compile, do nothing: the compiled code does not contain this function, so it could not
        count every call.
        """
        if not compiling():
            self.outcomes[outcome] += 1


class Ran(NamedTuple):
    """Counts of calls since `patch`, for one sequence of operations that a kernel can replace.

    Each call either runs the kernel or, if the kernel does not support the call, the original code.
    """

    module_class: str
    """Module path and name of the class."""
    line: int
    """Line of the replaced operations in the file that defines the class, or 0 if a whole method was
    replaced.
    """
    op: str
    """Names of the operators."""
    kernels: int
    """Number of calls that ran a kernel."""
    fallbacks: dict[str, int]
    """Maps the reason why the original code ran to the number of such calls."""


class RanReport(tuple[Ran, ...]):
    """Counts for all sequences of operations that kernels can replace in a patched model. `print` shows a
    table.
    """

    @property
    def kernels(self) -> int:
        """Number of calls that ran a kernel."""
        return sum(ran.kernels for ran in self)

    @property
    def fallbacks(self) -> int:
        """Number of calls that ran the original code."""
        return sum(sum(ran.fallbacks.values()) for ran in self)

    def __str__(self) -> str:
        lines = [f"{self.kernels} calls ran a kernel, {self.fallbacks} ran the original code"]
        for ran in self:
            place = ran.module_class.rpartition(".")[2] + (f", line {ran.line}" if ran.line else "")
            lines.append(f"{place}: {ran.op}: {ran.kernels} × kernel")
            lines += [f"    {count} × original: {reason}" for reason, count in ran.fallbacks.items()]
        return "\n".join(lines)


def ran(watched: Iterable[tuple[str, Site, Counter[str]]]) -> RanReport:
    """Return the counts since the call of `patch`.

    Each item of `watched` has three values: a class name, a `Site`, and the counts of this `Site` at the time
    of `patch`.
    """
    rows = []
    for module_class, site, before in watched:
        now = site.outcomes - before
        if site.optional and not now:
            continue
        kernels = now.pop(RAN, 0)
        rows.append(Ran(module_class, site.line, site.op, kernels, dict(now.most_common())))
    return RanReport(rows)


def sites_of(cls: type) -> list[Site]:
    """Return the `Site` objects of `cls`, a class that `patch` created. For any other class, return []."""
    found: list[Site] = getattr(cls, SITES, [])
    return found


__all__ = ["RAN", "SITES", "UNSUPPORTED", "Ran", "RanReport", "Site", "ran", "sites_of"]
