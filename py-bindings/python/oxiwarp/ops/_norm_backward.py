"""Functions that the backward operators of the norms share: a check of the arguments, and the allocation of
gradients.
"""

import math

import torch
from torch import Tensor

from ._register import check_number, check_rows, dtype_name, or_f32


def check(op: str, dy: Tensor, x: Tensor, weight: Tensor | None, dsum: Tensor | None, eps: float) -> None:
    """Raise RuntimeError if the backward operators of the norms do not support one of the arguments.

    The check does not read the values of tensors.
    """
    check_number(op, "eps", eps, 0.0)
    check_rows(op, x, None, dy=dy, **({} if dsum is None else {"dsum": dsum}))
    if weight is None:
        return
    if weight.device != x.device:
        raise RuntimeError(f"{op}: weight is on {weight.device}, expected {x.device}, the device of x")
    cols, rows = x.shape[-1], math.prod(x.shape[:-1])  # numel() would fix symbolic sizes
    fits = weight.dim() == 1 or (weight.dim() == 2 and rows % weight.shape[0] == 0)
    if not fits or weight.shape[-1] != cols:
        raise RuntimeError(
            f"{op}: weight has shape {list(weight.shape)}, expected [{cols}], or [groups, {cols}] with up to 65535 "
            f"groups that divide {rows} rows"
        )
    if weight.dtype not in (x.dtype, torch.float32):
        raise RuntimeError(f"{op}: weight is {dtype_name(weight.dtype)}, expected {or_f32(x.dtype)}")


def like(what: str, parameter: Tensor | None, x: Tensor, wanted: bool) -> Tensor:
    """Allocate a tensor for the gradient of `parameter`. If `wanted` is False, the returned tensor has no
    elements.

    Raise RuntimeError if `wanted` is True but `parameter` is None. `what` is the name of the gradient in the
    error message.
    """
    if not wanted:
        return x.new_empty(0)
    if parameter is None:
        raise RuntimeError(f"{what} is wanted, and there is no parameter that says its shape")
    return parameter.new_empty(parameter.shape)


__all__ = ["check", "like"]
