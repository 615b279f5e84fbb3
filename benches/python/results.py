"""Data classes for the measurements of a run, and the project's performance goals, computed from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

from forms import Shape
from providers import CHAIN_COMPILED, EAGER, FLOOR, OURS
from timing import Time

# The performance goal for the bandwidth applies only to cases whose largest tensor has at least this many
# bytes.
LARGE = 100e6
OF_COPY, OF_COPY_BACKWARD = 0.90, 0.80
EXACT_OVER_FAST = 1.15
# Ops that compute much more than they move. The goal for the bandwidth does not apply to them.
COMPUTE_BOUND = ("linear", "linear_fp8")
FAST = f"{OURS} fast"
COMPILED = "torch.compile"
NOT_MEASURED = "not measured"

# Bandwidth of QuACK's RMSNorm on an H200, divided by the bandwidth of a device copy in the same run. The
# figures are from benches/results/README.md.
QUACK_OF_COPY = {(1, 32768, 3072): 3970 / 4275, (1, 4096, 32768): 4055 / 4275}
LATENCY_SHAPE, LATENCY = (1, 1024, 2048), 3.9


def label_of(shape: Shape) -> str:
    """Format a shape as `2×8064×2048`, without a batch of 1."""
    return "×".join(str(size) for at, size in enumerate(shape) if at or size > 1)


@dataclass(frozen=True)
class Measurement:
    """Result of one op for one model: the time and relative error of each implementation."""

    op: str
    chain: str
    model: str
    shape: Shape
    bytes: int
    largest: int
    """Bytes of the largest tensor."""
    times: dict[str, Time]
    errors: dict[str, float]

    @property
    def label(self) -> str:
        """Return the shape as text."""
        return label_of(self.shape)

    @property
    def title(self) -> str:
        """Return the model and the shape as text."""
        return f"{self.model} {self.label}"

    def rate(self, provider: str = OURS) -> float:
        """Return the bandwidth of the implementation in GB/s."""
        return self.bytes / self.times[provider].median / 1e3

    def best(self, peer: str) -> str | None:
        """Return the name of the fastest measured variant of a baseline, or None if no variant was measured.

        For example, torch.compile has two variants: the compiled model code, and a compiled torch function.
        """
        names = [name for name in self.times if name == peer or name.startswith(f"{peer}(")]
        return min(names, key=lambda name: self.times[name].median, default=None)

    def ratio(self, peer: str, of: str = OURS) -> float | None:
        """Return the time of implementation `peer` (its fastest variant), divided by the time of
        implementation `of`.

        Return None if one of the two implementations was not measured.
        """
        name = self.best(peer)
        if name is None or of not in self.times:
            return None
        return self.times[name].median / self.times[of].median


@dataclass
class Results:
    """Everything that a run measured."""

    measurements: list[Measurement] = field(default_factory=list)
    # bandwidths of the device copy in GB/s, one per measurement
    copies: list[float] = field(default_factory=list)
    per_call: dict[tuple[str, str], float] = field(default_factory=dict)
    import_seconds: float | None = None
    first_call: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    # Baselines that failed or were wrong, each with the reason.
    dropped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # Ops that this build of oxiwarp lacks.
    left_out: list[str] = field(default_factory=list)  # Cases that were skipped for time, memory or an error.

    @property
    def copy(self) -> float:
        """GB/s of a large device-to-device copy in this run."""
        return median(self.copies)

    @property
    def ops(self) -> list[str]:
        """Return the names of the measured ops, in the order of measurement."""
        return list(dict.fromkeys(m.op for m in self.measurements))

    def of(self, op: str) -> list[Measurement]:
        """Return the measurements of one op."""
        return [m for m in self.measurements if m.op == op]

    def left_of(self, op: str) -> int:
        """Return the number of skipped cases of an op."""
        return sum(case.split()[0] == op for case in self.left_out)


@dataclass(frozen=True)
class Goal:
    """A performance goal, whether it is met (None: not measured), and the measured figure as text."""

    text: str
    met: bool | None
    figure: str


def goals(results: Results) -> Iterator[Goal]:
    """Yield all performance goals. A goal for all cases of an op counts as not measured if no case missed it,
    but a case was skipped."""
    for op in dict.fromkeys([*results.ops, *(case.split()[0] for case in results.left_out)]):
        yield from _goals_of(op, results)
    yield from _goals_of_rms_norm(results)
    yield from _goals_of_calls(results)
    right = False if results.wrong else None if results.left_out or not results.measurements else True
    figure = "; ".join(results.wrong) or f"{len(results.measurements)} cases"
    yield Goal("every result right, against float64", right, figure + _not_measured(len(results.left_out)))


def _goals_of(op: str, results: Results) -> Iterator[Goal]:
    """Yield the performance goals that apply to every op."""
    rows, least = results.of(op), OF_COPY_BACKWARD if op.endswith("_backward") else OF_COPY
    large, left = [m for m in rows if m.largest >= LARGE], results.left_of(op)
    if (large or left) and op not in COMPUTE_BOUND:
        text = f"{op}: {least:.0%} of copy or more, tensors of 100 MB and more"
        yield _worst(text, large, lambda m: _of_copy(m, results), least, "{:.1%} of copy", left)
    text = f"{op}: faster than torch.compile"
    yield _worst(text, rows, lambda m: m.ratio(COMPILED), 1.0, "{:.2f} x torch.compile", left)
    if any(FAST in m.times for m in rows):
        text = f"{op}: exact takes at most {EXACT_OVER_FAST:.2f} x fast"
        yield _worst(text, rows, lambda m: m.ratio(FAST), 1 / EXACT_OVER_FAST, "fast at {:.2f} x exact", left)


def _goals_of_rms_norm(results: Results) -> Iterator[Goal]:
    rows, left = results.of("rms_norm"), results.left_of("rms_norm")
    if not rows and not left:
        return
    text = "rms_norm: at least as fast as Liger"
    yield _worst(text, rows, lambda m: m.ratio("Liger"), 1.0, "{:.3f} x Liger", left)
    measured = {m.shape: m for m in rows if OURS in m.times}
    for shape, published in QUACK_OF_COPY.items():
        text = f"rms_norm {label_of(shape)}: QuACK's share of copy, {published:.1%}"
        share = _of_copy(measured[shape], results) if shape in measured else None
        met, figure = (None, NOT_MEASURED) if share is None else (share >= published, f"{share:.1%}")
        yield Goal(text, met, figure)
    text = f"rms_norm {label_of(LATENCY_SHAPE)}: at most {LATENCY} µs"
    if (m := measured.get(LATENCY_SHAPE)) is None:
        yield Goal(text, None, NOT_MEASURED)
        return
    ours, floor = m.times[OURS].median, m.times.get(FLOOR)
    beside = f", a copy kernel takes {floor.median:.2f} µs" if floor else ""
    yield Goal(text, ours <= LATENCY, f"{ours:.2f} µs{beside}")


def _goals_of_calls(results: Results) -> Iterator[Goal]:
    for mode in dict.fromkeys(mode for mode, _ in results.per_call):
        ours, theirs = (results.per_call[mode, what] for what in ("oxiwarp.rms_norm", "F.rms_norm"))
        yield Goal(
            f"a call costs less than F.rms_norm's ({mode})", ours < theirs, f"{ours:.2f} against {theirs:.2f} µs"
        )
    if results.import_seconds is not None:
        yield _at_most("import adds at most 0.1 s to torch's", results.import_seconds, 0.1)
    for op, (cold, warm) in results.first_call.items():
        yield _at_most(f"first call of {op}, driver cache cold, at most 0.5 s", cold, 0.5)
        yield _at_most(f"first call of {op}, driver cache warm, at most 50 ms", warm, 0.05)


def _of_copy(m: Measurement, results: Results) -> float | None:
    return m.rate() / results.copy if OURS in m.times else None


def _at_most(text: str, seconds: float, limit: float) -> Goal:
    return Goal(text, seconds <= limit, f"{seconds * 1e3:.1f} ms")


def _worst(
    text: str,
    rows: list[Measurement],
    value: Callable[[Measurement], float | None],
    least: float,
    figure: str,
    left: int,
) -> Goal:
    """Create a performance goal: for each case in `rows`, `value` must return at least `least`. The text of
    the goal's figure names the worst case.

    `left` is the number of cases that were not run.
    """
    measured = [(found, m.title) for m in rows if (found := value(m)) is not None]
    if not measured:
        return Goal(text, None, NOT_MEASURED)
    worst, title = min(measured)
    short, missing = sum(found < least for found, _ in measured), len(rows) - len(measured) + left
    figure = f"worst {figure.format(worst)}: {title}; {short} of {len(measured)} below{_not_measured(missing)}"
    return Goal(text, False if short else None if missing else True, figure)


def _not_measured(cases: int) -> str:
    return f", {cases} {NOT_MEASURED}" if cases else ""


__all__ = ["CHAIN_COMPILED", "COMPILED", "EAGER", "FAST", "OURS", "Goal", "Measurement", "Results", "goals"]
