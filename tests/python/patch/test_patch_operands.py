"""Tests of patched models in which a submodule returns a tensor with other strides, another dtype or another
batch size.

Such a submodule may be an adapter, a wrapped linear or a module with a hook. The unpatched model accepts the
tensor, because torch's operators promote dtypes, broadcast sizes and read any strides. The patched model must
return the same result.
"""

import pytest
import torch
from fused_checks import Operators
from helpers import random
from models import ltx, ltx_input
from swapped import MODELS, close, results
from test_decoder import build as decoder
from torch import nn
from video_models import wan, wan_input

import oxiwarp

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi enables float32 autocast
DECODERS = ["Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Gemma2", "Gemma3Text", "Phi3"]
FEED_FORWARDS = ("ff", "ffn", "ff_context", "audio_ff", "img_mlp", "txt_mlp", "mlp")
ATTENTIONS = ("attn", "attn1", "attn2", "self_attn", "audio_attn1", "audio_attn2")
CROSS = ("audio_to_video_attn", "video_to_audio_attn")
TABLES = ("rope", "pos_embed", "rotary_emb", "time_embedding")
TEMBS = ("temb", "time_embed", "adaln", "time_text", "guidance_embed", "modulation_", "condition_embedder", "av_cross")


def by_columns(x):
    """Return a tensor with the values of `x` whose last dimension is not contiguous."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


def one_batch(x):
    return x[:1]


def one_token(x):
    return x.mean(1, keepdim=True)


def changed(change):
    """Return a forward hook that applies `change` to every floating-point result of a module."""

    def each(y):
        return change(y) if isinstance(y, torch.Tensor) and y.is_floating_point() else y

    return lambda module, args, y: tuple(map(each, y)) if isinstance(y, tuple) else each(y)


def linears(name, module):
    return isinstance(module, nn.Linear)


def branches(name, module):
    """Return True if a module is an attention or feed-forward, whose result is added to the residual
    stream."""
    return name.rpartition(".")[2] in (*FEED_FORWARDS, *ATTENTIONS, *CROSS)


def added(name, module):
    """Return True if the result of an attention or feed-forward is directly added to the residual stream.

    In single-stream blocks, the results of attention and feed-forward are concatenated first.
    """
    return branches(name, module) and "single" not in name


def tables(name, module):
    """Return True if a module computes inputs of all blocks: RoPE tables, time embeddings or modulations."""
    last = name.rpartition(".")[2]
    return "block" not in name and (last.endswith(TABLES) or any(part in last for part in TEMBS))


def hook(models, which, change):
    for model in models:
        found = [module for name, module in model.named_modules() if which(name, module)]
        assert found
        for module in found:
            module.register_forward_hook(changed(change))


def check(models, inputs, within=None):
    """Check that the patched model runs kernels and returns the results of the unpatched model.

    If `within` is given, it is the allowed error relative to the largest value of the result.
    """
    stock, ours = models
    expected = results(stock, ((), inputs))
    with Operators() as operators:
        got = results(ours, ((), inputs))
    assert operators.calls.keys() - {"layer_norm", "rms_norm", "copy_into"}
    assert [y.dtype for y in got] == [y.dtype for y in expected]
    if within is None:
        close(got, expected)
    for y, right in zip(got, expected, strict=True):
        assert within is None or (y - right).abs().max() <= within * right.abs().max()


def pair(name, mode="exact"):
    """Return an unpatched and a patched model with the same weights."""
    models = MODELS[name][0](), MODELS[name][0]()
    oxiwarp.patch(models[1], mode=mode, cpu_kernels=True)
    return models


def not_turned(name, module):
    """Return True if a module is a linear, but not a query or key projection.

    The tests use it for Qwen-Image and make the last dimension of the linears' results noncontiguous. The model
    passes query and key to `torch.view_as_complex`, which does not accept such tensors.
    """
    return linears(name, module) and not name.endswith(("_q", "_k", "q_proj", "k_proj"))


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", MODELS)
def test_linears_by_columns(name, mode):
    models = pair(name, mode)
    hook(models, not_turned if name.startswith("qwen_image") else linears, by_columns)
    check(models, MODELS[name][1]())


@pytest.mark.parametrize("name", MODELS)
def test_branches_by_columns(name):
    models = pair(name)
    hook(models, branches, by_columns)
    check(models, MODELS[name][1]())


@pytest.mark.parametrize("name", MODELS)
def test_narrow_branches(name):
    """A patched float32 model accepts attentions and feed-forwards that return bfloat16.

    The tolerance of the result is 1e-2, because bfloat16 has a relative precision of 1/256.
    """
    models = pair(name)
    hook(models, branches, torch.Tensor.bfloat16)
    check(models, MODELS[name][1](), within=1e-2)


@pytest.mark.parametrize("change", [one_batch, one_token], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("cogvideox")])
def test_branches_that_broadcast(name, change):
    if name == "hunyuan_video_replace" and change is one_token:
        pytest.skip("the stock model splits the tokens of its attention")
    models = pair(name)
    hook(models, added, change)
    check(models, MODELS[name][1]())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("sdxl", "sd3 single")])
def test_tables_by_columns(name):
    models = pair(name)
    hook(models, tables, by_columns)
    check(models, MODELS[name][1]())


@pytest.mark.parametrize("wide", ["ffn", "attn1"])
def test_wide_branches(wide):
    """A patched bfloat16 model accepts an attention or feed-forward that returns float32, if the block casts
    the residual sum, as in Wan."""
    models = wan(torch.bfloat16), wan(torch.bfloat16)
    oxiwarp.patch(models[1], cpu_kernels=True)
    hook(models, lambda name, module: name.endswith(f".{wide}"), torch.Tensor.float)
    check(models, wan_input(torch.bfloat16), within=0.03)


BATCHED = ["flux", "flux2", "sd3", "sd3.5", "qwen_image", "hunyuan_video", "wan", "dit", "mochi"]


@pytest.mark.parametrize("name", BATCHED)
def test_one_latent_for_two_times(name):
    models, inputs = pair(name), MODELS[name][1]()
    inputs["hidden_states"] = inputs["hidden_states"][:1]
    check(models, inputs)


@pytest.mark.parametrize("name", ["flux", "flux2", "sd3"])
def test_one_prompt_for_two_images(name):
    models, inputs = pair(name), MODELS[name][1]()
    inputs["encoder_hidden_states"] = inputs["encoder_hidden_states"][:1]
    check(models, inputs)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_embeddings_by_columns(name, grad, batch):
    models = decoder(name), decoder(name)
    oxiwarp.patch(models[1], cpu_kernels=True)
    with torch.set_grad_enabled(grad):
        embeds = random((batch, 64, 8), torch.float32, "cpu").transpose(1, 2).requires_grad_(grad)
        check(models, {"inputs_embeds": embeds, "use_cache": False})


@pytest.mark.parametrize("name", ["ltx", "ltx2", "flux", "wan", "mochi", "cogvideox", "sdxl", "pixart"])
def test_streams_by_columns(name):
    """Blocks accept hidden states whose last dimension is not contiguous."""
    models, inputs = pair(name), MODELS[name][1]()
    for model in models:
        for module in model.modules():
            if type(module).__name__.endswith("Block"):
                module.register_forward_pre_hook(
                    lambda module, args, kwargs: (
                        tuple(map(streams, args)),
                        {key: streams(x) if "hidden_states" in key else x for key, x in kwargs.items()},
                    ),
                    with_kwargs=True,
                )
    with Operators() as operators:
        close(results(models[1], ((), inputs)), results(models[0], ((), inputs)))
    assert operators.calls


def streams(x):
    return by_columns(x) if isinstance(x, torch.Tensor) and x.dim() == 3 and x.is_floating_point() else x


@pytest.mark.parametrize(
    "cls", ["AdaLayerNormZero", "AdaLayerNormZeroSingle", "AdaLayerNormContinuous", "SD35AdaLayerNormZeroX"]
)
def test_wide_modulations(cls):
    """A patched bfloat16 module such as AdaLayerNormZero accepts a linear that returns float32.

    The result of the module has the dtype that torch's type promotion gives.
    """
    from diffusers.models import normalization

    torch.manual_seed(0)
    args = (32, 32) if cls == "AdaLayerNormContinuous" else (32,)
    own = getattr(normalization, cls)(*args).bfloat16().requires_grad_(False)
    own.linear.register_forward_hook(lambda module, args, y: y.float())
    x, emb = random((2, 5, 32), torch.bfloat16, "cpu"), random((2, 32), torch.bfloat16, "cpu", seed=1)
    expected = results(own, ((x, emb), {})) if "Continuous" in cls else results(own, ((x,), {"emb": emb}))
    oxiwarp.patch(own, cpu_kernels=True)
    got = results(own, ((x, emb), {})) if "Continuous" in cls else results(own, ((x,), {"emb": emb}))
    assert [y.dtype for y in got] == [y.dtype for y in expected]
    close(got, expected)


@pytest.mark.parametrize("change", [by_columns, torch.Tensor.bfloat16, one_batch], ids=["columns", "narrow", "batch"])
@pytest.mark.parametrize("name", ["flux", "Llama"])
def test_compiled(name, change):
    """If submodules return other strides, dtypes or batch sizes, a patched model still compiles to one graph.

    The results match the unpatched model.
    """
    models, inputs = pair(name), MODELS[name][1]()
    hook(models, added, change)
    torch._dynamo.reset()
    compiled = torch.compile(models[1], fullgraph=True, backend="eager")
    for y, right in zip(results(compiled, ((), inputs)), results(models[0], ((), inputs)), strict=True):
        assert (y - right).abs().max() <= 1e-2 * right.abs().max()
    torch._dynamo.reset()


@pytest.mark.parametrize("change", [by_columns, one_batch], ids=lambda change: change.__name__)
def test_gradients(change):
    models, inputs, gradients = (ltx(), ltx()), ltx_input(), []
    oxiwarp.patch(models[1], cpu_kernels=True)
    hook(models, added, change)
    for model in models:
        model.requires_grad_()
        with torch.enable_grad():
            model(**inputs)[0].square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    close(*gradients[::-1])


def called(model, inputs):
    """Return the names of the linears, activations, attentions and feed-forwards of a model, in the order in
    which the model calls them."""
    order, kinds = [], (nn.Linear, nn.GELU, nn.SiLU)
    for name, module in model.named_modules():
        if isinstance(module, kinds) or branches(name, module):
            module.register_forward_hook(lambda module, args, y, name=name: order.append(name))
    model(**inputs)
    return order


@pytest.mark.parametrize("name", MODELS)
def test_order_of_calls(name):
    stock, ours = pair(name)
    assert called(ours, MODELS[name][1]()) == called(stock, MODELS[name][1]())


def test_errors_stay(device):
    """If no conversion makes the operands valid, the operators that patched models call raise oxiwarp's
    error."""
    from oxiwarp.patching.fusions.core.ops import gated_residual

    x, gate = random((2, 3, 8), torch.float32, device), random((2, 1, 8), torch.float32, device)
    with pytest.raises(RuntimeError, match="gated_residual: y has shape"):
        gated_residual(x, x[:, :2], gate)
    with pytest.raises(RuntimeError, match="gated_residual: x is float64"):
        gated_residual(x.double(), x.double(), gate)


class Traced(nn.Module):
    """Wraps a model into a module with one input, for `torch.jit.trace`. The other inputs of the model are
    fixed."""

    def __init__(self, model, inputs, key):
        super().__init__()
        self.model, self.inputs, self.key = model, inputs, key

    def forward(self, x):
        return self.model(**{**self.inputs, self.key: x})[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "wan", "flux"])
def test_jit_trace(name):
    make, make_input = MODELS[name]
    model, inputs = make(), make_input()
    oxiwarp.patch(model, cpu_kernels=True)
    key = "input_ids" if "input_ids" in inputs else "hidden_states"
    model.config.return_dict = False
    whole = Traced(model, {**inputs, "return_dict": False}, key)
    traced = torch.jit.trace(whole, inputs[key], check_trace=False)
    torch.testing.assert_close(traced(inputs[key]), whole(inputs[key]))
