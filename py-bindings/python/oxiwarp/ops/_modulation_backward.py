"""The gradients of modulated norms and of gates, made of the norms' and of sums in float32.

With `y = n * (1 + scale) + shift` and `n = norm(x) * weight + bias`, a scale that rows share is a weight of the norm:
`1 + scale` times its own weight, one for each group of rows. The norms' kernel then leaves two sums for each group,
`A = sum(dy * norm(x))` and `B = sum(dy)`, of which all other gradients are made: `dscale = A * weight + B * bias`,
`dshift = B`, and sums over the groups for weight and bias. A scale that no two rows share, or in another order, is
multiplied by torch. As in the norms, roundings of the forward are taken for what they approximate.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks.rows import summed
from .layer_norm import op as layer_norm
from .layer_norm_backward import op as layer_norm_backward
from .rms_norm import op as rms_norm
from .rms_norm_backward import op as rms_norm_backward

GROUPS = 65_535


class Norm(NamedTuple):
    """A norm and its parameters."""

    rms: bool
    eps: float
    weight: Tensor | None
    bias: Tensor | None

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Its result, computed in `dtype`: x's, or float32."""
        x = x.to(dtype)
        weight, bias = (p if p is None or p.dtype == torch.float32 else p.to(dtype) for p in (self.weight, self.bias))
        if not self.rms:
            return layer_norm(x, weight, bias, self.eps)
        n = rms_norm(x, weight, self.eps, 0.0, False)
        return n if bias is None else n + bias

    def gradients(
        self, dy: Tensor, x: Tensor, weight: Tensor | None, dsum: Tensor | None, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of x, with `dsum`, and the sums `A` and `B` that are wanted, for another weight than its own."""
        dweight, dbias = wanted
        if not self.rms:
            dx, a, b = layer_norm_backward(dy, x, weight, None, dsum, self.eps, dweight, dbias)
            return dx, a if dweight else None, b if dbias else None
        dx, a = rms_norm_backward(dy, x, weight, dsum, self.eps, 0.0, dweight)
        groups = 1 if weight is None or weight.dim() == 1 else weight.shape[0]
        rows = dy.reshape(groups, math.prod(x.shape[:-1]) // groups, x.shape[-1])
        b = rows.sum(1, dtype=torch.float32) if dbias else None
        return dx, a if dweight else None, b


class Modulation(NamedTuple):
    """`scale` or `shift` as they came, each with its table."""

    value: Tensor
    table: Tensor | None


def modulations(
    scale: Tensor, scale_table: Tensor | None, shift: Tensor | None, shift_table: Tensor | None
) -> tuple[Modulation, Modulation | None]:
    """Scale and shift, of four arguments."""
    return Modulation(scale, scale_table), None if shift is None else Modulation(shift, shift_table)


class Gradients(NamedTuple):
    """In float32 but for `x`; None where there is no such operand."""

    x: Tensor
    scale: Tensor | None
    shift: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def modulated(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    scale: Modulation,
    shift: Modulation | None,
    dsum: Tensor | None,
    sums: bool,
) -> Gradients:
    """The gradients of `norm(x) * (1 + scale) + shift`, for a gradient `dy` of it; `dsum` is added to that of x.

    Those of scale and shift have the shape of their values, also where only those of tables are wanted. Without `sums`
    there is that of x alone.
    """
    factor = 1 + summed(scale.value.float(), scale.table)
    groups = groups_of(scale.value, x)
    if groups is None:
        return _by_torch(dy, x, norm, factor, scale, shift, dsum, sums)
    cols = x.shape[-1]
    factor = factor.reshape(groups, cols)
    weight = (factor if norm.weight is None else factor * norm.weight).contiguous()
    dx, a, b = norm.gradients(dy, x, weight, dsum, (sums, sums))
    if a is None or b is None:
        return Gradients(dx, None, None, None, None)
    dscale = a if norm.weight is None else a * norm.weight
    if norm.bias is not None:
        dscale = dscale + b * norm.bias
    if shift is None:
        dshift = None
    elif groups_of(shift.value, x) == groups:
        dshift = b.reshape(shift.value.shape)
    else:
        dshift = sum_to(dy, shift.value)
    return Gradients(
        dx,
        dscale.reshape(scale.value.shape),
        dshift,
        None if norm.weight is None else (factor * a).sum(0),
        None if norm.bias is None else (factor * b).sum(0),
    )


def _by_torch(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    factor: Tensor,
    scale: Modulation,
    shift: Modulation | None,
    dsum: Tensor | None,
    sums: bool,
) -> Gradients:
    """For any scale that broadcasts: `dy * (1 + scale)` is a tensor, rounded to x's dtype."""
    dn = (dy * factor).to(x.dtype)
    wanted = (sums and norm.weight is not None, sums and norm.bias is not None)
    weight = norm.weight
    if any(wanted):
        weight = torch.ones(x.shape[-1], dtype=torch.float32, device=x.device) if weight is None else weight.float()
    dx, dweight, dbias = norm.gradients(dn, x, weight, dsum, wanted)
    if not sums:
        return Gradients(dx, None, None, None, None)
    return Gradients(
        dx,
        sum_to(dy.float() * norm(x, scale.value.dtype), scale.value),
        None if shift is None else sum_to(dy, shift.value),
        dweight,
        None if dbias is None else dbias.reshape(-1),
    )


def groups_of(modulation: Tensor, x: Tensor) -> int | None:
    """Into how many groups of following rows `modulation` divides those of x; None where it does not, or in too many.

    `[B, 1, N]` beside `[B, S, N]`: B. `[N]`: 1. `[B, S, N]`, or `[1, S, N]` where B is more than 1: None.
    """
    own, sizes, first = (1,) * (x.dim() - modulation.dim()) + tuple(modulation.shape), x.shape[:-1], 0
    while first < len(sizes) and own[first] == sizes[first]:
        first += 1
    groups, rows = math.prod(sizes[:first]), math.prod(sizes[first:])  # numel() would make a symbolic size a number
    shared = rows > 1 or groups == 1
    return groups if shared and 0 < groups <= GROUPS and all(size == 1 for size in own[first:-1]) else None


def sum_to(gradient: Tensor, like: Tensor) -> Tensor:
    """`gradient` in float32, summed over what `like` is broadcast over."""
    dims = list(range(gradient.dim() - like.dim()))
    dims += [dim for dim in range(len(dims), gradient.dim()) if like.shape[dim - gradient.dim()] != gradient.shape[dim]]
    total = gradient.sum(dims, dtype=torch.float32) if dims else gradient.float()
    return total.reshape(like.shape)


def of_modulation(
    gradient: Tensor | None, modulation: Modulation | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a value and of its table, in their dtypes, those that are wanted."""
    if gradient is None or modulation is None:
        return None, None
    value, table = modulation
    of_value = gradient.to(value.dtype) if wanted[0] else None
    return of_value, sum_to(gradient, table).to(table.dtype) if wanted[1] and table is not None else None


def ada_norm_gradients(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    by: tuple[Modulation, Modulation | None],
    dsum: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of x (always), scale, its table, shift, its table, weight and bias, in their dtypes."""
    scale, shift = by
    all_of = modulated(dy.contiguous(), x, norm, scale, shift, dsum, any(wanted[1:]))
    return (
        all_of.x,
        *of_modulation(all_of.scale, scale, wanted[1:3]),
        *of_modulation(all_of.shift, shift, wanted[3:5]),
        None if all_of.weight is None or norm.weight is None else all_of.weight.to(norm.weight.dtype),
        None if all_of.bias is None or norm.bias is None else all_of.bias.to(norm.bias.dtype),
    )


def gated(
    dtotal: Tensor, y: Tensor, gate: Modulation, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `gate * y` for y, the gate and its table, those that are wanted."""
    dy = (dtotal * summed(gate.value.float(), gate.table)).to(y.dtype) if wanted[0] else None
    if not (wanted[1] or wanted[2]):
        return dy, None, None
    dgate = sum_to(dtotal.float() * y, gate.value)
    return dy, *of_modulation(dgate, gate, wanted[1:])


__all__ = ["Modulation", "Norm", "ada_norm_gradients", "gated", "modulations"]
