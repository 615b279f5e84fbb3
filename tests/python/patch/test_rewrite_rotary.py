"""Tests of rewritten methods that rotate queries and keys (RoPE), and of the norms before the rotation."""

import inspect

import both_ways
import pytest
import rotary_models
import torch
from both_ways import run_both_ways
from rotary_models import Attention, OwnRMSNorm, heads, rotate_in_float32, rotate_pairs
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import base_of
from oxiwarp.patching.rewrite.deferred import Normed, deferred
from oxiwarp.patching.rewrite.recipe import found_in, rewritten_from
from oxiwarp.patching.rewrite.rotary import leaves_of, rotation_of, signature_of

PROGRAMS = 80
"""Number of random methods per test."""
B, S, H, D = 2, rotary_models.TOKENS, rotary_models.HEADS, rotary_models.COLUMNS


class Pairs(Attention):
    def forward(self, q, k, tables):
        q, k = self.norm_q(q), self.norm_k(k)
        q = rotate_pairs(q, tables)
        k = rotate_pairs(k, tables)
        return q, k


class Separate(Attention):
    """A method whose norms are in branches, as in Z-Image. Another statement separates the rotation (RoPE) of
    the queries from the rotation of the keys."""

    def forward(self, q, k, tables):
        if self.norm_q is not None:
            q = self.norm_q(q)
        if self.norm_k is not None:
            k = self.norm_k(k)
        if tables is not None:
            q = rotate_pairs(q, tables)
        total = q.sum()
        if tables is not None:
            k = rotate_pairs(k, tables)
        return q, k, total


class Joint(Attention):
    """A method with separate norms for text and image tokens. One call rotates the tokens of both kinds, as
    in Flux."""

    def forward(self, q, k, tables, text=None):
        q = self.norm_q(q)
        k = self.norm_k(k)
        if text is not None:
            text_q = self.norm_added_q(text)
            text_k = self.norm_added_k(text)
            q = torch.cat([text_q, q], dim=1)
            k = torch.cat([text_k, k], dim=1)
        if tables is not None:
            q = rotate_pairs(q, tables)
            k = rotate_pairs(k, tables)
        return q, k


class Wide(Attention):
    """A method that casts the input of a norm to float32, and casts the result back, as in Kandinsky 5.

    The method rotates the queries but not the keys.
    """

    def forward(self, q, k, tables):
        q = self.norm_q(q.float()).type_as(q)
        k = self.norm_k(k.float()).to(dtype=k.dtype).transpose(1, 2)
        q = rotate_pairs(q, tables)
        return q, k


class AcrossHeads(Attention):
    """A method with norms over all heads, in which the rotary function is a nested function, as in Wan."""

    def forward(self, q, k, tables):
        q = self.norm_q(q.flatten(2))
        k = self.norm_k(k.flatten(2))
        q = q.unflatten(2, (H, -1))
        k = k.unflatten(2, (H, -1))

        def rotary(x, cos, sin):
            return rotary_models.rope_of_wan(x, cos, sin)

        q = rotary(q, *tables)
        k = rotary(k, *tables)
        return q, k


class Decoder(Attention):
    """A method in which one function rotates queries and keys in the layout `[B, H, S, D]`, as in
    transformers."""

    def forward(self, q, k, tables):
        q = self.norm_q(q).transpose(1, 2)
        k = self.norm_k(k).transpose(1, 2)
        cos, sin = tables
        q, k = rotate_heads_first(q, k, cos, sin)
        return q, k


class Slice(Attention):
    """A method that rotates the last tokens in place, as in CogVideoX."""

    def forward(self, q, k, tables):
        start = q.shape[1] - tables[0].shape[0]
        q = self.norm_q(q)
        q[:, start:] = rotate_pairs(q[:, start:], tables)
        k[:, start:] = rotate_pairs(k[:, start:], tables)
        return q, k


class Cat(Attention):
    """A method that rotates the first tokens and concatenates them with the other tokens, as in
    HunyuanVideo."""

    def forward(self, q, k, tables):
        stop = tables[0].shape[0]
        q = self.norm_q(q)
        q = torch.cat([rotate_pairs(q[:, :stop], tables), q[:, stop:]], dim=1)
        k = torch.cat([rotate_pairs(k[:, :stop], tables), k[:, stop:]], dim=1)
        return q, k


class Rounded(Attention):
    """A method that rotates in float32 and rounds once, although its cos and sin tables have 16 bits.

    No single kernel computes this rotation and also rounds the result of the norm.
    """

    def forward(self, q, k, tables):
        q = self.norm_q(q)
        q = rotate_in_float32(q, *tables)
        return q, k


class Cast(Attention):
    """A method that casts the result of a rotation to another dtype."""

    def forward(self, q, k, tables):
        q = rotate_pairs(q, tables).to(dtype=tables[0].dtype)
        k = rotate_pairs(k, tables).to(k.dtype)
        return q, k


class Chained(Attention):
    """A method whose second rotation reads the result of the first rotation."""

    def forward(self, q, k, tables):
        q = rotate_pairs(q, tables)
        k = rotate_pairs(q, tables)
        return q, k


class Changed(Attention):
    """A method that changes the operand of the norm between the norm and the rotation."""

    def forward(self, q, k, tables):
        normed = self.norm_q(k)
        k.add_(3)
        normed = rotate_pairs(normed, tables)
        return normed, k


class Unbound(Attention):
    """A method with a variable that gets a value in only one branch."""

    def forward(self, q, k, tables):
        if tables is not None:
            normed = self.norm_q(q)
        if tables is not None:
            normed = rotate_pairs(normed, tables)
            k = k + normed
        return q, k


class Closure(Attention):
    """A method whose rotary function is a closure."""

    def forward(self, q, k, tables, factor=1):
        def rotary(x, cos, sin):
            return factor * rotary_models.rope_of_wan(x, cos, sin)

        q = rotary(q, *tables)
        return q, k


def rotate_heads_first(q, k, cos, sin):
    return tuple(x * cos + rotary_models.rotated_half(x) * sin for x in (q, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", [nn.RMSNorm, OwnRMSNorm, nn.LayerNorm], ids=lambda norm: norm.__name__)
@pytest.mark.parametrize("cls", [Pairs, Separate, Joint, AcrossHeads, Decoder])
def test_norm_and_rotation(cls, norm, dtype, monkeypatch):
    """One kernel computes the norm and the rotation of queries or keys, with the roundings of the original
    code."""
    model = cls(norm, across=cls is AcrossHeads).to(dtype)
    args = [heads(dtype), heads(dtype), rotary_models.tables(dtype if cls is Decoder else torch.float32)]
    found, _ = run_both_ways(model, *args)
    assert len(found) == (4 if cls is Pairs else 2)
    if cls is not Pairs:  # Pairs assigns the results of both norms in one statement
        source = rewritten_from(cls.forward).source
        assert source.count("deferred_norm") == (4 if cls is Joint else 2), source
    both_ways.rewrite_all(model, cpu_kernels=True)
    made = []
    monkeypatch.setattr(Normed, "now", lambda self: made.append(self))
    with torch.no_grad():
        model(*args)
    assert not made  # No norm was computed separately.


def test_joint_tokens():
    """The kernel that rotates text and image tokens also computes their two separate norms."""
    cos, sin = (torch.randn(S + 2, D // 2).repeat_interleave(2, -1) for _ in range(2))
    text = heads(torch.bfloat16, 2)
    model = Joint().to(torch.bfloat16)
    args = heads(torch.bfloat16), heads(torch.bfloat16), (cos, sin), text
    found, _ = run_both_ways(model, *args)
    assert len(found) == 2
    both_ways.rewrite_all(model.float(), cpu_kernels=True)
    results = []
    # With autograd, no kernel may write into a slice of a result.
    for run in (Joint.forward, type(model).forward):
        given = [x.float().requires_grad_() for x in (*args[:2], text)]
        with torch.enable_grad():
            made = run(model, *given[:2], args[2], given[2])
            gradients = torch.autograd.grad(sum(x.pow(3).sum() for x in made), [*given, *model.parameters()])
        results.append((*made, *gradients))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    args = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
    q, k = model(*args[:2], None)  # without tables, there is no rotation
    torch.testing.assert_close(q, Joint.forward(model, *args[:2], None)[0])


def test_probe_under_vmap():
    """To find the formula of a rotary function, `rotation_of` calls this function with random tensors. This
    also works under vmap, in which torch rejects random operations."""
    x, found = heads(torch.float32), []
    signature = signature_of((x, torch.randn(S, D // 2), torch.randn(S, D // 2)))
    torch.func.vmap(lambda one: found.append(rotation_of(rotary_models.rope_swapped, signature)) or one)(x)
    assert found[0] is not None


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("rotate_halves", lambda x: (x, x[:, :, :2], *rotary_models.tables(x.dtype))),
        ("rotate_pairs", lambda x: (x, rotary_models.tables())),
        ("rotate_pairs", lambda x: (x.transpose(1, 2), rotary_models.tables(), 2)),
        ("rope_of_wan", lambda x: (x, *rotary_models.tables())),
        ("rope_complex", lambda x: (x, torch.randn(S, D // 2, dtype=torch.complex64))),
        ("rope_angles", lambda x: (x, torch.randn(S, D // 2))),
        ("rope_chunks", lambda x: (x, torch.randn(S, 2 * D).to(x.dtype))),
        ("rope_matrices", lambda x: (x, torch.randn(B, S, 1, D // 2, 2, 2))),
        ("rope_matrices", lambda x: (x, torch.randn(S, 1, D // 2, 2, 2).to(x.dtype))),
        ("rope_matrices_written_out", lambda x: (x, x[:, :, :1], torch.randn(B, S, 1, D // 2, 2, 2))),
        ("rope_matrices_written_out", lambda x: (*2 * (x.transpose(1, 2),), torch.randn(1, 1, S, D // 2, 2, 2))),
        ("rope_wide_angles", lambda x: (x, torch.randn(S, D // 2).to(x.dtype))),
        ("rope_swapped", lambda x: (x, *(torch.randn(S, D // 2).to(x.dtype) for _ in range(2)))),
        ("rope_swapped", lambda x: (x, *(torch.randn(S, D // 2) for _ in range(2)))),
        ("rope_back", lambda x: (x, x[:, :, :1], *rotary_models.tables(x.dtype))),
        ("rope_last", lambda x: (x, *(torch.randn(S, D // 4) for _ in range(2)))),
        ("rope_apart", lambda x: (x, x[:, :, :1], *rotary_models.tables(x.dtype))),
        ("rope_patches", lambda x: (x, x, *(table[2:] for table in rotary_models.tables(x.dtype)))),
        ("rope_prompt", lambda x: (x, *(table[2:] for table in rotary_models.tables(x.dtype)))),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_probe(name, args, dtype):
    """`rotation_of` calls a rotary function with random tensors to find its formula.

    For other arguments of the same shapes and dtypes, the formula gives the same values as the function.
    """
    function, given = getattr(rotary_models, name), args(heads(dtype))
    found = rotation_of(function, signature_of(given), few=name in ("rope_patches", "rope_prompt"))
    assert found is not None
    own = function(*given)
    own = (own,) if isinstance(own, torch.Tensor) else own
    made = found.rotate(given[: found.number], leaves_of(given[found.number :]), "exact")
    for a, b in zip(made, own, strict=True):
        if name == "rope_complex":  # on a GPU, the kernel uses a fused multiply-add, as torch does
            torch.testing.assert_close(a, b)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["rotate_and_scale", "rotate_in_place", "rotate_and_clear", "rotated_half"])
def test_probe_of_other_functions(name):
    """Functions for which no kernel exists are not recognised as rotations."""
    x = heads(torch.float32)
    args = (x,) if name == "rotated_half" else (x, *rotary_models.tables())
    assert rotation_of(getattr(rotary_models, name), signature_of((*args, None))) is None or name == "rotated_half"
    if name in ("rotate_in_place", "rotate_and_clear", "rotate_and_scale"):
        assert rotation_of(getattr(rotary_models, name), signature_of(args)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cls", [Slice, Cat, Rounded, Cast, Chained, Changed, Unbound, Closure])
def test_other_methods(cls, dtype):
    """Some methods are easy to rewrite incorrectly. After the rewrite, these methods give the original
    results, and change the same arguments in place."""
    model = cls().to(dtype)
    both_ways.rewrite_all(model, cpu_kernels=True)
    tables = rotary_models.tables(dtype if cls is Rounded else torch.float32)
    calls = [(tables,), (None,)] if cls is Unbound else [(tables, 1), (tables, 2)] if cls is Closure else [(tables,)]
    tokens = S + 2 if cls in (Slice, Cat) else S
    for given in calls:
        q, k = heads(dtype, tokens), heads(dtype, tokens)
        results = []
        for run in (cls.forward, type(model).forward):
            args = q.clone(), k.clone()
            with torch.no_grad():
                results.append((*run(model, *args, *given), *args))
        for own, made in zip(*results, strict=True):
            assert made.dtype == own.dtype
            if dtype == torch.float32:
                torch.testing.assert_close(made, own)
            else:
                assert (made != own).float().mean() <= both_ways.MOST_UNEQUAL
    kernels = sum(counts["kernel"] for counts in both_ways.outcomes(model).values())
    assert (kernels > 0) == (cls is not Closure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", [nn.RMSNorm, OwnRMSNorm], ids=lambda norm: norm.__name__)
def test_norms_of_a_float32_input(norm, dtype):
    """If a method casts the input of a norm to float32 and casts the result back, the rewritten method has no
    separate casts: they become a part of the norm.
    """
    source = rewritten_from(Wide.forward).source
    assert source.count("float()") == source.count("type_as") == 0 and source.count("True)") == 2
    found, reasons = run_both_ways(Wide(norm).to(dtype), heads(dtype), heads(dtype), rotary_models.tables())
    norms = 2 if norm is nn.RMSNorm or dtype == torch.float32 else 0
    both_ways.rewrite_all(model := Wide(norm).to(dtype), cpu_kernels=True)
    assert len(found) == 1 + norms // 2, reasons
    q, k, tables = heads(dtype), heads(dtype), rotary_models.tables()
    if norm is nn.RMSNorm:
        # if input and weight have different dtypes, torch computes the norm by several operators
        name = "rms_norm" if dtype == torch.float32 else "mochi_rms_norm"
        assert deferred(model.norm_q, q, cpu_kernels=True, wide=True).name == name
        model.norm_q.float()  # torch's fused norm adds in a different order
    with torch.no_grad():
        for own, made in zip(Wide.forward(model, q, k, tables), model(q, k, tables), strict=True):
            assert own.dtype == made.dtype and (own.shape, own.stride()) == (made.shape, made.stride())
            torch.testing.assert_close(own, made)


def test_columns_that_a_function_does_not_read():
    """If a rotary function does not read some columns of a table, NaN in these columns does not reach the
    result."""
    model = AcrossHeads(across=True)
    cos, sin = rotary_models.tables()
    cos[:, 1::2], sin[:, 0::2] = torch.nan, torch.nan
    both_ways.rewrite_all(model, cpu_kernels=True)
    args = heads(torch.float32), heads(torch.float32), (cos, sin)
    with torch.no_grad():
        made, own = model(*args), AcrossHeads.forward(model, *args)
    assert all(x.isfinite().all() for x in made)
    torch.testing.assert_close(made, own)


def test_a_function_that_is_replaced_after_patch(monkeypatch):
    """If the user replaces a rotary function in its module after `patch`, the rewritten method calls the
    new function."""
    model = Separate()
    both_ways.rewrite_all(model, cpu_kernels=True)
    args = heads(torch.float32), heads(torch.float32), rotary_models.tables()
    with torch.no_grad():
        before = model(*args)[0]
        monkeypatch.setitem(globals(), "rotate_pairs", lambda x, tables: x + 1)
        after = model(*args)[0]
        expected = model.norm_q(args[0]) + 1
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected)


def test_hooks_on_a_norm():
    """If a norm has a hook, its original `forward` runs before the rotation."""
    model = Separate().to(torch.bfloat16)
    both_ways.rewrite_all(model, cpu_kernels=True)
    args = heads(torch.bfloat16), heads(torch.bfloat16), rotary_models.tables()
    seen = []
    model.norm_q.register_forward_hook(lambda *call: seen.append(1))
    with torch.no_grad():
        made, own = model(*args), Separate.forward(model, *args)
    assert len(seen) == 2
    assert all(torch.allclose(a, b, rtol=0.02, atol=0.02) for a, b in zip(made, own, strict=True))


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_weights_that_are_no_parameters(norm):
    """If the attribute `weight` of a norm is a plain tensor, the rewritten method uses this tensor. It does
    so even if the norm also has a parameter `weight`."""
    model = Separate(norm)
    both_ways.rewrite_all(model, cpu_kernels=True)
    model.norm_q.__dict__["weight"] = torch.randn(D)
    del model.norm_k.weight
    model.norm_k.weight = torch.randn(D)
    args = heads(torch.float32), heads(torch.float32), rotary_models.tables()
    with torch.no_grad():
        torch.testing.assert_close(model(*args), Separate.forward(model, *args))


def test_patch_and_compile():
    """`patch` reports the operators of a rewritten method. torch.compile traces the method to one graph
    with the original results."""
    model = Separate()
    report = oxiwarp.patch(model, cpu_kernels=True)
    assert {"qk_norm_rope", "rope"} <= report.ops
    args = heads(torch.float32), heads(torch.float32), rotary_models.tables()
    with torch.no_grad():
        own = Separate.forward(model, *args)
        torch.testing.assert_close(model(*args), own)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(*args), own)
    assert [row.kernels for row in report.ran() if row.op == "qk_norm_rope, rope"] == [1, 1]
    assert "deferred_norm" in oxiwarp.patched_source(model)
    oxiwarp.unpatch(model)
    assert base_of(model) is type(model) is Separate


def test_random_methods(tmp_path):
    """Rewritten random methods give the results of the original methods, and change their arguments in the
    same way.

    The results include intermediate values that a method reads between its statements.
    """
    methods = {f"Random{at}": rotary_models.Maker(at).method() for at in range(PROGRAMS)}
    module, deferred, kernels = rotary_models.load(methods, tmp_path), 0, 0
    for name, lines in methods.items():
        cls = vars(module)[name]
        assert not isinstance(found_in(cls.forward), str), lines
        source = rewritten_from(cls.forward).source
        deferred += "deferred_norm" in source
        for flag in (True, False):
            torch.manual_seed(1)
            model = cls()
            cos_sin = rotary_models.tables()
            given = [heads(torch.float32) for _ in range(3)]
            results = []
            for patched in (False, True):
                if patched:
                    both_ways.rewrite_all(model, cpu_kernels=True)
                args = [x.clone() for x in given]
                with torch.no_grad():
                    try:
                        results.append((*model(*args, cos_sin, flag), *args))
                    except Exception as error:  # noqa: BLE001
                        results.append(error)
            own, made = results
            text = "\n".join(lines)
            if isinstance(own, Exception):
                assert type(made) is type(own), text
                continue
            assert not isinstance(made, Exception), f"{text}\n{source}\n{made}"
            for a, b in zip(own, made, strict=True):
                assert torch.allclose(a, b, rtol=1e-4, atol=1e-4), f"{text}\n{source}"
            kernels += sum(counts["kernel"] for counts in both_ways.outcomes(model).values())
    assert deferred > PROGRAMS // 4 and kernels > PROGRAMS


def test_normed_is_private():
    """`Normed`, which represents a norm that is not computed yet, defines no operators such as `+`.

    Only oxiwarp's functions may use a `Normed`. If other code got a `Normed` by mistake, an operator would
    hide this error.
    """
    public = {name for name in vars(Normed) if not name.startswith("_")}
    views = {"viewed", "transpose", "unflatten", "seen"}
    assert public <= {*views, "parts", "now", "kernel", "original", "across_heads", "kind", "name_of_norm"}
    assert not inspect.isabstract(Normed)
