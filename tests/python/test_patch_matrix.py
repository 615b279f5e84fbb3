"""Every change that is made to models in practice, with `oxiwarp.patch` before or after it: the results of the stock
model with that change, and after `unpatch` the stock model's objects.

The rows are in patch_changes*.py, the columns in patch_models.py. `--matrix=all` runs all cells.
"""

import contextlib
import difflib
import fnmatch
import functools
import warnings
from collections import Counter

import patch_changes_calls  # noqa: F401
import patch_changes_diffusers  # noqa: F401
import patch_changes_hooks  # noqa: F401
import patch_changes_modules  # noqa: F401
import patch_changes_peft  # noqa: F401
import patch_changes_transformers  # noqa: F401
import pytest
import torch
from fused_checks import Operators, close
from patch_changes import CHANGES, ORDERS, Change, fits
from patch_models import MODELS
from patch_state import state
from torch import nn

import oxiwarp

COMPARED = (bool, int, float, str, torch.dtype, torch.Size, type(None))
PLAIN = Change(contextlib.nullcontext, ())


def cells(everything):
    """Change, order and model of each test.

    By default a change has three orders, each with another model: the one with the fewest cells so far.
    """
    used = Counter()
    for at, (change, row) in enumerate(CHANGES.items()):
        columns = [name for name, model in MODELS.items() if fits(row, model.kinds)]
        left_out = ("around", "within")[at % 2]
        for order in row.orders:
            chosen = columns if everything else [min(columns, key=lambda name: (used[change, name], used[name]))]
            for name in chosen if everything or order != left_out else ():
                used[name] += 1
                used[change, name] += 1
                yield change, order, name


def pytest_generate_tests(metafunc):
    if "cell" in metafunc.fixturenames:
        found = list(cells(metafunc.config.getoption("matrix") == "all"))
        ids = [f"{change}-{order}-patch-{name}" for change, order, name in found]
        metafunc.parametrize("cell", found, ids=ids)


def leaves(x, path=""):
    """The values of a result, by path."""
    if isinstance(x, dict):
        return {key: value for k, v in x.items() for key, value in leaves(v, f"{path}.{k}").items()}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return {key: value for k, v in enumerate(x) for key, value in leaves(v, f"{path}[{k}]").items()}
    return {path: x}


class Subject:
    """A model that takes the steps of an order, and what its calls and states were."""

    def __init__(self, row, column, patched):
        self.row, self.column, self.patched = row, column, patched
        self.model = column.make()
        if row.grad:
            self.model.requires_grad_()
        self.target = self.called = self.model  # what is patched, and what is called
        self.undoing = contextlib.ExitStack()
        self.mode, self.changed, self.found = None, False, []
        self.warned, self.operators = set(), Counter()

    def take(self, steps):
        """Take these steps. Returns what the calls and states of them are, with the mode at that time."""
        for step in steps.split():
            if self.patched or step not in ("patch", "fast", "unpatch"):
                made = getattr(self, step)()
                if made is not None:
                    self.found.append((step, self.mode, made))
        return self.found

    def change(self):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.undoing.enter_context(self.row.make(self.model))
        self.changed, self.called = True, self.model if made is None else made
        self.target = made if isinstance(made, nn.Module) else self.model

    def undo(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.undoing.close()
        self.changed, self.called = False, self.model

    def patch(self, mode="exact"):
        self.mode = mode
        oxiwarp.patch(self.target, mode=mode, cpu_kernels=True, allow_empty=True)

    def fast(self):
        self.patch("fast")

    def unpatch(self):
        self.mode = None
        for module in {self.target, self.model}:
            oxiwarp.unpatch(module)

    def state(self):
        return state(self.model)

    def call(self):
        """What a call gives, and the gradients that it leaves, each by name."""
        torch.manual_seed(1)
        counts = self.mode and self.changed and self.row.kernels is not None
        counted = Operators() if counts else contextlib.nullcontext()
        with torch.set_grad_enabled(self.row.grad), warnings.catch_warnings(record=True) as seen, counted:
            warnings.simplefilter("always")
            results, gradients = leaves(self.called(**self.column.inputs())), {}
            losses = [loss(x) for x in results.values() if getattr(x, "requires_grad", False)]
            if losses:
                sum(losses).backward()
                gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
                self.model.zero_grad()
        self.warned |= {str(warning.message) for warning in seen}
        self.operators += getattr(counted, "calls", {})
        return results, gradients


def loss(x):
    """A sum with different weights: that of the squares of a normalised tensor has no gradient."""
    return x.float().flatten() @ torch.linspace(-1, 1, x.numel())


def same(ours, own, bits, off, right):
    """Compare values by name. `right`: what the model gives in float32, for those in 16 bits.

    In float32: `off` of the largest element, and for what cancels to nothing, eps of the largest of all tensors.
    """
    assert ours.keys() == own.keys()
    wide = [x.abs().max().item() for x in own.values() if is_float32(x)]
    for path, x in own.items():
        y = ours[path]
        if not isinstance(x, torch.Tensor):
            assert type(y) is type(x) and (y == x or not isinstance(x, COMPARED)), (path, y, x)
            continue
        assert (y.dtype, y.shape, y.requires_grad) == (x.dtype, x.shape, x.requires_grad), path
        if bits or not x.is_floating_point():
            assert torch.equal(y, x), f"{path}: {(y != x).sum()} of {x.numel()} differ"
        elif is_float32(x):
            far, allowed = (y - x).abs().max().item(), off * x.abs().max().item() + 1e-7 * max(wide)
            assert far <= allowed, f"{path}: {far} off, {allowed} allowed"
        else:
            close(y, x, right()[path].double())


def is_float32(x):
    return isinstance(x, torch.Tensor) and x.dtype == torch.float32


def test_change(cell, request):
    """The stock model with the change gives what the patched one gives. Where neither is patched they are equal."""
    name, order, column = cell
    row, model = CHANGES[name], MODELS[column]
    stock, ours = Subject(row, model, patched=False), Subject(row, model, patched=True)
    try:
        with stock.undoing:
            expected = stock.take(ORDERS[order])
    except Exception as error:
        pytest.skip(f"the stock model fails, too: {type(error).__name__}: {error}")
    for pattern, reason in row.known.items():
        if fnmatch.fnmatchcase(f"{order}-{column}", pattern):
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    with ours.undoing:
        found = ours.take(ORDERS[order])
    right = functools.cache(lambda: Subject(PLAIN, model, patched=False).call()[0])
    for (step, mode, y), (_, _, x) in zip(found, expected, strict=True):
        if step == "call":
            bits = row.bits and mode is None
            for got, own in zip(y, x, strict=True):
                same(got, own, bits, row.off, right)
        elif not row.leaves:
            assert y == x, "\n".join(difflib.unified_diff(x, y, "stock", "unpatched", lineterm="", n=0))
    assert ours.warned <= stock.warned
    assert row.kernels is None or bool(ours.operators) is row.kernels
