"""Fusions for diffusers' activation modules (models/activations.py), which apply a linear and then an
activation.

A fusion is a hand-written method that replaces a method of a model's class. If it was measured to be faster (see
`core/linear.py`), one kernel of `oxiwarp.linear` computes the linear and the activation. Otherwise, in mode "exact",
the new `forward` calls the linear, and one kernel computes the activation. In mode "fast", if the activation is
`GELU(approximate="tanh")`, one cuBLASLt matrix multiplication computes both. It adds the bias and applies the GELU in
its epilogue, so the result is rounded once. The module `LinearActivation`, which applies a SiLU, is not replaced,
because torch's SiLU is as fast as a kernel of oxiwarp.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ....ops._register import FLOATS, PLAIN, may_write, needs_grad
from ...class_swap import RECIPE, is_ours
from ...sites import Site
from ..core.fusion import Fusion
from ..core.linear import GATED_RESIDUAL, LaterLinear, later, may_defer
from ..core.modules import hooked, idle, resident
from ..core.ops import gated_residual, geglu, gelu, gelu_quick, gelu_tanh, silu_and_mul, swiglu
from ..core.recipe import FusedRecipe

MODULE = "diffusers.models.activations"
FEW = 16
"""A gate counts as few values if the residual has at least this many times as many."""
FEED_FORWARD = "basic.feed_forward"
"""Name of the fusion for `FeedForward` of diffusers."""


def gelu_block(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """Compute the result of `GELU.forward` with oxiwarp's kernels."""
    op, kind = (gelu_tanh, "gelu_tanh") if self.approximate == "tanh" else (gelu, "gelu")
    if (product := later(how, kind, self.proj, hidden_states)) is not None:
        return product.activated(op)
    if how.mode == "fast" and self.approximate == "tanh" and in_epilogue(self.proj, hidden_states):
        return gelu_product(self.proj, hidden_states)
    projected = self.proj(hidden_states)
    if not packed(projected):
        return self.gelu(projected)
    return op(projected, mode=how.mode)


def gelu_product(proj: nn.Linear, x: Tensor) -> Tensor:
    """Apply the linear `proj` and the tanh approximation of GELU to `x` in one matrix multiplication."""
    made = torch._addmm_activation(proj.bias, x.reshape(-1, x.shape[-1]), proj.weight.t(), use_gelu=True)
    return made.view(*x.shape[:-1], made.shape[-1])


def in_epilogue(proj: nn.Module, x: Tensor) -> bool:
    """Return whether one cuBLASLt matrix multiplication may compute the linear `proj` and the GELU after it.

    Return False if the linear has hooks, is of a subclass, or has no bias. Also return False for float32, and if
    autograd or vmap is active.
    """
    if type(proj) is not nn.Linear or proj.bias is None or hooked(proj) or not x.is_cuda or x.numel() == 0:
        return False
    # No float32: on an H200, the float32 matrix multiplication with a fused activation has twenty times the
    # error of the separate torch operations. Both errors are measured against float64.
    if x.dtype == torch.float32:
        return False
    if not (x.dtype == proj.weight.dtype == proj.bias.dtype) or needs_grad(x, proj.weight, proj.bias):
        return False
    return may_write(x) and resident(x.device, proj.weight, proj.bias)


def geglu_block(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """Compute the result of `GEGLU.forward` with oxiwarp's kernels."""
    if (product := later(how, "geglu", self.proj, hidden_states)) is not None:
        return product.activated(geglu)
    projected = self.proj(hidden_states)
    if packed(projected):
        return geglu(projected, mode=how.mode)
    first, gate = projected.chunk(2, dim=-1)
    return first * self.gelu(gate)


def swiglu_block(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """Compute the result of `SwiGLU.forward` with oxiwarp's kernels."""
    if (product := later(how, "swiglu", self.proj, hidden_states)) is not None:
        return product.activated(swiglu)
    projected = self.proj(hidden_states)
    if packed(projected):
        return swiglu(projected, mode=how.mode)
    first, gate = projected.chunk(2, dim=-1)
    return first * self.activation(gate)


def quick_block(self: Any, how: FusedRecipe, x: Tensor) -> Tensor:
    """Compute the result of `ApproximateGELU.forward` with oxiwarp's kernels."""
    if (product := later(how, "gelu_quick", self.proj, x)) is not None:
        return product.activated(gelu_quick)
    projected = self.proj(x)
    return gelu_quick(projected, mode=how.mode) if packed(projected) else projected * torch.sigmoid(1.702 * projected)


def silu_and_mul_block(self: Any, how: FusedRecipe, x: Tensor) -> Tensor:
    """Compute the result of `Flux2SwiGLU.forward` with oxiwarp's kernels."""
    return silu_and_mul(x, mode=how.mode)


def later_branch(
    how: Any, module: Any, x: Tensor, kind: str = GATED_RESIDUAL, site: Site | None = None
) -> Tensor | LaterLinear:
    """Return `module(x)`, the branch that `add_branch` then adds to a residual. If `oxiwarp.linear` may compute the
    last linear of the module together with the sum, return a placeholder for this linear instead.

    A placeholder is possible for a linear and for a patched `FeedForward` of diffusers. This function runs all modules
    of the `FeedForward` except the last linear. Any other module is called. `how`, `kind` and `site` are the arguments
    of the function `later`, which makes the placeholder.
    """
    if not may_defer():
        return module(x)
    if is_feed_forward(module):
        *first, module = [part for part in module.net if not idle(part)]
        x = in_turn(first, x)
    product = later(how, kind, module, x, site)
    return module(x) if product is None else product


def is_feed_forward(module: Any) -> bool:
    """Return whether `module` is a `FeedForward` of diffusers without hooks, whose `forward` was replaced by `patch`.
    Its submodules may then be called one by one.
    """
    recipe = getattr(module, "__dict__", {}).get(RECIPE)
    known = type(recipe) is FusedRecipe and recipe.fusion == FEED_FORWARD and is_ours(type(module))
    return known and not hooked(module) and not hooked(module.net) and module._compiled_call_impl is None


def add_branch(
    how: FusedRecipe,
    x: Tensor,
    branch: Tensor | LaterLinear,
    gate: Tensor,
    *,
    gate_table: Tensor | None = None,
    clip: bool = False,
) -> Tensor:
    """Compute `x + gate * branch`. If `branch` is a placeholder for the result of a linear, also compute this linear,
    if possible in the same kernel.

    The arguments are those of the operator `gated_residual`.
    """

    def separate(y: Tensor) -> Tensor:
        made: Tensor = gated_residual(x, y, gate, gate_table=gate_table, clip=clip, mode=how.mode)
        return made

    if not isinstance(branch, LaterLinear):
        return separate(branch)
    # A fused linear needs the sum of gate and `gate_table` in advance. If each token has its own gate, this
    # sum takes as long as the kernel that the fusion would save.
    if clip or (gate_table is not None and FEW * gate.numel() > x.numel()):
        return separate(branch.now())
    # Round the sum of gate and table to their dtype, as the model and the operator `gated_residual` do.
    return branch.added(x, gate if gate_table is None else gate + gate_table, separate)


def in_turn(modules: Any, x: Tensor) -> Tensor:
    """Apply `modules` to `x` one after another. Omit a Dropout that would return its input unchanged."""
    for module in modules:
        if not idle(module):
            x = module(x)
    return x


def packed(projected: Any) -> bool:
    """Return whether the kernels support the dtype and layout of `projected`, the result of a linear. With LoRA or
    quantisation, a linear may return another dtype or layout.
    """
    return type(projected) in PLAIN and projected.dtype in FLOATS and projected.is_contiguous()


def accepts_one(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the call has exactly one argument, the input of the feed-forward.

    This check runs before the linear. The fused method checks the dtype and layout of the linear's result
    later, with `packed`.
    """
    return len(args) + len(kwargs) == 1


def accepts_halves(self: Any, x: Tensor) -> bool:
    """Return whether the kernel can read `x`: the last dimension has an even size, and `x` is contiguous.

    A tensor of up to three dimensions may also be a slice whose last dimension has stride 1.
    """
    return x.dim() > 0 and x.shape[-1] % 2 == 0 and x.stride(-1) == 1 and (x.dim() <= 3 or x.is_contiguous())


def fits_gelu(self: Any) -> str | None:
    """Return the reason not to replace the GELU module, or None if its attribute `approximate` is "none" or
    "tanh"."""
    return None if self.approximate in ("none", "tanh") else f"its approximate is {self.approximate!r}"


def fits_swiglu(self: Any) -> str | None:
    """Return None if the gate activation of the SwiGLU module is a SiLU. Otherwise, return the reason why
    `patch` cannot replace the SwiGLU module."""
    gate = self.activation if hasattr(self, "activation") else self.gate_fn
    return None if type(gate) is nn.SiLU else f"its gate is a {type(gate).__name__}, expected SiLU"


FUSIONS = (
    Fusion(
        name="feed_forward.gelu",
        classes=(f"{MODULE}.GELU",),
        run=gelu_block,
        accepts=accepts_one,
        fits=fits_gelu,
        sources={"forward": ("c222df871f75",), "gelu": ("76724fca0a7c",)},
        chains=("GELU: gelu", "GELU, tanh (mode fast, no gradient: in the linear's epilogue): gelu_tanh"),
    ),
    Fusion(
        name="feed_forward.geglu",
        classes=(f"{MODULE}.GEGLU",),
        run=geglu_block,
        accepts=accepts_one,
        sources={"forward": ("9bf39bdecf44",), "gelu": ("f472e2dcaa7a",)},
        chains=("GELU of the second half, product: geglu",),
    ),
    Fusion(
        name="feed_forward.swiglu",
        classes=(f"{MODULE}.SwiGLU",),
        run=swiglu_block,
        accepts=accepts_one,
        fits=fits_swiglu,
        skips=("activation",),
        sources={"forward": ("4463ee70089e",)},
        chains=("SiLU of the second half, product: swiglu",),
    ),
    Fusion(
        name="feed_forward.gelu_quick",
        classes=(f"{MODULE}.ApproximateGELU",),
        run=quick_block,
        accepts=accepts_one,
        sources={"forward": ("bd990f7b26a3",)},
        chains=("x * sigmoid(1.702 x): gelu_quick",),
    ),
    Fusion(
        name="feed_forward.silu_and_mul",
        classes=("diffusers.models.transformers.transformer_flux[23].Flux[23]SwiGLU",),
        run=silu_and_mul_block,
        accepts=accepts_halves,
        fits=fits_swiglu,
        skips=("gate_fn",),
        sources={"forward": ("10a68f258ccb",)},
        chains=("SiLU of the first half, product: silu_and_mul",),
    ),
)
