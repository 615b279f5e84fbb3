"""Tests of `oxiwarp.softmax` and its gradient against float64 and torch, eager and compiled."""

import pytest
import torch
from helpers import DTYPES, GPU_SHAPES, SHAPES, check_error, random, ulps
from test_compile import backends_by_size

import oxiwarp

OPS = torch.ops.oxiwarp
LOGS = [False, True]


def own_softmax(x, log):
    return torch.log_softmax(x, -1) if log else torch.softmax(x, -1)


def check(x, log):
    y = oxiwarp.softmax(x, log=log)
    assert y.shape == x.shape and y.dtype == x.dtype and y.device == x.device and y.is_contiguous()
    right, own = own_softmax(x.double(), log), own_softmax(x, log)
    if log:
        # The log-probability is x - max - log(sum). It may be near 0, but the error of its terms is up to
        # 1e-6. Therefore, add 1e-6 to the relative error bound.
        assert ((y.double() - right).abs() <= 1e-6 + 2.0 * torch.finfo(x.dtype).eps * right.abs()).all()
    else:
        check_error(y, own, right, f"{list(x.shape)} {x.dtype}")
    return y


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, log, device):
    check(random((rows, cols), dtype, device, scale=2.0), log)


@pytest.mark.parametrize(("rows", "cols", "gib"), GPU_SHAPES)
def test_large_table(rows, cols, gib, cuda):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of GPU memory")
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device=cuda).normal_()
    y = oxiwarp.softmax(x)
    assert not any(bool(part.isnan().any()) for part in y.chunk(64))
    for at in (slice(0, 3), slice(rows // 2, rows // 2 + 3), slice(rows - 3, rows)):
        check_error(y[at], own_softmax(x[at], False), own_softmax(x[at].double(), False), f"rows {at}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2048])
def test_strided_rows(cols, dtype, device):
    wide = random((4, 3, 3 * cols), dtype, device)
    for x in (wide[..., :cols], wide[1:3, ::2, -cols:], wide[:, 1, :cols], wide[0, 0, :cols], wide[..., 1 : cols + 1]):
        check(x, False)
    check(random((1, cols), dtype, device).expand(5, cols), True)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), (2, 1, 3, 8), (0, 3, 8), (2, 0, 8)])
def test_ranks(shape, device):
    check(random(shape, torch.float32, device), False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype, device):
    """`softmax` matches torch's softmax for masked rows, very large logits, NaN and infinities."""
    x = random((9, 72), dtype, device)
    x[0] = x[0] * 1e4
    x[1, 8:] = -float("inf")
    x[2] = -float("inf")
    x[3] = torch.finfo(dtype).min
    x[4, 5:] = torch.finfo(dtype).min
    x[5, 3], x[6, 4], x[7] = float("nan"), float("inf"), 1e4
    for log in LOGS:
        y, own = oxiwarp.softmax(x, log=log), own_softmax(x, log)
        torch.testing.assert_close(y, own, equal_nan=True)
    assert torch.equal(oxiwarp.softmax(x)[7], torch.full((72,), 1 / 72, device=device).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [40, 129, 3072])
def test_batch_invariant(cols, dtype, device):
    x = random((37, cols), dtype, device)
    y = oxiwarp.softmax(x)
    for row in (0, 17, 36):
        assert torch.equal(oxiwarp.softmax(x[row : row + 1])[0], y[row])


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (2, 4, 64), (5, 129), (3, 3072), (2, 40_001)], ids=str)
def test_gradient(shape, dtype, log, device):
    """The error of the gradient, compared with a float64 gradient, is at most about twice the error of
    torch's gradient."""
    x, dy = random(shape, dtype, device, scale=2.0), random(shape, dtype, device, seed=1)
    gradients = []
    with torch.enable_grad():
        for function, wide in ((oxiwarp.softmax, False), (own_softmax, False), (own_softmax, True)):
            leaf = (x.double() if wide else x).clone().requires_grad_()
            y = function(leaf, log=log)
            gradients.append(torch.autograd.grad(y, leaf, dy.to(y.dtype))[0])
    ours, own, right = gradients
    assert ours.dtype == dtype and ours.shape == x.shape
    # A gradient may be the difference of nearly equal terms, which cancel. The errors are therefore relative
    # to the largest gradient of the row.
    largest = right.abs().amax(-1, keepdim=True)
    off, torch_off = ((gradient.double() - right).abs() / largest for gradient in (ours, own))
    assert off.max() <= 2 * torch_off.max() + 2 * torch.finfo(dtype).eps, f"{off.max():.2e}, {torch_off.max():.2e}"


def test_gradient_of_a_sum(device):
    """The incoming gradient may be an expanded scalar, and a second derivative is an error.

    Without grad mode, the result does not require grad.
    """
    x = random((4, 64), torch.float32, device)
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        oxiwarp.softmax(leaf).sum().backward()
        assert leaf.grad.abs().max() < 1e-6
        (first,) = torch.autograd.grad(oxiwarp.softmax(leaf).square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()
    assert not oxiwarp.softmax(leaf).requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    x, dy = random((4, 3, 32), dtype, device), random((4, 3, 32), dtype, device, seed=1)
    for log in LOGS:
        torch.library.opcheck(OPS.softmax.default, (x, log))
        torch.library.opcheck(OPS.softmax_backward.default, (oxiwarp.softmax(x, log=log), dy, log))
    torch.library.opcheck(OPS.softmax.default, (random((4, 3, 64), dtype, device)[..., 32:], False))


@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, device):
    """`softmax` compiles to one graph, forward and backward, for any number of rows."""

    def f(x):
        return (oxiwarp.softmax(x * 2) * oxiwarp.softmax(x, log=True)).sum(-1)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (3, 5):
        x = random((rows, 48), torch.float32, device)
        torch.testing.assert_close(compiled(x), f(x))
        with torch.enable_grad():
            gradients = []
            for function in (compiled, f):
                leaf = x.clone().requires_grad_()
                function(leaf).sum().backward()
                gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)


def test_meta():
    x = torch.empty(3, 8, device="meta", dtype=torch.bfloat16)
    y = oxiwarp.softmax(x)
    assert y.device.type == "meta" and y.shape == x.shape and y.dtype == x.dtype
    assert OPS.softmax_backward(y, y, False).shape == x.shape
    with pytest.raises(RuntimeError, match="^softmax: x is float64, expected f32, f16 or bf16"):
        oxiwarp.softmax(x.double())
    with pytest.raises(RuntimeError, match=r"^softmax_backward: dy has shape \[2, 8\], expected \[3, 8\]"):
        OPS.softmax_backward(y, y[:2], False)


def test_bad_input(device):
    x = random((4, 8), torch.float32, device)
    for bad, message in (
        (x.long(), "x is int64, expected f32, f16 or bf16"),
        (x.double(), "x is float64, expected f32, f16 or bf16"),
        (x[:, :0], r"x has shape \[4, 0\], expected a last dimension"),
        (x[0, 0], r"x has shape \[\], expected at least one dimension"),
        (x.to_sparse(), "x has layout torch.sparse_coo, expected torch.strided"),
    ):
        with pytest.raises(RuntimeError, match=f"^softmax: {message}"):
            oxiwarp.softmax(bad)
    with pytest.raises(TypeError, match=r"^softmax: x is list, expected a torch.Tensor$"):
        oxiwarp.softmax([1.0])
    for dy, message in ((x.half(), "dy is f16, expected f32"), (x[:3], r"dy has shape \[3, 8\]")):
        with pytest.raises(RuntimeError, match=f"^softmax_backward: {message}"):
            OPS.softmax_backward(x, dy, False)
    assert ulps(oxiwarp.softmax(x), torch.softmax(x.double(), -1)).max() < 10


def test_out_of_memory_cpu():
    x = torch.ones(1, 64).expand(2**42, 64)
    with pytest.raises(RuntimeError, match="can't allocate memory|not enough memory"):
        oxiwarp.softmax(x)
