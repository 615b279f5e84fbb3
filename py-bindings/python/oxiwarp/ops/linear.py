"""The matrix product `linear`. The file defines one operator and the public function `linear`."""

from torch import Tensor

from ._register import define
from ._roles import Role


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


op = define(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.MATRIX,
    bias=Role.BIAS,
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x @ weight.T + bias`."""
    return op(x, weight, bias)


__all__ = ["linear"]
