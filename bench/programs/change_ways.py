"""Counts the ways to pay an amount."""

from functools import lru_cache

COINS = (1, 2, 5, 10, 20, 50, 100, 200)


@lru_cache(maxsize=None)
def ways(amount, kinds=len(COINS)):
    if amount == 0:
        return 1
    if amount < 0 or kinds == 0:
        return 0
    return ways(amount, kinds - 1) + ways(amount - COINS[kinds - 1], kinds)


assert ways(5) == 4
assert ways(10) == 11
assert ways(200) == 73682
