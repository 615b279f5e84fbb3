"""Gradients that may be taken once: what the kernels compute has no derivative, and a second one says so."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

# torch's words, which its `once_differentiable` has for this.
TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


class _ReadOnce:
    """A backward's context, whose saved tensors are unpacked once: gradient checkpointing refuses another time."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


def _apart(tensor: Tensor) -> Tensor:
    """The same elements with a history of their own. No view where it can be helped: torch lets nobody write to a view
    that a function returned beside others."""
    if is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor):  # whose `data` ends the process
        return tensor.view_as(tensor)
    return tensor.data


class _Twice(torch.autograd.Function):
    """The first `count` of some tensors, which are made of the others: a derivative for any of those raises."""

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
    """A `backward` by kernels, which have no derivative: with `create_graph` one of its results raises.

    torch's `once_differentiable` leaves it 0 where what comes back is constant (`y.sum()`) and where the inputs to
    differentiate for are named (`autograd.grad`): no way leads from them to its node. Here all that a result is made of
    leads to it, and there is none where that is constant (the gradient of a rotation).
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():  # as while torch.compile traces
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
