"""Qwen-Image-Edit (diffusers: models/transformers/transformer_qwenimage.py). The blocks of Qwen-Image are rewritten.

In these blocks, the tokens of the edited image have a separate modulation (shifts, scales and gates). The kernels
choose the modulation of each token. The rewritten method would write a modulation for each token.
"""

from typing import Any

import torch
from torch import Tensor

from ..core.fusion import Fusion
from ..core.ops import ada_norm
from ..core.recipe import FusedRecipe
from ..shared.mmdit import affine_norm, after_attention, as_rows, streams_fit

MODULE = "diffusers.models.transformers.transformer_qwenimage"
Tables = tuple[Tensor, Tensor]
NORMS = ("img_norm1", "img_norm2", "txt_norm1", "txt_norm2")


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    encoder_hidden_states_mask: Tensor | None,
    temb: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
    modulate_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `QwenImageTransformerBlock.forward` with oxiwarp's kernels."""
    first, second = self.img_mod(temb).chunk(2, dim=-1)
    of_text, of_text_mlp = self.txt_mod(temb.chunk(2)[0] if self.zero_cond_t else temb).chunk(2, dim=-1)
    index = None if modulate_index is None else rows_of(modulate_index)
    shift, scale, gate = parts(first, index)
    text_shift, text_scale, text_gate = parts(of_text)
    eps, text_eps = self.img_norm1.eps, self.txt_norm1.eps
    attended, attended_text = self.attn(
        hidden_states=ada_norm(as_rows(hidden_states), scale, shift, eps=eps, index=index, mode=how.mode),
        encoder_hidden_states=ada_norm(
            as_rows(encoder_hidden_states), text_scale, text_shift, eps=text_eps, mode=how.mode
        ),
        encoder_hidden_states_mask=encoder_hidden_states_mask,
        image_rotary_emb=image_rotary_emb,
        **(joint_attention_kwargs or {}),
    )
    clip = hidden_states.dtype == torch.float16
    modulation = gate, *parts(second, index)
    hidden_states = after_attention(hidden_states, attended, modulation, self.img_norm2, self.img_mlp, how, clip, index)
    modulation = text_gate, *parts(of_text_mlp)
    encoder_hidden_states = after_attention(
        encoder_hidden_states, attended_text, modulation, self.txt_norm2, self.txt_mlp, how, clip
    )
    return encoder_hidden_states, hidden_states


def parts(modulation: Tensor, index: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split a modulation `[B, 3 D]` into shift, scale and gate. Each has the shape `[B, 1, D]`, or `[B, D]` if an
    index chooses their rows."""
    return (modulation.unsqueeze(1) if index is None else modulation).chunk(3, dim=-1)


def rows_of(index: Tensor) -> Tensor:
    """Return the row of the modulation for each token. `index` has the shape `[B, S]`.

    The modulation has 2 B rows. Tokens with index 0 use the first B rows, and all other tokens use the last B
    rows.
    """
    batch = index.shape[0]
    first = torch.arange(batch, device=index.device, dtype=torch.int32)[:, None]
    return torch.where(index == 0, first, first + batch).contiguous()


def accepts_block(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    encoder_hidden_states_mask: Tensor | None,
    temb: Tensor,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether image tokens, text tokens and time embedding have the same dtype and device."""
    return streams_fit(temb, hidden_states, encoder_hidden_states)


def fits_block(self: Any) -> str | None:
    """Return None if the block belongs to Qwen-Image-Edit, and its norms are LayerNorms without weights. Otherwise,
    return the reason why the fusion does not replace the block."""
    return affine_norm(self, *NORMS) if self.zero_cond_t else "its tokens have one modulation"


FUSIONS = (
    Fusion(
        name="qwen_image.block",
        classes=(f"{MODULE}.QwenImageTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=NORMS,
        sources={"forward": ("1376a0083b78",), "_modulate": ("1f396a3e2448",)},
        chains=(
            "norm1, modulation: ada_norm",
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of mlp: gated_residual",
        ),
    ),
)
