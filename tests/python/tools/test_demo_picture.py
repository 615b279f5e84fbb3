"""Tests of the picture that `python -m oxiwarp demo` draws: panels, legends and colours. The latents in it
are invented."""

import pytest
import torch
from helpers import random
from pictures import assert_legends_cover_nothing, colors_of

pytest.importorskip("matplotlib")

from oxiwarp.cli import demo  # noqa: E402
from oxiwarp.cli.demo import Job, Outcome  # noqa: E402
from oxiwarp.cli.palette import OKABE_ITO  # noqa: E402
from oxiwarp.cli.png import draw, save  # noqa: E402


def outcome(dtype=torch.bfloat16, equal=False):
    """Return the result of a demo run with known errors.

    The latents of the unpatched model differ by 0.5 from its latents in a wider dtype, so its rounding error
    is 0.5. The latents of patched and unpatched model differ by 0.125. If `equal` is true, the latents of
    patched and unpatched model are equal.
    """
    stock = random((1, 24, 4), torch.float32, "cpu")
    patched = stock if equal else stock + 0.125
    return Outcome(Job({}, (2, 3, 4), dtype, 2), stock + 0.5, stock, patched, [0.5, 0.5], [0.25, 0.25])


def axes_of(figure):
    return [axis for axis in figure.subfigs[0].axes if axis.get_label() != "<colorbar>"]


def titles(figure):
    return [axis.get_title() for axis in axes_of(figure)]


def test_both_errors_are_next_to_each_other():
    """The picture shows two errors on the same scale. One is the difference of patched and unpatched model,
    the other the rounding error of the unpatched model."""
    figure = draw([outcome()], "a GPU", times=False)
    text = " ".join(titles(figure))
    assert "|patched - stock|" in text and "|stock - stock in float32|" in text and "within the bound" in text
    (checked,) = (axis for axis in axes_of(figure) if "check" in axis.get_title())
    found = {line.get_label(): line.get_xdata() for line in checked.lines}
    assert found["patched against stock"] == pytest.approx([0.125, 0.125])
    assert found["stock against stock in a wider type: rounding error"] == pytest.approx([0.5, 0.5])
    assert found["bound: twice the rounding error"] == pytest.approx([1.0, 1.0])
    first, second = (axis.images[0] for axis in axes_of(figure)[:2])
    assert first.get_clim() == second.get_clim() and first.get_clim()[1] == pytest.approx(0.5)


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True)])
def test_times_are_those_of_a_gpu(device, expected, monkeypatch, tmp_path):
    """The picture shows times only for a GPU, because times of the CPU executor say nothing about the speed
    of the kernels."""
    assert any("time" in title for title in titles(draw([outcome()], "here", times=expected))) == expected
    asked = []
    monkeypatch.setattr(demo, "run", lambda *_: outcome())
    monkeypatch.setattr(demo, "describe", lambda *_: None)
    monkeypatch.setattr(demo, "where", lambda _: "here")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("oxiwarp.cli.png.save", lambda *_, times: asked.append(times))
    pytest.importorskip("diffusers")
    assert demo.demo(device=device, out=str(tmp_path / "demo.png")) == 0 and asked == [expected]


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_nothing_is_covered(times, equal, tmp_path):
    """No legend covers a line, bar or mark. This also holds if all latents are equal, where log(0) cannot be
    drawn."""
    outcomes = [outcome(torch.float32, equal), outcome(torch.bfloat16)]
    assert_legends_cover_nothing(draw(outcomes, "here", times))
    save(outcomes, "here", str(tmp_path / "new" / "demo.png"), times)
    assert (tmp_path / "new" / "demo.png").read_bytes()[:4] == b"\x89PNG"


def test_colours():
    """Lines and bars have colours from the palette of Okabe and Ito. Lines also differ in style, and bars
    in hatch."""
    figure = draw([outcome()], "here", times=True)
    assert colors_of(figure) <= set(OKABE_ITO)
    *_, shares, _, steps = axes_of(figure)
    assert len({line.get_linestyle() for line in shares.lines}) == 2
    assert len({bars[0].get_hatch() or "" for bars in steps.containers}) == 2
