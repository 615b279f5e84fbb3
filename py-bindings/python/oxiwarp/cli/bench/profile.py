"""Profiles the GPU time of one step of a model.

The profile has four times: of matrix products, of attention, of oxiwarp kernels, and of other kernels.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ... import kernel_info

GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|splitk|xmma|conv|wgrad|dgrad|implicit", re.IGNORECASE)
ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
# This pattern matches the names of Inductor's fused kernels. It excludes kernels with names `triton_tem*`,
# because these are templates for matrix products and attention.
INDUCTOR = re.compile(r"triton_(?!tem)")
# Maximum number of kernels in the category "other" that the profile lists by name.
NAMED = 6


@dataclass(frozen=True)
class Profile:
    """GPU time of one step in milliseconds, for each category of kernels."""

    gemm: float
    attention: float
    ours: float
    other: float
    named: Mapping[str, float]
    """Maps names of kernels in the category "other" to their times in milliseconds.

    It has only the kernels with the longest times.
    """
    kernels: int
    """Number of kernels that the step launched."""

    @property
    def total(self) -> float:
        """GPU time of all kernels in milliseconds."""
        return self.gemm + self.attention + self.ours + self.other


def profile(step: Callable[[], object]) -> Profile:
    """Run one step under torch's profiler, and return the GPU times of the kernels that the step launches."""
    ours = {entry for kernel in kernel_info() for entry in kernel["entries"]}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    times, launched = Counter[str](), 0
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            times[event.name] += event.self_device_time_total / 1e3
            launched += 1
    sums, other = Counter[str](), Counter[str]()
    for name, time in times.items():
        kind = category(name, ours)
        sums[kind] += time
        if kind == "other":
            other[name] += time
    named = dict(other.most_common(NAMED))
    return Profile(sums["gemm"], sums["attention"], sums["ours"], sums["other"], named, launched)


def category(name: str, ours: set[str]) -> str:
    """Return the category of the kernel `name`: "ours" (oxiwarp), "attention", "gemm" or "other". The argument `ours`
    contains the names of oxiwarp's kernels.

    The categories are tested in a fixed order. Fused kernels of Inductor are tested before attention kernels,
    because their names can contain the names of adjacent attention operators. Attention kernels are tested
    before matrix products, because the names of attention kernels of cuDNN and CUTLASS can contain "gemm".
    """
    if name in ours:
        return "ours"
    if INDUCTOR.match(name):
        return "other"
    if ATTENTION.search(name):
        return "attention"
    return "gemm" if GEMM.search(name) else "other"


__all__ = ["Profile", "profile"]
