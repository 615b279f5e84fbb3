"""Tests `norm_gated_residual`, and the gated residuals of Z-Image, Lumina 2 and Ideogram 4."""

import itertools

import pytest
import torch
from helpers import DTYPES, random
from norms import BF16, F16, F32, NORMS, ada_norm, check_chain, doubles, gated_residual, norm_gated_residual

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NORM = pytest.mark.parametrize("norm", NORMS)
SHAPE = (2, 6, 40)
GATES = {
    "none": None,
    "batch": (2, 1, 40),
    "token": SHAPE,
    "one per row": (2, 6, 1),
    "one": (),
    "frames": (2, 3, 1, 40),
}


def whole(gate):
    """Return the gate for each row and column of `x`."""
    if gate is not None and gate.dim() == 4:
        return gate.expand(2, 3, 2, 40).flatten(1, 2)
    return gate if gate is None else gate.expand(SHAPE)


@DTYPE
@NORM
@pytest.mark.parametrize("cols", [40, 640, 3840])
def test_against_torch(cols, norm, dtype, device):
    """The result has the bits of torch's operators on a GPU, and a small error."""
    shape = (2, 20, cols)
    x, y = random(shape, dtype, device), random(shape, dtype, device, 1)
    gate = random((2, 1, cols), dtype, device, 2).tanh()
    weight, bias = random((cols,), dtype, device, 3, 0.5) + 1, random((cols,), dtype, device, 4, 0.5)
    for w, b, g, rounding in itertools.product((None, weight), (None, bias), (None, gate), ("before_weight", "once")):
        if rounding == "once" and (norm == "layer_norm" or b is not None):
            continue
        options = dict(norm=norm, weight=w, bias=b, rounding=rounding)
        made = oxiwarp.norm_gated_residual(x, y, g, **options)
        # The sums of RMSNorm have torch's order for at least 128 columns.
        bits = cols >= 128 or norm == "layer_norm"
        right = norm_gated_residual(*doubles([x, y]), None if g is None else g.double(), **doubles(options))
        check_chain(made, norm_gated_residual(x, y, g, **options), right, f"{options}", bits=bits)


@DTYPE
@NORM
@pytest.mark.parametrize("form", GATES)
def test_is_two_operators(form, norm, dtype, device):
    """The result has the bits of a norm and a gated residual, for operands of all dtypes."""
    x, zero = random(SHAPE, dtype, device), torch.zeros(40, device=device)
    for of_y, own, of_weight in itertools.product(DTYPES, DTYPES, DTYPES):
        y = random(SHAPE, of_y, device, 1)
        gate = None if GATES[form] is None else random(GATES[form], own, device, 2, 0.5)
        weight, bias = random((40,), of_weight, device, 3, 0.5), random((40,), of_y, device, 4, 0.5)
        options = dict(norm=norm, weight=weight, bias=bias)
        made = oxiwarp.norm_gated_residual(x, y, gate, **options)
        if of_weight == of_y:
            n = oxiwarp.ada_norm(y, zero.to(of_y), **options)
        else:  # the norm is not rounded
            n = oxiwarp.ada_norm(y.float(), zero, norm=norm, weight=weight.float(), bias=bias.float())
        right = oxiwarp.gated_residual(x, n, torch.ones((), dtype=n.dtype, device=device) if gate is None else gate)
        assert torch.equal(made, right), f"y {of_y}, gate {own}, weight {of_weight}"


@torch.enable_grad()
@NORM
@pytest.mark.parametrize("form", GATES)
@pytest.mark.parametrize(("dtype", "of_y"), [(F32, F32), (BF16, BF16), (F32, BF16), (F16, F32)], ids=str)
def test_gradients(form, norm, dtype, of_y, device):
    """All operands have gradients, and those that are sums over rows are the same in two calls."""
    tensors = {
        "x": random(SHAPE, dtype, device),
        "y": random(SHAPE, of_y, device, 1),
        "gate": None if GATES[form] is None else random(GATES[form], of_y, device, 2, 0.5),
        "weight": random((40,), of_y, device, 3, 0.5) + 1,
        "bias": random((40,), F16, device, 4, 0.5),
    }
    dout, found = random(SHAPE, dtype, device, 5), []
    for _ in range(2):
        own = {name: None if t is None else t.detach().requires_grad_() for name, t in tensors.items()}
        oxiwarp.norm_gated_residual(**own, norm=norm, mode="fast").backward(dout)
        found.append({name: t.grad for name, t in own.items() if t is not None})
    right = {name: None if t is None else t.detach().double().requires_grad_() for name, t in tensors.items()}
    norm_gated_residual(**{**right, "gate": whole(right["gate"])}, norm=norm).backward(dout.double())
    tolerance = 0.03 if BF16 in (dtype, of_y) else 0.005
    for name, first in found[0].items():
        assert torch.equal(first, found[1][name]) and first.dtype == tensors[name].dtype, name
        expected = right[name].grad
        assert (first.double() - expected).abs().max() <= tolerance * expected.abs().max(), name


@pytest.mark.parametrize("form", GATES)
def test_compile(form, device):
    """The operator has a fake kernel for each form, and runs under torch.compile."""
    x, y = random(SHAPE, F32, device), random(SHAPE, BF16, device, 1)
    gate = None if GATES[form] is None else random(GATES[form], F16, device, 2)

    def call(x, y, gate):
        return oxiwarp.norm_gated_residual(x, y, gate, norm="rms_norm")

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, y, gate)
    assert torch.equal(compiled, call(x, y, gate))
    if form != "frames":
        arguments = (x, y, gate, None, None, True, 1e-6, True, False)
        torch.library.opcheck(torch.ops.oxiwarp.norm_gated_residual, arguments)


def test_models(device):
    """The operator computes the gated residuals of the three models."""
    x, y = random((2, 5, 64), BF16, device), random((2, 5, 64), BF16, device, 1)
    modulation, weight = random((2, 4 * 64), BF16, device, 2), random((64,), BF16, device, 3)
    gate = modulation.unsqueeze(1).chunk(4, dim=2)[1].tanh()  # Z-Image
    made = oxiwarp.norm_gated_residual(x, y, gate, norm="rms_norm", weight=weight, eps=1e-5)
    right = x + gate * (y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(BF16).mul(weight)
    assert (made - right).abs().max() <= 2 * torch.finfo(BF16).eps * right.abs().max()
    assert (made != right).sum() <= 0.02 * made.numel()


@DTYPE
def test_mochi(dtype, device):
    """Mochi's operators take a branch, a gate and a scale of any dtype, also with one column or none."""
    x = random(SHAPE, dtype, device)
    for of_y, own, form in itertools.product(DTYPES, DTYPES, ("batch", "one per row", "one")):
        y, gate = random(SHAPE, of_y, device, 1), random(GATES[form], own, device, 2)
        scale = random(GATES[form], own, device, 3, 0.5)
        out = oxiwarp.residual_tanh_gated_rms_norm(x, y, gate)
        wide = y.double()
        n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        product = (n * gate.tanh().double()).to(of_y)
        right = (x.double() + product.double()).to(dtype)
        # tanh, norm and product may each be rounded otherwise.
        unit = max(torch.finfo(d).eps for d in (dtype, of_y, own))
        assert ((out.double() - right.double()).abs() <= 4 * unit * (1 + product.double().abs() + right.abs())).all()
        normed, total = oxiwarp.residual_tanh_gated_rms_norm_modulated(x, y, gate, scale)
        assert torch.equal(total, out)
        assert torch.equal(normed, oxiwarp.ada_norm(out, scale, norm="rms_norm", mode="fast"))


@DTYPE
@NORM
@pytest.mark.parametrize("form", ["batch", "one per row", "one"])
def test_pair(form, norm, dtype, device):
    """`ada_norm_pair` takes modulations, a weight and a bias of any dtype, also with one column or none."""
    x = random(SHAPE, dtype, device)
    for first, second, of_weight in itertools.product(DTYPES, DTYPES, DTYPES):
        by = [random(GATES[form], own, device, seed, 0.5) for seed, own in enumerate((first, first, second, second))]
        weight = random((40,), of_weight, device, 5, 0.5)
        made = oxiwarp.ada_norm_pair(x, *by, norm=norm, weight=weight)
        # If one operand has another dtype, both results are computed in float32.
        mode = "exact" if {first, second, of_weight} == {dtype} else "fast"
        for result, (scale, shift) in zip(made, (by[:2], by[2:]), strict=True):
            assert torch.equal(result, oxiwarp.ada_norm(x, scale, shift, norm=norm, weight=weight, mode=mode))


@torch.enable_grad()
@NORM
@pytest.mark.parametrize(("dtype", "own"), [(F32, BF16), (BF16, F16), (F16, F16)], ids=str)
def test_gradients_of_mixed_dtypes(norm, dtype, own, device):
    """Mochi's operators and `ada_norm_pair` have gradients of operands of mixed dtypes."""
    x, y = random(SHAPE, dtype, device), random(SHAPE, own, device, 1)
    forms = [random(GATES[form], own, device, 2 + at, 0.5) for at, form in enumerate(("batch", "one per row", "one"))]
    weight = random((40,), own, device, 6, 0.5) + 1

    def pair(x, scale, shift, scale2, weight):
        return oxiwarp.ada_norm_pair(x, scale, shift, scale2, None, norm=norm, weight=weight, mode="fast")

    def pair_formula(x, scale, shift, scale2, weight):
        return tuple(ada_norm(x, *by, norm=norm, weight=weight) for by in ((scale, shift), (scale2, None)))

    def mochi(x, y, gate, scale):
        return oxiwarp.residual_tanh_gated_rms_norm_modulated(x, y, gate, scale)

    def mochi_formula(x, y, gate, scale):
        total = gated_residual(x, ada_norm(y, torch.zeros_like(y[0, 0]), norm="rms_norm"), gate.tanh())
        return ada_norm(total, scale, norm="rms_norm"), total

    for ours, formula, operands in (
        (pair, pair_formula, (x, *forms, weight)),
        (mochi, mochi_formula, (x, y, forms[0], forms[1])),
        (mochi, mochi_formula, (x, y, forms[1], forms[2])),
    ):
        made = [t.detach().requires_grad_() for t in operands]
        right = [t.detach().double().requires_grad_() for t in operands]
        results, references = ours(*made), formula(*right)
        grads = [random(SHAPE, F32, device, 7 + at).to(dtype) for at in range(2)]
        torch.autograd.backward(results, grads)
        torch.autograd.backward(references, [grad.double() for grad in grads])
        for at, (mine, theirs) in enumerate(zip(made, right, strict=True)):
            assert mine.grad.dtype == mine.dtype and mine.grad.shape == mine.shape
            limit = 0.05 * theirs.grad.abs().max()
            assert (mine.grad.double() - theirs.grad).abs().max() <= limit, f"{ours.__name__}, operand {at}"
