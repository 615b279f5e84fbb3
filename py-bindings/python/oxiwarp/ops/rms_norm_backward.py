"""Gradients of RMSNorm: `torch.ops.oxiwarp.rms_norm_backward`, which the backward functions call."""

from torch import Tensor

from ._norm_backward import check, like
from ._register import check_number, define
from ._roles import Role


def _fake(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    dsum: Tensor | None,
    eps: float,
    weight_offset: float,
    dweight: bool,
) -> tuple[Tensor, Tensor]:
    check("rms_norm_backward", dy, x, weight, dsum, eps)
    check_number("rms_norm_backward", "weight_offset", weight_offset)
    return x.new_empty(x.shape), like("rms_norm_backward: dweight", weight, x, dweight)


# This operator returns dx + dsum and the gradient of the weight. If the caller does not need the gradient of
# the weight, this gradient is a tensor without elements. A weight of shape [G, N] has one row for each of G
# equal groups of consecutive rows of x.
op = define(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? dsum, float eps, float weight_offset, "
    "bool dweight) -> (Tensor, Tensor)",
    _fake,
    dy=Role.ROWS,
    x=Role.ROWS,
    weight=Role.VECTOR,
    dsum=Role.ROWS,
)

__all__ = []
