"""How long a run may take: when its time is over, or when it is told to end, it leaves out the rest and writes."""

import argparse
import signal
import time


class Clock:
    """Runs from when it is made. A signal to terminate is the end of the time: what is measured is not lost."""

    def __init__(self, seconds: float | None) -> None:
        self._start, self._seconds, self._told = time.perf_counter(), seconds, False
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    @property
    def is_over(self) -> bool:
        """Should nothing more be begun?"""
        return self._told or self.left <= 0

    @property
    def left(self) -> float:
        """Seconds."""
        return float("inf") if self._seconds is None else self._seconds - self.spent

    @property
    def spent(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._start


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument("--seconds", type=float, default=None, help="begin nothing after so many; the rest is left out")
