"""Sorts by several keys, some in reverse."""

from operator import attrgetter
from types import SimpleNamespace

PEOPLE = [SimpleNamespace(name=name, age=age) for name, age in [("Bob", 30), ("Ann", 25), ("Cid", 30), ("Dan", 25)]]


def ordered(people, *keys):
    people = list(people)
    for key in reversed(keys):
        people.sort(key=attrgetter(key.lstrip("-")), reverse=key.startswith("-"))
    return [person.name for person in people]


assert ordered(PEOPLE, "age", "name") == ["Ann", "Dan", "Bob", "Cid"]
assert ordered(PEOPLE, "-age", "name") == ["Bob", "Cid", "Ann", "Dan"]
assert ordered(PEOPLE, "-name") == ["Dan", "Cid", "Bob", "Ann"]
assert PEOPLE[0].name == "Bob"
