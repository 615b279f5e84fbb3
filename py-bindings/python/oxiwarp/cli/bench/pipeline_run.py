"""Times complete calls of a diffusers pipeline, from the prompt to the picture.

The pipeline has several variants with the same weights, for example unpatched and patched. The calls of the
variants alternate.
"""

import copy
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ... import patch
from .measure import compare, synchronize, twin
from .pipelines import PROMPT, PipelineKind, Size
from .progress import Progress
from .turns import in_turns
from .variants import Variant


@dataclass
class Call:
    """Wall-clock times of one pipeline call in seconds, and the peak GPU memory of the call."""

    seconds: float
    text: float
    """Seconds until the prompt is encoded."""
    decoding: float
    """Seconds from the start of the VAE's decoder to the end of the call."""
    peak_bytes: int | None
    """Largest number of bytes of allocated GPU memory, or None on the CPU."""

    @property
    def denoising(self) -> float:
        """Seconds from the end of the prompt encoding to the start of the VAE's decoder.

        In this time, the pipeline creates the latents and runs the denoiser and the scheduler.
        """
        return self.seconds - self.text - self.decoding


@dataclass
class PipelineResult:
    """Measurements of one variant of a pipeline."""

    variant: Variant
    first: Call | None = None
    """Times of the first call, which include compilation and the loading of kernels."""
    calls: list[Call] = field(default_factory=list)
    equal: float | None = None
    """Fraction of the values of the picture that equal those of the unpatched pipeline's picture."""
    psnr: float | None = None
    report: str = ""
    clock_mhz: float | None = None
    """Median of the SM clock in MHz while the variant ran."""
    watts: float | None = None
    """Median of the GPU's power draw in watts while the variant ran."""
    error: str = ""

    @property
    def typical(self) -> Call:
        """The call with the median time."""
        return sorted(self.calls, key=lambda call: call.seconds)[len(self.calls) // 2]


def measure_pipeline(
    kind: PipelineKind,
    pipe: Any,
    size: Size,
    variants: Sequence[Variant],
    device: torch.device,
    rounds: int,
    progress: Progress,
) -> Iterator[list[PipelineResult]]:
    """Call each variant once, and compare its picture with the unpatched pipeline's picture. Then time
    further calls. In these calls, the variants alternate.

    Yield the results of all variants after the first call of each variant and at the end, so that an interruption loses
    few results. The first variant must be the unpatched pipeline. If this variant fails, its exception is raised.
    """
    results: list[PipelineResult] = []
    timed: dict[int, Callable[[], tuple[Call, Tensor]]] = {}
    reference: Tensor | None = None
    for at, variant in enumerate(variants):
        progress.begin(f"{variant.name}: first call")
        result = PipelineResult(variant)
        results.append(result)
        try:
            own = copy_pipeline(pipe)
            result.report = prepare(own, variant, device)
            call = caller(kind, own, size, device)
            result.first, picture = call()
        except Exception as failure:
            if reference is None:
                raise
            result.error = explain(failure)
            continue
        progress.step()
        reference = picture if reference is None else reference
        result.equal, result.psnr = compare(picture, reference)
        timed[at] = call
        yield results
    states: dict[int, list[tuple[float, float]]] = {at: [] for at in timed}
    progress.begin(f"{rounds} rounds of {len(timed)} variants", rounds * len(timed))
    for _, at in in_turns(timed, rounds):
        with GpuState(device) as state:
            results[at].calls.append(timed[at]()[0])
        states[at] += state.samples
        if states[at]:
            results[at].clock_mhz, results[at].watts = (median(column) for column in zip(*states[at], strict=True))
        progress.step()
    yield results


def copy_pipeline(pipe: Any) -> Any:
    """Copy a pipeline with its modules and its scheduler.

    The modules of the copy use the parameters and buffers of `pipe`, which are not copied.
    """
    own = copy.copy(pipe)
    for name, part in pipe.components.items():
        if isinstance(part, nn.Module):
            setattr(own, name, twin(part))
        elif name == "scheduler":
            setattr(own, name, copy.deepcopy(part))
    return own


def prepare(pipe: Any, variant: Variant, device: torch.device) -> str:
    """Patch the pipeline and compile its denoiser (the transformer or UNet), as `variant` says.

    Return the report of `patch` as text, or "" if the pipeline was not patched.
    """
    report = ""
    if variant.mode is not None:
        options: Any = {"cpu_kernels": device.type == "cpu", "attention": variant.attention, "allow_empty": True}
        report = str(patch(pipe, mode=variant.mode, **options))
    if variant.compiled:
        denoiser(pipe).compile(fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    return report


def denoiser(pipe: Any) -> Any:
    """Return the transformer or the UNet of a pipeline."""
    found = getattr(pipe, "transformer", None)
    return found if found is not None else pipe.unet


def caller(kind: PipelineKind, pipe: Any, size: Size, device: torch.device) -> Callable[[], tuple[Call, Tensor]]:
    """Return a function that calls the pipeline and takes no arguments.

    This function returns the times of the call, and the picture or video as a CPU tensor.
    """
    pipe.set_progress_bar_config(disable=True)
    marks: dict[str, float] = {}
    encode, decode = pipe.encode_prompt, pipe.vae.decode

    def encode_prompt(*args: Any, **kwargs: Any) -> Any:
        found = encode(*args, **kwargs)
        synchronize(device)
        marks["encoded"] = time.perf_counter()
        return found

    def decode_latents(*args: Any, **kwargs: Any) -> Any:
        synchronize(device)
        marks.setdefault("denoised", time.perf_counter())
        return decode(*args, **kwargs)

    pipe.encode_prompt, pipe.vae.decode = encode_prompt, decode_latents
    options = dict(kind.options, height=size.height, width=size.width, num_inference_steps=size.steps)
    if size.frames is not None:
        options["num_frames"] = size.frames

    def call() -> tuple[Call, Tensor]:
        marks.clear()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        synchronize(device)
        started = time.perf_counter()
        generator = torch.Generator("cpu").manual_seed(0)
        with torch.no_grad():
            output = pipe(prompt=[PROMPT] * size.batch, generator=generator, output_type="pt", **options)
        synchronize(device)
        ended = time.perf_counter()
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        picture = output.images if size.frames is None else output.frames
        times = Call(ended - started, marks["encoded"] - started, ended - marks["denoised"], peak)
        return times, torch.as_tensor(picture).float().cpu()

    return call


def explain(failure: BaseException) -> str:
    """Describe an exception in one line.

    If the exception is torch.OutOfMemoryError, the line says how much memory torch uses.
    """
    if isinstance(failure, torch.OutOfMemoryError):
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        used = torch.cuda.memory_allocated()
        return (
            f"the GPU has no memory left: {used / 2**30:.1f} of {total / 2**30:.1f} GiB are in use. Choose a smaller "
            "--height, --width, --frames or --batch, or fewer variants"
        )
    return f"{type(failure).__name__}: {str(failure).strip().splitlines()[0] if str(failure).strip() else ''}"


class GpuState:
    """Context manager that samples the SM clock and the power draw of a GPU with nvidia-smi, until the `with`
    block ends.

    On the CPU, it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.samples = device, list[tuple[float, float]]()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "GpuState":
        if self._device.type == "cuda":
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
            query = ["nvidia-smi", "-i", uuid, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
            self._lines = tempfile.TemporaryFile()
            try:
                self._process = subprocess.Popen([*query, "-lms", "250"], stdout=self._lines, stderr=subprocess.DEVNULL)
            except OSError:
                self._process = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait()
        self._lines.seek(0)
        for line in self._lines.read().decode().splitlines():
            try:
                clock, watts = map(float, line.split(","))
            except ValueError:  # "[N/A]", or a line that was cut off
                continue
            if math.isfinite(clock) and math.isfinite(watts):
                self.samples.append((clock, watts))


__all__ = ["Call", "PipelineResult", "explain", "measure_pipeline"]
