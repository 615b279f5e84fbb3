"""Benchmarks of `layer_norm`: without weight and bias, with both in the dtype of `x`, and with both in
float32 as in Wan."""

import references
import torch.nn.functional as F
from forms import BIT_EXACT, NO_MODE, Form, Inputs, Peer, Shape, Source
from torch import Tensor, float32

import oxiwarp

CLAIMS = {NO_MODE: BIT_EXACT}
EPS, EPS_PLAIN = 1e-5, 1e-6


def _inputs(source: Source, shape: Shape) -> Inputs:
    cols = shape[-1]
    x = source.normal(*shape, mean=0.5)
    return {"x": x, "weight": source.weight(cols), "bias": source.normal(cols, scale=0.3)}


def _inputs_plain(source: Source, shape: Shape) -> Inputs:
    return {"x": source.normal(*shape, mean=0.5)}


def _inputs_wan(source: Source, shape: Shape) -> Inputs:
    cols = shape[-1]
    bias = source.normal(cols, scale=0.3, dtype=float32)
    return {"x": source.normal(*shape, mean=0.5), "weight": source.weight(cols, float32), "bias": bias}


def _wan(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute norm2 of `WanTransformerBlock` in float32, with one cast at the end."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), EPS_PLAIN).type_as(x)


def _real_wan(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from diffusers.models.normalization import FP32LayerNorm
    from torch import nn

    norm = FP32LayerNorm(x.shape[-1], EPS_PLAIN)
    norm.weight, norm.bias = (nn.Parameter(p, requires_grad=False) for p in (weight, bias))
    return norm(x.float()).type_as(x)


FAMILY = "norms"
FORMS = (
    Form(
        op="layer_norm",
        chain="with weight and bias: SDXL, CogVideoX",
        cases=(("SDXL", (2, 4096, 640)), ("SDXL", (2, 1024, 1280)), ("CogVideoX 5B", (2, 17550, 3072))),
        inputs=_inputs,
        eager=lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, EPS),
        reference=lambda x, weight, bias: references.layer_norm(x, EPS, weight, bias),
        ours=lambda x, weight, bias: oxiwarp.layer_norm(x, weight, bias, EPS),
        claims=CLAIMS,
        peers={
            "Liger": Peer(
                "liger_kernel.ops.layer_norm",
                lambda liger, x, weight, bias: liger.layer_norm_forward(x, weight, bias, EPS)[0],
            )
        },
    ),
    Form(
        op="layer_norm",
        chain="plain: Flux, SD3",
        cases=(("Flux", (1, 4608, 3072)),),
        inputs=_inputs_plain,
        eager=lambda x: F.layer_norm(x, x.shape[-1:], eps=EPS_PLAIN),
        reference=lambda x: references.layer_norm(x, EPS_PLAIN),
        ours=lambda x: oxiwarp.layer_norm(x, eps=EPS_PLAIN),
        claims=CLAIMS,
    ),
    Form(
        op="layer_norm",
        chain="float32 weight and bias: Wan",
        cases=(("Wan 14B", (1, 32760, 5120)),),
        inputs=_inputs_wan,
        eager=_wan,
        reference=lambda x, weight, bias: references.layer_norm(x, EPS_PLAIN, weight, bias),
        ours=lambda x, weight, bias: oxiwarp.layer_norm(x, weight, bias, EPS_PLAIN),
        claims=CLAIMS,
        real=_real_wan,
    ),
)
