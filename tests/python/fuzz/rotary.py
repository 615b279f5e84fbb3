"""Random calls and formulas of `rope`, `rope_1d`, `rope_3d` and `qk_norm_rope`.

A formula works on tensors `[B, S, heads, D]`. `split` views an argument in this shape, and `join` converts a
result back to the shape of the argument.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .case import Case, register
from .draw import F32, Draw
from .norms import LARGEST, layer, rms
from .precision import Exact


class Sizes(NamedTuple):
    batches: int
    tokens: int
    heads: int
    kv_heads: int
    dim: int


def sizes_of(g: Draw, even: bool = True, most_dim: int = 160) -> Sizes:
    dim = g.pick(8, 16, 64, 128, 2 * (1 + g.below(20)), 2 * (1 + g.below(most_dim // 2)), 1 + g.below(most_dim))
    dim = dim + dim % 2 if even else dim
    heads, kv = g.pick((1, 1), (2, 2), (4, 2), (3, 1), (6, 6), (1, 3))
    tokens = min(g.pick(1, 3, 6, 9, 40), max(1, 8000 // (heads * dim)))
    return Sizes(g.pick(1, 2, 3), 0 if g.maybe(0.03) else tokens, heads, kv, dim)


def arranged(g: Draw, dtype: torch.dtype, n: Sizes, heads: int, form: str, dense_heads: bool, special: bool) -> Tensor:
    """Return random queries or keys. `form` selects their shape, for example "flat" for `[B, S, heads * D]`."""
    flat = form in ("flat", "one")
    shape = (n.batches, n.tokens, heads * n.dim) if flat else (n.batches, n.tokens, heads, n.dim)
    values = g.rows(shape, dtype, largest=LARGEST) if special else g.normal(shape, dtype)
    if form == "heads first" and not dense_heads and g.maybe(0.5):
        return g.layout(4)(values.transpose(1, 2).contiguous())
    x = g.layout(len(shape))(values)
    return x.transpose(1, 2) if form == "heads first" else x


class Drawn(NamedTuple):
    """Random queries and keys, and the options that describe their shape."""

    tensors: dict[str, Tensor | None]
    options: dict[str, Any]
    sizes: Sizes
    form: str


def draw_heads(g: Draw, *, even: bool = True, dense: bool = False, forms: tuple[str, ...] = ()) -> Drawn:
    n, dtype = sizes_of(g, even), g.dtype()
    form = g.pick(*(forms or ("heads", "heads", "heads first", "flat", "one")))
    if form == "one":
        n = n._replace(heads=1, kv_heads=1)
    q = arranged(g, dtype, n, n.heads, form, dense, True)
    k = arranged(g, dtype, n, n.kv_heads, form, dense, False) if g.maybe(0.6) else None
    options: dict[str, Any] = dict(heads_first=form == "heads first")
    if form == "flat":
        options["head_dim"] = n.dim
    return Drawn(dict(q=q, k=k), options, n, form)


def split(x: Tensor, c: Case) -> Tensor:
    """Return the argument as `[B, S, heads, D]`."""
    if x.dim() == 3:
        return x.unflatten(2, (-1, c.options.get("head_dim") or x.shape[-1]))
    return x.transpose(1, 2) if c.options["heads_first"] else x


def join(y: Tensor, like: Tensor, c: Case) -> Tensor:
    """Return a result in the shape of the argument `like`."""
    y = y.transpose(1, 2) if c.options["heads_first"] else y
    return y.reshape(like.shape)


def are_apart(c: Case, outs: Sequence[Tensor]) -> bool:
    """Return True if an argument or a result has gaps in memory between the heads of a token.

    `outs` are the tensors that the call passes as `out`. If there are none, the call allocates contiguous
    results.
    """
    apart = []
    for x in (c.tensors["q"], c.tensors["k"], *outs):
        if x is not None:
            parts = split(x, c)
            several = parts.shape[2] > 1
            apart.append(several and (parts.stride(2) != parts.shape[3] or (c.options["heads_first"] and not outs)))
    return any(apart)


def rotated(m: Exact, x: Tensor, cos: Tensor, sin: Tensor, c: Case, columns: int, lo: torch.dtype) -> Tensor:
    """Rotate the first `columns` elements of each head, in a range of tokens.

    The tables `cos` and `sin` have shape `[B or 1, S, heads or 1, columns / 2]`, where S is the number of
    rotated tokens. The range starts at the token with index `offset`. All other tokens and elements stay
    unchanged.
    """
    offset, tokens = c.options.get("offset") or 0, cos.shape[1]
    before, rest = x[:, :offset], x[:, offset + tokens :]
    part, passed = x[:, offset : offset + tokens, :, :columns], x[:, offset : offset + tokens, :, columns:]
    interleaved = c.options.get("interleaved", True)
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)

    def product(left: Tensor, right: Tensor) -> Tensor:
        return m.back(m.round(m.f32(m.edge(left) * right), lo), lo)

    first = m.back(m.round(m.f32(product(a, cos) - product(b, sin)), lo), lo)
    second = m.back(m.round(m.f32(product(b, cos) + product(a, sin)), lo), lo)
    y = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((before, torch.cat((y, passed), -1), rest), 1)


# `rope`: random tables, and the formula


def draw_tables(g: Draw, d: Drawn) -> dict[str, Any]:
    """Return random keyword arguments for `rope`: cos and sin tables, and options such as `rotary_dim` and
    `offset`.

    The tables may be two real tensors or one complex tensor, with two to four dimensions.
    """
    q, n = d.tensors["q"], d.sizes
    assert q is not None
    columns = 2 * (1 + g.below(n.dim // 2)) if n.dim >= 2 and g.maybe(0.3) else n.dim - n.dim % 2
    options: dict[str, Any] = dict(interleaved=g.pick(True, False), mode=g.pick("exact", "fast"))
    if columns != n.dim:
        options["rotary_dim"] = columns
    tokens = n.tokens
    if g.maybe(0.25):
        options["offset"] = g.below(tokens + 1)
        tokens = g.below(tokens - options["offset"] + 1)
    kind = g.pick("pairs", "full", "complex")
    if kind == "complex":
        options["interleaved"] = True
    rank = g.pick(2, 3, 4)
    batches = g.pick(1, n.batches) if rank > 2 else 1
    heads = n.heads if rank == 4 and (d.tensors["k"] is None or n.heads == n.kv_heads) and g.maybe(0.5) else 1
    angles = g.normal((batches, tokens, heads, columns // 2), F32, g.pick(1.0, 30.0))
    # Devices compute cos and sin with different last bits, so the CPU computes the tables for every device.
    cos, sin = (table(angles.cpu()).to(angles.device) for table in (torch.cos, torch.sin))
    if kind == "full":
        double = (lambda x: x.repeat_interleave(2, -1)) if options["interleaved"] else (lambda x: torch.cat((x, x), -1))
        cos, sin = double(cos), double(sin)
    if d.form == "heads first" and rank == 4:
        cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    if rank < 4:
        cos, sin = cos[:, :, 0], sin[:, :, 0]
    if rank == 2:
        cos, sin = cos[0], sin[0]
    if kind == "complex":
        return dict(options, cos=torch.complex(cos.contiguous(), sin.contiguous()))
    dtype = g.pick(F32, q.dtype)
    made = dict(options, cos=cos.to(dtype).contiguous(), sin=sin.to(dtype).contiguous())
    if rank == 2 and len(cos) and g.maybe(0.5):
        made["positions"] = draw_positions(g, n.batches, tokens, len(cos))
    return made


def draw_positions(g: Draw, batches: int, tokens: int, rows: int) -> Tensor:
    """Return random positions for tables with `rows` rows. Some positions are outside of the tables."""
    generator = torch.Generator("cpu").manual_seed(g.below(2**31))
    shape = (g.pick(1, batches), tokens) if g.maybe(0.5) else (tokens,)
    positions = torch.randint(-2 if g.maybe(0.3) else 0, rows + g.pick(0, 0, 5), shape, generator=generator)
    return positions.to(g.pick(torch.int64, torch.int32)).to(g.device)


def tables(m: Exact, c: Case, dim: int) -> tuple[Tensor, Tensor, int, torch.dtype]:
    """Return the cos and sin tables of a random call, with the shape `[B or 1, S, heads or 1, pairs]`.

    Also return the number of rotated elements per head, and the dtype of the tables.
    """
    o = c.options
    columns, cos, sin = o.get("rotary_dim") or dim, o["cos"], o.get("sin")
    dtype = F32 if cos.is_complex() else cos.dtype
    cos, sin = (cos.real, cos.imag) if cos.is_complex() else (cos, sin)
    if cos.shape[-1] == columns and columns > 1 and not o["cos"].is_complex():
        half = slice(0, None, 2) if o.get("interleaved", True) else slice(0, columns // 2)
        cos, sin = cos[..., half], sin[..., half]
    if cos.dim() == 4 and o["heads_first"]:
        cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
    if (at := o.get("positions")) is not None:
        at = torch.where((at < 0) | (at >= len(cos)), len(cos) - 1, at).long()
        cos, sin = cos[at], sin[at]
    if cos.dim() < 4:
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if cos.dim() < 4:
        cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
    return m.wide(cos), m.wide(sin), columns, dtype


def row_of(d: Drawn, across: bool = False) -> tuple[str, tuple[int, ...]]:
    """Return the value of `Case.row`: the name of a tensor, and the dimensions that select one of its rows.

    A row is one head of a token. If a norm combines all heads of a token, a row consists of all heads of the
    token.
    """
    if d.form in ("flat", "one"):
        return "q", (0, 1)
    if across:
        return "q", (0, 2) if d.form == "heads first" else (0, 1)
    return "q", (0, 1, 2)


def draw_rope(g: Draw) -> Case:
    d = draw_heads(g)
    options = {**d.options, **draw_tables(g, d)}
    bits = (0, 1)[: 1 + (d.tensors["k"] is not None)]
    exact = options["mode"] == "exact" and not options["cos"].is_complex()
    return Case(d.tensors, options, ("q", "k"), row_of(d), bits=bits if exact else ())


def rope(m: Exact, t: SimpleNamespace, c: Case) -> list[Tensor]:
    made = []
    for x in (t.q, t.k):
        if x is None:
            continue
        parts = split(x, c)
        cos, sin, columns, dtype = tables(m, c, parts.shape[-1])
        lo = c.dtype if c.options["mode"] == "exact" and dtype == c.dtype else F32
        made.append(join(rotated(m, parts, cos, sin, c, columns, lo), x, c))
    return made


# `rope_1d`: random calls, and the formula


def draw_rope_1d(g: Draw) -> Case:
    d = draw_heads(g)
    n, options = d.sizes, {**d.options, "interleaved": g.pick(True, False)}
    columns = 2 * (1 + g.below(n.dim // 2)) if g.maybe(0.3) else n.dim
    if columns != n.dim:
        options["rotary_dim"] = columns
    options["theta"] = g.pick(10000.0, 500000.0, 100.0, 1.0, 10000)
    if g.maybe(0.5):
        generator = torch.Generator("cpu").manual_seed(g.below(2**31))
        shape = (n.batches, n.tokens) if g.maybe(0.5) else (n.tokens,)
        # The documented error bound of 2^-23 holds only for angles up to 10^6. An angle is a position times a
        # frequency, and frequencies are at most 1, so positions must be at most 10^6.
        positions = torch.randint(0, g.pick(10, 1000, 100_000, 1_000_000), shape, generator=generator)
        dtype = g.pick(torch.int64, torch.int32, F32)
        positions = positions.to(dtype) - (0.25 if dtype == F32 else 0)
        options["positions"] = (positions * g.pick(1, -1)).to(g.device)
    if g.maybe(0.3):
        options["inv_freq"] = g.normal((columns // 2,), F32, 0.3).clamp(-1, 1)
    return Case(d.tensors, options, ("q", "k"), row_of(d))


def rope_1d(m: Exact, t: SimpleNamespace, c: Case) -> list[Tensor]:
    """Rotate q and k by angles from token positions. Frequencies and angles are float32. The simulated error
    of sines and cosines is at most 2^-23."""
    o, made = c.options, []
    for x in (t.q, t.k):
        if x is None:
            continue
        parts = split(x, c)
        columns = o.get("rotary_dim") or parts.shape[-1]
        frequency = o.get("inv_freq")
        if frequency is None:
            exponent = torch.arange(0, columns, 2, dtype=torch.float32) / columns
            frequency = (1.0 / (o["theta"] ** exponent)).to(x.device)
        positions = o.get("positions")
        positions = torch.arange(parts.shape[1], device=x.device) if positions is None else positions
        angles = (positions.float().unsqueeze(-1) * frequency).double().unsqueeze(-2)
        angles = angles if angles.dim() == 4 else angles.unsqueeze(0)
        cos, sin = (m.f32(f(angles), 1.0, torch.ones_like(angles)).to(x.dtype) for f in (torch.cos, torch.sin))
        made.append(join(rotated(m, parts, cos, sin, c, columns, F32), x, c))
    return made


# `rope_3d`: random calls, and the formula


def draw_rope_3d(g: Draw) -> Case:
    by_coordinates = g.maybe(0.3)
    d = draw_heads(g, forms=("one", "heads") if by_coordinates else ())
    n, options = d.sizes, {**d.options, "interleaved": g.pick(True, False), "mode": g.pick("exact", "fast")}
    options["theta"] = g.pick(10000.0, 256.0, 100.0)
    tokens = n.tokens
    if g.maybe(0.25):
        options["offset"] = g.below(tokens + 1)
        tokens = g.below(tokens - options["offset"] + 1)
    if by_coordinates:
        generator = torch.Generator("cpu").manual_seed(g.below(2**31))
        shape = (n.batches, tokens, 3) if g.maybe(0.5) else (tokens, 3)
        options["coordinates"] = torch.rand(shape, generator=generator).to(g.device)
        return Case(d.tensors, options, ("q", "k"), row_of(d))
    height = g.pick(*[size for size in (1, 2, 3, 4) if tokens % size == 0])
    frames = g.pick(*[size for size in (1, 2, 3) if (tokens // height) % size == 0])
    options["grid"] = (frames, height, tokens // height // frames)
    if g.maybe(0.4):
        first = 2 * g.below(n.dim // 2 + 1)
        second = 2 * g.below((n.dim - first) // 2 + 1)
        options["splits"] = (first, second, n.dim - first - second)
    return Case(d.tensors, options, ("q", "k"), row_of(d))


def grid_angles(c: Case, dim: int, device: torch.device) -> Tensor:
    """Return the angles of all tokens of a grid (frames, height, width), in float64 and of shape `[S, D / 2]`."""
    rows = 2 * (dim // 6)
    splits, parts = c.options.get("splits") or (dim - 2 * rows, rows, rows), []
    places = torch.cartesian_prod(*[torch.arange(size, device=device) for size in c.options["grid"]]).view(-1, 3)
    for axis, split in enumerate(splits):
        base = c.options["theta"] ** (-torch.arange(0, split, 2, dtype=torch.float64, device=device) / max(split, 1))
        parts.append(places[:, axis, None].double() * base)
    return torch.cat(parts, -1)


def ltx_angles(c: Case, dim: int) -> tuple[Tensor, int]:
    """Return the float32 angles that LTX-Video computes from coordinates. Also return the number of leading
    columns of a token that are not rotated."""
    theta, coordinates = c.options["theta"], c.options["coordinates"].float()
    steps = torch.linspace(math.log(1.0, theta), math.log(theta, theta), dim // 6, device=coordinates.device)
    angles = (theta**steps * math.pi / 2.0) * (coordinates.unsqueeze(-1) * 2 - 1)
    return angles.transpose(-1, -2).flatten(-2), dim % 6


def rope_3d(m: Exact, t: SimpleNamespace, c: Case) -> list[Tensor]:
    """Rotate q and k by angles from grid positions or from coordinates. The cos and sin tables are float32 in
    every mode."""
    made = []
    for x in (t.q, t.k):
        if x is None:
            continue
        parts = split(x, c)
        dim = parts.shape[-1]
        if "coordinates" in c.options:
            angles, passing = ltx_angles(c, dim)
            angles = torch.nn.functional.pad(angles, (passing // 2, 0))
        else:
            angles = grid_angles(c, dim, x.device)
        angles = angles if angles.dim() == 3 else angles.unsqueeze(0)
        # The simulated relative error of cosines and sines is at most one `UNIT` (2^-23).
        cos, sin = (m.f32(m.wide(f(angles)), 1.0) for f in (torch.cos, torch.sin))
        made.append(join(rotated(m, parts, cos.unsqueeze(2), sin.unsqueeze(2), c, dim, F32), x, c))
    return made


# `qk_norm_rope`: random calls, and the formula

NORMS = ("rms_norm", "layer_norm", "llama_rms_norm", "mochi_rms_norm", None)


def draw_qk(g: Draw) -> Case:
    across, with_tables = g.maybe(0.3), g.maybe(0.75)
    d = draw_heads(g, even=with_tables, dense=across)
    n, options, tensors = d.sizes, dict(d.options), dict(d.tensors)
    norm = g.pick(*NORMS)
    options |= dict(norm=norm, eps=g.eps(), across_heads=across and norm is not None)
    if with_tables:
        options |= draw_tables(g, d)
    else:
        options |= dict(mode=g.pick("exact", "fast"))
    kinds = g.pick(d.tensors["q"].dtype, F32), g.pick(d.tensors["q"].dtype, F32)
    # with this norm, the weights of q and k have the same dtype
    kinds = (kinds[0], kinds[0]) if norm == "llama_rms_norm" else kinds
    weights = g.maybe(0.6) if norm is not None else False
    for name, heads, kind in (("q", n.heads, kinds[0]), ("k", n.kv_heads, kinds[1])):
        cols = heads * n.dim if options["across_heads"] else n.dim
        present = d.tensors[name] is not None
        one_of_two = norm == "llama_rms_norm" or g.maybe(0.8)
        tensors[f"{name}_weight"] = g.vector(cols, kind, mean=1.0) if weights and present and one_of_two else None
        bias = norm == "layer_norm" and present and g.maybe(0.5)
        tensors[f"{name}_bias"] = g.vector(cols, kind) if bias else None
    made = Case(tensors, options, tuple(tensors), row_of(d, options["across_heads"]))
    made.refusals["normalised together must lie side by side"] = lambda outs: are_apart(made, outs)
    return made


def normalised(m: Exact, x: Tensor, weight: Tensor | None, bias: Tensor | None, kind: Any, c: Case) -> Tensor:
    """Return the norm over the last dimension.

    In mode "exact", the value is rounded after the same steps as in the module that the norm replaces.
    """
    norm, eps, exact = c.options["norm"], c.options["eps"], c.options["mode"] == "exact"
    if norm is None:
        return x
    if norm == "layer_norm":
        y = layer(m, x, weight, bias, eps)
    else:
        y = rms(m, x, eps)
        single = weight is not None and kind == F32
        if norm == "llama_rms_norm" and exact and not single:
            y = m.round(y, c.dtype)
        y = y if weight is None else m.f32(y * weight)
        if norm == "llama_rms_norm" and single:
            return y  # the rotation continues in float32
    return m.round(y, c.dtype) if exact else y


def qk_norm_rope(m: Exact, t: SimpleNamespace, c: Case) -> list[Tensor]:
    o, made = c.options, []
    for name, x in (("q", t.q), ("k", t.k)):
        if x is None:
            continue
        parts = split(x, c)
        shape = parts.shape
        rows = parts.flatten(2) if o["across_heads"] else parts
        weight = getattr(t, f"{name}_weight")
        y = normalised(m, rows, weight, getattr(t, f"{name}_bias"), c.of(f"{name}_weight"), c).reshape(shape)
        y = m.back(y, c.dtype)
        if o.get("cos") is not None:
            cos, sin, columns, dtype = tables(m, c, shape[-1])
            lo = c.dtype if o["mode"] == "exact" and dtype == c.dtype else F32
            y = rotated(m, y, cos, sin, c, columns, lo)
        made.append(join(y, x, c))
    return made


register("rope", draw_rope, rope)
register("rope_1d", draw_rope_1d, rope_1d)
register("rope_3d", draw_rope_3d, rope_3d)
register("qk_norm_rope", draw_qk, qk_norm_rope)
