"""Solves a Sudoku of four by four, and finds that some have no solution."""


def allowed(rows, y, x):
    box = [rows[y // 2 * 2 + a][x // 2 * 2 + b] for a in (0, 1) for b in (0, 1)]
    return set("1234") - set(rows[y]) - {row[x] for row in rows} - set(box)


def solve(rows):
    free = [(y, x) for y in range(4) for x in range(4) if rows[y][x] == "."]
    if not free:
        return rows
    y, x = min(free, key=lambda place: len(allowed(rows, *place)))
    for digit in sorted(allowed(rows, y, x)):
        tried = [row[:x] + digit + row[x + 1 :] if n == y else row for n, row in enumerate(rows)]
        if found := solve(tried):
            return found
    return None


assert solve(["1...", "..3.", ".4..", "...2"]) is not None
solved = solve(["1.3.", ".4..", "..4.", ".3.1"])
assert all(set(line) == set("1234") for line in [*solved, *zip(*solved)])
assert solve(["123.", "....", "....", "...4"]) is None
