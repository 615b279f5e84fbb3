"""Limits the time of a run. After the limit or a SIGTERM, a program skips its remaining cases and writes
its results."""

import argparse
import signal
import time


class Clock:
    """Measures the time since its creation. At the time limit or after a SIGTERM, the program stops and
    writes its results."""

    def __init__(self, seconds: float | None) -> None:
        self._start, self._seconds, self._told = time.perf_counter(), seconds, False
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    @property
    def is_over(self) -> bool:
        """Return True if the time limit is reached, so that no further measurement may start."""
        return self._told or self.left <= 0

    @property
    def left(self) -> float:
        """Return the seconds until the time limit, or infinity if there is no limit."""
        return float("inf") if self._seconds is None else self._seconds - self.spent

    @property
    def spent(self) -> float:
        """Return the seconds since the clock was created."""
        return time.perf_counter() - self._start


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """Add the option `--seconds`."""
    parser.add_argument("--seconds", type=float, default=None, help="time limit; the remaining cases are skipped")
