"""`rms_norm_gated`: the norm behind Qwen3-Next's linear attention."""

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
    """Qwen3NextRMSNormGated: Llama's norm, then silu(gate) in float32, one more cast."""
    h = llama(x, weight) * F.silu(gate.to(torch.float32))
    return h.to(x.dtype)


def _real(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    return with_weight(Qwen3NextRMSNormGated(x.shape[-1], EPS), weight)(x, gate)


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
)
