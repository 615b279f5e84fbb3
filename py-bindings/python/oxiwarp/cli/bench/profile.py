"""Where the GPU's time of one step goes: matrix products, attention, our kernels, everything else by name."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ... import kernel_info

GEMM = re.compile(r"gemm|nvjet|cutlass|cublas|splitk|xmma|conv|wgrad|dgrad|implicit", re.IGNORECASE)
ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
INDUCTOR = re.compile(r"triton_(?!tem)")  # not its templates: those are matrix products and attention
NAMED = 6  # kernels of "other" that are named


@dataclass(frozen=True)
class Profile:
    """Milliseconds of one step by category."""

    gemm: float
    attention: float
    ours: float
    other: float
    named: Mapping[str, float]
    """The longest of the other kernels."""
    kernels: int
    """Launched."""

    @property
    def total(self) -> float:
        """All of the GPU's time."""
        return self.gemm + self.attention + self.ours + self.other


def profile(step: Callable[[], object]) -> Profile:
    """One step under torch's profiler."""
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
    """Of a kernel. Attention first: cuDNN's and CUTLASS' attention kernels have names of matrix products too.

    Inductor names its element-wise kernels and reductions after the operators around them, attention among these.
    """
    if name in ours:
        return "ours"
    if INDUCTOR.match(name):
        return "other"
    if ATTENTION.search(name):
        return "attention"
    return "gemm" if GEMM.search(name) else "other"


__all__ = ["Profile", "profile"]
