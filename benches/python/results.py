"""The measurements as data, and the project's goals as checks on them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from ops import DTYPE
from timing import Time

LARGE = 200e6  # bytes of one tensor, rows x columns x 2: from here on a kernel must be at the speed of memory
SHARE_OF_COPY = 0.94
COMPILED = ("torch.compile(chain)", "torch.compile(F.rms_norm)")


@dataclass(frozen=True)
class Measurement:
    """One op on one shape: time and relative error by provider."""

    op: str
    rows: int
    cols: int
    bytes: int
    times: dict[str, Time]
    errors: dict[str, float]

    @property
    def tensor_bytes(self) -> int:
        """Of `x`: rows x columns x 2, whatever the op reads and writes beside it."""
        return self.rows * self.cols * DTYPE.itemsize

    def rate(self, provider: str) -> float:
        """GB/s."""
        return self.bytes / self.times[provider].median / 1e3

    def ratio(self, peer: str) -> float | None:
        """How many times as fast as the peer oxiwarp is, or None where one was not measured."""
        if peer not in self.times or "oxiwarp" not in self.times:
            return None
        return self.times[peer].median / self.times["oxiwarp"].median

    def compiled(self) -> str | None:
        """The faster of the compiled forms."""
        measured = [name for name in COMPILED if name in self.times]
        return min(measured, key=lambda name: self.times[name].median) if measured else None


@dataclass
class Results:
    """Everything that a run measured."""

    measurements: list[Measurement] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)  # GB/s, one for each shape
    per_call: dict[tuple[str, str], float] = field(default_factory=dict)
    import_seconds: float | None = None
    first_call: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def copy(self) -> float:
        """GB/s of a large device-to-device copy in this run."""
        return median(self.copies)


@dataclass(frozen=True)
class Goal:
    """A goal, whether it is met (None: not measured) and the figure."""

    text: str
    met: bool | None
    figure: str


def goals(results: Results) -> Iterator[Goal]:
    """The stated goals."""
    rows = [m for m in results.measurements if m.op == "rms_norm"]
    ratios = [m.ratio("Liger") for m in rows]
    yield _worst("rms_norm at least as fast as Liger on every row", rows, ratios, 1.0, "{:.3f} x Liger")
    large = [m for m in rows if m.tensor_bytes >= LARGE]
    shares = [m.rate("oxiwarp") / results.copy if "oxiwarp" in m.times else None for m in large]
    text = "rms_norm at 94 % of copy or more, tensors (rows x columns x 2 bytes) of 200 MB and more"
    yield _worst(text, large, shares, SHARE_OF_COPY, "{:.1%} of copy")
    for mode in ("inference_mode", "no_grad"):
        ours, theirs = (results.per_call.get((mode, what)) for what in ("oxiwarp.rms_norm", "F.rms_norm"))
        text = f"a call costs less than F.rms_norm's ({mode})"
        if ours is None or theirs is None:
            yield Goal(text, None, "not measured")
        else:
            yield Goal(text, ours < theirs, f"{ours:.2f} against {theirs:.2f} µs")
    yield _at_most("import adds at most 0.1 s to torch's", results.import_seconds, 0.1)
    for op, (cold, warm) in results.first_call.items():
        yield _at_most(f"first call of {op}, driver cache cold, at most 0.5 s", cold, 0.5)
        yield _at_most(f"first call of {op}, driver cache warm, at most 50 ms", warm, 0.05)
    right = not results.wrong if results.measurements else None
    figure = "; ".join(results.wrong) or f"{len(results.measurements)} rows"
    yield Goal("every result right, against float64", right, figure)


def _at_most(text: str, seconds: float | None, limit: float) -> Goal:
    if seconds is None:
        return Goal(text, None, "not measured")
    return Goal(text, seconds <= limit, f"{seconds * 1e3:.1f} ms")


def _worst(text: str, rows: list[Measurement], values: list[float | None], least: float, figure: str) -> Goal:
    """A goal on every row: the worst row decides, and is named."""
    measured = [(value, f"{m.rows} x {m.cols}") for value, m in zip(values, rows, strict=True) if value is not None]
    if not measured:
        return Goal(text, None, "not measured")
    value, shape = min(measured)
    short = sum(value < least for value, _ in measured)
    return Goal(text, not short, f"worst {figure.format(value)} at {shape}; {short} of {len(measured)} rows below")


__all__ = ["COMPILED", "Goal", "Measurement", "Results", "goals"]
