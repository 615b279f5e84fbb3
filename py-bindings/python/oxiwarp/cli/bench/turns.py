"""Determines the order of measurements: each round has every item once, in random order."""

import random
from collections.abc import Iterable, Iterator


def in_turns(names: Iterable[int], rounds: int) -> Iterator[tuple[int, int]]:
    """Yield the round and the name of each measurement. Every round has all names, in a random order.

    At its power limit, a GPU is slower after a step that kept the GPU busy without pauses. In a fixed order, it would
    always be the same variant that follows such a step.
    """
    for number in range(rounds):
        turns = list(names)
        random.Random(number).shuffle(turns)
        yield from ((number, name) for name in turns)


__all__ = ["in_turns"]
