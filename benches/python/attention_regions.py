"""Finds the sizes for which `oxiwarp.attention` is faster than torch's attention.

The times come from attention_table.py. A size consists of two numbers: queries per head, and queries over all
batches and heads. A region is a set of sizes, given by a few minimal sizes. A size belongs to the region if,
for one of the minimal sizes, both of its numbers are at least as large. oxiwarp is faster at each measured
size in a region. If oxiwarp is faster at a size outside of all regions, this size is listed separately.
"""

from collections.abc import Iterable
from itertools import product

Size = tuple[int, int]  # Two numbers: queries per head, and queries over all batches and heads.
Kind = tuple[int, bool]  # A kind of attention: the head dimension, and whether keys are padded.
# oxiwarp's time divided by torch's time, by kind of attention, number of attention keys, and size.
Ratios = dict[Kind, dict[int, dict[Size, float]]]
# The minimal sizes of a region. The region contains every size that is at least as large as one of them.
Region = tuple[Size, ...]
# Sizes outside of all regions at which oxiwarp is faster. The outer dict maps a number of attention keys to
# an inner dict. The inner dict maps queries per head to numbers of queries over all batches and heads.
Alone = dict[int, dict[int, tuple[int, ...]]]
Faster = dict[Kind, tuple[dict[int, Region], Alone]]


def faster(ratios: Ratios) -> Faster:
    """Return two values for each kind of attention (head dimension, and whether keys are padded). The first
    value has the regions. The second value has the sizes outside of all regions at which oxiwarp is faster.

    A size consists of queries per head, and queries over all batches and heads. A region is a set of sizes,
    without an upper limit, at which oxiwarp is faster than torch. The regions are in a dict. Each region
    applies from a minimum number of attention keys on, which is its key in the dict. Between two measured
    numbers of keys, a region contains only sizes at which oxiwarp is faster for both numbers.

    The ratio of the times of oxiwarp and torch is not monotonic in the size, because some sizes leave SMs
    idle in the last wave of tiles.
    """
    return {
        kind: (regions := by_least_keys(by_keys), alone(by_keys, regions)) for kind, by_keys in sorted(ratios.items())
    }


def by_least_keys(by_keys: dict[int, dict[Size, float]]) -> dict[int, Region]:
    """Map the minimum number of attention keys to a region (a set of sizes without an upper limit).

    Between two measured numbers of attention keys, the region is the intersection of their two regions.
    """
    regions = {keys: least(ratios) for keys, ratios in sorted(by_keys.items())}
    measured = list(regions)
    found = {1: regions[measured[0]]}
    for keys, following in zip(measured, measured[1:] + measured[-1:], strict=True):
        both = common(regions[keys], regions[following])
        if both != [*found.values()][-1]:
            found[keys + 1] = both
    return found


def alone(by_keys: dict[int, dict[Size, float]], regions: dict[int, Region]) -> Alone:
    """Return the measured sizes at which oxiwarp is faster than torch, but which no region contains."""
    found: Alone = {}
    for keys, ratios in sorted(by_keys.items()):
        region = regions[max(least for least in regions if least <= keys)]
        for size, ratio in sorted(ratios.items()):
            if ratio < 1 and not any(reaches(size, corner) for corner in region):
                queries, of_all = size
                of_queries = found.setdefault(keys, {})
                of_queries[queries] = (*of_queries.get(queries, ()), of_all)
    return found


def least(ratios: dict[Size, float]) -> Region:
    """Return the region in which all measured ratios (oxiwarp's time / torch's time) are below 1. The region
    is given by its minimal sizes."""
    return corners(size for size in ratios if all(ratio < 1 for other, ratio in ratios.items() if reaches(other, size)))


def common(a: Region, b: Region) -> Region:
    """Return the intersection of two regions."""
    return corners((max(x[0], y[0]), max(x[1], y[1])) for x, y in product(a, b))


def corners(sizes: Iterable[Size]) -> Region:
    """Return the minimal elements of `sizes`. A size is minimal if no other size is at most as large in both
    of its numbers."""
    found = sorted(set(sizes))
    return tuple(size for size in found if not any(reaches(size, other) for other in found if other != size))


def reaches(size: Size, corner: Size) -> bool:
    """Return True if both numbers of `size` are at least as large as the numbers of `corner`."""
    return all(there >= wanted for there, wanted in zip(size, corner, strict=True))
