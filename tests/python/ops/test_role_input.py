"""Tests of operands that every public operator rejects, such as lists and sparse tensors.

The error names the operator and the operand.
"""

import re

import pytest
import torch
from helpers import random
from op_info import FORMS, INFOS, Operands
from torch import Tensor

SHAPE = (3, 4, 16)
NAMES = {info.name: list(info.forms()) for info in INFOS.values()}
MOST = {name: max(forms, key=lambda form: len(form.operands)).name for name, forms in NAMES.items()}
FORM = pytest.mark.parametrize("name", MOST.values())


# These operands need not be contiguous. Torch operators read `coordinates` with any strides, and oxiwarp
# copies `positions` and `target` if necessary.
COMPUTED = ("coordinates",)
COPIED = (*COMPUTED, "positions", "target")


def refused(name, device, change, what, error=RuntimeError, first=True, skip=()):
    """Apply `change` to one operand of the call `FORMS[name]` at a time. Check that each of these calls
    raises `error` with the text `what`.

    The operands in `skip` are never changed. The first operand is changed only if `first` is true. A valid
    call must work afterwards.
    """
    form = FORMS[name]
    x = random(SHAPE, form.info.dtypes[0], device)
    right = form.arguments(x, Operands(x))
    for operand in form.operands if first else form.operands[1:]:
        if operand in skip:
            continue
        with pytest.raises(error) as caught:
            form.info.function(**{**right, operand: change(right[operand])})
        text = str(caught.value).splitlines()[0]
        assert re.match(rf"\w+: ({operand}|frequencies)\b.*{what}", text), f"{operand}: {text}"
    form.info.function(**right)


@FORM
@pytest.mark.parametrize("bad", [[1.0], 3, "x"], ids=str)
def test_types(name, bad, device):
    refused(name, device, lambda t: bad, f"is {type(bad).__name__}, expected a torch.Tensor", TypeError)


def sparse(t):
    """Return a sparse tensor. `Tensor.to_sparse` does not support 8-bit floats."""
    return torch.sparse_coo_tensor(
        torch.zeros(t.dim(), 1, dtype=torch.int64), t.flatten()[:1], t.shape, check_invariants=True
    )


@FORM
def test_layouts(name):
    refused(name, "cpu", sparse, "has layout torch.sparse_coo, expected torch", skip=COMPUTED)


@FORM
def test_meta_beside_real(name):
    refused(name, "cpu", lambda t: t.to("meta"), "is on meta, expected cpu, the device of", first=False)


@FORM
def test_other_device(name, cuda):
    refused(name, cuda, Tensor.cpu, "is on cpu, expected cuda:0, the device of", first=False)


@FORM
def test_columns_apart(name, device):
    """An operand whose last dimension has stride 2 is an error."""
    skip = (*COPIED, *FORMS[name].info.copied)
    refused(name, device, lambda t: t.repeat_interleave(2, -1)[..., ::2], "(has strides|of shape)", skip=skip)
