"""Finds the shortest way through a maze."""

from collections import deque

MAZE = """\
S.#.....
.##.###.
....#...
###.#.#.
....#.#E""".splitlines()


def find(letter):
    return next((y, x) for y, row in enumerate(MAZE) for x, cell in enumerate(row) if cell == letter)


def steps():
    start, goal = find("S"), find("E")
    seen, queue = {start: 0}, deque([start])
    while queue:
        y, x = queue.popleft()
        for place in [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]:
            inside = 0 <= place[0] < len(MAZE) and 0 <= place[1] < len(MAZE[0])
            if inside and place not in seen and MAZE[place[0]][place[1]] != "#":
                seen[place] = seen[y, x] + 1
                queue.append(place)
    return seen.get(goal)


assert steps() == 15
MAZE[0] = "S.######"
assert steps() is None
