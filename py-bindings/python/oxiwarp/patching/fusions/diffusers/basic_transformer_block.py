"""diffusers' BasicTransformerBlock (models/attention.py), the block of SD, SDXL, PixArt, DiT and Latte.

SDXL's UNet has 70 of these blocks and few tokens, so Python takes as long as the GPU in each step. To save Python time,
the new attention and feed-forward methods omit operations without effect: a division by 1, and dropout outside of
training.
"""

from typing import Any

from torch import Tensor, nn

from ..core.attention import mask_of_heads, sdpa
from ..core.fusion import Fusion, same_dtype
from ..core.modules import is_exactly, is_plain, resident
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm
from ..core.recipe import FusedRecipe
from ..shared.feed_forward import FEED_FORWARD, add_branch, in_turn, later_branch
from ..shared.mmdit import as_rows
from ..shared.residual_layer_norm import residual_layer_norm

PLAIN, SINGLE, ZERO = "layer_norm", "ada_norm_single", "ada_norm_zero"
TAKEN = {"encoder_hidden_states", "attention_mask", "temb"}  # arguments of attention processors


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    timestep: Tensor | None = None,
    cross_attention_kwargs: dict[str, Any] | None = None,
    class_labels: Tensor | None = None,
    added_cond_kwargs: dict[str, Tensor] | None = None,
) -> Tensor:
    """Compute the result of `BasicTransformerBlock.forward` with oxiwarp's kernels."""
    extra = {name: value for name, value in (cross_attention_kwargs or {}).items() if name != "gligen"}
    source = encoder_hidden_states if self.only_cross_attention else None
    own = {"encoder_hidden_states": source, "attention_mask": attention_mask, **extra}
    cross = {"encoder_hidden_states": encoder_hidden_states, "attention_mask": encoder_attention_mask, **extra}
    if self.norm_type == PLAIN:
        return plain(self, how, as_rows(hidden_states), own, cross)
    return modulated(self, how, as_rows(hidden_states), own, cross, timestep, class_labels)


def plain(self: Any, how: FusedRecipe, x: Tensor, own: dict[str, Any], cross: dict[str, Any]) -> Tensor:
    """Run a block whose norms are LayerNorms without modulation, as in UNets."""
    attended = self.attn1(positioned(self, self.norm1(x)), **own)
    if self.attn2 is not None:
        normed, x = residual_layer_norm(x, attended, self.norm2, how.mode)
        attended = self.attn2(positioned(self, normed), **cross)
    normed, x = residual_layer_norm(x, attended, self.norm3, how.mode)
    return feed_forward(self, normed) + x


def modulated(
    self: Any,
    how: FusedRecipe,
    x: Tensor,
    own: dict[str, Any],
    cross: dict[str, Any],
    timestep: Any,
    class_labels: Tensor | None,
) -> Tensor:
    """Run a block with modulated norms.

    In PixArt and Latte, the modulation (shifts, scales and gates) is the sum of `scale_shift_table` and
    `timestep`. In DiT, norm1 returns the modulation.
    """
    if self.norm_type == ZERO:
        normed, *made = self.norm1(x, timestep, class_labels, hidden_dtype=x.dtype)
        gate, shift_mlp, scale_mlp, gate_mlp = (part.unsqueeze(1) for part in made)
        of_gate = of_shift_mlp = of_scale_mlp = of_gate_mlp = None
        second = self.norm3
    else:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = timestep.reshape(len(x), 6, -1).chunk(6, dim=1)
        of_shift, of_scale, of_gate, of_shift_mlp, of_scale_mlp, of_gate_mlp = self.scale_shift_table.unbind(0)
        by: dict[str, Any] = {"scale_table": of_scale, "shift_table": of_shift, "mode": how.mode}
        normed, second = ada_norm(x, scale, shift, **affine(self.norm1), **by), self.norm2
    attended = self.attn1(positioned(self, normed), **own)
    if self.attn2 is not None:  # attn2 reads `x` without a norm
        x = gated_residual(x, attended, gate, gate_table=of_gate, mode=how.mode)
        attended, gate, of_gate = self.attn2(x, **cross), None, None
    by = {"gate_table": of_gate, "scale_table": of_scale_mlp, "shift_table": of_shift_mlp, "mode": how.mode}
    normed, x = gated_residual_ada_norm(x, attended, gate, scale_mlp, shift_mlp, **affine(second), **by)
    branch = later_branch(how, self.ff, normed) if self._chunk_size is None else feed_forward(self, normed)
    return add_branch(how, x, branch, gate_mlp, gate_table=of_gate_mlp)


def affine(norm: nn.LayerNorm) -> dict[str, Any]:
    """Return weight, bias and eps of a LayerNorm as keyword arguments of an operator."""
    return {"weight": norm.weight, "bias": norm.bias, "eps": norm.eps}


def positioned(self: Any, normed: Tensor) -> Tensor:
    """Return `normed`. If the block has a positional embedding, as in AnimateDiff, add it."""
    return normed if self.pos_embed is None else self.pos_embed(normed)


def feed_forward(self: Any, normed: Tensor) -> Tensor:
    """Run the block's feed-forward. If the user has enabled chunking, run it for one chunk of tokens after
    another."""
    if self._chunk_size is None:
        return self.ff(normed)
    from diffusers.models.attention import _chunked_feed_forward

    return _chunked_feed_forward(self.ff, normed, self._chunk_dim, self._chunk_size)


def accepts_block(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    timestep: Tensor | None = None,
    cross_attention_kwargs: dict[str, Any] | None = None,
    class_labels: Tensor | None = None,
    added_cond_kwargs: dict[str, Tensor] | None = None,
) -> bool:
    """Return whether all operands have the same dtype and device, and the call does not use GLIGEN (an additional
    attention layer).

    If the call has the argument `scale`, return False, because the original method warns about this argument.
    """
    extra, x = cross_attention_kwargs or {}, hidden_states
    if x.dim() != 3 or extra.get("gligen") is not None or extra.get("scale") is not None:
        return False
    if self.norm_type == SINGLE:
        table = self.scale_shift_table
        if timestep is None or not (same_dtype(x, timestep, table) and resident(x.device, timestep, table)):
            return False
        if not (is_exactly(self.norm1, nn.LayerNorm) and is_plain(self.norm1, x.device)):
            return False
    return same_dtype(x, *(parameter for norm in norms(self) for parameter in (norm.weight, norm.bias)))


def norms(self: Any) -> list[Any]:
    """Return the LayerNorms of the block whose results the fused method computes without calling them. The block's
    `norm_type` determines which LayerNorms these are.
    """
    if self.norm_type == SINGLE:
        return [self.norm1, self.norm2]
    return [self.norm3] if self.norm_type == ZERO or self.attn2 is None else [self.norm2, self.norm3]


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are LayerNorms of a supported `norm_type`. Otherwise, return the
    reason why `patch` cannot replace the block.

    If the `norm_type` is "ada_norm_zero", as in DiT, norm1 also returns the gates. Such a block must not have
    a second attention.
    """
    if self.norm_type not in (PLAIN, SINGLE, ZERO):
        return f"its norm_type is {self.norm_type!r}"
    if self.norm_type == ZERO and self.attn2 is not None:
        return "it has a norm1 with gates and a second attention"
    known = all(is_exactly(norm, nn.LayerNorm) for norm in norms(self))
    return None if known else "its norms are no torch.nn.LayerNorm"


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    temb: Tensor | None = None,
    scale: None = None,
) -> Tensor:
    """Compute the result of `AttnProcessor2_0.__call__` without operations that have no effect."""
    source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
    if attention_mask is not None:
        attention_mask = mask_of_heads(attn, attention_mask, source)
    query, key, value = attn.to_q(hidden_states), attn.to_k(source), attn.to_v(source)
    shape = (source.shape[0], -1, attn.heads, key.shape[-1] // attn.heads)
    split = [x.view(shape).transpose(1, 2) for x in (query, key, value)]
    attended = sdpa(how, *split, attn_mask=attention_mask)
    return in_turn(attn.to_out, attended.transpose(1, 2).flatten(2).to(query.dtype))


def accepts_attention(
    self: Any, attn: Any, hidden_states: Tensor, *args: Any, scale: Any = None, **kwargs: Any
) -> bool:
    """Return whether `hidden_states` has shape `[B, S, D]`, and the attention module has no norms, residual
    connection or rescaling of its output.

    If the call has the argument `scale`, return False, because the original method warns about this argument.
    """
    return (
        hidden_states.dim() == 3
        and len(args) <= 3
        and scale is None
        and attn.spatial_norm is attn.group_norm is attn.norm_cross is attn.norm_q is attn.norm_k is None
        and not attn.residual_connection
        and attn.rescale_output_factor == 1
        and kwargs.keys() <= TAKEN
    )


def feed_forward_module(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """Compute the result of `FeedForward.forward` without dropouts that have no effect."""
    return in_turn(self.net, hidden_states)


def accepts_feed_forward(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the call has exactly one argument. With a second one, the original method must run, because it
    gives a warning.
    """
    return len(args) + len(kwargs) == 1


FUSIONS = (
    Fusion(
        name="basic.block",
        classes=("diffusers.models.attention.BasicTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm2", "norm3"),
        sources={"forward": ("f140a12ea13a", "454e099ff920")},
        chains=(
            "norm1, modulation, table: ada_norm",
            "residual of an attention, the next norm: gated_residual_ada_norm",
            "gate, table, residual of attn1, the next norm, modulation: gated_residual_ada_norm",
            "gate, table, residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="basic.attention",
        classes=("diffusers.models.attention_processor.AttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        kernels=False,
        traced=True,  # `oxiwarp.attention` may be enabled
        sources={"__call__": ("2266b31ef8bb", "e2fd121ed877")},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("a division by 1, dropout outside of training, left out",),
    ),
    Fusion(
        name=FEED_FORWARD,
        classes=("diffusers.models.attention.FeedForward",),
        run=feed_forward_module,
        accepts=accepts_feed_forward,
        kernels=False,
        sources={"forward": ("7adf9c714065",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("dropout outside of training, left out",),
    ),
)
