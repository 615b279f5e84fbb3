"""Tests of patched `BasicTransformerBlock`s of diffusers, which SDXL, PixArt, DiT and other models use."""

import copy
import pickle

import pytest
import torch
from fused_checks import check_compiled, check_gradients, check_model, check_unknown_source, run
from helpers import DTYPES, random
from image_models import dit, dit_input, pixart, pixart_input, sdxl, sdxl_input
from torch import nn
from video_models import build

import oxiwarp
from oxiwarp.patching.class_swap import is_replaced

# The SDXL test model has eight transformer blocks: 2 in the down path, 2 in the middle, and 4 in the up path.
SDXL = {"layer_norm": 8, "gated_residual_ada_norm": 16}
PIXART = {"ada_norm": 2, "gated_residual": 4, "gated_residual_ada_norm": 2}
DIT = {"ada_norm": 3, "gated_residual": 2, "gated_residual_ada_norm": 2}
MODELS = {"sdxl": (sdxl, sdxl_input, SDXL), "pixart": (pixart, pixart_input, PIXART), "dit": (dit, dit_input, DIT)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_models(name, dtype, device):
    make, make_input, expected = MODELS[name]
    check_model(make, make_input, dtype, device, expected)


def test_single_attention(device):
    """A patched Latte model runs the expected kernels.

    Latte's temporal blocks have a modulation table and no cross-attention. In this test, the norms of the
    model have weights, unlike the norms of the published Latte models.
    """
    import diffusers

    def make(dtype, device):
        config = dict(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=1, sample_size=8,
            patch_size=2, cross_attention_dim=32, caption_channels=24, video_length=2, norm_elementwise_affine=True,
            norm_type="ada_norm_single", num_embeds_ada_norm=1000, activation_fn="gelu-approximate",
        )  # fmt: skip
        return build(lambda: diffusers.LatteTransformer3DModel(**config), dtype, device)

    def make_input(dtype, device):
        return dict(
            hidden_states=random((2, 4, 2, 8, 8), dtype, device),
            timestep=torch.tensor([500, 20], device=device),
            encoder_hidden_states=random((2, 7, 24), dtype, device, seed=1),
            return_dict=False,
        )

    # Latte's spatial blocks run the same kernels as PixArt's blocks. In the temporal blocks, one kernel
    # computes both the gated residual after the attention and the norm after it. The last norm of the model
    # is modulated, so it also calls `ada_norm`.
    expected = {"ada_norm": 3, "gated_residual": 3, "gated_residual_ada_norm": 2}
    check_model(make, make_input, torch.bfloat16, device, expected)


def test_convolutional_projections(device):
    """A patched SD 1.5 model matches the unpatched model.

    The convolutional projections of SD 1.5 return tokens whose last dimension is not contiguous. The patched
    block copies these tokens.
    """

    def make(dtype, device):
        return sdxl(dtype, device, linear=False)

    expected = {name: count // 2 for name, count in SDXL.items()}
    check_model(make, sdxl_input, torch.float16, device, expected)


def test_chunked_feed_forward(device):
    def make(dtype, device):
        model = pixart(dtype, device)
        for block in model.transformer_blocks:
            block.set_chunk_feed_forward(4, dim=1)
        return model

    check_model(make, pixart_input, torch.bfloat16, device, PIXART)


def positioned(dtype, device):
    """Build a block with positional embeddings, as in AnimateDiff's motion modules."""
    from diffusers.models.attention import BasicTransformerBlock

    config = dict(double_self_attention=True, positional_embeddings="sinusoidal", num_positional_embeddings=8)
    return Tupled(build(lambda: BasicTransformerBlock(32, 2, 16, **config), dtype, device))


def test_positions(device):
    """A patched block with positional embeddings matches the original block.

    Under torch.compile, the norms of the patched block run as torch operations, and Inductor fuses them with the
    addition of the embeddings.
    """

    def make_input(dtype, device):
        return dict(hidden_states=random((2, 8, 32), dtype, device))

    expected = {"layer_norm": 1, "gated_residual_ada_norm": 2}
    check_model(positioned, make_input, torch.bfloat16, device, expected)
    # Inductor fuses these norms with adjacent sums and positional embeddings.
    none = dict.fromkeys(expected, 0)
    check_compiled(positioned(torch.bfloat16, device), make_input(torch.bfloat16, device), none)


class Tupled(nn.Module):
    """A module that calls a block and returns the result as a tuple, as complete models do."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, **inputs):
        return (self.block(**inputs),)


@pytest.mark.parametrize("name", ["pixart", "dit"])
def test_compiled(name, device):
    make, make_input, expected = MODELS[name]
    check_compiled(make(torch.bfloat16, device), make_input(torch.bfloat16, device), expected)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, device):
    make, make_input, expected = MODELS[name]
    check_gradients(make(torch.float32, device).requires_grad_(), make_input(torch.float32, device), expected)


def test_unknown_source(monkeypatch):
    from diffusers.models.attention import BasicTransformerBlock

    check_unknown_source(monkeypatch, dit(), [BasicTransformerBlock], ["basic.block"])


def test_blocks_that_are_left():
    """`patch` skips a `BasicTransformerBlock` with an unsupported norm type. The report of `patch` gives the
    reason."""
    from diffusers.models.attention import BasicTransformerBlock

    def reason(**options):
        report = oxiwarp.patch(BasicTransformerBlock(32, 2, 16, **options), allow_empty=True)
        return {row.reason for row in report if row.module_class.endswith("BasicTransformerBlock")}.pop()

    embedded = reason(norm_type="ada_norm", num_embeds_ada_norm=10)
    left = "3 of 5 chains left: AdaLayerNorm is no known norm, it has no norm"
    assert embedded == f"its norm_type is 'ada_norm'; {left}"
    crossed = reason(norm_type="ada_norm_zero", num_embeds_ada_norm=10, cross_attention_dim=8)
    left = "1 of 5 chains left: AdaLayerNormZero is no known norm"
    assert crossed == f"it has a norm1 with gates and a second attention; {left}"
    assert reason() == ""


def test_calls_that_run_the_own_method(device):
    """A patched block runs its original `forward` if it gets GLIGEN arguments, or if one of its norms has
    a hook."""
    from diffusers.models.attention import BasicTransformerBlock

    block = build(
        lambda: BasicTransformerBlock(32, 2, 16, cross_attention_dim=24, attention_type="gated"), torch.bfloat16, device
    )
    x, text = random((2, 8, 32), torch.bfloat16, device), random((2, 7, 24), torch.bfloat16, device)
    oxiwarp.patch(block, cpu_kernels=True)

    def calls(**options):
        ran = run(Tupled(block), dict(hidden_states=x, encoder_hidden_states=text, **options))[1]
        return ran.get("gated_residual_ada_norm", 0)

    assert calls() == 2
    objects = {"objs": random((2, 3, 24), torch.bfloat16, device)}
    assert calls(cross_attention_kwargs={"gligen": objects}) == 1, "only in the rewritten GatedSelfAttentionDense"
    seen = []
    hook = block.norm2.register_forward_hook(lambda *of: seen.append("norm2"))
    assert calls() == 0 and seen == ["norm2"]
    hook.remove()
    assert calls() == 2


def test_default_processors():
    """`set_default_attn_processor` works on a patched model.

    This diffusers method compares the class of each processor with known classes. A patched processor's class
    must therefore compare equal to the original class.
    """
    diffusers = pytest.importorskip("diffusers")
    unet = sdxl()
    vae = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4)
    for model in (unet, vae, diffusers.ControlNetModel.from_unet(unet)):
        stock = {name: type(processor) for name, processor in model.attn_processors.items()}
        oxiwarp.patch(model)
        ours = {name: type(processor) for name, processor in model.attn_processors.items()}
        assert ours == stock and set(ours.values()) == set(stock.values())
        assert not any(ours[name] is stock[name] for name in stock)
        model.set_default_attn_processor()
        assert not any(map(is_replaced, model.attn_processors.values()))


def test_other_classes_are_others():
    """The class that `patch` gives a processor compares equal to the original class.

    It compares unequal to all other classes, even to classes derived from the original class.
    """
    processors = pytest.importorskip("diffusers.models.attention_processor")
    stock, ours = processors.AttnProcessor2_0, processors.AttnProcessor2_0()
    oxiwarp.patch(processors.Attention(8, processor=ours), only="AttnProcessor2_0")
    cls = type(ours)
    derived = type("Derived", (cls,), {})
    assert cls is not stock and cls == stock and stock == cls and hash(cls) == hash(stock)
    assert cls not in (processors.AttnProcessor, derived, object, None)
    assert derived != stock and len({derived, stock}) == 2
    assert isinstance(ours, stock) and type(pickle.loads(pickle.dumps(ours))) is type(copy.deepcopy(ours)) is cls
