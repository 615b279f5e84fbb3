"""The operators `torch.ops.oxiwarp.rms_norm_backward` and `rms_norm_affine_backward`, which compute the gradients of
RMSNorm. The backward passes of other operators call them.
"""

from torch import Tensor

from ._checks.rows import check_head_vectors
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


def _fake_affine(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, weight_offset: float, dweight: bool
) -> tuple[Tensor, Tensor]:
    check("rms_norm_backward", dy, x, None, None, eps)
    check_number("rms_norm_backward", "weight_offset", weight_offset)
    if x.dim() != 3:
        raise RuntimeError(f"rms_norm_backward: x has shape {list(x.shape)}, expected [rows, heads, columns]")
    check_head_vectors("rms_norm_backward", "weight", weight, x)
    return x.new_empty(x.shape), like("rms_norm_backward: dweight", weight, x, dweight)


# This operator returns the gradient of x, of shape [R, H, N], and the gradient of the weight. A weight of
# shape [H, N] has one row for each head.
op_affine = define(
    "rms_norm_affine_backward(Tensor dy, Tensor x, Tensor weight, float eps, float weight_offset, bool dweight) -> "
    "(Tensor, Tensor)",
    _fake_affine,
    dy=Role.ROWS,
    x=Role.ROWS,
    weight=Role.VECTOR,
)

__all__ = []
