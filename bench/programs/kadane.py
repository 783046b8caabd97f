"""Finds the largest sum of neighbours."""

from itertools import accumulate


def largest(numbers):
    best = here = numbers[0]
    for number in numbers[1:]:
        here = max(number, here + number)
        best = max(best, here)
    return best


assert largest([-2, 1, -3, 4, -1, 2, 1, -5, 4]) == 6
assert largest([-3, -1, -2]) == -1
numbers = [(n * 31) % 17 - 8 for n in range(40)]
sums = [0, *accumulate(numbers)]
assert largest(numbers) == max(sums[j] - sums[i] for i in range(len(sums)) for j in range(i + 1, len(sums)))
