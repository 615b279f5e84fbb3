"""Tests of the patched blocks and attention of Mochi."""

import copy
import io

import pytest
import torch
from fused_checks import check_compiled, check_gradients, check_model, check_unknown_source, counts, run
from helpers import DTYPES
from video_models import mochi, mochi_input

import oxiwarp
from oxiwarp.patching.fusions.diffusers.mochi import tokens_of

ADA, MIDDLE, END = "ada_norm", "residual_tanh_gated_rms_norm_modulated", "residual_tanh_gated_rms_norm"
EXPECTED = {ADA: 7, MIDDLE: 5, END: 5}  # ada_norm is called twice per block, and once for norm_out.


# The model enables float32 autocast while it computes RoPE tables. On the CPU, torch warns that it does not
# support this.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mochi(dtype, device):
    expected = EXPECTED | {"qk_norm_rope": 3, "qk_norm_rope_out": 3}
    check_model(mochi, mochi_input, dtype, device, expected, bits=dtype != torch.float32)


def test_mochi_gradients(device):
    """Mochi computes its RoPE tables from the parameter `pos_frequencies`.

    If this parameter is trained, a patched model runs the original attention processor. Otherwise a kernel
    computes RoPE.
    """
    model, inputs = mochi(torch.float32, device).requires_grad_(), mochi_input(torch.float32, device)
    check_gradients(model, inputs, {ADA: 7})
    oxiwarp.unpatch(model)
    model.pos_frequencies.requires_grad_(False)
    check_gradients(model, inputs, {ADA: 7, "qk_norm_rope": 6})


def test_mochi_compiled(device):
    """With the torch option `capture_dynamic_output_shape_ops`, a patched Mochi model compiles to one graph.

    The option is needed because the number of text tokens that are not masked depends on data.
    """
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        expected = EXPECTED | {"qk_norm_rope": 6}
        check_compiled(mochi(torch.bfloat16, device), mochi_input(torch.bfloat16, device), expected)


def test_mochi_all_tokens_valid(device):
    """A patched Mochi model matches the unpatched model if the batch has one prompt and no token is masked."""

    def make_input(dtype, device):
        inputs = mochi_input(dtype, device)
        one = {name: value[:1] for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        return inputs | one

    check_model(mochi, make_input, torch.bfloat16, device, EXPECTED | {"qk_norm_rope": 3, "qk_norm_rope_out": 3})


def test_mochi_unknown_source(monkeypatch):
    from diffusers.models.attention_processor import MochiAttnProcessor2_0
    from diffusers.models.transformers.transformer_mochi import MochiTransformerBlock

    classes = MochiTransformerBlock, MochiAttnProcessor2_0
    check_unknown_source(monkeypatch, mochi(), classes, ("mochi.block", "mochi.attention"))


def test_mochi_calls_that_run_the_own_method(device):
    """Some norms of a Mochi block contain an inner norm module. If this inner module has a hook, the patched
    block runs its original `forward`.

    The fusion (hand-written replacement) for Mochi blocks requires that all norms of a block have the same
    eps. Otherwise, `patch` rewrites the source code of the block's methods instead.
    """
    model, inputs = mochi(torch.bfloat16, device), mochi_input(torch.bfloat16, device)
    model.transformer_blocks[1].norm3.norm.eps = 1e-3
    expected, _ = run(model, inputs)
    report = oxiwarp.patch(model, cpu_kernels=True)
    assert report.names["transformer_blocks.1"] == report.names["transformer_blocks.2"] == "replaced"
    seen = []
    model.transformer_blocks[0].norm4_context.norm.register_forward_hook(lambda *of: seen.append("norm4_context"))
    made, calls = run(model, inputs)
    assert seen == ["norm4_context"]
    torch.testing.assert_close(made, expected, rtol=0.02, atol=0.02)
    # In the rewritten block, the kernel of a residual sum takes only one eps. A norm with a different eps is
    # therefore computed by a separate kernel.
    assert counts(calls, EXPECTED) == {ADA: 8, MIDDLE: 2, END: 4}


def test_mochi_finds_valid_tokens_once(device):
    """The indices of the text tokens that are not masked are computed once for all blocks.

    Computing the indices synchronizes the CPU with the GPU. If the mask changes, the indices are computed
    again.
    """
    from diffusers.models.attention_processor import MochiAttnProcessor2_0
    from torch.utils._python_dispatch import TorchDispatchMode

    class Searches(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(func) if func is torch.ops.aten.nonzero.default else None
            return func(*args, **(kwargs or {}))

    model, inputs = mochi(torch.bfloat16, device), mochi_input(torch.bfloat16, device)
    mask, found = inputs["encoder_attention_mask"], []
    assert sum(isinstance(block.attn1.processor, MochiAttnProcessor2_0) for block in model.transformer_blocks) > 1
    oxiwarp.patch(model, cpu_kernels=True)
    with torch.no_grad(), Searches():
        model(**inputs)
        assert len(found) == len(mask)
        model(**inputs)
        assert len(found) == len(mask)
    mask[:, -1] = ~mask[:, -1]
    with torch.no_grad():
        changed = model(**inputs)[0]
        oxiwarp.unpatch(model)
        assert torch.equal(changed, model(**inputs)[0])


def test_mochi_trained_after_inference_mode(device):
    """A patched model can be trained with a text mask that it has already used in inference mode."""
    model, inputs = mochi(torch.float32, device).requires_grad_(), mochi_input(torch.float32, device)
    model.pos_frequencies.requires_grad_(False)
    mask = inputs["encoder_attention_mask"]
    oxiwarp.patch(model, cpu_kernels=True)
    with torch.inference_mode():
        model(**inputs)
    found = tokens_of(mask)
    oxiwarp.unpatch(model)
    check_gradients(model, inputs, {ADA: 7, "qk_norm_rope": 6})
    assert all(map(torch.equal, tokens_of(mask), found)) and tokens_of(mask) is found


def test_mochi_tokens_are_the_masks():
    """The function `tokens_of(mask)` returns the indices of the tokens that `mask` does not mask, and caches
    them.

    Copies and pickles of the mask do not contain the cached indices. The indices are also correct in
    inference mode and under torch.func.
    """
    mask = mochi_input()["encoder_attention_mask"]
    found, other = tokens_of(mask), copy.deepcopy(mask)
    assert tokens_of(mask) is found and not mask.__dict__ and not other.__dict__
    mask.data = ~mask
    assert [len(tokens) for tokens in tokens_of(mask)] == [0, 4]
    assert [len(tokens) for tokens in tokens_of(other)] == [8, 4]
    buffer = io.BytesIO()
    torch.save(other, buffer)
    assert len(tokens_of(torch.load(io.BytesIO(buffer.getvalue())))[1]) == 4
    with torch.inference_mode():
        assert len(tokens_of(other.clone())[1]) == 4

    def total(x):
        return sum(x[tokens].sum() for tokens in tokens_of(other))

    with torch.enable_grad():
        for _ in range(2):
            gradient = torch.func.grad(total)(torch.zeros(8))
            assert gradient.tolist() == [1, 2, 2, 1, 2, 2, 1, 1]
            assert all(type(tokens) is torch.Tensor for tokens in tokens_of(other))
            other = other.clone()
