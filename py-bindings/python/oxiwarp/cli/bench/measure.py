"""Measures several variants of one workload (a model with the arguments of one step) in one process. The
steps of the variants alternate.

All variants (unpatched, patched or compiled) have the same inputs. Each variant has separate module objects,
but all variants share one set of parameters. The time of a step is the wall-clock time between two
synchronizations with the GPU.
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
    """Measurements of one variant."""

    variant: Variant
    milliseconds: list[float] = field(default_factory=list)
    """Wall-clock time of each step in milliseconds."""
    launching: list[float] = field(default_factory=list)
    """For each step, the milliseconds from its start until Python has launched all kernels."""
    in_a_row: float | None = None
    """Mean milliseconds per step while a sample is computed.

    Its steps run without synchronization between them, as in a pipeline. None for a model that computes its
    output in one step.
    """
    replayed: list[float] | None = None
    """Milliseconds of each replay of a step as a CUDA graph.

    None if CUDA graphs were not requested, or if the capture failed.
    """
    warmup: float = 0.0
    """Seconds of the first step, which include compilation."""
    patch_seconds: float | None = None
    equal: float | None = None
    """Fraction of the values of the sample (the output) that equal those of the unpatched model's sample."""
    psnr: float | None = None
    """PSNR of the sample in dB.

    The reference is the unpatched model's sample. The PSNR is infinite if the samples are equal.
    """
    profile: Profile | None = None
    report: str = ""
    error: str = ""
    """The reason why the variant was not measured, or an empty string."""

    @property
    def median(self) -> float | None:
        """Median milliseconds of a step, or None if nothing was measured."""
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
    """Measure every variant: time its steps, compare its sample (its output) with the unpatched model's
    sample, and profile one step.

    If `graphs` is True, also time the steps as CUDA graphs. Yield the results of all variants three times (after the
    times, the profiles and the CUDA graphs), so that an interruption loses few results. The first variant must be the
    unpatched model. If this variant fails, its exception is raised.
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
            except Exception as failure:  # for example out of memory; measure the other variants
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
    """Return the number of stages of a measurement, for the progress bar.

    The stages are: building the model, one stage per variant, the timed rounds, the profiles on a GPU, and
    the CUDA graphs.
    """
    return 1 + len(variants) + 1 + (device.type == "cuda") + graphs


def compile_one(workload: Workload, variant: Variant, device: torch.device, dtype: torch.dtype, small: bool) -> float:
    """Execute the first step of a variant. If the variant is compiled, this fills Inductor's cache.

    Return the seconds that the step took.
    """
    with torch.no_grad():
        model = build(workload, small, device, dtype)
        arguments = workload.arguments(model, small, device, dtype)
        _, run = prepare(variant, model, device)
        started = time.perf_counter()
        run_step(workload, run, arguments)
        synchronize(device)
    return time.perf_counter() - started


def build(workload: Workload, small: bool, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Build the unpatched model of `workload` with random weights. Every call creates the same weights."""
    torch.manual_seed(0)
    if workload.large and not small:
        return build_large(workload, device, dtype)
    with device:  # only around construction, because torch.compile cannot trace this context
        return nn.Module.to(workload.build(small), dtype).eval().requires_grad_(False)


def build_large(workload: Workload, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Build a large model without allocating its weights. Then create random weights in `dtype` on the
    device.

    Weights of norms are 1, and biases are 0. Matrices have the standard deviation that `torch.nn.Linear` uses
    for its initial weights.
    """
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    with init_empty_weights(include_buffers=False), device:
        model = workload.build(False)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            made = torch.empty(parameter.shape, dtype=dtype, device=device)
            if parameter.dim() > 1:
                made.normal_(std=(3 * parameter[0].numel()) ** -0.5)
            else:
                made.fill_(float(name == "weight"))
            module._parameters[name] = nn.Parameter(made, requires_grad=False)
    return nn.Module.to(model, device).eval()


def begin(
    workload: Workload,
    variant: Variant,
    model: nn.Module,
    arguments: dict[str, Any],
    device: torch.device,
    progress: Progress,
) -> tuple[Result, Callable[[], Any], Tensor]:
    """Execute the first step of a variant as a warm-up. Then start again with the first step and compute the
    sample (the output) of the variant.

    The sample of a diffusion model consists of the latents after all denoising steps. The sample of a
    language model is the output of one step.

    Return three values: a `Result` with the times of the warm-up and of the sample, a callable that executes
    one step, and the sample.
    """
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
    """Copy the model, and patch and compile the copy as `variant` says.

    Return two values: a new `Result` with the report of the patch, and the copy.
    """
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
    """Copy the module objects of a model. The copies use the parameters and buffers of `model`, which are not
    copied.
    """
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def sample(workload: Workload, run: Callable[..., Any], arguments: dict[str, Any], progress: Progress) -> Tensor:
    """Denoise the latents in `arguments` with a flow-matching scheduler. Return the latents after all steps."""
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
    """Return two numbers: the fraction of values of `y` that equal the reference, and the PSNR of `y` in dB.
    The peak of the PSNR is the largest minus the smallest value of the reference.

    If the mean squared error is infinite, the PSNR is -inf. If the reference has infinite or NaN values, both
    numbers are NaN.
    """
    if not reference.isfinite().all():
        return math.nan, math.nan
    error = (y.double() - reference.double()).square().mean().item()
    peak = (reference.max() - reference.min()).item()
    ratio = math.inf if error == 0 else peak**2 / error
    return (y == reference).double().mean().item(), 10 * math.log10(ratio) if ratio else -math.inf


def run_step(workload: Workload, run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Execute one step of a model.

    Before the step, undo the changes that the previous step made to `arguments`, for example to the KV cache.
    """
    if workload.restore is not None:
        workload.restore(arguments)
    return run(**arguments)


def timed(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Execute a step and return two times in milliseconds.

    Both are measured from the start of the step. The first time ends when Python has launched all kernels.
    The second time ends when the GPU has completed the kernels.
    """
    synchronize(device)
    started = time.perf_counter()
    step()
    launched = time.perf_counter()
    synchronize(device)
    return (launched - started) * 1e3, (time.perf_counter() - started) * 1e3


def synchronize(device: torch.device) -> None:
    """Synchronize with the GPU. On the CPU, do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


__all__ = ["Result", "compile_one", "measure", "stages_of"]
