"""Counts the water that stays between walls."""

from itertools import accumulate


def water(heights):
    left = accumulate(heights, max)
    right = reversed(list(accumulate(reversed(heights), max)))
    return sum(min(a, b) - height for a, b, height in zip(left, right, heights))


assert water([0, 1, 0, 2, 1, 0, 1, 3, 2, 1, 2, 1]) == 6
assert water([4, 2, 0, 3, 2, 5]) == 9
assert water([1, 2, 3]) == 0 and water([]) == 0
