"""One workload in several variants, in one process: the same weights, the same inputs, taking turns.

Every variant has module objects of its own, stock, patched or compiled, around one set of parameters. A step is timed
by the wall, from an idle GPU to an idle GPU.
"""

import copy
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ... import patch
from .graphs import replay
from .profile import Profile, profile
from .progress import Progress
from .turns import in_turns
from .variants import Variant
from .workloads import Workload


@dataclass
class Result:
    """What one variant gave."""

    variant: Variant
    milliseconds: list[float] = field(default_factory=list)
    """Of each step."""
    launching: list[float] = field(default_factory=list)
    """Of these, until Python had launched everything."""
    in_a_row: float | None = None
    """Milliseconds of a step of the sample, whose steps follow each other without waiting, as in a pipeline; None where
    the sample is one step."""
    replayed: list[float] | None = None
    """Milliseconds of each replay of a step that a CUDA graph has captured; None: not asked for, or not captured."""
    warmup: float = 0.0
    """Seconds of the first step, compilation included."""
    patch_seconds: float | None = None
    equal: float | None = None
    """Share of the sample's values that are those of the stock model, bit for bit."""
    psnr: float | None = None
    """Of the sample against the stock model's, dB; infinite where they are equal."""
    profile: Profile | None = None
    report: str = ""
    error: str = ""
    """Why there are no figures."""

    @property
    def median(self) -> float | None:
        """Milliseconds of a step."""
        return median(self.milliseconds) if self.milliseconds else None


def measure(
    workload: Workload,
    variants: Iterable[Variant],
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    small: bool,
    graphs: bool,
    progress: Progress,
) -> Iterator[list[Result]]:
    """Time every variant, compare its sample with the stock model's, see where time goes, and time CUDA `graphs` of it.

    Yields the results after each of these parts, so that what was measured is not lost where a later one is stopped.
    Raises where the stock model, the first variant, does not run.
    """
    with torch.no_grad():
        progress.begin("building the model")
        model = build(workload, small, device, dtype)
        arguments = workload.arguments(model, small, device, dtype)
        results, steps = list[Result](), dict[int, Callable[[], Any]]()
        reference: Tensor | None = None
        for at, variant in enumerate(variants):
            try:
                result, step, latents = begin(workload, variant, model, arguments, device, progress)
            except Exception as failure:  # out of memory, or not compiled: the others are measured
                if reference is None:
                    raise
                results.append(Result(variant, error=f"{type(failure).__name__}: {str(failure).strip()}"))
                continue
            reference = latents if reference is None else reference
            result.equal, result.psnr = compare(latents, reference)
            results.append(result)
            steps[at] = step
        progress.begin(f"{rounds} rounds of {len(steps)} variants", rounds * len(steps))
        for _, at in in_turns(steps, rounds):
            launching, whole = timed(steps[at], device)
            results[at].launching.append(launching)
            results[at].milliseconds.append(whole)
            progress.step()
        yield results
        if device.type == "cuda":
            progress.begin("profiles", len(steps))
            for at, step in steps.items():
                results[at].profile = profile(step)
                progress.step()
            yield results
        if graphs:
            progress.begin("CUDA graphs")
            for at, times in replay(steps, rounds, lambda call: timed(call, device)[1]).items():
                results[at].replayed = times
            yield results


def stages_of(variants: Sequence[Variant], device: torch.device, graphs: bool) -> int:
    """How many stages `measure` begins: the model, each variant, the rounds, the profiles, the CUDA graphs."""
    return 1 + len(variants) + 1 + (device.type == "cuda") + graphs


def compile_one(workload: Workload, variant: Variant, device: torch.device, dtype: torch.dtype, small: bool) -> float:
    """Seconds of a variant's first step. What Inductor compiled is in its cache then."""
    with torch.no_grad():
        model = build(workload, small, device, dtype)
        arguments = workload.arguments(model, small, device, dtype)
        _, run = prepare(variant, model, device)
        started = time.perf_counter()
        run_step(workload, run, arguments)
        synchronize(device)
    return time.perf_counter() - started


def build(workload: Workload, small: bool, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The stock model, with the same weights each time."""
    torch.manual_seed(0)
    with device:  # for this alone: torch.compile does not trace through it
        return nn.Module.to(workload.build(small), dtype).eval().requires_grad_(False)


def begin(
    workload: Workload,
    variant: Variant,
    model: nn.Module,
    arguments: dict[str, Any],
    device: torch.device,
    progress: Progress,
) -> tuple[Result, Callable[[], Any], Tensor]:
    """A variant's first step and its sample: what is known of it, what makes a step, and the sample."""
    progress.begin(f"{variant.name}: first step, then {workload.steps} more", 1 + workload.steps)
    result, run = prepare(variant, model, device)
    step = functools.partial(run_step, workload, run, arguments)
    started = time.perf_counter()
    step()
    synchronize(device)
    result.warmup = time.perf_counter() - started
    progress.step()
    if not workload.denoises:
        return result, step, step()[0].float().cpu()
    started = time.perf_counter()
    latents = sample(workload, run, arguments, progress)
    result.in_a_row = (time.perf_counter() - started) * 1e3 / workload.steps
    return result, step, latents


def prepare(variant: Variant, model: nn.Module, device: torch.device) -> tuple[Result, Callable[..., Any]]:
    """A model of its own for a variant, and what calls it."""
    result, own = Result(variant), twin(model)
    if variant.mode is not None:
        started = time.perf_counter()
        options: Any = {"cpu_kernels": device.type == "cpu", "attention": variant.attention, "allow_empty": True}
        report = patch(own, mode=variant.mode, **options)
        result.patch_seconds, result.report = time.perf_counter() - started, str(report)
    if not variant.compiled:
        return result, own
    return result, torch.compile(own, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")


def twin(model: nn.Module) -> nn.Module:
    """A copy of the modules around the same parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def sample(workload: Workload, run: Callable[..., Any], arguments: dict[str, Any], progress: Progress) -> Tensor:
    """The latents after all steps."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    arguments = dict(arguments)
    latents = arguments[workload.state]
    scheduler.set_timesteps(workload.steps, device=latents.device)
    for step in scheduler.timesteps:
        scaled = step * (workload.sigma / 1000.0)
        arguments["timestep"] = torch.ones_like(arguments["timestep"]) * scaled.to(arguments["timestep"].dtype)
        velocity = run(**{**arguments, workload.state: latents})[0]
        latents = scheduler.step(velocity, step, latents, return_dict=False)[0]
        progress.step()
    return latents.float().cpu()


def compare(y: Tensor, reference: Tensor) -> tuple[float, float]:
    """The share of equal values, and the PSNR in dB with the reference's range as its peak; -inf beside infinities."""
    if not reference.isfinite().all():
        return math.nan, math.nan
    error = (y.double() - reference.double()).square().mean().item()
    peak = (reference.max() - reference.min()).item()
    ratio = math.inf if error == 0 else peak**2 / error
    return (y == reference).double().mean().item(), 10 * math.log10(ratio) if ratio else -math.inf


def run_step(workload: Workload, run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """One step, which finds its arguments as the one before did."""
    if workload.restore is not None:
        workload.restore(arguments)
    return run(**arguments)


def timed(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Milliseconds until Python has launched a step, and until the GPU has done it."""
    synchronize(device)
    started = time.perf_counter()
    step()
    launched = time.perf_counter()
    synchronize(device)
    return (launched - started) * 1e3, (time.perf_counter() - started) * 1e3


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


__all__ = ["Result", "compile_one", "measure", "stages_of"]
