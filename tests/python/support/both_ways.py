"""Computes each chain (a sequence of operations that a kernel can replace) twice, by the kernel and by the original
expression, and compares the two results.

The chains are in models whose methods `patch` has rewritten.
`python -m support.both_ways every_diffusers_model [name ...]` compares the chains in tiny models of a library. After
each comparison, the model continues with the result of the original expression. The comparison of a chain therefore
does not depend on earlier chains, and the model's output has the bits of the unpatched model.
"""

import importlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oxiwarp.patching import named_parts
from oxiwarp.patching.class_swap import Unsuitable, base_of, replace
from oxiwarp.patching.norms.forward import NormRecipe
from oxiwarp.patching.norms.recognise import is_candidate, recognise
from oxiwarp.patching.rewrite import deferred
from oxiwarp.patching.rewrite.calls import Calls
from oxiwarp.patching.rewrite.deferred import Deferred, Normed, computed
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe, found_in, method_of
from oxiwarp.patching.sites import RAN, sites_of

MOST_UNEQUAL = 0.05
"""Largest fraction of 16-bit values that may differ. An additional or missing rounding changes about a
quarter of the values."""
RUNS = itertools.count()
FEW = 64
"""Up to this number of values may always differ, because the fraction is not reliable for a small tensor."""


class Comparison(NamedTuple):
    """The comparison of one kernel call with the original expression."""

    op: str
    place: str
    unequal: float
    """Fraction of values that differ."""
    error: float
    """Largest difference, divided by the largest value."""

    @property
    def agrees(self) -> bool:
        """Return True if another order of a sum, or a fused multiply-add, can explain the differences."""
        return self.unequal <= MOST_UNEQUAL or self.error == 0.0


def compare(made: Any, own: Any, op: str, place: str) -> Iterator[Comparison]:
    """Compare a result of the kernel with the original result, and yield one comparison per tensor."""
    if isinstance(made, tuple | list):
        for one, other in zip(made, own, strict=True):
            yield from compare(one, other, op, place)
        return
    assert made.shape == own.shape and made.dtype == own.dtype, (op, place, made.shape, own.shape)
    y, r = made.double().nan_to_num(), own.double().nan_to_num()
    error = float((y - r).abs().max() / r.abs().max().clamp_min(1e-30))
    if made.dtype == torch.float32:
        unequal = float(not torch.allclose(y, r, rtol=1e-4, atol=1e-5 * float(r.abs().max())))
    else:
        count = int((y != r).sum())
        unequal = 0.0 if count <= FEW and error <= 0.02 else count / y.numel()
    yield Comparison(op, place, unequal, error)


def part_of(own: Any, copy: dict[str, Any], dim: int, tokens: slice, given: dict[str, Any], in_place: bool) -> Tensor:
    """Rotate (RoPE) some tokens of the tensor `copy["a0"]` with the original function `own`, and return this
    tensor.

    If the original code rotates in place, also write the result to `given["a0"]`, and return `given["a0"]`.
    """
    x, index = copy["a0"], (*(slice(None),) * dim, tokens)
    x[index] = own(**{**copy, "a0": x[index].clone()})
    return given["a0"].copy_(x) if in_place and isinstance(given["a0"], Tensor) else x


@contextmanager
def both_ways(found: list[Comparison]) -> Iterator[None]:
    """In this context, compute each sequence of operations both by the kernel and by the original expression.
    Append the comparisons to `found`."""

    def record(self: Calls, at: Any, before: Counter[str], made: Any, own: Any) -> Any:
        site = self.site(at)
        if site.outcomes[RAN] > before[RAN]:
            found.extend(compare(made, own, site.op, f"line {site.line}"))
        return own

    def simple(name: str) -> Any:
        original = getattr(Calls, name)

        def run(self: Calls, at: Any, own: Any, *options: Any, **given: Any) -> Any:
            before = Counter(self.site(at).outcomes)
            if name == "head_norm":  # The arguments are the norm and its operand.
                return record(self, at, before, original(self, at, own, *options), deferred.original(own, *options))
            if name == "joined_pair":  # The arguments are `torch.cat`, queries, keys and their dimension.
                before = Counter(self.site(at).outcomes)
                parts = [[computed(x) for x in held] for held in options[:2]]
                made = original(self, at, own, *options)
                return record(self, at, before, made, tuple(own(held, *options[2:]) for held in parts))
            if name == "rotary_part":
                copies = [{**given, "a0": computed(given["a0"]).clone()} for _ in range(2)]
                made = original(self, at, own, *options, **(given if isinstance(given["a0"], Deferred) else copies[0]))
                _, dim, start, stop, in_place = options
                return record(self, at, before, made, part_of(own, copies[1], dim, slice(start, stop), given, in_place))
            made = original(self, at, own, *options, **given)
            if name == "rotary_pair":
                other = given.pop("other")
                args = [{key: computed(value) for key, value in given.items()}]
                args.append({**args[0], "a0": computed(other)})
                # With the argument `late`, the results are not computed yet.
                made = tuple(map(computed, made))
                return record(self, at, before, made, tuple(own(**one) for one in args))
            return record(self, at, before, made, own(**{key: computed(value) for key, value in given.items()}))

        return run

    def sum_and_norm(
        self: Calls, at: Any, own_sum: Any, own_norm: Any, of_sum: Any, of_norm: Any, casts: bool, **terms: Any
    ) -> Any:
        before = Counter(self.site(at).outcomes)
        made = originals["sum_and_norm"](self, at, own_sum, own_norm, of_sum, of_norm, casts, **terms)
        given = {name[5:]: terms.pop(name) for name in tuple(terms) if name.startswith("norm_")}
        total = own_sum(**terms)
        return record(
            self, at, before, made, (total, own_norm(x=total, **given, **({"target": total} if casts else {})))
        )

    names = (
        "gated_residual",
        "modulated_norm",
        "modulation",
        "gated_activation",
        "rotary",
        "rotary_pair",
        "rotary_part",
        "joined_pair",
        "head_norm",
    )
    originals = {name: getattr(Calls, name) for name in (*names, "sum_and_norm")}
    for name in names:
        setattr(Calls, name, simple(name))
    Calls.sum_and_norm = sum_and_norm  # type: ignore[method-assign]
    now = Normed.now
    Normed.now = Normed.original  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name, method in originals.items():
            setattr(Calls, name, method)
        Normed.now = now  # type: ignore[method-assign]


def rewrite_all(model: nn.Module, cpu_kernels: bool, remark: str = "") -> int:
    """Rewrite every method of a model that has sequences of operations for which kernels exist. Return the
    number of rewritten objects.

    This includes methods that `patch` would replace by hand-written ones. Norms are patched too, so that
    rewritten methods recognise them. On the CPU, these norms run their original `forward`.
    """
    count = 0
    for _, part in list(named_parts(model)):
        if isinstance(part, nn.Module) and is_candidate(part):
            with suppress(Unsuitable):
                replace(part, NormRecipe(*recognise(part), False))
            continue
        method = method_of(base_of(part))
        if method is not None and not isinstance(found_in(getattr(base_of(part), method)), str):
            replace(part, RewrittenRecipe(method, "exact", cpu_kernels, remark=remark))
            count += 1
    return count


def outcomes(model: nn.Module) -> dict[str, Counter[str]]:
    """Return the counts of kernel calls and of original expressions in a rewritten model, by class and
    line."""
    found: dict[str, Counter[str]] = {}
    for _, part in named_parts(model):
        for site in sites_of(type(part)):
            found[f"{base_of(part).__name__}, line {site.line}: {site.op}"] = site.outcomes
    return found


def first(result: Any) -> Tensor:
    """Return the first tensor of a result."""
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result


def check(case: Any, dtype: torch.dtype) -> tuple[list[Comparison], dict[str, Counter[str]], bool]:
    """Compare kernels and original expressions in a model.

    Return three values: the comparisons, the counts of kernel calls and original expressions, and whether the
    output has the bits of the unpatched output.
    """
    model, arguments = case.build(dtype)
    found: list[Comparison] = []
    with torch.no_grad():
        torch.manual_seed(0)
        stock = first(model(**arguments))
        with both_ways(found):
            # oxiwarp caches the classes of patched modules by their options, and the remark is one of these
            # options. A new remark leads to new classes, which call the functions with which `both_ways`
            # replaces oxiwarp's functions.
            rewrite_all(model, cpu_kernels=True, remark=f"run {next(RUNS)}")
            torch.manual_seed(0)
            made = first(model(**arguments))
    return found, outcomes(model), torch.equal(made.nan_to_num(), stock.nan_to_num())


def run_both_ways(model: nn.Module, *args: Any) -> tuple[list[Comparison], dict[str, int]]:
    """Compare kernels and original expressions in a model. Check that the output has the bits of the
    unpatched output.

    Return the comparisons, and a dict of counts. The dict has the number of kernel calls, and the number of
    original expressions for each reason.
    """
    found: list[Comparison] = []
    with torch.no_grad():
        stock = model(*args)
        with both_ways(found):
            rewrite_all(model, cpu_kernels=True, remark=f"run {next(RUNS)}")
            made = model(*args)
    assert all(torch.equal(a, b) for a, b in zip(made, stock, strict=True))
    assert all(one.agrees for one in found), found
    return found, {reason: count for counts in outcomes(model).values() for reason, count in counts.items()}


def main(library: str, names: list[str]) -> int:
    """Compare the results of kernels and of original expressions, in the models `names` of a library. If
    `names` is empty, compare them in all models of the library.
    """
    cases, failed, total = importlib.import_module(library).CASES, 0, Counter[str]()
    reasons: Counter[str] = Counter()
    for name in names or cases:
        for dtype in (torch.bfloat16, torch.float32):
            try:
                found, ran, equal = check(cases[name], dtype)
            except Exception as error:  # noqa: BLE001
                print(f"{name} {dtype}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                failed += 1
                continue
            wrong = [one for one in found if not one.agrees]
            total.update(one.op for one in found)
            failed += bool(wrong) or not equal
            if wrong or not equal:
                print(
                    f"{name} {dtype}: {'' if equal else 'other bits; '}{len(wrong)} of {len(found)} differ", flush=True
                )
                for one in wrong[:5]:
                    print(f"    {one}")
            for place, counts in ran.items():
                for reason, count in counts.items():
                    if reason != RAN and dtype == torch.bfloat16:
                        reasons[f"{reason} | {place.rpartition(': ')[2]}"] += count
                        if names:
                            print(f"    {place}: {count} x {reason}")
    print(f"{failed} failed")
    for text, count in total.most_common():
        print(f"{count:6d} {text}")
    for text, count in reasons.most_common(60):
        print(f"{count:6d} {text}")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1], sys.argv[2:])))
