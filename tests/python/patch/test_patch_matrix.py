"""Tests of common changes to a model, such as a cast or an adapter, made before or after `oxiwarp.patch`.

The patched model must return the results of an unpatched model with the same change. After `unpatch`, the
patched model must have the same state as the unpatched model. The changes are in the files patch_changes*.py,
and the models in patch_models.py. By default, each change is tested on a few models. With `--matrix=all`,
each change is tested on all models.
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
import patch_changes_quantized  # noqa: F401
import patch_changes_transformers  # noqa: F401
import patch_changes_transforms  # noqa: F401
import patch_changes_weights  # noqa: F401
import pytest
from patch_changes import CHANGES, ORDERS, Change, fits
from patch_matrix import Subject, choose, same
from patch_models import MODELS

PLAIN = Change(contextlib.nullcontext, ())


def cells(everything):
    """Return the change, the order and the model of each test.

    The order says when the change is made, e.g. before `patch`. By default, three orders are tested per
    change, each with a different model.
    """
    rows = {}
    for at, (change, row) in enumerate(CHANGES.items()):
        left_out = ("around", "within")[at % 2]
        for order in row.orders:
            if everything or not (row.slow or (order == left_out and len(row.orders) > 2)):
                rows[change, order] = [name for name, model in MODELS.items() if fits(row, model.kinds)]
    return [(*row, name) for row, name in choose(rows, 1, everything)]


def pytest_generate_tests(metafunc):
    if "cell" in metafunc.fixturenames:
        found = cells(metafunc.config.getoption("matrix") == "all")
        ids = [f"{change}-{order}-patch-{name}" for change, order, name in found]
        metafunc.parametrize("cell", found, ids=ids)


def test_change(cell, request):
    """After a change, such as a cast, a patched model returns the results of an unpatched model with the same
    change.

    After `unpatch`, the results of the two models are equal bit for bit.
    """
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
    """Without `--matrix=all`, each change is tested on at least two models, unless it fits only one model.

    Each model is tested with at least eight changes.
    """
    found = cells(everything=False)
    for change, row in CHANGES.items():
        fitting = sum(fits(row, model.kinds) for model in MODELS.values())
        assert row.slow or len({model for name, _, model in found if name == change}) >= min(2, fitting), change
    for model in MODELS:
        assert len([cell for cell in found if cell[2] == model]) >= 8, model
