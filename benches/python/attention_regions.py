"""From which sizes on attention is always faster, and at which others it is: what attention_table.py makes of times."""

from collections.abc import Iterable
from itertools import product

Size = tuple[int, int]  # queries, and queries of all heads together
Kind = tuple[int, bool]  # columns, and whether keys are padded
Ratios = dict[Kind, dict[int, dict[Size, float]]]  # by keys, then by size
Region = tuple[Size, ...]  # all sizes that have as much as one of these
Alone = dict[int, dict[int, tuple[int, ...]]]  # by keys, then by queries: queries of all heads
Faster = dict[Kind, tuple[dict[int, Region], Alone]]


def faster(ratios: Ratios) -> Faster:
    """By columns and padding: from so many keys on, the sizes from which ours is always the faster, with the next fewer
    and the next more keys that were measured; and the other sizes at which it was. How many tiles there are for each
    multiprocessor makes that go up and down with the sizes."""
    return {
        kind: (regions := by_least_keys(by_keys), alone(by_keys, regions)) for kind, by_keys in sorted(ratios.items())
    }


def by_least_keys(by_keys: dict[int, dict[Size, float]]) -> dict[int, Region]:
    """From so many keys on: behind a number that was measured, what it and the next one have in common."""
    regions = {keys: least(ratios) for keys, ratios in sorted(by_keys.items())}
    measured = list(regions)
    found = {1: regions[measured[0]]}
    for keys, following in zip(measured, measured[1:] + measured[-1:], strict=True):
        both = common(regions[keys], regions[following])
        if both != [*found.values()][-1]:
            found[keys + 1] = both
    return found


def alone(by_keys: dict[int, dict[Size, float]], regions: dict[int, Region]) -> Alone:
    """Sizes outside of the regions at which ours was the faster."""
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
    """The sizes from which all ratios are below 1."""
    return corners(size for size in ratios if all(ratio < 1 for other, ratio in ratios.items() if reaches(other, size)))


def common(a: Region, b: Region) -> Region:
    """What two regions share."""
    return corners((max(x[0], y[0]), max(x[1], y[1])) for x, y in product(a, b))


def corners(sizes: Iterable[Size]) -> Region:
    """Without those that have as much as another one."""
    found = sorted(set(sizes))
    return tuple(size for size in found if not any(reaches(size, other) for other in found if other != size))


def reaches(size: Size, corner: Size) -> bool:
    """Whether it has as much of both."""
    return all(there >= wanted for there, wanted in zip(size, corner, strict=True))
