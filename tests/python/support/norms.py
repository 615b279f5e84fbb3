"""Norms of diffusion transformers as models write them with torch operators, with random operands and
comparisons."""

import torch
import torch.nn.functional as F
from helpers import random
from torch import Tensor

EPS = 1e-6
# Hidden sizes of these models, in this order: SDXL, PixArt, SD3 and Wan 1.3B, LTX, Flux, Llama, Wan 14B, Flux
# 2.
WIDTHS = (640, 1152, 1536, 2048, 3072, 4096, 5120, 6144)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FORMS = ("vector", "batch", "token", "batch slice", "token slice")


def operand(
    form: str, shape: tuple[int, int, int], dtype: torch.dtype, device, seed: int, scale: float = 0.3
) -> Tensor:
    """Return a random scale, shift or gate for rows `[B, S, D]`. `form` selects its shape, for example `[B, 1, D]`."""
    batch, tokens, cols = shape
    if form == "vector":
        return random((cols,), dtype, device, seed, scale)
    if form in ("batch", "token"):
        return random((batch, 1 if form == "batch" else tokens, cols), dtype, device, seed, scale)
    rows = (batch, 1 if form == "batch slice" else tokens)
    return random((*rows, 6, cols), dtype, device, seed, scale)[:, :, 2]


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS) -> Tensor:
    """Compute torch's layer_norm, or diffusers' FP32LayerNorm if a parameter has another dtype than x."""
    if any(p is not None and p.dtype != x.dtype for p in (weight, bias)):
        weight, bias = (p if p is None else p.float() for p in (weight, bias))
        return F.layer_norm(x.float(), x.shape[-1:], weight, bias, eps).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS) -> Tensor:
    """Compute diffusers' RMSNorm in float32, or in float64 if x is float64. Parameters have the dtype of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    y = (x * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def torch_rms_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS) -> Tensor:
    """Compute torch.nn.RMSNorm, which rounds once. torch has no RMSNorm with a bias, so a bias is added before this
    rounding."""
    wide = x if x.dtype == torch.float64 else x.float()
    if bias is None and (weight is None or weight.dtype == x.dtype):
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    y = F.rms_norm(wide, x.shape[-1:], None if weight is None else weight.to(wide.dtype), eps)
    return (y if bias is None else y + bias).to(x.dtype)


def rms_norm_gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = EPS,
    *,
    rounding: str = "before_weight",
    activation: str = "silu",
    gate_first: bool = False,
) -> Tensor:
    """Compute transformers' RMSNormGated. The activation of the gate is computed in float32, or in float64 if
    x is float64, and is not rounded."""
    wide = torch.float64 if x.dtype == torch.float64 else F32
    factor = {"silu": F.silu, "sigmoid": torch.sigmoid}[activation](gate.to(wide))
    h = x.to(wide) * factor if gate_first else x.to(wide)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if rounding == "before_weight":
        h = h.to(x.dtype) if weight is None else weight * h.to(x.dtype)
    elif weight is not None:
        h = weight.to(wide) * h
    return (h if gate_first else h * factor).to(x.dtype)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}
ROUNDINGS = {"before_weight": NORMS, "once": {**NORMS, "rms_norm": torch_rms_norm}}


def summed(value: Tensor | None, table: Tensor | None) -> Tensor | None:
    """Return the sum `scale_shift_table + temb` of diffusers. Each of the two terms may be None."""
    return value if value is None or table is None else table + value


def ada_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
    rounding: str = "before_weight",
    scale_table: Tensor | None = None,
    shift_table: Tensor | None = None,
) -> Tensor:
    """Compute `norm(x) * (1 + scale) + shift` with one torch operator per step, as models do.

    All steps are in float32 if the scale, shift or another operand is float32, as in Wan.
    """
    operands = [weight, bias, summed(scale, scale_table), summed(shift, shift_table)]
    if any(tensor is not None and tensor.dtype == F32 for tensor in operands):
        operands = [tensor if tensor is None else tensor.float() for tensor in operands]
    weight, bias, scale, shift = operands
    wide = x.float() if scale.dtype == F32 else x
    y = ROUNDINGS[rounding][norm](wide, weight, bias, eps) * (1 + scale)
    return (y if shift is None else y + shift).to(x.dtype)


def gated_residual(
    x: Tensor, y: Tensor, gate: Tensor | None, *, gate_table: Tensor | None = None, clip: bool = False
) -> Tensor:
    """Compute `x + gate * y` (a gated residual), in float32 if the gate is float32, as in Wan."""
    gate = summed(gate, gate_table)
    if gate is not None and gate.dtype == F32:
        total = (x.float() + y * gate).to(x.dtype)
    else:
        total = x + (y if gate is None else gate * y)
    return total.clip(-65504, 65504) if clip else total


def norm_gated_residual(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
    rounding: str = "before_weight",
) -> Tensor:
    """Compute `x + gate * norm(y)` with one torch operator per step, as Z-Image and Lumina 2 do.

    The norm and the product with the gate are in float32 if the weight or bias has another dtype than `y`.
    """
    if any(p is not None and p.dtype != y.dtype for p in (weight, bias)):
        y, weight, bias = (p if p is None else p.float() for p in (y, weight, bias))
    n = ROUNDINGS[rounding][norm](y, weight, bias, eps)
    n = n if gate is None else (gate if gate.dim() else gate.reshape(1)) * n
    return x + n if n.dtype == x.dtype else (x.double() + n.double()).to(x.dtype)


def modulate(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """Compute `x * (1 + scale) + shift`, in float32 if the scale or shift is float32."""
    single = F32 in (scale.dtype, None if shift is None else shift.dtype)
    wide, scale, shift = (t if t is None or not single else t.float() for t in (x, scale, shift))
    y = wide * (1 + scale)
    return (y if shift is None else y + shift).to(x.dtype)


def mochi_residual(x: Tensor, x_res: Tensor, gate: Tensor, eps: float = EPS) -> Tensor:
    """Compute `norm2` of MochiTransformerBlock and the addition that follows it."""
    return x + (_mochi_norm(x_res, eps) * torch.tanh(gate)).to(x.dtype)


def mochi_modulated(x: Tensor, scale: Tensor, eps: float = EPS) -> Tensor:
    """Compute `norm3` of MochiTransformerBlock in float32, or in float64 if `x` is float64. Cast only the
    final result."""
    return (_mochi_norm(x, eps) * (1 + scale.to(_mochi_norm(x, eps).dtype))).to(x.dtype)


def mochi_chained(x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Mochi's gated residual and the modulated norm of the residual. Return (norm, residual)."""
    total = mochi_residual(x, x_res, gate)
    return mochi_modulated(total, scale), total


def ada_norm_pair(
    x: Tensor, scale: Tensor, shift: Tensor | None, scale2: Tensor, shift2: Tensor | None, **options
) -> tuple[Tensor, Tensor]:
    """Compute two modulations of one norm."""
    return ada_norm(x, scale, shift, **options), ada_norm(x, scale2, shift2, **options)


def gated_residual_ada_norm(
    x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, *, gate_table: Tensor | None = None, **options
) -> tuple[Tensor, Tensor]:
    """Compute a gated residual and the modulated norm of the residual. Return (norm, residual)."""
    total = gated_residual(x, y, gate, gate_table=gate_table)
    return ada_norm(total, scale, shift, **options), total


def _mochi_norm(x: Tensor, eps: float) -> Tensor:
    x = x if x.dtype == torch.float64 else x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def doubles(value):
    """Return the arguments in float64."""
    if isinstance(value, Tensor):
        return value.double()
    if isinstance(value, dict):
        return {key: doubles(part) for key, part in value.items()}
    return [doubles(part) for part in value] if isinstance(value, list) else value


def check_chain(y: Tensor, own: Tensor, right: Tensor, what: str, *, bits: bool = True) -> None:
    """Check `y` against `own`, the result of a sequence of torch operators, and against the float64 result
    `right`.

    If `bits` is true, `y` must equal `own` bit for bit on a GPU. In all other cases, the order of sums may differ, so
    up to 2 % of the 16-bit results may be rounded differently. The error against `right` may be a few eps of the
    largest value of `right`.
    """
    assert y.shape == own.shape and y.dtype == own.dtype and y.is_contiguous()
    if y.is_cuda and bits:
        differ = (y != own).nonzero()
        assert torch.equal(y, own), f"{what}: {len(differ)} values differ, the first at {differ[:1].tolist()}"
    if y.numel() == 0:
        return
    off, unit = (y.double() - right).abs().max(), torch.finfo(y.dtype).eps * right.abs().max()
    assert off <= (32 if y.dtype == F32 else 3) * unit + 1e-7, f"{what}: {off / unit:.1f} units off"
    differ = (y != own).sum()
    if y.dtype != F32:
        assert differ <= 3 or differ <= 0.02 * y.numel(), f"{what}: {differ} of {y.numel()} are rounded otherwise"
