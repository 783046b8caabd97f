"""Counts the islands of a map."""

MAP = """\
##..#
#...#
..#..
#...#
##.##""".splitlines()


def islands(rows):
    land = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "#"}
    sizes = []
    while land:
        todo, size = [land.pop()], 0
        while todo:
            y, x = todo.pop()
            size += 1
            for place in [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]:
                if place in land:
                    land.remove(place)
                    todo.append(place)
        sizes.append(size)
    return sorted(sizes)


assert islands(MAP) == [1, 2, 3, 3, 3]
assert islands(["..."]) == []
assert islands(["###", "#.#", "###"]) == [8]
