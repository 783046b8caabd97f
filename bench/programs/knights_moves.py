"""Counts the moves of a knight between two fields."""

from itertools import product

MOVES = [(dx, dy) for dx, dy in product((-2, -1, 1, 2), repeat=2) if abs(dx) != abs(dy)]


def moves(start, goal):
    reached, count = {start}, 0
    while goal not in reached:
        count += 1
        reached |= {(x + dx, y + dy) for x, y in reached for dx, dy in MOVES if 0 <= x + dx < 8 and 0 <= y + dy < 8}
    return count


assert len(MOVES) == 8
assert moves((0, 0), (0, 0)) == 0
assert moves((0, 0), (1, 2)) == 1
assert moves((0, 0), (7, 7)) == 6
assert moves((0, 0), (1, 1)) == 4
