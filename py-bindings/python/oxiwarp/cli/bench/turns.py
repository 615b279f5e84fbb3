"""Whose turn it is: in each round everybody's, in another order."""

import random
from collections.abc import Iterable, Iterator


def in_turns(names: Iterable[int], rounds: int) -> Iterator[tuple[int, int]]:
    """The number of a round, and a name, until all had their turn in each. A GPU at its power limit is slower after a
    step without pauses, so no name always follows the same one."""
    for number in range(rounds):
        turns = list(names)
        random.Random(number).shuffle(turns)
        yield from ((number, name) for name in turns)


__all__ = ["in_turns"]
