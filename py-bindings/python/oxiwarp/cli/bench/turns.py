"""Determines the order of measurements. Each round measures every item once, in random order."""

import random
from collections.abc import Iterable, Iterator


def in_turns(names: Iterable[int], rounds: int) -> Iterator[tuple[int, int]]:
    """Yield pairs (round, name), one per measurement. Every round has all names, in a random order.

    A GPU at its power limit is slower after a step that kept it busy without pauses. In a fixed order, the
    same variant would follow such a step in every round, and would always be measured as slower.
    """
    for number in range(rounds):
        turns = list(names)
        random.Random(number).shuffle(turns)
        yield from ((number, name) for name in turns)


__all__ = ["in_turns"]
