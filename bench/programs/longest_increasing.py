"""Finds the length of the longest increasing subsequence."""

from bisect import bisect_left
from itertools import combinations


def longest(numbers):
    ends = []
    for number in numbers:
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
    return len(ends)


assert longest([10, 9, 2, 5, 3, 7, 101, 18]) == 4
assert longest([]) == 0 and longest([7, 7, 7]) == 1
numbers = [(n * 5) % 11 for n in range(10)]
slow = max(count for count in range(11) for some in combinations(numbers, count) if all(a < b for a, b in zip(some, some[1:])))
assert longest(numbers) == slow
