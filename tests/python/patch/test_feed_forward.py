"""Tests of patched diffusers activations such as `GEGLU`, which contain the first linear of a feed-forward.

They check results, and adapters that replace this linear.
"""

import pytest
import torch
from helpers import DTYPES, random
from torch import nn

import oxiwarp
from oxiwarp.patching.fusions.shared import feed_forward

activations = pytest.importorskip("diffusers.models.activations")
flux2 = pytest.importorskip("diffusers.models.transformers.transformer_flux2")
MAKERS = {
    "gelu": lambda: activations.GELU(16, 40),
    "gelu_tanh": lambda: activations.GELU(16, 40, approximate="tanh"),
    "geglu": lambda: activations.GEGLU(16, 40),
    "swiglu": lambda: activations.SwiGLU(16, 40, bias=False),
    "gelu_quick": lambda: activations.ApproximateGELU(16, 40),
    "silu_and_mul": lambda: flux2.Flux2SwiGLU(),
}


class LoRA(nn.Module):
    """A LoRA adapter that keeps the linear that it replaces as a submodule.

    The adapters of other libraries are built in the same way.
    """

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(16, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Quantised(nn.Linear):
    """A linear that multiplies by its weight rounded to eighths."""

    def forward(self, x):
        return nn.functional.linear(x, (self.weight * 8).round() / 8, self.bias)


class Wide(nn.Linear):
    """A linear that returns float64, for which oxiwarp has no kernel."""

    def forward(self, x):
        return super().forward(x).double()


def made(op, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return MAKERS[op]().to(dtype).to(device).eval().requires_grad_(False)


@pytest.fixture
def ran(monkeypatch):
    """Record the names of the operators that fused feed-forwards call."""
    seen = []
    for name in MAKERS:
        op = getattr(feed_forward, name)
        monkeypatch.setattr(
            feed_forward, name, lambda *args, op=op, name=name, **kwargs: (seen.append(name), op(*args, **kwargs))[1]
        )
    return seen


def close(y, own):
    """Return whether `y` equals `own`, the unpatched module's result, within a tolerance of two machine
    epsilons.

    On the CPU, the exponentials of oxiwarp and torch differ in the last bits.
    """
    unit = torch.finfo(own.dtype).eps
    return y.dtype == own.dtype and torch.allclose(y, own, rtol=2 * unit, atol=2 * unit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", MAKERS)
def test_each(op, dtype, device, ran):
    module, x = made(op, dtype, device), random((2, 5, 16), dtype, device)
    own = module(x)
    report = oxiwarp.patch(module, cpu_kernels=True)
    assert report.replaced == 1 and op in report.ops and report.left == 0
    y = module(x)
    assert ran == [op] and y.is_contiguous()
    assert torch.equal(y, own) if device.type == "cuda" else close(y, own)
    assert module(x[:0]).shape == own[:0].shape
    oxiwarp.unpatch(module)
    assert torch.equal(module(x), own) and len(ran) == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fast(dtype, device):
    """In mode "fast", the mean error is at most 1.1 times the mean error of the unpatched module.

    An error is the difference to the result of a float64 module.

    Mode "fast" rounds only the final result. On a GPU, the matrix multiplication computes the GELU in its
    epilogue.
    """
    for op in MAKERS:
        module, x = made(op, dtype, device), random((2, 5, 16), dtype, device)
        right, own = made(op, torch.float64, device)(x.double()), module(x)
        oxiwarp.patch(module, mode="fast", cpu_kernels=True)
        assert (module(x) - right).abs().mean() <= 1.1 * (own - right).abs().mean() + 1e-7, op


def test_epilogue_of_plain_linears_only(monkeypatch):
    """The GELU after a linear is computed in the epilogue of the matrix multiplication only if the linear is
    a plain `nn.Linear` without hooks.

    If the linear is not plain or has a hook, the patched activation calls it as a module.
    """
    x = random((2, 5, 16), torch.bfloat16, "cpu")
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    plain = nn.Linear(16, 40).bfloat16().requires_grad_(False)
    assert feed_forward.in_epilogue(plain, x)
    assert not feed_forward.in_epilogue(nn.Linear(16, 40).requires_grad_(False), x.float()), "less accurate in float32"
    hooked = nn.Linear(16, 40).bfloat16().requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    wrapped = nn.utils.parametrizations.weight_norm(nn.Linear(16, 40)).requires_grad_(False)
    others = [hooked, wrapped, LoRA(plain), Quantised(16, 40), nn.Linear(16, 40, bias=False), plain.to("meta")]
    assert not any(feed_forward.in_epilogue(other.bfloat16().requires_grad_(False), x) for other in others)
    learned = nn.Linear(16, 40).bfloat16()
    assert feed_forward.in_epilogue(learned, x)
    with torch.enable_grad():
        assert not feed_forward.in_epilogue(learned, x)
    assert not feed_forward.in_epilogue(nn.Linear(16, 40).half(), x) and not feed_forward.in_epilogue(learned, x[:0])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("linear", [LoRA, Quantised, Wide])
@pytest.mark.parametrize("op", ["gelu", "gelu_tanh", "geglu", "swiglu", "gelu_quick"])
def test_other_linears(op, linear, mode, device, ran):
    """If an adapter or a quantized linear replaces the linear of a patched activation, the activation calls
    the new module.

    The module may be replaced before or after `patch`. If the new module returns a dtype that the kernels do
    not support, the original activation runs.
    """
    for patch_first in (False, True):
        module, x = made(op, device=device), random((2, 5, 16), torch.float32, device)
        if patch_first:
            oxiwarp.patch(module, mode=mode, cpu_kernels=True)
        bias = module.proj.bias is not None
        args = (module.proj,) if linear is LoRA else (16, module.proj.out_features, bias)
        module.proj = linear(*args).to(device).requires_grad_(False)
        if not patch_first:
            oxiwarp.patch(module, mode=mode, cpu_kernels=True)
        y = module(x)
        oxiwarp.unpatch(module)
        assert torch.allclose(y, module(x), rtol=1e-5, atol=1e-6)
    assert ran == ([] if linear is Wide else [op] * 2)


def test_flux2_slices(device, ran):
    """The kernel of `silu_and_mul` reads its input without a copy, even if the input is a slice of a larger
    tensor.

    If the last dimension of the slice is not contiguous, the original `forward` runs.
    """
    module, x = made("silu_and_mul"), random((2, 6, 48), torch.float32, device)
    own = [module(x[..., 16:]), module(x.transpose(0, 2)[:, :, :2]), module(x[..., ::2])]
    oxiwarp.patch(module, cpu_kernels=True)
    assert close(module(x[..., 16:]), own[0]) and ran == ["silu_and_mul"]
    assert torch.equal(module(x.transpose(0, 2)[:, :, :2]), own[1]) and torch.equal(module(x[..., ::2]), own[2])
    assert ran == ["silu_and_mul"]
    with pytest.raises(RuntimeError):
        module(x[..., :7])


def test_without_a_fusion():
    """`patch` skips activation modules whose class overrides the method `gelu`.

    If the activation of a SwiGLU module is not SiLU, `patch` has no prepared replacement. It then rewrites
    the source code of the module's method.
    """

    class Other(activations.GELU):
        def gelu(self, gate):
            return gate.relu()

    other = Other(16, 40)
    swiglu = made("swiglu")
    swiglu.activation = nn.GELU()
    x = random((2, 5, 16), torch.float32, "cpu")
    stock = swiglu(x)
    report = oxiwarp.patch(nn.ModuleList([other, swiglu]), cpu_kernels=True)
    rows = {row.status: row for row in report}
    assert "gelu is not the one that feed_forward.gelu knows" in rows["left"].reason
    assert rows["replaced"].op == "gelu_and_mul" and "its gate is a GELU" in rows["replaced"].reason
    assert torch.allclose(swiglu(x), stock, rtol=1e-5, atol=1e-6)
    assert report.ran().kernels == 1


def test_calls_of_the_own_forward(ran):
    swiglu, geglu, x = made("swiglu"), made("geglu"), random((2, 5, 16), torch.float32, "cpu")
    for module in (swiglu, geglu):
        oxiwarp.patch(module, cpu_kernels=True)
    gates = []
    handle = swiglu.activation.register_forward_hook(lambda *_: gates.append(1))
    swiglu(x)
    with pytest.warns(FutureWarning, match="scale"):
        geglu(x, scale=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert geglu(x).dtype == torch.bfloat16
    assert gates == [1] and not ran
    handle.remove()
    swiglu(hidden_states=x)
    assert ran == ["swiglu"]


@pytest.mark.parametrize("op", MAKERS)
def test_compiled(op, device):
    """A patched activation module compiles to one graph. For some operators, the graph contains torch
    operations, so that Inductor can fuse them. All other operators are oxiwarp operators."""
    from oxiwarp.patching.fusions.core.ops import INDUCTOR

    module, x = made(op, device=device), random((2, 5, 16), torch.float32, device)
    own, graphs = module(x), []

    def backend(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    oxiwarp.patch(module, cpu_kernels=True)
    y = torch.compile(module, fullgraph=True, backend=backend)(x)
    assert torch.allclose(y, own, rtol=1e-5, atol=1e-6) and len(graphs) == 1
    assert any("oxiwarp" in target for target in graphs[0]) == (op not in INDUCTOR)
