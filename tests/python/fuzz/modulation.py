"""Random calls and formulas of modulated norms and gated residuals, as diffusion transformers use them."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .case import Case, register
from .draw import BF16, F16, F32, Draw
from .norms import LARGEST, layer, rms, rows_of
from .precision import Exact


def mixed(g: Draw, shape: tuple[int, ...], dtype: torch.dtype, column: bool = True) -> Tensor:
    """Return a random scale, shift or gate of any float dtype. If `column` is true, it may have one column, also if
    `shape` has more, or no dimension."""
    if g.maybe(0.7):
        return broadcast(g, shape, dtype)
    value = broadcast(g, shape, dtype, dtypes=(F16, BF16, F32))
    if column and g.maybe(0.1):
        return g.normal((), value.dtype, 0.5)
    return value[..., :1] if column and g.maybe(0.5) else value


def broadcast(
    g: Draw,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    scale: float = 0.5,
    dtypes: tuple[torch.dtype, ...] | None = None,
) -> Tensor:
    """Return a random scale, shift or gate that broadcasts to `shape`.

    The tensor has one vector in total, one vector per batch entry, one vector per token, or another shape
    that broadcasts to `shape`. It may also be a slice of a larger tensor. `dtypes` are its possible dtypes.
    """
    cols, lead = shape[-1], list(shape[:-1])
    dtype = g.pick(*(dtypes or (dtype, dtype, F32)))
    form = g.pick("vector", "batch", "batch", "token", "slice", "any")
    if form == "vector" or not lead:
        return g.vector(cols, dtype, scale)
    if form == "batch":
        return g.layout(len(shape), expand=False)(g.normal([lead[0]] + [1] * (len(lead) - 1) + [cols], dtype, scale))
    if form == "token":
        return g.layout(len(shape))(g.normal(shape, dtype, scale))
    if form == "slice":
        own = lead if g.maybe(0.5) else [lead[0]] + [1] * (len(lead) - 1)
        return g.normal([*own, 3, cols], dtype, scale)[..., g.below(3), :]
    own = [size if g.maybe(0.5) else 1 for size in lead]
    return g.normal([*own[g.below(len(own) + 1) :], cols], dtype, scale)


def like(g: Draw, x: Tensor, lay: Any) -> Tensor:
    """Return a random tensor with the shape of `x`. In 70 % of the cases, it has the memory layout `lay`, and
    otherwise a random layout."""
    values = g.normal(x.shape, x.dtype, g.pick(1.0, 1.0, 5.0))
    return (lay if g.maybe(0.7) else g.layout(x.dim()))(values)


def summed(m: Exact, c: Case, t: SimpleNamespace, name: str) -> tuple[Tensor | None, torch.dtype]:
    """Return the sum `value + table` for a scale, shift or gate, and the dtype of this sum in torch.

    `value` is the name of an operand, and `table` the name of the optional operand that is added to it. If both
    operands have 16 bits, their sum is rounded in both modes (see `Modulation` in kernels-gpu/src/norm/operand.rs).
    """
    value, table = getattr(t, name), getattr(t, f"{name}_table", None)
    if value is None:
        return None, c.dtype
    dtype = c.of(name)
    if table is None:
        return value, dtype
    dtype = dtype if c.of(f"{name}_table") == dtype else F32
    total = m.edge(value) + m.edge(table)
    # The backward pass computes the sum `value + table` again, without rounding. For a gate, it instead reads
    # the rounded sum that the forward pass saved.
    kept = name == "gate" or not m.gradient
    return m.back(m.kept(total, dtype), dtype) if kept else total, dtype


def normed(m: Exact, x: Tensor, t: SimpleNamespace, c: Case, lo: torch.dtype) -> Tensor:
    """Return the norm of `x`.

    The value is rounded to the dtype `lo` after the same steps as in torch's modules.
    """
    eps = c.options["eps"]
    if c.options.get("norm", "layer_norm") == "layer_norm":
        return m.round(layer(m, x, t.weight, t.bias, eps), lo)
    y = rms(m, x, eps)
    if c.options.get("rounding") == "once":
        y = y if t.weight is None else m.f32(y * t.weight)
        return m.round(y if t.bias is None else m.f32(y + t.bias), lo)
    y = m.round(y, lo)
    y = y if t.weight is None else m.round(m.f32(y * t.weight), lo)
    return y if t.bias is None else m.round(m.f32(y + t.bias), lo)


def modulate(m: Exact, n: Tensor, scale: Tensor, shift: Tensor | None, lo: torch.dtype) -> Tensor:
    """Return `n * (1 + scale) + shift`, rounded to the dtype `lo` after each step."""
    y = m.round(m.f32(n * m.round(m.f32(1 + scale), lo)), lo)
    return y if shift is None else m.round(m.f32(m.edge(y) + m.edge(shift)), lo)


def ada(m: Exact, x: Tensor, t: SimpleNamespace, c: Case, pairs: list[tuple[str, str]]) -> list[Tensor]:
    """Return a list of modulated norms of `x`, one for each pair in `pairs`. A pair consists of the argument
    names of a scale and a shift."""
    exact = c.options.get("mode", "fast") == "exact"
    found = []
    for scale_name, shift_name in pairs:
        scale, scale_dtype = summed(m, c, t, scale_name)
        shift, shift_dtype = summed(m, c, t, shift_name)
        dtypes = [scale_dtype] + [c.of(p) for p in ("weight", "bias") if getattr(t, p) is not None]
        dtypes += [shift_dtype] if shift is not None else []
        lo = c.dtype if exact and {*dtypes} == {c.dtype} else F32
        # If each row has a separate scale, the backward pass rounds the product of incoming gradient and
        # scale, see docs/guide/training.md. `m.back` simulates this rounding.
        n = m.back(normed(m, x, t, c, lo), c.dtype)
        found.append(modulate(m, n, scale, shift, lo))
    return found


def norm_options(g: Draw, norm: bool = True) -> dict[str, Any]:
    options = dict(eps=g.eps(), mode=g.pick("exact", "fast"))
    if norm:
        options.update(norm=g.pick("layer_norm", "rms_norm"), rounding=g.pick("before_weight", "once"))
    return options


def affine(g: Draw, cols: int, dtype: torch.dtype) -> dict[str, Tensor | None]:
    return dict(weight=g.parameter(cols, dtype, 0.3, mean=1.0), bias=g.parameter(cols, dtype, 0.3))


def table(g: Draw, cols: int, dtype: torch.dtype, value: Tensor | None) -> Tensor | None:
    whole = value is not None and value.dim() > 0 and value.shape[-1] == cols
    return g.parameter(cols, dtype, 0.3) if whole else None


def case(tensors: dict[str, Tensor | None], options: dict[str, Any], strided: tuple[str, ...], **more: Any) -> Case:
    x = tensors["x"]
    assert x is not None
    names = tuple(tensors)
    return Case(tensors, options, names, rows_of("x", tuple(x.shape)), strided, **more)


def draw_ada_norm(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype, largest=LARGEST))
    scale = mixed(g, shape, dtype)
    shift = mixed(g, shape, dtype) if g.maybe(0.7) else None
    tensors = dict(x=x, scale=scale, shift=shift, **affine(g, shape[-1], dtype))
    tensors["scale_table"], tensors["shift_table"] = (table(g, shape[-1], dtype, value) for value in (scale, shift))
    return case(tensors, norm_options(g), ("x", "scale", "shift"))


def ada_norm(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    return ada(m, t.x, t, c, [("scale", "shift")])[0]


def draw_ada_norm_pair(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype, largest=LARGEST))
    names = ("scale", "shift", "scale2", "shift2")
    by = {name: mixed(g, shape, dtype) if "scale" in name or g.maybe(0.7) else None for name in names}
    return case(dict(x=x, **by, **affine(g, shape[-1], dtype)), norm_options(g), ("x", *names))


def ada_norm_pair(m: Exact, t: SimpleNamespace, c: Case) -> list[Tensor]:
    return ada(m, t.x, t, c, [("scale", "shift"), ("scale2", "shift2")])


def draw_gated_residual(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    x = lay(g.rows(shape, dtype))
    y, gate = like(g, x, lay), mixed(g, shape, dtype, column=False)
    options = dict(clip=g.maybe(0.3), mode=g.pick("exact", "fast"))
    if g.maybe(0.3):
        tensors = dict(x=x, y=y, gate=gate[..., :1], gate_table=None)  # one gate value per row
    else:
        tensors = dict(x=x, y=y, gate=gate, gate_table=table(g, shape[-1], dtype, gate))
    bits = (0,) if options["mode"] == "exact" else ()
    return case(tensors, options, ("x", "y", "gate"), bits=bits)


def gated(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """Return `x + gate * y`.

    In mode "exact", product and sum are rounded, as torch's operators do. In mode "fast", only the sum is
    rounded.
    """
    exact = c.options["mode"] == "exact"
    gate, dtype = summed(m, c, t, "gate")
    if gate is None:
        total = m.kept(m.edge(t.x) + m.edge(t.y), c.dtype)
    else:
        lo = c.dtype if exact and dtype == c.dtype else F32
        product = gate * t.y
        product = m.kept(product, lo) if exact else m.f32(product)
        total = m.edge(t.x) + product
        total = m.kept(total, c.dtype) if exact else m.f32(m.round(total, c.dtype))
    return total.clamp(-65504, 65504) if c.options["clip"] else total


def draw_norm_gated_residual(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    y = lay(g.rows(shape, dtype, largest=LARGEST))
    gate = mixed(g, shape, dtype) if g.maybe(0.8) else None
    tensors = dict(x=like(g, y, lay), y=y, gate=gate, **affine(g, shape[-1], dtype))
    return case(tensors, norm_options(g), ("x", "y", "gate"))


def norm_gated_residual(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """Return `x + gate * norm(y)`. In mode "exact", the norm and the product are rounded if their operands have the
    dtype of `y`."""
    parameters = {c.of(name) for name in ("weight", "bias") if getattr(t, name) is not None}
    exact = c.options["mode"] == "exact" and parameters <= {c.dtype}
    branch = m.back(normed(m, t.y, t, c, c.dtype if exact else F32), c.dtype)
    if t.gate is not None:
        branch = m.round(m.f32(branch * t.gate), c.dtype if exact and c.of("gate") == c.dtype else F32)
    return m.f32(m.edge(t.x) + m.edge(branch))


def draw_modulate(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype))
    shift = mixed(g, shape, dtype) if g.maybe(0.7) else None
    tensors = dict(x=x, scale=mixed(g, shape, dtype), shift=shift)
    options = dict(mode=g.pick("exact", "fast"))
    bits = (0,) if options["mode"] == "exact" else ()
    return case(tensors, options, ("x", "scale", "shift"), bits=bits)


def plain_modulation(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """Return `x * (1 + scale) + shift`. In mode "exact", the result of each step is rounded to the dtype of
    `x`. If scale or shift has another dtype than `x`, only the last step is rounded."""
    exact = c.options["mode"] == "exact"
    single = {c.of(name) for name in ("scale", "shift") if getattr(t, name) is not None} != {c.dtype}
    lo = c.dtype if exact and not single else F32

    def step(value: Tensor) -> Tensor:
        return m.kept(value, lo) if exact else m.f32(value)

    y = step(m.edge(t.x) * step(1 + t.scale))
    y = y if t.shift is None else y + t.shift
    return m.kept(y, c.dtype) if exact else m.f32(m.round(y, c.dtype))


def draw_gated_residual_ada_norm(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    x = lay(g.rows(shape, dtype, largest=LARGEST))
    y, gate = like(g, x, lay), mixed(g, shape, dtype) if g.maybe(0.8) else None
    scale = mixed(g, shape, dtype)
    shift = mixed(g, shape, dtype) if g.maybe(0.7) else None
    tensors = dict(x=x, y=y, gate=gate, scale=scale, shift=shift, **affine(g, shape[-1], dtype))
    for name, value in (("gate", gate), ("scale", scale), ("shift", shift)):
        tensors[f"{name}_table"] = table(g, shape[-1], dtype, value)
    options = dict(norm_options(g), clip=g.maybe(0.3 if dtype == F16 else 0.1))
    bits = (1,) if options["mode"] == "exact" else ()
    return case(tensors, options, ("x", "y", "gate", "scale", "shift"), bits=bits)


def gated_residual_ada_norm(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, Tensor]:
    # The kernel computes the norm from the rounded sum `x + gate * y`. The gradient of this sum is rounded
    # once.
    total = m.edge(gated(m, t, c), torch.finfo(c.dtype).eps / 2)
    return ada(m, m.kept(m.edge(total), c.dtype), t, c, [("scale", "shift")])[0], m.edge(total)


def per_batch(value: Tensor, x: Tensor) -> Tensor:
    """Return Mochi's gate or scale `[B, N]` as a view `[B, 1, N]`, which broadcasts to `x` of shape
    `[B, S, N]`."""
    return value.unsqueeze(1) if value.dim() == 2 and x.dim() == 3 else value


def mochi_operand(g: Draw, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if g.maybe(0.2):
        value = mixed(g, shape, dtype)
        return value.unsqueeze(0) if len(shape) == 3 and value.dim() == 2 else value
    if len(shape) == 3 and g.maybe(0.4):
        return g.normal((shape[0], shape[2]), g.pick(dtype, F32), 0.5)
    value = broadcast(g, shape, dtype, g.pick(0.5, 2.0))
    return value.unsqueeze(0) if len(shape) == 3 and value.dim() == 2 else value


def draw_modulated(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype))
    return case(dict(x=x, scale=mochi_operand(g, shape, dtype)), dict(eps=g.eps()), ("x", "scale"))


def modulated_rms_norm(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    n = m.back(rms(m, t.x, c.options["eps"]), c.dtype)
    return m.f32(n * m.f32(1 + per_batch(t.scale, t.x)))


def draw_residual(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    lay = g.layout(len(shape))
    x_res = lay(g.rows(shape, dtype if g.maybe(0.8) else g.pick(F16, BF16, F32)))
    x = like(g, x_res, lay).to(dtype)
    tensors = dict(x=x, x_res=x_res, gate=mochi_operand(g, shape, dtype))
    return case(tensors, dict(eps=g.eps()), ("x", "x_res", "gate"))


def residual(m: Exact, t: SimpleNamespace, c: Case) -> Tensor:
    """Return `x + rms_norm(x_res) * tanh(gate)`.

    The gradients of this operator are computed by torch operators, which round after each step.
    """
    gate, dtype, of_branch = per_batch(t.gate, t.x), c.of("gate"), c.of("x_res")
    tanh = m.back(m.round(m.f32(torch.tanh(gate), 2.0), dtype), dtype)
    tanh = tanh + m.slope(gate, 2 * torch.finfo(dtype).eps)
    product = m.f32(m.back(rms(m, t.x_res, c.options["eps"]), of_branch) * tanh)
    product = m.kept(product, of_branch) if m.gradient else m.round(product, of_branch)
    return m.f32(m.edge(t.x) + m.back(product, of_branch))


def draw_residual_modulated(g: Draw) -> Case:
    made = draw_residual(g)
    x = made.tensors["x"]
    assert x is not None
    tensors = {**made.tensors, "scale": mochi_operand(g, tuple(x.shape), x.dtype)}
    return case(tensors, made.options, ("x", "x_res", "gate", "scale"))


def residual_modulated(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, Tensor]:
    total = residual(m, t, c)
    total = m.back(m.kept(total, c.dtype), c.dtype) if m.gradient else m.round(total, c.dtype)
    n = rms(m, total, c.options["eps"])
    return m.f32(m.back(n * m.f32(1 + per_batch(t.scale, t.x)), c.dtype)), total


register("ada_norm", draw_ada_norm, ada_norm, cases=40)
register("ada_norm_pair", draw_ada_norm_pair, ada_norm_pair, cases=40)
register("gated_residual", draw_gated_residual, gated)
register("gated_residual_ada_norm", draw_gated_residual_ada_norm, gated_residual_ada_norm, cases=40)
register("modulate", draw_modulate, plain_modulation)
register("norm_gated_residual", draw_norm_gated_residual, norm_gated_residual, cases=40)
register("modulated_rms_norm", draw_modulated, modulated_rms_norm)
register("residual_tanh_gated_rms_norm", draw_residual, residual)
register("residual_tanh_gated_rms_norm_modulated", draw_residual_modulated, residual_modulated)
