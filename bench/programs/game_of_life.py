"""Lets cells live and die; a glider moves."""

from collections import Counter


def step(cells):
    near = Counter((x + dx, y + dy) for x, y in cells for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy)
    return {cell for cell, count in near.items() if count == 3 or (count == 2 and cell in cells)}


blinker = {(0, -1), (0, 0), (0, 1)}
assert step(blinker) == {(-1, 0), (0, 0), (1, 0)} and step(step(blinker)) == blinker
glider = {(1, 0), (2, 1), (0, 2), (1, 2), (2, 2)}
moved = glider
for _ in range(4):
    moved = step(moved)
assert moved == {(x + 1, y + 1) for x, y in glider}
assert step({(5, 5)}) == set()
