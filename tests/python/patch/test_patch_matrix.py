"""Tests of common changes to models before or after `oxiwarp.patch`.

The patched model must return the results of the unpatched model with the same change. After `unpatch`, its state must
equal the state of the unpatched model. The changes are in patch_changes*.py, the models in patch_models.py.
`--matrix=all` runs all combinations.
"""

import contextlib
import difflib
import fnmatch
import functools

import patch_changes_calls  # noqa: F401
import patch_changes_diffusers  # noqa: F401
import patch_changes_hooks  # noqa: F401
import patch_changes_modules  # noqa: F401
import patch_changes_parts  # noqa: F401
import patch_changes_peft  # noqa: F401
import patch_changes_transformers  # noqa: F401
import patch_changes_transforms  # noqa: F401
import patch_changes_weights  # noqa: F401
import pytest
from patch_changes import CHANGES, ORDERS, Change, fits
from patch_matrix import Subject, choose, same
from patch_models import MODELS

PLAIN = Change(contextlib.nullcontext, ())


def cells(everything):
    """Return change, order and model of each test. By default a change is tested in three orders, each with another
    model."""
    rows = {}
    for at, (change, row) in enumerate(CHANGES.items()):
        left_out = ("around", "within")[at % 2]
        for order in row.orders:
            if everything or not (order == left_out or row.slow):
                rows[change, order] = [name for name, model in MODELS.items() if fits(row, model.kinds)]
    return [(*row, name) for row, name in choose(rows, 1, everything)]


def pytest_generate_tests(metafunc):
    if "cell" in metafunc.fixturenames:
        found = cells(metafunc.config.getoption("matrix") == "all")
        ids = [f"{change}-{order}-patch-{name}" for change, order, name in found]
        metafunc.parametrize("cell", found, ids=ids)


def test_change(cell, request):
    """With the change, the patched model returns the results of the unpatched model. After `unpatch` the results are
    equal bit for bit."""
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
        if step == "state" and not row.leaves:
            assert y == x, "\n".join(difflib.unified_diff(x, y, "stock", "unpatched", lineterm="", n=0))
        for got, own in zip(y, x, strict=True) if step == "call" else ():
            same(got, own, row.bits and mode is None, row.off, right)
    assert ours.warned <= stock.warned
    assert row.kernels is None or bool(ours.operators) is row.kernels


def test_selection():
    """The default run tests each change on at least two models, if it fits two, and each model with at least eight
    cells."""
    found = cells(everything=False)
    for change, row in CHANGES.items():
        fitting = sum(fits(row, model.kinds) for model in MODELS.values())
        assert row.slow or len({model for name, _, model in found if name == change}) >= min(2, fitting), change
    for model in MODELS:
        assert len([cell for cell in found if cell[2] == model]) >= 8, model
