"""Tests that patched attention and feed-forwards of diffusers omit operations without effect.

Such operations are a division by 1, and dropout in evaluation mode.
"""

from collections import Counter

import pytest
import torch
from helpers import random
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp

processors = pytest.importorskip("diffusers.models.attention_processor")
models = pytest.importorskip("diffusers.models.attention")


def attention(**options):
    torch.manual_seed(0)
    return processors.Attention(query_dim=32, heads=2, dim_head=16, **options).eval()


class Counted(TorchDispatchMode):
    """Dispatch mode that counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name()] += 1
        return func(*args, **kwargs or {})


PROCESSED = (
    {},
    {"cross_attention_dim": 24},
    {"bias": True, "out_bias": False, "dropout": 0.5},
    {"rescale_output_factor": 2.0},
    {"residual_connection": True},
    {"qk_norm": "layer_norm"},
    {"cross_attention_dim": 24, "cross_attention_norm": "layer_norm"},
)


@pytest.mark.parametrize("options", PROCESSED, ids=str)
def test_attention_processor(options, device):
    """If `rescale_output_factor` is 1, a patched processor omits the division by this factor, and returns the
    bits of the original result.

    If the attention has norms, a residual connection or another factor, the original processor runs.
    """
    attn = attention(**options).to(device)
    x, source, mask = (random(shape, torch.float32, device) for shape in ((2, 5, 32), (2, 7, 24), (2, 1, 7)))
    crossed = {"encoder_hidden_states": source} if "cross_attention_dim" in options else {}
    calls = [crossed, crossed | {"attention_mask": mask if crossed else mask[..., :5]}, crossed | {"temb": None}]
    own = [attn(x, **call) for call in calls]
    assert "AttnProcessor2_0" in str(oxiwarp.patch(attn))
    seen = Counted()
    with seen:
        assert all(torch.equal(attn(x, **call), right) for call, right in zip(calls, own, strict=True))
    plain = not options or options.keys() <= {"cross_attention_dim", "bias", "out_bias", "dropout"}
    assert seen.counts["aten::div.Tensor"] == (0 if plain else 3)
    image = random((2, 32, 2, 3), torch.float32, device)
    if not crossed:
        assert torch.equal(attn(image), attention(**options).to(device)(image))


def test_dropout_is_left_out_when_it_does_nothing(device):
    """A patched feed-forward calls its dropout module in training mode, or if this module has a hook.

    Otherwise the feed-forward omits dropout.
    """
    feed_forward = models.FeedForward(32, dropout=0.5, final_dropout=True)
    feed_forward, x, seen = feed_forward.to(device).eval(), random((2, 5, 32), torch.float32, device), []
    expected = feed_forward(x)
    oxiwarp.patch(feed_forward)
    with Counted() as counted:
        assert torch.equal(feed_forward(x), expected)
    handle = feed_forward.net[1].register_forward_hook(lambda *_: seen.append("dropout"))
    assert torch.equal(feed_forward(x), expected) and seen == ["dropout"]
    handle.remove()
    feed_forward.train()
    assert (feed_forward(x) == 0).double().mean() > 0.2 and not counted.counts["aten::native_dropout"]


def test_processor_arguments_that_are_warned_of(monkeypatch):
    """A patched attention processor prints diffusers' deprecation message if it gets the deprecated
    argument `scale`."""
    told = []
    monkeypatch.setattr(processors, "deprecate", lambda *args, **_: told.append(args[0]))
    attn = attention()
    oxiwarp.patch(attn)
    attn.processor(attn, random((2, 5, 32), torch.float32, "cpu"), scale=0.5)
    assert told == ["scale"]
