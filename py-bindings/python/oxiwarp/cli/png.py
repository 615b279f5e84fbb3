"""Draws the picture that the demo (`python -m oxiwarp demo`) writes.

The picture compares two errors: the difference between patched and unpatched latents, and the rounding error
of the unpatched model.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .palette import BLACK, BLUE, ORANGE

if TYPE_CHECKING:
    from torch import Tensor

    from .demo import Outcome

PATCHED, STOCK = BLUE, ORANGE
# The curves also have different line styles and markers, for readers who cannot distinguish the colours.
SERIES: dict[str, dict[str, Any]] = {
    "patched against stock": dict(color=PATCHED, linestyle="-", marker="o", markersize=9),
    "stock against stock in a wider type: rounding error": dict(
        color=STOCK, linestyle="--", marker="D", markersize=9, markerfacecolor="none", markeredgewidth=2
    ),
    "bound: twice the rounding error": dict(color=BLACK, linestyle="", marker="|", markersize=18, markeredgewidth=2),
}
LEGEND: dict[str, Any] = dict(loc="outside lower center", ncols=3, fontsize=10, handlelength=4)


def save(outcomes: "list[Outcome]", where: str, path: str, times: bool) -> None:
    """Draw the picture of the demo and write it to `path`. Raise ModuleNotFoundError if matplotlib is
    missing.
    """
    figure = draw(outcomes, where, times)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw(outcomes: "list[Outcome]", where: str, times: bool) -> Any:
    """Draw a row of panels for each job.

    The panels show two errors: the difference between the patched and the unpatched latents, and the rounding
    error of the unpatched model. The first two panels show these errors in the first latent frame. The third
    panel shows their distributions. The fourth panel shows their means and maxima, and the permitted bounds.
    If `times` is True, a fifth panel shows the time of each step. Pass False for the CPU executor, because
    times on the CPU executor are not meaningful.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = 5 if times else 4
    figure = Figure(figsize=(4.2 * columns, 3.7 * len(outcomes) + 0.8), layout="constrained")
    rows = figure.subfigures(len(outcomes), 1, squeeze=False)[:, 0]
    for row, outcome in zip(rows, outcomes, strict=True):
        row.suptitle(outcome.job.title, fontsize=11)
        axes = row.subplots(1, columns)
        images(row, axes[:2], outcome)
        shares(axes[2], outcome)
        checked(axes[3], outcome)
        if times:
            steps(axes[4], outcome)
    figure.suptitle(f"oxiwarp demo on {where}", fontsize=11)
    figure.legend(handles=[Line2D([], [], label=label, **line) for label, line in SERIES.items()], **LEGEND)
    return figure


def images(figure: Any, axes: Any, outcome: "Outcome") -> None:
    """Draw two images of the first latent frame with the same colour scale. One shows the difference between
    patched and unpatched latents, the other the rounding error of the unpatched model.
    """
    errors = ((outcome.difference, "|patched - stock|"), (outcome.own_error, f"|stock - stock in {outcome.wider}|"))
    frames = [first_frame(outcome, latents) for latents, _ in errors]
    largest = max(float(frame.max()) for frame in frames) or 1.0
    for axis, frame, (_, title) in zip(axes, frames, errors, strict=True):
        image = axis.imshow(frame, cmap="cividis", vmin=0, vmax=largest)
        axis.set_title(f"{title}\nfirst frame, mean of channels", fontsize=10)
        axis.set_axis_off()
    figure.colorbar(image, ax=axes, shrink=0.8, label="error of a latent")


def first_frame(outcome: "Outcome", latents: "Tensor") -> "Tensor":
    """Return the first frame of `latents` as an image. Each pixel is the mean over the channels."""
    return latents[0].float().reshape(*outcome.job.grid, -1)[0].mean(-1)


def shares(axis: Any, outcome: "Outcome") -> None:
    """Draw the fraction of latents whose error is larger than x, as a function of x.

    The x axis is logarithmic, so errors of 0 are not visible.
    """
    for values, color, style in ((outcome.difference, PATCHED, "-"), (outcome.own_error, STOCK, "--")):
        values = values.flatten().double()
        axis.ecdf(values.numpy(), complementary=True, color=color, linestyle=style, linewidth=2)
    smallest = min(
        (float(values[values > 0].min()) for values in (outcome.difference, outcome.own_error) if values.any()),
        default=None,
    )
    if smallest is not None:
        axis.set_xscale("log")
        axis.set_xlim(left=max(smallest, 1e-5 * outcome.bounds[1]))
    axis.set_yticks((0, 0.25, 0.5, 0.75, 1), ("0 %", "25 %", "50 %", "75 %", "100 %"))
    axis.set_title("all latents:\nshare with a larger error", fontsize=10)
    axis.set_xlabel("error of a latent")
    axis.grid(alpha=0.3)


def checked(axis: Any, outcome: "Outcome") -> None:
    """Draw the values that the demo checks.

    They are the mean and the maximum of two errors, and their permitted bounds. The errors are the difference
    between patched and unpatched latents, and the rounding error of the unpatched model.
    """
    difference, own = outcome.difference, outcome.own_error
    means, maxima = (difference.mean().item(), own.mean().item()), (difference.max().item(), own.max().item())
    errors = (*zip(means, maxima, strict=True), outcome.bounds)
    for (label, line), values in zip(SERIES.items(), errors, strict=True):
        axis.plot(values, (1, 0), label=label, **{**line, "linestyle": ""})
    axis.margins(x=0.08)
    axis.set(yticks=(1, 0), yticklabels=("mean", "maximum"), ylim=(-0.6, 1.6), xlabel="error of the latents")
    axis.ticklabel_format(axis="x", scilimits=(-3, 3))
    axis.grid(axis="x", alpha=0.3)
    verdict = "the difference is too large" if outcome.problem() else "the difference is within the bound"
    axis.set_title(f"the check:\n{verdict}", fontsize=10)


def steps(axis: Any, outcome: "Outcome") -> None:
    """Draw the time of each denoising step in milliseconds, for the unpatched and the patched model."""
    both = ((-0.2, outcome.stock_times, "stock", STOCK, "//"), (0.2, outcome.patched_times, "patched", PATCHED, ""))
    for shift, times, label, color, hatch in both:
        places = [at + shift for at in range(1, len(times) + 1)]
        axis.bar(places, [t * 1e3 for t in times], 0.4, color=color, hatch=hatch, edgecolor=BLACK, label=label)
    axis.set_title("time of a step", fontsize=10)
    axis.set(xlabel="step", ylabel="ms", xticks=range(1, len(outcome.stock_times) + 1))
    axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


__all__ = ["draw", "save"]
