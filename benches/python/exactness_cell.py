"""Formats a comparison of bits as a table cell, for `exactness.py` and docs/reference/exactness.md."""

# Documented guarantees of an op relative to the model's eager code. exactness.py fails if an op is documented
# as "bit-exact" and its bits differ. For "same roundings" and "one rounding", exactness.py only reports the
# difference.
BIT_EXACT, SAME_ROUNDINGS, ONE_ROUNDING = "bit-exact", "same roundings", "one rounding"


def cell(equal: float, ulps: int, claim: str) -> str:
    """Format the fraction of elements with equal bits, and the largest difference in units in the last place
    (ulp).

    The fraction is never rounded up to 100 %. If `claim` is "bit-exact" and the bits differ, the cell
    contains FAIL. If `claim` is "one rounding", the cell contains no difference in ulp, because such an op is
    more accurate than eager mode. The difference would be misleading: if a result is the difference of two
    large numbers, an eager result can be wrong by many ulp.
    """
    if equal == 1 and ulps == 0:
        return "100 %"
    share = min(equal, 0.9999999)
    text = f"{share * 100:.{2 if share < 0.9999 else 5}f} %"
    if claim == ONE_ROUNDING:
        return text
    return f"{text}, {ulps} ulp" + (" **FAIL**" if claim == BIT_EXACT else "")


__all__ = ["BIT_EXACT", "ONE_ROUNDING", "SAME_ROUNDINGS", "cell"]
