"""The operator `torch.ops.oxiwarp.gated_residual_backward`, which computes the gradients of the product
`gate * y`. The backward passes of gated residuals call it.
"""

import math

import torch
from torch import Tensor

from ._norm_backward import like
from ._register import check_rows, define, dtype_name, or_f32
from ._roles import Role

NAME = "gated_residual_backward"
GROUPS = 65_535  # maximum number of groups that the kernels support


def _check(dsum: Tensor, y: Tensor, gate: Tensor) -> None:
    check_rows(NAME, y, None, dsum=dsum)
    if gate.device != y.device:
        raise RuntimeError(f"{NAME}: gate is on {gate.device}, expected {y.device}, the device of y")
    if gate.dtype not in (y.dtype, torch.float32):
        raise RuntimeError(f"{NAME}: gate is {dtype_name(gate.dtype)}, expected {or_f32(y.dtype)}")
    cols, rows = y.shape[-1], math.prod(y.shape[:-1])  # numel() specializes symbolic sizes
    grouped = gate.dim() == 2 and gate.shape[-1] == cols and 0 < gate.shape[0] <= GROUPS and rows % gate.shape[0] == 0
    shapes = ((cols,), tuple(y.shape), (*y.shape[:-1], 1))
    if not grouped and tuple(gate.shape) not in shapes:
        raise RuntimeError(
            f"{NAME}: gate has shape {list(gate.shape)}, expected [{cols}], [groups, {cols}] with up to {GROUPS} "
            f"groups that divide the rows of y, or the shape of y, {list(y.shape)}, with {cols} columns or one"
        )


def _fake(dsum: Tensor, y: Tensor, gate: Tensor, dgate: bool) -> tuple[Tensor, Tensor]:
    _check(dsum, y, gate)
    return y.new_empty(y.shape), like(f"{NAME}: dgate", gate, y, dgate)


# This operator returns the gradients of the product `gate * y`: of `y`, and of the gate in the shape and
# dtype of the gate. If the caller does not need the gradient of the gate, the second tensor has no elements.
# A gate of shape [G, N] divides the rows of y into G groups of consecutive rows, and each group has one row
# of the gate. The gate may also have one row for each row of y. It may have a single column.
op = define(
    f"{NAME}(Tensor dsum, Tensor y, Tensor gate, bool dgate) -> (Tensor, Tensor)",
    _fake,
    dsum=Role.ROWS,
    y=Role.ROWS,
    gate=Role.BROADCAST,
)

__all__ = []
