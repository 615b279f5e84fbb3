"""The checks of the fuzzer. A check raises `Failed` if the results of an operator are wrong."""

import re
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .case import Case, Operator
from .draw import Draw
from .precision import UNIT, Exact, Noisy, Rounded

RUNS = 5  # number of evaluations of a formula with simulated rounding errors
# The error of a result may be this factor times the largest simulated error. The factor is necessary, because
# `RUNS` simulations do not reach the largest possible error. For gradients, the error of float32 autograd
# counts as a simulated error.
FACTOR = 6.0
# Additional factor for gradients. If a derivative is near 0, its terms cancel, and the error of the gradient
# may then exceed the errors of all simulations.
GRADIENT_FACTOR = 5.0
SENTINEL = 80.0  # all dtypes, even 8-bit floats, have this value
# The absolute error that is always allowed. In float32 and bfloat16, results below the smallest normal number
# may be flushed to 0, as the docstring of softmax documents. In float16, values near 0 are multiples of
# 2^-24.
SMALLEST = {
    torch.float32: 2.0**-126,
    torch.bfloat16: 2.0**-126,
    torch.float16: 2.0**-24,
    torch.float8_e4m3fn: 2.0**-9,
    torch.float8_e5m2: 2.0**-16,
}


class Failed(Exception):
    """Raised if a check fails. Its message has the name of the check and describes the wrong result."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


class Refused(Exception):
    """Raised if an operator rejects a call as documented."""


def bits(x: Tensor) -> Tensor:
    """Return the bits of `x` as integers. All NaN become the same integer, but 0.0 and -0.0 become different
    integers."""
    x = x.detach().contiguous()
    if not x.is_floating_point():
        return x
    x = torch.where(x.isnan(), torch.full_like(x, torch.nan), x)
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor], check: str, what: str) -> None:
    """Raise unless all tensors have the same bits."""
    for at, (a, b) in enumerate(zip(some, others, strict=True)):
        differ = (bits(a) != bits(b)).nonzero()
        if a.shape != b.shape or len(differ):
            raise Failed(check, f"{what}, result {at}: {len(differ)} values differ, the first at {differ[:1].tolist()}")


def run(operator: Operator, case: Case, tensors: dict[str, Tensor], **more: object) -> tuple[Tensor, ...]:
    """Return the results of the operator.

    If the operator raises an error, raise `Refused` or `Failed` instead. Raise `Refused` if the error is
    documented and correct for these arguments, and `Failed` otherwise.
    """
    try:
        return operator.call(tensors, {**case.options, **more})
    except Exception as error:
        explain(error, case, [*tensors.values(), *[x for x in more.values() if isinstance(x, Tensor)]], more)


def explain(error: Exception, case: Case, tensors: Sequence[Tensor], more: dict[str, object]) -> None:
    """Raise `Refused` if an operator's error is documented and correct for these arguments, and `Failed`
    otherwise."""
    text = str(error).splitlines()[0] if str(error) else repr(error)
    if "its last dimension must be contiguous" in text:
        true = any(x.dim() and x.shape[-1] > 1 and x.stride(-1) != 1 for x in tensors)
    elif "two strides must reach" in text or "in its last leading dimensions" in text:
        shaped = max((x.dim() for name, x in case.given().items() if name in case.strided), default=0)
        together = [
            # Mochi's operators accept a gate or scale of shape [B, N] for `x` of shape [B, S, N].
            x.unsqueeze(1) if x.dim() == 2 and shaped == 3 else x
            for name, x in case.given().items()
            if name in case.strided
        ]
        together += [x for x in more.values() if isinstance(x, Tensor)]
        true = levels(together) > 2
    else:
        outs = [x for x in more.values() if isinstance(x, Tensor)]
        true = any(re.search(part, text) is not None and is_true(outs) for part, is_true in case.refusals.items())
    if not true and not any(x.numel() == 0 for x in tensors):
        raise Failed("error", f"{type(error).__name__}: {text}") from error
    raise Refused(text) from error


def levels(tensors: Sequence[Tensor]) -> int:
    """Return the number of nested loops that can visit the rows of all tensors together.

    Each loop has one stride per tensor. All tensors are broadcast to the leading dimensions of the first
    tensor.
    """
    lead = tensors[0].shape[:-1]
    strides = [x.expand(*lead, x.shape[-1] if x.dim() else 1).stride()[:-1] for x in tensors]
    found: list[tuple[int, list[int]]] = []
    if 0 in lead:
        return 0
    for dim in reversed([dim for dim, size in enumerate(lead) if size != 1]):
        own = [each[dim] for each in strides]
        if found and own == [stride * found[-1][0] for stride in found[-1][1]]:
            found[-1] = (found[-1][0] * lead[dim], found[-1][1])
        else:
            found.append((lead[dim], own))
    return len(found)


def unlike(x: Tensor, other: Tensor) -> Tensor:
    """Return a mask that is true for elements where `x` and `other` differ and at least one of them is NaN
    or infinite."""
    same = (x == other) | (x.isnan() & other.isnan()) | (x.isfinite() & other.isfinite())
    return ~same


def errors(x: Tensor, right: Tensor) -> Tensor:
    """Return an error for each value: the value's own error, or the mean error of its row if this mean is
    larger."""
    off = (x.double() - right).abs().nan_to_num(0.0, 0.0, 0.0)
    return torch.maximum(off, off.mean(-1, keepdim=True)) if off.dim() and off.numel() else off


class Expected:
    """The expected results of a call: the exact results of the formula, the allowed errors, and the results
    with torch's roundings.

    `noisy` has several evaluations of the formula with simulated rounding errors, and `float32` an evaluation
    in float32. The allowed error of a value is at least the largest error of these evaluations.
    """

    def __init__(
        self,
        exact: Sequence[Tensor],
        noisy: Sequence[Sequence[Tensor]],
        chain: Sequence[Tensor | None],
        float32: Sequence[Tensor] | None = None,
        floor: float = 1.0,
    ) -> None:
        self.exact, self.chain, self.floor = exact, chain, floor
        self.spread, self.unsure = list[Tensor](), list[Tensor]()
        for at, right in enumerate(exact):
            # Mark an element as unsure if simulated errors change it from a finite number to NaN or infinity,
            # or back. For example, a simulated error may turn a factor of infinity into 0, and the product
            # into NaN.
            self.unsure.append(torch.stack([unlike(each[at], right) for each in noisy]).any(0))
            off = torch.stack([(each[at] - right).abs() for each in noisy]).amax(0)
            off = off.nan_to_num(0.0, 0.0, 0.0)
            finite = right.isfinite() & (right.abs() < 1e200)
            mean = torch.where(finite, off, 0.0).mean(-1, keepdim=True) if off.dim() and off.numel() else off
            relative = (off / right.abs())[finite & (right != 0)]
            usual = relative.median() * right.abs() if relative.numel() else off
            spread = torch.maximum(torch.maximum(off, mean), usual.nan_to_num(0.0, 0.0, 0.0))
            self.spread.append(spread if float32 is None else torch.maximum(spread, errors(float32[at], right)))

    def allowed(self, at: int, dtype: torch.dtype) -> Tensor:
        """Return the largest allowed error of each value. `at` is the index of the result, `dtype` its dtype."""
        half = 0.51 * torch.finfo(dtype).eps * self.exact[at].abs()
        return (FACTOR * self.spread[at] + half + self.floor * SMALLEST[dtype]).nan_to_num(0.0, 0.0, 0.0)

    def compare(self, got: Sequence[Tensor], check: str, what: str, factor: float = 1.0) -> float:
        """Raise `Failed` if the error of a value in `got` is larger than allowed, and if the function
        `_others` does not accept this value.

        Return the largest ratio of error to allowed error. Values whose error is larger than allowed are left
        out.
        """
        worst = 0.0
        for at, (y, right, chain) in enumerate(zip(got, self.exact, self.chain, strict=True)):
            if y.shape != right.shape:
                raise Failed(check, f"{what}, result {at}: shape {list(y.shape)}, expected {list(right.shape)}")
            if y.numel() == 0:
                continue
            allowed, wide = factor * self.allowed(at, y.dtype), y.double()
            off = (wide - right).abs()
            good = off <= allowed
            worst = max(worst, (off / allowed)[good].max().item() if good.any() else 0.0)
            if not good.all():
                self._others(y, at, good, chain, allowed, check, what)
        return worst

    def _others(
        self, y: Tensor, at: int, good: Tensor, chain: Tensor | None, allowed: Tensor, check: str, what: str
    ) -> None:
        """Raise `Failed` if a value outside of `good` is wrong.

        `good` is true for values whose error is allowed. Every other value must match the formula with
        torch's roundings, which may be NaN or infinity, for example after an overflow.
        """
        right, wide, info = self.exact[at], y.double(), torch.finfo(y.dtype)
        near_limit = right.abs() >= info.max * (1 - 2 * info.eps)
        good = good | (near_limit & (wide.sign() == right.sign()) & (wide.abs() >= info.max * (1 - 2 * info.eps)))
        own = right.to(y.dtype).double() if chain is None else chain.double()
        good = good | (self.unsure[at] & ~wide.isfinite())
        good = good | (wide == own) | (wide.isnan() & own.isnan())
        # `own` is the result with torch's roundings. If `own` is far from the exact result, e.g. after an
        # overflow, `y` must be close to `own` instead of the exact result.
        elsewhere = (own - right).abs() > allowed
        largest = own.abs().nan_to_num(0.0, 0.0, 0.0)
        largest = largest.amax(-1, keepdim=True) if own.dim() and own.numel() else largest
        good = good | (elsewhere & ((wide - own).abs() <= (2 * info.eps + 8 * UNIT) * largest))
        if not good.all():
            first = tuple((~good).nonzero()[0].tolist())
            raise Failed(
                check,
                f"{what}, result {at}: {int((~good).sum())} of {y.numel()} values, the first at {list(first)}: got "
                f"{wide[first].item()!r}, float64 {right[first].item()!r}, torch's chain {own[first].item()!r}, "
                f"allowed error {allowed[first].item():.2e}",
            )


def expected_forward(operator: Operator, case: Case, seed: int, dtypes: Sequence[torch.dtype]) -> Expected:
    """Return the expected results of a call without gradients. `dtypes` are the dtypes of the results."""

    def evaluate(m: Exact) -> tuple[Tensor, ...]:
        return operator.evaluate(m, case, {name: m.wide(x) for name, x in case.given().items()})

    chain = [y.to(dtype) for y, dtype in zip(evaluate(Rounded()), dtypes, strict=True)]
    return Expected(evaluate(Exact()), [evaluate(Noisy(seed + i, common=i == 0)) for i in range(RUNS)], chain)


def check_forward(operator: Operator, case: Case, got: tuple[Tensor, ...], seed: int) -> tuple[float, Expected]:
    """Check the shapes, dtypes and values of a call's results. Return two values: the largest ratio of error
    to allowed error, and the expected results.

    The results whose indices are in `case.bits` must have the bits of the formula with torch's roundings.
    """
    for at, y in enumerate(got):
        dtype = torch.float32 if not has_gradient(case, at) else case.dtype
        dtype = case.dtypes[at] if case.dtypes else dtype
        if y.dtype != dtype or (operator.contiguous and not y.is_contiguous()):
            raise Failed("values", f"result {at} is {y.dtype} with strides {y.stride()}, expected {dtype}, contiguous")
    expected = expected_forward(operator, case, seed, [y.dtype for y in got])
    worst = expected.compare(got, "values", "forward")
    for at in case.bits:
        same_bits([got[at]], [expected.chain[at]], "bits", f"bits of torch's chain, result {at} of the call")
    if operator.torch is not None:
        tensors = Space(case.tensors)
        own = operator.torch(tensors, case)
        # For inputs with infinities or NaN, torch's CUDA operators may differ from the formula. The formula
        # is then not compared with torch.
        finite = all(x.isfinite().all() for x in case.given().values() if x.is_floating_point())
        if own is not None and (finite or got[0].device.type == "cpu"):
            expected.compare(own if isinstance(own, tuple) else (own,), "formula", "torch's operator", 2.0)
    return worst, expected


class Space:
    """A namespace that has tensors as attributes."""

    def __init__(self, tensors: dict[str, Tensor | None]) -> None:
        self.__dict__.update(tensors)


def check_repeated(operator: Operator, case: Case, got: tuple[Tensor, ...], draw: Draw) -> None:
    """Check that a second call with the same arguments gives the same bits, and that the operator does not
    overwrite its arguments."""
    before = {name: bits(x).clone() for name, x in case.given().items()}
    same_bits(got, run(operator, case, case.given()), "repeated", "a second call")
    for name, x in case.given().items():
        if not torch.equal(bits(x), before[name]):
            raise Failed("repeated", f"{name} was written to")


def check_rows(operator: Operator, case: Case, draw: Draw) -> None:
    """Check that NaN in one row of an input does not change the bits of any other row of the results."""
    assert case.row is not None
    name, dims = case.row
    x = case.tensors[name]
    if x is None or x.numel() == 0:
        return
    index: list[object] = [slice(None)] * x.dim()
    for dim in dims:
        index[dim] = draw.below(x.shape[dim])
    dense = {key: value.clone(memory_format=torch.contiguous_format) for key, value in case.given().items()}
    poisoned = {**dense, name: dense[name].clone()}
    poisoned[name][tuple(index)] = torch.nan
    plain, other = run(operator, case, dense), run(operator, case, poisoned)
    for at, (a, b) in enumerate(zip(plain, other, strict=True)):
        if a.dim() < len(dims) or list(a.shape[: len(dims)]) != list(x.shape[: len(dims)]):
            continue  # the result is a reduction over all rows
        apart = bits(a) != bits(b)
        apart[tuple(index[: a.dim()])] = False
        if apart.any():
            where = apart.nonzero()[0].tolist()
            raise Failed("rows", f"NaN in {name} at {index}: result {at} changed at {where}, in another row")


def check_out(operator: Operator, case: Case, got: tuple[Tensor, ...], expected: Expected, draw: Draw) -> None:
    """Check that a call with `out` writes correct results to `out`, and does not overwrite the memory around
    it."""
    outs, stores = [], []
    for y in got:
        out = draw.layout(y.dim(), expand=False, last=False)(torch.full_like(y, SENTINEL).contiguous())
        store = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
        store.fill_(SENTINEL)
        outs.append(out)
        stores.append(store)
    out = outs[0] if len(outs) == 1 else tuple(outs)
    more = {"out": out}
    try:
        operator.call(case.given(), {**case.options, **more})
    except Exception as error:
        explain(error, case, [*case.given().values(), *outs], {f"out{i}": x for i, x in enumerate(outs)})
    expected.compare(outs, "out", "into out")
    for view, store in zip(outs, stores, strict=True):
        inside = torch.zeros_like(store, dtype=torch.bool)
        inside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
        outside = store[~inside]
        if not (outside == SENTINEL).all():
            raise Failed("out", f"{int((outside != SENTINEL).sum())} values outside of out were written")


def incoming(y: Tensor, draw: Draw) -> Tensor:
    """Return a random incoming gradient for the result `y`, whose memory layout is dense, expanded or
    transposed."""
    dy = draw.normal(y.shape, y.dtype)
    kind = draw.pick("dense", "dense", "expanded", "one", "transposed")
    if kind == "expanded" and y.dim():
        dim = draw.below(y.dim())
        return dy.narrow(dim, 0, min(1, dy.shape[dim])).expand(y.shape)
    if kind == "one":
        return torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape)
    if kind == "transposed" and y.dim() >= 2:
        return dy.transpose(-1, -2).contiguous().transpose(-1, -2)
    return dy


def check_gradients(operator: Operator, case: Case, got: tuple[Tensor, ...], draw: Draw, seed: int) -> float:
    """Compare the operator's gradients with float64 autograd of the formula.

    A random subset of the arguments requires grad, and a random subset of the results has an incoming gradient.
    """
    names = [name for name in draw.some(case.differentiable) if case.tensors[name] is not None]
    floating = [at for at, y in enumerate(got) if has_gradient(case, at)]
    chosen = [floating[int(at)] for at in draw.some([str(i) for i in range(len(floating))])]
    if not names or not chosen:
        return 0.0
    dys = {at: incoming(got[at], draw) for at in chosen}

    def ours() -> tuple[list[Tensor | None], tuple[Tensor, ...]]:
        leaves = {name: case.given()[name].detach().requires_grad_() for name in names}
        ys = run(operator, case, {**case.given(), **leaves})
        used = [at for at in chosen if ys[at].requires_grad]
        if not used:
            return [None] * len(names), ys
        try:
            found = torch.autograd.grad(
                [ys[at] for at in used], list(leaves.values()), [dys[at] for at in used], allow_unused=True
            )
        except Exception as error:
            raise Failed("gradient", f"backward: {type(error).__name__}: {str(error).splitlines()[0]}") from error
        return list(found), ys

    def formula(m: Exact) -> list[Tensor]:
        wide = {name: m.wide(x).detach() for name, x in case.given().items()}
        leaves = {name: wide[name].clone().requires_grad_() for name in names}
        ys = operator.evaluate(m, case, {**wide, **leaves})
        used = [at for at in chosen if ys[at].requires_grad]
        if not used:
            return [torch.zeros_like(x) for x in leaves.values()]
        found = torch.autograd.grad(
            [ys[at] for at in used],
            list(leaves.values()),
            [m.wide(dys[at]) for at in used],
            allow_unused=True,
            materialize_grads=True,
        )
        return list(found)

    with torch.enable_grad():
        found, ys = ours()
        again, _ = ours()
        right = formula(Exact(True))
        single = formula(Rounded(True))
        noisy = [formula(Noisy(seed + i, True, i == 0)) for i in range(RUNS)]
    same_bits([y.detach() for y in ys], got, "gradient", "results where a gradient is recorded")
    filled = []
    for name, gradient in zip(names, found, strict=True):
        x = case.given()[name]
        if gradient is None:
            gradient = torch.zeros_like(x)
        if gradient.dtype != x.dtype or gradient.shape != x.shape:
            raise Failed("gradient", f"of {name}: {gradient.dtype} {list(gradient.shape)}, expected that of {name}")
        filled.append(gradient)
    same_bits(filled, [torch.zeros_like(x) if g is None else g for x, g in zip(filled, again, strict=True)],
              "gradient", f"a second gradient of {names}")  # fmt: skip
    what = f"of {names} for results {chosen}, strides of dy {[list(dy.stride()) for dy in dys.values()]}"
    return Expected(right, noisy, [None] * len(right), single, case.floor).compare(
        filled, "gradient", what, GRADIENT_FACTOR
    )


def has_gradient(case: Case, at: int) -> bool:
    """Return True if the result with index `at` has a gradient. Only `lse` (log-sum-exp), which is always the
    second result, has no gradient."""
    return not (at == 1 and case.options.get("return_lse"))


def check_vmap(operator: Operator, case: Case, draw: Draw) -> None:
    """Check that `torch.func.vmap` of the operator gives the same bits as a loop over the batch. Only a
    random subset of the tensors is batched."""
    names = draw.some([name for name, x in case.given().items() if x.is_floating_point()])
    # In float32, because torch does not multiply 8-bit floats. The product is exact, or rounds once.
    half = {name: (case.given()[name].float() * 0.5).to(case.given()[name].dtype) for name in names}
    stacked = {name: torch.stack([case.given()[name], half[name]]) for name in names}
    dim = draw.pick(0, -1)
    moved = {name: x.movedim(0, dim) for name, x in stacked.items()}
    rest = {name: x for name, x in case.given().items() if name not in names}
    loop = [run(operator, case, {**rest, **{name: x[at] for name, x in stacked.items()}}) for at in range(2)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = torch.func.vmap(lambda t: operator.call({**rest, **t}, case.options), in_dims=(dim,))
            together = call(moved)
    except Exception as error:
        raise Failed("vmap", f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    same_bits(together, [torch.stack(list(each)) for each in zip(*loop, strict=True)], "vmap", f"over {names}")
