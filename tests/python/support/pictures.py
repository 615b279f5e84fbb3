"""Checks of matplotlib figures, for tests."""

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.legend import Legend
from matplotlib.patches import Rectangle


def assert_legends_cover_nothing(figure):
    """Check that legends are inside the figure and do not overlap axes, titles or other legends."""
    figure.draw_without_rendering()
    legends = figure.findobj(Legend)
    assert legends
    axes = figure.findobj(Axes)
    texts = [axis.title.get_window_extent() for axis in axes if axis.get_title()]
    # Bounding boxes of ticks and labels. If an axis is switched off, its box is None.
    texts += [box for axis in axes for one in (axis.xaxis, axis.yaxis) if (box := one.get_tightbbox()) is not None]
    for at, legend in enumerate(legends):
        box = legend.get_window_extent()
        for axis in axes:
            if axis.has_data():
                assert not box.overlaps(axis.get_window_extent()), f"legend {at} covers {axis.get_title()!r}"
        for other in (*texts, *(earlier.get_window_extent() for earlier in legends[:at])):
            assert not box.overlaps(other), f"legend {at} covers {other}"
        inside = figure.bbox.padded(1)
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1


def colors_of(figure):
    """Return the colours of the lines, markers and bars of all axes, in upper case."""
    found = set()
    for axis in figure.findobj(Axes):
        if axis.get_label() == "<colorbar>":
            continue
        for line in axis.lines:
            found |= {line.get_color(), line.get_markeredgecolor()}
        for bars in axis.containers:
            found |= {bar.get_facecolor() for bar in bars if isinstance(bar, Rectangle)}
        for points in axis.collections:
            if isinstance(points, PathCollection):
                found |= {tuple(color) for color in (*points.get_facecolor(), *points.get_edgecolor())}
    return {to_hex(color).upper() for color in found if color is not None}


def labels_of(figure):
    """Return the labels of all legends."""
    return [text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()]


__all__ = ["assert_legends_cover_nothing", "colors_of", "labels_of"]
