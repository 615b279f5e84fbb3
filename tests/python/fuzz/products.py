"""Random calls of `linear` and `linear_fp8`, and the formulas for their results."""

from collections.abc import Sequence
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
from .precision import UNIT, Exact

MULTIPLE = 8  # The columns of `x` and the rows of the weight are multiples of this number.
# Largest magnitude of special rows. The float32 sums of their products do not overflow, because an overflow
# depends on the order of the sum.
LARGEST = 1e30
E4M3 = torch.float8_e4m3fn
BLOCK = 128  # 8-bit floats: elements of K, and rows of the weight, that share a scale
FEW_ROWS = 64  # up to this number of rows, fast accumulation computes the same as the other one


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


def draw_linear_fp8(g: Draw) -> Case:
    depth, columns = 16 * (1 + g.below(g.pick(2, 9, 20, 70))), 8 * (1 + g.below(g.pick(2, 9, 34)))
    lead, per_block = g.lead(max(depth, columns)), g.maybe(0.4)
    x, weight = (g.normal((*rows, depth), E4M3, g.pick(1.0, 30.0, 200.0)) for rows in (lead, [columns]))
    blocks, rows = (-(-depth // BLOCK), -(-columns // BLOCK)) if per_block else (1, columns)
    x_scale, weight_scale = (g.layout(len(shape))(_scales(g, shape)) for shape in ((*lead, blocks), (rows, blocks)))
    if x.numel() and g.maybe(0.1):
        x.view(-1)[g.below(x.numel())] = float("nan")
    dtype = g.pick(BF16, F16)
    bias = g.normal((columns,), dtype) if g.maybe(0.5) else None
    tensors = {"x": x, "x_scale": x_scale, "weight": weight, "weight_scale": weight_scale, "bias": bias}
    options = {"out_dtype": dtype, "accumulate": "float32" if per_block else g.pick("float32", "fast")}
    refusals = {
        "out of shape .* its rows must have one distance": lambda outs: not all(map(has_one_distance, outs)),
        "out of shape .* all rows must be aligned": lambda outs: not all(map(is_aligned, outs)),
    }
    return Case(tensors, options, (), rows_of("x", x.shape), refusals=refusals, dtypes=(dtype,))


def _scales(g: Draw, shape: Sequence[int]) -> Tensor:
    return torch.exp2(g.normal(shape, F32)) * 2.0**-9


def is_aligned(x: Tensor) -> bool:
    """Return whether the address of each row is a multiple of 16."""
    return x.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in x.stride()[:-1])


def linear_fp8(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """The tensor core cuts 33 terms of a step to a multiple of 2^-13 of the largest term, and their sum to 14 bits. A
    step has 32 products, and the sum of the earlier steps with the same accumulator. The simulated error is a third of
    the largest one, because the allowed error is at least three times this error."""
    depth = t.x.shape[-1]
    x = t.x * t.x_scale.repeat_interleave(BLOCK if t.x_scale.shape[-1] > 1 else depth, -1)[..., :depth]
    rows, blocks = t.weight_scale.shape
    scale = t.weight_scale if rows == len(t.weight) else t.weight_scale.repeat_interleave(BLOCK, 0)[: len(t.weight)]
    weight = t.weight * scale.repeat_interleave(BLOCK if blocks > 1 else depth, -1)[:, :depth]
    whole = c.options["accumulate"] == "fast" and t.x[..., 0].numel() > FEW_ROWS
    steps = -(-(depth if whole else min(depth, BLOCK)) // 32)
    y = m.f32(x @ weight.t(), steps * 34 * 2.0**-13 / 3 / UNIT, x.abs() @ weight.abs().t())
    return m.f32(y if t.bias is None else y + t.bias)


register("linear_fp8", draw_linear_fp8, linear_fp8, cases=40)
