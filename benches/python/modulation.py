"""Norm and modulation as the blocks of diffusers' transformers write them, shared by the ops that fuse them."""

import torch.nn.functional as F
from forms import Inputs, Shape, Source
from torch import Tensor, float32, rsqrt

EPS = 1e-6


def inputs(source: Source, shape: Shape) -> Inputs:
    """Scale and shift per batch, slices of one projection as `chunk` gives them."""
    shift, scale = source.modulation(shape[0], shape[-1], 2)
    return {"x": source.normal(*shape, mean=0.5), "scale": scale, "shift": shift}


def inputs_wan(source: Source, shape: Shape) -> Inputs:
    """Wan's modulation is float32."""
    shift, scale = source.modulation(shape[0], shape[-1], 2, float32)
    return {"x": source.normal(*shape, mean=0.5), "scale": scale, "shift": shift}


def layer_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """AdaLayerNormZero, norm2 and its modulation: Flux, SD3, HunyuanVideo, Qwen-Image. Four roundings."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


def rms_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LTXVideoTransformerBlock: diffusers' RMSNorm without weight, then as above."""
    variance = x.to(float32).pow(2).mean(-1, keepdim=True)
    return (x * rsqrt(variance + EPS)).to(x.dtype) * (1 + scale) + shift


def wan_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """WanTransformerBlock: float32 throughout, one cast."""
    return (F.layer_norm(x.float(), x.shape[-1:], eps=EPS) * (1 + scale) + shift).type_as(x)


def real_rms_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LTX's through diffusers' class."""
    from diffusers.models.normalization import RMSNorm

    return RMSNorm(x.shape[-1], EPS, elementwise_affine=False)(x) * (1 + scale) + shift


def real_wan_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Wan's through diffusers' class."""
    from diffusers.models.normalization import FP32LayerNorm

    norm = FP32LayerNorm(x.shape[-1], EPS, elementwise_affine=False)
    return (norm(x.float()) * (1 + scale) + shift).type_as(x)
