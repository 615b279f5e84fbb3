"""Cross-entropy of logits and its gradient. The file defines two operators and the public function
`cross_entropy`.
"""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_vector
from ._function import Function, apply
from ._once_differentiable import once
from ._register import FLOATS, OPTIONAL, check_number, define, dtype_name, explain, needs_grad, refuse_types
from ._roles import Role

REDUCTIONS = ("none", "mean", "sum")
INDICES = (torch.int64, torch.int32)


def _check(
    op: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    **rows: Tensor,
) -> None:
    """Raise RuntimeError if the kernels do not support one of the arguments. The check does not read the
    values of tensors.

    `rows` maps names to further input tensors. They must be float32 and have one number per row of the
    logits.
    """
    if logits.dtype not in FLOATS:
        raise RuntimeError(f"{op}: logits is {dtype_name(logits.dtype)}, expected f32, f16 or bf16")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise RuntimeError(f"{op}: logits has shape {list(logits.shape)}, expected a last dimension of 1 or more")
    if target.dtype not in INDICES:
        raise RuntimeError(f"{op}: target is {dtype_name(target.dtype)}, expected int64 or int32")
    for name, tensor in {"target": target, **rows}.items():
        if tensor.device != logits.device:
            raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {logits.device}, the device of logits")
        if tensor.shape != logits.shape[:-1]:
            raise RuntimeError(f"{op}: {name} has shape {list(tensor.shape)}, expected {list(logits.shape[:-1])}")
        if name in rows and tensor.dtype is not torch.float32:
            raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected f32")
    check_vector(op, "weight", weight, logits)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"{op}: label_smoothing is {label_smoothing:g}, expected 0 to 1")
    check_number(op, "z_loss", z_loss, 0.0)
    check_number(op, "softcap", softcap, 0.0)


def _fake(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    _check("cross_entropy", logits, target, weight, label_smoothing, z_loss, softcap)
    rows = logits.shape[:-1]
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.float32)


def _fake_backward(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    lse: Tensor,
    dloss: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> Tensor:
    _check("cross_entropy_backward", logits, target, weight, label_smoothing, z_loss, softcap, lse=lse, dloss=dloss)
    return logits.new_empty(logits.shape)


op = define(
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index, float label_smoothing, "
    "float z_loss, float softcap) -> (Tensor, Tensor)",
    _fake,
    logits=Role.ROWS,
    target=Role.CLASSES,
    weight=Role.VECTOR,
)
op_backward = define(
    "cross_entropy_backward(Tensor logits, Tensor target, Tensor? weight, Tensor lse, Tensor dloss, "
    "int ignore_index, float label_smoothing, float z_loss, float softcap) -> Tensor",
    _fake_backward,
    logits=Role.ROWS,
    target=Role.CLASSES,
    weight=Role.VECTOR,
    lse=Role.PER_ROW,
    dloss=Role.PER_ROW,
)


class _CrossEntropy(Function):
    """Autograd function that saves the logits, the target, the weights of the classes, and `lse`, the
    log-sum-exp of each row of logits.

    The backward reads the logits again, and allocates a new tensor for their gradient.
    """

    @staticmethod
    def forward(logits: Tensor, target: Tensor, weight: Tensor | None, *params: float) -> tuple[Tensor, Tensor]:
        return op(logits, target, weight, *params)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, target, weight, *ctx.params = inputs
        ctx.save_for_backward(logits, target, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, weight, lse = ctx.saved_tensors
        try:
            gradient = op_backward(logits, target, weight, lse, dloss.contiguous(), *ctx.params)
        except RuntimeError as error:
            explain(error, "cross_entropy_backward", 1, logits)
            raise
        return gradient, None, None, None, None, None, None


def counted(target: Tensor, ignore_index: int) -> Tensor | int:
    """Return the number of rows whose target is not `ignore_index`.

    If the dtype of `target` cannot represent `ignore_index`, no row is ignored, and the result is the number of all
    rows. This case needs a separate check, because torch's `target != ignore_index` would convert `ignore_index` to
    this dtype. By integer overflow, it could then become a valid class.
    """
    limits = torch.iinfo(target.dtype)
    return (target != ignore_index).sum() if limits.min <= ignore_index <= limits.max else target.numel()


def _target_weights(weight: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Return the weight of each row's target in float32, and 0 for ignored rows.

    A target that is neither a class nor `ignore_index` gets the weight of an arbitrary class. This does not matter,
    because the loss of its row is NaN.
    """
    factors = weight.float()[target.clamp(0, weight.shape[0] - 1).long()]
    limits = torch.iinfo(target.dtype)
    if not limits.min <= ignore_index <= limits.max:  # see `counted`
        return factors
    return torch.where(target == ignore_index, 0.0, factors)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the cross-entropy of logits over the last dimension: `lse - logits[target]` with
    `lse = ln(sum(exp(logits)))`.

    Args:
        logits (Tensor): float32, float16 or bfloat16, shape `[..., V]` with V at least 1 (tested up to 262,144), on the
            CPU or a CUDA device. The classes are always in the last dimension, whereas torch's function has them in
            dimension 1 if a tensor has three or more dimensions. If the last stride is not 1, a contiguous copy is made
            first. Otherwise, `Tensor.view` must be able to merge all dimensions except the last into at most two, as in
            slices such as `logits[:, :-1]` of a contiguous tensor.
        target (Tensor): class of each row, int64 or int32, shape `[...]`.
        ignore_index (int): rows whose target is this number do not contribute to the loss.
        reduction (str): "mean" returns the mean over the rows that are not ignored. "sum" returns the sum.
            "none" returns one loss per row.
        label_smoothing (float): fraction of the target probability that is distributed evenly over all
            classes; between 0 and 1.
        z_loss (float): the term `z_loss * lse**2` is added to the loss of each row (PaLM, arXiv:2204.02311).
            `z_loss` is finite, 0 or more.
        softcap (float | None): limit of the logits, as in Gemma 2. Each logit `x` is replaced by
            `softcap * tanh(x / softcap)`. `softcap` is finite, and above 0 or None.
        weight (Tensor | None): weight of each class, shape `[V]`, in the dtype of `logits` or in float32. The
            loss of a row is multiplied by the weight of its target. "mean" then divides by the sum of these
            weights. Label smoothing multiplies the term of each class by the weight of this class, as torch
            does. `weight` has no gradient.
        dtype (torch.dtype | None): dtype of the loss: `torch.float32`, or None for the dtype of `logits`.
        return_lse (bool): if True, also return `lse`.

    Returns:
        The loss in the dtype of `logits`, or in `dtype`. The loss is a scalar, or has shape `[...]` with
        `reduction="none"`. If `return_lse` is True, the function returns the pair `(loss, lse)`. `lse` is
        float32 of shape `[...]` and has no gradient.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. On the CPU,
            also raised for a target that is neither a class nor `ignore_index`.
        ValueError: `reduction` is not "none", "mean" or "sum", or `dtype` is neither None nor float32.
        TypeError: `logits`, `target` or `weight` is not a tensor, or another argument has the wrong type.
        torch.OutOfMemoryError: An allocation does not fit in GPU memory.

    Note:
        Exactness: The kernel reads each row once and computes its loss in float32. The returned loss is rounded once.
            The loss of a row does not depend on the other rows. With a softcap, torch's operators round after the
            division, after `tanh` and after the product, but the kernel does not. It computes the derivative of `tanh`
            as `1 - tanh**2`, so that a logit far above the softcap has the gradient 0.
        Gradients: Only `logits` has a gradient. A second derivative and forward-mode AD raise RuntimeError.
        Special values: If a row contains NaN or +inf, its loss and its `lse` are NaN. For a row with +inf,
            torch.logsumexp returns +inf instead. If all rows are ignored, "mean" returns NaN. On a GPU, the
            targets are not checked, because the host does not read them. A target that is neither a class nor
            `ignore_index` gives a NaN loss and a NaN gradient. In torch, such a target triggers a device-side
            assertion.

    Source:
        `torch.nn.functional.cross_entropy`; label smoothing, arXiv:1512.00567; online softmax (maximum and
        sum in one pass), arXiv:1805.02867.

    Example:
        >>> oxiwarp.cross_entropy(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), torch.tensor([2, 0]))
        tensor(0.7531)
    """
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor) and isinstance(weight, OPTIONAL)):
        refuse_types("cross_entropy", {"logits": logits, "target": target}, {"weight": weight})
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'")
    if dtype not in (None, torch.float32, logits.dtype):
        raise ValueError(f"cross_entropy: dtype is {dtype}, expected None, torch.float32 or {logits.dtype}")
    try:
        cap = 0.0 if softcap is None else softcap
        weight = weight if weight is None else weight.detach().contiguous()
        arguments = (logits, target.contiguous(), weight, ignore_index, label_smoothing, z_loss, cap)
        loss, lse = apply(_CrossEntropy, *arguments) if needs_grad(logits) else op(*arguments)
    except RuntimeError as error:
        explain(error, "cross_entropy", 0, logits, "logits", target=target, weight=weight)
        raise
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        weights = None if weight is None else _target_weights(weight, target, ignore_index)
        loss = loss / (counted(target, ignore_index) if weights is None else weights.sum())
    loss = loss.to(dtype or logits.dtype)
    return (loss, lse) if return_lse else loss


__all__ = ["cross_entropy"]
