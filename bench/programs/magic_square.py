"""Makes magic squares of odd sizes."""


def magic(size):
    rows = [[0] * size for _ in range(size)]
    y, x = 0, size // 2
    for number in range(1, size * size + 1):
        rows[y][x] = number
        if rows[y - 1][(x + 1) % size]:
            y = (y + 1) % size
        else:
            y, x = (y - 1) % size, (x + 1) % size
    return rows


assert magic(3) == [[8, 1, 6], [3, 5, 7], [4, 9, 2]]
for size in (1, 3, 5, 7, 9):
    rows = magic(size)
    diagonals = [[rows[n][n] for n in range(size)], [rows[n][-n - 1] for n in range(size)]]
    sums = {sum(line) for line in [*rows, *zip(*rows), *diagonals]}
    assert sums == {size * (size * size + 1) // 2}
    assert sorted(sum(rows, [])) == list(range(1, size * size + 1))
