"""Registers `oxiwarp.attention` as an attention implementation of transformers.

    import oxiwarp.transformers_attention

    oxiwarp.transformers_attention.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="oxiwarp", dtype=torch.bfloat16)

Importing this module does not import transformers. The function `register` imports transformers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ops import attention
from .ops._register import FLOATS, needs_grad

NAME = "oxiwarp"
SDPA = torch._C._nn.scaled_dot_product_attention
"""The original function `F.scaled_dot_product_attention`. Other code may replace the attribute of `F`."""
CONTEXT_PARALLEL = "torch.distributed.tensor.experimental."
"""Prefix of a module name. torch's `context_parallel` replaces `F.scaled_dot_product_attention` by a function
from this package.
"""
REFUSED = {"s_aux": "no sinks", "cache": "no paged cache"}


def register() -> None:
    """Register "oxiwarp" as a value of `attn_implementation` in transformers.

    transformers then passes the same masks to oxiwarp's attention as to SDPA. If no mask is needed because
    causal attention gives the same result, transformers passes None.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention for a transformers model: `softmax(scaling * query @ key.T + mask) @ value`.

    transformers calls this function. Its parameters are defined by transformers' attention interface.

    Args:
        module (nn.Module): attention module. If the argument `is_causal` is None, the attribute
            `module.is_causal` is used.
        query (Tensor): float16 or bfloat16, shape `[B, H, Sq, D]`. Under torch.autocast, all floating-point
            inputs are cast to the dtype of autocast, as for `F.scaled_dot_product_attention`.
        key (Tensor): shape `[B, Hkv, Sk, D]`.
        value (Tensor): shape `[B, Hkv, Sk, Dv]` with Dv at most D. For example, Dv is less than D in
            DeepSeek's models.
        attention_mask (Tensor | None): bool or additive mask. If the model has a sliding window, the mask
            hides the keys outside the window.
        dropout (float): must be 0.
        scaling (float | None): factor of the scores. Default: `1 / sqrt(D)`.
        is_causal (bool | None): if True and `attention_mask` is None, compute causal attention. As in SDPA, the first
            query has the position of the first key. If there are keys after the position of the last query, no query
            attends to them: they are unused slots of a static KV cache. A single query attends to all keys.
        softcap (float | None): limit of the scores, as for `oxiwarp.attention`.
        position_bias (Tensor | None): bias that is added to the scores, as in T5.
        **others: further arguments of transformers. Arguments that describe packed sequences for
            FlashAttention are ignored, as in the SDPA function of transformers. The mask contains the same
            information.

    Returns:
        `(out, None)`. `out` is a contiguous Tensor of shape `[B, Sq, H, Dv]`. None stands for the attention
        probabilities, which this function does not return.

    Raises:
        RuntimeError: The model needs dropout, attention sinks, a paged cache or a gradient of
            `position_bias`. Also raised within torch's `context_parallel`, because each rank then has only
            some of the keys.
    """
    check(dropout, position_bias, others)
    if F.scaled_dot_product_attention is not SDPA:
        check_context_parallel()
    causal = attention_mask is None and query.shape[2] > 1
    causal = bool(causal and (getattr(module, "is_causal", True) if is_causal is None else is_causal))
    queries, keys = query.shape[2], key.shape[2]
    if causal and keys > queries:
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    elif causal and keys < queries:
        attention_mask, causal = first_at_first(query, key), False
    if position_bias is not None:
        attention_mask = biased(first_at_first(query, key) if causal else attention_mask, position_bias)
        causal = False
    query, key, value, mask = autocast(query.device.type, query, key, value, attention_mask)
    columns = value.shape[-1]
    # The kernel needs as many value columns as query columns. Add columns of zeros, which the last line
    # removes.
    if columns < key.shape[-1]:
        value = F.pad(value, (0, key.shape[-1] - columns))
    out: Any = attention(query, key, value, causal=causal, scale=scaling, mask=mask, softcap=softcap, layout="bhsd")
    return out[..., :columns].transpose(1, 2).contiguous(), None


def autocast(device_type: str, *tensors: Any) -> list[Any]:
    """Return the tensors, cast as torch.autocast casts the arguments of matrix products. Without autocast,
    they are unchanged.

    float64 and bool tensors are not cast.
    """
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):  # torch has no autocast for meta
        return list(tensors)
    dtype = torch.get_autocast_dtype(device_type)
    return [x.to(dtype) if x is not None and x.dtype in FLOATS else x for x in tensors]


def check(dropout: float, position_bias: Tensor | None, others: dict[str, Any]) -> None:
    """Raise RuntimeError if an argument that the kernels do not support would change the result."""
    if dropout:
        raise RuntimeError(f"oxiwarp: attention_dropout is {dropout}, and the attention has none: set it to 0")
    for name, lacking in REFUSED.items():
        if others.get(name) is not None:
            raise RuntimeError(f"oxiwarp: the model gives {name}, and the attention has {lacking}")
    if position_bias is not None and needs_grad(position_bias):
        raise RuntimeError("oxiwarp: position_bias needs a gradient, and the attention has none for it")


def check_context_parallel() -> None:
    """Raise RuntimeError if torch's `context_parallel` is active. Each rank then has only some of the keys,
    and `oxiwarp.attention` does not exchange keys between ranks.
    """
    if (getattr(F.scaled_dot_product_attention, "__module__", None) or "").startswith(CONTEXT_PARALLEL):
        raise RuntimeError(
            "oxiwarp: torch's context_parallel is active, and the attention sees the keys of one rank only: set "
            'attn_implementation to "sdpa"'
        )


def biased(mask: Tensor | None, position_bias: Tensor) -> Tensor:
    """Combine `position_bias` and `mask` into one additive mask.

    A bool `mask` is True for the keys that a query attends to. For the other keys, the result is the minimum
    of the dtype of `position_bias`. An additive `mask` is added to `position_bias`.
    """
    if mask is None:
        return position_bias
    if mask.dtype == torch.bool:
        return torch.where(mask, position_bias, torch.finfo(position_bias.dtype).min)
    return position_bias + mask


def first_at_first(query: Tensor, key: Tensor) -> Tensor:
    """Return a causal bool mask as in SDPA: the first query has the position of the first key.

    In `oxiwarp.attention` with `causal=True`, the last query has the position of the last key instead.
    """
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()


__all__ = ["NAME", "forward", "register"]
