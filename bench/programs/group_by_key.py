"""Groups items with itertools, after sorting."""

from itertools import groupby
from operator import itemgetter

PEOPLE = [("Ann", "x"), ("Bob", "y"), ("Cid", "x"), ("Dan", "y"), ("Eve", "z")]


def by_team(people):
    ordered = sorted(people, key=itemgetter(1))
    return {team: [name for name, _ in group] for team, group in groupby(ordered, key=itemgetter(1))}


assert by_team(PEOPLE) == {"x": ["Ann", "Cid"], "y": ["Bob", "Dan"], "z": ["Eve"]}
assert [(key, len(list(group))) for key, group in groupby("aaabccd")] == [("a", 3), ("b", 1), ("c", 2), ("d", 1)]
