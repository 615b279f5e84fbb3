"""Fusions for HunyuanVideo's image-to-video blocks: in these blocks, the tokens of the first frame have a separate
modulation.

A fusion is a hand-written method that replaces a method of a model's class. Because of the separate modulation, each
kernel with a modulation of video tokens is launched twice: for the tokens of the first frame, and for all other tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...class_swap import base_of
from ..core.fusion import Fusion
from ..core.linear import computed
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm
from ..core.recipe import FusedRecipe
from ..shared.mmdit import after_attention, as_rows, joined
from ..shared.parallel_block import CHAIN
from .hunyuan_video import MODULE, Tables, accepts_block, both_branches, fits_block


def norm(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    emb: Tensor,
    token_replace_emb: Tensor,
    first_frame_num_tokens: int,
) -> tuple[Tensor, ...]:
    """Compute the result of `HunyuanVideoTokenReplaceAdaLayerNormZero.forward` with oxiwarp's kernels.

    Return a tuple. Its first element is the modulated norm. Then follow the parts of the modulation that the
    norm does not use, such as gates: first for the tokens of later frames, then for the tokens of the first
    frame.
    """
    normed, of_others, of_first = both_modulated(
        self, how, hidden_states, emb, token_replace_emb, first_frame_num_tokens, 6
    )
    return normed, *of_others, *of_first


def single_norm(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    emb: Tensor,
    token_replace_emb: Tensor,
    first_frame_num_tokens: int,
) -> tuple[Tensor, ...]:
    """Compute the result of `HunyuanVideoTokenReplaceAdaLayerNormZeroSingle.forward` with oxiwarp's
    kernels."""
    normed, of_others, of_first = both_modulated(
        self, how, hidden_states, emb, token_replace_emb, first_frame_num_tokens, 3
    )
    return normed, *of_others, *of_first


def both_modulated(
    self: Any, how: FusedRecipe, x: Tensor, emb: Tensor, of_first: Tensor, first: int, chunks: int
) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
    """Return the norm of `x`. The embedding `of_first` modulates the first `first` tokens, and `emb`
    modulates all later tokens.

    Also return two sequences with the other parts of the modulations, such as gates: first for the later
    tokens, then for the first tokens. `chunks` is the number of parts of a modulation, including shift and
    scale.
    """
    parts = [self.linear(self.silu(each)).chunk(chunks, dim=1) for each in (emb, of_first)]
    (shift, scale, *rest), (first_shift, first_scale, *first_rest) = parts
    x = as_rows(x)
    normed = [
        modulated(self, how, x[:, :first], first_scale, first_shift),
        modulated(self, how, x[:, first:], scale, shift),
    ]
    return torch.cat(normed, dim=1), rest, first_rest


def modulated(self: Any, how: FusedRecipe, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute `norm(x) * (1 + scale) + shift`. `x` has shape `[B, S, D]`, and `scale` and `shift` have shape
    `[B, D]`."""
    norm = self.norm
    if scale.dtype != x.dtype:  # A replaced linear may give another dtype. torch promotes the dtypes.
        return norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return ada_norm(
        as_rows(x),
        scale.unsqueeze(1),
        shift.unsqueeze(1),
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
        mode=how.mode,
    )


def accepts_norm(
    self: Any, hidden_states: Tensor, emb: Tensor, token_replace_emb: Tensor | None, first_frame_num_tokens: int | None
) -> bool:
    """Return whether some tokens, but not all, belong to the first frame. The embeddings `emb` and
    `token_replace_emb` must have the dtype of `hidden_states`."""
    return (
        token_replace_emb is not None
        and first_frame_num_tokens is not None
        and 0 < first_frame_num_tokens < hidden_states.shape[1]
        and hidden_states.dtype == emb.dtype == token_replace_emb.dtype
    )


def fits(self: Any) -> str | None:
    """Return None if the norm inside the modulated norm is torch's LayerNorm. Otherwise, return the reason
    why `patch` cannot replace the modulated norm."""
    cls = base_of(self.norm)
    return None if cls is nn.LayerNorm else f"its norm is {cls.__name__}, expected LayerNorm"


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    attention_mask: Tensor | None = None,
    freqs_cis: Tables | None = None,
    token_replace_emb: Tensor | None = None,
    num_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `HunyuanVideoTokenReplaceTransformerBlock.forward` with oxiwarp's kernels."""
    normed, *modulation = self.norm1(hidden_states, temb, token_replace_emb, num_tokens)
    normed_text, *text_modulation = self.norm1_context(encoder_hidden_states, emb=temb)
    attended, attended_text = self.attn(
        hidden_states=normed,
        encoder_hidden_states=normed_text,
        attention_mask=attention_mask,
        image_rotary_emb=freqs_cis,
    )
    sizes = [num_tokens, hidden_states.shape[1] - num_tokens]  # type: ignore[operator]
    streams = as_rows(hidden_states).split(sizes, 1), attended.split(sizes, 1)
    gates, done = [], []
    for x, y, by in zip(*streams, (modulation[4:], modulation[:4]), strict=True):
        gate_msa, shift, scale, gate = (part.unsqueeze(1) for part in by)
        done.append(gated_residual_ada_norm(x, y, gate_msa, scale, shift, eps=self.norm2.eps, mode=how.mode))
        gates.append(gate)
    forwarded = self.ff(torch.cat([normed for normed, _ in done], dim=1)).split(sizes, 1)
    sums = [gated_residual(x, y, gate, mode=how.mode) for (_, x), y, gate in zip(done, forwarded, gates, strict=True)]
    return torch.cat(sums, dim=1), after_attention(
        encoder_hidden_states, attended_text, text_modulation, self.norm2_context, self.ff_context, how
    )


def single_block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
    token_replace_emb: Tensor | None = None,
    num_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `HunyuanVideoTokenReplaceSingleTransformerBlock.forward` with oxiwarp's
    kernels."""
    image = hidden_states.shape[1]
    hidden_states = joined(hidden_states, encoder_hidden_states)
    normed, gate, first_gate = self.norm(hidden_states, temb, token_replace_emb, num_tokens)
    projected = computed(both_branches(self, how, normed, image, attention_mask, image_rotary_emb))
    sums = [
        gated_residual(hidden_states[:, tokens], projected[:, tokens], by.unsqueeze(1), mode=how.mode)
        for by, tokens in ((first_gate, slice(num_tokens)), (gate, slice(num_tokens, None)))
    ]
    hidden_states = torch.cat(sums, dim=1)
    return hidden_states[:, :image], hidden_states[:, image:]


def accepts(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    attention_mask: Tensor | None = None,
    rotary_emb: Tables | None = None,
    token_replace_emb: Tensor | None = None,
    num_tokens: int | None = None,
    **tables: Any,
) -> bool:
    """Return whether video tokens, text tokens and embeddings have the same dtype. Some video tokens, but not
    all, must belong to the first frame."""
    return accepts_norm(self, hidden_states, temb, token_replace_emb, num_tokens) and accepts_block(
        self, hidden_states, encoder_hidden_states, temb
    )


FUSIONS = (
    Fusion(
        name="hunyuan_video.replace_norm",
        classes=(f"{MODULE}.HunyuanVideoTokenReplaceAdaLayerNormZero",),
        run=norm,
        accepts=accepts_norm,
        fits=fits,
        skips=("norm",),
        sources={"forward": ("ba1fd3dde0b0",)},
        chains=("norm, modulation: ada_norm",),
    ),
    Fusion(
        name="hunyuan_video.replace_single_norm",
        classes=(f"{MODULE}.HunyuanVideoTokenReplaceAdaLayerNormZeroSingle",),
        run=single_norm,
        accepts=accepts_norm,
        fits=fits,
        skips=("norm",),
        sources={"forward": ("33654304ac7b",)},
        chains=("norm, modulation: ada_norm",),
    ),
    Fusion(
        name="hunyuan_video.replace_block",
        classes=(f"{MODULE}.HunyuanVideoTokenReplaceTransformerBlock",),
        run=block,
        accepts=accepts,
        fits=fits_block,
        skips=("norm2", "norm2_context"),
        sources={"forward": ("387a38e50ee1",)},
        chains=(
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="hunyuan_video.replace_single_block",
        classes=(f"{MODULE}.HunyuanVideoTokenReplaceSingleTransformerBlock",),
        run=single_block,
        accepts=accepts,
        sources={"forward": ("9ba5dc491e58",)},
        chains=(CHAIN.format("gelu_tanh"), "gate and residual of proj_out: gated_residual"),
    ),
)
