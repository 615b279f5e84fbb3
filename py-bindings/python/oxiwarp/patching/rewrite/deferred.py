"""Placeholders for tensors that are not computed yet, such as norms of queries and keys.

In a rewritten method, the call that replaces the norm of a query or key returns a `Normed`, a placeholder for the
result. The function that replaces the rotary embedding then computes norm and rotation in one kernel. If no kernel
supports both, this function first computes the norm, with a kernel for norms or with the norm's module.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ... import ops
from ..fusions.core.modules import is_exactly
from ..fusions.core.operands import as_rows
from .operands import FLOAT, Norm, norm_of, unusable

ELEMENTWISE = ("llama_rms_norm", "mochi_rms_norm")
"""The norms that models compute with elementwise operations, whose results have the strides of the operand."""

compiling = torch.compiler.is_compiling


class Deferred:
    """A placeholder for a tensor that is not computed yet, such as queries or keys."""

    __slots__ = ()
    shape: torch.Size
    dtype: torch.dtype

    def parts(self, tokens: int) -> list[Any] | None:
        """If this tensor is a concatenation along the dimension `tokens`, return its operands. Otherwise return
        None.

        An operand is a tensor, or a placeholder for a tensor that is not computed yet.
        """
        raise NotImplementedError

    def now(self) -> Tensor:
        """Compute and return the tensor, with a kernel if one supports the operands, otherwise with the
        original expression."""
        raise NotImplementedError


class Normed(Deferred):
    """A placeholder for a norm that is not computed yet, or for a view of the norm's result."""

    def __init__(
        self, module: nn.Module, norm: Norm, own: Tensor, wide: bool, name: str, x: Tensor, views: Any
    ) -> None:
        self.module, self.norm, self.own, self.wide, self.x = module, norm, own, wide, x
        self.name = name
        """The name that the argument `norm` of `oxiwarp.qk_norm_rope` has for this norm."""
        self.views: tuple[tuple[str, tuple[Any, ...]], ...] = views
        """Names and arguments of the view methods, such as `transpose`, that turn `own` into the view `x`."""
        self.shape, self.dtype = x.shape, x.dtype

    def viewed(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return a `Normed` for a view of the norm's result. The view is the result of the tensor method
        `name` with the arguments `args`."""
        x, views = getattr(self.x, name)(*args), (*self.views, (name, args))
        return Normed(self.module, self.norm, self.own, self.wide, self.name, x, views)

    def transpose(self, first: int, second: int) -> Any:
        """Exchange two dimensions, as `Tensor.transpose` does. If one of them is the last dimension, compute
        the norm first."""
        if self.x.dim() - 1 in (first % self.x.dim(), second % self.x.dim()):
            return self.now().transpose(first, second)
        return self.viewed("transpose", (first, second))

    def unflatten(self, dim: int, sizes: Any) -> Any:
        """Split the last dimension into heads, as `Tensor.unflatten` does. The norm still covers all heads of
        a token together.

        If another dimension is split, compute the norm first.
        """
        if self.x.dim() != 3 or dim % 3 != 2 or len(sizes) != 2:
            return self.now().unflatten(dim, sizes)
        return self.viewed("unflatten", (dim, sizes))

    def parts(self, tokens: int) -> list[Any] | None:
        return [self]

    def kernel(self) -> Tensor:
        """Compute the norm with the kernel of `oxiwarp.qk_norm_rope`. Raise RuntimeError if this operator
        rejects the operands."""
        x, swapped = in_memory_order(self)
        weight, bias, eps = self.norm.weight, self.norm.bias, self.norm.eps
        made = ops.qk_norm_rope(as_rows(x), norm=self.name, q_weight=weight, q_bias=bias, eps=eps)
        return self.seen(made.transpose(1, 2) if swapped else made)

    def seen(self, made: Tensor) -> Tensor:
        """Apply the recorded views to the result of the norm."""
        for name, args in self.views:
            made = getattr(made, name)(*args)
        return made

    def original(self) -> Tensor:
        """Compute the norm with the module."""
        return self.seen(original(self.module, self.own, self.wide))

    def now(self) -> Tensor:
        # Under torch.compile, Inductor computes a norm without a rotation.
        if self.own.dim() not in (3, 4) or compiling():
            return self.original()
        # The kernel of `qk_norm_rope` adds the squares of a row in the same order as the norm module does.
        # Therefore, it gives the same bits.
        try:
            return self.kernel()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return self.original()

    @property
    def across_heads(self) -> bool:
        """Whether the norm covers all heads of a token together."""
        return self.own.shape[-1] != self.x.shape[-1]

    def kind(self) -> tuple[str, float, bool]:
        """Return the arguments `norm`, `eps` and `across_heads` for `oxiwarp.qk_norm_rope`."""
        return self.name, self.norm.eps, self.across_heads


def name_of(norm: Norm, module: nn.Module, x: Tensor, wide: bool) -> str | None:
    """Return the name that the argument `norm` of `oxiwarp.qk_norm_rope` has for the norm of `x`, or None if the
    operator does not support the norm.
    """
    kind, weight, bias, _, offset, rounding = norm
    columns, dtype = x.shape[-1:], x.dtype
    if offset or (weight is not None and (weight.shape != columns or weight.dtype != dtype)):
        return None
    if bias is not None and (bias.shape != columns or bias.dtype != dtype):
        return None
    # The module gets a float32 input and a weight of another dtype, so torch computes the norm with
    # several operations, as in Mochi.
    if wide and dtype != FLOAT:
        return "mochi_rms_norm" if weight is not None and is_exactly(module, nn.RMSNorm) else None
    if kind == "layer_norm":
        return "layer_norm" if is_exactly(module, nn.LayerNorm) else None
    if isinstance(module, nn.RMSNorm) and is_exactly(module, nn.RMSNorm):
        return "rms_norm" if rounding == "once" else None
    return "llama_rms_norm" if rounding == "before_weight" or dtype == FLOAT else "mochi_rms_norm"


def in_memory_order(norm: Normed) -> tuple[Tensor, bool]:
    """Return the norm's input, and whether its dimensions 1 and 2 were exchanged.

    They are exchanged if they have the other order in memory, as in queries `[B, H, S, D]` that are a view of
    `[B, S, H, D]`, and if the original norm keeps this order. torch's own norms return contiguous results.
    """
    x = norm.own
    swapped = norm.name in ELEMENTWISE and x.dim() == 4 and x.stride(1) < x.stride(2)
    return (x.transpose(1, 2) if swapped else x), swapped


def both_norms(first: Normed, second: Normed) -> tuple[Tensor, Tensor] | None:
    """Compute two norms with one kernel. Return None if no kernel computes both."""
    (x, swapped), (y, other_swapped) = in_memory_order(first), in_memory_order(second)
    alike = (first.name, first.norm.eps, swapped) == (second.name, second.norm.eps, other_swapped)
    if not alike or x.dtype != y.dtype or x.dim() not in (3, 4) or x.shape != y.shape:
        return None
    weights: dict[str, Any] = {"q_weight": first.norm.weight, "k_weight": second.norm.weight}
    biases: dict[str, Any] = {"q_bias": first.norm.bias, "k_bias": second.norm.bias}
    made = ops.qk_norm_rope(as_rows(x), as_rows(y), norm=first.name, eps=first.norm.eps, **weights, **biases)
    made = [one.transpose(1, 2) if swapped else one for one in made]
    return first.seen(made[0]), second.seen(made[1])


class Joined(Deferred):
    """A placeholder for a concatenation of queries, or of keys, that is not computed yet."""

    def __init__(self, held: list[Any], dim: int) -> None:
        self.held, self.dim = held, dim % len(held[0].shape)
        shape = list(held[0].shape)
        for one in held[1:]:  # no `sum`: see `broadcasts` in operands.py
            shape[self.dim] += one.shape[self.dim]
        self.shape, self.dtype = torch.Size(shape), held[0].dtype

    def parts(self, tokens: int) -> list[Any] | None:
        return self.held if self.dim == tokens else None

    def now(self) -> Tensor:
        return torch.cat([computed(one) for one in self.held], self.dim)


class Rotated(Deferred):
    """A placeholder for a rotated query or key (RoPE) that is not computed yet.

    The call `run(out)` rotates the query and the key together, and returns both. `own` is the index of this tensor in
    the returned pair.
    """

    __slots__ = ("dtype", "heads", "held", "own", "run", "shape")

    def __init__(self, heads: tuple[Any, Any], own: int, run: Callable[[Any], Any], held: list[Any]) -> None:
        self.heads, self.own, self.run, self.held = heads, own, run, held
        self.shape, self.dtype = heads[own].shape, heads[own].dtype

    def now(self) -> Tensor:
        if not self.held:
            self.held[:] = self.run(None)
        made: Tensor = self.held[self.own]
        return made


class LaterActivation(Deferred):
    """A placeholder for an activation of `x` that is not computed yet. The operator `op` will compute the
    activation."""

    __slots__ = ("dtype", "mode", "op", "shape", "x")

    def __init__(self, op: Callable[..., Tensor], x: Tensor, mode: str) -> None:
        self.op, self.x, self.mode, self.dtype = op, x, mode, x.dtype
        # If the operator multiplies two halves of the columns, the result has half as many columns.
        share = 2 if op.__name__.endswith("_and_mul") else 1
        self.shape = torch.Size((*x.shape[:-1], x.shape[-1] // share))

    def now(self) -> Tensor:
        return self.op(self.x, mode=self.mode)


class LaterSum(Deferred):
    """A placeholder for a sum that is not computed yet. If the sum is normalised next, one kernel may compute
    sum and norm.

    `own` is the original expression as a function of its operands `terms`. `options` are the arguments of
    `Calls.sum_and_norm` that are fixed when the method is rewritten.
    """

    __slots__ = ("at", "device", "dtype", "ndim", "options", "own", "run", "shape", "terms", "total")

    def __init__(self, at: Any, own: Any, options: Any, terms: dict[str, Any], run: Callable[..., Any]) -> None:
        x = terms["x"]
        self.at, self.own, self.options, self.terms, self.run = at, own, options, terms, run
        self.shape, self.dtype, self.device, self.ndim = x.shape, x.dtype, x.device, x.dim()
        self.total: Any = None

    def now(self) -> Any:
        if self.total is None:
            self.total = self.run(self.at, self.own, self.options, **self.terms)
            self.terms = {}
        return self.total


def given(x: Tensor) -> LaterSum:
    """Return a `LaterSum` whose sum is computed already: the tensor `x`."""
    made = LaterSum(None, None, ("plain_sum",), {"x": x}, computed)
    made.total, made.terms = x, {}
    return made


def computed(x: Any) -> Any:
    """If `x` is a `Deferred` (a placeholder for a tensor), compute and return the tensor. Return any other
    value unchanged."""
    return x.now() if isinstance(x, Deferred) else x


def computed_pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Return `computed(x)` and `computed(y)`. If both are norms of the same kind, one kernel computes them."""
    made = None
    if isinstance(x, Normed) and isinstance(y, Normed):
        if compiling():
            made = both_norms(x, y)
        else:
            try:
                made = both_norms(x, y)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                made = None
    return (computed(x), computed(y)) if made is None else made


def joined(cat: Callable[..., Any], tensors: Any, dim: int = 0) -> Any:
    """Return `torch.cat(tensors, dim)`. If one of the tensors is not computed yet, return a `Joined` (a
    placeholder for the result) where possible."""
    if any([isinstance(one, Deferred) for one in tensors]):
        first = tensors[0].shape
        plain = all([isinstance(one, Normed | Tensor) and one.dtype == tensors[0].dtype for one in tensors])
        at = dim % len(first)
        shapes = [(*one.shape[:at], *one.shape[at + 1 :]) for one in tensors]
        if plain and cat is torch.cat and at != len(first) - 1 and all([shape == shapes[0] for shape in shapes]):
            return Joined(list(tensors), dim)
    return cat([computed(one) for one in tensors], dim)


def deferred(module: Any, x: Any, cpu_kernels: bool, wide: bool) -> Any:
    """If `oxiwarp.qk_norm_rope` may compute the norm of `x`, return a `Normed` (a placeholder for the
    result). Otherwise compute and return the norm.

    The norm is `module(x)`, or `module(x.float()).type_as(x)` if `wide` is True.
    """
    if unusable(x, cpu_kernels, permuted=True):
        return original(module, x, wide)
    norm = norm_of(module, x, wide=False, modulated=False)
    name = name_of(norm, module, x, wide) if isinstance(norm, Norm) else None
    return original(module, x, wide) if name is None else Normed(module, norm, x, wide, name, x, ())  # type: ignore[arg-type]


def original(module: Any, x: Any, wide: bool = False) -> Any:
    """Compute a norm by calling its module. If `wide` is True, cast the input to float32, and cast the result
    back."""
    return module(x.float()).type_as(x) if wide else module(x)


def rejected(x: Any, cpu_kernels: bool) -> str | None:
    """Return the reason why no kernel rotates `x`, or None if there is one. The operator `rope` accepts
    tensors with permuted dimensions, unlike other operators.
    """
    if isinstance(x, Deferred):
        return None
    return unusable(x, cpu_kernels, permuted=True)


__all__ = [
    "Deferred",
    "Joined",
    "LaterActivation",
    "LaterSum",
    "Normed",
    "Rotated",
    "computed",
    "computed_pair",
    "deferred",
    "given",
    "joined",
    "original",
    "rejected",
]
