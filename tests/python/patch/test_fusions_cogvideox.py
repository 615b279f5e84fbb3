"""Tests of the patched blocks and attention of CogVideoX."""

import pytest
import torch
from fused_checks import check_compiled, check_gradients, check_model, check_unknown_source, counts, run
from helpers import DTYPES
from video_models import cogvideox, cogvideox_input

import oxiwarp

EXPECTED = {"ada_norm": 5, "gated_residual_ada_norm": 4, "gated_residual": 4, "qk_norm_rope": 2}


@pytest.mark.parametrize("rotary", [True, False], ids=["5B", "2B"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cogvideox(dtype, rotary, device):
    def make(dtype, device):
        return cogvideox(dtype, device, rotary=rotary)

    def make_input(dtype, device):
        return cogvideox_input(dtype, device, rotary=rotary)

    check_model(make, make_input, dtype, device, EXPECTED)


def test_cogvideox_packed_projections(device):
    """`patch` also replaces the processor that diffusers' method `fuse_qkv_projections` sets."""

    def make(dtype, device):
        model = cogvideox(dtype, device)
        model.fuse_qkv_projections()
        return model

    check_model(make, cogvideox_input, torch.bfloat16, device, EXPECTED)


def test_cogvideox_attention_without_norms(device):
    """If query and key have no norms, the kernel of the patched attention computes RoPE and no norms.

    If the call has no RoPE tables either, the attention runs no oxiwarp kernel.
    """

    def make(dtype, device):
        model = cogvideox(dtype, device)
        for module in model.transformer_blocks:
            module.attn1.norm_q = module.attn1.norm_k = None
        return model

    check_model(make, cogvideox_input, torch.bfloat16, device, EXPECTED)
    model = make(torch.bfloat16, device)
    oxiwarp.patch(model, cpu_kernels=True)
    _, calls = run(model, cogvideox_input(torch.bfloat16, device, rotary=False))
    assert counts(calls, EXPECTED) == EXPECTED | {"qk_norm_rope": 0}


def test_consisid_has_the_known_source():
    from diffusers.models.transformers.consisid_transformer_3d import ConsisIDBlock

    report = oxiwarp.patch(ConsisIDBlock(32, 2, 16, 8))
    assert report.names[""] == "replaced", str(report)


def test_cogvideox_compiled(device):
    check_compiled(cogvideox(torch.bfloat16, device), cogvideox_input(torch.bfloat16, device), EXPECTED)


def test_cogvideox_gradients(device):
    model = cogvideox(torch.float32, device).requires_grad_()
    check_gradients(model, cogvideox_input(torch.float32, device), EXPECTED)


def test_cogvideox_unknown_source(monkeypatch):
    from diffusers.models.attention_processor import CogVideoXAttnProcessor2_0
    from diffusers.models.transformers.cogvideox_transformer_3d import CogVideoXBlock

    classes = CogVideoXBlock, CogVideoXAttnProcessor2_0
    check_unknown_source(monkeypatch, cogvideox(), classes, ("cogvideox.block", "cogvideox.attention"))


def test_cogvideox_calls_that_run_the_own_method(device):
    """The patched attention runs its original method in two cases.

    In the first case, a query or key norm has a hook. In the second case, the RoPE tables have a 16-bit dtype, for
    which the kernel rounds differently from the original method.
    """
    model, inputs = cogvideox(torch.bfloat16, device), cogvideox_input(torch.bfloat16, device)
    oxiwarp.patch(model, cpu_kernels=True)
    seen = []
    hook = model.transformer_blocks[0].attn1.norm_k.register_forward_hook(lambda *of: seen.append("norm_k"))
    assert counts(run(model, inputs)[1], EXPECTED) == EXPECTED | {"qk_norm_rope": 1} and seen == ["norm_k"]
    hook.remove()
    inputs["image_rotary_emb"] = tuple(table.bfloat16() for table in inputs["image_rotary_emb"])
    assert "qk_norm_rope" not in run(model, inputs)[1]
