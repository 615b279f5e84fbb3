"""Random calls of `linear`, and the formula for its results."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import BF16, F16, F32, Draw
from .elementwise import ACTIVATIONS, FLOOR, GATED
from .modulation import broadcast
from .norms import rows_of
from .precision import Exact

MULTIPLE = 8  # The columns of `x` and the rows of the weight are multiples of this number.
# Largest magnitude of special rows. The float32 sums of their products do not overflow, because an overflow
# depends on the order of the sum.
LARGEST = 1e30


PLAIN = ("gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick", "silu")
HALVES = ("geglu", "swiglu", "mul_and_silu", "silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")


def draw_linear(g: Draw) -> Case:
    dtype = g.pick(BF16, F16)
    depth, columns = (MULTIPLE * (1 + g.below(g.pick(2, 2, 9, 9, 40))) for _ in range(2))
    if g.maybe(0.02):
        columns = 0
    kind = g.pick("none", "none", "plain", "halves", "residual")
    columns *= 2 if kind == "halves" else 1
    shape = (*g.lead(max(depth, columns)), depth)
    # With an epilogue, use ordinary rows, because the epilogue can turn a large product into an infinity.
    special = kind == "none"
    x = g.layout(len(shape))(g.rows(shape, dtype, largest=LARGEST) if special else g.normal(shape, dtype, 1.0))
    weight = g.layout(2)(g.normal((columns, depth), dtype, g.pick(1.0, depth**-0.5) if special else depth**-0.5))
    tensors = {"x": x, "weight": weight, "bias": g.vector(columns, dtype) if g.maybe(0.5) else None}
    options: dict[str, Any] = {"mode": g.pick("exact", "fast")}
    if kind == "residual":
        wide = (*shape[:-1], columns)
        tensors["residual"] = g.layout(len(wide))(g.normal(wide, dtype, 1.0))
        tensors["gate"] = broadcast(g, wide, dtype) if columns and g.maybe(0.7) else None
    elif kind != "none":
        options["epilogue"] = g.pick(*(PLAIN if kind == "plain" else HALVES))
    refusals = {"out of shape .* its rows must have one distance": lambda outs: not all(map(has_one_distance, outs))}
    strided = ("residual", "gate") if kind == "residual" else ()
    row, floor = rows_of("x", shape), FLOOR if "epilogue" in options else 1.0
    return Case(tensors, options, tuple(tensors), row, strided, refusals=refusals, floor=floor)


def has_one_distance(x: Tensor) -> bool:
    """Return whether all consecutive rows of `x` have the same distance in memory."""
    try:
        x.view(-1, x.shape[-1])
    except RuntimeError:
        return False
    return True


def product(m: Exact, t: SimpleNamespace) -> Tensor:
    """Return the product plus the bias, before it is rounded."""
    y = m.edge(t.x) @ m.edge(t.weight).t()
    y = y if t.bias is None else y + m.edge(t.bias)
    with torch.no_grad():
        size = t.x.abs() @ t.weight.abs().t()
        size = size if t.bias is None else size + t.bias.abs()
    return m.f32(y, 4.0, size)


def linear(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    y, epilogue = product(m, t), c.options.get("epilogue")
    if epilogue is None and "residual" not in c.tensors:
        return y
    fast = c.options["mode"] == "fast"
    lo = F32 if fast else c.dtype
    # The backward computes the product again and rounds it. It also rounds the gradient of the product.
    y = m.back(m.round(y, lo), c.dtype)
    if epilogue is not None and epilogue in HALVES:
        function, first_half = GATED[epilogue]
        assert function is not None
        gate, up = y.chunk(2, -1) if first_half else reversed(y.chunk(2, -1))
        return m.f32(m.round(function(m, gate, lo, fast), lo) * up)
    if epilogue is not None:
        return ACTIVATIONS[epilogue](m, y, lo, fast)
    if t.gate is None:
        return m.f32(m.edge(t.residual) + y)
    branch = m.f32(m.edge(t.gate) * y)
    return m.f32(m.edge(t.residual) + (branch if c.of("gate") == F32 else m.round(branch, lo)))


def torch_linear(t: SimpleNamespace, c: Case) -> Tensor | None:
    """Return the result of `F.linear`, or None on CUDA, where cuBLAS may round parts of a sum to 16 bits.

    `x` is copied, because `F.linear` rounds before it adds the bias if `x` is not contiguous.
    """
    plain = "epilogue" not in c.options and "residual" not in c.tensors
    return (
        None
        if t.x.is_cuda or not plain
        else F.linear(t.x.clone(memory_format=torch.contiguous_format), t.weight, t.bias)
    )


register("linear", draw_linear, linear, torch=torch_linear, cases=40)
