"""Benchmarks of `rms_norm`. Llama's norm is timed. The norms of Gemma, T5, diffusers and torch are only
checked for exactness."""

import references
import torch
import torch.nn.functional as F
from forms import NO_MODE, SAME_ROUNDINGS, Form, Inputs, Peer, Shape, Source
from torch import Tensor, nn

import oxiwarp

EPS = 1e-6
SAME = {NO_MODE: SAME_ROUNDINGS}

# The models and shapes for which `rms_norm` and the baselines are timed.
CASES = (
    ("Flux text", (1, 512, 3072)),
    ("LTX width", (1, 1024, 2048)),
    ("LTX width", (1, 2048, 2048)),
    ("Flux width", (1, 2048, 3072)),
    ("LTX width", (1, 4096, 2048)),
    ("Flux width", (1, 8192, 3072)),
    ("Llama, Qwen", (1, 8192, 4096)),
    ("Flux width", (1, 16384, 3072)),
    ("Flux width", (1, 32768, 3072)),
    ("Llama 8B width", (1, 16384, 4096)),
    ("Llama 70B width", (1, 16384, 8192)),
    ("wide rows", (1, 4096, 32768)),
)


def inputs(source: Source, shape: Shape) -> Inputs:
    """Return `x` as rows `[batch * tokens, cols]`, and a weight."""
    batch, tokens, cols = shape
    return {"x": source.normal(batch * tokens, cols), "weight": source.weight(cols)}


def llama(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `LlamaRMSNorm` (also in Qwen and Mistral).

    This norm casts the normalized value to the dtype of `x` and then multiplies it by the weight.
    """
    h = x.to(torch.float32)
    variance = h.pow(2).mean(-1, keepdim=True)
    h = h * torch.rsqrt(variance + EPS)
    return weight * h.to(x.dtype)


def gemma(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `GemmaRMSNorm`: it multiplies the normalized value by `1 + weight` in float32, and then casts
    the product."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return (h * (1.0 + weight.float())).type_as(x)


def _inputs_of_heads(source: Source, shape: Shape) -> Inputs:
    """Return heads of 128 columns, and a weight and a bias per head."""
    batch, tokens, cols = shape
    heads = cols // 128
    weight, bias = source.weight(cols).view(heads, 128), source.normal(heads, 128)
    return {"x": source.normal(batch * tokens, heads, 128), "weight": weight, "bias": bias}


def t5(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """Compute `T5LayerNorm` and diffusers' `RMSNorm`, which cast to the weight's dtype."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    h = x * torch.rsqrt(variance + eps)
    return weight * h.to(weight.dtype)


def library(x: Tensor, weight: Tensor) -> Tensor:
    """Compute `torch.nn.RMSNorm`, as in Flux, LTX and Wan."""
    return F.rms_norm(x, weight.shape, weight, EPS)


def with_weight(module: nn.Module, weight: Tensor) -> nn.Module:
    """Set the weight of a norm module and return the module."""
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module


def _real_llama(x: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return with_weight(LlamaRMSNorm(x.shape[-1], EPS), weight)(x)


def _real_gemma(x: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    return with_weight(GemmaRMSNorm(x.shape[-1], EPS), weight)(x)


def _real_t5(x: Tensor, weight: Tensor) -> Tensor:
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    return with_weight(T5LayerNorm(x.shape[-1], EPS), weight)(x)


def _real_diffusers(x: Tensor, weight: Tensor) -> Tensor:
    from diffusers.models.normalization import RMSNorm

    return with_weight(RMSNorm(x.shape[-1], EPS), weight)(x)


def _reference(x: Tensor, weight: Tensor) -> Tensor:
    return references.rms_norm(x, EPS, weight)


def _before_weight(x: Tensor, weight: Tensor) -> Tensor:
    return oxiwarp.rms_norm(x, weight, EPS, rounding="before_weight")


FAMILY = "norms"
FORMS = (
    Form(
        op="rms_norm",
        chain="Llama, Qwen, Mistral",
        cases=CASES,
        inputs=inputs,
        eager=llama,
        reference=_reference,
        ours=_before_weight,
        claims=SAME,
        real=_real_llama,
        library=("F.rms_norm", library),
        peers={
            "Liger": Peer(
                "liger_kernel.ops.rms_norm",
                lambda liger, x, weight: liger.rms_norm_forward(x, weight, EPS, 0.0, "llama", None)[0],
            ),
            "QuACK": Peer("quack", lambda quack, x, weight: quack.rmsnorm(x, weight, eps=EPS)),
        },
        floor=lambda x, weight: torch.neg(x),
    ),
    Form(
        op="rms_norm",
        chain="torch.nn.RMSNorm: Flux, LTX, Wan",
        cases=(("LTX 161 frames", (2, 8064, 2048)), ("Wan 14B", (1, 32760, 5120))),
        inputs=inputs,
        eager=library,
        reference=_reference,
        ours=lambda x, weight: oxiwarp.rms_norm(x, weight, EPS),
        claims=SAME,
        timed=False,
    ),
    Form(
        op="rms_norm",
        chain="diffusers.RMSNorm: HunyuanVideo, Qwen-Image",
        cases=(("HunyuanVideo heads", (1, 24 * 4096, 128)), ("LTX 161 frames", (2, 8064, 2048))),
        inputs=inputs,
        eager=t5,
        reference=_reference,
        ours=_before_weight,
        claims=SAME,
        real=_real_diffusers,
        timed=False,
    ),
    Form(
        op="rms_norm",
        chain="T5",
        cases=(("T5-XXL", (1, 512, 4096)),),
        inputs=inputs,
        eager=t5,
        reference=_reference,
        ours=_before_weight,
        claims=SAME,
        real=_real_t5,
        timed=False,
    ),
    Form(
        op="rms_norm",
        chain="Gemma, (1 + weight)",
        cases=(("Gemma 7B", (1, 8192, 3072)),),
        inputs=inputs,
        eager=gemma,
        reference=lambda x, weight: references.rms_norm(x, EPS, 1 + weight),
        ours=lambda x, weight: oxiwarp.rms_norm(x, weight, EPS, weight_offset=1.0),
        claims=SAME,
        real=_real_gemma,
        timed=False,
    ),
    Form(
        op="rms_norm",
        chain="weight and bias per head",
        cases=(("24 heads", (1, 4096, 3072)), ("40 heads", (1, 32768, 5120))),
        inputs=_inputs_of_heads,
        eager=lambda x, weight, bias: t5(x, weight) + bias,
        reference=lambda x, weight, bias: references.rms_norm(x, EPS, weight) + bias,
        ours=lambda x, weight, bias: oxiwarp.rms_norm(x, weight, EPS, bias=bias, rounding="before_weight"),
        claims=SAME,
    ),
)
