"""Tests of invalid input to the operators. The error message is clear, no output is written, and later calls
still work."""

import contextlib
import gc
import re
import resource
from pathlib import Path

import numpy
import pytest
import torch
from helpers import make_weight, poisoned_like, random, reference

import oxiwarp

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def refused(call, message, *, error=RuntimeError, outputs=(), device=None):
    """Check that `call` raises `error`, that the first line of the error message matches `message`, and that
    `outputs` are not written.

    A valid call on `device` must give the correct result afterwards.
    """
    before = [output.clone() for output in outputs]
    with pytest.raises(error) as caught:
        call()
    assert re.search(message, str(caught.value).splitlines()[0]), str(caught.value)
    for output, old in zip(outputs, before, strict=True):
        assert torch.equal(output.view(torch.uint8), old.view(torch.uint8)), "something was written"
    x = random((3, 40), F32, device or "cpu")
    assert torch.allclose(oxiwarp.rms_norm(x).double(), reference(x, None), rtol=1e-5)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.uint32,
    ],
    ids=str,
)
def test_dtype(dtype, device):
    x = torch.ones(3, 8, device=device).to(dtype)
    name = str(dtype).removeprefix("torch.")
    refused(lambda: oxiwarp.rms_norm(x), f"^rms_norm: x is {name}, expected f32, f16 or bf16", device=device)
    refused(lambda: oxiwarp.add_rms_norm(x, x), f"^add_rms_norm: x is {name}, expected", device=device)


def test_mixed_dtypes(device):
    x, other = random((3, 8), BF16, device), random((3, 8), F16, device)
    out = poisoned_like(other)
    refused(lambda: oxiwarp.rms_norm(x, other[0]), r"^rms_norm: weight is f16, expected bf16", device=device)
    refused(lambda: oxiwarp.rms_norm(x.float(), x[0]), r"^rms_norm: weight is bf16, expected f32", device=device)
    refused(lambda: oxiwarp.rms_norm(x, out=out), r"^rms_norm: out is f16, expected bf16", outputs=[out], device=device)
    refused(lambda: oxiwarp.add_rms_norm(x, other), r"^add_rms_norm: residual is f16, expected bf16", device=device)


@pytest.mark.parametrize("shape", [(7,), (9,), (1,), (0,), (1, 8), (4, 8), (3, 3, 8), ()], ids=str)
def test_weight_shape(shape, device):
    """For `rms_norm`, the three rows may be three heads with a weight each."""
    x, out = random((3, 8), F32, device), torch.full((3, 8), float("nan"), device=device)
    weight = torch.ones(shape, device=device)
    message = rf"rms_norm: weight has shape {re.escape(str(list(shape)))}, expected "
    own = message + (r"\[3, 8\]" if len(shape) == 2 else r"\[8\]")
    refused(lambda: oxiwarp.rms_norm(x, weight), "^" + own, device=device)
    refused(lambda: oxiwarp.rms_norm(x, weight, out=out), "^" + own, outputs=[out], device=device)
    refused(lambda: oxiwarp.add_rms_norm(x, x, weight), "^add_" + message + r"\[8\]", device=device)


def test_other_shapes(device):
    x, out = random((3, 8), F32, device), torch.full((4, 8), float("nan"), device=device)
    refused(
        lambda: oxiwarp.rms_norm(x, out=out),
        r"^rms_norm: out has shape \[4, 8\], expected",
        outputs=[out],
        device=device,
    )
    refused(
        lambda: oxiwarp.add_rms_norm(x, x[:2]), r"^add_rms_norm: residual has shape \[2, 8\], expected", device=device
    )
    refused(lambda: oxiwarp.rms_norm(torch.tensor(1.0, device=device)), r"^rms_norm: x has shape \[\]", device=device)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_columns(rows, device):
    x = torch.empty(rows, 0, device=device)
    refused(lambda: oxiwarp.rms_norm(x), rf"^rms_norm: x has shape \[{rows}, 0\], expected", device=device)
    refused(lambda: oxiwarp.add_rms_norm(x, x), r"^add_rms_norm: x has shape", device=device)


def test_no_rows(device):
    for shape in ((0, 8), (2, 0, 8)):
        x = torch.empty(shape, device=device)
        assert oxiwarp.rms_norm(x, torch.ones(8, device=device)).shape == shape


def test_columns_not_contiguous(device):
    x, wide = random((8, 8), F32, device), random((8, 16), F32, device)
    out = torch.full((8, 8), float("nan"), device=device)
    for apart in (x.t(), wide[:, ::2], wide[:, :1].expand(8, 8)):  # rows are copied
        assert torch.equal(oxiwarp.rms_norm(apart), oxiwarp.rms_norm(apart.contiguous()))
    refused(lambda: oxiwarp.rms_norm(x, out=out.t()), r"^rms_norm: out of shape", outputs=[out], device=device)
    refused(lambda: oxiwarp.rms_norm(x, wide[0, ::2]), r"^rms_norm: weight of shape", device=device)


def test_contiguous_hint(device):
    """If a tensor must be contiguous, the error message ends with the remedy, for example "call
    x.contiguous()".

    For the argument `out`, the message has no such remedy, because the call must write to `out` itself.
    """
    x = random((8, 8), F32, device)
    for call, name in (
        (lambda: oxiwarp.rms_norm(x, x.t()[0]), "weight"),
        (lambda: oxiwarp.layer_norm(x, x[0], x.t()[0]), "bias"),
        (lambda: oxiwarp.silu_and_mul(x[:, :4], x[:, 4:], bias=x.t()[0]), "bias"),
    ):
        refused(call, rf"{name} of shape .* must be contiguous: call {name}\.contiguous\(\)$", device=device)
    refused(lambda: oxiwarp.rms_norm(x, out=x.clone().t()), r"out of shape .* must be contiguous$", device=device)


def test_rows_of_three_strides(device):
    x = random((2, 4, 3, 5, 8), F32, device).transpose(0, 2)[:, ::2]
    refused(lambda: oxiwarp.rms_norm(x), r"^rms_norm: x of shape .* two strides must reach all its rows", device=device)


def test_overlap(device):
    store = random((64,), F32, device)
    x, weight = store[:32].view(4, 8), store[:8]
    for out in (x, store[8:40].view(4, 8), store[31:63].view(4, 8)):
        refused(
            lambda out=out: oxiwarp.rms_norm(x, out=out), "^rms_norm: out overlaps x", outputs=[store], device=device
        )
    other, out = random((4, 8), F32, device), store[:32].view(4, 8)
    refused(
        lambda: oxiwarp.rms_norm(other, weight, out=out),
        "^rms_norm: out overlaps weight",
        outputs=[store],
        device=device,
    )
    expanded = torch.full((1, 8), float("nan"), device=device)
    refused(
        lambda: oxiwarp.rms_norm(other, out=expanded.expand(4, 8)), "^rms_norm: ", outputs=[expanded], device=device
    )


@pytest.mark.parametrize("eps", [-1e-6, -1.0, float("nan"), -float("inf"), float("inf"), 1e39])
def test_eps(eps, device):
    x, out = random((3, 8), F32, device), torch.full((3, 8), float("nan"), device=device)
    refused(
        lambda: oxiwarp.rms_norm(x, eps=eps),
        "^rms_norm: eps is .*, expected a finite number of 0 or more",
        device=device,
    )
    refused(lambda: oxiwarp.rms_norm(x, eps=eps, out=out), "^rms_norm: eps is", outputs=[out], device=device)
    refused(lambda: oxiwarp.add_rms_norm(x, x, eps=eps), "^add_rms_norm: eps is", device=device)


def test_two_layouts(device):
    """An operator rejects two tensors if one pair of nested loops cannot visit the rows of both tensors.

    A kernel addresses the rows of a tensor by two strides: the outer loop goes from one group of rows to the
    next, and the inner loop from row to row within a group. Both tensors must have the same groups. Here the
    rows of `x` form 12 groups of 5 rows, and the rows of `other` form 4 groups of 15 rows.
    """
    x, other = random((4, 3, 10, 8), F32, device)[:, :, :5], random((4, 6, 5, 8), F32, device, 1)[:, :3]
    text = (
        "of shape [4, 3, 5, 8] have strides [240, 40, 8, 1] and [240, 80, 8, 1]: two strides must reach the rows of "
        "both in the same groups: make one of them contiguous in this shape"
    )
    for name, second, call in (
        ("add_rms_norm", "residual", oxiwarp.add_rms_norm),
        ("rms_norm_gated", "gate", oxiwarp.rms_norm_gated),
        ("silu_and_mul", "up", oxiwarp.silu_and_mul),
        ("rms_norm", "out", lambda x, out: oxiwarp.rms_norm(x, out=out)),
        ("gelu", "out", lambda x, out: oxiwarp.gelu(x, out=out)),
    ):
        outputs = [other] if second == "out" else []
        message = f"^{name}: {second} and x {re.escape(text)}"
        refused(lambda call=call: call(x, other), message, outputs=outputs, device=device)
        call(x.contiguous(), other)
        if second != "out":
            call(x, other.contiguous())


def test_weight_dtypes(device):
    """A weight must be float32 or have the dtype of `x`.

    If `x` is float32, the two permitted dtypes are equal, so the error names only f32.
    """
    for dtype, expected in ((F32, "f32$"), (F16, r"f16 \(as x\) or f32$")):
        for where in (device, torch.device("meta")):
            x = random((3, 8), dtype, where)
            for wrong, name in ((torch.float64, "float64"), (torch.float8_e5m2, "float8_e5m2"), (BF16, "bf16")):
                weight = torch.ones(8, device=where).to(wrong)
                message = f"weight is {name}, expected {expected}"
                refused(lambda x=x, w=weight: oxiwarp.rms_norm(x, w), f"^rms_norm: {message}")
                refused(lambda x=x, w=weight: oxiwarp.add_rms_norm(x, x, w), f"^add_rms_norm: {message}")
                refused(lambda x=x, w=weight: oxiwarp.rms_norm_gated(x, x, w), f"^rms_norm_gated: {message}")


def test_rounding_name():
    x = torch.ones(3, 8)
    for bad in ("twice", "", None, True, ["once"]):
        refused(lambda bad=bad: oxiwarp.rms_norm(x, rounding=bad), "^rms_norm: rounding is", error=ValueError)
        refused(
            lambda bad=bad: oxiwarp.add_rms_norm(x, x, rounding=bad), "^add_rms_norm: rounding is", error=ValueError
        )


@pytest.mark.parametrize("layout", ["coo", "csr", "mkldnn"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_layout(layout):
    x = torch.ones(3, 8)
    make = {"coo": x.to_sparse, "csr": x.to_sparse_csr, "mkldnn": x.to_mkldnn}[layout]
    refused(lambda: oxiwarp.rms_norm(make()), "^rms_norm: x has layout torch.*, expected torch.strided")
    refused(lambda: oxiwarp.add_rms_norm(x, make()), "^add_rms_norm: residual has layout")


def test_meta():
    """Calls with meta tensors return meta tensors. Meta tensors and CPU tensors in one call are an error.

    The fake (meta) kernels reject the same arguments as the real kernels.
    """
    x = torch.empty(3, 8, device="meta", dtype=BF16)
    y, total = oxiwarp.add_rms_norm(x, x, x[0])
    for result in (oxiwarp.rms_norm(x, x[0]), y, total):
        assert result.device.type == "meta" and result.shape == x.shape and result.dtype == BF16
    real = torch.ones(3, 8, dtype=BF16)
    refused(lambda: oxiwarp.rms_norm(real, x[0]), "^rms_norm: weight is on meta, expected cpu")
    refused(lambda: oxiwarp.rms_norm(x, real[0]), "^rms_norm: weight is on cpu, expected meta")
    refused(lambda: oxiwarp.rms_norm(x, x[0, :7]), r"^rms_norm: weight has shape \[7\], expected \[8\]")
    refused(lambda: oxiwarp.rms_norm(x.double()), "^rms_norm: x is float64, expected")
    refused(lambda: oxiwarp.rms_norm(x, x[0].half()), "^rms_norm: weight is f16, expected bf16")
    refused(lambda: oxiwarp.rms_norm(torch.empty(3, 0, device="meta")), "^rms_norm: x has shape")


def test_subclass():
    """A call with a tensor subclass runs the subclass's `__torch_dispatch__`.

    Otherwise a kernel would read the storage of the subclass tensor itself. This storage is empty, because
    the subclass only wraps other tensors.
    """
    from torch.testing._internal.two_tensor import TwoTensor

    x = random((3, 8), F32, "cpu")
    y = oxiwarp.rms_norm(TwoTensor(x, 2 * x))
    assert torch.equal(y.a, oxiwarp.rms_norm(x)) and torch.equal(y.b, oxiwarp.rms_norm(2 * x))


@pytest.mark.parametrize("which", ["x", "weight", "out", "residual"])
def test_requires_grad(which, device):
    """In grad mode, a call with `out` is an error if one of its tensors requires grad, because calls with
    `out` have no gradient.

    Without grad mode, calls record no gradient.
    """
    tensors = {name: random((3, 8), F32, device) for name in ("x", "out", "residual")}
    tensors["weight"] = make_weight("same", 8, F32, device)
    tensors[which].requires_grad_()
    x, weight, out, residual = (tensors[name] for name in ("x", "weight", "out", "residual"))
    with torch.enable_grad():
        if which != "residual":
            refused(
                lambda: oxiwarp.rms_norm(x, weight, out=out),
                "^rms_norm: an input requires grad, and there is no gradient with out: .*no_grad",
                outputs=[out.detach()],
            )
        if which != "out":
            assert all(y.requires_grad for y in oxiwarp.add_rms_norm(x, residual, weight))
    assert not oxiwarp.rms_norm(x, weight).requires_grad
    assert not oxiwarp.add_rms_norm(x, residual, weight)[0].requires_grad


def test_other_device(cuda):
    x, weight = torch.ones(3, 8, device=cuda), torch.ones(8)
    out = torch.full((3, 8), float("nan"))
    refused(lambda: oxiwarp.rms_norm(x, weight), "^rms_norm: weight is on cpu, expected cuda:0", device=cuda)
    refused(lambda: oxiwarp.rms_norm(x.cpu(), weight.to(cuda)), "^rms_norm: weight is on cuda:0, expected cpu")
    refused(lambda: oxiwarp.rms_norm(x, out=out), "^rms_norm: out is on cpu", outputs=[out], device=cuda)
    refused(lambda: oxiwarp.add_rms_norm(x, x.cpu()), "^add_rms_norm: residual is on cpu", device=cuda)


def test_out_of_memory_cpu():
    """If an output is too large to allocate (here 2^50 bytes), the operator raises torch's allocation
    error."""
    x = torch.ones(1, 64).expand(2**42, 64)
    refused(lambda: oxiwarp.rms_norm(x), "can't allocate memory|not enough memory")
    refused(lambda: oxiwarp.add_rms_norm(x, x), "can't allocate memory|not enough memory")


def test_out_of_memory_cuda(cuda):
    """If an output does not fit in GPU memory, the error is torch.OutOfMemoryError, and later calls work."""
    _, total = torch.cuda.mem_get_info()
    x = torch.ones(1, 1024, device=cuda).expand(total // 4096 + 1, 1024)
    refused(lambda: oxiwarp.rms_norm(x), "CUDA out of memory", error=torch.OutOfMemoryError, device=cuda)
    refused(lambda: oxiwarp.add_rms_norm(x, x), "CUDA out of memory", error=torch.OutOfMemoryError, device=cuda)


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_nothing_leaks():
    """After valid and invalid calls, arguments and results are freed without the garbage collector, so the
    calls create no reference cycles."""

    def calls():
        x, weight, out = torch.ones(16, 65536), torch.ones(65536), torch.ones(16, 65536)
        for call in (
            lambda: oxiwarp.rms_norm(x, weight[1:]),
            lambda: oxiwarp.rms_norm(x, weight, eps=-1.0, out=out),
            lambda: oxiwarp.add_rms_norm(x, out, weight[1:]),
        ):
            with contextlib.suppress(RuntimeError):
                call()
        oxiwarp.rms_norm(x[:1], weight)

    calls()
    before = resident()
    gc.disable()
    for _ in range(50):
        calls()
    gc.enable()
    grown = (resident() - before) / 2**20
    assert grown < 100, f"{grown:.0f} MiB more than before, of 400 in all"


def test_not_tensors():
    x, bad, rest = torch.ones(2, 8), [1.0], "expected a torch.Tensor$"
    refused(lambda: oxiwarp.rms_norm(bad), f"^rms_norm: x is list, {rest}", error=TypeError)
    refused(lambda: oxiwarp.rms_norm(x, 3), f"^rms_norm: weight is int, {rest}", error=TypeError)
    refused(lambda: oxiwarp.rms_norm(x, out=bad), f"^rms_norm: out is list, {rest}", error=TypeError)
    refused(lambda: oxiwarp.add_rms_norm(x, None), f"^add_rms_norm: residual is NoneType, {rest}", error=TypeError)
    refused(lambda: oxiwarp.rms_norm(x, eps="small"), "^rms_norm: eps is str, expected a number$", error=TypeError)
    refused(lambda: oxiwarp.rms_norm(x, eps=None), "^rms_norm: eps is NoneType, expected a number$", error=TypeError)
    logits, target = torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)
    refused(
        lambda: oxiwarp.cross_entropy(logits, target, ignore_index=1.5),
        "^cross_entropy: ignore_index is float, expected an integer$",
        error=TypeError,
    )
    q = torch.ones(1, 4, 2, 8)
    refused(
        lambda: oxiwarp.rope_1d(q, interleaved="yes"), "^rope: interleaved is str, expected a bool$", error=TypeError
    )


def test_shared_operators_name_the_function():
    """Several public functions may share one torch operator. An error then names the public function that was
    called."""
    x = torch.ones(2, 8)
    refused(lambda: oxiwarp.gelu(x.double()), "^gelu: x is float64")
    refused(lambda: oxiwarp.silu_and_mul(x, x, out=x), "^silu_and_mul: out overlaps")


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_nested_logits():
    logits, target = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)]), torch.zeros(5, dtype=torch.int64)
    refused(lambda: oxiwarp.cross_entropy(logits, target), "^cross_entropy: logits is a nested")


def test_heads_and_tables_that_do_not_belong_together():
    q, w = torch.ones(1, 4, 2, 8), torch.ones(8)
    angles = torch.ones(4, 4)
    for call in (
        lambda: oxiwarp.rope(q, None, angles, angles, head_dim=4),
        lambda: oxiwarp.rope_1d(q, head_dim=4),
        lambda: oxiwarp.rope_3d(q, grid=(1, 2, 2), head_dim=4),
        lambda: oxiwarp.qk_norm_rope(q, None, angles, angles, head_dim=4),
    ):
        refused(call, r"head_dim is 4, expected 8 \(or None\): q has shape \[1, 4, 2, 8\]", error=ValueError)
    refused(lambda: oxiwarp.qk_norm_rope(q, norm=None, q_weight=w), "norm is None, expected a norm", error=ValueError)
    for options in (dict(rotary_dim=4), dict(offset=1)):
        refused(lambda o=options: oxiwarp.qk_norm_rope(q, **o), "cos is None, expected tables", error=ValueError)


def test_options_of_other_types():
    q = torch.ones(1, 4, 2, 8)
    refused(lambda: oxiwarp.qk_norm_rope(q, norm=[]), r"^qk_norm_rope: norm is \[\], expected one of", error=ValueError)
    refused(lambda: oxiwarp.qk_norm_rope(q, out=3), "^qk_norm_rope: out is int, expected", error=TypeError)
    refused(lambda: oxiwarp.qk_norm_rope(q, out=(q, q, q)), "^qk_norm_rope: out has 3 tensors", error=ValueError)
    refused(lambda: oxiwarp.rope_1d(q, theta=[1]), "^rope: theta is list, expected a number", error=TypeError)
    refused(lambda: oxiwarp.rope_3d(q, grid=(1, 2, 2), theta=[1]), "^rope: theta is list", error=TypeError)
    for dtype in (torch.complex64, torch.bool):
        positions = torch.ones(4, dtype=dtype)
        refused(lambda p=positions: oxiwarp.rope_1d(q, positions=p), "^rope: positions is torch.*, expected integers")
    coordinates = torch.ones(4, 3, dtype=torch.complex64)
    refused(lambda: oxiwarp.rope_3d(q[:, :, 0], coordinates=coordinates), "^rope: coordinates is torch.complex64")


def test_grids_without_tokens():
    q = torch.randn(1, 4, 2, 8)
    assert oxiwarp.rope_3d(q[:, :0], grid=(0, 1, 1)).shape == (1, 0, 2, 8)
    assert torch.equal(oxiwarp.rope_3d(q, grid=(1, 1, 0), offset=2), q)


def test_windows_of_numpys_integers():
    q = torch.randn(1, 8, 2, 16).bfloat16()
    assert torch.equal(oxiwarp.attention(q, q, q, window=numpy.int64(2)), oxiwarp.attention(q, q, q, window=2))
    refused(lambda: oxiwarp.attention(q, q, q, causal=numpy.bool_(True)), "causal is numpy.bool_?,", error=TypeError)


def test_a_rotation_without_tables(device):
    """The torch operators `rope` and `rope_pair` raise an error if the cos and sin tables are missing.

    The schema declares the tables as optional, so torch itself does not reject such a call.
    """
    for where in (device, "meta"):
        q = torch.ones(1, 2, 1, 8, device=where)
        turn = (None, None, None, 0, 0, True, -1, True, False, False, 0)
        for call in (
            lambda q=q, turn=turn: torch.ops.oxiwarp.rope(q, *turn),
            lambda q=q, turn=turn: torch.ops.oxiwarp.rope_pair(q, q, *turn),
        ):
            with pytest.raises(RuntimeError, match="^rope: cos is missing"):
                call()
