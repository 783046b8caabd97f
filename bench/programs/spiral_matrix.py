"""Reads a matrix in a spiral."""


def spiral(rows):
    rows, found = [list(row) for row in rows], []
    while rows:
        found += rows.pop(0)
        rows = [list(row) for row in zip(*rows)][::-1]
    return found


assert spiral([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == [1, 2, 3, 6, 9, 8, 7, 4, 5]
assert spiral([[1, 2, 3, 4], [5, 6, 7, 8]]) == [1, 2, 3, 4, 8, 7, 6, 5]
assert spiral([[1], [2], [3]]) == [1, 2, 3] and spiral([]) == []
