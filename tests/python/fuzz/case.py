"""Defines `Case`, one random call of an operator, and `OPERATORS`, the table of all operators.

`OPERATORS` maps the name of an operator to an `Operator`, which has a generator of random calls and a formula
for the results.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import oxiwarp

from .draw import SPECIAL, Draw
from .precision import Exact


@dataclass
class Case:
    """The arguments of one random call of an operator, and the checks that apply to the call."""

    tensors: dict[str, Tensor | None]
    """Floating-point arguments by name. The value is None if an argument is not passed."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments that `tensors` does not contain, by name."""
    differentiable: tuple[str, ...] = ()
    """The tensors that may require a gradient."""
    row: tuple[str, tuple[int, ...]] | None = None
    """The name of a tensor, and the dimensions that index its rows. A row of this tensor affects only the
    result of this row."""
    strided: tuple[str, ...] = ()
    """Names of tensors whose rows one kernel must be able to address with two nested loops, i.e. two
    strides per tensor."""
    bits: tuple[int, ...] = ()
    """Indices of the results that must have the bits of a sequence of torch operators on every device."""
    dtypes: tuple[torch.dtype, ...] = ()
    """The dtypes of the results, if they are not the dtype of the first tensor."""
    special: str = "ordinary"
    """The kind of special rows in the inputs (e.g. constant rows), a key of `draw.SPECIAL`."""
    refusals: dict[str, Callable[[Sequence[Tensor]], bool]] = field(default_factory=dict)
    """Maps a regex for the message of a documented error to a function. The function returns True if the
    `out` tensors cause this error."""
    floor: float = 1.0
    """Factor by which the permitted absolute error of gradients is multiplied."""
    known: dict[str, str] = field(default_factory=dict)
    """Maps the name of a check to the description of a known fault that this case may show."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor."""
        return next(x for x in self.tensors.values() if x is not None).dtype

    @property
    def ordinary(self) -> bool:
        """Return True if the gradients of this case are compared."""
        return SPECIAL[self.special] and all(bool(x.isfinite().all()) for x in self.given().values())

    def of(self, name: str) -> torch.dtype:
        """Return the dtype of the argument `name`, or float32 if the call does not pass it."""
        tensor = self.tensors.get(name)
        return torch.float32 if tensor is None else tensor.dtype

    def given(self) -> dict[str, Tensor]:
        """Return the tensors that are not None."""
        return {name: x for name, x in self.tensors.items() if x is not None}


Formula = Callable[[Exact, SimpleNamespace, Case], Any]


@dataclass(frozen=True)
class Operator:
    """An operator, with its generator of random calls and its formula."""

    name: str
    draw: Callable[[Draw], Case]
    formula: Formula
    torch: Callable[[SimpleNamespace, Case], Any] | None = None
    """torch's operator in the same dtype, to check the formula. It returns None if torch does not support
    the arguments."""
    cases: int = 60
    """Number of random calls in `make test`."""
    contiguous: bool = True
    """True if the results are contiguous."""

    @property
    def writes(self) -> bool:
        """Return True if the operator has an argument `out`."""
        return "out" in inspect.signature(getattr(oxiwarp, self.name)).parameters

    @functools.cached_property
    def required(self) -> list[str]:
        """Return the names of the arguments that have no default.

        A call must pass these arguments, but the value of some may be None.
        """
        parameters = inspect.signature(getattr(oxiwarp, self.name)).parameters.values()
        return [one.name for one in parameters if one.default is one.empty]

    def call(self, tensors: dict[str, Tensor], options: dict[str, Any]) -> tuple[Tensor, ...]:
        """Call the public function and return its results.

        Each call looks up the function in the module `oxiwarp`, so that a test can replace it by an intentionally wrong
        function.
        """
        function = getattr(oxiwarp, self.name)
        absent = {name: None for name in self.required if name not in tensors and name not in options}
        return results(function(**absent, **tensors, **options))

    def evaluate(self, m: Exact, case: Case, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Evaluate the formula in the arithmetic `m`, for example float64. The caller must cast `tensors` to
        the dtype in which `m` computes."""
        space = SimpleNamespace(**{name: tensors.get(name) for name in case.tensors})
        return results(self.formula(m, space, case))


OPERATORS: dict[str, Operator] = {}


def register(name: str, draw: Callable[[Draw], Case], formula: Formula, **more: Any) -> None:
    """Add an operator to the table."""
    OPERATORS[name] = Operator(name, draw, formula, **more)


def results(value: Any) -> tuple[Tensor, ...]:
    """Return one or several results as a tuple without None."""
    return tuple(x for x in value if x is not None) if isinstance(value, (tuple, list)) else (value,)
