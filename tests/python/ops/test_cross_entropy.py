"""Tests of `oxiwarp.cross_entropy` against float64 and torch, eager and compiled."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, GPU_SHAPES, SHAPES, random
from test_compile import backends_by_size

import oxiwarp

OPS = torch.ops.oxiwarp
OPTIONS = [
    dict(),
    dict(reduction="sum"),
    dict(reduction="none"),
    dict(label_smoothing=0.1),
    dict(label_smoothing=0.1, reduction="none", ignore_index=2),
]


def classes(rows, cols, device, ignored=-100, dtype=torch.int64):
    """Return a random class index for each row. Every fifth row, starting with the second, has the class
    index `ignored` instead."""
    target = torch.randint(0, cols, (rows,), generator=torch.Generator().manual_seed(rows + cols))
    target[1::5] = ignored
    return target.to(dtype).to(device)


def close(ours, own, right, what=""):
    """Check the error of `ours` against the float64 result `right`.

    `own` is torch's result. The error of `ours` may be twice the error of `own`, plus 2 eps relative to
    `right`, plus 1e-6.
    """
    off, torch_off = ((value.double() - right).abs() for value in (ours, own))
    allowed = 2 * torch_off + 2 * torch.finfo(ours.dtype).eps * right.abs() + 1e-6
    worst = (off - allowed).nan_to_num(nan=float("inf")).max() if off.numel() else torch.zeros(())
    assert worst <= 0, f"{what}: off by {off.max():.2e}, torch {torch_off.max():.2e}"


def gradient(function, logits, target, dloss, **options):
    with torch.enable_grad():
        leaf = logits.clone().requires_grad_()
        loss = function(leaf, target, **options)
        return torch.autograd.grad(loss, leaf, dloss.to(loss.dtype).expand(loss.shape))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, device):
    logits = random((rows, cols), dtype, device, scale=2.0)
    for options in OPTIONS:
        target = classes(rows, cols, device, options.get("ignore_index", -100))
        ours, own = oxiwarp.cross_entropy(logits, target, **options), F.cross_entropy(logits, target, **options)
        right = F.cross_entropy(logits.double(), target, **options)
        assert ours.dtype == own.dtype and ours.shape == own.shape and ours.device == own.device
        if rows:
            close(ours, own, right, f"{rows} x {cols} {dtype} {options}")
        else:
            torch.testing.assert_close(ours, own, equal_nan=True)


@pytest.mark.parametrize(("rows", "cols", "gib"), GPU_SHAPES)
def test_large_table(rows, cols, gib, cuda):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of GPU memory")
    logits = torch.empty(rows, cols, dtype=torch.bfloat16, device=cuda).normal_()
    target = torch.randint(0, cols, (rows,), device=cuda)
    loss, lse = oxiwarp.cross_entropy(logits, target, reduction="none", return_lse=True)
    assert not loss.isnan().any()
    dlogits = OPS.cross_entropy_backward(logits, target, lse, torch.ones_like(lse), -100, 0.0, 0.0, 0.0)
    for at in (slice(0, 3), slice(rows // 2, rows // 2 + 3), slice(rows - 3, rows)):
        wide = logits[at].double()
        close(loss[at], loss[at], F.cross_entropy(wide, target[at], reduction="none"))
        right = wide.softmax(-1) - F.one_hot(target[at], cols)
        assert ((dlogits[at].double() - right).abs() <= 0.005 * right.abs() + 1e-7).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_shapes_and_targets(dtype, device):
    """Logits may have any rank and strides. Targets may be int64 or int32, and strided."""
    logits = random((3, 6, 50), torch.float32, device)
    target = classes(18, 50, device, dtype=dtype).view(3, 6)
    for x, t in (
        (logits, target),
        (logits[:, :-1], target[:, 1:]),
        (logits[:, ::2, 3:40], target[:, ::2].remainder(37)),
        (logits[0], target[0]),
        (logits[0, 0], target[0, 0]),
        (logits.transpose(0, 1), target.t()),
    ):
        cols = x.shape[-1]
        own = F.cross_entropy(x.reshape(-1, cols), t.reshape(-1).long(), reduction="none").view(t.shape)
        torch.testing.assert_close(oxiwarp.cross_entropy(x, t, reduction="none"), own)


def test_lse_and_z_loss(device):
    logits, target = random((7, 130), torch.float32, device, scale=3.0), classes(7, 130, device)
    loss, lse = oxiwarp.cross_entropy(logits, target, reduction="none", z_loss=0.01, return_lse=True)
    right = logits.double().logsumexp(-1)
    torch.testing.assert_close(lse, right.float())
    own = F.cross_entropy(logits.double(), target, reduction="none")
    torch.testing.assert_close(loss, (own + 0.01 * right.square() * (target != -100)).float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype, device):
    logits = random((6, 72), dtype, device)
    logits[0], logits[1, 8:], logits[2, :] = logits[0] * 1e4, -float("inf"), torch.finfo(dtype).min
    logits[3, 3], logits[4] = float("nan"), -float("inf")
    target = torch.tensor([5, 6, 7, 8, 9, 10], device=device)
    for options in (dict(), dict(label_smoothing=0.2)):
        ours, own = (
            f(logits.float(), target, reduction="none", **options) for f in (oxiwarp.cross_entropy, F.cross_entropy)
        )
        torch.testing.assert_close(ours[[0, 1, 3, 4, 5]], own[[0, 1, 3, 4, 5]], equal_nan=True)
    loss = oxiwarp.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(loss[2], torch.tensor(72.0, device=device).log().to(dtype))


def test_all_ignored(device):
    logits, target = random((4, 9), torch.float32, device), torch.full((4,), -100, device=device)
    assert oxiwarp.cross_entropy(logits, target).isnan()
    assert oxiwarp.cross_entropy(logits, target, reduction="sum") == 0


def test_wrong_target(device):
    """A class index that is out of range is an error on the CPU.

    On a GPU, loss and gradient are NaN, but only in the row with this index, and the CUDA context stays
    usable.
    """
    logits = random((5, 9), torch.float32, device).requires_grad_()
    for wrong in (9, -1, 2**40, -(2**63)):
        target = torch.tensor([1, wrong, 2, -100, 3], device=device)
        if device.type == "cpu":
            with pytest.raises(RuntimeError, match=rf"^cross_entropy: target of row 1 is {wrong}, expected 0 to 8 or"):
                oxiwarp.cross_entropy(logits, target)
            continue
        with torch.enable_grad():
            loss = oxiwarp.cross_entropy(logits, target, reduction="none")
            (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isnan().tolist() == [False, True, False, False, False]
        assert gradient.isnan().any(-1).tolist() == loss.isnan().tolist()
    assert oxiwarp.cross_entropy(logits, torch.full((5,), 8, device=device)).isfinite()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [40, 129, 5000])
def test_batch_invariant(cols, dtype, device):
    logits, target = random((37, cols), dtype, device), classes(37, cols, device)
    loss = oxiwarp.cross_entropy(logits, target, reduction="none")
    for row in (0, 17, 36):
        alone = oxiwarp.cross_entropy(logits[row : row + 1], target[row : row + 1], reduction="none")
        assert torch.equal(alone[0], loss[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    logits, target = random((4, 3, 32), dtype, device), classes(12, 32, device).view(4, 3)
    lse = logits.float().logsumexp(-1)
    for params in ((-100, 0.0, 0.0, 0.0), (-100, 0.1, 0.01, 0.0), (-100, 0.1, 0.01, 5.0)):
        torch.library.opcheck(OPS.cross_entropy.default, (logits, target, *params))
        arguments = (logits, target, lse, torch.ones_like(lse), *params)
        torch.library.opcheck(OPS.cross_entropy_backward.default, arguments)
    torch.library.opcheck(OPS.cross_entropy.default, (logits[..., 16:], target.int() % 16, -1, 0.0, 0.0, 0.0))


@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, device):
    """`cross_entropy` compiles to one graph, forward and backward, for any number of rows."""

    def f(logits, target):
        return oxiwarp.cross_entropy(logits * 2, target, label_smoothing=0.1, z_loss=0.01)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (3, 6):
        logits, target = random((rows, 48), torch.float32, device), classes(rows, 48, device)
        torch.testing.assert_close(compiled(logits, target), f(logits, target))
        ours, right = (gradient(g, logits, target, torch.ones(())) for g in (compiled, f))
        torch.testing.assert_close(ours, right)


def test_graph(cuda):
    """A CUDA graph of forward and backward pass gives the correct loss and gradient when it is replayed with
    new input."""
    logits, target = random((64, 1000), torch.bfloat16, cuda), classes(64, 1000, cuda)
    static = torch.zeros_like(logits).requires_grad_()

    def step():
        static.grad = None
        with torch.enable_grad():
            loss = oxiwarp.cross_entropy(static, target)
            loss.backward()
        return loss

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    static.data.copy_(logits)
    graph.replay()
    assert torch.equal(loss, oxiwarp.cross_entropy(logits, target))
    expected = gradient(oxiwarp.cross_entropy, logits, target, torch.ones((), device=cuda))
    assert torch.equal(static.grad, expected)


@pytest.mark.parametrize("ignore_index", [2**32, 2**32 + 1, -(2**40), 2**31, -(2**31) - 1])
def test_ignore_index_that_the_targets_dtype_cannot_hold(ignore_index, device):
    """If `ignore_index` is outside the range of int32 and no target equals it, no row is ignored. This holds
    for int32 and int64 targets."""
    x = random((3, 5), torch.float32, device).requires_grad_()
    target = torch.tensor([0, 1, 0], device=device)
    with torch.enable_grad():
        for dtype in (torch.int32, torch.int64):
            loss = oxiwarp.cross_entropy(x, target.to(dtype), ignore_index=ignore_index)
            expected = F.cross_entropy(x, target, ignore_index=ignore_index)
            torch.testing.assert_close(loss, expected)
            got, own = (torch.autograd.grad(value, x)[0] for value in (loss, expected))
            torch.testing.assert_close(got, own)


def test_smoothing_of_logits_whose_sum_overflows(device):
    """With label smoothing, an overflow of the sum of the logits does not make the loss NaN.

    Label smoothing needs only the mean of the logits, which is finite even if their float32 sum overflows.
    torch adds up log-probabilities instead, and their sum overflows here, so its loss is infinite.
    """
    x = torch.full((2, 129), 3.4e38, device=device)
    x[:, 1::2] *= -1
    x.requires_grad_()
    with torch.enable_grad():
        loss = oxiwarp.cross_entropy(x, torch.tensor([0, 1], device=device), label_smoothing=0.1, reduction="none")
        loss.sum().backward()
    assert (loss > 0).all() and torch.isfinite(x.grad).all()


def capped(function):
    """Return a function that applies a softcap to the logits before it calls `function`, as Gemma 2 does."""
    return lambda logits, target, softcap, **options: function(
        softcap * torch.tanh(logits / softcap), target, **options
    )


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), [(3, 7), (6, 64), (9, 129), (3, 3072), (2, 40_001)])
def test_softcap(rows, cols, dtype, softcap, device):
    """The error of the loss and of the gradient is at most about twice the error of torch's operators."""
    logits, dloss = random((rows, cols), dtype, device, scale=2.0), torch.tensor(1.75, device=device)
    own = capped(F.cross_entropy)
    for options in OPTIONS:
        target = classes(rows, cols, device, options.get("ignore_index", -100))
        options = {**options, "softcap": softcap}
        loss, right = oxiwarp.cross_entropy(logits, target, **options), own(logits.double(), target, **options)
        close(loss, own(logits, target, **options), right, f"{rows} x {cols} {options}")
        ours, theirs = (gradient(f, logits, target, dloss, **options) for f in (oxiwarp.cross_entropy, own))
        right = gradient(own, logits.double(), target, dloss, **options)
        # Like torch, the kernel computes the derivative of tanh as `1 - tanh**2`, which has a large relative
        # error if it is near 0.
        largest = right.abs().amax(-1, keepdim=True).clamp_min(1e-30)
        off, torch_off = ((value.double() - right).abs() / largest for value in (ours, theirs))
        assert off.max() <= 2 * torch_off.max() + 4 * torch.finfo(dtype).eps, options


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("single", [False, True], ids=["same", "float32"])
def test_class_weights(single, dtype, device):
    """If each class has a weight, loss and gradient match torch in float64."""
    rows, cols = 20, 33
    logits, dloss = random((rows, cols), dtype, device, scale=2.0), torch.tensor(1.75, device=device)
    weight = random((cols,), torch.float32 if single else dtype, device, 1).abs()
    weight[:4] = 0
    for reduction in ("mean", "sum", "none"):
        for ignored in (-100, 2):
            options = dict(reduction=reduction, ignore_index=ignored)
            target = classes(rows, cols, device, ignored)
            own = lambda x, t, **o: F.cross_entropy(x, t, weight.double(), **o)  # noqa: E731
            loss, right = (
                oxiwarp.cross_entropy(logits, target, weight=weight, **options),
                own(logits.double(), target, **options),
            )
            assert (loss.double() - right).abs().max() <= 4 * torch.finfo(dtype).eps * right.abs().max()
            ours = gradient(oxiwarp.cross_entropy, logits, target, dloss, weight=weight, **options)
            right = gradient(own, logits.double(), target, dloss, **options)
            assert (ours.double() - right).abs().max() <= 4 * torch.finfo(dtype).eps * right.abs().max()


def test_weight_is_a_constant(device):
    """A weight that requires grad gets no gradient, as in torch."""
    logits, target = random((4, 8), torch.float32, device), torch.tensor([0, 1, 2, 7], device=device)
    weight = torch.ones(8, device=device, requires_grad=True)
    with torch.enable_grad():
        assert not oxiwarp.cross_entropy(logits, target, weight=weight).requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_float32_loss(reduction, dtype, device):
    """`dtype=torch.float32` returns the loss before it is rounded to the dtype of the logits."""
    logits, target = random((6, 64), dtype, device, scale=2.0), classes(6, 64, device)
    loss = oxiwarp.cross_entropy(logits, target, reduction=reduction, dtype=torch.float32)
    assert loss.dtype == torch.float32
    assert torch.equal(loss.to(dtype), oxiwarp.cross_entropy(logits, target, reduction=reduction))
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), target, reduction=reduction))
    ours = gradient(oxiwarp.cross_entropy, logits, target, torch.ones((), device=device), dtype=torch.float32)
    right = gradient(F.cross_entropy, logits.double(), target, torch.ones((), device=device))
    torch.testing.assert_close(ours.double(), right, rtol=torch.finfo(dtype).eps, atol=1e-6)
