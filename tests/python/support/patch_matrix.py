"""Selects pairs of a change and a model to test, runs the test steps of a pair, and compares the results."""

import contextlib
import warnings
from collections import Counter

import torch
from fused_checks import Operators, close
from patch_state import state
from torch import nn

import oxiwarp

COMPARED = (bool, int, float, str, torch.dtype, torch.Size, type(None))
# The models run on the CPU, so only the CPU's generator is seeded. `torch.manual_seed` would also record a
# stack trace for each device type that is not available.
SEEDED = torch.default_generator


def choose(rows, count, everything):
    """Yield cells (row, column) of a matrix. For each row, yield `count` of its columns, or all columns if
    `everything` is true.

    A row is a tuple, such as (change, order). Columns with the fewest cells so far are chosen first, and rows with the
    same first element get different columns if possible.
    """
    used = Counter()
    for row, columns in rows.items():
        for _ in range(count if not everything else 0):
            name = min(columns, key=lambda name: (used[row[0], name], used[name]))
            used[name] += 1
            used[row[0], name] += 1
            yield row, name
        for name in columns if everything else ():
            yield row, name


def leaves(x, path=""):
    """Return the values of a nested result as a dict. A key is the path of a value."""
    if isinstance(x, dict):
        return {key: value for k, v in x.items() for key, value in leaves(v, f"{path}.{k}").items()}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return {key: value for k, v in enumerate(x) for key, value in leaves(v, f"{path}[{k}]").items()}
    return {path: x}


class Subject:
    """A model under test. It runs test steps, such as "patch change call", and records the results of its
    calls.

    The step "state" records a description of the model.
    """

    def __init__(self, row, column, patched):
        self.row, self.column, self.patched = row, column, patched
        self.model = column.make()
        if row.grad:
            self.model.requires_grad_()
        self.target = self.called = self.model  # the module that is patched, and the module that is called
        self.undoing = contextlib.ExitStack()
        self.mode, self.changed, self.found = None, False, []
        self.warned, self.operators = set(), Counter()
        self.last = None  # The result of the last call. None if a step has changed the model since this call.

    def take(self, steps):
        """Run the test steps that `steps` names. Return (step, mode, value) for each step "call" and each
        step "state".

        If an unpatched model is called again, and no step has changed it since its last call, the result of the last
        call is used again.
        """
        for step in steps.split():
            if self.patched or step not in ("patch", "fast", "unpatch"):
                made = self.last if step == "call" and self.last is not None else getattr(self, step)()
                # An unpatched model that no step has changed would return the same result again. It is
                # therefore called again only if its result may differ.
                if step != "state":
                    self.last = made if step == "call" and self.row.repeats and not self.patched else None
                if made is not None:
                    self.found.append((step, self.mode, made))
        return self.found

    def change(self):
        SEEDED.manual_seed(0)
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
        """Call the model. Return two dicts: the results by path, and the gradients by name of the parameter."""
        SEEDED.manual_seed(1)
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
    """Return a weighted sum of `x` as a loss.

    A sum of squares of a normalized tensor would have a gradient of zero.
    """
    return x.float().flatten() @ torch.linspace(-1, 1, x.numel())


def same(ours, own, bits, off=1e-4, right=None):
    """Compare the results `ours` with `own`: bit for bit if `bits` is true, otherwise with a tolerance.

    The tolerance of a float32 value is `off` times the largest element of its tensor, plus 1e-7 of the largest element
    of all tensors, because terms may cancel. For 16-bit results, `ours` and `own` may differ by about the rounding
    error of `own`. This error is the difference between `own` and the float32 results, which the function `right`
    returns.
    """
    assert ours.keys() == own.keys()
    wide = [x.abs().max().item() for x in own.values() if is_float32(x) and x.numel()]
    for path, x in own.items():
        y = ours[path]
        if not isinstance(x, torch.Tensor):
            assert type(y) is type(x) and (y == x or not isinstance(x, COMPARED)), (path, y, x)
            continue
        assert (y.dtype, y.shape, y.requires_grad) == (x.dtype, x.shape, x.requires_grad), path
        if bits or not x.is_floating_point() or not x.numel():
            assert torch.equal(y, x), f"{path}: {(y != x).sum()} of {x.numel()} differ"
        elif is_float32(x):
            far, allowed = (y - x).abs().max().item(), off * x.abs().max().item() + 1e-7 * max(wide)
            assert far <= allowed, f"{path}: {far} off, {allowed} allowed"
        else:
            close(y, x, right()[path].double())


def is_float32(x):
    return isinstance(x, torch.Tensor) and x.dtype == torch.float32
