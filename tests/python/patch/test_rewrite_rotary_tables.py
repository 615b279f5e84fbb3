"""Tests of the cos and sin tables that rewritten methods pass to the rotary kernels."""

import gc

import both_ways
import pytest
import rotary_models
import torch
from both_ways import run_both_ways
from rotary_models import Attention, heads, rope_complex, rope_matrices, rope_of_wan, rope_patches, rope_swapped

import oxiwarp
from oxiwarp.patching.rewrite import rotary, rotary_tables
from oxiwarp.patching.rewrite.rotary_tables import once

B, S, D = rotary_models.BATCH, rotary_models.TOKENS, rotary_models.COLUMNS


class Matrices(Attention):
    """A method whose tables contain rotation matrices, as in Kandinsky 6. Each rotation is followed by a cast
    to the dtype of the queries or keys."""

    def forward(self, q, k, table):
        q = self.norm_q(q)
        k = self.norm_k(k)
        q = rope_matrices(q, table).to(dtype=q.dtype)
        k = rope_matrices(k, table).to(dtype=k.dtype)
        return q, k


class Patches(Attention):
    """A method in which only the last tokens have a position and are rotated, as in DINOv3."""

    def forward(self, q, k, cos, sin):
        q = self.norm_q(q)
        k = self.norm_k(k)
        q, k = rope_patches(q, k, cos, sin)
        return q, k


class Float64(Attention):
    """A method that rotates in float64, as in Lumina 2."""

    def forward(self, q, k, table):
        q = rope_complex(q, table)
        k = rope_complex(k, table)
        return q, k


class Swapped(Attention):
    def forward(self, q, cos, sin):
        q = rope_swapped(q, sin, cos)
        return (q,)


class Halves(Attention):
    """A method whose rotary function reads only half of the columns of each table. The tables must therefore
    be converted before the kernel can read them."""

    def forward(self, q, cos, sin):
        q = rope_of_wan(q, cos, sin)
        return (q,)


def matrices():
    angles = torch.randn(B, S, 1, D // 2)
    rows = torch.stack((angles.cos(), -angles.sin(), angles.sin(), angles.cos()), dim=-1)
    return rows.unflatten(-1, (2, 2))


def small_tables(tokens):
    return [torch.randn(tokens, D // 2) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrices(dtype):
    """One kernel computes the norm and the rotation if the table contains rotation matrices. With autograd,
    the original rotary function runs."""
    model, args = Matrices().to(dtype), (heads(dtype), heads(dtype), matrices())
    found, _ = run_both_ways(model, *args)
    assert [one.op for one in found] == ["qk_norm_rope, rope"] * 2
    both_ways.rewrite_all(model, cpu_kernels=True)
    q, results = args[0].requires_grad_(), []
    for run in (Matrices.forward, type(model).forward):
        with torch.enable_grad():
            made = run(model, *args)[0]
            results.append((made, torch.autograd.grad(made.float().pow(2).sum(), q)[0]))
    torch.testing.assert_close(*results)
    reasons = [reason for counts in both_ways.outcomes(model).values() for reason in counts]
    assert "a table of matrices has no gradient kernel" in reasons


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tables_with_few_tokens(dtype):
    """If the cos and sin tables have fewer rows than there are tokens, the kernel rotates only the last
    tokens."""
    cos, sin = rotary_models.tables(dtype)
    for start in (2, 0, 1):
        found, _ = run_both_ways(Patches().to(dtype), heads(dtype), heads(dtype), cos[start:], sin[start:])
        assert [one.op for one in found] == ["qk_norm_rope, rope"] * 2, start


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_rotation_in_float64(mode, dtype):
    """If the original code rotates in float64, the float32 kernel runs only in mode "fast" and for 16-bit
    results.

    The result of the kernel may differ from the original result in some bits.
    """
    model, angles = Float64().to(dtype), torch.randn(S, D // 2, dtype=torch.float64)
    args = heads(dtype), heads(dtype), torch.polar(torch.ones_like(angles), angles)
    report = oxiwarp.patch(model, cpu_kernels=True, mode=mode)
    with torch.no_grad():
        for own, made in zip(Float64.forward(model, *args), model(*args), strict=True):
            assert float((own - made).abs().max()) <= (0 if dtype == torch.float32 else 2**-6)
            assert float((own != made).float().mean()) <= 0.01
    (row,) = [row for row in report.ran() if row.line]
    assert (row.kernels == 1) == (mode == "fast" and dtype == torch.bfloat16)
    assert all("float64" in reason for reason in row.fallbacks)


def test_sines_first():
    """A rotary function may take the sines before the cosines."""
    found, _ = run_both_ways(Swapped(), heads(torch.float32), *small_tables(S))
    assert len(found) == 1


@pytest.mark.parametrize("views", [False, True])
def test_a_table_is_converted_once(views, monkeypatch):
    """A table is converted once, and later calls use the converted table. If the original table is modified
    in place, it is converted again."""
    made, model, tables = [], Halves(), rotary_models.tables()
    columns = rotary_tables.columns_of
    monkeypatch.setattr(rotary, "columns_of", lambda *args: made.append(1) or columns(*args))
    both_ways.rewrite_all(model, cpu_kernels=True)

    def run():
        q, (cos, sin) = heads(torch.float32), (table[:] if views else table for table in tables)
        with torch.no_grad():
            torch.testing.assert_close(model(q, cos, sin), Halves.forward(model, q, cos, sin))

    run()
    made.clear()
    run()
    assert not made
    tables[1].neg_()
    run()
    assert len(made) == 1
    tables[0][1:].mul_(2)  # a write to a view
    run()
    assert len(made) == 2
    with torch.inference_mode():
        own = tuple(table.clone() for table in tables)  # inference tensors have no version counter
        for _ in range(2):
            q = heads(torch.float32)
            torch.testing.assert_close(model(q, *own), Halves.forward(model, q, *own))
            own[0].neg_()
    counts = [counts for place, counts in both_ways.outcomes(model).items() if place.startswith("Halves")]
    assert [set(one) for one in counts] == [{"kernel"}]


def test_converted_tables_are_freed():
    """Converted tables are freed together with the original table, even if the conversion returns a view
    of this table."""
    gc.collect()
    before = len(rotary_tables._held)
    for make in (lambda x: (x * 2,), lambda x: (x[:2],), lambda x: (x,)):
        table = torch.randn(4, 8)
        first = once(table, "key", make)
        assert once(table, "key", make)[0] is first[0] and first[0].data_ptr() != table.data_ptr()
        assert once(table[1:], "key", make)[0] is not first[0]  # another view of the same memory
        assert once(table, "other", make)[0] is not first[0]
        assert len(rotary_tables._held) == before + 1
        del table, first
        gc.collect()
        assert len(rotary_tables._held) == before


def test_other_memory():
    """If a table gets other memory by an assignment to its attribute `data`, as with offloading, the table is
    converted again."""
    table = torch.randn(4, 8)
    before = once(table, "key", lambda x: (x * 2,))[0]
    table.data = torch.randn(4, 8)
    assert torch.equal(once(table, "key", lambda x: (x * 2,))[0], table * 2) and not torch.equal(before, table * 2)


def test_tables_that_require_grad():
    """If a rotary table requires grad, the table that `once` converts from it does too. The rotary operator can
    then reject it.
    """
    table = torch.randn(4, 8, requires_grad=True)
    with torch.enable_grad():
        assert once(table, "key", lambda x: (x * 2,))[0].requires_grad
