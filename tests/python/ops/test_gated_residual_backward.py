"""Tests of the gradients of `gated_residual` and of the operator that computes them, `gated_residual_backward`,
for every form of the gate."""

import re

import pytest
import torch
from gradients import check, gradients, wide
from helpers import DTYPES, random

import oxiwarp

OP = torch.ops.oxiwarp.gated_residual_backward
F32 = torch.float32
X = (2, 5, 3, 24)
# Shapes of gates for `X`, and whether the operator computes the gradient. torch's operators compute the
# gradient of a gate with several rows that is broadcast along the first dimensions.
GATES = {
    (24,): True,
    (1, 1, 1, 24): True,
    (2, 1, 1, 24): True,
    (2, 5, 1, 24): True,
    (2, 5, 3, 24): True,
    (5, 3, 24): False,
    (1, 1, 3, 24): False,
    (2, 5, 3, 1): True,
    (2, 5, 1, 1): True,
    (2, 1, 1, 1): True,
    (3, 1): True,
    (1,): True,
}
DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def inputs(gate, dtype, device, single=False):
    return [random(X, dtype, device), random(X, dtype, device, 1), random(gate, F32 if single else dtype, device, 2)]


@pytest.fixture
def calls(monkeypatch):
    """Return a list to which each call of the operator appends the shape of its gate."""
    from oxiwarp.ops import _modulation_backward as module

    shapes, own = [], module.gated_residual_backward
    monkeypatch.setattr(
        module,
        "gated_residual_backward",
        lambda dsum, y, gate, dgate: (shapes.append(tuple(gate.shape)), own(dsum, y, gate, dgate))[1],
    )
    return shapes


@DTYPE
@pytest.mark.parametrize("single", [False, True], ids=["same", "float32"])
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gates(gate, single, dtype, device, calls):
    """The gradients match float64. The gradient of `y` has the bits of torch's autograd."""
    operands, dy = inputs(gate, dtype, device, single), random(X, dtype, device, 3)
    ours = gradients(oxiwarp.gated_residual, operands, [dy])
    right = gradients(lambda x, y, gate: x + gate * y, wide(operands), [dy.double()])
    check(ours, right, f"gate {gate}", 4)
    assert [g.dtype for g in ours] == [x.dtype for x in operands]
    assert bool(calls) == GATES[gate]
    (own,) = gradients(lambda y: (operands[0] + operands[2] * y).to(dtype), [operands[1]], [dy])
    assert torch.equal(ours[0], dy) and torch.equal(ours[1], own)


@DTYPE
def test_table(dtype, device):
    operands = [*inputs((2, 1, 1, 24), dtype, device), random((24,), F32, device, 4)]
    dy = random(X, dtype, device, 3)
    f = lambda x, y, gate, table: oxiwarp.gated_residual(x, y, gate, gate_table=table)  # noqa: E731
    right = gradients(lambda x, y, gate, table: x + (gate + table) * y, wide(operands), [dy.double()])
    check(gradients(f, operands, [dy]), right, "table")


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_only_what_is_asked_for(gate, device):
    """If only one operand requires grad, its gradient has the same bits as if all operands require grad."""
    operands, dy = inputs(gate, torch.bfloat16, device), random(X, torch.bfloat16, device, 3)
    every = gradients(oxiwarp.gated_residual, operands, [dy])
    for at in range(3):
        others = operands[:at] + operands[at + 1 :]
        f = lambda x, at=at, others=others: oxiwarp.gated_residual(*others[:at], x, *others[at:])  # noqa: E731
        (alone,) = gradients(f, [operands[at]], [dy])
        assert torch.equal(alone, every[at])


def test_strides(device):
    """`y` and the gate may be slices, and the incoming gradient may be expanded or transposed."""
    y = random((2, 7, 48), torch.bfloat16, device)[:, 2:, 8:40]
    gates = random((2, 5, 6, 32), torch.bfloat16, device, 1)
    for gate in (gates[:, :1, 2], gates[:, :, 2], gates[:, :, 2, :1]):
        for dy in (
            torch.ones((), dtype=y.dtype, device=device).expand(y.shape),
            random((2, 32, 5), y.dtype, device).mT,
        ):
            operands = [torch.zeros_like(y), y, gate]
            right = gradients(lambda x, y, gate: x + gate * y, wide(operands), [dy.double()])
            check(gradients(oxiwarp.gated_residual, operands, [dy]), right, "slices")


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8)], ids=str)
def test_no_rows(shape, device):
    for gate in ((8,), (1,), (*shape[:-1], 1), shape):
        operands = [random(of, F32, device) for of in (shape, shape, gate)]
        _, dy, dgate = gradients(oxiwarp.gated_residual, operands, [operands[0]])
        assert dy.shape == shape and dgate.shape == gate and not dgate.any()


@pytest.mark.parametrize("name", ["vector", "groups"])
def test_same_bits_each_time(name, device):
    y, dsum = (random((1200, 520), torch.bfloat16, device, seed) for seed in (0, 1))
    gate = random((520,) if name == "vector" else (4, 520), F32, device, 2)
    first, again = OP(dsum, y, gate, True), OP(dsum, y, gate, True)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


@DTYPE
def test_opcheck(dtype, device):
    y, dsum = (random((4, 3, 32), dtype, device, seed) for seed in (0, 1))
    for shape in ((32,), (4, 32), (4, 3, 32), (4, 3, 1)):
        for of in (dtype, F32):
            for wanted in (True, False):
                torch.library.opcheck(OP.default, (dsum, y, random(shape, of, device, 2), wanted))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: OP(x[:2], x, w, True), "dsum has shape [2, 8], expected [4, 8]"),
        (lambda x, w: OP(x.half(), x, w, True), "dsum is f16, expected f32"),
        (lambda x, w: OP(x, x, w.half(), True), "gate is f16, expected f32"),
        (lambda x, w: OP(x, x, w[:4], True), "gate has shape [4], expected [8], [groups, 8] with up to 65535 groups"),
        (lambda x, w: OP(x, x, x[:3], True), "gate has shape [3, 8], expected [8], [groups, 8] with up to"),
        (lambda x, w: OP(x, x, x[:2, :1], True), "gate has shape [2, 1], expected [8], [groups, 8] with up to"),
        (lambda x, w: OP(x, x, w[0], True), "gate has shape [], expected [8], [groups, 8] with up to"),
    ],
)
def test_bad_input(call, message, device):
    x, gate = random((4, 8), F32, device), torch.ones(8, device=device)
    for tensors in ((x, gate), (x.to("meta"), gate.to("meta"))):
        with pytest.raises(RuntimeError, match="gated_residual_backward: " + re.escape(message)):
            call(*tensors)
