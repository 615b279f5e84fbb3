"""Makes second derivatives raise RuntimeError, because the backward kernels have no derivative."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

# The message of torch's `once_differentiable`.
TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


class _ReadOnce:
    """A backward context that unpacks the saved tensors once. Gradient checkpointing rejects a second unpacking."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


def _apart(tensor: Tensor) -> Tensor:
    """Return a tensor with the same elements and no autograd history.

    The result is `tensor.data` instead of a view. If a function with several outputs returns a view, torch forbids
    in-place writes to this view.
    """
    if is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor):  # reading their `data` aborts
        return tensor.view_as(tensor)
    return tensor.data


class _Twice(torch.autograd.Function):
    """An autograd function that returns its first `count` inputs unchanged, and whose backward raises RuntimeError.

    The remaining inputs are the tensors from which the first `count` inputs were computed. So a derivative with respect
    to one of the remaining inputs reaches the backward.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(_apart, tensors[:count]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        raise RuntimeError(TWICE)


def once(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate a `backward` that calls kernels: differentiating its results (`create_graph=True`) raises RuntimeError.

    torch's `once_differentiable` adds an error node to the graph, but the graph has no path from this node to the saved
    tensors. Therefore the second derivative is 0 instead of an error if the incoming gradient is constant (`y.sum()`),
    or if `autograd.grad` names the inputs. This decorator makes all saved tensors and incoming gradients inputs of the
    error node. If a gradient depends only on constants (e.g. the gradient of a rotation for a constant `dy`), its
    second derivative is still 0.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():  # no create_graph, or torch.compile traces the backward
            return backward(ctx, *grads)
        ctx = _ReadOnce(ctx)
        with torch.no_grad():
            results = backward(ctx, *grads)
        made = [result for result in results if result is not None]
        made_of = [tensor for tensor in (*ctx.saved_tensors, *grads) if tensor is not None]
        refusing = iter(_Twice.apply(len(made), *made, *made_of))
        return tuple(None if result is None else next(refusing) for result in results)

    return run


__all__ = ["once"]
