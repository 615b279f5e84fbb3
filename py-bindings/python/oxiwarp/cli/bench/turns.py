"""Determines the order in which several items are measured. Each round measures every item once, in random
order.
"""

import random
from collections.abc import Iterable, Iterator


def in_turns(names: Iterable[int], rounds: int) -> Iterator[tuple[int, int]]:
    """Yield one pair (round, name) per measurement. Every round contains each of `names` once, in random
    order.

    A GPU at its power limit runs slower after a step that kept it busy without pauses. In a fixed order, the
    same variant would always follow such a step, and its times would be too long.
    """
    for number in range(rounds):
        turns = list(names)
        random.Random(number).shuffle(turns)
        yield from ((number, name) for name in turns)


__all__ = ["in_turns"]
