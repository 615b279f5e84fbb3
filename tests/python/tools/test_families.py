"""Tests of benches/python/families.py on the CPU executor."""

import sys

import pytest
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import families  # noqa: E402

from oxiwarp.patching.fusions import FUSIONS  # noqa: E402
from oxiwarp.patching.fusions.core.recipe import FusedRecipe  # noqa: E402


def test_without_families():
    """In the `with` block, only the fusions of small modules exist. After it, all exist again."""
    before = dict(FUSIONS)
    with families.without_families():
        assert {fusion.partition(".")[0] for fusion in FUSIONS} == {
            *("layer_norm", "fp32_layer_norm", "timesteps", "feed_forward")
        }
    assert before == FUSIONS


def test_launches(capsys):
    """A step of the tiny Qwen-Image dispatches fewer operators after `patch`, with and without its family."""
    pytest.importorskip("diffusers")
    families.main(["qwen-image", "--launches"])
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert cells[0] == "qwen-image" and int(cells[1]) < int(cells[3]) and int(cells[2]) < int(cells[3])


def test_times(capsys):
    """The outputs of the patched and the rewritten model have the bits of the unpatched model."""
    pytest.importorskip("diffusers")
    families.main(["qwen-image", "--small", "--rounds", "1"])
    assert capsys.readouterr().out.splitlines()[-1].endswith("| yes, yes |")


def test_both():
    """One of the two models has fusions, and the methods of the other one are rewritten."""
    pytest.importorskip("diffusers")
    import torch

    from oxiwarp.cli.bench.measure import build
    from oxiwarp.patching.class_swap import recipe_of

    model = build(families.WORKLOADS["ltx"], True, torch.device("cpu"), torch.bfloat16)
    kinds = [type(recipe_of(one.transformer_blocks[0])) for one in families.both(model, True)]
    assert (
        (kinds[0] is FusedRecipe) and (kinds[1] is not FusedRecipe) and recipe_of(model.transformer_blocks[0]) is None
    )
