"""One call of an operator, and the table of operators."""

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
    """The arguments of one call, and which checks they allow."""

    tensors: dict[str, Tensor | None]
    """Floating-point arguments by name, None where one is left out."""
    options: dict[str, Any] = field(default_factory=dict)
    """All other arguments by name."""
    differentiable: tuple[str, ...] = ()
    """The tensors that may require a gradient."""
    row: tuple[str, tuple[int, ...]] | None = None
    """A tensor and the dimensions whose indices are one row: results of other rows do not depend on it."""
    strided: tuple[str, ...] = ()
    """Tensors whose rows two strides have to reach, in all of them together."""
    bits: tuple[int, ...] = ()
    """Results that have the bits of torch's chain on every device."""
    special: str = "ordinary"
    """The kind of rows, a key of `draw.SPECIAL`."""
    refusals: dict[str, Callable[[Sequence[Tensor]], bool]] = field(default_factory=dict)
    """Other documented refusals: a part of the message, and whether it is true for these `out`."""
    torch_gradient: bool = False
    """Torch's operators make the result where a gradient is needed, with bits of their own."""
    floor: float = 1.0
    """A factor of the absolute error that gradients of the smallest numbers may have."""
    known: dict[str, str] = field(default_factory=dict)
    """Open faults that this case may show: by the name of the check, what is wrong."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the first tensor."""
        return next(x for x in self.tensors.values() if x is not None).dtype

    @property
    def ordinary(self) -> bool:
        """Whether gradients are compared."""
        return SPECIAL[self.special] and all(bool(x.isfinite().all()) for x in self.given().values())

    def of(self, name: str) -> torch.dtype:
        """The dtype of an argument; float32 for one that is left out."""
        tensor = self.tensors.get(name)
        return torch.float32 if tensor is None else tensor.dtype

    def given(self) -> dict[str, Tensor]:
        """The tensors that are not None."""
        return {name: x for name, x in self.tensors.items() if x is not None}


Formula = Callable[[Exact, SimpleNamespace, Case], Any]


@dataclass(frozen=True)
class Operator:
    """How cases of an operator are made, and its formula."""

    name: str
    draw: Callable[[Draw], Case]
    formula: Formula
    torch: Callable[[SimpleNamespace, Case], Any] | None = None
    """Torch's own operator in the same dtype, to check the formula. None: torch lacks these arguments."""
    cases: int = 60
    """In `make test`."""
    contiguous: bool = True
    """Whether results are contiguous."""

    @property
    def writes(self) -> bool:
        """Whether it has an argument `out`."""
        return "out" in inspect.signature(getattr(oxiwarp, self.name)).parameters

    @functools.cached_property
    def required(self) -> list[str]:
        """Arguments without a default, some of which may be None."""
        parameters = inspect.signature(getattr(oxiwarp, self.name)).parameters.values()
        return [one.name for one in parameters if one.default is one.empty]

    def call(self, tensors: dict[str, Tensor], options: dict[str, Any]) -> tuple[Tensor, ...]:
        """The public function's results; looked up now, so that tests can replace it."""
        function = getattr(oxiwarp, self.name)
        absent = {name: None for name in self.required if name not in tensors and name not in options}
        return results(function(**absent, **tensors, **options))

    def evaluate(self, m: Exact, case: Case, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The formula's results in the arithmetic `m`, of tensors that are wide already."""
        space = SimpleNamespace(**{name: tensors.get(name) for name in case.tensors})
        return results(self.formula(m, space, case))


OPERATORS: dict[str, Operator] = {}


def register(name: str, draw: Callable[[Draw], Case], formula: Formula, **more: Any) -> None:
    """Add an operator to the table."""
    OPERATORS[name] = Operator(name, draw, formula, **more)


def results(value: Any) -> tuple[Tensor, ...]:
    """One result or several as a tuple, without those that are None."""
    return tuple(x for x in value if x is not None) if isinstance(value, (tuple, list)) else (value,)
