"""Makes the triangle of Pascal."""

from math import comb


def triangle(height):
    row = [1]
    for _ in range(height):
        yield row
        row = [a + b for a, b in zip([0, *row], [*row, 0])]


assert list(triangle(4)) == [[1], [1, 1], [1, 2, 1], [1, 3, 3, 1]]
assert all(row == [comb(n, k) for k in range(n + 1)] for n, row in enumerate(triangle(20)))
assert [sum(row) for row in triangle(8)] == [2**n for n in range(8)]
