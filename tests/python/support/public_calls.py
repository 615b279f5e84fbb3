"""A call of every public operator: what rows of it depend on, as one tensor, and what else it takes."""

from collections.abc import Callable

import torch
from helpers import random
from torch import Tensor

import oxiwarp
from oxiwarp import ops

COLS = 16


def calls(device) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """By name: a function of one tensor that calls the operator, giving one result, and its argument `[3, 4, COLS]`."""
    x, y = (random((3, 4, COLS), torch.float32, device, seed) for seed in (0, 1))
    side, vector = random((1, 1, COLS), torch.float32, device, 2), random((COLS,), torch.float32, device, 3)
    angles = random((4, COLS // 2), torch.float32, device, 4)
    cos, sin = angles.cos(), angles.sin()
    target = torch.tensor([[1, 5, 2, 0]] * 3, device=device)
    rows = lambda t: y[: t.shape[0]].expand_as(t).contiguous()  # noqa: E731  a second tensor of t's shape
    heads = lambda t: t.unsqueeze(-2)  # noqa: E731  one head
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "ada_norm": lambda t: oxiwarp.ada_norm(t, side, side),
        "ada_norm_pair": lambda t: oxiwarp.ada_norm_pair(t, side, side, side * 2, None)[1],
        "add_rms_norm": lambda t: oxiwarp.add_rms_norm(t, rows(t), vector)[0],
        "attention": lambda t: oxiwarp.attention(*(heads(t).bfloat16(),) * 3),
        "cross_entropy": lambda t: oxiwarp.cross_entropy(t, target[: t.shape[0]]),
        "gated_residual": lambda t: oxiwarp.gated_residual(t, rows(t), side),
        "gated_residual_ada_norm": lambda t: oxiwarp.gated_residual_ada_norm(t, rows(t), side, side, side)[0],
        "layer_norm": lambda t: oxiwarp.layer_norm(t, vector, vector),
        "modulated_rms_norm": lambda t: oxiwarp.modulated_rms_norm(t, side),
        "qk_norm_rope": lambda t: oxiwarp.qk_norm_rope(heads(t), heads(t), cos, sin, q_weight=vector)[0],
        "residual_tanh_gated_rms_norm": lambda t: oxiwarp.residual_tanh_gated_rms_norm(t, rows(t), side),
        "residual_tanh_gated_rms_norm_modulated": lambda t: oxiwarp.residual_tanh_gated_rms_norm_modulated(
            t, rows(t), side, side
        )[0],
        "rms_norm": lambda t: oxiwarp.rms_norm(t, vector),
        "rms_norm_gated": lambda t: oxiwarp.rms_norm_gated(t, rows(t), vector),
        "rope": lambda t: oxiwarp.rope(heads(t), None, cos, sin),
        "rope_1d": lambda t: oxiwarp.rope_1d(heads(t)),
        "rope_3d": lambda t: oxiwarp.rope_3d(heads(t), grid=(1, 2, 2)),
        "softmax": lambda t: oxiwarp.softmax(t),
    }
    for name in ops.__all__:
        if name not in made:  # activations, plain and gated
            made[name] = getattr(oxiwarp, name)
    return {name: (call, x) for name, call in made.items()}
