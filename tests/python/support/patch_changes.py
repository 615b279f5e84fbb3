"""The table of changes that tests/python/patch/test_patch_matrix.py makes to a model before or after `oxiwarp.patch`.

A change is a generator function of a model. It changes the model, yields once, and takes the change back. The value
that it yields is called in the model's place: None for the model itself, a copy or a wrapper, or a function of its
arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from torch import nn

# What happens in which order. A stock model takes the same steps, without `patch`, `fast` and `unpatch`.
ORDERS = {
    "before": "change patch call fast call undo call unpatch call state",
    "after": "patch change call fast call unpatch call state undo call state",
    "around": "change patch call fast call unpatch call state undo call state",
    "within": "patch change call fast call undo call unpatch call state",
}


# A change that takes objects out of the model and puts them back: they stay patched if `unpatch` comes between.
TAKES_OUT = ("before", "around", "within")


class Change(NamedTuple):
    """A row of the matrix."""

    make: Callable[[nn.Module], AbstractContextManager[Any]]
    models: tuple[str, ...]
    """Kinds of models that it is for; none: all. A kind with a `-` is left out."""
    grad: bool = False
    """All parameters are trained, and their gradients are compared, too."""
    kernels: bool | None = True
    """Whether operators of oxiwarp run. None: either."""
    bits: bool = True
    """Unpatched, the model gives the stock bits. False: what it gives depends on results from before."""
    off: float = 1e-4
    """How far a float32 result may be off, in units of its largest element: more where activations are quantized."""
    leaves: bool = False
    """It keeps a class or a method of oxiwarp that it found. After `unpatch` these run the original forward."""
    orders: tuple[str, ...] = tuple(ORDERS)
    slow: bool = False
    """Only `--matrix=all` has it."""
    known: dict[str, str] = {}
    """Reasons of cells that fail, by a pattern for order and model: `before-*`, `*-flux`."""


CHANGES: dict[str, Change] = {}


def change(*models: str, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Enter a generator function into the table."""

    def add(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        key = name or function.__name__.strip("_").replace("_", "-")
        assert key not in CHANGES
        CHANGES[key] = Change(contextmanager(function), models, **options)
        return function

    return add


def fits(row: Change, kinds: frozenset[str]) -> bool:
    """Whether a change is for a model of these kinds."""
    wanted = {kind for kind in row.models if not kind.startswith("-")}
    return (not wanted or bool(wanted & kinds)) and not {f"-{kind}" for kind in kinds} & set(row.models)


def linears(model: nn.Module) -> list[str]:
    """The linears of a model's blocks, by name."""
    found = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    return [name for name in found if "block" in name or "layer" in name] or found


def norms(model: nn.Module) -> list[str]:
    """The norms with a weight, by name."""
    named = [(name, module) for name, module in model.named_modules() if "Norm" in type(module).__name__]
    return [name for name, module in named if isinstance(getattr(module, "weight", None), nn.Parameter)]
