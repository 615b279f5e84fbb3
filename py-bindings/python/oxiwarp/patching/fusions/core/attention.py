"""Chooses the attention that attention processors replaced by `patch` call: torch's or `oxiwarp.attention`.

`oxiwarp.attention` runs if `patch` was called with `attention=True` or in mode "fast", and only for sizes at which it
was measured to be faster. Its results and the results of torch's attention backends are rounded differently. So mode
"exact" does not use `oxiwarp.attention` by default.
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

    Return None if the table `FASTER` has no data for this compute capability. `FASTER` lists the sizes at which
    `oxiwarp.attention` is faster than torch's attention.
    """
    if not torch.cuda.is_available():
        return None
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    return capability if capability in FASTER else None


def attention_note(capability: str) -> str:
    """Return a note for the report of `patch`: the sizes for which attention processors call `oxiwarp.attention`."""
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
    """Return a region (sizes above minimum numbers) of the table `FASTER` as text, such as "128 keys: 512 (6144)".

    This example means: each head has at least 128 keys and at least 512 queries, and all batches and heads together
    have at least 6144 queries.
    """
    return f"{keys} keys: " + (" or ".join(f"{queries} ({of_all})" for queries, of_all in region) or "none")


def mask_of_heads(attn: Any, mask: Tensor, source: Tensor) -> Tensor:
    """Return the result of diffusers' `attn.prepare_attention_mask(...)` as `[B, heads, queries or 1, keys]`.

    If the source hash of `attn.prepare_attention_mask` is `PREPARE`, this method only repeats the mask for each head.
    In this case, this function expands the mask without a copy and does not call the method.
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
    """Compute diffusers' `dispatch_attention_fn` for query, key and value of shape `[B, S, H, D]`.

    Call `oxiwarp.attention` if it is enabled and was measured to be faster (`is_ours`). Otherwise, and in the following
    cases, call diffusers' function:

    - A backend is chosen for the model, or the active backend is not torch's.
    - Another tool has replaced `F.scaled_dot_product_attention`.
    - The call has context parallelism, dropout or a causal mask.

    `out` is optional memory for the result. Only `oxiwarp.attention` writes to `out`, and then returns `out`.
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
    """Compute `F.scaled_dot_product_attention` for `[B, H, S, D]`.

    Call `oxiwarp.attention` if it is enabled and was measured to be faster (`is_ours`). But if `options` has a true
    value, or if another tool has replaced `F.scaled_dot_product_attention`, call the function of torch.
    """
    plain = not any(options.values()) and F.scaled_dot_product_attention is SDPA
    if plain and is_ours(how, query, key, value, attn_mask, 2):
        attended: Any = attention(query, key, value, mask=attn_mask, layout="bhsd")
        return attended
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)


def is_ours(how: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tokens: int) -> bool:
    """Return whether to call `oxiwarp.attention` instead of torch's attention. False if autograd records the
    call.

    `how` has the options that the user gave to `patch`. `tokens` is the index of the token dimension in `query` and
    `key`.
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

    `sizes` has two tables: regions, which are given by minimum numbers of queries and keys, and single sizes outside of
    the regions. `queries` and `keys` are the numbers per head. `of_all` is the number of queries in all batches and
    heads together. This function makes few comparisons, because torch.compile adds a guard for each comparison of a
    dynamic size.
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
