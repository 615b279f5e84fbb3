"""Tests of the scripts that count the chains in models of diffusers and transformers, and for how many of
them `patch` uses a kernel.

A chain is a sequence of operations that one kernel can replace, such as a norm and the modulation of its
result.
"""

import ast
import importlib.util
import random
import sys
import textwrap

import pytest
import research_models
import torch
from checkout import ROOT
from test_docs import DOCS, script

pytestmark = pytest.mark.skipif(not DOCS, reason="no docs beside these tests, as in a bundle")

SAMPLE = 2
"""Number of models per library that the test runs again."""
CHAINS = {
    "x = residual + gate * y": ["gate"],
    "x = residual + y * self.gate_msa.unsqueeze(1)": ["gate"],
    "y = c_gate * y\nx = residual + y": ["gate"],
    "x += gate * y": ["gate"],
    "x = residual + scale * y": [],
    "x = y * (1 + scale)": ["modulation"],
    "x = (scale[:, None] + 1) * self.body(y)": ["modulation"],
    "factor = 1 + scale\nx = y * factor": ["modulation"],
    "x = y[:, : (i + 1) * width]": [],
    "x = (index + 1) * y": [],
    "x = torch.linalg.vector_norm(x + y)": [],
    "x = torch.sigmoid(y) * self.factor": [],
    "x = 0.5 * x * (1 + torch.tanh(y))": [],
    "x = y * (torch.log1p(position + 1.0) * self.attn_scale + 1.0)": ["modulation"],
    "x = 0.79788456 * y * (1 + 0.044715 * y * y)": [],
    "x = residual + gate.tanh() * y": ["gate", "tanh gate"],
    "x = cap * torch.tanh(x / cap)": [],
    "x = self.act_fn(self.gate_proj(x)) * self.up_proj(x)": ["activation"],
    "up, gate = x.chunk(2)\nx = up * F.silu(gate)": ["activation"],
    "x = self.norm(x + y)": ["norm of a sum"],
    "x = x + y\nx = self.norm2(x.float())": ["norm of a sum"],
    "x = x + y\nx = self.body(x)\nx = self.norm2(x)": [],
    "x = x + self.body(\n    self.norm(x)\n)": [],
    "x += y\nx = self.post_attention_layernorm(x)": ["norm of a sum"],
    "if a:\n    x = x + y\nelse:\n    x = self.norm(x)": [],
    "if a:\n    x = x + y\nif b:\n    x = self.norm(x)": ["norm of a sum"],
    "for y in a:\n    x = x + y\nx = self.norm(x)": [],
    "for y in a:\n    x = x + y\n    x = self.norm(x)": ["norm of a sum"],
    "x = attn.norm_q(x)": ["norm of q or k"],
    "x = self.k_norm(x)": ["norm of q or k"],
    "x = apply_rotary_emb(x, table)": ["rotary embedding"],
    "query = rope(query, table)": ["rotary embedding"],
    "table = self.rotary_emb(x, position_ids)": [],
    "cos_q, sin_q = self.rotary_emb(x, position_ids)": [],
    "x = compute_rope_table(x)": [],
    "x = self.property_of(x)": [],
}
"""Maps statements of a method to the kinds of chains in them. A chain is a sequence of operations that a
kernel can replace."""
MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, x):
        return x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.group_norm = nn.LayerNorm(16, elementwise_affine=False), nn.GroupNorm(4, 16)
        self.gate = nn.Parameter(torch.randn(16))
        self.other_gate = nn.Parameter(torch.randn(()))

    def forward(self, x):
        x = x + self.gate * torch.abs(x)
        x = x + self.other_gate * torch.abs(x)
        return torch.abs(self.scaled(x)) * (1 + self.gate)

    def scaled(self, x):
        return self.norm(x) * (1 + self.gate)


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_norm, self.norm = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)

    def forward(self, x):
        if self.training:  # does not run, so the next norm is not the norm of a sum
            x = x + torch.sin(x)
        y = self.first_norm(x)
        y = x + torch.abs(y)
        return self.norm(y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.grouped = Block(), Grouped()

    def forward(self, x):
        return self.grouped(self.block(x).flatten(0, 1))
"""
STATES = {
    "x + self.gate * torch.abs(x)": "kernel",
    "x + self.other_gate * torch.abs(x)": "original",
    "self.norm(x) * (1 + self.gate)": "kernel",
    "torch.abs(self.scaled(x)) * (1 + self.gate)": "missed",
    "self.norm(y)": "left",
}


@pytest.mark.parametrize("statements", CHAINS)
def test_loose_chains(statements, tmp_path):
    """The rules find the chains (operations that a kernel can replace) in a method. They recognise operations
    by the names of variables and functions."""
    path = tmp_path / "model.py"
    path.write_text("class Block:\n    def forward(self, x):\n" + textwrap.indent(statements, " " * 8))
    found = script("loose_chains").loose_in(str(path), path.name, 2)
    assert sorted(chain.kind for chain in found) == sorted(CHAINS[statements])


def test_rotations_are_counted_once(tmp_path):
    """The search for chains (operations that a kernel can replace) does not count operations inside a rotary
    function. It counts the call of the function instead, so each rotation is counted once.
    """
    path = tmp_path / "model.py"
    path.write_text("def apply_rotary(x, cos, sin):\n    return x * cos + rotate_half(x) * sin\n")
    assert not script("loose_chains").loose_in(str(path), path.name, 1)


def test_rules_do_not_use_patch():
    """The rules that find chains (operations that a kernel can replace) do not import oxiwarp.

    If they used the code of `patch`, they could not find a chain that `patch` misses.
    """
    tree = ast.parse((ROOT / "scripts/loose_chains.py").read_text())
    imports = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports and not any("oxiwarp" in text or "chain_coverage" in text for text in imports)


def test_states(tmp_path, monkeypatch):
    """The script determines the correct state of each chain (operations that a kernel can replace).

    There are four states: a kernel ran, the original code ran, `patch` did not replace the method, or `patch`
    missed the chain.
    """
    path = tmp_path / "diffusers" / "states.py"  # the script reads only files in folders with this name
    path.parent.mkdir()
    path.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("states_of_chains", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    model = module.Model().eval()
    result, _ = script("chain_coverage").study(model, {"x": torch.randn(2, 5, 16)})
    assert {key[4]: made.state for key, made in result.chains.items()} == STATES
    assert result.restored and 0 <= result.difference < 1e-5 and result.operators[0] > result.operators[1] > 0


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.00001, True), (1.001, False)])
def test_wrong_outputs(factor, right):
    """`agrees` returns False if the outputs of patched and unpatched model differ by more than rounding
    errors."""
    x = torch.randn(100)
    model = {"float32": {"difference": script("chain_coverage").difference([x * factor], [x])}}
    assert script("supported_models").agrees(model, "float32") == right
    assert (model["float32"]["difference"] == 0) == (factor == 1)


def test_versions():
    """The report about a class names the fusion by which `patch` replaces its method, or the lines that
    `patch` rewrites."""
    from diffusers.models.transformers.transformer_ltx import LTXVideoTransformerBlock

    covers, made = script("chain_coverage").Covers(), script("versions")
    lines = made.describe(research_models.Adaptive, research_models.Adaptive.forward, covers)
    assert len(lines) == 3 and all(line.startswith("line ") for line in lines) and covers.regions
    lines = made.describe(LTXVideoTransformerBlock, LTXVideoTransformerBlock.forward, covers)
    assert lines[0].startswith("fusion ltx.block: ada_norm") and covers.functions
    assert not made.describe(torch.nn.Linear, torch.nn.Linear.forward, covers)


def test_page_is_fresh():
    """The generated parts of the page about supported models match its data file. If this test fails, run
    `python scripts/supported_models.py --page`."""
    made = script("supported_models")
    text = (ROOT / made.PAGE).read_text()
    assert script("generated").fill(text, "supported_models", made.parts()) == text, f"{made.PAGE} is stale"


@pytest.mark.parametrize("library", ["diffusers", "transformers"])
def test_sample(library):
    """If some randomly selected models run again, they give the data on the page about supported models. If
    this test fails, run `python scripts/supported_models.py`."""
    made = script("supported_models")
    data = made.load()
    installed = made.versions()
    if installed != data["versions"]:
        pytest.skip(f"the data is of {data['versions']}, installed is {installed}")
    seed = random.randrange(10**6)
    names = random.Random(seed).sample(made.named(data, library), SAMPLE)
    again = made.packed(dict(made.study(name) for name in names))
    for name in names:
        assert again["models"][name]["family"] == data["models"][name]["family"]
        for dtype in made.DTYPES:
            assert chains(made, again, name, dtype) == chains(made, data, name, dtype), f"seed {seed}: {name}"
            one, other = again["models"][name], data["models"][name]
            # The number of operators that torch runs depends a little on the machine, but equally with and
            # without `patch`. Therefore compare only the difference.
            before, after = (stock - patched for stock, patched in (m[dtype]["operators"] for m in (other, one)))
            assert before == after, f"seed {seed}: {name}"
            assert one[dtype]["restored"] == other[dtype]["restored"], f"seed {seed}: {name}"
            assert made.agrees(one, dtype) == made.agrees(other, dtype), f"seed {seed}: {name}"


def chains(made, data, name, dtype):
    """Map each chain in a model to its states. The key consists of the chain's file, kind, line, owner and
    source code."""
    return {tuple(data["chains"][at]): list(found) for at, found in made.outcomes_of(data, name, dtype).items()}
