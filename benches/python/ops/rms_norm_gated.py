"""Benchmarks of `rms_norm_gated`, an RMSNorm with a gate, as after linear attention (Qwen3-Next, Kimi Linear)
and in Mamba2 layers."""

import references
import torch
import torch.nn.functional as F
from forms import NO_MODE, SAME_ROUNDINGS, Form, Inputs, Shape, Source
from torch import Tensor

import oxiwarp

from .rms_norm import EPS, llama, with_weight


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, cols = shape
    x, gate = source.normal(batch * tokens, cols), source.normal(batch * tokens, cols)
    return {"x": x, "gate": gate, "weight": source.weight(cols)}


def _eager(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Compute `Qwen3NextRMSNormGated`: Llama's RMSNorm with its cast, then a multiplication by `silu(gate)`
    in float32 and a second cast."""
    h = llama(x, weight) * F.silu(gate.to(torch.float32))
    return h.to(x.dtype)


def _eager_sigmoid(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Compute `KimiLinearRMSNormGated` and `BailingHybridRMSNormGated`, entirely in float32."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    h = weight.to(torch.float32) * h
    return (h * torch.sigmoid(gate.to(torch.float32))).to(x.dtype)


def _eager_gate_first(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Compute `MambaRMSNormGated`, `BambaRMSNormGated` and `Zamba2RMSNormGated` (one group). `silu(gate)`
    precedes the norm."""
    h = x.to(torch.float32) * F.silu(gate.to(torch.float32))
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * h.to(x.dtype)


def _real(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    return with_weight(Qwen3NextRMSNormGated(x.shape[-1], EPS), weight)(x, gate)


FAMILY = "norms"
FORMS = (
    Form(
        op="rms_norm_gated",
        chain="Qwen3-Next",
        cases=(("Qwen3-Next heads", (1, 32 * 8192, 128)), ("Llama 8B width", (1, 8192, 4096))),
        inputs=_inputs,
        eager=_eager,
        reference=lambda x, gate, weight: references.rms_norm(x, EPS, weight) * references.silu(gate),
        ours=lambda x, gate, weight: oxiwarp.rms_norm_gated(x, gate, weight, EPS),
        claims={NO_MODE: SAME_ROUNDINGS},
        real=_real,
    ),
    Form(
        op="rms_norm_gated",
        chain="sigmoid: Kimi Linear",
        cases=(("Kimi Linear heads", (1, 32 * 8192, 128)),),
        inputs=_inputs,
        eager=_eager_sigmoid,
        reference=lambda x, gate, weight: references.rms_norm(x, EPS, weight) * torch.sigmoid(gate),
        ours=lambda x, gate, weight: oxiwarp.rms_norm_gated(
            x, gate, weight, EPS, rounding="once", activation="sigmoid"
        ),
        claims={NO_MODE: SAME_ROUNDINGS},
        timed=False,
    ),
    Form(
        op="rms_norm_gated",
        chain="gate first: Mamba2, Bamba, Zamba2",
        cases=(("Mamba2 2.7B", (1, 8192, 5120)),),
        inputs=_inputs,
        eager=_eager_gate_first,
        reference=lambda x, gate, weight: references.rms_norm(x * references.silu(gate), EPS, weight),
        ours=lambda x, gate, weight: oxiwarp.rms_norm_gated(x, gate, weight, EPS, gate_first=True),
        claims={NO_MODE: SAME_ROUNDINGS},
    ),
)
