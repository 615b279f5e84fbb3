"""Batch invariance: rows among very many have the bits that they have alone, in every op on rows and its gradient."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from helpers import random
from torch import Tensor

import oxiwarp
from oxiwarp import ops


class Rows(NamedTuple):
    """Operands that have a line for each row."""

    x: Tensor
    y: Tensor
    side: Tensor
    target: Tensor
    position: Tensor
    coordinates: Tensor
    cos: Tensor
    sin: Tensor

    def part(self, begin: int, end: int) -> "Rows":
        return Rows(*(of_rows[begin:end] for of_rows in self))


def made(rows: int, cols: int, dtype: torch.dtype, device: torch.device) -> Rows:
    x, y, side = (random((rows, cols), dtype, device, seed) for seed in range(3))
    place = torch.arange(rows, device=device)
    coordinates = torch.stack([place / rows, place % 7 / 7, place % 11 / 11], dim=-1)
    angles = random((rows, min(cols, 128) // 2), torch.float32, device, 3)
    return Rows(x, y, side, place % cols, place, coordinates, angles.cos(), angles.sin())


def heads(x: Tensor) -> Tensor:
    """`[1, rows, heads, D]`."""
    return x.view(1, len(x), -1, min(x.shape[-1], 128))


# An op's results for some rows and a vector that all of them share.
CALLS: dict[str, Callable[[Rows, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "ada_norm": lambda r, v: oxiwarp.ada_norm(r.x, v, r.side, weight=v, bias=v),
    "ada_norm, RMS": lambda r, v: oxiwarp.ada_norm(r.x, v, r.side, norm="rms_norm", scale_table=v),
    "ada_norm, scale of a token": lambda r, v: oxiwarp.ada_norm(r.x, r.side, v),
    "ada_norm_pair": lambda r, v: oxiwarp.ada_norm_pair(r.x, v, v, v, r.side),
    "ada_norm_pair, scale of a token": lambda r, v: oxiwarp.ada_norm_pair(r.x, r.side, v, v, r.side),
    "add_rms_norm": lambda r, v: oxiwarp.add_rms_norm(r.x, r.y, v),
    "cross_entropy": lambda r, v: oxiwarp.cross_entropy(r.x, r.target, reduction="none", z_loss=0.1),
    "gated_residual": lambda r, v: oxiwarp.gated_residual(r.x, r.y, r.side, gate_table=v),
    "gated_residual_ada_norm": lambda r, v: oxiwarp.gated_residual_ada_norm(r.x, r.y, r.side, v, v, clip=True),
    "gated_residual_ada_norm, scale of a token": lambda r, v: oxiwarp.gated_residual_ada_norm(r.x, r.y, v, r.side),
    "layer_norm": lambda r, v: oxiwarp.layer_norm(r.x, v, v),
    "modulated_rms_norm": lambda r, v: oxiwarp.modulated_rms_norm(r.x, v),
    "modulated_rms_norm, scale of a token": lambda r, v: oxiwarp.modulated_rms_norm(r.x, r.side),
    "qk_norm_rope": lambda r, v: oxiwarp.qk_norm_rope(heads(r.x), heads(r.y), r.cos, r.sin),
    "qk_norm_rope, LayerNorm": lambda r, v: oxiwarp.qk_norm_rope(heads(r.x), norm="layer_norm"),
    "qk_norm_rope, across heads": lambda r, v: oxiwarp.qk_norm_rope(
        heads(r.x), None, r.cos, r.sin, across_heads=True, q_weight=v
    ),
    "residual_tanh_gated_rms_norm": lambda r, v: oxiwarp.residual_tanh_gated_rms_norm(r.x, r.y, r.side),
    "residual_tanh_gated_rms_norm_modulated": lambda r, v: oxiwarp.residual_tanh_gated_rms_norm_modulated(
        r.x, r.y, v, r.side
    ),
    "rms_norm": lambda r, v: oxiwarp.rms_norm(r.x, v, rounding="before_weight"),
    "rms_norm_gated": lambda r, v: oxiwarp.rms_norm_gated(r.x, r.y, v),
    "rms_norm_gated, gate first": lambda r, v: oxiwarp.rms_norm_gated(r.x, r.y, v, gate_first=True),
    "rope": lambda r, v: oxiwarp.rope(heads(r.x), heads(r.y), r.cos, r.sin),
    "rope_1d": lambda r, v: oxiwarp.rope_1d(heads(r.x), positions=r.position),
    "rope_3d": lambda r, v: oxiwarp.rope_3d(r.x[None], coordinates=r.coordinates),
    "softmax": lambda r, v: oxiwarp.softmax(r.x),
    "softmax, log": lambda r, v: oxiwarp.softmax(r.x, log=True),
}
for name in ops.activation.__all__:
    if not name.startswith("op"):
        CALLS[name] = lambda r, v, name=name: getattr(oxiwarp, name)(r.x, v)
for name in ops.gated_activation.__all__:
    if not name.startswith("op"):
        CALLS[name] = lambda r, v, name=name: getattr(oxiwarp, name)(r.x, r.y)


def results_of(name: str, rows: Rows, vector: Tensor) -> list[Tensor]:
    """An op's results and the gradient of `x`, a line for each row.

    The latter but for a scale of each token, which one row alone has as if all shared it: torch's product is not
    rounded there; and for Mochi's residuals, which are torch's operators where a gradient is recorded.
    """
    if name.startswith("residual_tanh"):
        results = CALLS[name](rows, vector)
        return list(results) if isinstance(results, tuple) else [results]
    x = rows.x.detach().requires_grad_()
    with torch.enable_grad():
        results = CALLS[name](rows._replace(x=x), vector)
    results = results if isinstance(results, tuple) else (results,)
    lines = [result.detach().reshape(len(x), -1) for result in results]
    if "of a token" in name:
        return lines
    back = [rows.y[:, : line.shape[1]].reshape(result.shape) for line, result in zip(lines, results, strict=True)]
    return [*lines, *torch.autograd.grad(results, x, back)]


def check(name: str, count: int, cols: int, dtype: torch.dtype, device: torch.device) -> None:
    rows, vector = made(count, cols, dtype, device), random((cols,), dtype, device, 9)
    together = results_of(name, rows, vector)
    for begin, end in ((0, 1), (0, 7), (count // 2, count // 2 + 1), (count - 1, count)):
        for at, (whole, alone) in enumerate(
            zip(together, results_of(name, rows.part(begin, end), vector), strict=True)
        ):
            assert torch.equal(whole[begin:end], alone), f"{name}, rows {begin} to {end}, result {at}"


def test_every_op_on_rows_is_here():
    assert {name.split(",")[0] for name in CALLS} == set(ops.__all__) - {"attention"}


@pytest.mark.parametrize("name", CALLS)
def test_rows_alone(name):
    check(name, 3001, 16, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_rows_alone_cuda(name, dtype, cuda):
    """With more rows than there are blocks in any first wave."""
    check(name, 100_000, 512, dtype, cuda)
