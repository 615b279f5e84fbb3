"""Calls of attention modules and processors that diffusers' own methods take, whatever form their arguments have."""

import pytest
import torch
from fused_checks import Operators
from helpers import random
from joint_models import BATCH, FAMILIES, IMAGE, build
from models import ltx, ltx_input
from video_models import cogvideox, cogvideox_input, mochi, mochi_input, wan, wan_input

import oxiwarp

VIDEO = {
    "ltx": (ltx, ltx_input),
    "wan": (wan, wan_input),
    "mochi": (mochi, mochi_input),
    "cogvideox": (cogvideox, cogvideox_input),
}
JOINT = ("flux", "flux2", "hunyuan_video", "qwen_image", "ltx2", "ltx2.3")


def model_and_inputs(name):
    """A stock model, and inputs whose rotary tables are of one shape."""
    if name in VIDEO:
        make, inputs = VIDEO[name]
        return make(), inputs()
    inputs = FAMILIES[name].inputs(torch.float32, "cpu")
    if name == "qwen_image":  # it has a table for text and one for the image
        inputs["encoder_hidden_states"] = random((BATCH, IMAGE, 24), torch.float32, "cpu", seed=1)
        inputs["encoder_hidden_states_mask"] = torch.ones(BATCH, IMAGE, dtype=torch.bool)
    return build(FAMILIES[name]), inputs


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for it
@pytest.mark.parametrize("name", [*VIDEO, *JOINT])
def test_tables_in_one_tensor(name):
    """They are unpacked as the own processor unpacks them."""
    model, inputs = model_and_inputs(name)
    stacked = []

    def stack(value):
        if isinstance(value, tuple) and len(value) == 2:
            stacked.append(torch.stack(value))
            return stacked[-1]
        return value

    def hook(module, args, kwargs):
        return tuple(map(stack, args)), {key: stack(value) for key, value in kwargs.items()}

    for module in model.modules():
        if hasattr(module, "processor"):
            module.register_forward_pre_hook(hook, with_kwargs=True)
    own = model(**{**inputs, "return_dict": False})[0]
    oxiwarp.patch(model, cpu_kernels=True)
    stacked.clear()
    with Operators() as operators:
        got = model(**{**inputs, "return_dict": False})[0]
    assert stacked and any(kernel.startswith("qk_norm_rope") for kernel in operators.calls)
    torch.testing.assert_close(got, own, rtol=1e-4, atol=1e-5)


def test_no_scale():
    """`scale=None`, which the own processor does not warn of."""
    processor = pytest.importorskip("diffusers.models.attention_processor")
    attn, x = processor.Attention(query_dim=32, heads=2, dim_head=16).eval(), random((2, 5, 32), torch.float32, "cpu")
    own = attn.processor(attn, x, scale=None), attn.processor(attn, x, None, None, None)
    oxiwarp.patch(attn)
    got = attn.processor(attn, x, scale=None), attn.processor(attn, x, None, None, None)
    assert all(map(torch.equal, got, own))
