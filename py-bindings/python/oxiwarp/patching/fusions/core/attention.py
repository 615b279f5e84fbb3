"""Chooses the attention function for the attention processors that `patch` replaced: `oxiwarp.attention` or
torch's function.

The options `attention=True` and `mode="fast"` of `patch` enable `oxiwarp.attention`. It then runs for the numbers of
queries and keys for which it was measured to be faster. It rounds differently from torch's attention backends, so
`mode="exact"` does not enable it.
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
"""The original `F.scaled_dot_product_attention`. torch's `context_parallel` replaces that attribute."""
# Fingerprint (source hash) of diffusers' `AttentionModuleMixin.prepare_attention_mask`.
PREPARE = "747a2a6ba451"


def measured() -> str | None:
    """Return the compute capability of the current GPU, such as "9.0".

    Return None if there is no GPU, or if the table `FASTER` has no entry for its compute capability. `FASTER`
    lists the numbers of queries and keys for which `oxiwarp.attention` is faster than torch's attention.
    """
    if not torch.cuda.is_available():
        return None
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    return capability if capability in FASTER else None


def attention_note(capability: str) -> str:
    """Return a note for the report of `patch`: for which numbers of queries and keys attention processors
    call `oxiwarp.attention`."""
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
    """Return an entry of the table `FASTER` as text, such as "128 keys: 512 (6144)".

    This example means that `oxiwarp.attention` runs if each head has at least 128 keys and 512 queries, and all batches
    and heads together have at least 6144 queries.
    """
    return f"{keys} keys: " + (" or ".join(f"{queries} ({of_all})" for queries, of_all in region) or "none")


def mask_of_heads(attn: Any, mask: Tensor, source: Tensor) -> Tensor:
    """Return the attention mask that diffusers' `attn.prepare_attention_mask` makes of `mask`, with shape
    `[B, heads, queries or 1, keys]`.

    If diffusers' method has the known source hash `PREPARE`, it only repeats the mask for each head. In eager mode,
    this function then expands the mask without a copy instead of calling diffusers' method.
    """
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
    """Compute attention as diffusers' `dispatch_attention_fn` does. Query, key and value have shape `[B, S,
    H, D]`.

    Call `oxiwarp.attention` if it is enabled and was measured to be faster (`is_ours`). Otherwise, call
    `dispatch_attention_fn`. Also call `dispatch_attention_fn` if one of these conditions holds:

    - The user has chosen an attention backend for the model, or the active backend of diffusers is not
      torch's attention.
    - Another tool has replaced `F.scaled_dot_product_attention`.
    - The call has context parallelism, dropout or a causal mask.

    `out` is an optional tensor for the result. If `oxiwarp.attention` runs, it writes its result to `out` and
    returns `out`. `dispatch_attention_fn` does not use `out`.
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
    """Compute attention as `F.scaled_dot_product_attention` does. Query, key and value have shape `[B, H, S,
    D]`.

    Call `oxiwarp.attention` if it is enabled and was measured to be faster (`is_ours`). Otherwise, call
    `F.scaled_dot_product_attention`. Also call `F.scaled_dot_product_attention` if another tool has replaced
    this function, or if an option such as `is_causal` is set.
    """
    plain = not any(options.values()) and F.scaled_dot_product_attention is SDPA
    if plain and is_ours(how, query, key, value, attn_mask, 2):
        attended: Any = attention(query, key, value, mask=attn_mask, layout="bhsd")
        return attended
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)


def is_ours(how: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tokens: int) -> bool:
    """Return whether to call `oxiwarp.attention` instead of torch's attention. If autograd records the call,
    return False.

    `how` has the options that the user gave to `patch`. `tokens` is the index of the token dimension in
    `query` and `key`.
    """
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
    """Return whether `oxiwarp.attention` was measured to be faster for these numbers of queries and keys.

    `sizes` has two tables. The first table has minimum numbers of queries and keys. The second table has single sizes
    below these minimums at which `oxiwarp.attention` was also faster. `queries` and `keys` are numbers per head.
    `of_all` is the number of queries in all batches and heads together. This function makes few comparisons, because
    torch.compile adds a guard for each comparison of a dynamic size.
    """
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
