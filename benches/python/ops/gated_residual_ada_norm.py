"""Benchmarks of `gated_residual_ada_norm`: the sum `x + gate * y`, and the modulated norm of this sum."""

from collections.abc import Callable

import references
import torch
import torch.nn.functional as F
from forms import BIT_EXACT, Chain, Form, Inputs, Result, Shape, Source
from modulation import EPS, layer_norm_chain, real_rms_norm_chain, real_wan_chain, rms_norm_chain, wan_chain
from torch import Tensor

import oxiwarp

CLIP = 65504.0


def _inputs(source: Source, shape: Shape, dtype: torch.dtype | None = None) -> Inputs:
    gate, shift, scale = source.modulation(shape[0], shape[-1], 3, dtype)
    return {
        "x": source.normal(*shape, mean=0.5),
        "y": source.normal(*shape),
        "gate": gate,
        "scale": scale,
        "shift": shift,
    }


def _inputs_wan(source: Source, shape: Shape) -> Inputs:
    return _inputs(source, shape, torch.float32)


def _inputs_clip(source: Source, shape: Shape) -> Inputs:
    """Return inputs that, in float16, make the sum `x + gate * y` overflow in some elements."""
    inputs = _inputs(source, shape)
    return inputs | {"y": inputs["y"] * (65000.0 if source.dtype == torch.float16 else 1.0)}


def _inputs_row_gate(source: Source, shape: Shape) -> Inputs:
    """Return inputs whose gate has one number per token."""
    return _inputs(source, shape) | {"gate": source.normal(*shape[:2], 1)}


def _torch_rms_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute `torch.nn.RMSNorm` without a weight, and a modulation."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


def _after_gate(norm: Callable[..., Tensor]) -> Chain:
    """Return a function that computes the gated residual `x + gate * y` and then its `norm`, as
    `FluxTransformerBlock` does."""

    def chain(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
        total = x + gate * y
        return norm(total, scale, shift), total

    return chain


def _clipped(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
    """Compute the gated residual at the end of a `FluxSingleTransformerBlock`, and then the norm at the start
    of the next block."""
    total = x + gate * y
    total = total.clip(-CLIP, CLIP) if total.dtype == torch.float16 else total
    return layer_norm_chain(total, scale, shift), total


def _after_wan_gate(norm: Callable[..., Tensor]) -> Chain:
    """Return a function that computes two steps of Wan.

    The first step is the gated residual `x + gate * y` after the feed-forward layer of a
    `WanTransformerBlock`. The second step is the norm `norm1` of the next block.
    """

    def chain(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
        total = (x.float() + y.float() * gate).type_as(x)
        return norm(total, scale, shift), total

    return chain


def _reference(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
    total = x + gate * y
    return references.layer_norm(total, EPS) * (1 + scale) + shift, total


def _reference_rms(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
    total = x + gate * y
    return references.rms_norm(total, EPS) * (1 + scale) + shift, total


def _reference_clip(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> Result:
    total = (x + gate * y).clip(-CLIP, CLIP)
    return references.layer_norm(total, EPS) * (1 + scale) + shift, total


def _ours(norm: str, **options: object) -> Chain:
    def call(x: Tensor, y: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, mode: str) -> Result:
        return oxiwarp.gated_residual_ada_norm(x, y, gate, scale, shift, norm=norm, eps=EPS, mode=mode, **options)

    return call


FAMILY = "modulation"
FORMS = (
    Form(
        op="gated_residual_ada_norm",
        chain="LayerNorm: Flux, SD3, HunyuanVideo, Qwen-Image",
        cases=(("Flux", (1, 4096, 3072)), ("SD3", (2, 4096, 1536)), ("HunyuanVideo 720p", (1, 118800, 3072))),
        inputs=_inputs,
        eager=_after_gate(layer_norm_chain),
        reference=_reference,
        ours=_ours("layer_norm"),
    ),
    Form(
        op="gated_residual_ada_norm",
        chain="RMSNorm without weight: LTX",
        cases=(("LTX 49 frames", (2, 2688, 2048)), ("LTX 161 frames", (2, 8064, 2048))),
        inputs=_inputs,
        eager=_after_gate(rms_norm_chain),
        reference=_reference_rms,
        ours=_ours("rms_norm"),
        real=_after_gate(real_rms_norm_chain),
    ),
    Form(
        op="gated_residual_ada_norm",
        chain="torch.nn.RMSNorm without weight",
        cases=(("LTX 161 frames", (2, 8064, 2048)),),
        inputs=_inputs,
        eager=_after_gate(_torch_rms_chain),
        reference=_reference_rms,
        ours=_ours("rms_norm", rounding="once"),
    ),
    Form(
        op="gated_residual_ada_norm",
        chain="one gate per token, LayerNorm",
        cases=(("Flux", (1, 4096, 3072)),),
        inputs=_inputs_row_gate,
        eager=_after_gate(layer_norm_chain),
        reference=_reference,
        ours=_ours("layer_norm"),
    ),
    Form(
        op="gated_residual_ada_norm",
        chain="float32 gate, LayerNorm and modulation: Wan",
        cases=(("Wan 1.3B", (1, 32760, 1536)), ("Wan 14B", (1, 32760, 5120))),
        inputs=_inputs_wan,
        eager=_after_wan_gate(wan_chain),
        reference=_reference,
        ours=_ours("layer_norm"),
        real=_after_wan_gate(real_wan_chain),
    ),
    Form(
        op="gated_residual_ada_norm",
        chain="clipped in float16, LayerNorm: Flux",
        cases=(("Flux, single block", (1, 4608, 3072)),),
        inputs=_inputs_clip,
        eager=_clipped,
        reference=_reference_clip,
        ours=_ours("layer_norm", clip=True),
        claims={"exact": BIT_EXACT},
        timed=False,
        dtypes=(torch.float16,),
    ),
)
