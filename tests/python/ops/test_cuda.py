"""Tests that need a GPU: streams, CUDA graphs, several devices, first calls, PTX of other architectures."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from helpers import DTYPES, make_weight, random, reference, torch_chain

import oxiwarp


@pytest.fixture
def data(cuda):
    x = random((512, 3072), torch.bfloat16, cuda)
    weight = make_weight("same", 3072, torch.bfloat16, cuda)
    return x, weight, oxiwarp.rms_norm(x, weight)


def test_side_stream(data):
    """An operator launches its kernel on torch's current stream, after earlier kernels on this stream. The
    call does not block the CPU."""
    x, weight, expected = data
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        y = oxiwarp.rms_norm(late, weight)
    assert not stream.query(), "the call waited"
    stream.synchronize()
    assert torch.equal(y, expected)


def test_graph(data):
    """A CUDA graph that captured calls gives the right results when it is replayed with new input."""
    x, weight, _ = data
    static = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = oxiwarp.rms_norm(static, weight)
        z, total = oxiwarp.add_rms_norm(static, y, weight)
    for seed in (3, 4):
        static.copy_(random(x.shape, x.dtype, x.device, seed=seed))
        graph.replay()
        assert torch.equal(y, oxiwarp.rms_norm(static, weight))
        again = oxiwarp.add_rms_norm(static, y, weight)
        assert torch.equal(z, again[0]) and torch.equal(total, again[1])


def test_graph_of_patched_model(cuda):
    from models import net, net_input

    model, x = net(torch.bfloat16, cuda), net_input(torch.bfloat16, cuda)
    oxiwarp.patch(model)
    expected = model(x)
    static = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(static)
    static.copy_(x)
    graph.replay()
    assert torch.equal(y, expected)


def test_errors_in_capture(data):
    """A call that raises an error during a CUDA graph capture does not invalidate the capture."""
    x, weight, expected = data
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="weight has shape"):
            oxiwarp.rms_norm(x, weight[:-1])
        y = oxiwarp.rms_norm(x, weight)
    graph.replay()
    assert torch.equal(y, expected)


FRESH = """
import torch, oxiwarp
from torch.nn.functional import rms_norm
torch.set_grad_enabled(False)
x, w = torch.randn(64, 640, device="cuda").bfloat16(), torch.ones(640, device="cuda").bfloat16()
def right(y, x=x, w=w):
    assert ((y.float() - rms_norm(x.float(), (640,), w.float(), 1e-6)).abs() < 0.05).all()
"""


def fresh(code, **environment):
    """Run the Python code `FRESH + code` in a new process, where no kernel is loaded yet, and return its
    output."""
    command = [sys.executable, "-c", FRESH + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_first_call_in_capture(cuda):
    """The first call of an operator may be inside a CUDA graph capture.

    The first call loads a CUDA module, which must not invalidate the capture.
    """
    fresh(
        "g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g): y = oxiwarp.rms_norm(x, w)\n"
        "g.replay(); torch.cuda.synchronize(); right(y)"
    )


def test_first_call_in_a_thread(cuda):
    """The first calls of an operator may come from several threads at once, each with its own stream."""
    fresh(
        "import threading\n"
        "found = []\n"
        "def work():\n"
        "    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):\n"
        "        y = oxiwarp.rms_norm(x, w); torch.cuda.current_stream().synchronize(); found.append(y)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert len(found) == 4; [right(y) for y in found]"
    )


def test_first_call_on_a_device_without_context(cuda):
    """oxiwarp uses the primary context of the GPU, as torch does, even if oxiwarp initializes CUDA before
    torch."""
    fresh("from oxiwarp import _native\nassert _native.devices()[0]['ptx']\nright(oxiwarp.rms_norm(x, w))")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_other_ptx(arch, cuda):
    """PTX for an older architecture gives accurate results on a newer GPU."""
    major, minor = torch.cuda.get_device_capability()
    if int(arch[3:]) > 10 * major + minor:
        pytest.skip(f"this GPU does not run {arch}")
    out = fresh(
        "from oxiwarp import _native\nprint(_native.devices()[0]['ptx'])\n"
        "for dtype in (torch.float32, torch.float16, torch.bfloat16):\n"
        "    for cols in (7, 128, 1025, 4096, 65537):\n"
        "        x, w = torch.randn(33, cols, device='cuda').to(dtype), torch.randn(cols, device='cuda').to(dtype)\n"
        "        for rounding in ('once', 'before_weight'):\n"
        "            y = oxiwarp.rms_norm(x, w, rounding=rounding).double()\n"
        "            r = rms_norm(x.double(), (cols,), w.double(), 1e-6)\n"
        "            assert ((y - r).abs() <= 3 * torch.finfo(dtype).eps * r.abs() + 1e-6).all(), (dtype, cols)\n",
        OXIWARP_ARCH=arch,
    )
    assert out.strip() == arch


def test_second_device(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    x, weight = random((9, 640), torch.float32, "cuda:1"), make_weight("same", 640, torch.float32, "cuda:1")
    assert torch.cuda.current_device() == 0
    y = oxiwarp.rms_norm(x, weight)
    assert y.device == x.device and torch.cuda.current_device() == 0
    assert torch.equal(y.cpu(), oxiwarp.rms_norm(x.to("cuda:0"), weight.to("cuda:0")).cpu())
    with pytest.raises(RuntimeError, match="weight is on cuda:0, expected cuda:1"):
        oxiwarp.rms_norm(x, weight.to("cuda:0"))


def test_threads_and_streams(data):
    x, weight, expected = data
    wrong = []

    def work():
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            results = [oxiwarp.rms_norm(x, weight) for _ in range(50)]
            stream.synchronize()
        wrong.extend(1 for y in results if not torch.equal(y, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_executor_agrees(dtype, cuda):
    """The CPU executor and the GPU run the same `rms_norm` kernel. The results differ, because the GPU's
    rsqrt instruction is approximate.

    In float32 (eps = 2^-23), the relative difference may be 3.57 eps. The GPU's rsqrt contributes 1.07 eps
    (2^-22.9), and the executor's correctly rounded rsqrt 0.5 eps. GPU and executor also round two products
    each, and each of these four roundings contributes 0.5 eps.

    In 16 bits, the float32 difference seldom changes the norm after its rounding to 16 bits. If it does, the
    rounded norm differs by one unit in the last place, which is at most eps relative to the norm. The product
    of norm and weight has the same relative difference. GPU and executor both round this product. The
    difference of the results, relative to the exact product, is then at most eps + (2 + eps) * eps / 2.
    Relative to the rounded product, it is below 2 * eps * (1 + eps).
    """
    info = torch.finfo(dtype)
    bound = 3.6 * info.eps if dtype == torch.float32 else 2 * info.eps * (1 + info.eps)
    for cols in (7, 64, 640, 3072):
        x, weight = random((5, cols), dtype, cuda), make_weight("same", cols, dtype, cuda)
        for rounding in ("once", "before_weight"):
            a = oxiwarp.rms_norm(x, weight, rounding=rounding).cpu()
            b = oxiwarp.rms_norm(x.cpu(), weight.cpu(), rounding=rounding)
            # Subnormal numbers have a fixed spacing. The difference of subnormal results is therefore divided
            # by the smallest normal number instead of the result.
            off = ((a.double() - b.double()).abs() / b.double().abs().clamp_min(info.tiny)).max().item()
            assert off <= bound, f"{cols} columns, {rounding}: {off / info.eps:.2f} eps"
            if dtype != torch.float32:
                assert (a != b).double().mean() <= 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mean_error_is_torchs(dtype, cuda):
    """The mean error of `rms_norm` over many values is at most 1.05 times the mean error of the same formula
    in torch operators."""
    x, weight = random((256, 3072), dtype, cuda), make_weight("same", 3072, dtype, cuda)
    right = reference(x, weight)
    ours, own = ((f(x, weight).double() - right).abs().mean() for f in (oxiwarp.rms_norm, torch_chain))
    assert ours <= 1.05 * own
