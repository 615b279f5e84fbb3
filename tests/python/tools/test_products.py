"""Tests of the benchmark of matrix products. They need no GPU."""

import sys

import pytest
import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import products  # noqa: E402


def test_cases():
    """`--only` selects the cases in which the name of the model or of the torch code contains one
    of the given texts."""
    everything = products.cases(None)
    assert {form.op for form, _, _ in everything} == {"linear", "linear_fp8"} and len(everything) > 15
    assert [model for _, model, _ in products.cases(["square"])] == ["square"]
    some = products.cases(["with bias", "square"])
    assert len(products.cases(["with bias"])) + 1 == len(some) < len(everything)


def test_providers():
    """A product without an epilogue is timed against torch's product alone. A product of 8-bit floats is also timed
    against torch's product with the other kind of accumulation."""
    timed = {form.chain: set(products.providers_with_product(form)) for form, _, _ in products.cases(None)}
    assert timed["with bias"] == {"product", "oxiwarp"}
    assert timed["8-bit, accumulation in float32"] == {"product", "oxiwarp", "_scaled_mm fast"}
    assert timed["8-bit, fast accumulation"] == {"product", "oxiwarp", "_scaled_mm"}
    assert timed["with SwiGLU"] > {"product", "oxiwarp", "oxiwarp fast", "eager"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_equal_share(dtype):
    """Values are equal if their bits are equal: 0 and -0 differ, and a NaN equals itself."""
    x = torch.tensor([0.0, 1.0, float("nan"), 3.0], dtype=dtype)
    y = torch.tensor([-0.0, 1.0, float("nan"), 4.0], dtype=dtype)
    assert products.equal_share(x, x) == 1.0
    assert products.equal_share(x, y) == 0.5


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["products.py"])
    assert products.main() == 0
    assert "nothing measured" in capsys.readouterr().out
