"""Limits the time of a benchmark. After the time limit or a SIGTERM, the benchmark skips its remaining cases
and writes its results."""

import argparse
import signal
import time


class Clock:
    """Measures the time since its creation. `is_over` becomes true at the time limit or after a SIGTERM. The
    benchmark then stops and writes its results."""

    def __init__(self, seconds: float | None) -> None:
        self._start, self._seconds, self._told = time.perf_counter(), seconds, False
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    @property
    def is_over(self) -> bool:
        """Return True after the time limit or a SIGTERM. No further measurement may then start."""
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
