"""Finds three numbers that add up to zero."""

from itertools import combinations


def triples(numbers):
    numbers, found = sorted(numbers), set()
    for at, first in enumerate(numbers):
        low, high = at + 1, len(numbers) - 1
        while low < high:
            total = first + numbers[low] + numbers[high]
            if total == 0:
                found.add((first, numbers[low], numbers[high]))
            if total < 0:
                low += 1
            else:
                high -= 1
    return found


numbers = [-1, 0, 1, 2, -1, -4, 3, -2, 5]
assert triples([-1, 0, 1, 2, -1, -4]) == {(-1, -1, 2), (-1, 0, 1)}
assert triples(numbers) == {tuple(sorted(some)) for some in combinations(numbers, 3) if sum(some) == 0}
assert triples([1, 2, 3]) == set()
