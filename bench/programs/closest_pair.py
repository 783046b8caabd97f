"""Finds the two numbers that are closest to each other."""

from itertools import combinations


def closest(numbers):
    ordered = sorted(numbers)
    return min(zip(ordered, ordered[1:]), key=lambda pair: pair[1] - pair[0])


numbers = [1.0, 2.8, 3.0, 4.0, 5.0, 2.1]
assert closest(numbers) == (2.8, 3.0)
assert closest([10, 10]) == (10, 10)
least = min(abs(a - b) for a, b in combinations(numbers, 2))
assert closest(numbers)[1] - closest(numbers)[0] == least
