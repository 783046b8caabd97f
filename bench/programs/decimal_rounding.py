"""Rounds money half to even, and splits a bill without losing a cent."""

from decimal import ROUND_HALF_EVEN, Decimal

CENT = Decimal("0.01")


def split(amount, people):
    share = (amount / people).quantize(CENT, rounding="ROUND_DOWN")
    left = int((amount - share * people) / CENT)
    return [share + CENT] * left + [share] * (people - left)


assert Decimal("2.675").quantize(CENT, rounding=ROUND_HALF_EVEN) == Decimal("2.68")
assert Decimal("2.665").quantize(CENT, rounding=ROUND_HALF_EVEN) == Decimal("2.66")
assert split(Decimal("10.00"), 3) == [Decimal("3.34"), Decimal("3.33"), Decimal("3.33")]
for people in range(1, 12):
    assert sum(split(Decimal("97.31"), people)) == Decimal("97.31")
