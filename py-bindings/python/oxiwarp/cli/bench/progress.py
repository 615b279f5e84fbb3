"""Shows the progress of a measurement on stderr.

If stderr is a terminal, progress bars are shown. Otherwise, one line is printed for each stage.
"""

import time
from typing import Any, Protocol


class Progress(Protocol):
    """Protocol (interface) with the methods that a measurement calls to report its progress."""

    def begin(self, stage: str, steps: int = 1) -> None:
        """End the previous stage of the measurement, and begin the stage `stage`, which has `steps` steps."""

    def step(self) -> None:
        """Count one step of this stage."""

    def skip(self, stages: int) -> None:
        """Count stages that the measurement skips."""


class Stages:
    """Progress display for a known number of stages. As a context manager, it removes the bars on exit."""

    def __init__(self, count: int, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._console = console or Console(stderr=True, highlight=False)
        self._count, self._number, self._started = count, 0, time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        shown = self._console.is_terminal
        self._bars = Bars(*columns, console=self._console, transient=True, redirect_stdout=False, disable=not shown)
        self._all = self._bars.add_task("stages", total=count)
        self._stage = self._bars.add_task("", total=1)

    def __enter__(self) -> "Stages":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, stage: str, steps: int = 1) -> None:
        """Begin a stage with the given number of steps."""
        self._bars.update(self._all, completed=self._number)
        self._number += 1
        self._bars.reset(self._stage, description=stage, total=steps)
        if not self._console.is_terminal:
            spent = time.perf_counter() - self._started
            text = f"[{spent:6.1f} s] {self._number} of {self._count}: {stage}"
            self._console.print(text, markup=False, soft_wrap=True)

    def step(self) -> None:
        """Count one step of this stage."""
        self._bars.advance(self._stage)

    def skip(self, stages: int) -> None:
        """Count stages that the measurement skips."""
        self._number += stages


__all__ = ["Progress", "Stages"]
