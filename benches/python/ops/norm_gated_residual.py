"""Benchmarks of `norm_gated_residual`, the gated residual `x + gate * norm(y)` of a normalized branch."""

import references
import torch
import torch.nn.functional as F
from forms import Form, Inputs, Shape, Source
from modulation import EPS
from torch import Tensor

import oxiwarp


def _inputs(source: Source, shape: Shape) -> Inputs:
    """Return the operands of a block with an RMSNorm. As in the models, the gate is `tanh` of a modulation."""
    (gate,) = source.modulation(shape[0], shape[-1], 1)
    return {
        "x": source.normal(*shape),
        "y": source.normal(*shape, mean=0.5),
        "gate": gate.tanh(),
        "weight": source.weight(shape[-1]),
    }


def _inputs_layer(source: Source, shape: Shape) -> Inputs:
    return _inputs(source, shape) | {"bias": source.normal(shape[-1], scale=0.3)}


def _inputs_single(source: Source, shape: Shape) -> Inputs:
    """Return a float32 residual, and a branch in the dtype of the benchmark."""
    inputs = _inputs(source, shape)
    return inputs | {"x": inputs["x"].float()}


def _rms(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    """Compute the residual of diffusers' `ZImageTransformerBlock`, whose RMSNorm rounds before its weight."""
    variance = y.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return x + gate * ((y * torch.rsqrt(variance + EPS)).to(y.dtype) * weight)


def _real_rms(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    from diffusers.models.normalization import RMSNorm

    norm = RMSNorm(y.shape[-1], EPS).to(y.device, y.dtype)
    norm.weight.data = weight
    return x + gate * norm(y)


def _layer(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + gate * F.layer_norm(y, y.shape[-1:], weight, bias, EPS)


def _reference_rms(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return x + gate * references.rms_norm(y, EPS) * weight


def _reference_layer(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + gate * (references.layer_norm(y, EPS) * weight + bias)


def _ours_rms(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor, mode: str) -> Tensor:
    return oxiwarp.norm_gated_residual(x, y, gate, norm="rms_norm", weight=weight, eps=EPS, mode=mode)


def _ours_layer(x: Tensor, y: Tensor, gate: Tensor, weight: Tensor, bias: Tensor, mode: str) -> Tensor:
    return oxiwarp.norm_gated_residual(x, y, gate, weight=weight, bias=bias, eps=EPS, mode=mode)


FAMILY = "modulation"
FORMS = (
    Form(
        op="norm_gated_residual",
        chain="RMSNorm with weight: Z-Image, Lumina 2",
        cases=(("Z-Image", (1, 4096, 3840)), ("Lumina 2", (2, 4096, 2304)), ("large", (1, 32768, 3840))),
        inputs=_inputs,
        eager=_rms,
        reference=_reference_rms,
        ours=_ours_rms,
        real=_real_rms,
    ),
    Form(
        op="norm_gated_residual",
        chain="LayerNorm with weight and bias",
        cases=(("Z-Image", (1, 4096, 3840)), ("large", (1, 32768, 3840))),
        inputs=_inputs_layer,
        eager=_layer,
        reference=_reference_layer,
        ours=_ours_layer,
    ),
    Form(
        op="norm_gated_residual",
        chain="float32 residual, 16-bit branch",
        cases=(("large", (1, 32768, 3840)),),
        inputs=_inputs_single,
        eager=_rms,
        reference=_reference_rms,
        ours=_ours_rms,
    ),
)
