"""The attention of fused processors: torch's, or `oxiwarp.attention` where `patch` was asked for it and it is faster.

`oxiwarp.attention` has other last bits than torch's backends, which differ among themselves as well, so it is not part
of mode "exact" unless asked for.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._register import PLAIN, needs_grad
from ..ops import attention
from ._source import fingerprint

# By the columns of a head: the fewest queries and keys from which ours was measured to be faster than what torch takes
# by itself, on an H200 (docs/attention.md); then with a mask of the keys alone. No other GPU has been measured.
FASTER = {64: (2048, 2048), 128: (2048, 2048)}
FASTER_PADDED = {64: (2048, 128)}
MEASURED = (9, 0)
ATTENTION_NOTE = (
    "attention processors call oxiwarp.attention for heads of 64 or 128 columns and 2048 tokens or more, and for "
    "shorter padded keys: faster there, other last bits"
)
PREPARE = "747a2a6ba451"  # `AttentionModuleMixin.prepare_attention_mask` of diffusers


def measured() -> bool:
    """Whether the current GPU is of the kind that was measured."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == MEASURED


def mask_of_heads(attn: Any, mask: Tensor, source: Tensor) -> Tensor:
    """`attn.prepare_attention_mask(...)` as `[B, heads, queries or 1, keys]`: what heads share is not copied for each
    of them where that is known to be all it does."""
    batch, tokens, _ = source.shape
    shared = mask.dim() == 3 and mask.shape[0] == batch and mask.shape[2] == tokens
    if shared and not torch.compiler.is_compiling() and fingerprint(type(attn).prepare_attention_mask) == PREPARE:
        return mask.unsqueeze(1).expand(-1, attn.heads, -1, -1)
    mask = attn.prepare_attention_mask(mask, tokens, batch)
    return mask.view(batch, attn.heads, -1, mask.shape[-1])


def dispatched(
    how: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    backend: Any = None,
    parallel_config: Any = None,
    **options: Any,
) -> Tensor:
    """diffusers' `dispatch_attention_fn` for `[B, S, H, D]`: ours, unless the model has another backend set, or there
    is a dropout or a causal mask among the options."""
    plain = backend is None and parallel_config is None and not any(options.values())
    if plain and is_ours(how, query, key, value, attn_mask, 1):
        return attention(query, key, value, mask=attn_mask)  # type: ignore[return-value]
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    options |= {"attn_mask": attn_mask, "backend": backend, "parallel_config": parallel_config}
    return dispatch_attention_fn(query, key, value, **options)  # type: ignore[no-any-return]


def sdpa(
    how: Any, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """`F.scaled_dot_product_attention` for `[B, H, S, D]`."""
    if not any(options.values()) and is_ours(how, query, key, value, attn_mask, 2):
        return attention(query, key, value, mask=attn_mask, layout="bhsd")  # type: ignore[return-value]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)


def is_ours(how: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tokens: int) -> bool:
    """Whether ours runs; `tokens` is the dimension of the tokens. Training keeps torch's attention."""
    if not (how.attention and query.is_cuda) or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    if mask is not None and (mask.dim() != 4 or mask.shape[2] != 1 or type(mask) not in PLAIN):
        return False
    least = (FASTER if mask is None else FASTER_PADDED).get(query.shape[-1])
    if least is None or query.shape[tokens] < least[0] or key.shape[tokens] < least[1]:
        return False
    three = (query, key, value)
    return not needs_grad(*three) and all(type(x) in PLAIN and x.dtype == query.dtype for x in three)


__all__ = ["ATTENTION_NOTE", "dispatched", "mask_of_heads", "measured", "sdpa"]
