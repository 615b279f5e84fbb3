"""Tests that `oxiwarp.gated_residual` and `gated_residual_ada_norm` have the bits of eager torch."""

import pytest
import torch
from helpers import DTYPES, random
from norms import BF16, F16, F32, FORMS, NORMS, WIDTHS, ada_norm, check_chain, doubles, gated_residual, operand

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NORM = pytest.mark.parametrize("norm", NORMS)


def make(form, shape, dtype, device, single=False, table=False):
    """Return two values: `[x, y, gate]`, and a dict of optional operands. If `table` is true, the dict has a
    gate table, otherwise it is empty.

    If `single` is true, gate and table are float32.
    """
    x, y = random(shape, dtype, device), random(shape, dtype, device, 1)
    own = F32 if single else dtype
    tables = {"gate_table": random((shape[2],), own, device, 3, 0.3)} if table else {}
    return [x, y, operand(form, shape, own, device, 2)], tables


def check(arguments, tables, what):
    """Check that `gated_residual` equals torch bit for bit.

    The bits are also equal on the CPU, because `gated_residual` computes no sum over a row, in which the order of
    additions could differ from torch.
    """
    x, y, gate = arguments
    for clip in (False, True):
        total = oxiwarp.gated_residual(x, y, gate, **tables, clip=clip)
        assert total.shape == x.shape and total.dtype == x.dtype and total.is_contiguous()
        own = gated_residual(x, y, gate, **tables, clip=clip)
        assert torch.equal(total, own), f"{what}: {(total != own).sum()} values differ"
    gate = gate if not tables else tables["gate_table"] + gate
    once = (x.float() + gate.float() * y.float()).to(x.dtype)
    assert torch.equal(oxiwarp.gated_residual(*arguments, **tables, mode="fast"), once), f"{what}, fast"


@DTYPE
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2049])
def test_forms(cols, form, dtype, device):
    for single in (False, True):
        for table in (False, True):
            check(*make(form, (3, 5, cols), dtype, device, single, table), f"{form}, float32 {single}, table {table}")


@DTYPE
@pytest.mark.parametrize("cols", WIDTHS)
def test_widths(cols, dtype, device):
    for single in (False, True):
        check(*make("batch slice", (2, 16, cols), dtype, device, single), f"{cols} columns, float32 {single}")


ROW_GATES = [(3, 5, 1), (3, 1, 1), (5, 1), (1, 5, 1), (1,), (1, 1, 1)]


@DTYPE
@pytest.mark.parametrize("of_gate", ROW_GATES, ids=str)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2049])
def test_one_number_per_row(cols, of_gate, dtype, device):
    """A gate may have only one column. It then has one value per token, one per batch entry, or one for all
    rows."""
    for single in (False, True):
        x, y = random((3, 5, cols), dtype, device), random((3, 5, cols), dtype, device, 1)
        gate = random(of_gate, F32 if single else dtype, device, 2)
        check([x, y, gate], {}, f"gate {of_gate}, float32 {single}")
        apart = random((*of_gate[:-1], 3), gate.dtype, device)[..., 1:2].copy_(gate)
        check([x, y, apart], {}, f"gate {of_gate} with gaps, float32 {single}")


def test_gates_per_head(device):
    """A gate may have one value per head, with the shape `[1, 1, H, 1]`, as in Lumina-Next."""
    x, y, gate = (random(shape, BF16, device, seed) for seed, shape in enumerate([(2, 5, 3, 24)] * 2 + [(1, 1, 3, 1)]))
    check([x, y, gate], {}, "heads")


@DTYPE
@pytest.mark.parametrize("of_gate", ROW_GATES, ids=str)
def test_gradients_of_row_gates(of_gate, dtype, device):
    x, y, gate = (random(shape, dtype, device, seed) for seed, shape in enumerate([(3, 5, 40), (3, 5, 40), of_gate]))
    inputs = [tensor.requires_grad_() for tensor in (x, y, gate)]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    dtotal = random((3, 5, 40), dtype, device, 3)
    with torch.enable_grad():
        ours = torch.autograd.grad(oxiwarp.gated_residual(*inputs), inputs, dtotal)
        right = torch.autograd.grad(wide[0] + wide[2] * wide[1], wide, dtotal.double())
    for own, double in zip(ours, right, strict=True):
        assert own.dtype == dtype and own.shape == double.shape
        torch.testing.assert_close(own.double(), double, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_row_gates_of_the_operator(device):
    """With one gate value per token, opcheck, torch.compile and meta tensors work. A gate table is then an
    error, because it needs a gate with as many columns as `x`."""
    x, y, gate = (random(shape, BF16, device, seed) for seed, shape in enumerate([(2, 3, 16), (2, 3, 16), (2, 3, 1)]))
    torch.library.opcheck(torch.ops.oxiwarp.gated_residual.default, (x, y, gate, None, None, True, False))
    torch.compiler.reset()
    compiled = torch.compile(oxiwarp.gated_residual, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y, gate), x + gate * y)
    meta = [tensor.to("meta") for tensor in (x, y, gate)]
    assert oxiwarp.gated_residual(*meta).shape == x.shape
    for tensors in ([x, y, gate], meta):
        with pytest.raises(RuntimeError, match=r"gate has shape \[2, 3, 1\], expected a last dimension of 16, because"):
            oxiwarp.gated_residual(*tensors, gate_table=tensors[0][0, 0])
        with pytest.raises(RuntimeError, match=r"gate has shape \[2, 2, 1\], expected one that broadcasts"):
            oxiwarp.gated_residual(*tensors[:2], tensors[2][:, :1].expand(2, 2, 1))


@DTYPE
def test_modes_differ(dtype, device):
    arguments, _ = make("batch", (2, 16, 640), dtype, device)
    exact, fast = (oxiwarp.gated_residual(*arguments, mode=mode) for mode in ("exact", "fast"))
    differ = (exact != fast).double().mean()
    assert differ == 0 if dtype == F32 else differ > 0.02


@DTYPE
def test_clip(dtype, device):
    """The option `clip` limits the sum to the range of float16 in any dtype. As with `torch.clip`, NaN stays
    NaN."""
    x = torch.tensor([6e4, -6e4, float("inf"), -float("inf"), float("nan"), 1.0], device=device).to(dtype)
    y, gate = torch.tensor([6e4, -6e4, 1.0, 1.0, 1.0, 2.0], device=device).to(dtype), torch.ones(6, device=device)
    for own in (gate, gate.to(dtype)):
        for mode in ("exact", "fast"):
            total = oxiwarp.gated_residual(x, y, own, clip=True, mode=mode)
            torch.testing.assert_close(total, (x + y).clip(-65504, 65504), rtol=0, atol=0, equal_nan=True)
            free = oxiwarp.gated_residual(x, y, own, mode=mode)
            torch.testing.assert_close(free, x + y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4, 8), (0, 8), (2, 0, 8)], ids=str)
def test_ranks_and_no_rows(shape, device):
    x, y, gate = random(shape, BF16, device), random(shape, BF16, device, 1), random((8,), BF16, device, 2)
    assert torch.equal(oxiwarp.gated_residual(x, y, gate), x + gate * y)
    normed, total = oxiwarp.gated_residual_ada_norm(x, y, None, gate)
    assert torch.equal(total, x + y) and torch.equal(normed, oxiwarp.ada_norm(x + y, gate))


@DTYPE
def test_strided_and_unaligned(dtype, device):
    """`gated_residual` accepts slices and unaligned base addresses of each operand."""
    arguments, _ = make("token", (2, 3, 64), dtype, device)
    for name, tensor in enumerate(arguments):
        for start in (0, 1, 64):
            view = random((2, 3, 130), dtype, device)[..., start : start + 64].copy_(tensor)
            check([*arguments[:name], view, *arguments[name + 1 :]], {}, f"operand {name} from {start} on")


def both(arguments, gate_table, operands, norm, **options):
    """Check that `gated_residual_ada_norm` equals `gated_residual` followed by `ada_norm`, and return the
    results."""
    normed, total = oxiwarp.gated_residual_ada_norm(*arguments, **operands, **gate_table, norm=norm, **options)
    mode = {"mode": options.get("mode", "exact")}
    x, y, gate = arguments
    if gate is None:
        own = gated_residual(x, y, None, clip=options.get("clip", False))
    else:
        own = oxiwarp.gated_residual(x, y, gate, **gate_table, clip=options.get("clip", False), **mode)
    assert torch.equal(total, own)
    assert torch.equal(normed, oxiwarp.ada_norm(total, **operands, norm=norm, **mode))
    return normed, total


@DTYPE
@NORM
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cols", [7, 64, 640, 25000])
def test_both_in_one_pass(cols, form, norm, dtype, device):
    """`gated_residual_ada_norm` gives the same bits as `gated_residual` followed by `ada_norm`.

    The test covers combinations of 16-bit and float32 operands. It also covers rows of 25,000 columns, which
    do not fit in shared memory.
    """
    shape = (2, 3, cols)
    for single, gate_single in ((False, False), (True, True), (False, True)):
        arguments, table = make(form, shape, dtype, device, gate_single, table=True)
        own = F32 if single else dtype
        operands = {key: operand(form, shape, own, device, seed) for seed, key in enumerate(("scale", "shift"), 4)}
        both(arguments, table, operands, norm)
        both(arguments, {}, operands, norm, mode="fast")
        vectors = ("scale_table", "shift_table", "weight", "bias")
        operands |= {key: random((cols,), own, device, seed, 0.5) for seed, key in enumerate(vectors, 6)}
        both([*arguments[:2], None], {}, operands, norm, clip=True)


@DTYPE
@NORM
@pytest.mark.parametrize("cols", WIDTHS)
def test_bits_of_torch(cols, norm, dtype, device):
    """On a GPU, `gated_residual_ada_norm` equals torch bit for bit. Scale and shift may be float32, as in
    Wan."""
    shape = (2, 16 if device.type == "cuda" else 2, cols)
    for single in (False, True):
        arguments, _ = make("batch slice", shape, dtype, device, single)
        own = F32 if single else dtype
        operands = [operand("batch slice", shape, own, device, seed) for seed in (4, 5)]
        normed, total = oxiwarp.gated_residual_ada_norm(*arguments, *operands, norm=norm)
        eager = gated_residual(*arguments)
        assert torch.equal(total, eager)
        right = ada_norm(*doubles([eager, *operands]), norm=norm)
        check_chain(normed, ada_norm(eager, *operands, norm=norm), right, f"{cols} {dtype}, float32 {single}")


@NORM
def test_clips_before_the_norm(norm, device):
    x = torch.full((2, 3, 64), 40000.0, dtype=F16, device=device)
    x[..., ::2] *= -1
    scale = random((64,), F16, device, 1, 0.3)
    normed, total = both([x, x, None], {}, {"scale": scale}, norm, clip=True)
    assert (total.abs() == 65504).all() and normed.isfinite().all()


@DTYPE
@pytest.mark.parametrize("cols", [129, 3072, 25000])
def test_batch_invariant(cols, dtype, device):
    (x, y, gate), _ = make("vector", (1, 37, cols), dtype, device)
    scale = operand("vector", (1, 37, cols), dtype, device, 4)
    normed, total = oxiwarp.gated_residual_ada_norm(x, y, gate, scale, gate)
    for row in (slice(0, 1), slice(17, 18), slice(30, 37)):
        alone = oxiwarp.gated_residual_ada_norm(x[:, row], y[:, row], gate, scale, gate)
        assert torch.equal(alone[0], normed[:, row]) and torch.equal(alone[1], total[:, row])
        assert torch.equal(oxiwarp.gated_residual(x[:, row], y[:, row], gate), total[:, row])
