"""Joins all places with as little road as possible."""

ROADS = [
    (7, "a", "d"),
    (5, "a", "b"),
    (8, "b", "c"),
    (9, "b", "d"),
    (7, "b", "e"),
    (5, "c", "e"),
    (15, "d", "e"),
    (6, "d", "f"),
    (8, "e", "f"),
    (9, "e", "g"),
    (11, "f", "g"),
]


def spanning(roads):
    group = {place: {place} for road in roads for place in road[1:]}
    chosen = []
    for road in sorted(roads):
        _, one, other = road
        if group[one] is not group[other]:
            chosen.append(road)
            group[one] |= group[other]
            for place in group[other]:
                group[place] = group[one]
    return chosen


chosen = spanning(ROADS)
assert sum(length for length, *_ in chosen) == 39
assert len(chosen) == 6 and {place for road in chosen for place in road[1:]} == set("abcdefg")
