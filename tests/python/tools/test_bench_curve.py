"""Tests of `benches/python/curve.py` without a GPU: the measured sizes, and the check of single tokens.

For this check, the benchmark calls the op again with single tokens of a large call. The results must equal
the results of the large call.
"""

import sys

import pytest
import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import curve  # noqa: E402
from forms import Source  # noqa: E402

import oxiwarp  # noqa: E402

POSITIONS = ("rope_1d", "rope_3d")


def form_of(op):
    return next(form for form in curve.selected([op]) if form.timed)


@pytest.mark.parametrize("op", [op for op in curve.OPS if not form_of(op).backward])
def test_every_curve_has_all_its_points(op):
    """Each op is measured for `POINTS` different numbers of tokens. The first number is 1."""
    form = form_of(op)
    tokens = curve.tokens_of(form, form.cases[0][1])
    assert len(tokens) == curve.POINTS and tokens[0] == 1, tokens


def test_a_curve_that_tells_tokens_apart(monkeypatch):
    """`tokens_alone` detects a wrong result of a single token in a large call, as an overflow of a 32-bit
    offset would cause."""
    form = next(form for form in curve.selected(["gelu_tanh"]) if form.timed)
    x = torch.randn(1, 33, 16).bfloat16()
    right = torch.nn.functional.gelu
    monkeypatch.setattr("oxiwarp.gelu_tanh", lambda x, mode: right(x, approximate="tanh"))
    assert curve.tokens_alone(form, {"x": x}, 33)
    for at in (0, 16, 32):

        def wrong(x, mode, at=at):
            y = right(x, approximate="tanh")
            if y.shape[1] == 33:
                y[:, at] += 1
            return y

        monkeypatch.setattr("oxiwarp.gelu_tanh", wrong)
        assert not curve.tokens_alone(form, {"x": x}, 33)


@pytest.mark.parametrize("op", POSITIONS)
def test_tokens_whose_place_counts(op, monkeypatch):
    """For RoPE, `tokens_alone` passes each single token together with its position. It detects a token that
    is rotated by a wrong angle."""
    form, tokens = form_of(op), 52
    inputs = form.inputs(Source(torch.device("cpu")), (1, tokens, 2, 128))
    assert curve.tokens_alone(form, inputs, tokens)
    right = getattr(oxiwarp, op)

    def wrong(q, k, **how):
        turned = right(q, k, **how)
        if q.shape[1] == tokens:
            turned[1][:, -1] = turned[1][:, -1].flip(-1)
        return turned

    monkeypatch.setattr(oxiwarp, op, wrong)
    assert curve.tokens_alone(form, inputs, tokens) is False


def test_what_is_not_compared_is_not_claimed():
    """The last column of the CSV file does not claim a comparison that the script cannot make.

    The script compares the result for many tokens with the results for single tokens. If the results differ,
    it writes "FAIL". An op that combines several tokens has no results for single tokens. For such an op, it
    writes "not compared".
    """
    form = form_of("softmax_backward")
    assert curve.tokens_alone(form, {}, 5) is None
    point = curve.Point(form.op, 5, 10, 20, 1.0, 1.0, None)
    assert curve.fields_of(point, 4000.0)[-1] == "not compared"
    assert curve.fields_of(curve.Point(form.op, 5, 10, 20, 1.0, 1.0, False), 4000.0)[-1] == "FAIL"
