"""Packs the most valuable items into a bag of limited capacity."""

from itertools import combinations

THINGS = [(12, 4), (2, 2), (1, 1), (4, 10), (1, 2), (7, 9), (5, 3)]


def pack(things, room):
    best = [0] * (room + 1)
    for weight, value in things:
        for left in range(room, weight - 1, -1):
            best[left] = max(best[left], best[left - weight] + value)
    return best[room]


def by_trying(things, room):
    chosen = (some for count in range(len(things) + 1) for some in combinations(things, count))
    return max(sum(value for _, value in some) for some in chosen if sum(weight for weight, _ in some) <= room)


assert pack(THINGS, 15) == 24
assert all(pack(THINGS, room) == by_trying(THINGS, room) for room in range(0, 34, 3))
