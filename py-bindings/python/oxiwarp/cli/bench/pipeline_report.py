"""The command `bench --pipeline`.

It measures pipelines, prints tables and writes results files. The module also compares two results files, for
`bench --compare`.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .pipeline_run import Call, PipelineResult, explain, measure_pipeline
from .pipelines import PIPELINES, PipelineKind, Size, check_folder, default_dtype, from_folder
from .progress import Stages
from .variants import STOCK, VARIANTS

DEFAULT_VARIANTS = ("eager", "compiled", "patched", "patched-compiled")
COLUMNS = (
    "variant",
    "seconds",
    "less time",
    "steps/s",
    "text, s",
    "denoising, s",
    "decoding, s",
    "first call, s",
    "peak, GiB",
    "equal values",
    "PSNR, dB",
    "MHz",
    "W",
)


def bench_pipelines(
    names: Sequence[str],
    variants: Sequence[str] | None,
    rounds: int,
    device: str,
    small: bool,
    out: str | None,
    weights: str | None = None,
    **sizes: int | None,
) -> int:
    """Measure the pipelines, print tables, and write `<out>/pipeline-<name>.json` for each pipeline.

    `sizes` maps fields of `Size`, such as "height", to values that replace the pipeline's published values.
    `weights` is a folder with a diffusers pipeline, or None for random weights.

    Returns: 0, or 1 if a pipeline or a variant failed. The reason for the failure is printed, and the
    measurement continues with the next pipeline or variant.

    Raises:
        ValueError: the VAE does not support a size in `sizes`, or `weights` is not a pipeline with a VAE. If
            this error is raised, nothing is measured.
    """
    from rich.console import Console

    from . import forget, machine, place_and_dtype, where

    place, dtype = place_and_dtype(device)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    kinds = [PIPELINES[name] for name in names]
    chosen_sizes = [checked_size(kind, small, **sizes) for kind in kinds]
    if weights is not None and len(kinds) != 1:
        raise ValueError("--weights has one pipeline, expected one --pipeline")
    if weights is not None:
        check_folder(weights)
    wanted = (STOCK, *(DEFAULT_VARIANTS if variants is None else variants))
    chosen = [variant for variant in VARIANTS if variant.name in wanted]
    failed = False
    for kind, size in zip(kinds, chosen_sizes, strict=True):
        console.print(f"\n{title(kind, size)}, {str(dtype)[6:]}, {where(place)}", style="bold", markup=False)
        results: list[PipelineResult] = []
        try:
            with Stages(2 + len(chosen)) as progress:
                progress.begin("building the pipeline")
                pipe = built(kind, small, place, dtype) if weights is None else from_folder(weights, dtype).to(place)
                progress.step()
                for results in measure_pipeline(kind, pipe, size, chosen, place, rounds, progress):
                    if out is not None:
                        facts = {"pipeline": kind.name, "title": title(kind, size), "size": asdict(size)}
                        facts |= {"weights": "random" if weights is None else "of a folder", **machine(place, dtype)}
                        file = Path(out) / file_name(kind, size, small)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        record = {**facts, "results": [figures(result, size) for result in results]}
                        file.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        except Exception as failure:
            console.print(f"{kind.name}: not measured: {explain(failure)}", markup=False)
            failed = True
            continue
        finally:
            pipe = None
            forget()
        show(f"{kind.name}, prompt to result", [figures(result, size) for result in results], console)
        failed |= any(result.error for result in results)
    return int(failed)


def built(kind: PipelineKind, small: bool, device: torch.device, dtype: torch.dtype) -> Any:
    """Build a pipeline with seeded random weights. The weights are created in `dtype` on `device`."""
    torch.manual_seed(0)
    with default_dtype(dtype), device:  # a model of 20 billion parameters does not fit in float32
        pipe = kind.build(small)
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval().requires_grad_(False)
    return pipe.to(device)


def checked_size(kind: PipelineKind, small: bool, **sizes: int | None) -> Size:
    """Return the published size of a pipeline with the changes in `sizes`. Raise ValueError if the pipeline
    does not support the result.
    """
    size = replace(kind.small if small else kind.size, **{name: n for name, n in sizes.items() if n is not None})
    for name, pixels in (("height", size.height), ("width", size.width)):
        if pixels % kind.multiple:
            near = max(kind.multiple, round(pixels / kind.multiple) * kind.multiple)
            raise ValueError(
                f"--{name} is {pixels}, expected a multiple of {kind.multiple} for {kind.name}: try {near}"
            )
    if (size.frames is None) != (kind.frame_step is None):
        raise ValueError(f"--frames is given, and {kind.name} makes pictures, not videos")
    if size.frames is not None and kind.frame_step is not None and (size.frames - 1) % kind.frame_step:
        near = (size.frames - 1) // kind.frame_step * kind.frame_step + 1
        raise ValueError(
            f"--frames is {size.frames}, expected a multiple of {kind.frame_step} plus 1 for {kind.name}: try {near}"
        )
    return size


def file_name(kind: PipelineKind, size: Size, small: bool) -> str:
    """Return the name of the results file for a measured pipeline.

    The name contains each value of `size` that differs from the usual value of the pipeline.
    """
    usual = asdict(kind.small if small else kind.size)
    changes = [f"-{name}{value}" for name, value in asdict(size).items() if value != usual[name]]
    return f"pipeline-{kind.name}{''.join(changes)}.json"


def title(kind: PipelineKind, size: Size) -> str:
    """Return a heading with the pipeline's name and the values of `size`, for example "LTX-Video, 512 x 768,
    49 frames, 30 steps".
    """
    frames = "" if size.frames is None else f", {size.frames} frames"
    batch = "" if size.batch == 1 else f", batch {size.batch}"
    return f"{kind.title}, {size.height} x {size.width}{frames}, {size.steps} steps{batch}"


def figures(result: PipelineResult, size: Size) -> dict[str, Any]:
    """Return the result of a variant as a dict for results files and tables.

    Infinite and NaN values are replaced by None.
    """
    from . import figures_of_agreement

    typical = result.typical if result.calls else None
    return {
        "variant": asdict(result.variant),
        "seconds": None if typical is None else median(call.seconds for call in result.calls),
        "steps_per_second": None if typical is None else size.steps / typical.denoising,
        "typical": None if typical is None else times(typical),
        "first": None if result.first is None else times(result.first),
        "calls": [times(call) for call in result.calls],
        **figures_of_agreement(result.equal, result.psnr),
        "clock_mhz": result.clock_mhz,
        "watts": result.watts,
        "report": result.report,
        "error": result.error,
    }


def times(call: Call) -> dict[str, Any]:
    """Return the times and the peak memory of one pipeline call as a dict."""
    return {**asdict(call), "denoising": call.denoising}


def show(heading: str, results: Sequence[dict[str, Any]], console: Any) -> None:
    """Print a table with the results of a pipeline, one row per variant. For each variant that failed, print
    the reason instead.
    """
    from rich.table import Table

    for result in results:
        if result["error"]:
            console.print(f"{result['variant']['name']}: not measured: {result['error']}", markup=False)
    measured = [result for result in results if result["typical"] is not None]
    if not measured:
        return
    table = Table(*COLUMNS, title=heading, title_justify="left")
    for result in measured:
        table.add_row(*cells(result, measured[0]))
    console.print(table)


def cells(result: dict[str, Any], stock: dict[str, Any]) -> list[str]:
    """Return the table row of a variant: one text per column. `stock` is the result of the unpatched
    pipeline.
    """

    def text(value: float | None, pattern: str) -> str:
        return "" if value is None else pattern.format(value)

    typical, first = result["typical"], result["first"]
    peak = typical["peak_bytes"]
    return [
        result["variant"]["name"],
        f"{result['seconds']:.3f}",
        "" if result is stock else f"{1 - result['seconds'] / stock['seconds']:.1%}",
        f"{result['steps_per_second']:.2f}",
        *(
            f"{typical[part]:.3f} ({typical[part] / typical['seconds']:.0%})"
            for part in ("text", "denoising", "decoding")
        ),
        f"{first['seconds']:.1f}",
        "" if peak is None else f"{peak / 2**30:.1f}",
        text(result["equal"], "{:.2%}"),
        text(result["psnr"], "{:.1f}"),
        text(result["clock_mhz"], "{:.0f}"),
        text(result["watts"], "{:.0f}"),
    ]


def compare_files(first: str, second: str) -> int:
    """Print two results files of `bench --pipeline` next to each other.

    For each variant in both files, also print by how many percent the time in the second file is shorter.

    Returns: 0.

    Raises:
        ValueError: a file is not a results file of `bench --pipeline`, or the files have different pipelines
            or sizes.
    """
    from rich.console import Console
    from rich.table import Table

    records = [read(name) for name in (first, second)]
    a, b = records
    if (a["pipeline"], a["size"]) != (b["pipeline"], b["size"]):
        raise ValueError(f"--compare: {first} has {a['title']}, {second} has {b['title']}: expected the same run")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table("", first, second, title=a["title"], title_justify="left")
    for fact in ("device", "driver", "dtype", "weights", "date", "commit"):
        table.add_row(fact, *(str(record[fact]) for record in records))
    for package in sorted({*a["versions"], *b["versions"]}):
        table.add_row(package, *(record["versions"].get(package, "") for record in records))
    console.print(table)
    found = [{result["variant"]["name"]: result for result in record["results"]} for record in records]
    table = Table("seconds", first, second, "less time", "denoising, s", "", "first call, s", "", "peak, GiB", "")
    for name in found[0]:
        pair = [results.get(name) for results in found]
        if any(result is None or result["typical"] is None for result in pair):
            continue
        x, y = (result for result in pair if result is not None)
        row = [name, f"{x['seconds']:.3f}", f"{y['seconds']:.3f}", f"{1 - y['seconds'] / x['seconds']:.1%}"]
        row += [f"{each['typical']['denoising']:.3f}" for each in (x, y)]
        row += [f"{each['first']['seconds']:.1f}" for each in (x, y)]
        peaks = (each["typical"]["peak_bytes"] for each in (x, y))
        table.add_row(*row, *("" if peak is None else f"{peak / 2**30:.1f}" for peak in peaks))
    console.print(table)
    return 0


def read(name: str) -> dict[str, Any]:
    """Read a results file of `bench --pipeline`. Raise ValueError if the file cannot be read or is not a
    results file.
    """
    try:
        record: dict[str, Any] = json.loads(Path(name).read_text())
        if {"pipeline", "size", "results", "versions"} <= set(record):
            return record
    except (OSError, ValueError) as error:
        raise ValueError(f"--compare {name}: {error}") from None
    raise ValueError(f"--compare {name}: not a results file of bench --pipeline")


__all__ = ["bench_pipelines", "compare_files"]
