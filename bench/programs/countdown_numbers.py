"""Makes a number from others by sums, differences and products."""

from itertools import combinations


def reachable(numbers):
    numbers = tuple(sorted(numbers))
    if len(numbers) == 1:
        return set(numbers)
    found = set(numbers)
    for one, other in combinations(range(len(numbers)), 2):
        rest = [number for at, number in enumerate(numbers) if at not in (one, other)]
        a, b = numbers[one], numbers[other]
        for value in {a + b, abs(a - b), a * b}:
            found |= reachable([*rest, value])
    return found


assert reachable([3, 4]) == {3, 4, 7, 1, 12}
assert 24 in reachable([1, 5, 4])
assert 100 in reachable([25, 2, 50])
assert 13 not in reachable([2, 2, 2])
