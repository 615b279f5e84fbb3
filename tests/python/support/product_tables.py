"""Tables of `oxiwarp.linear` for tests, in which the CPU is a measured device."""

from oxiwarp.patching.fusions.core import linear, linear_tables
from oxiwarp.patching.fusions.core.linear_tables import EQUAL, SPEED, Launch, capability_of, environment_of


class Everything(dict):
    """A table that returns the same value for every key."""

    def __init__(self, value):
        self.value = value

    def __contains__(self, key):
        return True

    def get(self, key, default=None):
        return self.value


class AllSizes:
    """A set of sizes that contains each size."""

    def __contains__(self, size):
        return True


FASTER = Everything([Launch(1, 1.0, 2.0, 2.0), Launch(10**6, 1.0, 2.0, 2.0)])
"""The launch table of a device on which the fused product is always faster."""
EQUAL_BITS = Everything(AllSizes())


def forget():
    """Forget the decisions and comparisons of this process."""
    linear_tables.refused.cache_clear()
    linear.COMPARED.clear()


def use_tables(monkeypatch, speed=FASTER, equal=EQUAL_BITS, index=-1):
    """Replace the measurements of a device: its launch table (times of kernels) by `speed`, and its table of
    sizes with equal bits by `equal`.

    `index` is the index of a GPU, or -1 for the CPU.
    """
    monkeypatch.setitem(SPEED, capability_of(index), speed)
    monkeypatch.setitem(EQUAL, environment_of(index), equal)
    forget()


__all__ = ["EQUAL_BITS", "FASTER", "Everything", "forget", "use_tables"]
