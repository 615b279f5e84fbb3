"""The decorator `once` for backward functions that call kernels. The kernels have no derivative, so a second derivative
raises RuntimeError instead of being wrong.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

# The same text as in the error of torch's decorator `once_differentiable`.
TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


class _ReadOnce:
    """Wraps the context `ctx` of an autograd function's backward, so that `ctx.saved_tensors` is read only
    once.

    With gradient checkpointing, a second read of `ctx.saved_tensors` would raise an error.
    """

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


def _apart(tensor: Tensor) -> Tensor:
    """Return a tensor with the memory of `tensor` and without autograd history.

    The result is `tensor.data`, which autograd does not treat as a view. If an autograd function with several outputs
    returned a view, torch would forbid in-place writes to it.
    """
    if is_functorch_wrapped_tensor(tensor) or is_legacy_batchedtensor(tensor):  # reading `data` aborts
        return tensor.view_as(tensor)
    return tensor.data


class _Twice(torch.autograd.Function):
    """An autograd function that returns its first `count` inputs unchanged, and whose backward raises RuntimeError.

    The other inputs are the tensors from which the first `count` inputs were computed. Because they are inputs, the
    autograd graph connects them to this function. Without the connection, the second derivative with respect to these
    tensors would be 0 instead of an error.
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
    """Decorate a `backward` that calls kernels, so that differentiating its results raises RuntimeError.

    With `create_graph=True`, autograd also records the backward, so that its results can be differentiated. torch's
    decorator `once_differentiable` adds an error node to the autograd graph for this case, but the graph has no path
    from this node to the saved tensors. With torch's decorator, the second derivative is therefore 0, without an error,
    in two cases. In the first case, the incoming gradient is constant (for example after `y.sum()`). In the second
    case, the caller asks `torch.autograd.grad` for the derivative with respect to certain inputs. The decorator `once`
    avoids both cases: it makes all saved tensors and incoming gradients inputs of the error node.

    If a gradient depends only on constants, its second derivative is still 0. An example is the gradient of a
    rotation if the incoming gradient is constant.
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
