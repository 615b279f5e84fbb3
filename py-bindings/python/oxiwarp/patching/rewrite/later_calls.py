"""Functions that compute operations of a rewritten method later than the original method does. A sum is computed
together with the norm of the sum, and an activation together with a `torch.cat`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...ops._register import may_write, needs_grad
from ..fusions.core.operands import as_rows
from ..sites import Site
from . import operands
from .deferred import LaterActivation, LaterSum, computed
from .factor_norms import eps_of

Own = Callable[..., Any]
"""The original expression, as a function of the operands."""
At = int | tuple[Any, ...]
"""Index of a chain (an expression that one kernel may compute) in the method. If the chain contains the
source of functions, `At` is a tuple: the index, then the functions that have these names at run time."""

compiling = torch.compiler.is_compiling


class LaterCalls:
    """The functions that a rewritten method calls for sums and activations that are computed later. The attributes have
    the options of `patch`.
    """

    mode: str
    cpu_kernels: bool
    site: Callable[[Any], Site]
    attempt: Callable[..., Any]
    replaced: Callable[[At], str | None]
    branch: Callable[..., Any]
    is_scaled: Callable[..., bool]
    gated_residual: Callable[..., Any]
    modulated_norm: Callable[..., Any]
    sum_and_norm: Callable[..., Any]

    def later_sum(self, at: At | None, own: Own, options: tuple[Any, ...], **terms: Any) -> Any:
        """Return a `LaterSum` (a placeholder for a sum that is not computed yet). If no kernel supports the
        operands, compute and return the sum."""
        x, y = terms["x"], terms.get("y")
        alike = at is None and type(x) is type(y) is Tensor and x.shape == y.shape and x.dtype == y.dtype
        if not alike and isinstance(self.branch(options, terms), str) and not self.is_scaled(options, terms):
            return self.sum_now(at, own, options, **terms)
        return LaterSum(at, own, options, terms, self.sum_now)

    def sum_now(self, at: At | None, own: Own, options: tuple[Any, ...], **terms: Any) -> Any:
        """Compute a sum. If `at` is None, no kernel computes this sum without its norm, so evaluate the original
        expression.
        """
        if at is None:
            return own(**terms)
        run = self.tanh_sum if options[0] == "tanh_sum" else self.gated_residual
        return run(at, own, options, **terms)

    def norm_of_later(self, at: At, own: Own, options: tuple[Any, ...], **given: Any) -> Any:
        """Compute the norm of `x`. If `x` is a placeholder for a sum, also compute the sum, if possible in the same
        kernel.
        """
        x = given["x"]
        if type(x) is LaterSum and options[0] == "factor_norm":
            return self.factor_norm_of(at, own, options, x, given)
        if type(x) is LaterSum and x.total is None and x.options[0] != "tanh_sum":
            casts = given.get("target") is x
            others = {f"norm_{name}": value for name, value in given.items() if name != "x" and value is not x}
            x.total, normed = self.sum_and_norm(at, x.own, own, x.options, options, casts, **x.terms, **others)
            x.terms = {}
            return normed
        given = {name: computed(value) for name, value in given.items()}
        if options[0] == "plain_norm":
            return own(**given)
        run = self.factor_norm if options[0] == "factor_norm" else self.modulated_norm
        return run(at, own, options, **given)

    def tanh_sum(self, at: At, own: Own, options: tuple[Any, ...], **terms: Any) -> Any:
        """Compute `x + norm(y, torch.tanh(gate))`."""
        why, made = self.replaced(at) or self.branch(options, terms), None
        if isinstance(why, str):
            self.site(at).note(why)
        else:
            x, y, gate, eps = *rows_of(terms["x"], terms["y"]), terms["gate"], why[2]
            made = self.attempt(at, lambda: ops.residual_tanh_gated_rms_norm(x, y, gate, eps))
        return own(**terms) if made is None else made

    def factor_norm(self, at: At, own: Own, options: tuple[Any, ...], **given: Any) -> Any:
        """Compute `norm(x, 1 + scale)`."""
        x, scale = given["x"], given["scale"]
        eps, made = self.replaced(at) or self.scaled(options, x, given["norm"], scale), None
        if isinstance(eps, str):
            self.site(at).note(eps)
        else:
            made = self.attempt(at, lambda: ops.modulated_rms_norm(as_rows(x), scale, eps))
        return own(**given) if made is None else made

    def factor_norm_of(self, at: At, own: Own, options: tuple[Any, ...], x: LaterSum, given: dict[str, Any]) -> Any:
        """Compute `norm(x, 1 + scale)`. If `x` is a placeholder for a sum, also compute the sum, if possible in the
        same kernel.
        """
        if x.total is None and x.options[0] == "tanh_sum" and not self.replaced(at):
            found = self.branch(x.options, x.terms)
            scale, first = given["scale"], x.terms["x"]
            eps = self.scaled(options, first, given["norm"], scale)
            if not isinstance(found, str) and not isinstance(eps, str) and found[2] == eps:
                (first, y), gate = rows_of(first, x.terms["y"]), x.terms["gate"]
                run = ops.residual_tanh_gated_rms_norm_modulated
                made = self.attempt(at, lambda: run(first, y, gate, scale, eps))
                if made is not None:
                    normed, x.total = made
                    x.terms = {}
                    return normed
        return self.factor_norm(at, own, options, **{**given, "x": x.now()})

    def scaled(self, options: tuple[Any, ...], x: Any, norm: Any, scale: Any) -> float | str:
        """Return the eps of the norm in `norm(x, 1 + scale)`, or a reason why no kernel computes this
        expression."""
        if why := operands.unusable(x, self.cpu_kernels) or operands.misplaced(x, scale):
            return why
        # With these dtypes, `1 + scale` is computed in float32.
        exact = scale.dtype == operands.FLOAT or (options[1] and scale.dtype == x.dtype)
        return eps_of(norm, x) if exact else operands.DTYPES

    def later_activation(self, at: int, act: Any, x: Any) -> Any:
        """Return a `LaterActivation` (a placeholder for `act(x)`, which is not computed yet), or the result
        of `act(x)`.

        Return the result if no kernel may write it into a slice of a larger tensor.
        """
        if compiling() or operands.unusable(x, self.cpu_kernels) or needs_grad(x) or not may_write(x):
            return act(x)
        op = operands.plain_activation(act)
        if isinstance(op, str) or not (x.is_contiguous() or (op is ops.silu_and_mul and x.stride(-1) == 1)):
            return act(x)
        return LaterActivation(op, x, self.mode)

    def joined_activation(self, at: int, cat: Callable[..., Any], parts: Any, dim: int = 0) -> Any:
        """Return `cat(parts, dim)`. If an activation among `parts` is not computed yet, its kernel writes
        directly into the concatenated tensor."""
        made = None
        if any([isinstance(x, LaterActivation) for x in parts]) and cat is torch.cat:
            made = self.attempt(at, lambda: written_parts(parts, dim))
        return cat([computed(x) for x in parts], dim) if made is None else made


def written_parts(parts: list[Any], dim: int) -> Tensor:
    """Return the concatenation of `parts`, which are tensors and activations that are not computed yet.

    Raise RuntimeError if the parts differ in dtype or in another dimension, or if autograd records the
    concatenation.
    """
    like = next(x for x in parts if isinstance(x, LaterActivation))
    shape, at = list(like.shape), dim % len(like.shape)
    rest = shape[:at] + shape[at + 1 :]
    for x in parts:
        own = list(x.shape)
        known = isinstance(x, LaterActivation) or (operands.is_plain(x) and not needs_grad(x) and may_write(x))
        if not known or x.dtype != like.dtype or own[:at] + own[at + 1 :] != rest:
            raise RuntimeError("the parts differ, or autograd records the concatenation")
    shape[at] = sum(x.shape[at] for x in parts)
    out = like.x.new_empty(shape)
    for x, place in zip(parts, out.split([x.shape[at] for x in parts], at), strict=True):
        if isinstance(x, LaterActivation):
            x.op(x.x, mode=x.mode, out=place)
        else:
            place.copy_(x)
    return out


def rows_of(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors, copied if their last dimension is not contiguous."""
    return tuple([x if x.stride(-1) == 1 else x.contiguous() for x in tensors])


__all__ = ["At", "LaterCalls", "Own", "rows_of"]
