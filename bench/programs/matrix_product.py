"""Multiplies matrices, and rotates them."""


def product(one, other):
    return [[sum(a * b for a, b in zip(row, column)) for column in zip(*other)] for row in one]


def turned(matrix):
    return [list(row)[::-1] for row in zip(*matrix)]


assert product([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]
assert product([[1, 2, 3]], [[1], [2], [3]]) == [[14]]
square = [[1, 2], [3, 4]]
assert turned(square) == [[3, 1], [4, 2]]
assert turned(turned(turned(turned(square)))) == square
