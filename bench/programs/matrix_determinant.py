"""Computes determinants exactly, in two ways."""

from fractions import Fraction
from itertools import permutations
from math import prod


def by_rows(matrix):
    rows, result = [list(map(Fraction, row)) for row in matrix], Fraction(1)
    for at in range(len(rows)):
        pivot = next((y for y in range(at, len(rows)) if rows[y][at]), None)
        if pivot is None:
            return 0
        if pivot != at:
            rows[at], rows[pivot] = rows[pivot], rows[at]
            result = -result
        result *= rows[at][at]
        for row in rows[at + 1 :]:
            factor = row[at] / rows[at][at]
            row[:] = [value - factor * above for value, above in zip(row, rows[at])]
    return result


def by_permutations(matrix):
    size = range(len(matrix))
    signs = (
        (-1) ** sum(p[i] > p[j] for i in size for j in size if i < j) * prod(matrix[i][p[i]] for i in size)
        for p in permutations(size)
    )
    return sum(signs)


assert by_rows([[1, 2], [3, 4]]) == -2
assert by_rows([[1, 2], [2, 4]]) == 0
matrix = [[2, -1, 0, 3], [1, 4, -2, 0], [0, 5, 1, 1], [3, 0, 2, -4]]
assert by_rows(matrix) == by_permutations(matrix)
