"""Tests of rewritten models that make no attention mask, or pass no counted positions to mask functions."""

import importlib

import pytest
import torch
from test_decoder import IDS, build
from test_decoder_calls import graphs, masked_steps

import oxiwarp
from oxiwarp.patching.rewrite import masks
from oxiwarp.patching.rewrite.recipe import rewritten_from

SOURCES = {
    "position_ids = torch.arange(x.shape[1]).unsqueeze(0)": True,
    "position_ids = torch.arange(x.shape[1]) + n\n        position_ids = position_ids.unsqueeze(0)": True,
    "position_ids = torch.arange(0, x.shape[1], 2)": False,
    "position_ids = self.positions(x)": False,
    "position_ids = torch.arange(x.shape[1]) * 2": False,
    "position_ids = torch.arange(x.shape[1])\n    position_ids = position_ids + 1": False,
    "position_ids = torch.arange(x.shape[1])\n    else:\n        position_ids = position_ids + 1": False,
}
"""Maps statements that compute missing positions to whether `patch` recognises that they count the tokens."""
METHOD = '''"""Made by a test."""
import torch
from torch import nn


class Made(nn.Module):
    def forward(self, x, n=0, position_ids=None):
        if position_ids is None:
            {}
        return create_mask(position_ids=position_ids)
'''


@pytest.mark.parametrize("text", SOURCES)
def test_counted(text, tmp_path, monkeypatch):
    """`patch` recognises code that counts the positions."""
    name = f"made_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(METHOD.replace("{}", text.replace("\n    ", "\n        ")))
    monkeypatch.syspath_prepend(tmp_path)
    rewritten = rewritten_from(importlib.import_module(name).Made.forward)
    assert rewritten.masks is SOURCES[text]


@pytest.fixture
def packed(monkeypatch):
    """Return a list that grows with each call that looks for packed sequences."""
    masking = pytest.importorskip("transformers.masking_utils")
    seen, own = [], masking.find_packed_sequence_indices
    monkeypatch.setattr(masking, "find_packed_sequence_indices", lambda ids: seen.append(ids) or own(ids))
    return seen


@pytest.mark.parametrize("name", ["Llama", "Mixtral", "Gemma2", "Qwen3", "Olmo2", "Cohere2"])
def test_positions(name, packed):
    """A patched model looks for packed sequences only in positions that the caller gave."""
    model = build(name)
    two = torch.arange(6).repeat(2)[None].expand(2, -1)
    for options in (dict(), dict(position_ids=two), dict(attention_mask=torch.ones_like(IDS))):
        oxiwarp.unpatch(model)
        packed.clear()
        own = model(input_ids=IDS, use_cache=False, **options).last_hidden_state
        stock = len(packed)
        oxiwarp.patch(model, cpu_kernels=True)
        packed.clear()
        y = model(input_ids=IDS, use_cache=False, **options).last_hidden_state
        assert len(packed) == (stock if options else 0) and (stock > 0 or "attention_mask" in options)
        torch.testing.assert_close(y, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Olmo2", "Granite"])
def test_no_masks(name):
    """Under torch.compile, a rewritten model makes no mask if attention needs none."""
    model = build(name, num_hidden_layers=1)
    stock = build(name, num_hidden_layers=1)
    oxiwarp.patch(model, cpu_kernels=True)
    assert [masked for _, masked in graphs(model, lambda: dict(input_ids=IDS, use_cache=False))] == [[False]]
    for _, step in masked_steps():
        assert [masked for _, masked in graphs(model, lambda step=step: step(model))] == [[True]]
        torch.testing.assert_close(model(**step(model))[0], stock(**step(stock))[0], rtol=0, atol=1e-5)


def test_not_causal():
    """With the argument `is_causal=False`, or with another mask function, a model calls transformers' function."""
    config, seen = build("Llama", num_hidden_layers=1).config, []

    def create_causal_mask(**given):
        seen.append(given)

    create_causal_mask.__module__ = masks.MODULE
    counted = torch.arange(3)
    given = dict(
        config=config,
        inputs_embeds=torch.ones(1, 3, 8),
        attention_mask=None,
        past_key_values=None,
        position_ids=counted,
    )
    assert masks.mask(create_causal_mask, counted, {}, **given) is None and not seen
    masks.mask(create_causal_mask, counted, {"is_causal": False}, **given)
    assert seen.pop()["position_ids"] is None
    masks.mask(create_causal_mask, None, {}, **given)
    assert seen.pop()["position_ids"] is counted
    masks.mask(create_causal_mask, counted, {}, **given, or_mask_function=print)
    assert len(seen) == 1
