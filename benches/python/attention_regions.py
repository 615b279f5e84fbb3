"""Finds the sizes for which `oxiwarp.attention` is faster than torch's attention, from the times of
attention_table.py.

A region contains all sizes above a minimum size. Faster sizes that are in no region are listed one by one.
"""

from collections.abc import Iterable
from itertools import product

Size = tuple[int, int]  # Number of queries per head, and number of queries of all batches and heads.
Kind = tuple[int, bool]  # A kind of attention: the head dimension, and whether keys are padded.
Ratios = dict[Kind, dict[int, dict[Size, float]]]  # Time of oxiwarp / time of torch, by kind, keys and size.
Region = tuple[Size, ...]  # A region contains every size that is at least as large as one of these sizes.
# Faster sizes in no region: maps the number of keys and the number of queries per head to numbers of total
# queries.
Alone = dict[int, dict[int, tuple[int, ...]]]
Faster = dict[Kind, tuple[dict[int, Region], Alone]]


def faster(ratios: Ratios) -> Faster:
    """Map (head dimension, whether keys are padded) to the regions, and to the faster sizes in no region.

    The keys of the map of regions are minimum numbers of attention keys. In a region, oxiwarp is faster at
    both measured numbers of attention keys between which the number of a call lies. The time ratio is not
    monotonic in the size, because the tiles per SM vary.
    """
    return {
        kind: (regions := by_least_keys(by_keys), alone(by_keys, regions)) for kind, by_keys in sorted(ratios.items())
    }


def by_least_keys(by_keys: dict[int, dict[Size, float]]) -> dict[int, Region]:
    """Map minimum numbers of keys to regions.

    Between two measured numbers of keys, the region is the intersection of the regions of both numbers.
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
    """Return the measured sizes at which oxiwarp is faster although they are in no region."""
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
    """Return the minimum sizes of the region in which all measured ratios (oxiwarp's time / torch's) are below 1."""
    return corners(size for size in ratios if all(ratio < 1 for other, ratio in ratios.items() if reaches(other, size)))


def common(a: Region, b: Region) -> Region:
    """Return the intersection of two regions."""
    return corners((max(x[0], y[0]), max(x[1], y[1])) for x, y in product(a, b))


def corners(sizes: Iterable[Size]) -> Region:
    """Return the minimal sizes: those for which no other size in `sizes` is at most as large in both
    numbers."""
    found = sorted(set(sizes))
    return tuple(size for size in found if not any(reaches(size, other) for other in found if other != size))


def reaches(size: Size, corner: Size) -> bool:
    """Whether both numbers of `size` are at least those of `corner`."""
    return all(there >= wanted for there, wanted in zip(size, corner, strict=True))
