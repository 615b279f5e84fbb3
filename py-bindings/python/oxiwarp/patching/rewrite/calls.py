"""The functions that rewritten methods call. Each function computes one chain: an expression for which there
may be a kernel.

The kernel runs if it supports the operands and gives the same bits as the original expression. Otherwise the original
expression runs, so that adapters, hooks and other changes of a model keep working. The checks are in `operands.py`, and
a rewritten method itself contains no checks.
"""

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import ops
from ..fusions.core.attention import dispatched, sdpa
from ..fusions.core.linear import LaterLinear, may_defer
from ..fusions.core.operands import as_rows
from ..fusions.shared.feed_forward import later_branch
from ..fusions.shared.residual_layer_norm import zeros
from ..norms.forward import inverse
from ..sites import RAN, Site
from . import operands
from .deferred import computed, computed_pair, joined
from .direct_calls import direct
from .factor_norms import eps_of
from .identities import identity, signature
from .later_calls import At, LaterCalls, Own, rows_of
from .layer_calls import opened
from .masks import mask
from .operands import Norm, branch_and_gate, unmodulated
from .rotary_calls import RotaryCalls
from .traced import Traced

PLAIN_SUM, PLAIN_NORM = ("plain_sum",), ("plain_norm", False)
GELUS = {"none": ops.gelu, "tanh": ops.gelu_tanh}
REPLACED = "a function was replaced after patch"

compiling = torch.compiler.is_compiling
tracing = torch.compiler.is_dynamo_compiling


class Options(NamedTuple):
    """The options of `patch` that the functions of this module use."""

    mode: str
    cpu_kernels: bool
    attention: str | None = None
    """Compute capability of the GPU if `oxiwarp.attention` may replace torch's attention, or None."""


class Calls(LaterCalls, RotaryCalls):
    """The functions that a rewritten method calls. All of them use the same options of `patch`.

    A chain is an expression of the method that one kernel may compute. `sites` has one `Site` (a counter for the report
    of `patch`) for each chain. `linears` has one `Site` for each linear that is an operand of a chain.
    """

    def __init__(self, how: Options, sites: list[Site], linears: Sequence[Site], traced: Traced | None) -> None:
        super().__init__()
        self.how, (self.mode, self.cpu_kernels, _) = how, how
        self.sites, self.linears, self.traced = sites, linears, traced

    def site(self, at: At) -> Site:
        """Return the `Site` (the counter for the report) of a chain."""
        return self.sites[at if isinstance(at, int) else at[0]]

    def replaced(self, at: At) -> str | None:
        """Return None if the functions that the method calls are the same as at the time of `patch`. If another tool
        has replaced one of them, return a text for the report.

        The rewritten method contains the inlined source of functions that the method called at the time of
        `patch`. `at` contains the functions that the original method would call now.
        """
        if isinstance(at, int):
            return None
        known = self.sites[at[0]].functions
        # Dynamo does not trace `getattr(now, "__func__", now)`.
        found = [now.__func__ if isinstance(now, MethodType) else now for now in at[1:]]
        return None if all([now is then for now, then in zip(found, known, strict=True)]) else REPLACED

    def attempt(self, at: At, run: Callable[[], Any]) -> Any:
        """Call `run`, which calls an oxiwarp operator, and return its result. Return None if the operator
        rejects the shapes or strides.

        If the result is None, the caller evaluates the original expression. If torch also rejects the shapes, the user
        gets torch's error.
        """
        if tracing():
            return run()
        try:
            made = run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.site(at).note(str(error).splitlines()[0])
            return None
        self.sites[at if isinstance(at, int) else at[0]].outcomes[RAN] += 1
        return made

    def gated_residual(self, at: At, own: Own, options: tuple[Any, ...], **terms: Any) -> Any:
        """Compute `x + a * b`."""
        if type(terms.get("a")) is LaterLinear or type(terms.get("b")) is LaterLinear:
            return self.sum_with_linear(at, own, options, terms)
        found = self.replaced(at) or self.branch(options, terms)
        if isinstance(found, str):
            self.site(at).note(found)
            return own(**terms)
        y, gate = found
        made = self.attempt(at, lambda: gated_residual(rows_of(terms["x"], y), gate, self.mode))
        return own(**terms) if made is None else made

    def sum_with_linear(self, at: At, own: Own, options: tuple[Any, ...], terms: dict[str, Any]) -> Any:
        """Compute `x + a * b`, where `a` or `b` is a placeholder for a linear, if possible in one kernel."""
        name, other = ("a", "b") if isinstance(terms["a"], LaterLinear) else ("b", "a")
        product, gate, x = terms[name], terms[other], terms["x"]

        def separate(y: Tensor) -> Any:
            return self.gated_residual(at, own, options, **{**terms, name: y})

        why = self.replaced(at) or operands.unusable(x, self.cpu_kernels)
        why = why or operands.misplaced(x, gate, one_column=True)
        # With casts, only a float32 gate and a result of the residual's dtype give one rounding, like the
        # kernel.
        if why is None and (any(options[1]) or "target" in terms):
            result = operands.dtype_of(terms.get("target"))
            why = None if gate.dtype == operands.FLOAT and result == x.dtype else operands.DTYPES
        return separate(product.now()) if why else product.added(x, gate, separate)

    def linear(self, at: int, kind: str, module: Any, x: Any) -> Any:
        """Return `module(x)`. If `module` is a linear, and one kernel may compute it together with the expression that
        reads its result, return a placeholder instead. `kind` names the operations of this expression.
        """
        return later_branch(self.how, module, x, kind, self.linears[at]) if may_defer() else module(x)

    def branch(self, options: tuple[Any, ...], terms: dict[str, Any]) -> tuple[Any, ...] | str:
        """Return `y` and `gate` of a sum `x + gate * y`, or a reason why no kernel computes the sum.

        If the sum is `x + y`, the gate is None. If the sum is like `x + norm(y, torch.tanh(gate))`, also
        return the eps of the norm.
        """
        found = self.known_branch(options, terms)
        if isinstance(found, str) and operands.received(terms):
            return self.known_branch(options, terms)
        return found

    def known_branch(self, options: tuple[Any, ...], terms: dict[str, Any]) -> tuple[Any, ...] | str:
        """Do the same as `branch`, for terms that have been received."""
        x, y = terms["x"], terms.get("y")
        if options[0] == "tanh_sum":
            gate = terms["gate"]
            why = operands.unusable(x, self.cpu_kernels) or operands.misplaced(x, gate)
            if why or not operands.is_like(y, x) or gate.dtype != x.dtype:
                return why or operands.DTYPES
            eps = eps_of(terms["norm"], x)
            return eps if isinstance(eps, str) else (y, gate, eps)
        if options[0] == "plain_sum":
            why = operands.unusable(x, self.cpu_kernels)
            return why or ((y, None) if operands.is_like(y, x) else "the terms differ in shape or dtype")
        x, a, b = terms["x"], terms["a"], terms["b"]
        _, wide, inner = options
        return branch_and_gate(x, a, b, wide, inner, terms.get("target"), self.cpu_kernels)

    def is_scaled(self, options: tuple[Any, ...], terms: dict[str, Any]) -> bool:
        """Return whether a sum is `x + a * b` with a number `a` or `b`."""
        return options[0] == "gated_residual" and two_terms(options, terms) is not None

    def norm(self, options: tuple[Any, ...], given: dict[str, Any]) -> Norm | str:
        """Return the `Norm` (parameters of a norm) for `norm(x) * (1 + scale) + shift` or `norm(x)`, or a
        reason why no kernel computes the expression."""
        norm, x, target = given["norm"], given["x"], given.get("target")
        if options[0] == "plain_norm":
            return unmodulated(norm, x, options[1], target)
        _, wide, inner = options
        scale, shift = given["scale"], given.get("shift")
        return operands.modulated(norm, x, scale, shift, wide, inner, target, self.cpu_kernels)

    def modulated_norm(self, at: At, own: Own, options: tuple[Any, ...], **given: Any) -> Any:
        """Compute `norm(x) * (1 + scale) + shift`."""
        norm = self.replaced(at) or self.norm(options, given)
        if isinstance(norm, str):
            return self.after_norm(at, own, options, norm, given)
        made = self.attempt(at, lambda: ada_norm(norm, as_rows(given["x"]), given, options, self.mode))
        return own(**given) if made is None else made

    def norm_twice(self, at: At, own: Own, own2: Own, **given: Any) -> tuple[Any, Any]:
        """Compute `norm(x) * (1 + scale) + shift` and `norm(x) * (1 + scale2) + shift2`, if possible in one
        kernel."""
        options = "modulated_norm", False, False
        by = {name: given.pop(f"{name}2") for name in ("scale", "shift")}
        both = (own, given), (own2, {**given, **by})
        norm = self.replaced(at) or self.norm(options, given)
        if isinstance(norm, Norm):
            dtypes = {part.dtype for part in (given["scale"], *by.values()) if operands.is_plain(part)}
            why = operands.misplaced(given["x"], *by.values()) or (operands.DTYPES if len(dtypes) > 1 else None)
            run = functools.partial(ada_norm_pair, norm, given, by, self.mode)
            if why is None and (made := self.attempt(at, run)) is not None:
                return made
        else:
            normed = given["norm"](given["x"])
            given["norm"] = both[1][1]["norm"] = lambda _: normed
        first, second = [self.modulated_norm(at, one, options, **terms) for one, terms in both]
        return first, second

    def after_norm(self, at: At, own: Own, options: tuple[Any, ...], why: str, given: dict[str, Any]) -> Any:
        """Compute `norm(x) * (1 + scale) + shift` with a norm that no kernel computes. `why` is the reason
        why there is no kernel.

        The norm's module computes the norm, and a kernel multiplies by `1 + scale` and adds `shift`. If the
        input or the result of the norm is cast, evaluate the original expression instead.
        """
        norm, rest = given["norm"], {name: value for name, value in given.items() if name != "norm"}
        scale, shift, target = given["scale"], given.get("shift"), given.get("target")
        casts = any(options[1:])
        if casts or why == REPLACED or operands.unscaled(given["x"], scale, shift, False, target, self.cpu_kernels):
            self.site(at).note(why)
            return own(**given)
        return self.modulation(at, modulated, (options[0], False), **{**rest, "x": norm(given["x"])})

    def modulation(self, at: At, own: Own, options: tuple[Any, ...], **given: Any) -> Any:
        """Compute `x * (1 + scale) + shift`."""
        x, scale, shift = given["x"], given["scale"], given.get("shift")
        wide = options[1]
        target = given.get("target")
        why = self.replaced(at) or operands.unscaled(x, scale, shift, wide, target, self.cpu_kernels)
        if why:
            self.site(at).note(why)
            return own(**given)
        made = self.attempt(
            at, lambda: ops.modulate(as_rows(x), *operands.modulation(x, scale, shift, wide, False), mode=self.mode)
        )
        if made is None:
            return own(**given)
        return made if target is None else made.to(operands.dtype_of(target))

    def sum_and_norm(
        self,
        at: At,
        own_sum: Own,
        own_norm: Own,
        of_sum: tuple[Any, ...],
        of_norm: tuple[Any, ...],
        casts_to_sum: bool,
        **terms: Any,
    ) -> tuple[Any, Any]:
        """Compute a sum and the norm of the sum, if possible in one kernel. Return the sum and the norm.

        In `terms`, the names of the norm's operands start with "norm_". The other operands are those of the
        sum. `casts_to_sum` says whether the result of the norm is cast to the dtype of the sum.
        """
        if of_norm == PLAIN_NORM and of_sum == PLAIN_SUM and not casts_to_sum and len(terms) == 3:
            made = self.add_rms_norm(at, terms["x"], terms["y"], terms["norm_norm"])
            if made is not None:
                return made
        given = {name[5:]: terms.pop(name) for name in tuple(terms) if name.startswith("norm_")}

        def apart(total: Any, replaced: bool = False) -> tuple[Any, Any]:
            """Return the sum, and its norm, which is computed separately."""
            given.update({"x": total} | ({"target": total} if casts_to_sum else {}))
            plain = replaced or of_norm[0] == "plain_norm"
            return total, own_norm(**given) if plain else self.modulated_norm(at, own_norm, of_norm, **given)

        found: Any = self.replaced(at)
        if found is None and (two := two_terms(of_sum, terms)) is not None:
            own_sum, of_sum, terms = added, ("plain_sum",), two
        found = found or self.branch(of_sum, terms)
        if isinstance(found, str):
            self.site(at).note(found)
            return apart(own_sum(**terms), found == REPLACED)
        x, (y, gate) = terms["x"], found
        norm = self.norm(of_norm, {"x": x, **given, **({"target": x} if casts_to_sum else {})})
        if isinstance(norm, Norm) and norm.kind == "rms_norm" and gate is not None and of_norm[0] == "plain_norm":
            norm = "no kernel adds a gated branch before an RMSNorm without modulation"
        if isinstance(norm, Norm):
            rows = as_rows(x), as_rows(y), gate
            made = self.attempt(at, lambda: sum_and_norm(norm, rows, given, of_norm, self.mode))
            if made is not None:
                normed, total = made
                return total, normed
        else:
            self.site(at).note(f"the sum by itself: {norm}")
        total = None
        if gate is not None:
            total = self.attempt(at, lambda: gated_residual(rows_of(x, y), gate, self.mode))
        total = own_sum(**terms) if total is None else total
        return total, own_norm(x=total, **given, **({"target": total} if casts_to_sum else {}))

    def add_rms_norm(self, at: At, x: Any, y: Any, norm: Any) -> tuple[Any, Any] | None:
        """Return the sum `x + y` and its norm. Return None if only `sum_and_norm` can decide how to compute them.

        A decoder layer computes two such norms. This function makes fewer calls than `sum_and_norm`, because Python
        takes more time than the GPU if a decoder generates one token per step.
        """
        if tracing() or not type(x) is type(y) is Tensor or not isinstance(norm, nn.Module) or type(at) is not int:
            return None
        same = x.shape == y.shape and x.dtype == y.dtype and x.is_contiguous() and y.is_contiguous()
        if not same or x.device != y.device or operands.unusable(x, self.cpu_kernels):
            return None
        known = operands.plain_rms_norm(norm, x)
        if known is None:
            return None
        _, weight, _, eps, offset, rounding = known
        try:
            normed, total = ops.add_rms_norm(y, x, weight, eps, weight_offset=offset, rounding=rounding)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None
        self.sites[at].outcomes[RAN] += 1
        return total, normed

    def norm_of_sum(
        self,
        at: At,
        own_sum: Own,
        own_norm: Own,
        of_sum: tuple[Any, ...],
        of_norm: tuple[Any, ...],
        **terms: Any,
    ) -> Any:
        """Return the norm of a sum, if no other code of the method reads the sum. The arguments are the same
        as for `sum_and_norm`."""
        return self.sum_and_norm(at, own_sum, own_norm, of_sum, of_norm, False, **terms)[1]

    def gated_activation(self, at: At, own: Own, options: tuple[Any, ...], **factors: Any) -> Any:
        """Compute `act(gate) * up`."""
        gate, up = factors["gate"], factors["up"]
        why = self.replaced(at) or operands.unusable(gate, self.cpu_kernels) or operands.not_halves(gate, up)
        op = why or operands.activation_of(factors.get("act", torch.sigmoid), options[1])
        if isinstance(op, str):
            self.site(at).note(op)
            return own(**factors)
        made = self.attempt(at, functools.partial(gated, op, gate, up, self.mode))
        return own(**factors) if made is None else made

    def gelu(self, at: int, function: Callable[..., Any], x: Any, approximate: str = "none") -> Any:
        """Compute `F.gelu(x, approximate)`."""
        if isinstance(x, LaterLinear):
            if function is F.gelu:
                return x.activated(GELUS[approximate])
            x = x.now()
        why = operands.unusable(x, self.cpu_kernels) or operands.scattered(x)
        why = why or ("the activation was replaced" if function is not F.gelu else None)
        op = GELUS.get(approximate)
        if why or op is None:
            self.site(at).note(why or "the GELU has another formula")
            return function(x, approximate=approximate)
        made = self.attempt(at, lambda: op(x, mode=self.mode))
        return function(x, approximate=approximate) if made is None else made

    def unfused(self, at: int, value: Any, reason: str) -> Any:
        """Return `value`, the result of an expression that no kernel computes. Add the call to the counts in the report
        of `patch`.
        """
        self.site(at).note(reason)
        return value

    def attention(self, at: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Compute an attention with `oxiwarp.attention` if `oxiwarp.attention` was measured to be faster.
        Otherwise call the original attention function `function`."""
        if self.how.attention is None or len(args) != 3:
            return function(*args, **options)
        if function is F.scaled_dot_product_attention:
            return sdpa(self.how, *args, **options)
        known = getattr(function, "__module__", "") == "diffusers.models.attention_dispatch"
        return dispatched(self.how, *args, **options) if known else function(*args, **options)


METHODS = (
    "gated_residual", "modulated_norm", "modulation", "norm_twice", "sum_and_norm", "norm_of_sum", "later_sum",
    "norm_of_later", "tanh_sum", "factor_norm", "gated_activation", "gelu", "later_activation", "joined_activation",
    "rotary", "rotary_pair", "rotary_part", "joined_pair", "deferred_norm", "head_norm", "attention", "unfused",
    "linear",
)  # fmt: skip
"""Names of the methods of `Calls` that rewritten methods call."""
OTHERS = {"joined": joined, "computed": computed, "computed_pair": computed_pair, "identity": identity}
OTHERS |= {"signature": signature, "opened": opened, "mask": mask, "direct": direct}
"""Functions that rewritten methods call and that do not depend on the options of `patch`."""
FUNCTIONS = (*METHODS, *OTHERS)


def calls(
    how: Options, sites: list[Site], linears: Sequence[Site] = (), traced: Traced | None = None
) -> dict[str, Callable[..., Any]]:
    """Return the functions that a rewritten method calls, by name."""
    made = Calls(how, sites, linears, traced)
    return {name: getattr(made, name) for name in METHODS} | OTHERS


def added(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of two tensors."""
    return x + y


def two_terms(of_sum: tuple[Any, ...], terms: dict[str, Any]) -> dict[str, Tensor] | None:
    """Return two tensors of the same shape whose sum has the same bits as the original sum, or None.

    There are such tensors for two kinds of sums. In `x + y` with tensors of different shapes, expand the smaller
    tensor. In `x + a * b` with a number `a` or `b`, compute the product first.
    """
    if of_sum[0] == "plain_sum":
        x, y = terms["x"], terms["y"]
        same = type(x) is type(y) is Tensor and x.shape == y.shape
        return None if same else operands.expanded(x, y)
    x, a, b = terms["x"], terms["a"], terms["b"]
    if operands.is_number(a):
        a, b = b, a
    scaled = operands.is_number(b) and operands.is_plain(x) and operands.is_plain(a) and a.shape == x.shape
    return {"x": x, "y": a * b} if scaled and not any(of_sum[1]) and "target" not in terms else None


def gated_residual(rows: tuple[Tensor, ...], gate: Tensor | None, mode: str) -> Tensor:
    """Return `x + gate * y`. `rows` are `x` and `y`."""
    x, y = rows
    assert gate is not None
    return ops.gated_residual(x, y, gate, mode=mode)


def gated(op: Callable[..., Tensor], gate: Tensor, up: Tensor, mode: str) -> Tensor:
    """Return `activation(gate) * up`. The dimensions of the result have the same order in memory as those of
    torch's result.

    The operator `op` computes the activation and usually the product. If it computes only the activation,
    torch computes the product.
    """
    order = None if gate.is_contiguous() or compiling() else operands.memory_order(gate, up)
    order = None if order == list(range(gate.dim())) else order
    if order is not None:
        gate, up = gate.permute(order), up.permute(order)
    made = op(gate, up, mode=mode) if op.__name__.endswith("_and_mul") else op(gate, mode=mode) * up
    return made if order is None else made.permute(inverse(order))


def modulated(x: Any, scale: Tensor, shift: Tensor | None = None, target: Any = None) -> Any:
    """Return `x * (1 + scale) + shift`, cast to the dtype of `target`."""
    y = x * (1 + scale)
    y = y if shift is None else y + shift
    return y if target is None else y.to(operands.dtype_of(target))


def ada_norm(norm: Norm, x: Tensor, given: dict[str, Any], options: tuple[Any, ...], mode: str) -> Tensor:
    """Return `norm(x) * (1 + scale) + shift`."""
    kind, weight, bias, eps, _, rounding = norm
    scale, shift = operands.modulation(x, given["scale"], given.get("shift"), *options[1:])
    named: Any = dict(norm=kind, weight=weight, bias=bias, eps=eps, rounding=rounding, mode=mode)
    return ops.ada_norm(x, scale, shift, **named)


def ada_norm_pair(norm: Norm, given: dict[str, Any], by: dict[str, Any], mode: str) -> tuple[Tensor, Tensor]:
    """Return two modulations of `norm(x)`: by the scale and shift in `given`, and by those in `by`."""
    kind, weight, bias, eps, *_ = norm
    x = as_rows(given["x"])
    scales = given["scale"], given["shift"], by["scale"], by["shift"]
    return ops.ada_norm_pair(x, *scales, norm=kind, weight=weight, bias=bias, eps=eps, mode=mode)


def sum_and_norm(
    norm: Norm, rows: tuple[Tensor, Tensor, Tensor | None], given: dict[str, Any], options: tuple[Any, ...], mode: str
) -> tuple[Tensor, Tensor]:
    """Return the norm of the sum `x + gate * y`, and the sum itself. `rows` contains `x`, `y` and the gate.
    If the gate is None, the sum is `x + y`.

    The kernel always modulates the norm. For a LayerNorm without modulation, it multiplies by `1 + 0`, which does not
    change any bit.
    """
    kind, weight, bias, eps, offset, rounding = norm
    x, y, gate = rows
    if options[0] == "plain_norm" and kind == "rms_norm":
        return ops.add_rms_norm(y, x, weight, eps, weight_offset=offset, rounding=rounding)
    if options[0] == "plain_norm":
        scale, shift = zeros(x if weight is None else weight), None
    else:
        scale, shift = operands.modulation(x, given["scale"], given.get("shift"), *options[1:])
    named: Any = dict(norm=kind, weight=weight, bias=bias, eps=eps, rounding=rounding, mode=mode)
    return ops.gated_residual_ada_norm(x, y, gate, scale, shift, **named)


__all__ = ["FUNCTIONS", "Options", "calls"]
