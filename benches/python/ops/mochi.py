"""Benchmarks of Mochi's ops: `modulated_rms_norm`, `residual_tanh_gated_rms_norm`, and both in sequence."""

import references
import torch
from forms import BIT_EXACT, NO_MODE, Form, Inputs, Result, Shape, Source
from torch import Tensor

import oxiwarp

EPS = 1e-6
CASES = (("Mochi 480p, 163 frames", (1, 44520, 3072)),)
FEW_TOKENS = tuple(("few tokens", (1, tokens, 3072)) for tokens in (512, 1024, 2048))
CLAIMS = {NO_MODE: BIT_EXACT}


def _inputs(source: Source, shape: Shape) -> Inputs:
    (scale,) = source.modulation(shape[0], shape[-1], 1)
    return {"x": source.normal(*shape), "scale": scale}


def _inputs_residual(source: Source, shape: Shape) -> Inputs:
    (gate,) = source.modulation(shape[0], shape[-1], 1)
    return {"x": source.normal(*shape), "x_res": source.normal(*shape), "gate": gate}


def _inputs_both(source: Source, shape: Shape) -> Inputs:
    gate, scale = source.modulation(shape[0], shape[-1], 2)
    return {"x": source.normal(*shape), "x_res": source.normal(*shape), "gate": gate, "scale": scale}


def _single(inputs: Inputs) -> Inputs:
    """Return the inputs with a float32 residual."""
    return inputs | {"x": inputs["x"].float()}


def _normed(x: Tensor) -> Tensor:
    """Compute diffusers' RMSNorm without a weight for a float32 tensor."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def _modulated(x: Tensor, scale: Tensor) -> Tensor:
    """Compute norm3 of `MochiTransformerBlock` in float32, with one cast at the end."""
    return (_normed(x.to(torch.float32)) * (1 + scale.to(torch.float32))).to(x.dtype)


def _residual(x: Tensor, x_res: Tensor, gate: Tensor) -> Tensor:
    """Compute the gated residual of `MochiTransformerBlock`. The branch output `x_res` is normalized and
    gated in float32."""
    return x + (_normed(x_res.to(torch.float32)) * torch.tanh(gate)).to(x_res.dtype)


def _both(x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor) -> Result:
    total = _residual(x, x_res, gate)
    return _modulated(total, scale), total


def _real_modulated(x: Tensor, scale: Tensor) -> Tensor:
    from diffusers.models.transformers.transformer_mochi import MochiModulatedRMSNorm

    return MochiModulatedRMSNorm(EPS)(x, 1 + scale.to(torch.float32))


def _real_residual(x: Tensor, x_res: Tensor, gate: Tensor) -> Tensor:
    from diffusers.models.transformers.transformer_mochi import MochiModulatedRMSNorm

    return x + MochiModulatedRMSNorm(EPS)(x_res, torch.tanh(gate))


def _real_both(x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor) -> Result:
    total = _real_residual(x, x_res, gate)
    return _real_modulated(total, scale), total


def _reference(x: Tensor, x_res: Tensor, gate: Tensor) -> Tensor:
    return x + references.rms_norm(x_res, EPS) * torch.tanh(gate)


def _reference_both(x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor) -> Result:
    total = _reference(x, x_res, gate)
    return references.rms_norm(total, EPS) * (1 + scale), total


FAMILY = "modulation"
FORMS = (
    Form(
        op="modulated_rms_norm",
        chain="Mochi",
        cases=CASES,
        inputs=_inputs,
        eager=_modulated,
        reference=lambda x, scale: references.rms_norm(x, EPS) * (1 + scale),
        ours=lambda x, scale: oxiwarp.modulated_rms_norm(x, scale, EPS),
        claims=CLAIMS,
        real=_real_modulated,
    ),
    Form(
        op="residual_tanh_gated_rms_norm",
        chain="Mochi",
        cases=CASES + FEW_TOKENS,
        inputs=_inputs_residual,
        eager=_residual,
        reference=_reference,
        ours=lambda x, x_res, gate: oxiwarp.residual_tanh_gated_rms_norm(x, x_res, gate, EPS),
        claims=CLAIMS,
        real=_real_residual,
    ),
    Form(
        op="residual_tanh_gated_rms_norm_modulated",
        chain="Mochi",
        cases=CASES,
        inputs=_inputs_both,
        eager=_both,
        reference=_reference_both,
        ours=lambda x, x_res, gate, scale: oxiwarp.residual_tanh_gated_rms_norm_modulated(x, x_res, gate, scale, EPS),
        claims=CLAIMS,
        real=_real_both,
    ),
    Form(
        op="residual_tanh_gated_rms_norm",
        chain="float32 residual, 16-bit branch",
        cases=CASES,
        inputs=lambda source, shape: _single(_inputs_residual(source, shape)),
        eager=_residual,
        reference=_reference,
        ours=lambda x, x_res, gate: oxiwarp.residual_tanh_gated_rms_norm(x, x_res, gate, EPS),
        claims=CLAIMS,
    ),
)
