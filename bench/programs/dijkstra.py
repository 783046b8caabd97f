"""Finds the cheapest way in a graph."""

import heapq

ROADS = {
    "a": {"b": 7, "c": 9, "f": 14},
    "b": {"c": 10, "d": 15},
    "c": {"d": 11, "f": 2},
    "d": {"e": 6},
    "f": {"e": 9},
    "e": {},
}


def cheapest(start, goal):
    queue, done = [(0, start, (start,))], set()
    while queue:
        cost, place, way = heapq.heappop(queue)
        if place == goal:
            return cost, "".join(way)
        if place not in done:
            done.add(place)
            for other, price in ROADS[place].items():
                heapq.heappush(queue, (cost + price, other, (*way, other)))
    return None


assert cheapest("a", "e") == (20, "acfe")
assert cheapest("a", "d") == (20, "acd")
assert cheapest("e", "a") is None
