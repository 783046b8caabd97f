"""Places queens so that none can take another one."""


def queens(size, placed=()):
    if len(placed) == size:
        yield placed
        return
    row = len(placed)
    for column in range(size):
        if all(column != c and abs(column - c) != row - r for r, c in enumerate(placed)):
            yield from queens(size, (*placed, column))


assert [sum(1 for _ in queens(size)) for size in range(1, 8)] == [1, 0, 0, 2, 10, 4, 40]
assert next(queens(8)) == (0, 4, 7, 5, 2, 6, 1, 3)
