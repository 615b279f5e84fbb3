"""Cross-entropy of logits and its gradient: two operators and their public function."""

from typing import Any

import torch
from torch import Tensor

from ._function import Function, apply
from ._once_differentiable import once
from ._register import FLOATS, check_number, define, dtype_name, explain, needs_grad, refuse_types
from ._roles import Role

REDUCTIONS = ("none", "mean", "sum")
INDICES = (torch.int64, torch.int32)


def _check(op: str, logits: Tensor, target: Tensor, label_smoothing: float, z_loss: float, **rows: Tensor) -> None:
    """Raise RuntimeError for what the kernels refuse, from shapes, dtypes, devices and numbers alone."""
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
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"{op}: label_smoothing is {label_smoothing:g}, expected 0 to 1")
    check_number(op, "z_loss", z_loss, 0.0)


def _fake(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    _check("cross_entropy", logits, target, label_smoothing, z_loss)
    rows = logits.shape[:-1]
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.float32)


def _fake_backward(
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    dloss: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    _check("cross_entropy_backward", logits, target, label_smoothing, z_loss, lse=lse, dloss=dloss)
    return logits.new_empty(logits.shape)


op = define(
    "cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing, float z_loss) "
    "-> (Tensor, Tensor)",
    _fake,
    logits=Role.ROWS,
    target=Role.CLASSES,
)
op_backward = define(
    "cross_entropy_backward(Tensor logits, Tensor target, Tensor lse, Tensor dloss, int ignore_index, "
    "float label_smoothing, float z_loss) -> Tensor",
    _fake_backward,
    logits=Role.ROWS,
    target=Role.CLASSES,
    lse=Role.PER_ROW,
    dloss=Role.PER_ROW,
)


class _CrossEntropy(Function):
    """Keeps the logits and a number for each row; the gradient reads them again and writes its own tensor."""

    @staticmethod
    def forward(logits: Tensor, target: Tensor, *params: float) -> tuple[Tensor, Tensor]:
        return op(logits, target, *params)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, target, *ctx.params = inputs
        ctx.save_for_backward(logits, target, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, lse = ctx.saved_tensors
        try:
            return op_backward(logits, target, lse, dloss.contiguous(), *ctx.params), None, None, None, None
        except RuntimeError as error:
            explain(error, "cross_entropy_backward", 1, logits)
            raise


def counted(target: Tensor, ignore_index: int) -> Tensor | int:
    """The number of rows that are not ignored. torch would wrap an `ignore_index` that `target`'s dtype cannot hold."""
    limits = torch.iinfo(target.dtype)
    return (target != ignore_index).sum() if limits.min <= ignore_index <= limits.max else target.numel()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Cross-entropy of logits over the last dimension: `lse - logits[target]`, `lse = ln(sum(exp(logits)))`.

    As `torch.nn.functional.cross_entropy`, with the classes in the last dimension whatever the rank. Each row is read
    once and computed in float32; the result is rounded once.

    Args:
        logits: float32, float16 or bfloat16, of shape `[..., V]` with V at least 1 (tested to 262,144), on the CPU or a
            CUDA device. The last dimension must have stride 1; the leading ones may be strided as far as two strides
            describe them (`logits[:, :-1]`).
        target: int64 or int32, of shape `[...]`: the class of each row.
        ignore_index: the target of rows that count for nothing.
        reduction: "mean" over the rows that are not ignored (NaN without any), "sum", or "none", a loss for each row.
        label_smoothing: from 0 to 1: the share of the target that all classes have in equal parts.
        z_loss: `z_loss * lse**2` is added to each row's loss (PaLM, arXiv:2204.02311); finite, 0 or more.
        return_lse: also return `lse`, float32 of shape `[...]`, which has no gradient.

    Returns:
        The loss, in the dtype of `logits`: a scalar, or of shape `[...]`; with `return_lse` the pair `(loss, lse)`.
        Both are NaN in a row with NaN or +inf (torch.logsumexp gives +inf for +inf).

    A target that is neither a class nor `ignore_index` is an error on the CPU; on a GPU, which nobody waits for, its
    loss and gradient are NaN (torch ends the process's CUDA context there). Has a gradient for `logits`, once, not
    twice. A CUDA tensor runs on torch's current stream and can be captured in a CUDA graph; a CPU tensor runs the same
    kernel on the CPU executor, which is meant for tests: it is slow. A row's loss does not depend on the other rows.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75.
        ValueError: for another `reduction`.
        TypeError: for `logits` or a `target` that is no tensor.

    Source: `torch.nn.functional.cross_entropy`; label smoothing, arXiv:1512.00567; online maximum and sum,
    arXiv:1805.02867.
    """
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        refuse_types("cross_entropy", {"logits": logits, "target": target}, {})
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'")
    try:
        arguments = (logits, target.contiguous(), ignore_index, label_smoothing, z_loss)
        loss, lse = apply(_CrossEntropy, *arguments) if needs_grad(logits) else op(*arguments)
    except RuntimeError as error:
        explain(error, "cross_entropy", 0, logits, "logits", target=target)
        raise
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = loss / counted(target, ignore_index)
    loss = loss.to(logits.dtype)
    return (loss, lse) if return_lse else loss


__all__ = ["cross_entropy"]
