"""RoPE tables and rotations as in the models, for the benchmarks of `rope` and `qk_norm_rope`."""

import math

import torch
from forms import Source
from torch import Tensor, float32

Tables = tuple[Tensor, Tensor]


def tables(source: Source, *shape: int, dtype: torch.dtype = float32) -> Tables:
    """Return cos and sin tables of random angles. As in diffusers, the value for each angle is stored twice,
    in adjacent elements."""
    angles = torch.rand((*shape[:-1], shape[-1] // 2), device=source.device).mul_(2 * math.pi)
    return tuple(f(angles).repeat_interleave(2, dim=-1).to(dtype) for f in (torch.cos, torch.sin))  # type: ignore


def half_tables(source: Source, *shape: int) -> Tables:
    """Return cos and sin tables of random angles, in the dtype of the model.

    As in transformers, the second half of a table row repeats the first half.
    """
    angles = torch.rand((*shape[:-1], shape[-1] // 2), device=source.device).mul_(2 * math.pi)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(source.dtype), angles.sin().to(source.dtype)


def flux(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as diffusers' `embeddings.apply_rotary_emb` does (Flux, HunyuanVideo). `x` is [B, S, H, D], and
    the tables are [S, D]."""
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    rotated = torch.stack([-imaginary, real], dim=-1).flatten(3)
    return (x.float() * cos + rotated.float() * sin).to(x.dtype)


def ltx(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as `transformer_ltx.apply_rotary_emb` does. `x` and the tables are [B, S, heads * D], not
    split into heads."""
    real, imaginary = x.unflatten(2, (-1, 2)).unbind(-1)
    rotated = torch.stack([-imaginary, real], dim=-1).flatten(2)
    return (x.float() * cos + rotated.float() * sin).to(x.dtype)


def wan(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as the `apply_rotary_emb` in WanAttnProcessor does, with `x` [B, S, H, D] and tables [1, S,
    1, D]."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[..., 0::2], sin[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out.type_as(x)


def qwen_image(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate as `apply_rotary_emb_qwen` does, with `x` [B, S, H, D] and one complex64 table [S, D / 2]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn.unsqueeze(1)).flatten(3).type_as(x)


def llama(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute transformers' `apply_rotary_pos_emb` for `x` [B, H, S, D]. Both products and their sum are
    rounded."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * cos) + (torch.cat((-second, first), dim=-1) * sin)


def mochi(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as the `apply_rotary_emb` in MochiAttnProcessor2_0 does. `x` is [B, S, H, D], the tables are
    [S, H, D / 2]."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    first, second = (even * cos - odd * sin).to(x.dtype), (even * sin + odd * cos).to(x.dtype)
    return torch.stack([first, second], dim=-1).flatten(-2)


def real_flux(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Call diffusers' function for Flux."""
    from diffusers.models.embeddings import apply_rotary_emb

    return apply_rotary_emb(x, (cos, sin), sequence_dim=1)


def real_ltx(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Call diffusers' function for LTX."""
    from diffusers.models.transformers.transformer_ltx import apply_rotary_emb

    return apply_rotary_emb(x, (cos, sin))


def real_qwen_image(x: Tensor, turn: Tensor) -> Tensor:
    """Call diffusers' function for Qwen-Image."""
    from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen

    return apply_rotary_emb_qwen(x, turn, use_real=False)


def real_llama(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tables:
    """Call transformers' function for Llama."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    return apply_rotary_pos_emb(q, k, cos, sin)
