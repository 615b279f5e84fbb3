"""`oxiwarp.relu2_and_mul`, a public function of the operator `gated_activation`."""

from torch import Tensor

from ._roles import Role
from .activation import RELU2
from .gated_activation import call

ROLES = {"x": Role.ROWS, "up": Role.ROWS, "bias": Role.BIAS, "out": Role.OUTPUT}


def relu2_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `relu(first)**2 * second` over two halves of the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Shape `[..., 2 * H]` if `x`
            has both halves, or `[..., H]` if `up` is given.
        up (Tensor | None): the second half, with the shape and dtype of `x`.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds where torch's eager operators do. "fast" rounds once, at the end.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, "exact" gives the bits of `torch.square(torch.relu(first)) * second`. "fast" has the
            error bounds that `gelu` states.
        Gradients: Computed in float32 from the inputs and rounded once. The gradient of `bias` is computed as for
            `geglu`. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        the MLP of BitNet between its linear layers; `ReLUSquaredActivation` of transformers; arXiv:2109.08668.

    Example:
        >>> oxiwarp.relu2_and_mul(torch.tensor([[3.0, -2.0, -1.0, 2.0]]))
        tensor([[-9.,  0.]])
    """
    return call("relu2_and_mul", RELU2, x, up, bias, mode, out, gate_first=True)


__all__ = ["relu2_and_mul"]
