"""The table of changes that tests/python/patch/test_patch_matrix.py makes to a model before or after
`oxiwarp.patch`.

A change is a generator function that takes a model. It changes the model, yields once, and then reverts the
change. If it yields a copy, a wrapper or a function, the test calls this object instead of the model. If it
yields None, the test calls the model itself.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from torch import nn

# Each entry is an order of test steps: change the model, patch it, call it, undo the change, unpatch the
# model. The step `fast` patches the model in mode "fast". The step `state` records the modules, classes and
# hooks of the model. For comparison, an unpatched model runs the same steps without `patch`, `fast` and
# `unpatch`.
ORDERS = {
    "before": "change patch call fast call undo call unpatch call state",
    "after": "patch change call fast call unpatch call state undo call state",
    "around": "change patch call fast call unpatch call state undo call state",
    "within": "patch change call fast call undo call unpatch call state",
}


# Orders of test steps for a change that removes objects from the model and puts them back at `undo`. The
# order "after" is not among them: `unpatch` would run while these objects are not in the model, so they would
# stay patched.
TAKES_OUT = ("before", "around", "within")


class Change(NamedTuple):
    """One change to test, the models that it applies to, and the permitted difference of results."""

    make: Callable[[nn.Module], AbstractContextManager[Any]]
    models: tuple[str, ...]
    """Kinds of models to which the change applies. Without any kind, it applies to all models. A `-`
    excludes a kind."""
    grad: bool = False
    """True if all parameters are trained and their gradients are compared."""
    kernels: bool | None = True
    """True if oxiwarp operators must run, False if they must not run, and None if this is not checked."""
    bits: bool = True
    """True if the model after `unpatch` gives the bits of the unpatched model. False if results depend on
    earlier calls."""
    repeats: bool = True
    """True if a second call of the model returns the same result. False if results depend on all earlier
    calls."""
    off: float = 1e-4
    """Allowed error of a float32 result, relative to its largest element. It is larger if activations are
    quantized."""
    leaves: bool = False
    """True if a class or method of oxiwarp stays in the model after `unpatch`. It then runs the original
    `forward`."""
    orders: tuple[str, ...] = tuple(ORDERS)
    slow: bool = False
    """True if the change is tested only with `--matrix=all`."""
    known: dict[str, str] = {}
    """Known failures. A key is a pattern of test order and model, e.g. `before-*` or `*-flux`, and a value
    is the reason."""


CHANGES: dict[str, Change] = {}


def change(*models: str, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Return a decorator that adds a generator function to the table of changes."""

    def add(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        key = name or function.__name__.strip("_").replace("_", "-")
        assert key not in CHANGES
        CHANGES[key] = Change(contextmanager(function), models, **options)
        return function

    return add


def fits(row: Change, kinds: frozenset[str]) -> bool:
    """Return whether a change applies to a model of these kinds."""
    wanted = {kind for kind in row.models if not kind.startswith("-")}
    return (not wanted or bool(wanted & kinds)) and not {f"-{kind}" for kind in kinds} & set(row.models)


def linears(model: nn.Module) -> list[str]:
    """Return the names of the linear layers of a model's blocks."""
    found = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    return [name for name in found if "block" in name or "layer" in name] or found


def norms(model: nn.Module) -> list[str]:
    """Return the names of the norms that have a weight."""
    named = [(name, module) for name, module in model.named_modules() if "Norm" in type(module).__name__]
    return [name for name, module in named if isinstance(getattr(module, "weight", None), nn.Parameter)]
