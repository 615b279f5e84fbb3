"""Fusions for LTX-2 (diffusers: models/transformers/transformer_ltx2.py).

A fusion is a hand-written method that replaces a method of a model's class. Video tokens attend to video,
text and audio tokens. Audio tokens attend to audio, text and video tokens.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...class_swap import base_of
from ..core.fusion import Fusion, same_dtype
from ..core.modules import resident
from ..core.operands import as_rows
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm
from ..core.recipe import FusedRecipe
from ..shared.residual_layer_norm import zeros

MODULE = "diffusers.models.transformers.transformer_ltx2"
Tables = tuple[Tensor, Tensor]
# A shift, scale or gate, as a pair. The first element has the values for each sample or token. The second
# element is a table row that the kernel adds to these values, or None.
Modulation = tuple[Tensor, Tensor | None]
NORMS = tuple(f"{of}{norm}" for of in ("", "audio_") for norm in ("norm1", "norm2", "norm3")) + (
    "audio_to_video_norm",
    "video_to_audio_norm",
)


@dataclass
class Stream:
    """Video or audio tokens `x`, and a pending residual branch. A branch is the result of a module, such as
    an attention; a pending branch is not yet added to `x`.

    The addition is delayed until the next norm, because one kernel computes both.
    """

    x: Tensor
    how: FusedRecipe
    branch: Tensor | None = None
    gate: Modulation | tuple[None, None] = (None, None)

    def add(self, branch: Tensor, gate: Modulation | None = None) -> None:
        """Store `branch` and `gate` as the pending branch. The kernel of the next norm then computes `x +
        gate * branch`.

        If there is already a pending branch, add that branch to `x` first.
        """
        self.total()
        self.branch, self.gate = branch, gate or (None, None)

    def total(self) -> Tensor:
        """Add the pending branch and return the tokens."""
        branch, (gate, table) = self.branch, self.gate
        self.branch = None
        if branch is not None and gate is None:
            self.x = self.x + branch
        elif branch is not None and gate is not None:
            self.x = gated_residual(self.x, branch, gate, gate_table=table, mode=self.how.mode)
        return self.x

    def normed(self, norm: Any, scale: Modulation | None = None, shift: Modulation | None = None) -> Tensor:
        """Add the pending branch to the tokens. Return the norm of the tokens, multiplied by `1 + scale` and
        increased by `shift`.

        If `scale` is None, the kernel gets a scale of 0, so it multiplies the norm by 1, which changes no bit.
        """
        branch, (gate, gate_table) = self.branch, self.gate
        scale, added = scale or (zeros(self.x), None), shift or (None, None)
        options: dict[str, Any] = {
            "norm": "rms_norm",
            "eps": norm.eps,
            "scale_table": scale[1],
            "shift_table": added[1],
            "mode": self.how.mode,
        }
        if branch is None:
            return ada_norm(self.x, scale[0], added[0], **options)
        self.branch = None
        normed, self.x = gated_residual_ada_norm(
            self.x, branch, gate, scale[0], added[0], gate_table=gate_table, **options
        )
        return normed


def modulations(table: Tensor, temb: Tensor) -> list[Modulation]:
    """Return `n` modulations for a table `[n, D]` and an embedding `temb` of shape `[B, 1, n * D]` or `[B, S,
    n * D]`.

    A modulation is a shift, scale or gate. It is returned as a pair: a slice of the embedding, and the table
    row that the kernel adds to the slice.
    """
    return list(zip(temb.unflatten(-1, (len(table), -1)).unbind(2), table.unbind(0), strict=True))


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    audio_hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    audio_encoder_hidden_states: Tensor,
    temb: Tensor,
    temb_audio: Tensor,
    temb_ca_scale_shift: Tensor,
    temb_ca_audio_scale_shift: Tensor,
    temb_ca_gate: Tensor,
    temb_ca_audio_gate: Tensor,
    temb_prompt: Tensor | None = None,
    temb_prompt_audio: Tensor | None = None,
    video_rotary_emb: Tables | None = None,
    audio_rotary_emb: Tables | None = None,
    ca_video_rotary_emb: Tables | None = None,
    ca_audio_rotary_emb: Tables | None = None,
    encoder_attention_mask: Tensor | None = None,
    audio_encoder_attention_mask: Tensor | None = None,
    self_attention_mask: Tensor | None = None,
    audio_self_attention_mask: Tensor | None = None,
    a2v_cross_attention_mask: Tensor | None = None,
    v2a_cross_attention_mask: Tensor | None = None,
    use_a2v_cross_attention: bool = True,
    use_v2a_cross_attention: bool = True,
    perturbation_mask: Tensor | None = None,
    all_perturbed: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `LTX2VideoTransformerBlock.forward` with oxiwarp's kernels."""
    video, audio = Stream(as_rows(hidden_states), how), Stream(as_rows(audio_hidden_states), how)
    how_to: dict[str, Any] = {"encoder_hidden_states": None}
    if self.perturbed_attn:
        how_to.update(perturbation_mask=perturbation_mask, all_perturbed=all_perturbed)
    by, audio_by = modulations(self.scale_shift_table, temb), modulations(self.audio_scale_shift_table, temb_audio)
    for of, stream, (shift, scale, gate, *_), tables, mask in (
        ("", video, by, video_rotary_emb, self_attention_mask),
        ("audio_", audio, audio_by, audio_rotary_emb, audio_self_attention_mask),
    ):
        normed = stream.normed(getattr(self, f"{of}norm1"), scale, shift)
        attn = getattr(self, f"{of}attn1")
        stream.add(attn(hidden_states=normed, query_rotary_emb=tables, attention_mask=mask, **how_to), gate)
    text = with_prompt(self, "", encoder_hidden_states, temb_prompt)
    attend_to_text(self, "", video, text, by[6:], encoder_attention_mask)
    text = with_prompt(self, "audio_", audio_encoder_hidden_states, temb_prompt_audio)
    attend_to_text(self, "audio_", audio, text, audio_by[6:], audio_encoder_attention_mask)
    attend_to_each_other(
        self,
        (video, audio),
        (temb_ca_scale_shift, temb_ca_audio_scale_shift),
        (temb_ca_gate, temb_ca_audio_gate),
        (ca_video_rotary_emb, ca_audio_rotary_emb),
        a2v_cross_attention_mask if use_a2v_cross_attention else False,
        v2a_cross_attention_mask if use_v2a_cross_attention else False,
    )
    for of, stream, (shift, scale, gate) in (("", video, by[3:6]), ("audio_", audio, audio_by[3:6])):
        normed = stream.normed(getattr(self, f"{of}norm3"), scale, shift)
        stream.add(getattr(self, f"{of}ff")(normed), gate)
    return video.total(), audio.total()


def with_prompt(self: Any, of: str, text: Tensor, temb: Tensor | None) -> Tensor:
    """Return the text tokens to which the video or audio tokens attend. If the model modulates its text
    tokens, return them modulated."""
    if not self.cross_attn_adaln:
        return text
    table = getattr(self, f"{of}prompt_scale_shift_table")
    if temb is not None:
        shift, scale = self.get_mod_params(table, temb, text.shape[0])
    else:
        shift, scale = table[None, None].to(device=text.device, dtype=text.dtype).unbind(dim=2)
    return text * (1 + scale) + shift


def attend_to_text(
    self: Any, of: str, stream: Stream, text: Tensor, modulation: list[Modulation], mask: Tensor | None
) -> None:
    """Compute the cross-attention of the video or audio tokens in `stream` to text tokens, and add its result to
    `stream`. If there is a modulation, its shift and scale apply to the queries, and its gate to the result.
    """
    norm = getattr(self, f"{of}norm2")
    shift, scale, gate = modulation or (None, None, None)
    normed, attn = stream.normed(norm, scale, shift), getattr(self, f"{of}attn2")
    stream.add(attn(normed, encoder_hidden_states=text, query_rotary_emb=None, attention_mask=mask), gate)


def attend_to_each_other(
    self: Any,
    streams: tuple[Stream, Stream],
    tembs: tuple[Tensor, Tensor],
    tembs_gate: tuple[Tensor, Tensor],
    tables: tuple[Tables | None, Tables | None],
    a2v_mask: Tensor | None | bool,
    v2a_mask: Tensor | None | bool,
) -> None:
    """Compute two cross-attentions, and add their results to the streams. In the first one, video tokens attend to
    audio tokens. It is omitted if `a2v_mask` is False. In the second one, audio tokens attend to video tokens. It is
    omitted if `v2a_mask` is False.
    """
    names = (
        ("audio_to_video_norm", self.video_a2v_cross_attn_scale_shift_table),
        ("video_to_audio_norm", self.audio_a2v_cross_attn_scale_shift_table),
    )
    normed, gates = [], []
    for stream, temb, temb_gate, (name, table) in zip(streams, tembs, tembs_gate, names, strict=True):
        norm, by = getattr(self, name), modulations(table[:4], temb)
        normed.append(
            [
                None if mask is False else stream.normed(norm, scale, shift)
                for mask, (scale, shift) in ((a2v_mask, by[:2]), (v2a_mask, by[2:]))
            ]
        )
        gates.extend(modulations(table[4:], temb_gate))
    (video_a2v, video_v2a), (audio_a2v, audio_v2a) = normed
    for stream, attn, query, key, gate, (of_query, of_key), mask in (
        (streams[0], self.audio_to_video_attn, video_a2v, audio_a2v, gates[0], tables, a2v_mask),
        (streams[1], self.video_to_audio_attn, audio_v2a, video_v2a, gates[1], tables[::-1], v2a_mask),
    ):
        if mask is not False:
            attended = attn(
                query,
                encoder_hidden_states=key,
                query_rotary_emb=of_query,
                key_rotary_emb=of_key,
                attention_mask=mask,
            )
            stream.add(attended, gate)


def accepts_block(
    self: Any,
    hidden_states: Tensor,
    audio_hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    audio_encoder_hidden_states: Tensor,
    *tembs: Any,
    **others: Any,
) -> bool:
    """Return whether video tokens, audio tokens, time embeddings and modulation tables have the same dtype
    and device."""
    tables = (
        self.scale_shift_table,
        self.audio_scale_shift_table,
        self.video_a2v_cross_attn_scale_shift_table,
        self.audio_a2v_cross_attn_scale_shift_table,
    )
    named = (value for name, value in others.items() if name.startswith("temb"))
    operands = (audio_hidden_states, *(x for x in (*tembs[:6], *named) if x is not None), *tables)
    return same_dtype(hidden_states, *operands) and resident(hidden_states.device, *operands)


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are diffusers' RMSNorms without weights. Otherwise, return the
    reason why `patch` cannot replace the block."""
    from diffusers.models.normalization import RMSNorm

    for name in NORMS:
        norm = getattr(self, name)
        if base_of(norm) is not RMSNorm or norm.weight is not None:
            return f"its {name} is not diffusers' RMSNorm without weight"
    return None


FUSIONS = (
    Fusion(
        name="ltx2.block",
        classes=(f"{MODULE}.LTX2VideoTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=NORMS,
        sources={
            "forward": ("3a49943199bd",),
            "get_mod_params": ("d81d69567f5d",),
            "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b",),
        },
        chains=(
            "norm1, modulation with table; the second modulation for video and audio: ada_norm",
            "gate, table, residual of an attention, next norm, its modulation with table: gated_residual_ada_norm",
            "gate, table, residual of ff: gated_residual",
        ),
    ),
)
