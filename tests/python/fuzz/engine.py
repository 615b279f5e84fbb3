"""Runs the checks of a random case (one call of an operator), simplifies a failing case, and describes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import checks
from .case import OPERATORS, Case, Operator
from .checks import Failed, Refused
from .draw import Draw

ATTEMPTS = 150  # maximum number of attempts to minimise a failing case


@dataclass
class Outcome:
    """The result of running a case."""

    case: Case | None
    choices: list[int]
    failure: Failed | None = None
    refused: str = ""
    known: str = ""
    """A known fault that the case shows, or an empty string."""
    worst: float = 0.0
    """The largest ratio of error to allowed error of a result."""
    gradient: float = 0.0
    """The largest ratio of error to allowed error of a gradient; 0 if no gradient was compared."""


def run_case(operator: Operator, key: str, choices: Sequence[int] | None = None, device: str = "cpu") -> Outcome:
    """Make a case from the seed `key`, or from recorded random choices, and check it. Some checks run only
    for a random subset of the cases."""
    draw = Draw(key, choices, device)
    outcome = Outcome(None, draw.choices)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are too small for several threads
    try:
        with torch.no_grad():
            outcome.case = operator.draw(draw)
            outcome.case.special = draw.special
            _check(operator, outcome.case, draw, outcome)
    except Refused as refused:
        outcome.refused = str(refused)
    except Failed as failed:
        outcome.failure = failed
        if outcome.case is not None and failed.check in outcome.case.known:
            outcome.failure, outcome.known = None, outcome.case.known[failed.check]
    finally:
        torch.set_num_threads(threads)
    return outcome


def _check(operator: Operator, case: Case, draw: Draw, outcome: Outcome) -> None:
    seed = draw.below(2**31)
    got = checks.run(operator, case, case.given())
    outcome.worst, expected = checks.check_forward(operator, case, got, seed)
    if draw.maybe(0.3):
        checks.check_repeated(operator, case, got, draw)
    if case.row is not None and draw.maybe(0.4):
        checks.check_rows(operator, case, draw)
    if case.differentiable and case.ordinary and draw.maybe(0.6):
        outcome.gradient = checks.check_gradients(operator, case, got, draw, seed)
    if operator.writes and not case.options.get("return_lse") and draw.maybe(0.4):
        checks.check_out(operator, case, got, expected, draw)
    if draw.maybe(0.1) and all(x.numel() for x in case.given().values()):
        checks.check_vmap(operator, case, draw)


def key_of(operator: str, seed: int, number: int) -> str:
    """Return the seed of one random case, as a string."""
    return f"{operator}/{seed}/{number}"


def minimise(operator: Operator, key: str, failed: Outcome, device: str = "cpu") -> Outcome:
    """Return the outcome of a simpler case that fails the same check. The random choices of the case are
    integers, which are lowered one by one."""
    best, attempts = failed, 0
    assert failed.failure is not None
    improved = True
    while improved and attempts < ATTEMPTS:
        improved, at = False, 0
        while at < len(best.choices) and attempts < ATTEMPTS:
            value = best.choices[at]
            for lower in dict.fromkeys((0, value // 2, value - 1)):
                if not 0 <= lower < value or attempts >= ATTEMPTS:
                    continue
                attempts += 1
                other = _attempt(operator, key, [*best.choices[:at], lower, *best.choices[at + 1 :]], device)
                if other.failure is not None and other.failure.check == failed.failure.check:
                    best, improved = other, True
                    break
            at += 1
    return best


def _attempt(operator: Operator, key: str, choices: list[int], device: str) -> Outcome:
    try:
        return run_case(operator, key, choices, device)
    except Exception:  # Changed random choices may contradict each other, so that they give no valid case.
        return Outcome(None, choices)


def arguments(outcome: Outcome) -> list[str]:
    """Return lines that describe the arguments of a case."""
    case = outcome.case
    if case is None:
        return []
    lines = [f"    {name} = {text(x)}" for name, x in (case.tensors | case.options).items()]
    return [*lines, f"    rows: {case.special}"]


def describe(operator: str, seed: int, number: int, outcome: Outcome, device: str = "cpu") -> str:
    """Describe a failing case, with the command that runs only this case."""
    on = "" if device == "cpu" else f" --device {device}"
    command = f"    python tests/python/fuzz --op {operator} --seed {seed} --case {number}{on}"
    return "\n".join([f"{operator}, seed {seed}, case {number}: {outcome.failure}", *arguments(outcome), command])


def text(value: Any) -> str:
    """Return a text that describes an argument. The text for a tensor has dtype, shape, strides and storage
    offset. If the tensor has at most 8 elements, the text also has their values."""
    if isinstance(value, (tuple, list)) and any(isinstance(x, Tensor) for x in value):
        return "(" + ", ".join(map(text, value)) + ")"
    if not isinstance(value, Tensor):
        return repr(value)
    said = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}, strides {list(value.stride())}"
    said += f", offset {value.storage_offset()}" if value.storage_offset() else ""
    return f"{said}: {value.tolist()}" if value.numel() <= 8 else said


@dataclass
class Tally:
    """Counts and largest errors of the cases of one operator."""

    operator: str
    cases: int = 0
    gradients: int = 0
    refused: int = 0
    known: int = 0
    failures: int = 0
    worst: float = 0.0
    worst_gradient: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.gradients += outcome.gradient > 0
        self.refused += bool(outcome.refused)
        self.known += bool(outcome.known)
        self.failures += outcome.failure is not None
        self.worst = max(self.worst, outcome.worst)
        self.worst_gradient = max(self.worst_gradient, outcome.gradient)


def run_number(name: str, seed: int, number: int, device: str = "cpu", smaller: bool = True) -> tuple[Outcome, str]:
    """Run case `number` of an operator. Return the case's outcome and, if the case fails, a description."""
    operator, key = OPERATORS[name], key_of(name, seed, number)
    outcome = run_case(operator, key, None, device)
    if outcome.failure is None:
        return outcome, ""
    return outcome, describe(
        name, seed, number, minimise(operator, key, outcome, device) if smaller else outcome, device
    )
