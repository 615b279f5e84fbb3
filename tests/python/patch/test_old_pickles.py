"""Tests that patched models can be loaded and called if an older version of oxiwarp has pickled them.

In the older version, the Python modules of oxiwarp had other paths.
"""

import pickle
import subprocess
import sys

import pytest
import torch
from checkout import ROOT
from helpers import random
from models import BareRMSNorm
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import recipe_of, replace
from oxiwarp.patching.fusions import FusedRecipe
from oxiwarp.patching.old_names import OLD_NAMES

# A pickled dict (protocol 2) from an oxiwarp version in which Python modules had other paths. "norm" and
# "layer_norm" are modules after `patch(nn.Sequential(norm, layer_norm), mode="fast", cpu_kernels=True)`.
# Before `patch`, they were a `BareRMSNorm` and an `nn.LayerNorm(64, elementwise_affine=False)`. "report" is
# the report of this `patch` call, and "rows" contains the rows of the report.
PICKLE = ROOT / "tests" / "python" / "support" / "patched.pickle"


@pytest.fixture
def old():
    return pickle.loads(PICKLE.read_bytes())


def test_modules(old):
    """Patched modules from the old pickle run the kernels, and have the class and options of newly patched modules."""
    x = random((4, 64), torch.float32, "cpu")
    for name, fresh in (("norm", BareRMSNorm()), ("layer_norm", nn.LayerNorm(64, elementwise_affine=False))):
        stock = fresh(x)
        oxiwarp.patch(fresh, mode="fast", cpu_kernels=True)
        assert recipe_of(old[name]) == recipe_of(fresh) and type(old[name]) is type(fresh)
        assert torch.equal(old[name](x), fresh(x))
        assert oxiwarp.unpatch(old[name]) == 1 and torch.equal(old[name](x), stock)


def test_report(old):
    assert old["report"].rows == old["rows"] and isinstance(old["rows"][0], oxiwarp.Row)
    assert old["report"].summary == "oxiwarp.patch(mode='fast'): 2 modules replaced, 0 left"


def test_written_again(old):
    """If the objects from the old pickle are pickled again, the new pickle contains only current module paths."""
    data = pickle.dumps(old, protocol=2)
    assert pickle.loads(data)["rows"] == old["rows"]
    for name in OLD_NAMES:
        assert f"oxiwarp.{name}\n".encode() in PICKLE.read_bytes() or name == "fusions"
        assert f"oxiwarp.{name}\n".encode() not in data


def test_removed_fusion():
    """If a fusion does not exist any more, a module from an old pickle with this fusion runs its original
    method. `patch` then replaces the method again."""
    own = nn.LayerNorm(64)
    replace(own, FusedRecipe("removed.fusion", "exact", cpu_kernels=True))
    loaded, x = pickle.loads(pickle.dumps(own)), random((4, 64), torch.float32, "cpu")
    assert torch.equal(loaded(x), nn.LayerNorm(64)(x))
    skipped = oxiwarp.patch(loaded, skip="*", allow_empty=True)
    assert [row.op for row in skipped] == ["-"]
    oxiwarp.patch(loaded, cpu_kernels=True)
    assert recipe_of(loaded).fusion == "layer_norm" and oxiwarp.unpatch(loaded) == 1


def test_before_any_import():
    """A module can be imported by its old path, even if no other module of oxiwarp has been imported
    before."""
    code = "import sys, importlib; importlib.import_module('oxiwarp.fusions._fusion').FusedRecipe"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
