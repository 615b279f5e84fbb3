"""Random calls of `linear`, and the formula for its results."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import BF16, F16, Draw
from .norms import rows_of
from .precision import Exact

MULTIPLE = 8  # The columns of `x` and the rows of the weight are multiples of this number.
# Largest magnitude of special rows. The float32 sums of their products do not overflow, because an overflow
# depends on the order of the sum.
LARGEST = 1e30


def draw_linear(g: Draw) -> Case:
    dtype = g.pick(BF16, F16)
    depth, columns = (MULTIPLE * (1 + g.below(g.pick(2, 2, 9, 9, 40))) for _ in range(2))
    if g.maybe(0.02):
        columns = 0
    shape = (*g.lead(max(depth, columns)), depth)
    x = g.layout(len(shape))(g.rows(shape, dtype, largest=LARGEST))
    weight = g.layout(2)(g.normal((columns, depth), dtype, g.pick(1.0, depth**-0.5)))
    tensors = {"x": x, "weight": weight, "bias": g.vector(columns, dtype) if g.maybe(0.5) else None}
    refusals = {"out of shape .* its rows must have one distance": lambda outs: not all(map(has_one_distance, outs))}
    return Case(tensors, {}, tuple(tensors), rows_of("x", shape), refusals=refusals)


def has_one_distance(x: Tensor) -> bool:
    """Return whether all rows of `x` have the same distance in memory."""
    try:
        x.view(-1, x.shape[-1])
    except RuntimeError:
        return False
    return True


def linear(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    y = m.edge(t.x) @ m.edge(t.weight).t()
    y = y if t.bias is None else y + m.edge(t.bias)
    with torch.no_grad():
        size = t.x.abs() @ t.weight.abs().t()
        size = size if t.bias is None else size + t.bias.abs()
    return m.f32(y, 4.0, size)


def torch_linear(t: SimpleNamespace, c: Case) -> Tensor | None:
    """Return the result of `F.linear`, or None on CUDA, where cuBLAS may round parts of a sum to 16 bits.

    `x` is copied, because `F.linear` rounds before it adds the bias if `x` is not contiguous.
    """
    return None if t.x.is_cuda else F.linear(t.x.clone(memory_format=torch.contiguous_format), t.weight, t.bias)


register("linear", draw_linear, linear, torch=torch_linear, cases=40)
