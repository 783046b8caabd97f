"""Moves a tower of discs, never a large one onto a small one."""


def moves(count, start="A", goal="C", other="B"):
    if count:
        yield from moves(count - 1, start, other, goal)
        yield start, goal
        yield from moves(count - 1, other, goal, start)


for count in range(9):
    towers = {"A": list(range(count, 0, -1)), "B": [], "C": []}
    steps = 0
    for start, goal in moves(count):
        disc = towers[start].pop()
        assert not towers[goal] or towers[goal][-1] > disc
        towers[goal].append(disc)
        steps += 1
    assert steps == 2**count - 1 and towers["C"] == list(range(count, 0, -1))
