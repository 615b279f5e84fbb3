"""`oxiwarp.attention` as an attention implementation of transformers.

import oxiwarp.transformers_attention

oxiwarp.transformers_attention.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="oxiwarp", dtype=torch.bfloat16)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ops import attention
from .ops._register import FLOATS, needs_grad

NAME = "oxiwarp"
SDPA = torch._C._nn.scaled_dot_product_attention
"""What `F.scaled_dot_product_attention` is as long as no other function replaces it."""
CONTEXT_PARALLEL = "torch.distributed.tensor.experimental."
"""Package of the function that replaces it within torch's `context_parallel`."""
REFUSED = {"s_aux": "no sinks", "cache": "no paged cache"}


def register() -> None:
    """Make "oxiwarp" a value of `attn_implementation`. Masks come as for SDPA: none where causal says it all."""
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
    """What a model's attention calls: `query` `[B, H, Sq, D]`, `key` and `value` `[B, Hkv, Sk, D]` in float16 or
    bfloat16; the result is `[B, Sq, H, D]`. Values may be narrower than keys, and the result is then as narrow (the
    attention of DeepSeek's models). A window is part of the mask. Under torch.autocast all are cast to its dtype, as
    for `F.scaled_dot_product_attention`.

    Causal without a mask is as SDPA's: the first query stands at the first key. With more keys the rest are free slots
    of a static cache; after earlier tokens there is a mask.

    Other arguments, such as packed sequences for FlashAttention, say what the mask says as well: they are not looked
    at, as in transformers' function for SDPA.

    Raises RuntimeError with what the kernels do not have: a dropout, sinks of attention, a paged cache, a gradient for
    the bias of positions; and within torch's `context_parallel`, where each rank has only a part of the keys.
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
    if columns < key.shape[-1]:  # columns of zeros change nothing
        value = F.pad(value, (0, key.shape[-1] - columns))
    out: Any = attention(query, key, value, causal=causal, scale=scaling, mask=mask, softcap=softcap, layout="bhsd")
    return out[..., :columns].transpose(1, 2).contiguous(), None


def autocast(device_type: str, *tensors: Any) -> list[Any]:
    """The tensors as torch.autocast hands them to an operator of its lower precision: float64 and truth values stay."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):  # torch knows no autocast of meta tensors
        return list(tensors)
    dtype = torch.get_autocast_dtype(device_type)
    return [x.to(dtype) if x is not None and x.dtype in FLOATS else x for x in tensors]


def check(dropout: float, position_bias: Tensor | None, others: dict[str, Any]) -> None:
    """Raise RuntimeError for arguments that would change the result and that the kernels do not have."""
    if dropout:
        raise RuntimeError(f"oxiwarp: attention_dropout is {dropout}, and the attention has none: set it to 0")
    for name, lacking in REFUSED.items():
        if others.get(name) is not None:
            raise RuntimeError(f"oxiwarp: the model gives {name}, and the attention has {lacking}")
    if position_bias is not None and needs_grad(position_bias):
        raise RuntimeError("oxiwarp: position_bias needs a gradient, and the attention has none for it")


def check_context_parallel() -> None:
    """Raise RuntimeError within torch's `context_parallel`: this attention does not exchange keys between ranks."""
    if (getattr(F.scaled_dot_product_attention, "__module__", None) or "").startswith(CONTEXT_PARALLEL):
        raise RuntimeError(
            "oxiwarp: torch's context_parallel is active, and the attention sees the keys of one rank only: set "
            'attn_implementation to "sdpa"'
        )


def biased(mask: Tensor | None, position_bias: Tensor) -> Tensor:
    """The bias as a mask, where `mask` says that a key is seen; one that is added itself is added."""
    if mask is None:
        return position_bias
    if mask.dtype == torch.bool:
        return torch.where(mask, position_bias, torch.finfo(position_bias.dtype).min)
    return position_bias + mask


def first_at_first(query: Tensor, key: Tensor) -> Tensor:
    """The causal mask of SDPA; `oxiwarp.attention` puts the last query at the last key."""
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()


__all__ = ["NAME", "forward", "register"]
