"""Random calls and formulas of activations and gated activations."""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import Draw
from .norms import rows_of, silu
from .precision import Exact

# Type of a function that computes an activation. Its four arguments are the arithmetic, the input, the dtype
# to which each step is rounded, and a bool that is True in mode "fast".
Activation = Callable[[Exact, Tensor, torch.dtype, bool], Tensor]
# `Case.floor`, a factor for the permitted absolute error of gradients, has this value for activations. For
# inputs with 1 + e^-x > 2^126, the kernel's gradient is 0, because `rcp.approx.ftz` returns 0 instead of a
# subnormal number.
FLOOR = 256.0
ROOT = math.sqrt(2.0 / math.pi)


def gelu(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    """Return the GELU of `v`. Its simulated error is relative to `v` instead of the result, because the terms of
    `1 + erf(...)` cancel if erf is near -1.
    """
    return m.f32(F.gelu(v), 2.0, v.abs())


def gelu_tanh(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    return m.f32(F.gelu(v, approximate="tanh"), 2.0, v.abs())


def _halved(m: Exact, v: Tensor, inner: Tensor, lo: torch.dtype) -> Tensor:
    """Return the GELU `0.5 * v * (1 + tanh(inner))`, rounded to the dtype `lo` after each step."""
    tanh = m.round(m.f32(torch.tanh(inner), 2.0), lo)
    return m.f32(m.round(0.5 * v, lo) * m.round(1.0 + tanh, lo), 2.0, v.abs())


def gelu_new(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    cube = m.round(m.f32(v.pow(3.0), 2.0), lo)
    total = m.round(m.f32(v + m.round(0.044715 * cube, lo)), lo)
    return _halved(m, v, m.round(m.f32(ROOT * total), lo), lo)


def gelu_fast(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    factor = m.round(m.f32(1.0 + m.round(m.round(0.044715 * v, lo) * v, lo)), lo)
    return _halved(m, v, m.round(m.f32(m.round(v * 0.7978845608, lo) * factor), lo), lo)


def gelu_quick(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    inner = m.round(m.f32(1.702 * v), lo)
    return m.f32(v * m.round(sigmoid(m, inner, lo, fast), lo))


def sigmoid(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    # In mode "fast", the exponential of inputs below -20 has a relative error of up to 90 * 2^-23.
    units = torch.where(v.detach() < -20, 90.0 if fast else 4.0, 4.0)
    units = torch.where(v.detach() < -87.0, 2.0**23, units) if fast else units
    return m.f32(torch.sigmoid(v), units)


def relu2(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    return m.f32(v.relu().square())


def plain_silu(m: Exact, v: Tensor, lo: torch.dtype, fast: bool) -> Tensor:
    return silu(m, v, fast)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "gelu_quick": gelu_quick,
    "silu": plain_silu,
    "relu2": relu2,
}
# Maps the name of a gated operator to a pair: its activation, and a bool. If the bool is True, the activation
# is applied to the first half of the columns, otherwise to the second half. For fatrelu, the pair has None
# instead of an activation, because its formula has a threshold.
GATED: dict[str, tuple[Activation | None, bool]] = {
    "geglu": (gelu, False),
    "swiglu": (plain_silu, False),
    "mul_and_silu": (plain_silu, False),
    "silu_and_mul": (plain_silu, True),
    "gelu_and_mul": (gelu, True),
    "gelu_tanh_and_mul": (gelu_tanh, True),
    "sigmoid_and_mul": (sigmoid, True),
    "relu2_and_mul": (relu2, True),
    "fatrelu_and_mul": (None, True),
}
TORCH = {"gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"), "silu": F.silu}


def draw_activation(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    if g.maybe(0.02):
        shape = ()
    x = g.layout(len(shape))(g.rows(shape, dtype) * g.pick(1, 1, 20))
    tensors = {"x": x, "bias": g.vector(shape[-1], dtype) if shape and g.maybe(0.4) else None}
    return Case(
        tensors,
        dict(mode=g.pick("exact", "fast")),
        with_gradient(tensors),
        rows_of("x", shape) if shape else None,
        ("x",),
        floor=FLOOR,
    )


def with_gradient(tensors: dict[str, Tensor | None], limit: float = 1000.0) -> tuple[str, ...]:
    """Return the names of the arguments whose gradients are compared.

    If float16 inputs are not below `limit`, the gradient of a bias is not compared. This gradient is a sum of
    gradients that are rounded to float16, and these may overflow.
    """
    rows = [x for name, x in tensors.items() if name != "bias" and x is not None]
    half = rows[0].dtype == torch.float16 and rows[0].numel() > 0
    overflows = half and not max(x.abs().max().item() for x in rows) < limit
    return tuple(name for name in tensors if name != "bias" or not overflows)


def biased(m: Exact, x: Tensor, bias: Tensor | None, lo: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Return `x + bias`, rounded to `lo`. The gradient of the bias is a sum over rows, and each term of this
    sum is rounded to `dtype`."""
    x = m.edge(x)
    return x if bias is None else m.kept(x + m.back(bias + torch.zeros_like(x), dtype), lo)


def activation(name: str, m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    fast = c.options["mode"] == "fast"
    lo = torch.float32 if fast else c.dtype
    return ACTIVATIONS[name](m, biased(m, t.x, t.bias, lo, c.dtype), lo, fast)


def torch_activation(name: str, t: SimpleNamespace, c: Case) -> Tensor | None:
    if name not in TORCH or c.special in ("large", "denormal", "inf") or c.options["mode"] == "fast":
        return None
    return TORCH[name](t.x if t.bias is None else t.x + t.bias)


def draw_gated(name: str, g: Draw) -> Case:
    dtype, cols = g.dtype(), g.cols(2500)
    shape = (*g.lead(2 * cols), cols)
    second = "up" if GATED[name][1] else "gate"
    lay, tensors = g.layout(len(shape)), dict[str, Tensor | None]()
    if g.maybe(0.5):
        tensors["x"] = lay(g.rows((*shape[:-1], 2 * cols), dtype) * g.pick(1, 1, 20))
        tensors[second] = None
    else:
        tensors["x"] = lay(g.rows(shape, dtype) * g.pick(1, 1, 20))
        tensors[second] = (lay if g.maybe(0.7) else g.layout(len(shape)))(g.normal(shape, dtype, g.pick(1.0, 20.0)))
    tensors["bias"] = g.vector(2 * cols, dtype) if g.maybe(0.4) else None
    options: dict[str, object] = dict(mode=g.pick("exact", "fast"))
    if name == "geglu":
        options["approximate"] = g.pick("none", "tanh")
    if name == "fatrelu_and_mul":
        options["threshold"] = g.pick(0.0, 0.25, 0.1, -0.3)
    # The gradient of relu2 grows with the input, and the other factor multiplies it.
    compared = with_gradient(tensors, 30.0 if name == "relu2_and_mul" else 1000.0)
    return Case(tensors, options, compared, rows_of("x", shape), ("x", second), floor=FLOOR)


def gated(name: str, m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    function, first_half = GATED[name]
    fast = c.options["mode"] == "fast"
    lo = torch.float32 if fast else c.dtype
    other = t.up if first_half else t.gate
    first, second = t.x.chunk(2, -1) if other is None else (t.x, other)
    biases = (None, None) if t.bias is None else t.bias.chunk(2)
    a, b = (biased(m, x, bias, lo, c.dtype) for x, bias in zip((first, second), biases, strict=True))
    a, b = (a, b) if first_half else (b, a)
    if function is None:
        # oxiwarp rounds the threshold of fatrelu to the dtype of x, but torch's CPU kernel does not. This
        # formula follows oxiwarp.
        threshold = torch.tensor(c.options["threshold"]).to(c.dtype).item()
        y = torch.where((a > threshold) | a.isnan(), a, torch.zeros_like(a))
    else:
        function = gelu_tanh if c.options.get("approximate") == "tanh" else function
        y = m.round(function(m, a, lo, fast), lo)
    return m.f32(y * b)


for _name in ACTIVATIONS:
    register(
        _name,
        draw_activation,
        functools.partial(activation, _name),
        torch=functools.partial(torch_activation, _name),
    )
for _name in GATED:
    register(_name, functools.partial(draw_gated, _name), functools.partial(gated, _name))
