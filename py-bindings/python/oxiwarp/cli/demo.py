"""Compares the results and the speed of an unpatched and a patched diffusion transformer:
`python -m oxiwarp demo`.

The model is diffusers' LTXVideoTransformer3DModel with seeded random weights and a flow-matching scheduler. On a GPU,
the real 28-layer model runs in bf16 with classifier-free guidance on 49 frames of 512 x 768 pixels (2 x 2688 tokens).
On the CPU, a small model runs in float32 and bf16. The CPU executor runs oxiwarp's kernels.

The demo also measures how much the latents of the two models may differ. It runs the unpatched model a second time, in
the next wider dtype. The difference between the latents in the two dtypes is the rounding error E of the unpatched
model. The patched model rounds at the same points, and only adds the values of a row in a different order. Its rounding
error is therefore about E, too, so the latents of the two models should differ by at most 2 E. The demo fails if the
mean or the maximum of the difference is more than twice the mean or the maximum of E.
"""

import importlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _native, patched
from .bench.measure import synchronize

GUIDANCE = 3.0
WIDER = {torch.bfloat16: torch.float32, torch.float32: torch.float64}


@dataclass(frozen=True)
class Job:
    """One model and one size of latents."""

    config: dict[str, int]
    grid: tuple[int, int, int]  # latent frames, height, width
    dtype: torch.dtype
    steps: int

    @property
    def title(self) -> str:
        """Heading of the job in the output and in the picture."""
        tokens = math.prod(self.grid)
        layers = self.config.get("num_layers", 28)
        return f"LTX-Video, {layers} layers, {str(self.dtype)[6:]}, 2 x {tokens} tokens, {self.steps} steps"


@dataclass
class Outcome:
    """Results of one job, which is a model with a size and a dtype.

    The latents come from three runs: the unpatched model in the next wider dtype (`wide`), the unpatched
    model (`stock`), and the patched model. The times are the seconds of each step of `stock` and of the
    patched model.
    """

    job: Job
    wide: Tensor
    stock: Tensor
    patched: Tensor
    stock_times: list[float]
    patched_times: list[float]

    @property
    def difference(self) -> Tensor:
        """Absolute difference between the patched and the unpatched latents."""
        return (self.patched.double() - self.stock.double()).abs()

    @property
    def own_error(self) -> Tensor:
        """Rounding error of the unpatched model: absolute difference between its latents in the dtype of the
        job and in the next wider dtype.
        """
        return (self.stock.double() - self.wide.double()).abs()

    @property
    def wider(self) -> str:
        """Name of the wider dtype."""
        return str(WIDER[self.job.dtype])[6:]

    @property
    def bounds(self) -> tuple[float, float]:
        """Upper bounds of the mean difference and of the maximum difference."""
        return 2 * self.own_error.mean().item(), 2 * self.own_error.max().item()

    def problem(self) -> str:
        """Return an error message if latents are not finite, or if the patched and the unpatched latents
        differ too much.

        Otherwise, return an empty string.
        """
        finite = all(bool(latents.isfinite().all()) for latents in (self.wide, self.stock, self.patched))
        mean, largest = self.difference.mean().item(), self.difference.max().item()
        mean_bound, largest_bound = self.bounds
        if not finite:
            return "latents are not finite"
        if mean > mean_bound or largest > largest_bound:
            return (
                f"the latents differ by {largest:.3g} at most, {mean:.3g} on average; "
                f"the bounds are {largest_bound:.3g} and {mean_bound:.3g}"
            )
        return ""


def jobs(device: torch.device, steps: int | None) -> list[Job]:
    """Return the jobs of the demo.

    On a GPU, there is one job with the real model. On the CPU, there are two jobs with a small model: one in
    float32 and one in bfloat16.
    """
    if device.type == "cuda":
        return [Job({}, (7, 16, 24), torch.bfloat16, steps or 8)]
    small = dict(
        num_layers=3, num_attention_heads=4, attention_head_dim=32, cross_attention_dim=128, caption_channels=64
    )
    return [Job(small, (2, 4, 6), dtype, steps or 4) for dtype in (torch.float32, torch.bfloat16)]


def build(job: Job, device: torch.device) -> Any:
    """Build the unpatched model with seeded random weights."""
    diffusers: Any = importlib.import_module("diffusers")
    torch.manual_seed(0)
    with device:
        model = diffusers.LTXVideoTransformer3DModel(**job.config)
    return cast(model, job.dtype).eval().requires_grad_(False)


def cast(model: Any, dtype: torch.dtype) -> Any:
    """Convert all parameters and buffers of the model to `dtype`.

    This function calls `torch.nn.Module.to`, because diffusers' `.to` warns about modules that should stay in
    float32.
    """
    return torch.nn.Module.to(model, dtype)


def denoise(job: Job, model: Any, device: torch.device, on_step: Callable[[], None]) -> tuple[Tensor, list[float]]:
    """Run all denoising steps. Return the latents and the seconds of each step.

    Every call for a job starts from the same noise.
    """
    diffusers: Any = importlib.import_module("diffusers")
    dtype, (frames, height, width) = model.dtype, job.grid
    generator = torch.Generator("cpu").manual_seed(1)
    channels, caption = model.config.in_channels, model.config.caption_channels
    latents = torch.randn(1, math.prod(job.grid), channels, generator=generator).to(device)
    prompts = torch.randn(2, 128, caption, generator=generator).to(job.dtype).to(device, dtype)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(job.steps, device=device)
    times = []
    for timestep in scheduler.timesteps:
        synchronize(device)
        started = time.perf_counter()
        unconditional, conditional = model(
            hidden_states=torch.cat([latents, latents]).to(job.dtype).to(dtype),
            encoder_hidden_states=prompts,
            timestep=timestep.expand(2),
            encoder_attention_mask=torch.ones(2, prompts.shape[1], device=device),
            num_frames=frames,
            height=height,
            width=width,
            return_dict=False,
        )[0].chunk(2)
        velocity = unconditional + GUIDANCE * (conditional - unconditional)
        latents = scheduler.step(velocity.to(latents.dtype), timestep, latents, return_dict=False)[0]
        synchronize(device)
        times.append(time.perf_counter() - started)
        on_step()
    return latents.cpu(), times


def run(job: Job, device: torch.device, console: Any) -> Outcome:
    """Run the models of a job: the unpatched model in the next wider dtype, the unpatched model, and then the
    patched model.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console.print(f"\n{job.title}, on {device}", style="bold")
    model = build(job, device)
    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with torch.inference_mode(), Progress(*columns, console=console) as progress:

        def stage(name: str, count: int) -> Callable[[], None]:
            task = progress.add_task(name, total=count)
            return lambda: progress.advance(task)

        wider = WIDER[job.dtype]
        wide, _ = denoise(job, cast(model, wider), device, stage(f"stock in {str(wider)[6:]}", job.steps))
        cast(model, job.dtype)
        warm = Job(job.config, job.grid, job.dtype, 2)
        denoise(warm, model, device, stage("warm-up, stock", 2))
        stock, stock_times = denoise(job, model, device, stage("stock", job.steps))
        with patched(model, cpu_kernels=device.type == "cpu") as report:
            denoise(warm, model, device, stage("warm-up, patched", 2))
            ours, patched_times = denoise(job, model, device, stage("patched", job.steps))
    console.print(report)
    return Outcome(job, wide, stock, ours, stock_times, patched_times)


def describe(outcome: Outcome, device: torch.device, console: Any) -> None:
    """Print the outcome of one job: a table of the differences of the latents, the times per step, and the
    device.
    """
    from rich.table import Table

    difference, own = outcome.difference, outcome.own_error
    table = Table("", "mean", "largest", title="differences of the latents", title_justify="left")
    for name, mean, largest in (
        ("patched - stock", difference.mean().item(), difference.max().item()),
        (f"stock - stock in {outcome.wider}", own.mean().item(), own.max().item()),
        ("bound: twice that", *outcome.bounds),
    ):
        table.add_row(name, f"{mean:.3g}", f"{largest:.3g}")
    console.print(table)
    stock, ours = (median(times) * 1e3 for times in (outcome.stock_times, outcome.patched_times))
    console.print(f"time per step (median): stock {stock:.2f} ms, patched {ours:.2f} ms ({stock / ours:.2f} x)")
    console.print(f"ran on {where(device)}", soft_wrap=True)


def where(device: torch.device) -> str:
    """Return a text that describes the device. For a GPU, the text also names the architecture of the PTX
    that the GPU executes.
    """
    if device.type != "cuda":
        return "the CPU executor: the same kernels, thread by thread; it is for checking, not for speed"
    found = _native.devices()[device.index or 0]
    return f"{found['name']} ({device}), {found['ptx']} PTX, torch {torch.__version__}"


def median(values: list[float]) -> float:
    """Return the median. For an even number of values, return the larger of the two middle values."""
    return sorted(values)[len(values) // 2]


def demo(steps: int | None = None, device: str | None = None, out: str = "demo.png") -> int:
    """Run all jobs of the demo, and write a picture of the outcomes.

    Returns: 0, or 1 if a package is missing or if a difference is too large. The reason is printed.
    """
    try:
        importlib.import_module("diffusers")
        from rich.console import Console

        from .png import save
    except ImportError as error:
        print(f"demo: {error}: pip install diffusers transformers accelerate matplotlib", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    outcomes, problems = [], []
    for job in jobs(place, steps):
        outcome = run(job, place, console)
        describe(outcome, place, console)
        outcomes.append(outcome)
        if problem := outcome.problem():
            problems.append(f"{job.title}: {problem}")
    try:
        save(outcomes, where(place), out, times=place.type == "cuda")
        console.print(f"\npicture: {out}")
    except ModuleNotFoundError as error:
        console.print(f"\nno picture: {error.name} is missing")
    for problem in problems:
        print(f"demo: FAILED: {problem}")
    if not problems:
        print("demo: ok")
    return 1 if problems else 0


__all__ = ["demo"]
