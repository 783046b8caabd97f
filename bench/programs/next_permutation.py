"""Finds the next permutation."""

from itertools import permutations


def following(items):
    items = list(items)
    at = next((n for n in range(len(items) - 2, -1, -1) if items[n] < items[n + 1]), None)
    if at is None:
        return None
    other = max(n for n in range(at + 1, len(items)) if items[n] > items[at])
    items[at], items[other] = items[other], items[at]
    items[at + 1 :] = reversed(items[at + 1 :])
    return items


assert following([1, 2, 3]) == [1, 3, 2] and following([3, 2, 1]) is None
assert following([1, 1, 5]) == [1, 5, 1]
order, count = [0, 1, 2, 3, 4], 1
for expected in list(permutations(range(5)))[1:]:
    order = following(order)
    assert tuple(order) == expected
