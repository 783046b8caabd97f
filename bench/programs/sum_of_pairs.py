"""Finds the first pair with a given sum."""


def pair(numbers, wanted):
    seen = {}
    for at, number in enumerate(numbers):
        if wanted - number in seen:
            return seen[wanted - number], at
        seen.setdefault(number, at)
    return None


assert pair([2, 7, 11, 15], 9) == (0, 1)
assert pair([3, 2, 4], 6) == (1, 2) and pair([3, 3], 6) == (0, 1)
assert pair([1, 2, 3], 100) is None and pair([], 0) is None
