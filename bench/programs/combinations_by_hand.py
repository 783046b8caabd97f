"""Lists all combinations, as the library does."""

from itertools import combinations
from math import comb


def choices(things, count):
    if count == 0:
        return [()]
    if len(things) < count:
        return []
    head, *tail = things
    return [(head, *rest) for rest in choices(tail, count - 1)] + choices(tail, count)


for size in range(7):
    for count in range(size + 1):
        mine = choices(list(range(size)), count)
        assert mine == list(combinations(range(size), count)) and len(mine) == comb(size, count)
