"""Tests of the epilogues of `oxiwarp.linear`: gradients, layouts, error messages and bits.

In mode "exact", a linear with an epilogue gives the same bits as the separate functions. In mode "fast", the
result is rounded only once.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from helpers import poisoned_like, random
from test_linear import BF16, BIAS, DTYPE, operands

import oxiwarp

ACTIVATIONS = ("gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick", "silu")
GATED = ("geglu", "swiglu", "mul_and_silu", "silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
EPILOGUE = pytest.mark.parametrize("epilogue", (*ACTIVATIONS, *GATED))
N = 48
GATES = {
    "absent": None,
    "vector": (N,),
    "per batch": (3, 1, N),
    "per token": (3, 7, N),
    "per row": (3, 7, 1),
    "per batch, one column": (3, 1, 1),
    "number": (1,),
}


def gate_of(shape, dtype, device):
    return None if shape is None else random(GATES[shape], dtype, device, 4) if GATES[shape] else None


def separate(x, weight, bias, residual=None, gate=None, epilogue=None, mode="exact"):
    """Return the result of `linear` and then of the separate function."""
    y = oxiwarp.linear(x, weight, bias)
    if epilogue is not None:
        return getattr(oxiwarp, epilogue)(y, mode=mode)
    return y + residual if gate is None else oxiwarp.gated_residual(residual, y, gate, mode=mode)


@DTYPE
@BIAS
@EPILOGUE
@pytest.mark.parametrize(("rows", "depth"), [((1,), 8), ((2, 67), 136), ((), 24)], ids=str)
def test_activations_have_the_bits_of_the_separate_functions(rows, depth, epilogue, with_bias, dtype, device):
    x, weight, bias = operands(rows, depth, N, dtype, device)
    bias = bias if with_bias else None
    y = oxiwarp.linear(x, weight, bias, epilogue=epilogue)
    assert y.is_contiguous() and y.shape == (*rows, N // 2 if epilogue in GATED else N)
    assert torch.equal(y, separate(x, weight, bias, epilogue=epilogue))


@DTYPE
@BIAS
@pytest.mark.parametrize("single", [False, True], ids=["gate of the dtype", "gate in float32"])
@pytest.mark.parametrize("shape", GATES)
def test_residuals_have_the_bits_of_the_separate_functions(shape, single, with_bias, dtype, device):
    x, weight, bias = operands((3, 7), 72, N, dtype, device)
    bias, residual = bias if with_bias else None, random((3, 7, N), dtype, device, 3)
    gate = gate_of(shape, torch.float32 if single else dtype, device)
    y = oxiwarp.linear(x, weight, bias, residual=residual, gate=gate)
    assert y.is_contiguous() and torch.equal(y, separate(x, weight, bias, residual, gate))


def fast_reference(x, weight, bias, residual, gate, epilogue):
    """Return the result in float64 and, for each element of it, the sum of the magnitudes of its terms."""
    y = F.linear(*(None if t is None else t.double() for t in (x, weight, bias)))
    if epilogue is not None:
        gates, others = y.chunk(2, -1) if epilogue == "silu_and_mul" else (y, torch.ones_like(y))
        f = F.silu(gates) if "silu" in epilogue else F.gelu(gates, approximate="tanh")
        return f * others, 30 * others.abs() + 30 * f.abs()
    return residual.double() + gate.double() * y, residual.double().abs() + 30 * gate.double().abs()


@DTYPE
@pytest.mark.parametrize("epilogue", ["gelu_tanh", "silu", "silu_and_mul", None])
def test_fast_rounds_once(epilogue, dtype, device):
    """With mode "fast", the error is at most half an ulp of the result, plus a small float32 error."""
    x, weight, bias = operands((3, 50), 64, N, dtype, device)
    residual = random((3, 50, N), dtype, device, 3) if epilogue is None else None
    gate = random((3, 1, N), dtype, device, 4) if epilogue is None else None
    y = oxiwarp.linear(x, weight, bias, epilogue=epilogue, residual=residual, gate=gate, mode="fast")
    right, size = fast_reference(x, weight, bias, residual, gate, epilogue)
    allowed = 0.51 * torch.finfo(dtype).eps * right.abs() + 2.0**-19 * size
    assert ((y.double() - right).abs() <= allowed).all()
    exact = oxiwarp.linear(x, weight, bias, epilogue=epilogue, residual=residual, gate=gate)
    assert not ((exact.double() - right).abs() <= allowed).all(), "the check would accept more roundings"


def test_other_layouts(device):
    """The operands may have any strides. The result has the same bits as for contiguous copies."""
    x, weight, bias = operands((2, 6, 4), 32, 16, BF16, device)
    residual = random((2, 6, 4, 16), BF16, device, 3)
    expected = oxiwarp.linear(x, weight, bias, residual=residual)
    wide = torch.zeros(2, 6, 4, 40, dtype=BF16, device=device)
    others = [
        residual.transpose(1, 2).contiguous().transpose(1, 2),
        residual.mT.contiguous().mT,
        torch.cat((residual, residual), 1)[:, :6],
        wide[..., 8:24].copy_(residual),
        torch.zeros(2, 6, 4, 17, dtype=BF16, device=device)[..., 1:].copy_(residual),
    ]
    for other in others:
        assert torch.equal(oxiwarp.linear(x, weight, bias, residual=other), expected), other.stride()
    for epilogue in ("gelu_tanh", "geglu"):
        right = oxiwarp.linear(x, weight, bias, epilogue=epilogue)
        columns = weight.t().contiguous().t()
        assert torch.equal(oxiwarp.linear(x.mT.contiguous().mT, columns, bias, epilogue=epilogue), right)


def test_empty(device):
    x, weight, bias = operands((2, 3), 16, 16, BF16, device)
    for epilogue, columns in (("gelu", 16), ("swiglu", 8)):
        assert oxiwarp.linear(x[:0], weight, bias, epilogue=epilogue).shape == (0, 3, columns)
        assert oxiwarp.linear(x, weight[:0], bias[:0], epilogue=epilogue).shape == (2, 3, 0)
    residual = torch.empty(2, 0, 16, dtype=BF16, device=device)
    assert oxiwarp.linear(x[:, :0], weight, bias, residual=residual, gate=bias).shape == (2, 0, 16)


CALLS = {
    "activation": {"epilogue": "gelu_tanh"},
    "gated activation": {"epilogue": "silu_and_mul"},
    "residual": {"residual": "residual"},
    "gated residual": {"residual": "residual", "gate": "gate"},
    "f32 gate": {"residual": "residual", "gate": "gate32"},
}
CALL = pytest.mark.parametrize("call", CALLS)


def inputs_of(call, dtype, device):
    """Return the tensors of a call by name, and its epilogue."""
    x, weight, bias = operands((2, 5), 40, 32, dtype, device)
    tensors = {"x": x, "weight": weight, "bias": bias}
    if "residual" in CALLS[call]:
        tensors["residual"] = random((2, 5, 32), dtype, device, 3)
    if "gate" in CALLS[call]:
        single = CALLS[call]["gate"] == "gate32"
        tensors["gate"] = random((2, 1, 32), torch.float32 if single else dtype, device, 4)
    return tensors, CALLS[call].get("epilogue")


@CALL
def test_out(call, device):
    tensors, epilogue = inputs_of(call, BF16, device)
    expected = oxiwarp.linear(**tensors, epilogue=epilogue)
    out = poisoned_like(expected)
    version = out._version
    assert oxiwarp.linear(**tensors, epilogue=epilogue, out=out) is out and out._version > version
    assert torch.equal(out, expected)
    store = torch.full((2, 5, 64), 77.0, dtype=BF16, device=device)
    cols = expected.shape[-1]
    oxiwarp.linear(**tensors, epilogue=epilogue, out=store[..., 16 : 16 + cols])
    assert torch.equal(store[..., 16 : 16 + cols], expected)
    assert (store[..., :16] == 77.0).all() and (store[..., 16 + cols :] == 77.0).all()


@DTYPE
@CALL
def test_gradients(call, dtype, device):
    """The gradients have the same bits as the gradients of separate calls: `linear`, and then the activation or
    residual.
    """
    tensors, epilogue = inputs_of(call, dtype, device)
    tensors = {name: t.requires_grad_() for name, t in tensors.items()}
    with torch.enable_grad():
        y, right = oxiwarp.linear(**tensors, epilogue=epilogue), separate(**tensors, epilogue=epilogue)
        dy = random(y.shape, dtype, device, 5)
        ours, own = (torch.autograd.grad(t, tuple(tensors.values()), dy) for t in (y, right))
    assert torch.equal(y, right)
    for name, a, b in zip(tensors, ours, own, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), name


@CALL
def test_some_gradients(call, device):
    """A gradient does not depend on which other gradients are wanted."""
    tensors, epilogue = inputs_of(call, BF16, device)

    def gradients(wanted):
        leaves = {name: t.detach().requires_grad_(name in wanted) for name, t in tensors.items()}
        with torch.enable_grad():
            y = oxiwarp.linear(**leaves, epilogue=epilogue)
            return torch.autograd.grad(y.float().square().sum(), [leaves[name] for name in wanted])

    every = dict(zip(tensors, gradients(tuple(tensors)), strict=True))
    for name in tensors:
        assert torch.equal(gradients((name,))[0], every[name]), name


@CALL
def test_operator(call, device):
    """The torch operators pass opcheck. `linear` works with torch.compile, including gradients and changing
    sizes, and with meta tensors."""
    tensors, epilogue = inputs_of(call, BF16, device)
    name = "gated_residual" if "residual" in tensors else "activation" if call == "activation" else "gated_activation"
    options = {"activation": (2, True), "gated_activation": (6, True, True), "gated_residual": (True,)}[name]
    arguments = [*tensors.values(), *([None] if call == "residual" else []), *options]
    op, op_out = (getattr(torch.ops.oxiwarp, f"linear_{name}{end}").default for end in ("", "_out"))
    y = op(*arguments)
    assert torch.equal(y, oxiwarp.linear(**tensors, epilogue=epilogue))
    torch.library.opcheck(op, arguments)
    torch.library.opcheck(op_out, (*arguments, torch.empty_like(y)))
    torch.compiler.reset()
    compiled = torch.compile(oxiwarp.linear, fullgraph=True, backend="aot_eager")
    with torch.enable_grad():
        for rows in (5, 4, 3):
            given = {name: t[:, :rows] if t.dim() == 3 else t for name, t in tensors.items()}
            given = {name: t.detach().clone().requires_grad_() for name, t in given.items()}
            y, right = (f(**given, epilogue=epilogue) for f in (compiled, oxiwarp.linear))
            assert torch.equal(y, right)
            ours, own = (torch.autograd.grad(t.float().square().sum(), tuple(given.values())) for t in (y, right))
            assert all(torch.equal(a, b) for a, b in zip(ours, own, strict=True))
    meta = oxiwarp.linear(**{name: t.detach().to("meta") for name, t in tensors.items()}, epilogue=epilogue)
    assert meta.device.type == "meta" and meta.dtype == BF16
    assert meta.shape == oxiwarp.linear(**tensors, epilogue=epilogue).shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, w, r: oxiwarp.linear(x, w[:8], epilogue="swiglu"),
            "weight has shape [8, 16], expected [N, 16] with N a multiple of 16",
        ),
        (lambda x, w, r: oxiwarp.linear(x, w, gate=r), "gate is given without residual"),
        (lambda x, w, r: oxiwarp.linear(x, w, residual=r[:, :8]), "residual has shape [3, 8], expected [3, 32]"),
        (lambda x, w, r: oxiwarp.linear(x, w, residual=r.half()), "residual is f16, expected bf16"),
        (
            lambda x, w, r: oxiwarp.linear(x, w, residual=r, gate=r.half()),
            "gate is f16, expected bf16 (as x) or f32",
        ),
        (
            lambda x, w, r: oxiwarp.linear(x, w, residual=r, gate=r[:, :8]),
            "gate has shape [3, 8], expected one that broadcasts to [3, 32]",
        ),
        (
            lambda x, w, r: oxiwarp.linear(x, w, epilogue="geglu", out=r.clone()),
            "out has shape [3, 32], expected [3, 16]",
        ),
    ],
)
def test_bad_input(call, message, device):
    for where in (device, "meta"):
        x, weight, _ = (t.to(where) for t in operands((3,), 16, 32, BF16, device))
        residual = random((3, 32), BF16, device, 3).to(where)
        with pytest.raises(RuntimeError, match="^linear: " + re.escape(message) + "$"):
            call(x, weight, residual)


def test_bad_values_and_types(device):
    x, weight, _ = operands((3,), 16, 32, BF16, device)
    residual, gate = (random((3, 32), BF16, device, seed) for seed in (3, 4))
    names = ", ".join(map(repr, (*ACTIVATIONS, *GATED)))
    with pytest.raises(ValueError, match=f"^linear: epilogue is 'relu', expected None or one of {names}$"):
        oxiwarp.linear(x, weight, epilogue="relu")
    with pytest.raises(ValueError, match="^linear: epilogue is 'gelu', expected None, because there is a residual$"):
        oxiwarp.linear(x, weight, epilogue="gelu", residual=residual)
    with pytest.raises(ValueError, match="^linear: mode is 'quick', expected 'exact' or 'fast'$"):
        oxiwarp.linear(x, weight, mode="quick")
    with pytest.raises(TypeError, match=r"^linear: gate is float, expected a torch.Tensor$"):
        oxiwarp.linear(x, weight, residual=residual, gate=1.0)
    with pytest.raises(RuntimeError, match="^linear: out overlaps residual$"):
        oxiwarp.linear(x, weight, residual=residual, out=residual)
    with pytest.raises(RuntimeError, match="^linear: out overlaps gate$"):
        oxiwarp.linear(x, weight, residual=residual, gate=gate, out=gate)
    with pytest.raises(RuntimeError, match="^linear: called in forward-mode AD"):
        torch.func.jvp(lambda t: oxiwarp.linear(t, weight, epilogue="silu"), (x,), (x,))


@DTYPE
@pytest.mark.parametrize("with_gate", [False, True], ids=["residual", "gated residual"])
def test_large_calls(with_gate, dtype, cuda):
    """Large products use other tiles than small ones. Their results have the same bits as separate calls of `linear`
    and the activation or residual.
    """
    x, weight, bias = operands((2, 2056), 520, 3088, dtype, cuda)
    residual = random((2, 2056, 3088), dtype, cuda, 3)
    gate = random((2, 1, 3088), dtype, cuda, 4) if with_gate else None
    assert torch.equal(
        oxiwarp.linear(x, weight, bias, residual=residual, gate=gate), separate(x, weight, bias, residual, gate)
    )
    for epilogue in (*ACTIVATIONS, *GATED):
        y = oxiwarp.linear(x, weight, bias, epilogue=epilogue)
        assert torch.equal(y, separate(x, weight, bias, epilogue=epilogue)), epilogue


@torch.enable_grad()
def test_gate_without_dimension(device):
    """A gate without dimensions gives the bits and the gradient of a gate with one number."""
    x, weight, residual = (random(shape, torch.bfloat16, device, 1) for shape in ((4, 16), (8, 16), (4, 8)))
    found = []
    for shape in ((), (1,)):
        gate = torch.full(shape, 0.3, dtype=torch.bfloat16, device=device, requires_grad=True)
        y = oxiwarp.linear(x, weight, residual=residual, gate=gate)
        y.sum().backward()
        found.append((y, gate.grad.reshape(())))
        assert gate.grad.shape == shape
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
