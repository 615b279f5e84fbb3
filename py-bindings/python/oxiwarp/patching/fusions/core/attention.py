"""The attention of fused processors: torch's, or `oxiwarp.attention` where `patch` was asked for it and it is faster.

`oxiwarp.attention` has other last bits than torch's backends, which differ among themselves as well, so it is not part
of mode "exact" unless asked for.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....ops._register import PLAIN, needs_grad
from ....ops.attention import attention
from .attention_table import FASTER, MEASURED, Region, Sizes
from .source import fingerprint

NOWHERE: Sizes = ({}, {})
SDPA = torch._C._nn.scaled_dot_product_attention
"""`F.scaled_dot_product_attention` as torch has it. torch's `context_parallel` puts another function in its place."""
PREPARE = "747a2a6ba451"  # `AttentionModuleMixin.prepare_attention_mask` of diffusers


def measured() -> str | None:
    """The current GPU's compute capability, "9.0", if it is one that was measured."""
    if not torch.cuda.is_available():
        return None
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    return capability if capability in FASTER else None


def attention_note(capability: str) -> str:
    """What the report says of it."""
    kinds = (
        f"{columns} columns{', padded keys' if padded else ''}: "
        + ", ".join(least_queries(*item) for item in regions.items())
        for (columns, padded), (regions, _) in FASTER[capability].items()
    )
    return (
        "attention processors call oxiwarp.attention, with other last bits, where it was faster than torch's on an "
        f"{MEASURED[capability]['gpu']}; by a head's columns, with so many keys or more from so many queries (of all "
        "heads) on: " + "; ".join(kinds) + "; and at some sizes that were measured below these"
    )


def least_queries(keys: int, region: Region) -> str:
    """From how many queries on ours was the faster with so many keys or more: "128 keys: 512 (6144)"."""
    return f"{keys} keys: " + (" or ".join(f"{queries} ({of_all})" for queries, of_all in region) or "none")


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
    out: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """diffusers' `dispatch_attention_fn` for `[B, S, H, D]`: ours, unless a backend was chosen for the model, another
    than torch's for all of them, SDPA was replaced, or there is a dropout or a causal mask among the options.

    `out` is where the result should be; only ours writes to it, and returns it.
    """
    from diffusers.models.attention_dispatch import (
        AttentionBackendName,
        _AttentionBackendRegistry,
        dispatch_attention_fn,
    )

    active, _ = _AttentionBackendRegistry.get_active_backend()
    native = backend is None and active is AttentionBackendName.NATIVE
    plain = native and parallel_config is None and not any(options.values()) and F.scaled_dot_product_attention is SDPA
    if plain and is_ours(how, query, key, value, attn_mask, 1):
        attended: Any = attention(query, key, value, mask=attn_mask, out=out)
        return attended
    options |= {"attn_mask": attn_mask, "backend": backend, "parallel_config": parallel_config}
    return dispatch_attention_fn(query, key, value, **options)


def sdpa(
    how: Any, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """`F.scaled_dot_product_attention` for `[B, H, S, D]`: ours under the conditions of `dispatched`."""
    plain = not any(options.values()) and F.scaled_dot_product_attention is SDPA
    if plain and is_ours(how, query, key, value, attn_mask, 2):
        attended: Any = attention(query, key, value, mask=attn_mask, layout="bhsd")
        return attended
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)


def is_ours(how: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tokens: int) -> bool:
    """Whether ours runs; `tokens` is the dimension of the tokens. Training keeps torch's attention."""
    if not (how.attention and query.is_cuda) or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    if mask is not None and (mask.dim() != 4 or mask.shape[2] != 1 or type(mask) not in PLAIN):
        return False
    sizes = FASTER.get(how.attention, {}).get((query.shape[-1], mask is not None), NOWHERE)
    if not was_faster(sizes, query.shape[tokens], key.shape[tokens], math.prod(query.shape[:-1])):
        return False
    three = (query, key, value)
    return not needs_grad(*three) and all(type(x) in PLAIN and x.dtype == query.dtype for x in three)


def was_faster(sizes: Sizes, queries: int, keys: int, of_all: int) -> bool:
    """Whether ours was, from no more keys and queries on; or at this very size. torch.compile guards on each comparison
    of a dynamic size, so there are few of them."""
    regions, alone = sizes
    found: Region = ()
    for least, region in regions.items():
        if keys < least:
            break
        found = region
    for corner in found:
        if queries >= corner[0] and of_all >= corner[1]:
            return True
    for measured_keys, by_queries in alone.items():
        if keys == measured_keys:
            for measured_queries, measured_of_all in by_queries.items():
                if queries == measured_queries:
                    return of_all in measured_of_all
    return False


__all__ = ["attention_note", "dispatched", "mask_of_heads", "measured", "sdpa"]
