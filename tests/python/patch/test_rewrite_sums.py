"""Tests of kernels that compute a sum and the norm of this sum. Either the sum is the argument of the norm
call, or an `if` separates the sum from the norm."""

import pytest
import torch
from random_methods import WIDTH, Maker, load
from test_rewrite_flow import difference
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import replace
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe, rewritten_from
from oxiwarp.patching.sites import sites_of

SUMS = {"add_rms_norm", "gated_residual_ada_norm"}
MODULATED = {"gated_residual_ada_norm"}
INSIDE = {
    "y = self.norm1(x + h)": SUMS,
    "y = self.norm1(self.drop(x) + h)": SUMS,
    "y = self.norm1(x + self.mut(x))": SUMS,
    "y = self.norm1(x + h).type_as(x)": SUMS,
    "y = self.norm1(x + g * h)": MODULATED,
    "y = self.norm1(x + h) * (1 + s) + b": MODULATED,
    "y = self.norm1(x + h)\ny = y * (1 + m[:, None]) + b": MODULATED,
    "y = self.norm1(x + g * h)\ny = y * (1 + m[:, None]) + b": MODULATED,
    "s = 1 + s\nx = x + g * h\ny = self.norm1(x) * s": MODULATED,
    "y = self.norm1(x + h)\nr = y\ny = y * (1 + m[:, None]) + b": SUMS,
    "y = self.norm1(x + h) * (1 + self.mut(x)) + b": set(),
    "y = (1 + s) * self.norm1(x + self.mut(s))": SUMS,
    "y, r = self.norm1(x + h), self.norm2(x + h)": SUMS,
    "x = x + h\ny, r = self.norm1(x), self.norm2(x)": SUMS,
    "x = self.norm1(x + h)\nx = self.norm2(x + h)": SUMS,
    # In these methods, the variable of the gate or of the scale changes between the sum and the norm.
    "x = x + g * h\ng, s = torch.chunk(torch.cat([s, b], -1), 2, -1)\ny = self.norm1(x) * (1 + s) + b": MODULATED,
    "x = x + g * self.ff(h)\ns, g = torch.chunk(m[:, None], 2, 0)\ny = self.norm1(x) * (1 + g)": MODULATED,
    "x = x + g * h\ng, s = torch.chunk(torch.cat([s, x], -2), 2, -2)\ny = self.norm1(x) * (1 + g[:, :1])": set(),
    "x = x + g * h\ng = self.mut(g)\ny = self.norm1(x) * (1 + g)": set(),
    "x = x + h\nf = x.view(2, 3, 8)\nf += 1\ny = self.norm1(x)": set(),
    "y = self.norm1(x + 1)": set(),
    "y = self.ff(x + h)": set(),
}
"""Maps statements with a norm of a sum to the operators that compute sum and norm together."""
BRANCHES = {
    # The sum is in a branch, and the norm is after the `if`.
    "if flag:\n    x = x + h\ny = self.norm1(x)": 1,
    "if flag:\n    x = x + h\nelse:\n    x = x + g * r\nr = x\ny = self.norm1(x)": 1,
    "if flag:\n    x = x + h\nn = self.ff(s)\ny = self.norm1(x)\ny = y * (1 + s) + b": 1,
    # The module `mut` gets the operand `x` of the sum through the variable `r`, and may change this operand
    # in place.
    "r = x\nif flag:\n    x = x + h\nn = self.mut(r)\ny = self.norm1(x)": 0,
    "r = x\nx = x + h\nif flag:\n    n = self.mut(r)\ny = self.norm1(x)": 1,
    # A nested function reads the variable of the sum.
    "x = x + h\nf = lambda: x * 2\nif flag:\n    y = self.norm1(x)\nr = f()": 0,
    "if flag:\n    x = x + h\nr = torch.stack([x * i for i in (1, 2)])\ny = self.norm1(x)": 0,
    "if flag:\n    x = x + h\nfor i in (1, 2):\n    y = self.norm1(x)": 0,
    "for i in (1, 2):\n    if flag:\n        x = x + h\n    y = self.norm1(x)": 1,
    "if flag:\n    x = x + g * h\ny = self.norm1(x)\nif x.ndim == 3 and x.dtype == y.dtype:\n    r = x": 1,
    "if flag:\n    x = x + h\nelif self.absent is None:\n    x = x + r\nreturn self.norm1(x), y": 1,
    "if flag:\n    x = x + h\n    x = self.mut(x)\ny = self.norm1(x)": 0,
    # The sum is before the `if`, and the norm is in a branch.
    "x = x + h\nif flag is not None:\n    y = self.norm1(x)": 1,
    "x = x + h\nif self.absent is None:\n    y = self.norm1(x)": 1,
    "x = x + h\nr = x\nif self.absent is None:\n    y = self.norm1(x)\nelse:\n    y = self.norm2(x)": 2,
    "x = x + self.ff(h)\nif flag is None:\n    y = self.norm1(x)\nelse:\n    y = self.norm2(x)": 2,
    "x = x + h\nif flag is not None:\n    n = self.norm1(x)\n    x = x + self.ff(n)\nr = x\ny = self.norm2(x)": 2,
    "x = x + h\nif flag is None:\n    x += c\ny = self.norm1(x)": 1,
    # The condition depends on the sum, or may depend on it.
    "x = x + h\nif x.sum() > 0:\n    y = self.norm1(x)": 0,
    "x = x + h\nif x.dim() == 3:\n    y = self.norm1(x)": 0,
    "x = x + self.ff(h)\nif self.absent is None:\n    y = self.norm1(x)": 1,
    "x = x + h\nself.absent = 1\nif self.absent is None:\n    y = self.norm1(x)": 1,
    "x = x + h\nif self.ff(r) is not None:\n    y = self.norm1(x)": 0,
    # No norm reads the sum, so there is nothing to fuse.
    "x = x + h\ny = self.ff(x)\nif flag:\n    y = y * 2": 0,
}
"""Maps statements with an `if` between a sum and its norm to the number of kernel calls that compute sum
and norm together."""


def forward_of(text, tmp_path):
    """Return a class whose `forward` consists of these statements."""
    return load({"Made": [*text.split("\n"), "return x, y, h, r, n"]}, tmp_path).Made


def ran(cls, dtype=torch.float32, arguments=None, **changes):
    """Call an instance of a class without and with kernels. Return the result without kernels, the result
    with kernels, and counts of kernel calls and original expressions."""
    results = []
    for patch in (False, True):
        torch.manual_seed(2)
        module = cls(False, dtype)
        for name, value in changes.items():
            setattr(module, name, value)
        if patch:
            replace(module, RewrittenRecipe("forward", "exact", True))
        given = arguments(dtype) if arguments else inputs(dtype)
        results.append(module(*given, True))
    return (*results, [site.outcomes for site in sites_of(type(module))])


def inputs(dtype):
    """Return the tensors x, c, s, b, g and m, which a test method takes."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 3, WIDTH)] * 2 + [(2, 1, WIDTH)] * 3 + [(2, WIDTH)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def close(made, own, dtype):
    """Check that two results agree within a tolerance. The norms of the CPU executor and of torch add in
    different orders."""
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for one, other in zip(made, own, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("text", INSIDE)
def test_a_sum_in_a_call(text, tmp_path):
    """If the argument of a norm is a sum, one kernel computes sum and norm.

    The results and the order of the other calls do not change.
    """
    cls = forward_of(text, tmp_path)
    assert difference(cls) == ""
    ops = [chain.ops for chain in rewritten_from(cls.forward).chains]
    assert {name for names in ops for name in names if set(names) <= SUMS} == INSIDE[text]
    for dtype in (torch.float32, torch.bfloat16):
        own, made, outcomes = ran(cls, dtype)
        close(made, own, dtype)
        assert not INSIDE[text] or any(counts["kernel"] for counts in outcomes), outcomes


@pytest.mark.parametrize("text", BRANCHES)
def test_a_branch_between(text, tmp_path):
    """If there is an `if` between a sum and its norm, `patch` defers the sum, so that one kernel can compute
    sum and norm."""
    cls = forward_of(text, tmp_path)
    assert difference(cls) == ""
    source = rewritten_from(cls.forward).source
    assert sum(source.count(f"_oxiwarp_{name}(") for name in ("sum_and_norm", "norm_of_later")) == BRANCHES[text]
    close(*ran(cls)[:2], torch.float32)


def test_random_methods_with_branches(tmp_path):
    """Random methods in which `patch` defers a sum give the original results."""
    methods = {f"Random{seed}": Maker(seed).method() for seed in range(2000, 2400)}
    later = 0
    for cls in (cls for name, cls in vars(load(methods, tmp_path)).items() if name.startswith("Random")):
        if "later_sum" in rewritten_from(cls.forward).source:
            later += 1
            assert difference(cls) == "", cls.__name__
    assert later > 3


class PostNorm(nn.Module):
    """The output of a BERT layer, whose norm follows the residual sum."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), norm(WIDTH)

    def forward(self, hidden, residual):
        hidden = self.dropout(self.dense(hidden))
        return self.norm(hidden + residual)


class OwnLayerNorm(nn.LayerNorm):
    """A subclass of LayerNorm with a different formula."""

    def forward(self, x):
        return super().forward(x) * 2


def post_norm(norm=nn.LayerNorm, dtype=torch.float32):
    torch.manual_seed(0)
    module = PostNorm(norm)
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=1.0)
    return module.to(dtype), [torch.randn(2, 5, WIDTH).to(dtype) for _ in range(2)]


def outcome(report):
    """Return the number of kernel calls, and the number of calls without a kernel for each reason."""
    (row,) = [row for row in report.ran() if row.line]
    return row.kernels, row.fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_post_norm(dtype, device):
    """After `patch`, the output of a BERT layer with dropout and all gradients match the original layer. The
    compiled layer equals eager mode."""
    module, given = post_norm(dtype=dtype)
    module, given = module.to(device).train(), [x.to(device) for x in given]
    results = []
    for patch in (False, True):
        if patch:
            report = oxiwarp.patch(module, cpu_kernels=True)
        module.zero_grad()
        leaves = [x.clone().requires_grad_() for x in given]
        torch.manual_seed(1)
        with torch.enable_grad():
            y = module(*leaves)
            y.square().sum().backward()
        results.append([y.detach(), *(x.grad for x in (*leaves, *module.parameters()))])
    assert outcome(report) == (1, {})
    for own, made in zip(*results, strict=True):
        tolerance = 1e-4 if dtype == torch.float32 else 0.06
        torch.testing.assert_close(made, own, rtol=tolerance, atol=tolerance * float(own.abs().max()))
    module.eval()
    with torch.no_grad():
        assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(*given), module(*given))


def test_hooks_on_the_norm():
    """If the norm after a sum has a hook, the hook receives the sum and can change the result of the norm."""
    module, given = post_norm()
    module.eval()
    seen = []

    def hook(norm, args, result):
        seen.append(args[0])
        return result * 2

    with torch.no_grad():
        expected = 2 * module(*given)
        report = oxiwarp.patch(module, cpu_kernels=True)
        handle = module.norm.register_forward_hook(hook)
        torch.testing.assert_close(module(*given), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(seen, [module.dense(given[0]) + given[1]], rtol=0, atol=0)
        assert outcome(report)[0] == 0
        handle.remove()
        module(*given)
    assert outcome(report)[0] == 1


def test_other_norms():
    """If the class of the norm is derived from LayerNorm, the `forward` of this class runs. If the norm is
    replaced after `patch`, the new norm runs."""
    module, given = post_norm(OwnLayerNorm)
    module.eval()
    with torch.no_grad():
        stock = module(*given)
        oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
        assert torch.equal(module(*given), stock)
        module, given = post_norm()
        module.eval()
        stock, report = module(*given), oxiwarp.patch(module, cpu_kernels=True)
        module.norm = nn.Identity()
        assert torch.equal(module(*given), module.dense(given[0]) + given[1])
    assert outcome(report)[0] == 0 and stock.shape == given[0].shape


@pytest.mark.parametrize("shape", [(1, 3, WIDTH), (3, WIDTH), (2, 1, WIDTH), (WIDTH,)], ids=str)
@pytest.mark.parametrize("text", ["y = self.norm1(x + c)", "y = self.norm1(c + x)", "x = c + x\ny = self.norm1(x)"])
def test_terms_of_other_shapes(shape, text, tmp_path):
    """The kernel also runs if a term of the sum must be broadcast, as for a position embedding."""
    cls = load({"Made": [*text.split("\n"), "return x, y"]}, tmp_path).Made

    def arguments(dtype):
        x, _, *others = inputs(dtype)
        x = x.requires_grad_()
        return [x, torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype), *others]

    for dtype in (torch.float32, torch.bfloat16):
        own, made, outcomes = ran(cls, dtype, arguments)
        close(made, own, dtype)
        assert set(outcomes[0]) == {"kernel"}
    x, c, *others = arguments(torch.float32)
    grads = []
    for module in (cls(False, torch.float32), cls(False, torch.float32)):
        if grads:
            replace(module, RewrittenRecipe("forward", "exact", True))
        leaf = c.clone().requires_grad_()
        with torch.enable_grad():
            module(x, leaf, *others, True)[-1].square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 5, WIDTH), (2, 3, 1), (2, 2, 3, WIDTH)], ids=str)
def test_terms_that_do_not_fit(shape, tmp_path):
    """If torch rejects a term of the sum, torch's error is raised. If a term has another number of columns,
    no kernel runs."""
    cls = load({"Made": ["return self.norm1(x + c), x"]}, tmp_path).Made
    results = []
    for patch in (False, True):
        module, given = cls(False, torch.float32), inputs(torch.float32)
        given[1] = torch.ones(shape)
        if patch:
            replace(module, RewrittenRecipe("forward", "exact", True))
        try:
            results.append(module(*given, True)[0])
        except RuntimeError as error:
            results.append(str(error))
    assert type(results[0]) is type(results[1])
    if isinstance(results[0], str):
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


FACTORS = {"float": 0.25, "int": 3, "element": torch.tensor([0.3]), "scalar": torch.tensor(0.3)}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("text", ["x + h * self.factor", "self.factor * h + x"])
def test_multiples(factor, text, tmp_path):
    """A term of the sum may be a tensor times a number, as in Granite. The product is rounded as in the
    original code."""
    cls = load({"Made": [f"x = {text}", "y = self.norm1(x)", "return x, y"]}, tmp_path).Made
    for dtype in (torch.float32, torch.bfloat16):
        value = FACTORS[factor]
        own, made, outcomes = ran(cls, dtype, factor=value.to(dtype) if isinstance(value, torch.Tensor) else value)
        close(made, own, dtype)
        assert torch.equal(made[0], own[0]) and set(outcomes[0]) == {"kernel"}


class OneSum(nn.Module):
    """A method with the norm of a sum."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, y):
        return self.norm(x + y)


@pytest.mark.parametrize(
    ("norm", "op", "exactness"),
    [
        (nn.LayerNorm, "gated_residual_ada_norm", "bit-exact"),
        (nn.RMSNorm, "add_rms_norm", "same roundings"),
    ],
)
def test_report_of_a_sum(norm, op, exactness):
    """The report names only the operator for the class of the norm, and the guarantee of this operator."""
    report = oxiwarp.patch(OneSum(norm(WIDTH)))
    row = next(row for row in report if row.module_class.endswith("OneSum"))
    assert (row.op, row.exactness, row.status) == (op, exactness, "replaced")
