"""`Case`, one random call of an operator, and `OPERATORS`, which maps names to generators and formulas of
operators."""

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
    """Floating-point arguments by name; None for an argument that is not passed."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments that `tensors` does not contain, by name."""
    differentiable: tuple[str, ...] = ()
    """The tensors that may require a gradient."""
    row: tuple[str, tuple[int, ...]] | None = None
    """Name of a tensor and the dimensions that index its rows. Each row affects only its own result."""
    strided: tuple[str, ...] = ()
    """Tensors whose rows must be addressable with the same two nested loops, that is with two strides per tensor."""
    bits: tuple[int, ...] = ()
    """Indices of results that have the bits of torch's chain of operators on every device."""
    special: str = "ordinary"
    """The kind of rows, a key of `draw.SPECIAL`."""
    refusals: dict[str, Callable[[Sequence[Tensor]], bool]] = field(default_factory=dict)
    """Maps a regex for the message of a documented error to a function, which returns whether the `out` tensors cause
    it."""
    torch_gradient: bool = False
    """Whether torch's operators compute the result if a gradient is needed. Its bits then differ from the kernel's."""
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
        """Whether the gradients of this case are compared."""
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
    """An operator with its generator of cases and its formula."""

    name: str
    draw: Callable[[Draw], Case]
    formula: Formula
    torch: Callable[[SimpleNamespace, Case], Any] | None = None
    """torch's operator in the same dtype, to check the formula. It returns None if torch does not support the
    arguments."""
    cases: int = 60
    """Number of cases in `make test`."""
    contiguous: bool = True
    """Whether the results are contiguous."""

    @property
    def writes(self) -> bool:
        """Whether the operator has an argument `out`."""
        return "out" in inspect.signature(getattr(oxiwarp, self.name)).parameters

    @functools.cached_property
    def required(self) -> list[str]:
        """The names of the arguments that have no default.

        A call must pass these arguments, but the values of some may be None.
        """
        parameters = inspect.signature(getattr(oxiwarp, self.name)).parameters.values()
        return [one.name for one in parameters if one.default is one.empty]

    def call(self, tensors: dict[str, Tensor], options: dict[str, Any]) -> tuple[Tensor, ...]:
        """Call the public function and return its results.

        The function is looked up in `oxiwarp` at each call, so that a test can replace it by a wrong one.
        """
        function = getattr(oxiwarp, self.name)
        absent = {name: None for name in self.required if name not in tensors and name not in options}
        return results(function(**absent, **tensors, **options))

    def evaluate(self, m: Exact, case: Case, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Evaluate the formula in the arithmetic `m`, for example float64. The caller casts `tensors` to the dtype of
        `m`."""
        space = SimpleNamespace(**{name: tensors.get(name) for name in case.tensors})
        return results(self.formula(m, space, case))


OPERATORS: dict[str, Operator] = {}


def register(name: str, draw: Callable[[Draw], Case], formula: Formula, **more: Any) -> None:
    """Add an operator to the table."""
    OPERATORS[name] = Operator(name, draw, formula, **more)


def results(value: Any) -> tuple[Tensor, ...]:
    """Return one or several results as a tuple without None."""
    return tuple(x for x in value if x is not None) if isinstance(value, (tuple, list)) else (value,)
