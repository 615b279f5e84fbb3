"""Computes the gradients of modulated norms and of gates, with the backward kernels of the norms and of gated
residuals, and with float32 sums.

The forward is `y = n * (1 + scale) + shift` with `n = norm(x) * weight + bias`. `dy` is the incoming gradient of `y`.
Consecutive rows that share one row of `scale` form a group. For each group, the backward kernel of the norm takes
`(1 + scale) * weight` instead of the norm's weight. It returns the gradient of x, and two sums over the rows of each
group: `A = sum(dy * norm(x))` and `B = sum(dy)`. The gradients of scale, shift, weight and bias follow from these sums:

    dscale  = A * weight + B * bias           dshift = B
    dweight = sum((1 + scale) * A)            dbias  = sum((1 + scale) * B)      (sums over the groups)

If no consecutive rows share a row of `scale`, torch first computes `dy * (1 + scale)`. The backward kernel of the norm
takes this product as its incoming gradient. All gradients are those of the mathematical formula: they ignore that the
forward pass may round intermediate results.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks.rows import summed
from .gated_residual_backward import GROUPS
from .gated_residual_backward import op as gated_residual_backward
from .layer_norm import op as layer_norm
from .layer_norm_backward import op as layer_norm_backward
from .rms_norm import op as rms_norm
from .rms_norm_backward import op as rms_norm_backward


class Norm(NamedTuple):
    """A norm with its weight, bias and eps. If `rms` is True, the norm is an RMSNorm. Otherwise, it is a
    LayerNorm.
    """

    rms: bool
    eps: float
    weight: Tensor | None
    bias: Tensor | None

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the norm of `x` in `dtype`, which is the dtype of `x` or float32."""
        x = x.to(dtype)
        weight, bias = (p if p is None or p.dtype == torch.float32 else p.to(dtype) for p in (self.weight, self.bias))
        if not self.rms:
            return layer_norm(x, weight, bias, self.eps)
        n = rms_norm(x, weight, self.eps, 0.0, False)
        return n if bias is None else n + bias

    def gradients(
        self, dy: Tensor, x: Tensor, weight: Tensor | None, dsum: Tensor | None, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return three tensors: the gradient of `x` plus `dsum`, and the sums `A = sum(dy * norm(x))` and
        `B = sum(dy)`.

        `weight` replaces the weight of the norm. If it has shape `[N]`, A and B are sums over all rows. If it has shape
        `[groups, N]`, it has one row for each group of consecutive rows of `x`, and A and B are sums over the rows of
        each group. `wanted` has two flags: whether the caller needs A, and whether it needs B. A sum that the caller
        does not need is None.
        """
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
    """A scale, shift or gate, and the vector `table` of shape `[N]` that is added to it.

    If `table` is None, nothing is added.
    """

    value: Tensor
    table: Tensor | None


def modulations(
    scale: Tensor, scale_table: Tensor | None, shift: Tensor | None, shift_table: Tensor | None
) -> tuple[Modulation, Modulation | None]:
    """Return two `Modulation` tuples: the scale with its table, and the shift with its table.

    If `shift` is None, the second result is None.
    """
    return Modulation(scale, scale_table), None if shift is None else Modulation(shift, shift_table)


class Gradients(NamedTuple):
    """Gradients of a modulated norm. The gradient of the input `x` has the dtype of `x`. The other gradients
    are float32.

    A gradient is None if the forward had no such operand, or if the caller does not need the gradient.
    """

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
    """Return the gradients of `norm(x) * (1 + scale) + shift`, where `dy` is the incoming gradient.

    If `dsum` is not None, it is added to the gradient of `x`. The gradients of scale and shift have the shapes of
    `scale.value` and `shift.value`. From them, the caller computes the gradients of the tables, as sums over the rows.
    If `sums` is False, only the gradient of `x` is computed.
    """
    factor = 1 + summed(scale.value.float(), scale.table)
    return _scaled(dy, x, norm, factor, scale.value, shift, dsum, sums)


def _scaled(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    factor: Tensor,
    scale: Tensor,
    shift: Modulation | None,
    dsum: Tensor | None,
    sums: bool,
) -> Gradients:
    """Return the gradients of `norm(x) * factor + shift`. The factor is float32, and has the shape of `scale`, of which
    it is a sum. The gradient of `scale` is therefore that of the factor.
    """
    groups = groups_of(scale, x)
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
        dscale.reshape(scale.shape),
        dshift,
        None if norm.weight is None else (factor * a).sum(0),
        None if norm.bias is None else (factor * b).sum(0),
    )


def _by_torch(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    factor: Tensor,
    scale: Tensor,
    shift: Modulation | None,
    dsum: Tensor | None,
    sums: bool,
) -> Gradients:
    """Return the gradients of a modulated norm for which `groups_of` returns None, e.g. because each row of `x`
    has a separate scale. The arguments are those of `_scaled`.

    torch computes `dy * factor` and rounds the product to the dtype of `x`. The backward kernel of the
    norm takes this product as its incoming gradient.
    """
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
        sum_to(dy.float() * norm(x, scale.dtype), scale),
        None if shift is None else sum_to(dy, shift.value),
        dweight,
        None if dbias is None else dbias.reshape(-1),
    )


def groups_of(modulation: Tensor, x: Tensor) -> int | None:
    """Return the number of groups of rows of `x`. A group consists of consecutive rows that share one row of
    `modulation`.

    Return None in four cases: the rows do not form such groups, there are several groups of one row each, there
    are more than `GROUPS` groups, or the modulation has one column and `x` has more. Examples for `x` of shape
    `[B, S, N]`: a modulation of shape `[B, 1, N]` gives B groups, and shape `[N]` gives 1 group. Shape
    `[B, S, N]` gives None, and so does shape `[1, S, N]` if B > 1.
    """
    if modulation.shape[-1] != x.shape[-1]:
        return None
    own, sizes, first = (1,) * (x.dim() - modulation.dim()) + tuple(modulation.shape), x.shape[:-1], 0
    while first < len(sizes) and own[first] == sizes[first]:
        first += 1
    groups, rows = math.prod(sizes[:first]), math.prod(sizes[first:])  # numel() would fix symbolic sizes
    shared = rows > 1 or groups == 1
    return groups if shared and 0 < groups <= GROUPS and all(size == 1 for size in own[first:-1]) else None


def sum_to(gradient: Tensor, like: Tensor) -> Tensor:
    """Reduce `gradient` to the shape of `like`: sum in float32 over the dimensions along which `like` is
    broadcast.
    """
    dims = list(range(gradient.dim() - like.dim()))
    dims += [dim for dim in range(len(dims), gradient.dim()) if like.shape[dim - gradient.dim()] != gradient.shape[dim]]
    total = gradient.sum(dims, dtype=torch.float32) if dims else gradient.float()
    return total.reshape(like.shape)


def of_modulation(
    gradient: Tensor | None, modulation: Modulation | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """A modulation is the sum of a value and a table. Return its two gradients: the gradient of the value, in
    the value's dtype, and the gradient of the table, in the table's dtype.

    `gradient` is the gradient of the sum. `wanted` has two flags: whether the caller needs the first
    gradient, and whether it needs the second. A gradient that the caller does not need is None.
    """
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
    """Return the gradients of x, scale, scale table, shift, shift table, weight and bias, each in the dtype
    of its operand.

    `wanted` has seven flags in the same order. Each flag says whether the caller needs the gradient. The
    gradient of `x` is always computed. If `dsum` is not None, it is added to the gradient of `x`.
    """
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
    """Return three gradients of the product `gate * y`: of `y`, of `gate.value` and of `gate.table`. The gate
    is the sum of `gate.value` and `gate.table`, if there is a table.

    `dtotal` is the incoming gradient. `wanted` has one flag per gradient: whether the caller needs it.
    Gradients that the caller does not need are None.
    """
    if not any(wanted):
        return None, None, None
    value = gate.value if gate.table is None else gate.value.float() + gate.table
    form = _supported(value, y)
    if form is None:
        dy = (dtotal * value).to(y.dtype) if wanted[0] else None
        of_product = dtotal.float() * y if any(wanted[1:]) else None
    else:
        branch = y if y.stride(-1) == 1 else y.contiguous()
        dy, of_product = gated_residual_backward(dtotal.contiguous(), branch, form, any(wanted[1:]))
    if of_product is None or not any(wanted[1:]):
        return dy if wanted[0] else None, None, None
    same = form is not None and math.prod(form.shape) == math.prod(value.shape)
    dgate = of_product.reshape(value.shape) if same else sum_to(of_product, value)
    return dy if wanted[0] else None, *of_modulation(dgate, gate, wanted[1:])


def _supported(gate: Tensor, y: Tensor) -> Tensor | None:
    """Return the gate in a shape that the operator `gated_residual_backward` supports, or None if there is
    none.

    A gate with one column that is broadcast to several rows of `y` is converted to float32. The gradient of such a gate
    is a sum over rows. With a float32 gate, the terms of this sum are not rounded to 16 bits.
    """
    cols, rows = y.shape[-1], y.shape[:-1]
    if gate.shape[-1] != cols:
        return gate if gate.shape == (*rows, 1) else gate.float().expand(*rows, 1)
    if math.prod(gate.shape) == math.prod(y.shape):  # numel() specializes symbolic sizes
        return gate.reshape(y.shape)
    groups = groups_of(gate, y)
    return None if groups is None else gate.reshape(groups, cols)


def normed_branch(
    dout: Tensor, y: Tensor, norm: Norm, gate: Tensor | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `gate * norm(y)`, or of `norm(y)` if the gate is None: of y, gate, weight and bias, each
    in the dtype of its operand.

    `dout` is the incoming gradient. `wanted` has one flag per gradient: whether the caller needs it. If `dout` and
    `y` have different dtypes, the backward kernel of the norm computes with both in float32.
    """
    if not any(wanted):
        return None, None, None, None
    rows, of = y, norm
    if y.dtype != dout.dtype:
        dout, rows = dout.float(), y.float()
        of = norm._replace(weight=_single(norm.weight), bias=_single(norm.bias))
    factor = torch.ones(y.shape[-1], dtype=torch.float32, device=y.device) if gate is None else gate.float()
    all_of = _scaled(dout.contiguous(), rows, of, factor, factor, None, None, any(wanted[1:]))
    made = (all_of.x, all_of.scale, all_of.weight, all_of.bias)
    operands = (y, gate, norm.weight, norm.bias)
    return tuple(
        gradient.to(operand.dtype) if needed and gradient is not None and operand is not None else None
        for needed, gradient, operand in zip(wanted, made, operands, strict=True)
    )


def _single(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.float()


def multiplied(
    dy: Tensor, x: Tensor, norm: Norm, factor: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return two gradients of the product `norm(x) * factor`: of `x`, and of the factor in float32.

    The norm has no weight and no bias. The factor is float32, and broadcasts to `x`. `dy` is the incoming
    gradient. `wanted` has one flag per gradient: whether the caller needs it.
    """
    if not any(wanted):
        return None, None
    groups = groups_of(factor, x)
    if groups is not None:
        rows = factor.reshape(groups, x.shape[-1]).contiguous()
        dx, sums, _ = norm.gradients(dy, x, rows, None, (wanted[1], False))
        return dx, None if sums is None else sums.reshape(factor.shape)
    dfactor = sum_to(dy.float() * norm(x, torch.float32), factor) if wanted[1] else None
    if not wanted[0]:
        return None, dfactor
    return norm.gradients((dy * factor).to(x.dtype), x, None, None, (False, False))[0], dfactor


__all__ = [
    "Modulation",
    "Norm",
    "ada_norm_gradients",
    "gated",
    "modulated",
    "modulations",
    "multiplied",
    "normed_branch",
]
