"""The operator `torch.ops.oxiwarp.layer_norm_backward`, which computes the gradients of LayerNorm. The
backward passes of other operators call it.
"""

from torch import Tensor

from ._norm_backward import check, like
from ._register import define
from ._roles import Role


def _fake(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dsum: Tensor | None,
    eps: float,
    dweight: bool,
    dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    name = "layer_norm_backward"
    check(name, dy, x, weight, dsum, eps)
    dbias_out = like(f"{name}: dbias", weight if bias is None else bias, x, dbias)
    return x.new_empty(x.shape), like(f"{name}: dweight", weight, x, dweight), dbias_out


# This operator returns three tensors: `dx + dsum`, the gradient of the weight, and the gradient of the bias.
# `dx` is the gradient of x, and `dsum` is an optional tensor that is added to `dx`. A gradient of the weight
# or the bias that the caller does not need has no elements. A weight of shape [G, N] divides the rows of x
# into G groups of consecutive rows, all of the same size, and each group has one row of the weight. If `bias`
# is None and `dbias` is True, the gradient of the bias has the shape and dtype of the weight.
op = define(
    "layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? dsum, float eps, bool dweight, "
    "bool dbias) -> (Tensor, Tensor, Tensor)",
    _fake,
    dy=Role.ROWS,
    x=Role.ROWS,
    weight=Role.VECTOR,
    bias=Role.VECTOR,
    dsum=Role.ROWS,
)

__all__ = []
