"""Profiles the GPU time of one step: matrix products, attention, oxiwarp kernels, and other kernels by name."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ... import kernel_info

GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|splitk|xmma|conv|wgrad|dgrad|implicit", re.IGNORECASE)
ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
INDUCTOR = re.compile(r"triton_(?!tem)")  # except triton_tem*, Inductor's templates for matrix products and attention
NAMED = 6  # number of kernels in the category "other" that the profile lists by name


@dataclass(frozen=True)
class Profile:
    """GPU milliseconds of one step by category of kernel."""

    gemm: float
    attention: float
    ours: float
    other: float
    named: Mapping[str, float]
    """The other kernels with the longest times, in milliseconds."""
    kernels: int
    """Number of launched kernels."""

    @property
    def total(self) -> float:
        """GPU milliseconds of all kernels."""
        return self.gemm + self.attention + self.ours + self.other


def profile(step: Callable[[], object]) -> Profile:
    """Run one step under torch's profiler and return the times of its kernels."""
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
    """Return the category of a kernel by its name. `ours` has the names of oxiwarp's kernels.

    The rules are tried in order. Inductor's fused kernels come before attention, because their names can contain the
    names of adjacent attention operators. Attention comes before matrix products, because the names of cuDNN's and
    CUTLASS's attention kernels can contain "gemm".
    """
    if name in ours:
        return "ours"
    if INDUCTOR.match(name):
        return "other"
    if ATTENTION.search(name):
        return "attention"
    return "gemm" if GEMM.search(name) else "other"


__all__ = ["Profile", "profile"]
