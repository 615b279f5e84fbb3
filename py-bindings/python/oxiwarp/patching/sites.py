"""Counts, for each chain of operations that `patch` replaced, how often a kernel ran and why it did not."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

SITES = "_oxiwarp_sites"
"""Class attribute: the sites of the method that replaces the class's own method."""
RAN = "kernel"
"""The outcome of a call that ran a kernel. Every other outcome is the reason why the original code ran."""
UNSUPPORTED = "the kernels do not support the call"

compiling = torch.compiler.is_compiling


class Site:
    """A chain of operations in a replaced method, and how often each outcome occurred in eager mode.

    `op` has the names of the operators, and `line` the line of the chain in the source, or 0 for a whole method.
    `functions` are functions whose source is part of the chain.
    """

    def __init__(self, op: str, line: int = 0, functions: tuple[Any, ...] = ()) -> None:
        self.op, self.line, self.functions = op, line, functions
        self.outcomes: Counter[str] = Counter()

    def note(self, outcome: str) -> None:
        """Count an outcome. torch.compile does not count, because a compiled model does not run this code."""
        if not compiling():
            self.outcomes[outcome] += 1


class Ran(NamedTuple):
    """What happened to a chain of operations since `patch`."""

    module_class: str
    """Module path and name of the class."""
    line: int
    """Line of the chain in the file that defines the class. 0: the chain is a whole method."""
    op: str
    """Names of the operators."""
    kernels: int
    """Number of calls that ran a kernel."""
    fallbacks: dict[str, int]
    """Number of calls that ran the original code, by the reason."""


class RanReport(tuple[Ran, ...]):
    """The chains of a patched model, each with the number of calls that ran a kernel. `print` shows a table."""

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
    """Return what happened since `patch`. `watched` has the class, the site, and the counts at the time of `patch`."""
    rows = []
    for module_class, site, before in watched:
        now = site.outcomes - before
        kernels = now.pop(RAN, 0)
        rows.append(Ran(module_class, site.line, site.op, kernels, dict(now.most_common())))
    return RanReport(rows)


def sites_of(cls: type) -> list[Site]:
    """Return the sites of a class that `patch` made, or [] for any other class."""
    found: list[Site] = getattr(cls, SITES, [])
    return found


__all__ = ["RAN", "SITES", "UNSUPPORTED", "Ran", "RanReport", "Site", "ran", "sites_of"]
