"""Tests modulations and residuals with operands of mixed dtypes, with one column, by frame, and chosen by an index."""

import functools
import itertools

import pytest
import torch
from helpers import DTYPES, random
from norms import BF16, F16, F32, NORMS, ada_norm, gated_residual, modulate
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp
from oxiwarp.ops._mixed import FEW

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NORM = pytest.mark.parametrize("norm", NORMS)
SHAPE = (2, 6, 40)
"""Batches, tokens and columns of `x`."""
CHOSEN = 5
"""Rows of a modulation that an index chooses."""
OWN = {
    "batch": (2, 1, 40),
    "one per row": (2, 6, 1),
    "one per batch": (2, 1, 1),
    "one": (1,),
    "no dimension": (),
    "frames": (2, 3, 1, 40),
    "one per frame": (2, 3, 1, 1),
    "chosen": (CHOSEN, 40),
}
"""Shapes of a modulation."""
FORM = pytest.mark.parametrize("form", OWN)


def index_of(form, device, dtype=torch.int64):
    """Return an index with every integer, or None if the form has no index."""
    if form != "chosen":
        return None
    return (torch.arange(12, device=device, dtype=dtype) * 3 % CHOSEN).view(2, 6)


def whole(value, form):
    """Return the modulation for each row and column of `x`."""
    if form == "chosen":
        return value[index_of(form, value.device)]
    if "frame" in form:
        return value.expand(2, 3, 2, 40).flatten(1, 2)
    return value.expand(SHAPE)


def others(dtype):
    """Return the dtypes other than `dtype` that an operand may have."""
    return [other for other in DTYPES if other != dtype]


@DTYPE
@FORM
def test_modulate(form, dtype, device):
    """`modulate` has the bits of torch's operators. If they return float32, the result is cast."""
    x, index = random(SHAPE, dtype, device), index_of(form, device, torch.int32)
    for own, other in itertools.product(DTYPES, (dtype, F32)):
        scale, shift = random(OWN[form], own, device, 1, 0.5), random(OWN[form], other, device, 2, 0.5)
        y = oxiwarp.modulate(x, scale, shift, index=index)
        a, b = whole(scale, form), whole(shift, form)
        once = {own, other} != {dtype}
        right = modulate(x.float(), a.float(), b.float()).to(dtype) if once else modulate(x, a, b)
        assert torch.equal(y, right) and y.is_contiguous(), f"{own} {other}"


@DTYPE
@FORM
def test_gated_residual(form, dtype, device):
    """`gated_residual` rounds the product to the common dtype of gate and `y`, as torch does."""
    index = index_of(form, device)
    for own, of_y in itertools.product(DTYPES, DTYPES):
        x, y = random(SHAPE, dtype, device), random(SHAPE, of_y, device, 1)
        gate = random(OWN[form], own, device, 2, 0.5)
        for clip in (False, True):
            total = oxiwarp.gated_residual(x, y, gate, index=index, clip=clip)
            right = (x + whole(gate, form) * y).to(dtype)
            if own == of_y != dtype or own != of_y:  # the sum is rounded once, also to 16 bits
                right = (x.float() + (whole(gate, form) * y).float()).to(dtype)
            assert torch.equal(total, right.clip(-65504, 65504) if clip else right), f"{own} {of_y}"
        fast = (x.float() + whole(gate, form).float() * y.float()).to(dtype)
        assert torch.equal(oxiwarp.gated_residual(x, y, gate, index=index, mode="fast"), fast)


@DTYPE
@NORM
@FORM
def test_norms(form, norm, dtype, device):
    """The norms give the same bits with converted operands: with all rows and columns, in float32 if their dtypes
    differ."""
    index = index_of(form, device)
    for own, of_weight, rounding in itertools.product(DTYPES, DTYPES, ("once", "before_weight")):
        x, y = random(SHAPE, dtype, device), random(SHAPE, dtype, device, 1)
        scale, shift, gate = (random(OWN[form], own, device, seed, 0.5) for seed in (2, 3, 4))
        weight = random((40,), of_weight, device, 5, 0.5)
        options = dict(norm=norm, rounding=rounding, mode="exact")
        single = {own, of_weight} != {dtype}
        wide = [t.float() if single else t for t in (whole(scale, form), whole(shift, form), weight)]
        made = oxiwarp.ada_norm(x, scale, shift, weight=weight, index=index, **options)
        converted = functools.partial(
            oxiwarp.ada_norm, scale=wide[0].contiguous(), shift=wide[1].contiguous(), weight=wide[2], **options
        )
        assert torch.equal(made, converted(x)), f"{own} {of_weight} {rounding}"
        normed, total = oxiwarp.gated_residual_ada_norm(x, y, gate, scale, shift, weight=weight, index=index, **options)
        assert torch.equal(total, oxiwarp.gated_residual(x, y, gate, index=index))
        assert torch.equal(normed, converted(total)), f"{own} {of_weight} {rounding}"


@pytest.mark.parametrize("of_y", [F16, BF16], ids=str)
def test_float32_residual(of_y, device):
    """A float32 residual takes a 16-bit branch and gate, as in Kandinsky 5, and the norm of the sum 16-bit weights."""
    x, y, gate = random(SHAPE, F32, device), random(SHAPE, of_y, device, 1), random(OWN["batch"], of_y, device, 2)
    scale, weight, bias = (random((40,), of_y, device, seed, 0.5) for seed in (3, 4, 5))
    normed, total = oxiwarp.gated_residual_ada_norm(x, y, gate, scale, weight=weight, bias=bias)
    assert normed.dtype == total.dtype == F32 and torch.equal(total, x + gate * y)
    right = oxiwarp.ada_norm(total, scale.float(), weight=weight.float(), bias=bias.float())
    assert torch.equal(normed, right)
    norm = oxiwarp.layer_norm(x, weight, bias)
    assert torch.equal(norm, oxiwarp.layer_norm(x, weight.float(), bias.float()))


@torch.enable_grad()
def check_gradients(ours, torchs, tensors, tolerance):
    """Compare the gradients of `ours` with those of `torchs`, a float64 formula of the same operands."""
    made = [tensor.detach().requires_grad_() for tensor in tensors]
    right = [tensor.detach().double().requires_grad_() for tensor in tensors]
    results, references = ours(*made), torchs(*right)
    results, references = ((r if isinstance(r, tuple) else (r,)) for r in (results, references))
    for result in references:
        result.backward(random(result.shape, F32, result.device, 9).double(), retain_graph=True)
    grads = [random(result.shape, F32, result.device, 9).to(result.dtype) for result in results]
    torch.autograd.backward(results, grads)
    for at, (own, reference) in enumerate(zip(made, right, strict=True)):
        assert own.grad.dtype == own.dtype and own.grad.shape == own.shape
        limit = tolerance * reference.grad.abs().max()
        assert (own.grad.double() - reference.grad).abs().max() <= limit, f"operand {at}"


@NORM
@FORM
@pytest.mark.parametrize(("dtype", "own"), [(F32, F32), (F32, BF16), (BF16, F16), (F16, F16)], ids=str)
def test_gradients(form, norm, dtype, own, device):
    """All operands have gradients."""
    index, tolerance = index_of(form, device), 0.03 if BF16 in (dtype, own) else 0.005
    x, y = random(SHAPE, dtype, device), random(SHAPE, own, device, 1)
    scale, shift, gate = (random(OWN[form], own, device, seed, 0.5) for seed in (2, 3, 4))
    weight = random((40,), own, device, 5, 0.5) + 1

    def formula(x, scale, shift, weight):
        return ada_norm(x, whole(scale, form), whole(shift, form), norm=norm, weight=weight)

    def ours(x, scale, shift, weight):
        return oxiwarp.ada_norm(x, scale, shift, norm=norm, weight=weight, index=index, mode="fast")

    check_gradients(ours, formula, (x, scale, shift, weight), tolerance)
    check_gradients(
        lambda x, y, gate: oxiwarp.gated_residual(x, y, gate, index=index, mode="fast"),
        lambda x, y, gate: gated_residual(x, y, whole(gate, form)),
        (x, y, gate),
        tolerance,
    )
    check_gradients(
        lambda x, scale, shift: oxiwarp.modulate(x, scale, shift, index=index, mode="fast"),
        lambda x, scale, shift: modulate(x, whole(scale, form), whole(shift, form)),
        (x, scale, shift),
        tolerance,
    )

    def both(x, y, gate, scale, shift, weight):
        total = gated_residual(x, y, whole(gate, form))
        return formula(total, scale, shift, weight), total

    def ours_both(x, y, gate, scale, shift, weight):
        return oxiwarp.gated_residual_ada_norm(
            x, y, gate, scale, shift, norm=norm, weight=weight, index=index, mode="fast"
        )

    check_gradients(ours_both, both, (x, y, gate, scale, shift, weight), 2 * tolerance)


@FORM
def test_fakes_and_compile(form, device):
    """The operators have fake kernels for these operands, and run under torch.compile."""
    index, x, y = index_of(form, device), random(SHAPE, BF16, device), random(SHAPE, F32, device, 1)
    gate = random(OWN[form], F16, device, 2)

    def call(x, y, gate):
        total = oxiwarp.gated_residual(y, x, gate, index=index)
        made = oxiwarp.gated_residual_ada_norm(x, y, gate, gate, gate, index=index, norm="rms_norm", rounding="once")
        return total, *made, oxiwarp.modulate(x, gate, index=index), oxiwarp.ada_norm(x, gate, index=index)

    eager = call(x, y, gate)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, y, gate)
    assert all(torch.equal(one, other) for one, other in zip(eager, compiled, strict=True))
    if "frame" not in form:
        ops = torch.ops.oxiwarp
        torch.library.opcheck(ops.modulate, (x, gate, None, index, True))
        torch.library.opcheck(ops.gated_residual, (x, y, gate, None, index, True, False))
        torch.library.opcheck(ops.ada_norm, (x, gate, None, gate, None, None, None, index, True, 1e-6, True, False))
        both = (x, y, gate, None, gate, None, gate, None, None, None, index, False, 1e-6, True, True, False)
        torch.library.opcheck(ops.gated_residual_ada_norm, both)


@torch.enable_grad()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, FEW, FEW + 1, 200])
def test_gradients_of_chosen_rows(rows, dtype, device):
    """The gradient of a modulation that an index chooses has no atomics: it has the same bits in two calls, and no
    operator adds to an index, except one that torch documents as deterministic on this device."""
    tokens = 500
    x, dy = random((tokens, 40), dtype, device), random((tokens, 40), dtype, device, 1)
    index = torch.arange(tokens, device=device) * 7 % max(1, rows - 1)  # the last row is not chosen
    found = []
    for _ in range(2):
        scale = random((rows, 40), F32, device, 2, 0.5).requires_grad_()
        with Recorded() as recorded:
            oxiwarp.modulate(x, scale, index=index).backward(dy)
        found.append(scale.grad)
    adding = {name for name in recorded.names if "index_add" in name or "scatter" in name or "index_put" in name}
    allowed = {"aten.index_put_.default"} if device.type == "cuda" else {"aten.index_add_.default"}
    assert adding <= (allowed if rows > FEW else set())
    terms, none = dy.double() * x.double(), torch.zeros(rows, 40, dtype=torch.float64, device=device)
    expected, sizes = none.index_add(0, index, terms), none.index_add(0, index, terms.abs())
    assert torch.equal(*found)
    # Each of the products and additions in float32 has a relative error of at most 2^-24.
    assert ((found[0].double() - expected).abs() <= (tokens + 1) * 2**-24 * sizes).all()
    assert (found[0][-1] == 0).all() or rows == 1


class Recorded(TorchDispatchMode):
    """Records the names of the operators that torch runs."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def test_refuses(device):
    """Wrong indices and modulations raise errors that name the argument, also without data."""
    for place in (device, torch.device("meta")):
        x = torch.zeros(SHAPE, device=place)
        scale, index = x.new_zeros(CHOSEN, 40), torch.zeros(2, 6, dtype=torch.int64, device=place)
        for changed, text in (
            (dict(index=index[:1]), r"index has shape \[1, 6\], expected \[2, 6\]"),
            (dict(index=index.float()), "index is f32, expected int64 or int32"),
            (dict(index=index.t().contiguous().t()), "index .*must be contiguous"),
            (dict(index=index, scale=scale[0]), r"scale has shape \[40\], expected \[40, 40\], because there is an"),
            (dict(index=index, shift=scale[1:]), r"shift has shape \[4, 40\], expected \[5, 40\], because"),
            (dict(scale=x.new_zeros(2, 4, 1, 40)), r"scale has shape \[2, 4, 1, 40\], expected one that broadcasts"),
            (
                dict(scale=x.new_zeros(2, 6, 1), scale_table=x.new_zeros(40)),
                r"scale has shape .* because there is a table",
            ),
            (dict(scale=scale[0].double()), "scale is float64, expected f32, f16 or bf16"),
        ):
            operands = {"scale": scale, **changed}
            with pytest.raises(RuntimeError, match=f"^ada_norm: {text}"):
                oxiwarp.ada_norm(x, **operands)
            with pytest.raises(RuntimeError, match=f"^gated_residual_ada_norm: {text}"):
                oxiwarp.gated_residual_ada_norm(x, x, None, **operands)
        with pytest.raises(TypeError, match="index is list, expected a torch.Tensor"):
            oxiwarp.modulate(x, scale, index=[0])
