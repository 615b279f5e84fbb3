"""Random calls of `cross_entropy`, and its formula."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import Draw
from .precision import Exact


def draw_cross_entropy(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    logits = g.layout(len(shape))(g.rows(shape, dtype, largest=1e30) * g.pick(1, 1, 10))
    rows, classes = shape[:-1], shape[-1]
    generator = torch.Generator("cpu").manual_seed(g.below(2**31))
    target = torch.randint(0, classes, rows, generator=generator)
    ignored = g.pick(-100, -1, 0, classes, 2**31 - 1)
    if g.maybe(0.4):
        hidden = torch.rand(rows, generator=generator) < g.pick(0.3, 0.9, 1.0)
        target = torch.where(hidden, ignored, target)
    target = target.to(g.pick(torch.int64, torch.int32)).to(g.device)
    if target.dim() and g.maybe(0.2):
        target = torch.stack([target, target], -1)[..., 0]
    options = dict(
        target=target,
        ignore_index=ignored,
        reduction=g.pick("mean", "none", "sum"),
        label_smoothing=g.pick(0.0, 0.0, 0.1, 1.0),
        z_loss=g.pick(0.0, 0.0, 1e-4, 0.1),
        softcap=g.pick(None, None, 0.5, 30.0),
        return_lse=g.maybe(0.3),
    )
    alone = options["reduction"] == "none"
    row = ("logits", tuple(range(len(shape) - 1))) if alone else None
    known = {}
    if torch.isposinf(logits).any():
        # For a row with +inf, the operator returns NaN as loss and as lse (log-sum-exp), but the formula
        # gives inf. A failure of the check "values" is therefore expected, and counts as known.
        known["values"] = "a row with +inf is NaN, the formula's loss and lse are inf"
    weight = g.parameter(shape[-1], dtype)
    if weight is not None:  # torch also divides by the sum of the targets' weights, which must not be near 0
        weight = weight.abs() + 0.25
    return Case(dict(logits=logits, weight=weight), options, ("logits",), row, ("logits",), known=known)


def logsumexp(m: Exact, x: Tensor) -> Tensor:
    """Return the log-sum-exp of each row.

    The gradient is computed from the float32 log-sum-exp. The operator does the same, because its forward
    pass saves this value.
    """
    top = x.detach().amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    total = m.f32(torch.exp(m.f32(x.detach() - top)), 4.0).sum(-1)
    lse = m.f32(m.f32(torch.log(total), 4.0) + top[..., 0], 2.0)
    if not m.gradient:
        return lse
    weights = m.f32(torch.exp(m.f32(x.detach() - lse.unsqueeze(-1))), 4.0)
    return lse + (weights * (m.edge(x) - x.detach())).sum(-1)


def cross_entropy(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, ...]:
    o, x = c.options, t.logits
    if o["softcap"]:
        x = m.f32(o["softcap"] * m.f32(torch.tanh(m.f32(x / o["softcap"], 2.0)), 4.0))
    counts = o["target"] != o["ignore_index"]
    target = torch.where(counts, o["target"], 0).long()
    lse = logsumexp(m, x)
    weight = (
        torch.ones_like(x[..., :1]).expand_as(x) if t.weight is None else t.weight.detach().to(x.dtype).expand_as(x)
    )
    of_target = weight.gather(-1, target.unsqueeze(-1))[..., 0]
    picked = m.edge(x).gather(-1, target.unsqueeze(-1))[..., 0]
    loss = m.f32((1 - o["label_smoothing"]) * m.f32(of_target * m.f32(lse - picked)))
    if o["label_smoothing"]:
        total = weight.mean(-1)
        mean = m.f32((weight * m.edge(x)).mean(-1), 4.0, (weight * x.detach().abs()).mean(-1))
        others = m.f32(m.f32(m.f32(total, 4.0) * lse) - mean)
        loss = m.f32(loss + m.f32(o["label_smoothing"] * others))
    if o["z_loss"]:
        loss = m.f32(loss + m.f32(of_target * m.f32(o["z_loss"] * m.edge(lse).square(), 2.0)))
    loss = torch.where(counts, loss, torch.zeros_like(loss))
    if o["reduction"] != "none":
        loss = m.f32(loss.sum(), 4.0, loss.detach().abs().sum())
    if o["reduction"] == "mean":
        loss = m.f32(loss / torch.where(counts, of_target, 0.0).sum(), 4.0)
    return (loss, lse) if o["return_lse"] else (loss,)


def torch_cross_entropy(t: SimpleNamespace, c: Case) -> Tensor | None:
    o = c.options
    if (
        o["z_loss"]
        or o["softcap"]
        or o["return_lse"]
        or t.logits.dtype != torch.float32
        or c.special not in ("ordinary", "offset")
    ):
        return None
    x, target = t.logits.reshape(-1, t.logits.shape[-1]), o["target"].reshape(-1).long()
    names = ("ignore_index", "reduction", "label_smoothing")
    weight = t.weight if t.weight is None else t.weight.to(x.dtype)
    own = F.cross_entropy(x, target, weight, **{name: o[name] for name in names})
    return own.view(o["target"].shape) if o["reduction"] == "none" else own


register("cross_entropy", draw_cross_entropy, cross_entropy, torch=torch_cross_entropy)
