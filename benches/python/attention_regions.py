"""Finds the sizes for which `oxiwarp.attention` is faster than torch's attention.

The times come from attention_table.py. A region contains all sizes above a minimum size, and oxiwarp is
faster at each measured size in the region. If oxiwarp is faster at a size outside of all regions, this size
is listed separately.
"""

from collections.abc import Iterable
from itertools import product

Size = tuple[int, int]  # The number of queries per head, and this number multiplied by the batches and heads.
Kind = tuple[int, bool]  # A kind of attention: the head dimension, and whether keys are padded.
# Time of oxiwarp divided by time of torch, by kind, number of keys, and size.
Ratios = dict[Kind, dict[int, dict[Size, float]]]
Region = tuple[Size, ...]  # A region contains every size that is at least as large as one of these sizes.
# Sizes outside of all regions at which oxiwarp is faster. The keys of the outer dict are numbers of attention
# keys. The keys of the inner dict are numbers of queries per head. The values are numbers of queries over all
# batches and heads.
Alone = dict[int, dict[int, tuple[int, ...]]]
Faster = dict[Kind, tuple[dict[int, Region], Alone]]


def faster(ratios: Ratios) -> Faster:
    """Map (head dimension, whether keys are padded) to the regions, and to the faster sizes outside of all
    regions.

    A region is a set of sizes, with no upper limit, at which oxiwarp is faster than torch. The regions are in
    a dict whose keys are minimum numbers of attention keys. The number of keys of a call can lie between two
    measured numbers. A size is then in the region only if oxiwarp is faster at both measured numbers.

    The ratio of the times does not change monotonically with the size, because the number of tiles per SM
    varies.
    """
    return {
        kind: (regions := by_least_keys(by_keys), alone(by_keys, regions)) for kind, by_keys in sorted(ratios.items())
    }


def by_least_keys(by_keys: dict[int, dict[Size, float]]) -> dict[int, Region]:
    """Return a dict from minimum numbers of attention keys to regions (sets of sizes without an upper limit).

    Between two measured numbers of keys, the region is the intersection of the regions of these two numbers.
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
    """Return the measured sizes outside of all regions at which oxiwarp is faster than torch."""
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
    """Return the minimum sizes of the region in which all measured ratios (oxiwarp's time / torch's time)
    are below 1."""
    return corners(size for size in ratios if all(ratio < 1 for other, ratio in ratios.items() if reaches(other, size)))


def common(a: Region, b: Region) -> Region:
    """Return the intersection of two regions."""
    return corners((max(x[0], y[0]), max(x[1], y[1])) for x, y in product(a, b))


def corners(sizes: Iterable[Size]) -> Region:
    """Return the minimal sizes. A size is minimal if no other size in `sizes` is at most as large in both
    of its numbers."""
    found = sorted(set(sizes))
    return tuple(size for size in found if not any(reaches(size, other) for other in found if other != size))


def reaches(size: Size, corner: Size) -> bool:
    """Return True if both numbers of `size` are at least as large as the numbers of `corner`."""
    return all(there >= wanted for there, wanted in zip(size, corner, strict=True))
