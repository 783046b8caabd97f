"""Colours a map with four colours so that no neighbours are alike."""

BORDERS = {
    "A": "BCD",
    "B": "ACE",
    "C": "ABDEF",
    "D": "ACF",
    "E": "BCF",
    "F": "CDE",
}


def colour(done, left):
    if not left:
        return done
    region, rest = left[0], left[1:]
    for paint in range(4):
        if all(done.get(other) != paint for other in BORDERS[region]):
            if found := colour({**done, region: paint}, rest):
                return found
    return None


painted = colour({}, sorted(BORDERS))
assert set(painted) == set(BORDERS)
assert all(painted[one] != painted[other] for one, others in BORDERS.items() for other in others)
assert len(set(painted.values())) <= 4
