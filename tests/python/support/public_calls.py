"""Calls of every public operator with one argument: the other operands are fixed.

There is one call per form, that is per choice of operands and options.
"""

from collections.abc import Callable

import torch
from helpers import random
from op_info import FORMS, Form, Operands
from torch import Tensor

SHAPE = (3, 4, 16)


def calls(device) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Return one entry per form (choice of operands and options): a function of one tensor, and a tensor for it."""
    x = random(SHAPE, torch.float32, device)
    return {name: (of_one_tensor(form, Operands(x)), x) for name, form in FORMS.items()}


def of_one_tensor(form: Form, others: Operands) -> Callable[[Tensor], Tensor]:
    """Return the call as a function of its first operand."""
    dtype = form.info.dtypes[0]

    def call(t: Tensor) -> Tensor:
        results = form.call(t.to(dtype), others)
        return results[min(form.info.result, len(results) - 1)]

    return call


__all__ = ["calls"]
