"""Tests of the gradients of `ada_norm`, `gated_residual` and the operators that fuse them, eager and
compiled, against float64."""

import pytest
import torch
import torch.nn.functional as F
from gradients import check, gradients, wide
from helpers import DTYPES, random
from test_compile import backends_by_size

import oxiwarp

X = (2, 3, 96)
# Shapes of (scale, shift). In the first four entries, scale and shift have the same shape. The entries have
# one vector per batch entry, one per token, one in total, and one per token that all batch entries share. In
# the fifth entry, the two shapes differ. The last entry has no shift.
FORMS = [
    ((2, 1, 96),) * 2,
    ((2, 3, 96),) * 2,
    ((96,), (96,)),
    ((1, 3, 96),) * 2,
    ((2, 1, 96), (2, 3, 96)),
    ((96,), None),
]
PARAMETERS = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def norm(x, rms, weight=None, bias=None, eps=1e-6):
    if not rms:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    y = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def ada_norm(x, scale, shift=None, weight=None, bias=None, scale_table=None, shift_table=None, *, rms):
    scale = scale if scale_table is None else scale_table + scale
    y = norm(x, rms, weight, bias) * (1 + scale)
    return y if shift is None else y + (shift if shift_table is None else shift_table + shift)


def ours(x, scale, shift=None, weight=None, bias=None, scale_table=None, shift_table=None, *, rms, mode="exact"):
    tables = {"scale_table": scale_table, "shift_table": shift_table}
    name = "rms_norm" if rms else "layer_norm"
    return oxiwarp.ada_norm(x, scale, shift, norm=name, weight=weight, bias=bias, mode=mode, **tables)


def operands(shapes, dtype, device, single=False):
    kind = torch.float32 if single else dtype
    return [
        None if shape is None else random(shape, dtype if i == 0 else kind, device, seed=i, scale=0.5)
        for i, shape in enumerate(shapes)
    ]


@PARAMETERS
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_ada_norm(form, rms, single, dtype, device):
    """The gradients of `ada_norm` match float64, with and without weight, bias, scale table and shift table."""
    dy = random(X, dtype, device, seed=9)
    tables = [(96,), (96,) if form[1] else None]
    for rest in ([None] * 4, [(96,), (96,), *tables]):
        inputs = operands([X, *form, *rest], dtype, device, single)
        got = gradients(lambda *inputs: ours(*inputs, rms=rms), inputs, [dy])
        right = gradients(lambda *inputs: ada_norm(*inputs, rms=rms), wide(inputs), [dy.double()])
        # `shared` is True if many tokens share a scale vector: one vector in total or one per batch entry.
        # Otherwise, the gradient of the scale is computed in the dtype of x, and has a larger error.
        shared = form[0] in ((2, 1, 96), (96,))
        check(got, right, f"ada_norm {form}, rms {rms}", 2, None if shared else dtype)
        assert [g.dtype for g in got] == [x.dtype for x in inputs if x is not None]


@PARAMETERS
@pytest.mark.parametrize("rms", [False, True])
def test_ada_norm_pair(rms, dtype, device):
    shapes = [X, (2, 1, 96), (2, 1, 96), (2, 1, 96), (2, 1, 96), (96,), (96,)]
    inputs, name = operands(shapes, dtype, device), "rms_norm" if rms else "layer_norm"
    dys = [random(X, dtype, device, seed=seed) for seed in (8, 9)]

    def pair(x, a, b, c, d, weight, bias):
        return oxiwarp.ada_norm_pair(x, a, b, c, d, norm=name, weight=weight, bias=bias)

    def right(x, a, b, c, d, weight, bias):
        return ada_norm(x, a, b, weight, bias, rms=rms), ada_norm(x, c, d, weight, bias, rms=rms)

    check(gradients(pair, inputs, dys), gradients(right, wide(inputs), [dy.double() for dy in dys]), "pair", 2)


def gated(x, y, gate, gate_table=None):
    return x + (gate if gate_table is None else gate_table + gate) * y


@PARAMETERS
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("gate", [(2, 1, 96), (2, 3, 96), (96,), (1, 3, 96)], ids=str)
def test_gated_residual(gate, single, dtype, device):
    for table in (None, (96,)):
        inputs = operands([X, X, gate, table], dtype, device, single)
        inputs[1] = inputs[1].to(dtype)
        dy = random(X, dtype, device, seed=9)
        got = gradients(lambda x, y, g, t: oxiwarp.gated_residual(x, y, g, gate_table=t), inputs, [dy])
        check(got, gradients(gated, wide(inputs), [dy.double()]), f"gated_residual {gate}")


def test_clip(device):
    """With the option `clip`, the gradient is zero for elements whose sum is clamped, and unaffected by
    `clip` for all others."""
    x = torch.full((2, 8), 60000.0, dtype=torch.float16, device=device)
    y, gate = torch.full_like(x, 10000.0), torch.ones(8, dtype=torch.float16, device=device)
    y[0], y[1, 3] = 5504.0, -5000.0  # sums of 65504, the largest float16, and 55000
    dx, dy, _ = gradients(
        lambda *inputs: oxiwarp.gated_residual(*inputs, clip=True), [x, y, gate], [torch.ones_like(x)]
    )
    kept = torch.zeros_like(x)
    kept[0], kept[1, 3] = 1, 1
    assert torch.equal(dx, kept) and torch.equal(dy, kept)
    both = gradients(
        lambda *inputs: oxiwarp.gated_residual_ada_norm(*inputs, clip=True)[1], [x, y, gate, gate], [torch.ones_like(x)]
    )
    assert torch.equal(both[0], kept)
    both = gradients(
        lambda x, y, scale: oxiwarp.gated_residual_ada_norm(x, y, None, scale, clip=True)[1],
        [x, y, gate],
        [torch.ones_like(x)],
    )
    assert torch.equal(both[0], kept) and torch.equal(both[1], kept)


@PARAMETERS
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("form", [(2, 1, 96), (2, 3, 96)], ids=str)
def test_gated_residual_ada_norm(form, rms, dtype, device):
    """The gradients of `gated_residual_ada_norm` match float64, with all optional operands and with none.

    The operator returns two tensors: the modulated norm of the gated residual sum, and this sum. Each of them has an
    incoming gradient.
    """
    name = "rms_norm" if rms else "layer_norm"
    dys = [random(X, dtype, device, seed=seed) for seed in (18, 19)]

    def fused(x, y, gate, gate_table, scale, scale_table, shift, shift_table, weight, bias):
        tables = {"gate_table": gate_table, "scale_table": scale_table, "shift_table": shift_table}
        return oxiwarp.gated_residual_ada_norm(x, y, gate, scale, shift, norm=name, weight=weight, bias=bias, **tables)

    def right(x, y, gate, gate_table, scale, scale_table, shift, shift_table, weight, bias):
        total = x + y if gate is None else gated(x, y, gate, gate_table)
        # The operator rounds the sum, but computes its gradient as if the sum were not rounded.
        total = total + (total.to(dtype).double() - total).detach()
        return ada_norm(total, scale, shift, weight, bias, scale_table, shift_table, rms=rms), total

    for shapes in (
        [X, X, form, (96,), form, (96,), form, (96,), (96,), (96,)],
        [X, X, None, None, form, None, None, None, None, None],
    ):
        inputs = operands(shapes, dtype, device)
        right_ones = gradients(right, wide(inputs), [dy.double() for dy in dys])
        # The kernel may round a few values of the sum `x + gate * y` differently from the reference. The norm
        # of this sum and its gradient then have a larger error than usual. The error bound is therefore
        # multiplied by 4.
        check(gradients(fused, inputs, dys), right_ones, f"gated_residual_ada_norm {form}, rms {rms}", 4)


def test_same_bits_as_without_gradients(device):
    """A call that records a gradient gives the same bits as a call that does not."""
    x, y, scale = (random(shape, torch.bfloat16, device, seed) for seed, shape in enumerate((X, X, (2, 1, 96))))
    calls = (
        lambda x: oxiwarp.ada_norm(x, scale, scale),
        lambda x: oxiwarp.ada_norm_pair(x, scale, scale, scale, None)[1],
        lambda x: oxiwarp.gated_residual(x, y, scale),
        lambda x: oxiwarp.gated_residual_ada_norm(x, y, scale, scale)[0],
        lambda x: oxiwarp.modulated_rms_norm(x, scale),
    )
    for call in calls:
        with torch.enable_grad():
            result = call(x.clone().requires_grad_())
        assert result.requires_grad and torch.equal(result, call(x))


def test_only_what_is_asked_for(device):
    x, scale = random(X, torch.float32, device), random((2, 1, 96), torch.float32, device, seed=1)
    with torch.enable_grad():
        scale.requires_grad_()
        oxiwarp.ada_norm(x, scale).sum().backward()
        assert scale.grad.shape == scale.shape and x.grad is None
        y = oxiwarp.ada_norm(x.requires_grad_(), scale.detach())
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, device):
    """Modulation operators, called as in a transformer block, compile to one graph for any number of tokens.

    The backward pass also compiles, and gives the gradients of eager mode.
    """

    def f(x, y, table, temb):
        scale, shift, gate = (temb[:, None] + table).chunk(3, -1)
        normed, total = oxiwarp.gated_residual_ada_norm(x, y, gate, scale, shift)
        return oxiwarp.gated_residual(total, oxiwarp.ada_norm(normed, scale, shift, norm="rms_norm"), gate).sum(-1)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for tokens in (3, 5):
        shapes = [(2, tokens, 32), (2, tokens, 32), (96,), (2, 96)]
        inputs, dy = operands(shapes, torch.float32, device), torch.ones(2, tokens, device=device)
        for ours, own in zip(gradients(compiled, inputs, [dy]), gradients(f, inputs, [dy]), strict=True):
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)


def test_no_rows(device):
    for shape in ((0, 3, 32), (2, 0, 32)):
        x, scale = random(shape, torch.float32, device), random((shape[0], 1, 32), torch.float32, device)
        dx, dscale = gradients(oxiwarp.ada_norm, [x, scale], [x])
        assert dx.shape == shape and dscale.shape == scale.shape and not dscale.any()


def test_forward_mode_is_refused(device):
    x, scale = random(X, torch.float32, device), random((96,), torch.float32, device)
    for call in (
        lambda x: oxiwarp.ada_norm(x, scale),
        lambda x: oxiwarp.gated_residual(x, x, scale),
        lambda x: oxiwarp.gated_residual_ada_norm(x, x, scale, scale),
    ):
        with pytest.raises(RuntimeError, match="called in forward-mode AD"):
            torch.func.jvp(call, (x,), (x,))
