"""Text of a measured exactness, for the tables of `exactness.py` and of docs/reference/exactness.md."""

# Guarantees of an op relative to the eager chain. exactness.py checks the first one and measures the others.
BIT_EXACT, SAME_ROUNDINGS, ONE_ROUNDING = "bit-exact", "same roundings", "one rounding"


def cell(equal: float, ulps: int, claim: str) -> str:
    """Format the share of elements with equal bits and the largest distance in units in the last place.

    The share is never rounded up to 100 %. For one rounding the distance is omitted: where large numbers cancel, the
    result differs from eager on purpose. A bit-exact claim that does not hold is marked with FAIL.
    """
    if equal == 1 and ulps == 0:
        return "100 %"
    share = min(equal, 0.9999999)
    text = f"{share * 100:.{2 if share < 0.9999 else 5}f} %"
    if claim == ONE_ROUNDING:
        return text
    return f"{text}, {ulps} ulp" + (" **FAIL**" if claim == BIT_EXACT else "")


__all__ = ["BIT_EXACT", "ONE_ROUNDING", "SAME_ROUNDINGS", "cell"]
