"""Fills an area of a picture with another colour."""


def fill(rows, y, x, colour):
    rows = [list(row) for row in rows]
    old, todo = rows[y][x], [(y, x)]
    while todo:
        y, x = todo.pop()
        if 0 <= y < len(rows) and 0 <= x < len(rows[0]) and rows[y][x] == old != colour:
            rows[y][x] = colour
            todo += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return ["".join(row) for row in rows]


assert fill(["aab", "abb", "aaa"], 0, 0, "z") == ["zzb", "zbb", "zzz"]
assert fill(["aab", "abb"], 1, 2, "a") == ["aaa", "aaa"]
assert fill(["x"], 0, 0, "x") == ["x"]
