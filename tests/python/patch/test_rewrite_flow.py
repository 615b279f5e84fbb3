"""Tests that a method behaves the same after `patch` has rewritten its source code. The tests use random
methods."""

import pytest
import torch
from random_methods import Maker, call, load, simplest, text

from oxiwarp.patching.rewrite.calls import Options, calls
from oxiwarp.patching.rewrite.deferred import LaterSum
from oxiwarp.patching.rewrite.recipe import rewritten_from
from oxiwarp.patching.sites import Site

METHODS = 40
"""Number of random methods in a file."""


def same(made, own):
    """Return True if two results have the same bits, or two errors have the same class."""
    if isinstance(own, tuple):
        return isinstance(made, tuple) and len(made) == len(own) and all(map(same, made, own))
    if isinstance(own, torch.Tensor):
        equal = isinstance(made, torch.Tensor) and made.dtype == own.dtype and made.shape == own.shape
        return equal and torch.equal(made.nan_to_num(7), own.nan_to_num(7))
    return type(made) is type(own) if isinstance(own, Exception) else made == own


def deferring(made):
    """Make a rewritten method defer all sums of two tensors, even if no kernel computes these sums."""
    own = made["later_sum"].__self__

    def later(at, expression, options, **terms):
        if not all(isinstance(x, torch.Tensor) for x in terms.values()) or len({x.shape for x in terms.values()}) > 1:
            return own.sum_now(at, expression, options, **terms)
        return LaterSum(at, expression, options, terms, own.sum_now)

    return {**made, "later_sum": later}


def difference(cls):
    """Return how the rewritten method of a class behaves differently from the original, or "" if there is no
    difference.

    No kernels run. The original expressions run in their place.
    """
    rewritten = rewritten_from(cls.forward)
    if isinstance(rewritten, str):
        return f"not rewritten: {rewritten}"
    sites = [Site("", chain.line, tuple(chain.functions.values())) for chain in rewritten.chains]
    linears = [Site("linear", line, optional=True) for line in rewritten.linears]
    new = rewritten.bind(cls.forward, deferring(calls(Options("exact", False), sites, linears)))
    for flag in (True, False):
        stock, changed = cls(True, torch.float32), cls(True, torch.float32)
        changed.__class__ = type(cls.__name__, (cls,), {"forward": new})
        own, own_arguments, own_log = call(stock, flag, torch.float32)
        made, arguments, log = call(changed, flag, torch.float32)
        if not same(made, own):
            return "another result"
        if isinstance(own, Exception):
            continue
        if not same(tuple(arguments), tuple(own_arguments)):
            return "arguments changed in another way"
        if [name for name in log if name[:4] != "norm"] != [name for name in own_log if name[:4] != "norm"]:
            return "modules called in another order"
        if sorted(log) != sorted(own_log):
            return "norms called another number of times"
    return ""


@pytest.mark.parametrize("first", range(0, 400, METHODS))
def test_same_meaning(first, tmp_path):
    """A rewritten method has the same result, changes its arguments in the same way, and calls modules in the
    same order.

    Only norms may be called earlier or later than in the original method.
    """
    methods = {f"Random{seed}": Maker(seed).method() for seed in range(first, first + METHODS)}
    module = load(methods, tmp_path)
    for name, statements in methods.items():
        if why := difference(getattr(module, name)):

            def fails(smaller, why=why):
                try:
                    return difference(load({"Small": smaller}, tmp_path).Small) == why
                except SyntaxError:
                    return False

            pytest.fail(f"{name}: {why}\n{text(simplest(statements, fails))}")


def test_the_methods_have_chains(tmp_path):
    """The random methods contain each kind of operation sequence that a kernel can replace.

    Otherwise the tests with random methods would check nothing.
    """
    module = load({f"Random{seed}": Maker(seed).method() for seed in range(100)}, tmp_path)
    found = [rewritten_from(cls.forward) for name, cls in vars(module).items() if name.startswith("Random")]
    ops = [chain.ops for rewritten in found for chain in rewritten.chains]
    for kind in ("gated_residual", "ada_norm", "gated_residual_ada_norm", "add_rms_norm", "silu_and_mul"):
        assert sum(names[0] == kind for names in ops) >= 2, kind


@pytest.mark.parametrize("between", ["", "g = g * 2", "r = x * 2"], ids=["alone", "operand changes", "sum is read"])
def test_a_sum_and_a_later_norm(between, tmp_path):
    """One kernel computes a sum and its norm, even if the scale of the norm is computed between the sum and
    the norm.

    This works only if no statement between the sum and the norm reads the sum.
    """
    middle = [between] if between else []
    statements = ["x = x + g * c", *middle, "s = self.lin(s)", "n = self.norm1(x) * (1 + s) + b", "return n, x, g, r"]
    cls = load({"Late": statements}, tmp_path).Late
    assert difference(cls) == ""
    ops = {op for chain in rewritten_from(cls.forward).chains for op in chain.ops}
    assert ops == ({"gated_residual", "ada_norm"} if "x" in between else {"gated_residual_ada_norm"})
