"""Tests of patched diffusion models that compute linears and the operations after them with `oxiwarp.linear`.

In these tests, a function that computes the operations separately replaces `oxiwarp.linear`. A model that calls this
function must give the same bits as a patched model whose linears are computed as usual. The results therefore show
whether each call has the right weights, residual, gate and output.
"""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from image_models import pixart, pixart_input
from joint_models import FAMILIES, build, step
from models import ltx, ltx_input
from product_tables import forget, use_tables
from test_decoder import IDS
from test_decoder import build as decoder
from video_models import wan, wan_input

import oxiwarp
from oxiwarp import ops
from oxiwarp.patching.fusions.core import linear
from oxiwarp.patching.fusions.core.linear_tables import GATED_RESIDUAL, Launch

BF16 = torch.bfloat16


def family(name):
    return lambda: build(FAMILIES[name], BF16), lambda model: step(FAMILIES[name], model, BF16)


MODELS = {
    # FLUX.1: one block with two streams, and two single-stream blocks.
    "flux": (*family("flux"), {"gelu_tanh": 4, GATED_RESIDUAL: 4}),
    "hunyuan_video": (*family("hunyuan_video"), None),
    "sd3": (*family("sd3"), None),
    "qwen_image": (*family("qwen_image"), None),
    "ltx": (lambda: ltx(BF16), lambda model: model(**ltx_input(BF16)), {"gelu_tanh": 2, GATED_RESIDUAL: 2}),
    "wan": (lambda: wan(BF16), lambda model: model(**wan_input(BF16)), {"gelu_tanh": 2, GATED_RESIDUAL: 2}),
    "phi3": (
        lambda: decoder("Phi3", BF16),
        lambda model: (model(input_ids=IDS, use_cache=False).last_hidden_state,),
        {"silu_and_mul": 2},
    ),
    "pixart": (lambda: pixart(BF16), lambda model: model(**pixart_input(BF16)), None),
}
"""Functions that build a model and run a step, and the expected calls of `oxiwarp.linear` by kind. None: at least one
of each kind."""


def chain(x, weight, bias=None, *, epilogue=None, residual=None, gate=None, mode="exact", out=None):
    """Compute a linear and the operations after it by separate operations."""
    y = F.linear(x, weight, bias)
    if epilogue is not None:
        y = getattr(ops, epilogue)(y, mode=mode)
    elif gate is not None:
        y = ops.gated_residual(residual, y, gate, mode=mode)
    return y if out is None else out.copy_(y)


@pytest.fixture
def calls(monkeypatch):
    """Replace `oxiwarp.linear` in patched methods by `chain`, and count the calls by kind of epilogue."""
    monkeypatch.setenv("WORLD_SIZE", "2")  # no comparison: the first call counts
    seen = Counter()

    def counted(*args, epilogue=None, **kwargs):
        seen[epilogue or GATED_RESIDUAL] += 1
        return chain(*args, epilogue=epilogue, **kwargs)

    monkeypatch.setattr(linear.ops, "linear", counted)
    yield seen
    forget()


def first_of(result):
    """Return the tensors of a model's result."""
    return tuple(result.values()) if isinstance(result, dict) else tuple(result)


@pytest.mark.parametrize("mode", ("exact", "fast"))
@pytest.mark.parametrize("name", MODELS)
def test_models(name, mode, monkeypatch, calls):
    make, run, expected = MODELS[name]
    model = make()
    oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    right = first_of(run(model))
    assert not calls
    use_tables(monkeypatch)
    report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    made = first_of(run(model))
    assert all(torch.equal(a, b) for a, b in zip(made, right, strict=True))
    assert calls == expected if expected is not None else min(calls.values()) > 0 and len(calls) > 1, calls
    assert sum(row.kernels for row in report.ran() if row.op == "linear") == calls.total()


def test_wrong_gate(monkeypatch, calls):
    """A wrong operand of a fused call changes the result of the model, so `test_models` can fail."""
    model = ltx(BF16)
    oxiwarp.patch(model, cpu_kernels=True)
    right = first_of(model(**ltx_input(BF16)))
    use_tables(monkeypatch)
    counted = linear.ops.linear

    def wrong(*args, gate=None, **kwargs):
        return counted(*args, gate=None if gate is None else gate * 2, **kwargs)

    monkeypatch.setattr(linear.ops, "linear", wrong)
    made = first_of(model(**ltx_input(BF16)))
    assert not all(torch.equal(a, b) for a, b in zip(made, right, strict=True))


def test_slower(monkeypatch, calls):
    """If the launch table (a table of measured times) does not say that `oxiwarp.linear` is faster than
    the separate operations, the patched model never calls it. The report gives this reason.
    """
    use_tables(monkeypatch, speed={("gelu_tanh", 8, 8): [Launch(1, 1.0, 1.0, None)]})
    model = ltx(BF16)
    report = oxiwarp.patch(model, cpu_kernels=True)
    model(**ltx_input(BF16))
    rows = [row for row in report.ran() if row.op == "linear"]
    assert not calls and rows and all("launch table" in reason for row in rows for reason in row.fallbacks)
