"""The demo's picture: where the latents differ, and the time of each step."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from .demo import Outcome


def save(outcomes: "list[Outcome]", where: str, path: str) -> None:
    """One row per job: a latent frame, the difference there, all differences beside rounding's, times per step.

    Raises ModuleNotFoundError where matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(outcomes), 4, figsize=(18, 3.9 * len(outcomes)), squeeze=False, layout="constrained"
    )
    for row, outcome in zip(axes, outcomes, strict=True):
        for axis, title, values, colors in (
            (row[0], "stock latents, first frame", first_frame(outcome, outcome.stock), "viridis"),
            (row[1], "|patched - stock|, first frame", first_frame(outcome, outcome.difference), "magma"),
        ):
            figure.colorbar(axis.imshow(values, cmap=colors), ax=axis, shrink=0.8)
            axis.set_title(title)
            axis.set_axis_off()
        histogram(row[2], outcome)
        bars(row[3], outcome)
        row[0].text(0, -0.06, outcome.job.title, transform=row[0].transAxes, va="top", fontsize=9)
    figure.suptitle(f"oxiwarp: stock and patched, on {where}", fontsize=10)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def first_frame(outcome: "Outcome", latents: "Tensor") -> "Tensor":
    """The mean over channels of the first latent frame, as an image."""
    return latents[0].float().reshape(*outcome.job.grid, -1)[0].mean(-1)


def histogram(axis: Any, outcome: "Outcome") -> None:
    """How often the latents differ by how much."""
    import numpy as np

    floor = float(outcome.own_error.max()) * 1e-6 or 1e-12
    for values, label in ((outcome.difference, "patched - stock"), (outcome.own_error, "stock - wider type")):
        axis.hist(np.log10(values.flatten().clamp_min(floor).numpy()), bins=60, alpha=0.6, label=label)
    axis.set_title("differences of all latents")
    axis.set_xlabel("log10 of the difference")
    axis.set_yticks([])
    axis.legend(fontsize=8)


def bars(axis: Any, outcome: "Outcome") -> None:
    """Milliseconds of each step."""
    for shift, times, label in ((-0.2, outcome.stock_times, "stock"), (0.2, outcome.patched_times, "patched")):
        axis.bar([at + shift for at in range(1, len(times) + 1)], [t * 1e3 for t in times], width=0.4, label=label)
    axis.set_title("time per step (ms)")
    axis.set_xlabel("step")
    axis.set_xticks(range(1, len(outcome.stock_times) + 1))
    axis.legend(fontsize=8)


__all__ = ["save"]
