"""Tests of patched Flux models: fewer copies of tensors, hooks, ControlNet, adapters, float16 clipping, and
mode "fast"."""

import pytest
import torch
from fused_checks import Operators
from helpers import random
from joint_models import BATCH, FAMILIES, IMAGE, TEXT, build, ran, step
from test_compile import counting
from torch import nn

import oxiwarp
from oxiwarp.patching.fusions import FusedRecipe
from oxiwarp.patching.fusions.core import modules
from oxiwarp.patching.fusions.shared import mmdit, parallel_block

of_both = parallel_block.of_both
FLUX = FAMILIES["flux"]


def pair(dtype=torch.float32, device="cpu"):
    """Return an unpatched and a patched model with the same weights."""
    model = build(FLUX, dtype, device)
    oxiwarp.patch(model, cpu_kernels=True)
    return build(FLUX, dtype, device), model


def outputs(models, **extra):
    """Run one bfloat16 step of each model in `models`.

    Return the outputs of all models, and the oxiwarp operators that the last model called.
    """
    found = []
    for model in models:
        with Operators() as operators:
            found.append(model(**FLUX.inputs(torch.bfloat16, "cpu"), **extra, return_dict=False)[0])
    return *found, ran(operators)


def test_single_blocks_copy_nothing(monkeypatch):
    """A patched model calls `torch.cat` less often than the unpatched model.

    The original single-stream blocks concatenate text and image tokens, the patched blocks keep them in two
    tensors. In these blocks, attention and activation write their results into one buffer.
    """
    cat, counts = torch.cat, []
    for model in pair():
        calls = []
        with monkeypatch.context() as patched:
            patched.setattr(
                torch, "cat", lambda *args, calls=calls, **kwargs: calls.append(args) or cat(*args, **kwargs)
            )
            step(FLUX, model)
        counts.append(len(calls))
    # The patched model makes six fewer calls of `torch.cat` than the unpatched model. The double-stream block
    # omits 2 calls, for query and key. The single-stream blocks omit 1 call for text and image tokens, and 2
    # calls for attention and feed-forward. The timestep embedding omits 1 call.
    assert counts[0] - counts[1] == 2 + 1 + 2 + 1


@pytest.mark.parametrize(("name", "op"), [("flux", "activation_out"), ("flux2", "gated_activation_out")])
def test_hooked_activations(name, op, device):
    """A hook on an activation of a patched block receives the output of the activation.

    The block with the hook does not use oxiwarp's kernel for the activation. All other blocks use this
    kernel.
    """
    family, dtype = FAMILIES[name], torch.bfloat16
    stock, model = build(family, dtype, device), build(family, dtype, device)
    oxiwarp.patch(model, cpu_kernels=True)
    for hooked, times in ((0, 2), (1, 1), (2, 0)):
        for each in (stock, model) if hooked else ():
            block = each.single_transformer_blocks[hooked - 1]
            activation = block.act_mlp if name == "flux" else block.attn.mlp_act_fn
            activation.register_forward_hook(lambda module, args, output: output * 0.5)
        with Operators() as operators:
            got = step(family, model, dtype, device)[0]
        assert operators.calls[op] == times
        torch.testing.assert_close(got, step(family, stock, dtype, device)[0], rtol=0.02, atol=0.02)


def test_streams_from_elsewhere():
    """If a ControlNet adds residuals between single-stream blocks, a patched model matches the unpatched
    model.

    The patched model runs the same kernels as without a ControlNet.
    """
    stock, model = pair(torch.bfloat16)
    extra = [random((BATCH, IMAGE, 64), torch.bfloat16, "cpu", seed=3)]
    expected, got, kernels = outputs((stock, model), controlnet_single_block_samples=extra * 2)
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert kernels == FLUX.kernels


def test_clipped():
    """In float16, a patched block clips overflowing values to 65504, as the original block does."""
    stock, model = pair(torch.float16)
    for each in (stock, model):
        each.transformer_blocks[0].ff_context.net[2].bias.fill_(6e4)
        each.transformer_blocks[0].norm1_context.linear.bias[-64:] = 2.0
        each.single_transformer_blocks[0].proj_out.bias.fill_(6e4)
        each.single_transformer_blocks[0].norm.linear.bias[-64:] = 2.0
    x = dict(
        hidden_states=random((BATCH, IMAGE, 64), torch.float16, "cpu"),
        encoder_hidden_states=random((BATCH, TEXT, 64), torch.float16, "cpu", seed=1),
    )
    temb = random((BATCH, 64), torch.float16, "cpu")
    for blocks in ("transformer_blocks", "single_transformer_blocks"):
        (expected, _), (got, _) = (getattr(each, blocks)[0](**x, temb=temb) for each in (stock, model))
        assert (expected == 65504).any()
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)


def test_fused_projections():
    """After `fuse_qkv_projections`, which makes q, k and v slices of one tensor, a patched model runs all kernels."""
    models = pair(torch.bfloat16)
    for model in models:
        model.fuse_qkv_projections()
    expected, got, kernels = outputs(models)
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert kernels == FLUX.kernels


@pytest.mark.parametrize("path", ["norm2", "norm2_context", "attn.norm_q", "attn.norm_added_k"])
def test_hooks(path):
    """A patched block or attention does not call some of its submodules. If such a submodule has a hook, the
    original method of the block or attention runs."""
    stock, model = pair(torch.bfloat16)
    for each in (stock, model):
        module = each.transformer_blocks[0].get_submodule(path)
        module.register_forward_hook(lambda module, args, output: output * 0.5)
    expected, got, kernels = outputs((stock, model))
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    missing = {"qk_norm_rope_out"} if "attn" in path else {"gated_residual_ada_norm"}
    assert FLUX.kernels.keys() - kernels.keys() == missing


def test_ip_adapter():
    """`patch` skips an IP adapter's processor.

    Such a processor returns an additional result, which the patched block adds to the image tokens.
    """
    from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

    models = pair(torch.bfloat16)
    for model in models:
        torch.manual_seed(1)
        for block in model.transformer_blocks:
            processor = FluxIPAdapterAttnProcessor(64, 8, num_tokens=(3,), scale=1.0).to(torch.bfloat16)
            block.attn.set_processor(processor.requires_grad_(False))
    images = [random((BATCH, 3, 8), torch.bfloat16, "cpu", seed=4)]
    expected, got, kernels = outputs(models, joint_attention_kwargs={"ip_hidden_states": images})
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    without = {key: n for key, n in FLUX.kernels.items() if key != "qk_norm_rope_out"}
    assert without.items() <= kernels.items() and "qk_norm_rope_out" not in kernels
    assert not torch.equal(expected, outputs(models, joint_attention_kwargs={"ip_hidden_states": [images[0] * 2]})[0])


def test_wrapped_linears():
    """A patched block calls linears that are replaced by wrappers such as adapters."""

    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) * 1.5

    models = pair(torch.bfloat16)
    for model in models:
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and "blocks" in name:
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, Wrapped(module))
    expected, got, kernels = outputs(models)
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert kernels == FLUX.kernels


def test_fast_single_blocks(monkeypatch, device):
    """In mode "fast", the matrix multiplication of a single-stream block computes the GELU in its epilogue.

    The mean difference to the float32 result is at most 1.2 times the mean difference of the unpatched model.
    If a linear or the GELU of a block has a hook, the block does not use this epilogue.
    """
    family, dtype = FLUX, torch.bfloat16
    monkeypatch.setattr(parallel_block, "in_epilogue", plain_on_any_device)
    monkeypatch.setattr(parallel_block, "gelu_product", gelu_in_two)
    stock, model = build(family, dtype, device), build(family, dtype, device)
    oxiwarp.patch(model, mode="fast", cpu_kernels=True, attention=False)
    calls = []
    monkeypatch.setattr(parallel_block, "of_both", lambda *args: calls.append(args) or of_both(*args))
    got, own = step(family, model, dtype, device)[0], step(family, stock, dtype, device)[0]
    assert len(calls) == 2
    right = step(family, build(family, torch.float32, device), torch.float32, device)[0]
    assert (got - right).abs().mean() <= 1.2 * (own - right).abs().mean()
    for name in ("proj_mlp", "act_mlp", "proj_out"):
        for each in (stock, model):
            handle = each.single_transformer_blocks[0].get_submodule(name)
            handle.register_forward_hook(lambda module, args, output: output * 0.5)
        calls.clear()
        got, own = step(family, model, dtype, device)[0], step(family, stock, dtype, device)[0]
        assert len(calls) == 1, f"a hook on {name} is for the module's own call"
        torch.testing.assert_close(got, own, rtol=0.02, atol=0.02)


def test_compiled_attention_beside(device):
    """Under torch.compile, an oxiwarp operator copies the attention result of a patched block once.

    With torch's `copy_` instead of this operator, Inductor would generate three copies.
    """
    (_, model), graphs = pair(torch.bfloat16, device), []
    expected = step(FLUX, model, torch.bfloat16, device)
    torch.compiler.reset()
    got = step(FLUX, torch.compile(model, fullgraph=True, backend=counting(graphs)), torch.bfloat16, device)
    torch.testing.assert_close(got, expected)
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert targets.count("oxiwarp.copy_into.default") == len(model.single_transformer_blocks)
    assert "copy_" not in targets


def test_learned_attention_beside(monkeypatch):
    """If the attention result of a single-stream block needs no gradient, attention and feed-forward write
    their results into one buffer.

    If the attention result needs a gradient, the two results are concatenated. Writing into a buffer would
    then give a wrong gradient.
    """
    monkeypatch.setattr(parallel_block, "in_epilogue", lambda *_: True)
    monkeypatch.setattr(parallel_block, "gelu_product", gelu_in_two)
    expand, project, activation = nn.Linear(8, 24), nn.Linear(32, 8), nn.GELU(approximate="tanh")
    x, attended = random((2, 3, 8), torch.float32, "cpu"), random((2, 3, 8), torch.float32, "cpu", seed=1)
    how = FusedRecipe("flux.single_block", "fast", True, None)
    args = (expand.requires_grad_(False), activation, project.requires_grad_(False), how)
    expected = project(torch.cat([attended, activation(expand(x))], 2))
    torch.testing.assert_close(parallel_block.both_projected(x, lambda _: attended, *args), expected)
    with torch.enable_grad():
        y = parallel_block.both_projected(x, lambda _: attended.requires_grad_(), *args)
        y.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(attended.grad, project.weight[:, :8].sum(0).expand_as(attended))


def test_values_of_both(monkeypatch, device):
    """For batch size 1, a patched attention writes the values V of text and image directly into one tensor.

    The attention writes V of text and V of the image into separate tensors in three cases: a value projection
    has a hook, the batch is larger than 1, or the number of elements of a slice is not a multiple of
    `ALIGNED`.
    """
    family = FLUX
    monkeypatch.setattr(mmdit, "in_epilogue", plain_on_any_device)
    stock, model = build(family, torch.bfloat16, device), build(family, torch.bfloat16, device)
    oxiwarp.patch(model, cpu_kernels=True)
    written = []
    write = mmdit.write_product
    monkeypatch.setattr(mmdit, "write_product", lambda *args: written.append(args) or write(*args))
    inputs = family.inputs(torch.bfloat16, device)
    inputs = {key: x[:1] if x.shape[0] == BATCH else x for key, x in inputs.items()}
    own = stock(**inputs, return_dict=False)[0]
    monkeypatch.setattr(mmdit, "ALIGNED", 32)
    got = model(**inputs, return_dict=False)[0]
    assert len(written) == 2
    torch.testing.assert_close(got, own, rtol=0.02, atol=0.02)
    written.clear()
    for each in (stock, model):
        hook = each.transformer_blocks[0].attn.to_v.register_forward_hook(lambda module, args, output: output * 0.5)
    got, own = model(**inputs, return_dict=False)[0], stock(**inputs, return_dict=False)[0]
    torch.testing.assert_close(got, own, rtol=0.02, atol=0.02)
    hook.remove()
    monkeypatch.setattr(mmdit, "ALIGNED", 1 << 20)
    model(**inputs, return_dict=False)
    model(**family.inputs(torch.bfloat16, device), return_dict=False)
    assert not written, "hooked, not aligned, a batch of two"


def plain_on_any_device(proj, x):
    """Stand-in for the function `in_epilogue` that also accepts CPU tensors."""
    return type(proj) is nn.Linear and not modules.hooked(proj) and x.dtype == proj.weight.dtype


def gelu_in_two(proj, x):
    """Compute the linear and the GELU separately, as a replacement of `gelu_product` in CPU tests.

    `gelu_product` calls torch's function for both, whose CPU implementation uses another GELU formula.
    """
    return nn.functional.gelu(proj(x).float(), approximate="tanh").to(x.dtype)
