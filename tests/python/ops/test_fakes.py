"""Tests of the fake (meta) kernels, which raise the same errors as the kernels.

Fake kernels run for meta tensors, and while torch.compile traces a function.
"""

import re

import pytest
import torch
from bad_inputs import bad_calls
from helpers import random
from op_info import FORMS

import oxiwarp
from oxiwarp.ops._roles import Role

F32, INF, NAN = torch.float32, float("inf"), float("nan")
OPS = torch.ops.oxiwarp


class On:
    """Operands of the test calls, all on one device."""

    def __init__(self, device: str):
        self.x, self.heads = (random(shape, F32, device) for shape in ((3, 8), (2, 6, 3, 16)))
        self.rows = random((2, 6, 50), F32, device)
        self.one_head = random((2, 6, 1, 16), F32, device)
        self.cos, self.sin = (random((6, 16), F32, device, seed) for seed in (1, 2))
        self.target = torch.tensor([1, 2, 3], device=device)
        self.places = torch.arange(6, device=device)

    def turn(self, pairs: int) -> torch.Tensor:
        return torch.complex(self.cos[:, :pairs].contiguous(), self.sin[:, :pairs].contiguous())


CASES = {
    "rms_norm, eps": lambda on: oxiwarp.rms_norm(on.x, eps=-1.0),
    "rms_norm into out, eps": lambda on: oxiwarp.rms_norm(on.x, eps=-1.0, out=torch.empty_like(on.x)),
    "rms_norm, weights of heads": lambda on: oxiwarp.rms_norm(on.heads, on.heads[0, 0, :2]),
    "rms_norm, bias": lambda on: oxiwarp.rms_norm(on.x, bias=on.x[0, :3]),
    "add_rms_norm, eps": lambda on: oxiwarp.add_rms_norm(on.x, on.x, eps=-0.5),
    "add_rms_norm into out, eps": lambda on: oxiwarp.add_rms_norm(on.x, on.x, eps=-0.5, out=(on.x, on.x.clone())),
    "add_rms_norm, shape of sum": lambda on: oxiwarp.add_rms_norm(on.x, on.x, out=(on.x, on.x[:1])),
    "qk_norm_rope, eps": lambda on: oxiwarp.qk_norm_rope(on.heads, eps=-1.0),
    "qk_norm_rope, bias": lambda on: oxiwarp.qk_norm_rope(on.heads, q_bias=on.cos[0]),
    "qk_norm_rope, weights": lambda on: oxiwarp.qk_norm_rope(
        on.heads.half(), on.heads.half(), norm="llama_rms_norm", q_weight=on.cos[0], k_weight=on.cos[0].half()
    ),
    "complex, half the width": lambda on: oxiwarp.rope(on.heads, None, on.turn(4)),
    "complex, halves": lambda on: oxiwarp.rope(on.heads, None, on.turn(8), interleaved=False),
    "complex, tokens": lambda on: oxiwarp.rope(on.heads, None, on.turn(8)[:5]),
    "width": lambda on: oxiwarp.rope(on.heads, None, on.cos[:, :10], on.sin[:, :10]),
    "tokens": lambda on: oxiwarp.rope(on.heads, None, on.cos[:5], on.sin[:5]),
    "tokens from an offset": lambda on: oxiwarp.rope(on.heads, None, on.cos, on.sin, offset=3),
    "dimensions": lambda on: oxiwarp.rope(on.heads, None, on.cos[0], on.sin[0]),
    "table's dtype": lambda on: oxiwarp.rope(on.heads, None, on.cos.half(), on.sin.half()),
    "sine's dtype": lambda on: oxiwarp.rope(on.heads, None, on.cos, on.sin.half()),
    "sine's shape": lambda on: oxiwarp.rope(on.heads, None, on.cos, on.sin[:, :8]),
    "batches": lambda on: oxiwarp.rope(on.heads, None, on.cos.expand(3, 6, 16), on.sin.expand(3, 6, 16)),
    "heads of tables": lambda on: oxiwarp.rope(on.heads, on.one_head, on.heads, on.heads),
    "odd columns": lambda on: oxiwarp.rope(on.heads, None, on.cos, on.sin, rotary_dim=7),
    "more columns": lambda on: oxiwarp.rope(on.heads, None, on.cos, on.sin, rotary_dim=18),
    "columns of heads": lambda on: oxiwarp.rope(on.rows, None, on.cos, on.sin, head_dim=16),
    "no columns": lambda on: oxiwarp.rope(on.heads[..., :0], None, on.cos[:, :0], on.sin[:, :0]),
    "no columns, three dimensions": lambda on: oxiwarp.rope(on.rows[..., :0], None, on.cos[:, :0], on.sin[:, :0]),
    "k's batches": lambda on: oxiwarp.rope(on.heads, on.heads[:1], on.cos, on.sin),
    "positions, tokens": lambda on: oxiwarp.rope_1d(on.heads, positions=on.places[:5]),
    "positions, batches": lambda on: oxiwarp.rope_1d(on.heads, positions=on.places.expand(3, 6)),
    "positions, dimensions": lambda on: oxiwarp.rope_1d(on.heads, positions=on.places.expand(2, 2, 6)),
    "inv_freq": lambda on: oxiwarp.rope_1d(on.heads, inv_freq=on.cos[0]),
    "label_smoothing": lambda on: oxiwarp.cross_entropy(on.x, on.target, label_smoothing=-1.0),
    "weights of classes": lambda on: oxiwarp.cross_entropy(on.x, on.target, weight=on.x[0, :1]),
    "z_loss": lambda on: oxiwarp.cross_entropy(on.x, on.target, z_loss=-0.5),
    "z_loss, infinite": lambda on: oxiwarp.cross_entropy(on.x, on.target, z_loss=INF),
    "z_loss, NaN": lambda on: oxiwarp.cross_entropy(on.x, on.target, z_loss=NAN),
    "eps, infinite": lambda on: oxiwarp.rms_norm(on.x, eps=INF),
    "eps, NaN": lambda on: oxiwarp.layer_norm(on.x, eps=NAN),
    "eps beyond float32": lambda on: oxiwarp.qk_norm_rope(on.heads, eps=1e39),
    "weight_offset, NaN": lambda on: oxiwarp.rms_norm(on.x, weight_offset=NAN),
    "weight_offset, infinite": lambda on: oxiwarp.add_rms_norm(on.x, on.x, weight_offset=-INF),
    "rms_norm_backward, eps": lambda on: OPS.rms_norm_backward(on.x, on.x, None, None, INF, 0.0, False),
    "rms_norm_backward, offset": lambda on: OPS.rms_norm_backward(on.x, on.x, None, None, 0.0, NAN, False),
    "layer_norm_backward, eps": lambda on: OPS.layer_norm_backward(on.x, on.x, None, None, None, NAN, False, False),
    "threshold, NaN": lambda on: oxiwarp.fatrelu_and_mul(on.x, threshold=NAN),
    "x, float8": lambda on: oxiwarp.softmax(on.x.to(torch.float8_e4m3fn)),
    "k, float8": lambda on: oxiwarp.rope(on.heads, on.heads.to(torch.float8_e5m2), on.cos, on.sin),
    "table, float64": lambda on: oxiwarp.rope(on.heads, None, on.cos.double(), on.sin.double()),
    "q_weight, float64": lambda on: oxiwarp.qk_norm_rope(on.heads.half(), q_weight=on.cos[0].double()),
    "bias of an activation, float64": lambda on: oxiwarp.gelu(on.x, on.x[0].double()),
    "up, float64": lambda on: oxiwarp.silu_and_mul(on.x, on.x.double()),
    "gate, uint16": lambda on: oxiwarp.rms_norm_gated(on.x, on.x.to(torch.uint16)),
    "out, float64": lambda on: oxiwarp.rms_norm(on.x, out=on.x.double()),
}


def said(call, device: str) -> str:
    with pytest.raises(RuntimeError) as caught:
        call(On(device))
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize("name", CASES)
def test_the_same_words(name, device):
    assert said(CASES[name], "meta") == said(CASES[name], device.type)


def outcome(form, arguments):
    """Return the shapes and dtypes of the results of a call, or the text of its error."""
    try:
        results = form.info.function(**arguments)
    except (RuntimeError, ValueError, TypeError) as error:
        said = str(error).splitlines()[0].replace("NaN", "nan")
        return re.sub(r"torch\.(?=(float|int|bool|complex))", "", said)  # fake kernels write `torch.float64`
    results = results if isinstance(results, tuple) else (results,)
    return [(tuple(result.shape), result.dtype) for result in results]


@pytest.mark.parametrize("name", FORMS)
def test_the_same_for_each_role(name, device):
    """After a change of one operand, kernel and fake (meta) kernel give the same shapes and dtypes, or the
    same error.

    There is one exception. If the first operand or the shape of rows or heads is changed, it contradicts
    several other operands. Both kernels then raise an error, but may name different operands, because they
    check the operands in different orders.
    """
    form, wrong = FORMS[name], []
    x = random((3, 4, 16), form.info.dtypes[0], device)
    for operand, what, arguments in bad_calls(form, x):
        fakes = {key: t.to("meta") if isinstance(t, torch.Tensor) else t for key, t in arguments.items()}
        real, fake = outcome(form, arguments), outcome(form, fakes)
        # the kernel rejects a class index in `target`, but a meta tensor has no values to check
        if "target of row" in real:
            continue
        shape = form.info.roles.get(operand) in (Role.ROWS, Role.BRANCH, Role.HEADS) and not what.startswith("as ")
        several = shape or operand == form.info.first
        both_refused = isinstance(real, str) and isinstance(fake, str)
        if real != fake and not (several and both_refused):
            wrong.append(f"{operand}, {what}: kernel {real}, fake {fake}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("norm", ["rms_norm", "llama_rms_norm"])
def test_what_both_take(norm):
    """Kernels and fake (meta) kernels accept cos and sin tables in every allowed shape, for example `[1, S, 1, D]`."""
    for device in ("meta", "cpu"):
        on = On(device)
        q, k = on.heads, on.one_head
        narrow = on.cos[:, :8], on.sin[:, :8]
        for tables in (
            (on.cos, on.sin),
            narrow,
            (on.turn(8),),
            [t[None] for t in narrow],
            [t[None, :, None] for t in narrow],
        ):
            for options in ({}, {"offset": 0}, {"rotary_dim": 16}):
                y, z = oxiwarp.qk_norm_rope(q, k, *tables, norm=norm, **options)
                assert y.shape == q.shape and z.shape == k.shape
        assert oxiwarp.rope(q, None, on.cos[:2], on.sin[:2], offset=4).shape == q.shape
        assert len(oxiwarp.rope(q, q, q, q)) == 2, "tables of each head"
        assert oxiwarp.rope_1d(q, k, positions=on.places.expand(2, 6))[0].shape == q.shape
        assert oxiwarp.rope(on.rows[..., :48], None, on.cos, on.sin, head_dim=16).shape == (2, 6, 48)
        turned = [t.transpose(1, 2) for t in (q, k)], [t.expand(2, 1, 6, 16) for t in (on.cos, on.sin)]
        assert oxiwarp.rope(*turned[0], *turned[1], heads_first=True)[1].shape == (2, 1, 6, 16)
