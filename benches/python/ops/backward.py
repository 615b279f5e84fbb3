"""Benchmarks of the gradients of RMSNorm and LayerNorm with respect to input, weight and bias."""

import references
import torch.nn.functional as F
from forms import NO_MODE, ONE_ROUNDING, Form, Inputs, Peer, Shape, Source
from torch import Tensor

import oxiwarp

from .rms_norm import EPS, inputs, library, llama

CLAIMS = {NO_MODE: ONE_ROUNDING}
EPS_LAYER = 1e-5
CASES = (
    ("Llama 8B", (1, 8192, 4096)),
    ("Flux width", (1, 32768, 3072)),
    ("Llama 70B width", (1, 16384, 8192)),
)


def _inputs(source: Source, shape: Shape) -> Inputs:
    given = inputs(source, shape)
    return {**given, "grad": source.normal(*given["x"].shape)}


def _inputs_layer(source: Source, shape: Shape) -> Inputs:
    given = _inputs(source, shape)
    return {"x": given["x"], "weight": given["weight"], "bias": source.normal(shape[-1]), "grad": given["grad"]}


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPS_LAYER)


FAMILY = "backward"
FORMS = (
    Form(
        op="rms_norm_backward",
        chain="Llama, Qwen, Mistral",
        cases=CASES,
        inputs=_inputs,
        eager=llama,
        reference=lambda x, weight: references.rms_norm(x, EPS, weight),
        ours=lambda x, weight: oxiwarp.rms_norm(x, weight, EPS),
        claims=CLAIMS,
        library=("F.rms_norm", library),
        peers={
            "Liger": Peer(
                "liger_kernel.ops.rms_norm",
                lambda liger, x, weight: liger.LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False),
            )
        },
        backward=True,
        chunked=False,
    ),
    Form(
        op="layer_norm_backward",
        chain="with weight and bias",
        cases=CASES,
        inputs=_inputs_layer,
        eager=_layer_norm,
        reference=lambda x, weight, bias: references.layer_norm(x, EPS_LAYER, weight, bias),
        ours=lambda x, weight, bias: oxiwarp.layer_norm(x, weight, bias, EPS_LAYER),
        claims=CLAIMS,
        peers={
            "Liger": Peer(
                "liger_kernel.ops.layer_norm",
                lambda liger, x, weight, bias: liger.LigerLayerNormFunction.apply(x, weight, bias, EPS_LAYER),
            )
        },
        backward=True,
        chunked=False,
    ),
)
