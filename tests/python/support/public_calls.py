"""Calls of every public operator as functions of one tensor. All other operands are fixed.

There is one call per form (one choice of operands and options).
"""

from collections.abc import Callable

import torch
from helpers import random
from op_info import FORMS, Form, Operands
from torch import Tensor

SHAPE = (3, 4, 16)


NAMES = tuple(FORMS)
"""The names of all forms (test calls of operators)."""
DIFFERENTIABLE = tuple(name for name in NAMES if FORMS[name].info.differentiable)
"""The names of the forms of operators with a gradient."""


def call_of(name: str, device) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a function of one tensor that makes the test call `name`, and a tensor to pass to this
    function."""
    x = random(SHAPE, torch.float32, device)
    return of_one_tensor(FORMS[name], Operands(x.to(FORMS[name].info.dtypes[0]))), x


def of_one_tensor(form: Form, others: Operands) -> Callable[[Tensor], Tensor]:
    """Return the call as a function of its first operand."""
    dtype = form.info.dtypes[0]

    def call(t: Tensor) -> Tensor:
        results = form.call(t.to(dtype), others)
        return results[min(form.info.result, len(results) - 1)]

    return call


__all__ = ["DIFFERENTIABLE", "NAMES", "call_of"]
