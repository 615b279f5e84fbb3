"""Random calls and formulas of norms and softmax.

The operators are `rms_norm`, `add_rms_norm`, `rms_norm_gated`, `layer_norm` and `softmax`.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import Draw
from .precision import UNIT, Exact

LARGEST = 1e18  # largest LayerNorm input; the variance of larger values overflows float32


def rms(m: Exact, x: Tensor, eps: float) -> Tensor:
    """Return `x / sqrt(mean(x**2) + eps)` in float32."""
    factor = m.f32(torch.rsqrt(m.f32(m.edge(x).pow(2).mean(-1, keepdim=True), 2.0) + eps), 2.0)
    return m.f32(m.edge(x) * factor)


def layer(m: Exact, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return LayerNorm: `(x - mean) / sqrt(variance + eps) * weight + bias`, computed in float32."""
    mean = m.edge(x).mean(-1, keepdim=True)
    mean = m.f32(mean, 4.0, x.detach().abs().mean(-1, keepdim=True))
    centred = m.f32(m.edge(x) - m.edge(mean))
    y = m.f32(
        m.edge(centred) * m.f32(torch.rsqrt(m.f32(m.edge(centred).pow(2).mean(-1, keepdim=True), 2.0) + eps), 2.0)
    )
    y = y if weight is None else m.f32(y * weight)
    return y if bias is None else m.f32(y + bias)


def draw_rms_norm(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype))
    options = dict(eps=g.eps(), weight_offset=g.pick(0.0, 1.0), rounding=g.pick("once", "before_weight"))
    weight, bias = g.parameter(shape[-1], dtype), g.parameter(shape[-1], dtype, present=0.3)
    tensors, leaves = dict(x=x, weight=weight, bias=bias), ("x", "weight", "bias")
    return Case(tensors, options, leaves, rows_of("x", shape), ("x",))


def rows_of(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the value of `Case.row` for a tensor of this shape.

    The value is a pair: the name of the tensor, and the indices of all its dimensions except the last one.
    """
    return name, tuple(range(len(shape) - 1))


def scaled(m: Exact, y: Tensor, weight: Tensor | None, offset: float, rounding: str, dtype: torch.dtype) -> Tensor:
    """Return the normalized value times `offset + weight`."""
    if weight is None:
        return y
    y = m.round(y, dtype) if rounding == "before_weight" else y
    return m.f32(y * m.f32(offset + weight))


def rms_norm(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    o = c.options
    y = scaled(m, rms(m, t.x, o["eps"]), t.weight, o["weight_offset"], o["rounding"], c.dtype)
    if t.bias is None:
        return y
    return m.f32((m.round(y, c.dtype) if o["rounding"] == "before_weight" else y) + t.bias)


def torch_rms_norm(t: SimpleNamespace, c: Case) -> Tensor | None:
    if t.weight is not None and (t.weight.dtype != t.x.dtype or c.options["weight_offset"]):
        return None
    if t.bias is not None or c.options["rounding"] != "once" or c.special in ("large", "denormal"):
        return None
    return F.rms_norm(t.x, t.x.shape[-1:], t.weight, c.options["eps"])


def draw_add_rms_norm(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    x = lay(g.rows(shape, dtype))
    residual = (lay if g.maybe(0.7) else g.layout(len(shape)))(g.normal(shape, dtype, g.pick(1.0, 10.0)))
    options = dict(eps=g.eps(), weight_offset=g.pick(0.0, 1.0), rounding=g.pick("once", "before_weight"))
    return Case(
        dict(x=x, residual=residual, weight=g.parameter(shape[-1], dtype)),
        options,
        ("x", "residual", "weight"),
        rows_of("x", shape),
        ("x", "residual"),
        bits=(1,),
    )


def add_rms_norm(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, Tensor]:
    o, total = c.options, m.kept(t.x + t.residual, c.dtype)
    return scaled(m, rms(m, total, o["eps"]), t.weight, o["weight_offset"], o["rounding"], c.dtype), total


def draw_rms_norm_gated(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    x = lay(g.rows(shape, dtype))
    gate = (lay if g.maybe(0.7) else g.layout(len(shape)))(g.normal(shape, dtype, g.pick(1.0, 1.0, 20.0)))
    options = dict(
        eps=g.eps(),
        rounding=g.pick("before_weight", "once"),
        activation=g.pick("silu", "sigmoid"),
        gate_first=g.maybe(0.4),
    )
    return Case(
        dict(x=x, gate=gate, weight=g.parameter(shape[-1], dtype)),
        options,
        ("x", "gate", "weight"),
        rows_of("x", shape),
        ("x", "gate"),
    )


def silu(m: Exact, v: Tensor, fast: bool) -> Tensor:
    """Return SiLU with a simulated error.

    For inputs below -20, the relative error is up to 90 * 2^-23. For inputs below -87 in mode "fast", the
    relative error is 1, because the operator may return 0.
    """
    units = torch.where(v.detach() < -20, 90.0, 4.0)
    units = torch.where(v.detach() < -87.0, 2.0**23, units) if fast else units
    return m.f32(F.silu(v), units)


def rms_norm_gated(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    o, dtype = c.options, c.dtype
    if o["activation"] == "sigmoid":
        # The derivative of the sigmoid `f` is `f * (1 - f)`. `m.slope` simulates its error in float32.
        factor = m.f32(torch.sigmoid(t.gate), 4.0) + m.slope(t.gate, 2 * UNIT)
    else:
        factor = silu(m, t.gate, True)
    x = m.back(m.f32(t.x * factor), dtype) if o["gate_first"] else t.x
    h = rms(m, x, o["eps"])
    if o["rounding"] == "before_weight":
        h = m.round(h, dtype)
        # In transformers' classes, the product of the norm and the weight is rounded to the dtype of the
        # weight.
        h = h if t.weight is None else m.round(m.f32(t.weight * h), c.of("weight"))
    elif t.weight is not None:
        h = m.f32(t.weight * h)
    return h if o["gate_first"] else m.f32(m.back(h, dtype) * factor)


def draw_layer_norm(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype, largest=LARGEST))
    tensors = dict(x=x, weight=g.parameter(shape[-1], dtype, mean=1.0), bias=g.parameter(shape[-1], dtype))
    return Case(tensors, dict(eps=g.eps()), ("x", "weight", "bias"), rows_of("x", shape), ("x",))


def layer_norm(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    return layer(m, t.x, t.weight, t.bias, c.options["eps"])


def torch_layer_norm(t: SimpleNamespace, c: Case) -> Tensor | None:
    if any(p is not None and p.dtype != t.x.dtype for p in (t.weight, t.bias)) or c.special in ("large", "denormal"):
        return None
    return F.layer_norm(t.x, t.x.shape[-1:], t.weight, t.bias, c.options["eps"])


def draw_softmax(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype))
    return Case(dict(x=x), dict(log=g.maybe(0.5)), ("x",), rows_of("x", shape), ("x",))


def softmax(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """Return softmax or its logarithm. As documented for the operator, the gradient is computed from the
    result after its rounding to the dtype of `x`."""
    d = m.f32(t.x - t.x.detach().amax(-1, keepdim=True))
    if c.options["log"]:
        y = m.f32(d - m.f32(torch.log(m.f32(torch.exp(d), 4.0).sum(-1, keepdim=True)), 4.0))
    else:
        e = m.f32(torch.exp(d), 4.0)
        y = m.f32(e / m.f32(e.sum(-1, keepdim=True), 4.0), 2.0)
    if not m.gradient:
        return y
    # The derivative is computed from the result `y` that the forward pass saves, which is rounded.
    y, step = m.back(y.detach(), c.dtype), t.x - t.x.detach()
    weights = m.f32(torch.exp(y), 4.0) if c.options["log"] else y
    change = m.edge(step) - m.f32((m.edge(step) * weights).sum(-1, keepdim=True))
    return y + (change if c.options["log"] else y * change)


def torch_softmax(t: SimpleNamespace, c: Case) -> Tensor | None:
    if c.options["log"] and t.x.dtype != torch.float32:
        return None  # on the CPU, torch rounds log(sum(exp(x))) to 16 bits, but oxiwarp does not
    return (torch.log_softmax if c.options["log"] else torch.softmax)(t.x, -1)


register("rms_norm", draw_rms_norm, rms_norm, torch=torch_rms_norm)
register("add_rms_norm", draw_add_rms_norm, add_rms_norm)
register("rms_norm_gated", draw_rms_norm_gated, rms_norm_gated)
register("layer_norm", draw_layer_norm, layer_norm, torch=torch_layer_norm, cases=20)
register("softmax", draw_softmax, softmax, torch=torch_softmax)
