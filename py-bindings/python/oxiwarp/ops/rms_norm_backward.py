"""The operator `torch.ops.oxiwarp.rms_norm_backward`, which computes the gradients of RMSNorm. The backward
passes of other operators call it.
"""

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


# This operator returns two tensors: `dx + dsum`, and the gradient of the weight. `dx` is the gradient of x,
# and `dsum` is an optional tensor that is added to `dx`. If the caller does not need the gradient of the
# weight, the second tensor has no elements. A weight of shape [G, N] divides the rows of x into G groups of
# consecutive rows, all of the same size, and each group has one row of the weight.
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
