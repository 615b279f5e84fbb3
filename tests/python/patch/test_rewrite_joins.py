"""Tests of kernels that write directly into the result of a concatenation.

The kernels compute activations, or the norms and rotations (RoPE) of joint attention.
"""

from collections import Counter

import pytest
import torch
from helpers import DTYPES, random
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp

HEADS, DIM = 3, 16
TEXT, IMAGE = 5, 7


class Count(TorchDispatchMode):
    """Dispatch mode that counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.name().partition("::")[2].partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def apply_rotary(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return (x.float() * cos[None, :, None] + turned.float() * sin[None, :, None]).to(x.dtype)


class Joint(nn.Module):
    """A method that normalizes two streams (image and text tokens), rotates them (RoPE), and concatenates
    them."""

    def __init__(self):
        super().__init__()
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            setattr(self, name, nn.RMSNorm(DIM, eps=1e-6))
            nn.init.normal_(getattr(self, name).weight)

    def forward(self, q, k, tq, tk, tables, turns):
        q = self.norm_q(q)
        k = self.norm_k(k)
        tq = self.norm_added_q(tq)
        tk = self.norm_added_k(tk)
        if turns is not None:
            q = apply_rotary(q, *tables)
            k = apply_rotary(k, *tables)
            tq = apply_rotary(tq, *turns)
            tk = apply_rotary(tk, *turns)
        query = torch.cat([tq, q], dim=1)
        key = torch.cat([tk, k], dim=1)
        return query, key


class SameNames(Joint):
    """A method that assigns the concatenation to the variable of one of its operands, inside a branch."""

    def forward(self, q, k, tq, tk, tables, turns):
        q = self.norm_q(q)
        k = self.norm_k(k)
        if tq is not None:
            tq = self.norm_added_q(tq)
            tk = self.norm_added_k(tk)
            q = torch.cat([q, tq], dim=1)
            k = torch.cat([k, tk], dim=1)
        return q, k


class ReadAgain(Joint):
    """A method that reads an operand of the concatenation after the concatenation."""

    def forward(self, q, k, tq, tk, tables, turns):
        q = self.norm_q(q)
        k = self.norm_k(k)
        q = apply_rotary(q, *tables)
        k = apply_rotary(k, *tables)
        query = torch.cat([q, tq], dim=1)
        key = torch.cat([k, tk], dim=1)
        return query, key + 0 * q.sum()


class ReadBefore(Joint):
    """A method that rotates a tensor, reads the rotated tensor, and then concatenates it with another
    tensor."""

    def forward(self, q, k, tq, tk, tables, turns):
        q = self.norm_q(q)
        k = self.norm_k(k)
        q = apply_rotary(q, *tables)
        k = apply_rotary(k, *tables)
        total = q.sum()
        query = torch.cat([q, tq], dim=1)
        key = torch.cat([k, tk], dim=1)
        return query * total, key


class InLoop(Joint):
    """A loop whose second iteration reads the tensors that the first iteration concatenated."""

    def forward(self, q, k, tq, tk, tables, turns):
        total = 0
        for at in range(2):
            total = total + (q.sum() if at else 0)
            q = apply_rotary(q, *tables)
            k = apply_rotary(k, *tables)
            query = torch.cat([q, tq], dim=1)
            key = torch.cat([k, tk], dim=1)
        return query * total, key


class Other(Joint):
    """A method whose two statements concatenate along different dimensions."""

    def forward(self, q, k, tq, tk, tables, turns):
        q = self.norm_q(q)
        k = self.norm_k(k)
        query = torch.cat([q, tq], dim=1)
        key = torch.cat([k, tk], dim=2)
        return query, key


def inputs(dtype, device):
    sizes = (IMAGE, IMAGE, TEXT, TEXT)
    heads = [random((2, size, HEADS, DIM), dtype, device, seed) for seed, size in enumerate(sizes)]
    tables = [random((size, DIM // 2), torch.float32, device, 9 + size).repeat(1, 2) for size in (IMAGE, TEXT)]
    return [*heads, *((table.cos(), table.sin()) for table in tables)]


def results(cls, dtype, device):
    """Return the original results, the patched results, the operators that the patched method ran, the
    module, and its arguments."""
    torch.manual_seed(0)
    module, given = cls().to(device, dtype), inputs(dtype, device)
    if cls is Other:
        given[3] = random((2, IMAGE, 1, DIM), dtype, device, 3)
    own = module(*given)
    oxiwarp.patch(module, cpu_kernels=True)
    with Count() as count:
        made = module(*given)
    assert all(torch.is_tensor(x) for x in made)
    return own, made, count.seen, module, given


def close(made, own):
    for one, other in zip(made, own, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=4 * torch.finfo(one.dtype).eps, atol=4 * torch.finfo(one.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [Joint, SameNames])
def test_joined(cls, dtype, device):
    """One kernel per stream (image or text tokens) computes queries and keys, and writes them directly into
    the concatenated tensors. `torch.cat` does not run."""
    own, made, seen, module, given = results(cls, dtype, device)
    close(made, own)
    assert seen["qk_norm_rope_out"] == 2 and seen["cat"] == 0, seen
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    close(compiled(*given), own)


def test_without_rotation(device):
    """If the method gets no rotary tables, the kernels only normalize."""
    module, given = Joint().to(device), inputs(torch.float32, device)
    own = module(*given[:4], None, None)
    oxiwarp.patch(module, cpu_kernels=True)
    with Count() as count:
        made = module(*given[:4], None, None)
    close(made, own)
    assert count.seen["qk_norm_rope_out"] == 2 and count.seen["cat"] == 0


def test_without_text(device):
    module, given = SameNames().to(device), inputs(torch.float32, device)
    own = module(*given[:2], None, None, None, None)
    oxiwarp.patch(module, cpu_kernels=True)
    close(module(*given[:2], None, None, None, None), own)


@pytest.mark.parametrize("cls", [ReadAgain, ReadBefore, InLoop, Other])
def test_other_methods(cls, device):
    """If a method also reads an operand of the concatenation in another place, the results match the original
    results."""
    own, made, _, _, _ = results(cls, torch.float32, device)
    for one, other in zip(made, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_parts_that_do_not_fit(device):
    """If the operands of a concatenation have different dtypes or shapes, the rewritten method gives the
    result or the error of `torch.cat`."""
    module, given = Joint().to(device), inputs(torch.float32, device)
    module.norm_added_q.bfloat16(), module.norm_added_k.bfloat16()
    mixed = [*given[:2], *(x.bfloat16() for x in given[2:4]), *given[4:]]
    own = module(*mixed)
    oxiwarp.patch(module, cpu_kernels=True)
    close(module(*mixed), own)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        module(*given[:2], *(x[:1] for x in mixed[2:4]), *given[4:])


def test_gradients(device):
    """The gradients of the patched and unpatched modules match. With autograd, a kernel does not write into a
    slice of a larger tensor."""
    torch.manual_seed(0)
    found = []
    for patch in (False, True):
        torch.manual_seed(0)
        module, given = Joint().to(device), inputs(torch.float32, device)
        if patch:
            oxiwarp.patch(module, cpu_kernels=True)
        heads = [x.clone().requires_grad_() for x in given[:4]]
        with torch.enable_grad():
            made = module(*heads, *given[4:])
            (made[0].square().sum() + made[1].sum()).backward()
        found.append([x.grad for x in (*heads, *module.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


class Parallel(nn.Module):
    """The end of FLUX.1's single-stream block, which concatenates the results of attention and
    feed-forward."""

    def __init__(self, act=None):
        super().__init__()
        self.act = act or nn.GELU(approximate="tanh")
        self.up, self.attn = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        hidden = self.act(self.up(x))
        attended = self.attn(x)
        return torch.cat([attended, hidden], dim=2)


class Assigned(Parallel):
    def forward(self, x):
        hidden = self.act(self.up(x))
        attended = self.attn(x)
        hidden = torch.cat([attended, hidden], -1)
        return hidden


class Twice(Parallel):
    """A method in which another statement also reads the activation."""

    def forward(self, x):
        hidden = self.act(self.up(x))
        both = torch.cat([x, hidden], dim=-1)
        return both * hidden.sum()


class Changed(Parallel):
    """A method that changes the argument of the activation in place before the concatenation."""

    def forward(self, x):
        y = x * 2
        hidden = self.act(y)
        y.mul_(2)
        both = torch.cat([x, hidden], dim=-1)
        return both


class Branch(Parallel):
    """A method in which a branch assigns another value to the activation's variable before the
    concatenation."""

    def forward(self, x):
        hidden = self.act(self.up(x))
        if x.shape[0] == 2:
            hidden = x
        both = torch.cat([x, hidden], dim=-1)
        return both


def parallel(module, x):
    """Return the result without `patch`, the result with `patch`, and the operators that ran with `patch`."""
    own = module(x)
    oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
    with Count() as count:
        made = module(x)
    return own, made, count.seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", [None, nn.SiLU, nn.GELU])
def test_activations(act, dtype, device):
    module, x = Assigned(act and act()).to(device, dtype), random((2, 5, DIM), dtype, device)
    own, made, seen = parallel(module, x)
    close([made], [own])
    assert seen["activation_out"] == 1 and seen["cat"] == 0
    torch.compiler.reset()
    close([torch.compile(module, backend="eager", fullgraph=True)(x)], [own])
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        assert torch.autograd.grad(module(y).sum(), y)[0].isfinite().all()
    seen = []
    module.act.register_forward_hook(lambda *of: seen.append(1))
    module(x)
    assert seen == [1]


@pytest.mark.parametrize("make", [Twice, Changed, Branch, lambda: Assigned(nn.Tanh()), Parallel])
def test_other_activations(make, device):
    """If a kernel cannot write the activation directly into the concatenation, the method still gives the
    original result."""
    own, made, _ = parallel(make().to(device), random((2, 5, DIM), torch.float32, device))
    close([made], [own])


class Transposed(Joint):
    """A method that normalizes queries and keys `[B, H, S, D]`, which are views of `[B, S, H, D]`, as in SD 3.5."""

    def forward(self, q, k, tq, tk, tables, turns):
        query = q.transpose(1, 2)
        key = k.transpose(1, 2)
        if self.norm_q is not None:
            query = self.norm_q(query)
        if self.norm_k is not None:
            key = self.norm_k(key)
        if tq is not None:
            tq = self.norm_added_q(tq)
            tk = self.norm_added_k(tk)
            query = torch.cat([query, tq], dim=2)
            key = torch.cat([key, tk], dim=2)
        return query, key


@pytest.mark.parametrize("elementwise", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
@pytest.mark.parametrize("cls", [SameNames, Transposed])
def test_norms_alone(cls, eps, elementwise, device):
    """One kernel computes the norms of queries and keys that are neither rotated nor concatenated, if both norms have
    the same eps. The results have the strides of the original results.
    """
    module = cls()
    if elementwise:
        norm = pytest.importorskip("diffusers.models.normalization").RMSNorm
        module.norm_q, module.norm_k = norm(DIM, 1e-6), norm(DIM, 1e-6)
    module.to(device).norm_k.eps = eps
    q, k = (random((2, IMAGE, HEADS, DIM), torch.float32, device, seed=seed) for seed in range(2))
    own = module(q, k, None, None, None, None)
    oxiwarp.patch(module, cpu_kernels=True)
    with Count() as count:
        made = module(q, k, None, None, None, None)
    for y, right in zip(made, own, strict=True):
        torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
        assert y.stride() == right.stride()
    expected = {"qk_norm_rope": 1} if eps == module.norm_q.eps else {"qk_norm_rope_one": 2}
    assert {name: n for name, n in count.seen.items() if name.startswith("qk_norm")} == expected
